"""What keeps a text from being YAML: where, and in words that say what to write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ruamel.yaml.error import MarkedYAMLError

from scheduler.config.complaint import NOWHERE, Place

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def explain(error: Exception, text: str) -> tuple[Place, str]:
    """The place and the words for what the parser found in `text`; the remedy is in the words."""
    if not isinstance(error, MarkedYAMLError):
        return _unprintable(text)
    problem, context = str(error.problem or ""), str(error.context or "")
    here: Any = error.problem_mark or error.context_mark or NOWHERE
    began: Any = error.context_mark or here
    if problem.startswith("found character that cannot start"):
        return here, _bad_start(text, here)
    if "scanning an alias" in context:
        return began, 'text that begins with * must stand in quotes: "*/5 * * * *"'
    if problem.startswith("found unexpected ':'"):
        return here, 'a colon is not expected inside brackets; put the text in quotes: "08:00"'
    if "tab" in problem:
        return here, "a tab cannot indent; use spaces"
    if problem.startswith("found unexpected end of stream"):
        return began, "a quote opens here that nothing closes"
    if problem.startswith("found unknown escape"):
        return here, r"a backslash means something else in double quotes; use single quotes, or write \\"
    if problem.startswith("did not find expected node content"):
        return here, "a value is missing here, or a bracket that closes"
    if problem.startswith("did not find expected ',' or"):
        return here, f"the bracket that opens on line {began.line + 1} is not closed here"
    if problem.startswith("mapping values are not allowed"):
        return here, "a colon is not expected here: put the text in quotes, or mend the indentation"
    if problem.startswith("could not find expected ':'"):
        return began, "this is no `key: value`; mind the blank after the colon"
    if problem.startswith(("did not find expected key", "did not find expected '-'", "did not find expected <document start>")):
        return here, "this does not fit what stands above it; mend the indentation, or put the text in quotes"
    return here, f"this is not YAML: {problem}"


def _bad_start(text: str, place: Place) -> str:
    line = text.splitlines()[place.line]  # they end as YAML's do: what else ends one here is no character of YAML's
    found = line.lstrip("\ufeff")[place.column : place.column + 1]
    if found == "\t":
        return "a tab cannot indent; use spaces"
    return f"text that begins with {found or 'this character'} must stand in quotes" + (': "@reboot"' if found == "@" else "")


def _unprintable(text: str) -> tuple[Place, str]:
    found = _UNPRINTABLE.search(text)
    start = found.start() if found else 0
    told = f"the character U+{ord(text[start]):04X} may not stand in a config" if text else "the file is empty"
    return behind(text[:start]), told


@dataclass(frozen=True, slots=True)
class _At:
    line: int
    column: int


def behind(text: str) -> Place:
    """The place of what follows `text`; lines end as YAML's do."""
    lines = (text + "?").splitlines()
    return _At(len(lines) - 1, len(lines[-1]) - 1)
