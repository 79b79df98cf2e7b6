"""Selects the items of a checklist that are due, and builds the text for the prompt from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise

from heartbeat.checklist import HEADING, HIGH, NORMAL, ListLine, is_content, open_lines, parse_list_line, unreadable_mark

_TASKS_KEY = re.compile(r"\s*tasks:\s*$", re.IGNORECASE)
_TASK_ENTRY = re.compile(r"\s*-\s*(?:name|interval|prompt):\s", re.IGNORECASE)
_MARK_ADVICE = "write [every 30m] with a unit (s, m, h or d), or [high], [low], [paused], [completed]"
_TASKS_ADVICE = "write each task as an item of its own: - [every 30m] Is there urgent mail?"

ANY_SLOT = datetime.min.replace(tzinfo=UTC)  # stands for any slot, if the selection is the same at all of them


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a checklist goes into the prompt.

    `text` includes the headings. `has_work` says whether anything in it is to be done. Items with an `every` are named by the
    hash of their text: `prompted_items` are those in the text, `recurring_items` are all of the list. `remarks` are those of
    `find_remarks`.
    """

    text: str
    has_work: bool
    prompted_items: frozenset[str] = frozenset()
    recurring_items: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """A list item with everything that belongs to it, or lines without an item (`list_line` is None)."""

    list_line: ListLine | None
    lines: list[tuple[str, bool]]
    has_work: bool

    @property
    def is_item(self) -> bool:
        return self.list_line is not None and self.has_work

    @property
    def priority(self) -> int:
        return self.list_line.priority if self.list_line else NORMAL

    @property
    def is_recurring(self) -> bool:
        return self.list_line is not None and self.list_line.every is not None and self.has_work

    @property
    def item_hash(self) -> str:
        """Identifies the item by its text. Marks, boxes and indentation do not change it."""
        text = "\n".join(" ".join(_text_without_marks(line).split()) for line, _ in self.lines if line.strip())
        return sha256(text.encode(errors="replace")).hexdigest()


@dataclass(slots=True)
class _Section:
    """A heading and everything below it up to the next heading. Level 0 is the text before the first heading."""

    level: int
    heading: tuple[str, ...]
    blocks: list[_Block] = field(default_factory=list)
    items: list[_Block] = field(default_factory=list)

    def add_block(self, block: _Block) -> None:
        self.blocks.append(block)
        if block.is_item:
            self.items.append(block)


def select_due_items(text: str, slot: datetime, last_prompted: Mapping[str, datetime], *, everything: bool = False) -> Selection:
    """What goes into the prompt at `slot`. `last_prompted` has the slot at which each item was last in a prompt, by its hash.

    An item without `every` is due at every run, a paused item never. `everything` selects all items that are not paused. In
    each section the due items are sorted by priority. Other text belongs to the items of its section and goes into the prompt
    with them, or at every run if the section has no items. Sections without due items are left out.
    """
    return _constant_selection(text) or replace(
        _select_from_sections(_parse_sections(text), slot, last_prompted, everything), remarks=find_remarks(text)
    )


@lru_cache(maxsize=16)
def find_remarks(text: str) -> tuple[str, ...]:
    """Notes about text that looks like a mark but cannot be read, and so is sent as plain text."""
    lines = open_lines(text)
    strange = dict.fromkeys(mark for line, code in lines if not code and (mark := unreadable_mark(line)))
    found = [f"{mark} is not an annotation and is sent as plain text; {_MARK_ADVICE}" for mark in strange]
    if _has_tasks_block([line for line, _ in lines if line.strip()]):
        found.append(f"a `tasks:` block is sent as plain text, whole and at every run; {_TASKS_ADVICE}")
    return tuple(found)


def _has_tasks_block(lines: list[str]) -> bool:
    """Whether there is a YAML block as OpenClaw reads it."""
    return any(_TASKS_KEY.match(first) and _TASK_ENTRY.match(second) for first, second in pairwise(lines))


@lru_cache(maxsize=16)
def _constant_selection(text: str) -> Selection | None:
    """The selection if no item has an `every`, as in most checklists: it is the same at every run. None otherwise."""
    sections = _parse_sections(text)
    if any(item.is_recurring for section in sections for item in section.items):
        return None
    return replace(_select_from_sections(sections, ANY_SLOT, {}, everything=True), remarks=find_remarks(text))


def _select_from_sections(
    sections: tuple[_Section, ...], slot: datetime, last_prompted: Mapping[str, datetime], everything: bool
) -> Selection:
    due_blocks = [
        _due_blocks(section, [item for item in section.items if _is_due(item, slot, last_prompted, everything)])
        for section in sections
    ]
    return Selection(
        "\n".join(_selected_lines(sections, due_blocks)).strip("\n"),
        any(block.has_work for blocks in due_blocks for block in blocks),
        frozenset(block.item_hash for blocks in due_blocks for block in blocks if block.is_recurring),
        frozenset(item.item_hash for section in sections for item in section.items if item.is_recurring),
    )


def _is_due(item: _Block, slot: datetime, last_prompted: Mapping[str, datetime], everything: bool) -> bool:
    marked = item.list_line
    if marked is None or marked.paused:
        return False
    last = last_prompted.get(item.item_hash) if marked.every and not everything else None
    # A slot before the last one means that the system clock was set back. Waiting until that time again would take too long.
    return last is None or marked.every is None or not last <= slot < last + marked.every


def _due_blocks(section: _Section, due: list[_Block]) -> list[_Block]:
    """The blocks of a section that go into the prompt: its due items, and its other text if there is a due item."""
    if section.items and not due:
        return []
    # Due items are sorted within their own positions, so that the text between them stays where it is.
    ordered, places = iter(sorted(due, key=lambda item: item.priority)), set(map(id, due))
    return [
        next(ordered) if id(block) in places else block for block in section.blocks if id(block) in places or not block.is_item
    ]


def _selected_lines(sections: tuple[_Section, ...], due_blocks: list[list[_Block]]) -> Iterator[str]:
    """The lines for the prompt. A heading is included if something below it is."""
    for index, section in enumerate(sections):
        if any(block.has_work for place in _section_and_subsections(sections, index) for block in due_blocks[place]):
            yield from section.heading
            for block in due_blocks[index]:
                yield from _lines_for_agent(block)


def _section_and_subsections(sections: tuple[_Section, ...], index: int) -> Iterator[int]:
    """The positions of a section and its subsections."""
    yield index
    for place in range(index + 1, len(sections)):
        if sections[place].level <= sections[index].level:
            return
        yield place


def _lines_for_agent(block: _Block) -> Iterator[str]:
    """The lines without their marks. Only a high priority stays marked."""
    first, *others = (line for line, _ in block.lines)
    marked = block.list_line
    if marked is None:
        yield first
    else:
        urgent = "[high] " if marked.priority == HIGH else ""
        yield f"{marked.lead}{urgent}{marked.without_marks[len(marked.lead) :]}"
    yield from others


@lru_cache(maxsize=16)
def _parse_sections(text: str) -> tuple[_Section, ...]:
    """The sections of a text, cached. Nobody may change them."""
    return tuple(_split_sections(text))


def _split_sections(text: str) -> Iterator[_Section]:
    section = _Section(0, ())
    for lines in _group_lines(open_lines(text)):
        line, code = lines[0]
        heading = None if code else HEADING.match(line)
        if heading:
            yield section
            section = _Section(len(heading[1]), (line,))
            lines = lines[1:]
        if lines:
            marked = None if code or heading else parse_list_line(line)
            section.add_block(_Block(marked, lines, any(is_content(each, fenced) for each, fenced in lines)))
    yield section


def _group_lines(lines: Iterable[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    """Groups of lines that belong together: a heading, a list item with the lines that are indented below it or follow
    directly, or other lines.
    """
    group: list[tuple[str, bool]] = []
    for line, code in lines:
        if group and not _continues_group(group, line, code):
            yield group
            group = []
        group.append((line, code))
    if group:
        yield group


def _continues_group(group: list[tuple[str, bool]], line: str, code: bool) -> bool:
    first, before = group[0], group[-1]
    if code and before[1]:
        return True
    if (not code and HEADING.match(line)) or (not first[1] and HEADING.match(first[0])):
        return False
    item = None if first[1] else parse_list_line(first[0])
    listed = None if code else parse_list_line(line)
    if item is None:
        return listed is None
    if listed is not None:
        return listed.indent > item.indent
    return not line.strip() or bool(before[0].strip()) or _indent_width(line) > item.indent


def _indent_width(line: str) -> int:
    wide = line.expandtabs(4)
    return len(wide) - len(wide.lstrip())


def _text_without_marks(line: str) -> str:
    marked = parse_list_line(line)
    return marked.text if marked else line
