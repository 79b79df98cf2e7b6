"""Reads the findings in an agent's answer: problems, each with a key that stays the same from run to run.

An answer has findings in one of three forms: the arguments of a forced tool, JSON (`{"findings": [...]}`), or lines of plain
text that begin with a key in brackets (`[disk:/var] 92 % full`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import Literal

from heartbeat.verdict import begins_with_alarm, is_ok_token, is_token_name, without_reasoning
from heartbeat.words import squeeze

MAX_FINDINGS = 50  # per answer; the number of further findings is recorded
MAX_KEY = 120  # code points of a key; a longer key is cut, and its hash keeps it distinct
MAX_TEXT = 2000  # code points of the text of one finding
MAX_SIZE = 64 * 1024  # bytes of an answer as plain text; findings for which there is no room are only counted
MAX_ITEMS = 10_000  # items that are read of a list that was cut off
MAX_JSON_TRIES = 10  # places in a text at which JSON is looked for

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
                    "resolved": {"type": "boolean", "description": "true only if a known problem is over."},
                },
                "required": ["key", "text", "severity", "resolved"],
                "additionalProperties": False,
            },
        },
        "requested_text": {
            "type": "string",
            "description": "Only if you are asked for a text, such as a summary: that text. Otherwise empty.",
        },
        "failed": {
            "type": "string",
            "description": "Only if you could not do the work of this run at all: the reason. Otherwise empty.",
        },
        "remind": {
            "type": "array",
            "description": "Only if you must look at something again at another time than usual: you are run then.",
            "items": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "What you will read then."},
                    "at": {"type": "string", "description": "A time, such as 2027-03-28 09:00."},
                    "in": {"type": "string", "description": "Or a time from now, such as 30m or 2h."},
                },
                "required": ["text"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["findings"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Finding:
    """One thing that an agent found. `label` is its key as the agent wrote it.

    `resolved`: the problem with this key is over.
    """

    label: str
    text: str
    severity: Severity = Severity.WARNING
    resolved: bool = False

    @cached_property
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
class ReminderWish:
    """A reminder that an agent asks for, as it wrote it: a text, and a time or a span from now. Nothing of it is checked yet."""

    text: str
    at: str | None = None
    in_: str | None = None

    @property
    def line(self) -> str:
        """The reminder in one line, for people."""
        when = f" at {self.at}" if self.at else f" in {self.in_}" if self.in_ else ""
        return squeeze(f"reminder{when}: {self.text}")


def parse_reminders(value: object) -> tuple[ReminderWish, ...]:
    """The reminders in an answer: a list of objects with `text`, and `at` or `in`. Anything else counts as a bad time."""
    listed = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value] if value else []
    return tuple(_parse_reminder(each) for each in listed[:MAX_FINDINGS])


def _parse_reminder(value: object) -> ReminderWish:
    if not isinstance(value, Mapping):
        return ReminderWish(_clean_text(str(value)))
    text, at, span = (each if isinstance(each, str) else None for each in (value.get("text"), value.get("at"), value.get("in")))
    return ReminderWish(_clean_text(text or ""), at, span)


@dataclass(frozen=True, slots=True)
class Report:
    """An answer with findings, one per key.

    `text` is a text that the checklist asked for, and that has no key. `loose` is other text around the lines with keys: it is
    sent only together with a finding. `dropped` counts the findings above the limit. `unconfirmed` are findings that the agent
    did not say again when it was asked. `failed` is why the agent could not do its work, empty if it could.
    `reminders` are those that it asks for.
    """

    findings: tuple[Finding, ...]
    text: str = ""
    loose: str = ""
    dropped: int = 0
    unconfirmed: tuple[Finding, ...] = ()
    failed: str = ""
    reminders: tuple[ReminderWish, ...] = ()

    def __str__(self) -> str:
        """The answer as plain text, for the run record."""
        failed = f"failed: {self.failed}" if self.failed else ""
        return "\n".join(part for part in (failed, self.text, self.loose, *(finding.line for finding in self.findings)) if part)


class InvalidFindings(ValueError):
    """The data is not a list of findings. The message is one line that gives the reason."""


def comparable_key(label: str) -> str:
    """The key without case and without blanks. `Disk: /var` and `disk:/var` are the same key."""
    return "".join(label.split()).casefold()


def parse_report(given: object, *, is_cut: bool = False) -> Report:
    """The findings in the arguments of the tool, or in JSON: a map with the list `findings`, or the list itself.

    JSON may also be given as a text, and so may the list in it, as some models and servers write them. `is_cut`: the data was cut
    off at a token limit, so that only its complete findings count. Unknown fields are ignored. A finding without a usable key
    becomes part of the text. Raises InvalidFindings if there is no list, or if nothing in it can be read.
    """
    for _ in range(2):  # some servers encode the arguments twice
        given = _parse_json_text(given, is_cut=is_cut) if isinstance(given, str) else given
    found = given.get("findings") if isinstance(given, Mapping) else given
    failed = _reported_failure(given)
    if found is None and failed:
        found = ()
    if isinstance(found, str):
        found = _parse_json_text(found, is_cut=is_cut)
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        raise InvalidFindings("there is no list of findings")
    if is_cut and found and not _is_complete(found[-1]):
        found = found[:-1]
    text = (given.get("requested_text") or given.get("text")) if isinstance(given, Mapping) else None
    words = _clean_text(text, None) if isinstance(text, str) and not is_ok_token(text) else ""
    reminders = parse_reminders(given.get("remind")) if isinstance(given, Mapping) and not is_cut else ()
    if not found:
        report = replace((_read_lines(words) if words else None) or Report((), words), reminders=reminders)
        return replace(report, failed=failed) if failed else report
    parsed = [finding for each in found[:MAX_FINDINGS] if (finding := _parse_finding(each)) is not None]
    if not parsed:
        raise InvalidFindings("none of the findings has a key or a text")
    keyless = [finding.text for finding in parsed if not finding.key and not finding.resolved]
    report = Report(
        tuple(finding for finding in parsed if finding.key),
        "\n".join(part for part in (words, *keyless) if part),
        dropped=max(0, len(found) - MAX_FINDINGS),
        failed=failed,
        reminders=reminders,
    )
    return _within_size(report)


def merge_reports(reports: Sequence[Report]) -> Report:
    """One report of several parts of an answer."""
    findings = tuple(finding for report in reports for finding in report.findings)
    merged = Report(
        findings[:MAX_FINDINGS],
        "\n".join(report.text for report in reports if report.text),
        "\n".join(report.loose for report in reports if report.loose),
        sum(report.dropped for report in reports) + max(0, len(findings) - MAX_FINDINGS),
        failed=next((report.failed for report in reports if report.failed), ""),
        reminders=tuple(reminder for report in reports for reminder in report.reminders),
    )
    return _within_size(merged)


def _reported_failure(given: object) -> str:
    """Why the agent could not do its work; empty if it does not say so."""
    reason = given.get("failed") if isinstance(given, Mapping) else None
    return _clean_text(reason) if isinstance(reason, str) else ""


def with_text_around(report: Report, text: str) -> Report:
    """The report with the text that was around it, as far as there is room.

    It counts as a text of its own only if its first word is an alarm.
    """
    if not text or text.isspace():
        return report
    whole = "\n".join(line for line in text.splitlines() if not is_ok_token(line)).strip()
    room = max(0, MAX_SIZE - len(str(report).encode()) - 1)
    kept = whole.encode(errors="replace")[:room].decode(errors="ignore")
    if not kept:
        return report
    if begins_with_alarm(kept):
        return replace(report, text="\n".join(part for part in (kept, report.text) if part))
    return replace(report, loose="\n".join(part for part in (kept, report.loose) if part))


def find_report(given: Report | None, content: str, *, strip_reasoning: bool, is_cut: bool) -> Report | None:
    """The findings of an answer: those `given` by a runner, or else those in its text `content`. None if it has none.

    With `strip_reasoning` the text around given findings has no `<think>` block either. `content` is without one already.
    """
    if given is None:
        return read_report(content, is_cut=is_cut)
    loose = without_reasoning(given.loose, strip_reasoning=strip_reasoning, truncated=is_cut).strip()
    return given if loose == given.loose else replace(given, loose=loose)


def read_report(answer: str, *, is_cut: bool = False) -> Report | None:
    """The findings in an answer that is a text: JSON, alone or with text around it, or lines with keys. None if it has none.

    `is_cut`: the answer was cut off at a token limit, so that its JSON may be incomplete.
    """
    if "[" not in answer and "{" not in answer:
        return None  # a key and JSON begin with one of them
    report = _read_json(answer)
    if report is None and is_cut:
        report = _read_cut_json(answer)
    return _read_lines(answer) if report is None else report


def readable_answer(answer: str) -> str:
    """An answer for people: its findings and reminders in JSON as lines. Any other answer is returned as it is."""
    report = _read_json(answer)
    if report is None:
        return answer
    shown = tuple(
        replace(each, text=f"info: {each.text}") if each.severity is Severity.INFO and not each.resolved else each
        for each in report.findings
    )
    text = str(replace(report, findings=shown)) or "no findings"
    return "\n".join((text, *(each.line for each in report.reminders)))


def _parse_json_text(text: str, *, is_cut: bool) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        if is_cut:
            return {"findings": _complete_items(text)}
        raise InvalidFindings("they are not valid JSON") from None
    return value


_DECODER = json.JSONDecoder()
_LIST_START = re.compile(r'"findings"\s*:\s*\[')
_BETWEEN_ITEMS = re.compile(r"[\s,]*")


def _complete_items(text: str) -> list[object]:
    """The items of the list `findings` in JSON that was cut off, without an incomplete one at its end."""
    start = _LIST_START.search(text)
    items: list[object] = []
    place = start.end() if start else len(text)
    while len(items) < MAX_ITEMS:
        between = _BETWEEN_ITEMS.match(text, place)
        assert between is not None
        try:
            item, place = _DECODER.raw_decode(text, between.end())
        except (ValueError, RecursionError):
            break
        items.append(item)
    return items


def _is_complete(value: object) -> bool:
    """Whether a finding at the end of data that was cut off has all its fields."""
    return isinstance(value, Mapping) and all(name in value for name in ("key", "text", "severity", "resolved"))


def _parse_finding(value: object) -> Finding | None:
    """The finding, with an empty key if it has none. None if it says nothing at all."""
    if isinstance(value, str):
        finding = _finding_from_line(value.strip()) or Finding("", _clean_text(value))
        return finding if finding.key or finding.text else None
    if not isinstance(value, Mapping):
        return Finding("", _as_json(value)) if value is not None else None
    key, text, severity = value.get("key"), value.get("text"), value.get("severity")
    label = _clean_label(key) if isinstance(key, str) else ""
    words = _clean_text(text) if isinstance(text, str) else ""
    if not label and not words:
        return Finding("", _as_json(value)) if value else None
    if label:
        words = words.removeprefix(f"[{label}]").lstrip()
    resolved = value.get("resolved")
    is_resolved = resolved is True or (isinstance(resolved, str) and resolved.strip().lower() in ("true", "yes"))
    return Finding(label, words or ("" if is_resolved else label), _parse_severity(severity), is_resolved)


def _as_json(value: object) -> str:
    """The text for a finding of an unknown form, so that nothing is lost."""
    try:
        return _clean_text(json.dumps(value, ensure_ascii=False, skipkeys=True, default=lambda _: "?"))
    except (ValueError, RecursionError):
        return "a finding that cannot be read"


def _parse_severity(value: object) -> Severity:
    """The severity, by its name in any case. Anything else is a warning."""
    name = value.strip().lower() if isinstance(value, str) else ""
    return Severity(name) if name in tuple(Severity) else Severity.WARNING


# A key in quotes or emphasis, or in brackets as in the prompt.
_WRAPPED = re.compile(r"(\*\*|__|[*_`\"'])(.+)\1|(\[)(.+)\]", re.DOTALL)


def _clean_label(label: str) -> str:
    """A key in one printable line of at most MAX_KEY code points. A longer key ends with a hash of the whole."""
    line = squeeze(label)
    for _ in range(3):
        wrapped = _WRAPPED.fullmatch(line)
        line = (wrapped[2] or wrapped[4]).strip() if wrapped else line
    line = line.rstrip("! ").replace("[", "(").replace("]", ")")
    if not any(map(str.isalnum, line)):
        return ""
    if len(line) <= MAX_KEY:
        return line
    return f"{line[: MAX_KEY - 9]}~{sha256(comparable_key(line).encode(errors='replace')).hexdigest()[:8]}"


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line feeds


def _clean_text(text: str, most: int | None = MAX_TEXT) -> str:
    """The text without control characters and lone surrogates, cut to `most` code points (None: whole)."""
    kept = _CONTROL.sub("", text).encode(errors="replace").decode().strip()
    return kept if most is None or len(kept) <= most else f"{kept[:most].rstrip()}..."


def merge_by_key(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """One finding per key: the highest severity and all different texts. It is resolved only if all of them are."""
    merged: dict[str, Finding] = {}
    for finding in findings:
        before = merged.get(finding.key)
        merged[finding.key] = finding if before is None else merge_two(before, finding)
    return tuple(merged.values())


def merge_two(first: Finding, second: Finding) -> Finding:
    """Two findings about the same thing as one, with the key of the first."""
    if first.resolved != second.resolved:
        return second if first.resolved else first
    text = first.text if second.text in first.text else _clean_text(f"{first.text}\n{second.text}")
    return replace(first, text=text, severity=max(first.severity, second.severity, key=lambda severity: severity.rank))


def _within_size(report: Report) -> Report:
    """The report without the last findings for which an answer has no room. The most serious ones are kept."""
    room = MAX_SIZE - sum(len(part.encode()) + 1 for part in (report.text, report.loose))
    kept = set()
    for place, finding in sorted(enumerate(report.findings), key=lambda each: -each[1].severity.rank):
        room -= len(finding.line.encode()) + 1
        if room >= 0:
            kept.add(place)
    if len(kept) == len(report.findings):
        return report
    findings = tuple(finding for place, finding in enumerate(report.findings) if place in kept)
    return replace(report, findings=findings, dropped=report.dropped + len(report.findings) - len(findings))


_FENCE = re.compile(r"[ \t]*(?:`{3,}|~{3,})[ \t]*\w*[ \t]*")
_JSON_START = re.compile(r"^[ \t]*(?:[*_]{0,2}\w[\w ]{0,30}:[*_]{0,2}[ \t]*)?(?=\{\s*\"|\[\s*\{)", re.MULTILINE)  # or `Result: {`


def _read_json(answer: str) -> Report | None:
    """The findings in JSON at the beginning of a line, or after a label there: alone, or with a fence or text around it."""
    if _without_fences(answer) == "[]":
        return Report(())
    reports, around, place = [], [], 0
    for start in islice(_JSON_START.finditer(answer), MAX_JSON_TRIES):
        if start.start() < place:
            continue  # inside the JSON before
        try:
            value, end = _DECODER.raw_decode(answer, start.end())
        except (ValueError, RecursionError):
            continue
        report = _report_from_json(value)
        if report is None:
            continue
        reports.append(report)
        around.append(answer[place : start.start()])
        place = end
    if not reports:
        return None
    around.append(answer[place:])
    return with_text_around(merge_reports(reports), "\n".join(_without_fences(text) for text in around))


def _read_cut_json(answer: str) -> Report | None:
    """The complete findings in such JSON that was cut off. None if there are none."""
    start, list_start = _JSON_START.search(answer), _LIST_START.search(answer)
    items = _complete_items(answer) if start and list_start and start.start() < list_start.start() else []
    report = _report_from_json({"findings": items}) if items else None
    return with_text_around(report, _without_fences(answer[: start.start()])) if start and report else None


def _report_from_json(value: object) -> Report | None:
    is_list = isinstance(value, list) and all(isinstance(each, dict) and "key" in each for each in value)
    is_failure = isinstance(value, dict) and value.keys() <= {"failed", "text"} and bool(_reported_failure(value))
    if not is_list and not is_failure and not (isinstance(value, dict) and isinstance(value.get("findings"), list)):
        return None
    try:
        return parse_report(value)
    except InvalidFindings:
        return None


def _without_fences(text: str) -> str:
    """The text without the lines of a fence."""
    return "\n".join(line for line in text.splitlines() if not _FENCE.fullmatch(line)).strip()


# `[disk:/var] text`, `- [disk:/var!] text`, `**[disk:/var]** text`. No link (`[text](address)`), no reference (`[text][1]`), and
# no prompt of a shell (`[user@host ~]$ command`).
_KEYED_LINE = re.compile(
    r"[ \t]*(?:(?:[-*+•]|\d{1,3}[.)])[ \t]+)?(?P<wrap>\*\*|__|`)?"
    r"\[(?P<key>[^\[\]\n]{1,400})\](?![(\[$#])"
    r"(?P<unwrap>\*\*|__|`)?[ \t]*(?P<colon>:?)[ \t]*(?P<text>.*)"
)
_RESOLVED = re.compile(r"resolved\b[ \t]*[-–—:.,]*[ \t]*", re.IGNORECASE)
_ADDRESS = re.compile(r"<?[a-z]{2,10}://\S+", re.IGNORECASE)
# Words in brackets that are the beginning of an ordinary line, as in a log, on a checklist, or as a heading.
_ORDINARY_WORDS = """
    alert crit critical debug emerg emergency err errno error fail failed failure fatal high http info information low medium
    notice panic severe trace urgent verbose warn warning
    active blocked cancelled closed completed done n a new none ok open optional pass passed paused pending resolved skip skipped
    success todo unchanged unknown wip x every
    note important hint tip caution reminder result status summary update
    am pm utc gmt z cet cest ago at today tomorrow yesterday now mon monday tue tuesday wed wednesday thu thursday fri friday sat
    saturday sun sunday jan january feb february mar march apr april may jun june jul july aug august sep sept september oct
    october nov november dec december
"""
_NO_KEYS = frozenset(_ORDINARY_WORDS.split())
_WORD = re.compile(r"[^\W_]+")
_FIGURE = re.compile(r"\d+[a-z]{0,3}")  # 12, 30m, 512mb, 2nd
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d|\d\d?:\d\d:\d\d|\d\d?[/.](?:\d\d?|[A-Za-z]{3})[/.]\d{4}")
_HASH = re.compile(r"(?=[a-f]*\d)[0-9a-f]{7,64}")  # of a commit or a container


def _read_lines(answer: str) -> Report | None:
    """The lines with keys. A line without a key belongs to the finding above it, up to an empty line."""
    findings: list[Finding] = []
    more: list[list[str]] = []  # for each finding, the lines that belong to it
    loose: list[str] = []
    dropped, is_open = 0, False
    fence: Literal["none", "in a finding", "outside"] = "none"
    for line in answer.splitlines():
        finding = _finding_from_line(line)
        if _FENCE.fullmatch(line):
            is_open = is_open and fence != "outside"
            fence = "none" if fence != "none" else "in a finding" if is_open else "outside"
        elif finding is not None and len(findings) >= MAX_FINDINGS:
            dropped, is_open = dropped + 1, False
        elif finding is not None:
            findings.append(finding)
            more.append([])
            is_open = not finding.resolved
        elif is_open and line.strip() and not is_ok_token(line):
            more[-1].append(line.strip())
        else:
            is_open = False
            loose.append(line)
    if not findings:
        return None
    whole = [
        replace(finding, text=_clean_text("\n".join([finding.text, *lines]))) if lines else finding
        for finding, lines in zip(findings, more, strict=True)
    ]
    return with_text_around(Report(tuple(whole), dropped=dropped), "\n".join(loose))


def _finding_from_line(line: str) -> Finding | None:
    match = _KEYED_LINE.fullmatch(line.rstrip())
    if match is None or (match["colon"] and _ADDRESS.fullmatch(match["text"])):
        return None  # a definition of a link: `[name]: https://...`
    key = match["key"].strip()
    if key.startswith(("{", '"', "'", "<")):
        return None  # JSON, or data of a program
    is_critical = key.endswith("!")
    label = _clean_label(key)
    if not _is_key(label) or is_token_name(label):
        return None
    text = _clean_text(match["text"])
    if match["wrap"] and not match["unwrap"]:
        text = text.removesuffix(match["wrap"]).rstrip()
    severity = Severity.CRITICAL if is_critical else Severity.WARNING
    if over := _RESOLVED.match(text):
        return Finding(label, text[over.end() :], severity, resolved=True)
    return Finding(label, text or label, severity)


def _is_key(label: str) -> bool:
    """Whether the text in brackets at the beginning of a line is a key.

    It is none if it is a log level, a checkbox, an annotation, a time, a figure, a hash, a footnote, a single letter or a long
    phrase.
    """
    words = [word.casefold() for word in _WORD.findall(label)]
    return (
        sum(map(len, words)) > 1
        and any(map(str.isalpha, label))
        and label[0] not in "!^"
        and len(label.split()) <= 4
        and not all(word in _NO_KEYS or _FIGURE.fullmatch(word) for word in words)
        and not _TIMESTAMP.search(label)
        and not _HASH.fullmatch(label.casefold())
    )
