"""Reads the text of a checklist: its items and their annotations, whether any work is left, and what of it is due."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import pairwise

from heartbeat.words import parse_duration

_FENCE = re.compile(r"\s*(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:\s+(.*))?$")
_EMPTY_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])?\s*(?:\[\s*\])?$")
_DONE_BOX = re.compile(r"(?:(?:[-*+]|\d{1,9}[.)])\s*)?\[[xX]\](?:\s|$)")
_RULE = re.compile(r"([-*_])(?:\s*\1){2,}$")
HIGH, NORMAL, LOW = range(3)
LONGEST_EVERY = timedelta(days=9999)

_BULLET = re.compile(r"(\s*)(?:[-*+]|\d{1,9}[.)])(?:\s+|$)")
_BRACKETS = re.compile(r"\[([^\[\]]{0,40})\](?:\s+|$)")
_PRIORITIES = {"high": HIGH, "medium": NORMAL, "low": LOW}
# A YAML block as OpenClaw reads it.
_TASKS_KEY = re.compile(r"\s*tasks:\s*$", re.IGNORECASE)
_TASK_ENTRY = re.compile(r"\s*-\s*(?:name|interval|prompt):\s", re.IGNORECASE)
_MARK_ADVICE = "write [every 30m] with a unit (s, m, h or d), or [high], [low], [paused], [completed]"
_TASKS_ADVICE = "write each task as an item of its own: - [every 30m] Is there urgent mail?"


@dataclass(frozen=True, slots=True)
class Progress:
    """The number of boxes with a text that are open, and that are done."""

    open: int
    done: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a checklist goes into the prompt.

    `text` includes the headings. `has_work` says whether anything in it is to be done. Items with an `every` are named by the
    hash of their text: `prompted_items` are those in the text, `recurring_items` are all of the list. `remarks` are those of
    the checklist.
    """

    text: str
    has_work: bool
    prompted_items: frozenset[str] = frozenset()
    recurring_items: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class _Line:
    """A line outside comments. `level` is that of a heading, else 0. `is_open`: it is in no completed section.

    `item` are its parts if it is a line of a list. `has_work`: it contains something to do.
    """

    text: str
    is_code: bool
    level: int
    is_open: bool
    item: ListLine | None
    has_work: bool


@dataclass(frozen=True, slots=True)
class _Block:
    """The lines of a list item with everything that belongs to it, or lines without an item.

    `item` are the parts of the first line, if it is an item with something to do. `hash` identifies a recurring item by its text,
    and among equal ones by its place; it is empty for others.
    """

    lines: list[_Line]
    has_work: bool
    item: ListLine | None
    hash: str = ""

    def is_due(self, slot: datetime, last_prompted: Mapping[str, datetime], *, everything: bool) -> bool:
        if self.item is None or self.item.paused:
            return False
        if self.item.every is None or everything:
            return True
        last = last_prompted.get(self.hash)
        # A time before the last one means that the system clock was set back. Waiting until that time again would take too long.
        return last is None or not last <= slot < last + self.item.every

    def lines_for_agent(self) -> Iterator[str]:
        """The lines without the marks of the item. Only a high priority stays marked."""
        first, *others = self.lines
        if marked := first.item:
            urgent = "[high] " if marked.priority == HIGH else ""
            yield f"{marked.lead}{urgent}{marked.without_marks[len(marked.lead) :]}"
        else:
            yield first.text
        yield from (line.text for line in others)


@dataclass(frozen=True, slots=True)
class _Section:
    """A heading and everything below it up to the next heading. Level 0 is the text before the first heading."""

    level: int
    heading: list[str]
    blocks: list[_Block]

    def due_blocks(self, slot: datetime, last_prompted: Mapping[str, datetime], *, everything: bool) -> list[_Block]:
        """The blocks that go into the prompt: the due items, and the other text if there is a due item."""
        kept = [each for each in self.blocks if not each.item or each.is_due(slot, last_prompted, everything=everything)]
        due = [block for block in kept if block.item]
        if not due and any(block.item for block in self.blocks):
            return []
        # Due items are sorted within their own positions, so that the text between them stays where it is.
        ordered = iter(sorted(due, key=lambda block: block.item.priority if block.item else NORMAL))
        return [next(ordered) if block.item else block for block in kept]


class Checklist:
    """A parsed checklist. Use `parse_checklist`, which parses each text once."""

    def __init__(self, text: str) -> None:
        self.lines = tuple(_parse_lines(text))
        self._open = [line for line in self.lines if line.is_open]
        self._constant_selection: Selection | None = None

    @property
    def open_text(self) -> str:
        """The text without HTML comments and without sections under a `Completed` heading of any level.

        Such a section ends at the next heading of the same or a higher level. Nothing is removed inside code fences. A comment
        that is never closed stays.
        """
        return "\n".join(line.text for line in self._open).strip("\n")

    @cached_property
    def has_work(self) -> bool:
        """Whether it has anything to prompt the agent about.

        Blank lines, headings, rules, empty list items and boxes, done boxes, marks without a text, empty fences, comments and
        everything under `Completed` do not count. `#TODO`, without a blank, is not a heading and counts.
        """
        return any(line.has_work for line in self._open)

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """Notes about text that looks like a mark but cannot be read, and so is sent as plain text."""
        strange = dict.fromkeys(mark for line in self._open if line.item and (mark := _unreadable_mark(line.item)))
        found = [f"{mark} is not an annotation and is sent as plain text; {_MARK_ADVICE}" for mark in strange]
        lines = [line.text for line in self._open if line.text.strip()]
        if any(_TASKS_KEY.match(first) and _TASK_ENTRY.match(second) for first, second in pairwise(lines)):
            found.append(f"a `tasks:` block is sent as plain text, whole and at every run; {_TASKS_ADVICE}")
        return tuple(found)

    def select_due_items(self, slot: datetime, last_prompted: Mapping[str, datetime], *, everything: bool = False) -> Selection:
        """What goes into the prompt at `slot`. `last_prompted` has when each item was last in a prompt, by its hash.

        An item without `every` is due at every run, a paused item never. `everything` selects all items that are not paused. In
        each section the due items are sorted by priority. Other text belongs to the items of its section and goes into the prompt
        with them, or at every run if the section has no items. Sections without due items are left out.

        If no item has an `every`, as in most checklists, the selection is the same at every run, and is kept.
        """
        if self._constant_selection is not None:
            return self._constant_selection
        due = [section.due_blocks(slot, last_prompted, everything=everything) for section in self._sections]
        levels = [section.level for section in self._sections]
        has_work = [any(block.has_work for block in blocks) for blocks in due]
        lines: list[str] = []
        for place, section in enumerate(self._sections):
            end = next((at for at in range(place + 1, len(levels)) if levels[at] <= section.level), len(levels))
            if any(has_work[place:end]):  # a heading is included if something below it is
                lines += section.heading
                lines += (line for block in due[place] for line in block.lines_for_agent())
        prompted = frozenset(block.hash for blocks in due for block in blocks if block.hash)
        selection = Selection("\n".join(lines).strip("\n"), any(has_work), prompted, self._recurring_items, self.remarks)
        if not self._recurring_items:
            self._constant_selection = selection
        return selection

    @cached_property
    def _sections(self) -> list[_Section]:
        sections = [_Section(0, [], [])]
        seen = Counter[str]()
        for lines in _group_lines(self._open):
            if lines[0].level:
                sections.append(_Section(lines[0].level, [lines[0].text], []))
            else:
                has_work = any(line.has_work for line in lines)
                item, key = lines[0].item if has_work else None, ""
                if item is not None and item.every is not None:
                    text = _text_of_item(lines)
                    key = sha256((f"{text}\0{seen[text]}" if seen[text] else text).encode(errors="replace")).hexdigest()
                    seen[text] += 1
                sections[-1].blocks.append(_Block(lines, has_work, item, key))
        return sections

    @cached_property
    def _recurring_items(self) -> frozenset[str]:
        return frozenset(block.hash for section in self._sections for block in section.blocks if block.hash)


@lru_cache(maxsize=16)
def parse_checklist(text: str) -> Checklist:
    """The checklist with this text. Cached, because each run needs it several times, and most runs have the same text."""
    return Checklist(text)


@lru_cache(maxsize=16)
def count_boxes(*texts: str) -> Progress:
    """The boxes of these texts: the done ones everywhere, the open ones outside `Completed`."""
    lines = (line for text in texts for line in parse_checklist(text).lines if line.item and line.item.text)
    boxes = [line.item.box for line in lines if line.item and (line.is_open or line.item.box == "[x]")]
    return Progress(boxes.count("[ ]"), boxes.count("[x]"))


def _text_of_item(lines: Iterable[_Line]) -> str:
    """The words of an item, which marks, boxes and indentation do not change."""
    shown = (line.text for line in lines if line.text.strip())
    bare = (marked.text if (marked := parse_list_line(line)) else line for line in shown)  # also in a block of code
    return "\n".join(" ".join(text.split()) for text in bare)


def _unreadable_mark(item: ListLine) -> str | None:
    """Text in the place of a mark that looks like one but cannot be read, such as `[every 30]` without a unit. None if there is
    none.
    """
    brackets = _BRACKETS.match(item.text)
    if brackets is None:
        return None
    words = [word.strip().lower() for word in brackets[1].split("|")]
    means_a_mark = words[0].startswith("every ") or (len(words) > 1 and any(_add_mark(ListLine("", 0), word) for word in words))
    return f"[{brackets[1]}]" if means_a_mark else None


def _group_lines(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Groups of lines that belong together: a heading, a list item with the lines that are indented below it or follow
    directly, or other lines.
    """
    group: list[_Line] = []
    for line in lines:
        if group and not _continues_group(group[0], group[-1], line):
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _continues_group(first: _Line, before: _Line, line: _Line) -> bool:
    if line.is_code and before.is_code:
        return True
    if line.level or first.level:
        return False
    if first.item is None:
        return line.item is None
    if line.item is not None:
        return line.item.indent > first.item.indent
    wide = line.text.expandtabs(4)
    return not wide.strip() or bool(before.text.strip()) or len(wide) - len(wide.lstrip()) > first.item.indent


def _parse_lines(text: str) -> Iterator[_Line]:
    completed = 0  # the level of the completed section, 0 outside
    for line, code in _visible_lines(text):
        heading = None if code else _HEADING.match(line)
        level = len(heading[1]) if heading else 0
        if heading and (not completed or level <= completed):
            title = (heading[2] or "").rstrip("# \t").strip("*_~: \t")
            completed = level if title.casefold() == "completed" else 0
        item = None if code else parse_list_line(line)
        bare = item.without_marks.strip() if item else line.strip()
        if code:
            has_work = bool(bare) and not _FENCE.match(line)
        else:
            has_work = bool(bare) and not (level or _EMPTY_ITEM.match(bare) or _DONE_BOX.match(bare) or _RULE.match(bare))
        yield _Line(line, code, level, not completed, item, has_work)


def _visible_lines(text: str) -> Iterator[tuple[str, bool]]:
    """The lines without HTML comments, and whether each line is code, which includes the fences themselves."""
    fence, hidden = "", False
    last_close = text.rfind("-->")
    start = 0
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\r\n")
        if fence:
            yield bare, True
            mark = bare.strip()
            fence = "" if len(mark) >= len(fence) and not mark.strip(fence[0]) else fence
        elif not hidden and (opened := _FENCE.match(bare)):
            yield bare, True
            fence = opened[1]
        else:
            shown, hidden = _strip_comments(bare, hidden, last_close - start)
            if shown.strip() or not bare.strip():
                yield shown, False
        start += len(line)


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
