"""Reads the findings in an agent's answer: what holds, each under a key that stays the same from run to run.

An answer has findings in one of three forms: the arguments of a forced tool, JSON (`{"findings": [...]}`), or lines of plain
text that begin with a key in brackets (`[disk:/var] 92 % full`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

from heartbeat.verdict import begins_with_alarm

MAX_FINDINGS = 50  # per answer; the number of further findings is recorded
MAX_KEY = 120  # code points of a key; a longer key is cut, and its hash keeps it distinct
MAX_TEXT = 2000  # code points of the text of one finding

TOOL_NAME = "report_findings"
TOOL_DESCRIPTION = "Report the result of this heartbeat run. Call it exactly once. An empty list means that all is well."


class Severity(StrEnum):
    """How serious a finding is."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 to 2, for comparisons."""
        return tuple(Severity).index(self)


TOOL_SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "findings": {
            "type": "array",
            "description": "Everything that needs attention, one entry per cause. Empty if nothing does.",
            "items": {
                "type": "object",
                "properties": {
                    "key": {
                        "type": "string",
                        "description": "Short and stable, without figures or times: disk:/var, backup:nightly. Reuse known keys.",
                    },
                    "text": {"type": "string", "description": "What the user should read, in one or two sentences."},
                    "severity": {"type": "string", "enum": [severity.value for severity in Severity]},
                    "resolved": {"type": "boolean", "description": "true only if a known condition is over."},
                },
                "required": ["key", "text", "severity", "resolved"],
                "additionalProperties": False,
            },
        },
        "text": {
            "type": "string",
            "description": "Only if the checklist asks for a text, such as a summary: that text. Otherwise empty.",
        },
    },
    "required": ["findings"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an agent found. `label` is its key as the agent wrote it.

    `resolved`: the condition with this key is over.
    """

    label: str
    text: str
    severity: Severity = Severity.WARNING
    resolved: bool = False

    @property
    def key(self) -> str:
        """The key for comparisons."""
        return comparable_key(self.label)

    @property
    def line(self) -> str:
        """The finding in the form for plain text."""
        if self.resolved:
            return f"[{self.label}] resolved" + (f": {self.text}" if self.text else "")
        return f"[{self.label}{'!' if self.severity is Severity.CRITICAL else ''}] {self.text}".rstrip()


@dataclass(frozen=True, slots=True)
class Report:
    """An answer with findings, one per key.

    `text` is a text that the checklist asked for, and that has no key. `loose` is other text around the lines with keys: it is
    sent only together with a finding. `dropped` counts the findings above the limit.
    """

    findings: tuple[Finding, ...]
    text: str = ""
    loose: str = ""
    dropped: int = 0

    def __str__(self) -> str:
        """The answer as plain text, for the run record."""
        return "\n".join(part for part in (self.text, self.loose, *(finding.line for finding in self.findings)) if part)


@dataclass(frozen=True, slots=True)
class KnownCondition:
    """An open condition, as the prompt lists it. `reported_at` is when a recipient was last notified; None if not yet."""

    label: str
    severity: Severity
    text: str
    since: datetime
    reported_at: datetime | None = None


class InvalidFindings(ValueError):
    """The data is not a list of findings. The message is one line that gives the reason."""


def comparable_key(label: str) -> str:
    """The key without case and without blanks. `Disk: /var` and `disk:/var` are the same key."""
    return "".join(label.split()).casefold()


def parse_report(given: object) -> Report:
    """The findings in the arguments of the tool, or in JSON: a map with the list `findings`, or the list itself.

    Unknown fields are ignored. A finding without a usable key becomes part of the text. Raises InvalidFindings if there is no
    list.
    """
    found = given.get("findings") if isinstance(given, Mapping) else given
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        raise InvalidFindings("the answer has no list of findings")
    text = given.get("text") if isinstance(given, Mapping) else None
    loose = [text.strip()] if isinstance(text, str) and text.strip() else []
    findings = []
    for each in found[:MAX_FINDINGS]:
        finding = _parse_finding(each)
        if finding is None:
            raise InvalidFindings("one of the findings is neither a map nor a string")
        if finding.key:
            findings.append(finding)
        elif finding.text and not finding.resolved:
            loose.append(finding.text)
    return Report(_merge_findings(findings), "\n".join(loose), dropped=max(0, len(found) - MAX_FINDINGS))


def read_report(answer: str) -> Report | None:
    """The findings in an answer that is a text: JSON, or lines with keys. None if it has none."""
    stripped = _without_fence(answer).strip()
    if stripped.startswith(("{", "[")):
        report = _read_json(stripped)
        if report is not None:
            return report
    return _read_lines(answer)


def _parse_finding(value: object) -> Finding | None:
    if isinstance(value, str):
        return _finding_from_line(value) or Finding("", _clean_text(value))
    if not isinstance(value, Mapping):
        return None
    key, text, severity = value.get("key"), value.get("text"), value.get("severity")
    label = _clean_label(key) if isinstance(key, str) else ""
    words = _clean_text(text) if isinstance(text, str) else ""
    resolved = value.get("resolved") in (True, "true")
    return Finding(label, words or ("" if resolved else label), _parse_severity(severity), resolved)


def _parse_severity(value: object) -> Severity:
    """The severity, by its name in any case. Anything else is a warning."""
    name = value.strip().lower() if isinstance(value, str) else ""
    return Severity(name) if name in tuple(Severity) else Severity.WARNING


def _clean_label(label: str) -> str:
    """A key in one printable line of at most MAX_KEY code points. A longer key ends with a hash of the whole."""
    line = " ".join("".join(char if char.isprintable() else " " for char in label).replace("[", "(").replace("]", ")").split())
    if not any(char.isalnum() for char in line):
        return ""
    if len(line) <= MAX_KEY:
        return line
    return f"{line[: MAX_KEY - 9]}~{sha256(comparable_key(label).encode(errors='replace')).hexdigest()[:8]}"


def _clean_text(text: str) -> str:
    kept = text.replace("\0", "").encode(errors="replace").decode().strip()
    return kept if len(kept) <= MAX_TEXT else f"{kept[:MAX_TEXT].rstrip()}..."


def _merge_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """One finding per key: the highest severity and all different texts. It is resolved only if all of them are."""
    merged: dict[str, Finding] = {}
    for finding in findings:
        before = merged.get(finding.key)
        merged[finding.key] = finding if before is None else _merge_two(before, finding)
    return tuple(merged.values())


def _merge_two(first: Finding, second: Finding) -> Finding:
    if first.resolved != second.resolved:
        return second if first.resolved else first
    text = first.text if second.text in first.text else _clean_text(f"{first.text}\n{second.text}")
    return replace(first, text=text, severity=max(first.severity, second.severity, key=lambda severity: severity.rank))


# A fence around the whole answer, as models like to put around JSON.
_WHOLE_FENCE = re.compile(r"\s*(`{3,}|~{3,})[A-Za-z]*[ \t]*\n(.*?)\n[ \t]*\1\s*", re.DOTALL)


def _without_fence(answer: str) -> str:
    fenced = _WHOLE_FENCE.fullmatch(answer)
    return fenced[2] if fenced else answer


def _read_json(text: str) -> Report | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(value, list) and all(isinstance(each, dict) and "key" in each for each in value)
    if not is_list and not (isinstance(value, dict) and isinstance(value.get("findings"), list)):
        return None
    try:
        return parse_report(value)
    except InvalidFindings:
        return None


# `[disk:/var] text`, `- [disk:/var!] text`, `**[disk:/var]** text`. No link (`[text](address)`) and no reference (`[text][1]`).
_KEYED_LINE = re.compile(
    r"[ \t]*(?:(?:[-*+•]|\d{1,3}[.)])[ \t]+)?(?:\*\*|__|`)?"
    r"\[(?P<key>[^\[\]\n]{1,400})\](?![(\[])"
    r"(?:\*\*|__|`)?[ \t]*:?[ \t]*(?P<text>.*)"
)
_RESOLVED = re.compile(r"resolved\b[ \t]*[-–—:.,]*[ \t]*", re.IGNORECASE)
# Words in brackets that are the beginning of an ordinary line, as in a log or on a checklist.
_NO_KEYS = frozenset(
    {"alert", "crit", "critical", "debug", "done", "err", "error", "fail", "failed", "failure", "fatal", "high", "info", "low"}
    | {"medium", "notice", "ok", "paused", "active", "completed", "todo", "trace", "warn", "warning", "x"}
)
_ANNOTATION = re.compile(r"every\s+\d+\s*\w+", re.IGNORECASE)


def _read_lines(answer: str) -> Report | None:
    """The lines with keys. A line without a key belongs to the finding above it, up to an empty line."""
    findings: list[Finding] = []
    loose: list[str] = []
    dropped, is_open = 0, False
    for line in _without_fence(answer).splitlines():
        finding = _finding_from_line(line)
        if finding is not None and len(findings) >= MAX_FINDINGS:
            dropped, is_open = dropped + 1, False
        elif finding is not None:
            findings.append(finding)
            is_open = not finding.resolved
        elif is_open and line.strip() and not _is_token_line(line):
            findings[-1] = replace(findings[-1], text=_clean_text(f"{findings[-1].text}\n{line.strip()}"))
        else:
            is_open = False
            loose.append(line)
    if not findings:
        return None
    text = "\n".join(loose).strip()
    is_alarm = begins_with_alarm(text)
    return Report(_merge_findings(findings), text if is_alarm else "", "" if is_alarm else text, dropped)


def _finding_from_line(line: str) -> Finding | None:
    match = _KEYED_LINE.fullmatch(line.rstrip())
    if match is None:
        return None
    key = match["key"].strip()
    is_critical = key.endswith("!")
    label = _clean_label(key.rstrip("! "))
    if not _is_key(label):
        return None
    text = _clean_text(match["text"])
    severity = Severity.CRITICAL if is_critical else Severity.WARNING
    if over := _RESOLVED.match(text):
        return Finding(label, text[over.end() :], severity, resolved=True)
    return Finding(label, text or label, severity)


def _is_key(label: str) -> bool:
    """Whether the text in brackets is a key: it has a letter, and is no log level, checkbox, annotation or long phrase."""
    is_phrase = len(label.split()) > 4
    return (
        any(char.isalpha() for char in label)
        and not is_phrase
        and label.casefold() not in _NO_KEYS
        and not _ANNOTATION.fullmatch(label)
    )


def _is_token_line(line: str) -> bool:
    return line.strip().strip("*_`.\"'").upper() == "HEARTBEAT_OK"
