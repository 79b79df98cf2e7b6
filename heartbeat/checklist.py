"""Parses the text of a checklist: its items with their annotations, the completed items, and whether any work is left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache

from heartbeat.words import parse_duration

_FENCE = re.compile(r"\s*(`{3,}(?=[^`]*$)|~{3,})")
HEADING = re.compile(r" {0,3}(#{1,6})(?:\s+(.*))?$")
_EMPTY_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])?\s*(?:\[\s*\])?$")
_DONE_BOX = re.compile(r"(?:(?:[-*+]|\d{1,9}[.)])\s*)?\[[xX]\](?:\s|$)")
_RULE = re.compile(r"([-*_])(?:\s*\1){2,}$")
HIGH, NORMAL, LOW = range(3)
LONGEST_EVERY = timedelta(days=9999)

_BULLET = re.compile(r"(\s*)(?:[-*+]|\d{1,9}[.)])(?:\s+|$)")
_BRACKETS = re.compile(r"\[([^\[\]]{0,40})\](?:\s+|$)")
_PRIORITIES = {"high": HIGH, "medium": NORMAL, "low": LOW}


@dataclass(frozen=True, slots=True)
class ListLine:
    """A line of a list, split into its parts.

    `lead` is the bullet with the blanks around it, `box` the checkbox as written or empty, `text` the rest. The item with the
    lowest `priority` value comes first in the prompt. `every` is None if the item is in the prompt of every run.
    """

    lead: str
    indent: int
    box: str = ""
    text: str = ""
    every: timedelta | None = None
    priority: int = NORMAL
    paused: bool = False

    @property
    def without_marks(self) -> str:
        """The line without its marks."""
        return f"{self.lead}{self.box} {self.text}".rstrip() if self.box else f"{self.lead}{self.text}".rstrip()


@lru_cache(maxsize=512)
def parse_list_line(line: str) -> ListLine | None:
    """The parts of the line. None if it is not a list line.

    Marks are before or after the checkbox. The last mark of a kind counts. From the first brackets that are not a mark on,
    everything is text.
    """
    bullet = _BULLET.match(line)
    if bullet is None:
        return None
    found = ListLine(bullet[0], len(bullet[1].expandtabs(4)))
    at = bullet.end()
    while (brackets := _BRACKETS.match(line, at)) and (more := _add_brackets(found, brackets[1])):
        found, at = more, brackets.end()
    return replace(found, text=line[at:].strip())


def unreadable_mark(line: str) -> str | None:
    """Text in the place of a mark that looks like one but cannot be read, such as `[every 30]` without a unit. None if there is
    none.
    """
    marked = parse_list_line(line)
    brackets = _BRACKETS.match(marked.text) if marked else None
    if brackets is None:
        return None
    words = [word.strip().lower() for word in brackets[1].split("|")]
    means_a_mark = words[0].startswith("every ") or (len(words) > 1 and any(_add_mark(ListLine("", 0), word) for word in words))
    return f"[{brackets[1]}]" if means_a_mark else None


def _add_brackets(found: ListLine, words: str) -> ListLine | None:
    """The line with the marks of one pair of brackets, which are separated by `|`. None if one of them is neither a box nor a
    mark.
    """
    if words.strip().lower() in ("", "x"):
        return None if found.box else replace(found, box=f"[{words.strip().lower() or ' '}]")
    with_all: ListLine | None = found
    for word in words.split("|"):
        with_all = with_all and _add_mark(with_all, word.strip().lower())
    return with_all


def _add_mark(found: ListLine, word: str) -> ListLine | None:
    """The line with one mark. None if the word is not a mark. ZeroClaw uses `medium`, `active` and `completed`."""
    if word in _PRIORITIES:
        return replace(found, priority=_PRIORITIES[word])
    if word in ("paused", "active"):
        return replace(found, paused=word == "paused")
    if word == "completed":
        return replace(found, box="[x]")
    match word.split():
        case ["every", text] if (every := parse_duration(text)) and every <= LONGEST_EVERY:
            return replace(found, every=every)
    return None


def open_tasks(text: str) -> str:
    """The text without HTML comments and without sections under a `Completed` heading of any level.

    Such a section ends at the next heading of the same or a higher level. Nothing is removed inside code fences. A comment that
    is never closed stays.
    """
    return "\n".join(line for line, _ in open_lines(text)).strip("\n")


@lru_cache(maxsize=16)
def has_work(text: str) -> bool:
    """Whether the checklist has anything to prompt the agent about.

    Blank lines, headings, rules, empty list items and boxes, done boxes, marks without a text, empty fences, comments and
    everything under `Completed` do not count. `#TODO`, without a blank, is not a heading and counts.
    """
    return any(is_content(line, code) for line, code in open_lines(text))


@lru_cache(maxsize=16)
def open_lines(text: str) -> tuple[tuple[str, bool], ...]:
    """The lines of all sections that are not completed, without comments, and whether each line is code.

    Cached, because each run needs the lines of the same text about ten times.
    """
    return tuple(_lines_outside_completed(text))


def _lines_outside_completed(text: str) -> Iterator[tuple[str, bool]]:
    completed = 0
    for line, code in _visible_lines(text):
        heading = None if code else HEADING.match(line)
        if heading and (not completed or len(heading[1]) <= completed):
            completed = len(heading[1]) if _is_completed_title(heading[2] or "") else 0
        if not completed:
            yield line, code


def is_content(line: str, code: bool) -> bool:
    """Whether a line contains something to do."""
    bare = line.strip()
    if not bare:
        return False
    if code:
        return not _FENCE.match(line)
    if marked := parse_list_line(line):
        bare = marked.without_marks.strip()
    return not (HEADING.match(line) or _EMPTY_ITEM.match(bare) or _DONE_BOX.match(bare) or _RULE.match(bare))


@dataclass(frozen=True, slots=True)
class Progress:
    """The number of boxes with a text that are open, and that are done."""

    open: int
    done: int


@lru_cache(maxsize=16)
def count_boxes(*texts: str) -> Progress:
    """The boxes of these texts: the done ones everywhere, the open ones outside `Completed`."""
    opened = sum(_has_box(line, "[ ]") for text in texts for line, code in open_lines(text) if not code)
    done = sum(_has_box(line, "[x]") for text in texts for line, code in _visible_lines(text) if not code)
    return Progress(opened, done)


def _has_box(line: str, box: str) -> bool:
    marked = parse_list_line(line)
    return marked is not None and marked.box == box and bool(marked.text)


def _is_completed_title(title: str) -> bool:
    return title.rstrip("# \t").strip("*_~: \t").casefold() == "completed"


def _visible_lines(text: str) -> Iterator[tuple[str, bool]]:
    """The lines without HTML comments, and whether each line is code, which includes the fences themselves."""
    fence, hidden = "", False
    last_close = text.rfind("-->")
    start = 0
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\r\n")
        if fence:
            yield bare, True
            fence = "" if _closes_fence(fence, bare) else fence
        elif not hidden and (opened := _FENCE.match(bare)):
            yield bare, True
            fence = opened[1]
        else:
            shown, hidden = _strip_comments(bare, hidden, last_close - start)
            if shown.strip() or not bare.strip():
                yield shown, False
        start += len(line)


def _closes_fence(fence: str, line: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip(fence[0])


def _strip_comments(line: str, hidden: bool, last_close: int) -> tuple[str, bool]:
    """The text of a line outside comments, and whether a comment is still open after it. No comment opens after `last_close`."""
    shown, at = "", 0
    while True:
        mark = "-->" if hidden else "<!--"
        found = line.find(mark, at)
        if found < 0 or (not hidden and found + 4 > last_close):
            return (shown if hidden else shown + line[at:]), hidden
        shown += "" if hidden else line[at:found]
        at, hidden = found + len(mark), not hidden
