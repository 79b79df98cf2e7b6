"""Edits the text of a config: sets and removes values, and adds entries. Only the lines of the edited keys change.

ruamel's round trip keeps the comments, quotes and anchors of these lines. All other lines are copied. A changed text is used only
if it parses to the old data with exactly the wanted change.
"""

from __future__ import annotations

import io
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode
from ruamel.yaml.scalarstring import (
    DoubleQuotedScalarString,
    FoldedScalarString,
    LiteralScalarString,
    ScalarString,
    SingleQuotedScalarString,
)

from scheduler.config.file import marked_yaml, yaml_errors
from scheduler.config.file.diagnostics import ConfigError, Diagnostics
from scheduler.config.file.marked_yaml import dotted_path
from scheduler.config.file.message_parts import as_yaml

Keys = tuple[str, ...]
Values = Mapping[str, object]
Pair = tuple[Node, Node]
Change = tuple[Keys, dict[str, object]]

BYTE_ORDER_MARK = "\ufeff"

_STEP = 2
_SECTIONS = frozenset(("agents", "cron", "channels", "providers"))  # maps from names to entries, which get lines of their own
_ALIAS = re.compile(r"[^*]*(\*[^\s,\]}]+)")
_ALIAS_STAR = re.compile(r"\*(?=\w)")
_ANCHOR = re.compile(r"&[^\s,\]}]+")


class EditRefused(ValueError):
    """The text cannot be changed as wanted. `line` counts from 1; the message says what to write instead."""

    def __init__(self, line: int, path: str, message: str) -> None:
        self.line = line
        self.path = path
        self.message = message
        super().__init__(self.located_in("config"))

    def located_in(self, file: object) -> str:
        """The message with its place: the name of the file, the line and the path of the key."""
        return f"{file}:{self.line}: {self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to add, such as a job: its name, its keys, and the comment lines above it."""

    name: str
    keys: Values
    comment: Sequence[str] = ()


def apply_patch(text: str, patch: Values, own: Keys = (), comments: Mapping[str, Sequence[str]] | None = None) -> str:
    """The text with the changes of a JSON merge patch (RFC 7396): maps are merged, None removes a key, all else replaces.

    A patch that changes nothing gives the same text, and so does the removal of a key that is not there. `comments` are the
    comment lines above new keys. Raises UnreadableYaml if the text is not YAML, and EditRefused if a value comes from an anchor,
    alias or merge, because other entries would change too, if it stands where it cannot be changed, or if it shares a line with
    values outside `own`. A byte order mark at the beginning stays.
    """
    if text.startswith(BYTE_ORDER_MARK):
        return BYTE_ORDER_MARK + apply_patch(text.removeprefix(BYTE_ORDER_MARK), patch, own, comments)
    data = marked_yaml.parse_yaml(text, Diagnostics(""))
    if not isinstance(data, dict | None):
        raise EditRefused(1, next(iter(patch), ""), "the file must be keys with values")
    changes = list(_list_changes((), data or {}, patch))
    at_once = len(changes)
    while changes:  # those of different lines together, because it takes long to parse a large text
        document, edits, taken, left = _Document(text), list[_Edit](), set[int](), list[Change]()
        wanted: object = data
        for path, keys in changes:
            try:
                edit = document.change((*path, next(iter(keys))), keys, own, comments or {}) if len(edits) < at_once else None
            except EditRefused:
                if not edits:
                    raise
                edit = None  # perhaps another change makes it possible
            if edit is None or not taken.isdisjoint(edit.places):
                left.append((path, keys))
                continue
            edits.append(edit)
            taken.update(edit.places)
            wanted = _changed_data(wanted, path, keys)
        changed = document.apply(edits)
        if _is_same(_parse_or_none(changed), wanted):
            text, data, changes = changed, wanted, left
        elif at_once == 1:
            path, keys = changes[0]
            raise document.refusal((*path, next(iter(keys))), keys)
        else:
            at_once = 1  # together they gave another value than wanted
    return text


def add_entries(text: str, section: str, entries: Sequence[NewEntry]) -> str:
    """Add the entries at the end of a section, such as `cron`. Their names must be new. Raises as `apply_patch` does."""
    data = marked_yaml.parse_yaml(text, Diagnostics(""))
    if isinstance(data, dict) and not isinstance(data.get(section), dict | None):
        raise EditRefused(1, section, "this must be a map: names, each with its keys")
    comments = {entry.name: entry.comment for entry in entries}
    return apply_patch(text, {section: {entry.name: entry.keys for entry in entries}}, comments=comments)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value without parts in the text, from `start` to `end` (indexes): a single value, an alias, an empty map or list.

    `path` has the keys and the places in lists above it.
    """

    path: Keys
    start: int
    end: int


def list_leaves(text: str) -> list[Leaf]:
    """Every value without parts in the text. The values of a merge have the path of the map into which they are merged."""
    return list(_Document(text).leaves())


def nest_value(steps: Sequence[str], value: object) -> Any:
    """The map of maps in which `value` is at these keys."""
    for step in reversed(steps):
        value = {step: value}
    return value


def _list_changes(path: Keys, data: Values, patch: Values) -> Iterator[Change]:
    """The path of each map to change, with one of its keys or with all its new keys. None removes a key."""
    new = {key: _without_removals(value) for key, value in patch.items() if key not in data and not _removes_only(value)}
    for key, value in patch.items():
        old = data.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping) and old:
            yield from _list_changes((*path, key), old, value)
        elif key in data and (value is None or not (_removes_only(value) or _is_same(old, _without_removals(value)))):
            yield path, {key: _without_removals(value)}
    if new:
        yield path, new


def _removes_only(patch: object) -> bool:
    return patch is None or (isinstance(patch, Mapping) and bool(patch) and all(map(_removes_only, patch.values())))


def _without_removals(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_removals(inner) for key, inner in value.items() if inner is not None}


def _changed_data(data: object, path: Keys, keys: Values) -> object:
    below = dict(data) if isinstance(data, dict) else {}
    if path:
        return {**below, path[0]: _changed_data(below.get(path[0]), path[1:], keys)}
    return {key: value for key, value in {**below, **keys}.items() if value is not None or key not in keys}


def _parse_or_none(text: str) -> object:
    """The data of a text; None if it is not valid."""
    diagnostics = Diagnostics("")
    try:
        found = marked_yaml.parse_yaml(text, diagnostics)
        diagnostics.raise_errors()
    except (marked_yaml.UnreadableYaml, ConfigError):
        return None
    return {} if found is None else found


def _is_same(one: object, other: object) -> bool:
    """Whether two values are equal in type too: in YAML and JSON, true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    return type(one) is type(other) and bool(one == other)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to insert lines: before which line, with which indentation, and with how much more for the keys inside."""

    line: int
    column: int = 0
    step: int = _STEP


@dataclass(frozen=True, slots=True)
class _Edit:
    """Other lines in place of those from `first` to before `end`; with no line between them, they are inserted."""

    first: int
    end: int
    lines: Sequence[str]

    @property
    def places(self) -> range:
        """Numbers that two edits of one place share. Line n, from 0, is 2n + 1. Lines inserted before it are 2n."""
        return range(2 * self.first + 1, 2 * self.end) if self.first < self.end else range(2 * self.first, 2 * self.first + 1)


class _Document:
    """A text with the positions of its values."""

    def __init__(self, text: str) -> None:
        self._text, self._masks = yaml_errors.mask_line_breaks(text)
        self._lines = yaml_errors.split_lines(self._text) if text else []
        self._starts = [0, *accumulate(map(len, self._lines))]
        self._newline = "\r\n" if self._lines and self._lines[0].endswith("\r\n") else "\n"
        self._root = _compose(self._text)
        self._uses: Counter[int] = Counter()
        if self._root is not None:
            self._count_uses(self._root)

    def change(self, steps: Keys, keys: Values, own: Keys, comments: Mapping[str, Sequence[str]]) -> _Edit:
        """The lines with which the map above the last of `steps` has these keys. None removes a key."""
        pairs, node = self._find_pairs(steps)
        missing = steps[len(pairs) :]
        if node is None or (not pairs and node.start_mark.index == node.end_mark.index):
            return self._insert_keys(steps, keys, comments, "", _Place(len(self._lines)))
        if missing and isinstance(node, MappingNode) and not node.flow_style:
            return self._insert_keys(missing, keys, comments, ("", *steps)[len(pairs)], self._place_below(node))
        block = next((depth for depth, (owner, _) in enumerate(pairs) if owner.flow_style), len(pairs))
        if keys[steps[-1]] is None and block == len(steps):
            if len(pairs[-1][0].value) > 1 or block == 1:
                return _Edit(*self._lines_of(pairs[-1][1]), [])
            block -= 1  # an empty map has no notation on lines of its own
        if block < len(own):
            reason = "this line also has values of others; put the agent on lines of its own"
            raise EditRefused(pairs[block - 1][1][0].start_mark.line + 1 if block else 1, dotted_path(own), reason)
        return self._round_trip(steps, keys, pairs[block - 1][1] if block else None, max(block - 1, 0))

    def refusal(self, steps: Keys, keys: Values) -> EditRefused:
        """The refusal of a change that would change the text around it too."""
        pairs, _ = self._find_pairs(steps)
        value = keys[steps[-1]]
        how = "remove it" if value is None else f"write `{steps[-1]}: {as_yaml(value)}`"
        line = pairs[-1][1][0].start_mark.line + 1 if pairs else 1
        return EditRefused(line, dotted_path(steps), f"it cannot be changed without changing the text around it; {how} yourself")

    def leaves(self) -> Iterator[Leaf]:
        """Every value without parts."""
        if self._root is not None:
            yield from self._leaves_in(self._root, (), 0, is_merged=False)

    def _leaves_in(self, node: Node, path: Keys, after: int, *, is_merged: bool) -> Iterator[Leaf]:
        if node.start_mark.index < after:
            alias = _ALIAS.match(self._text, after)
            yield Leaf(path, *alias.span(1) if alias else (after, after))
            return
        if not isinstance(node, MappingNode | SequenceNode) or not node.value:
            yield Leaf(path, node.start_mark.index, self._end(node, after))
            return
        for key, child, behind in self._children(node):
            is_merge = key == "<<" and isinstance(node, MappingNode)
            inner = path if is_merge or (is_merged and isinstance(node, SequenceNode)) else (*path, key)
            yield from self._leaves_in(child, inner, behind, is_merged=is_merge)

    def _find_pairs(self, steps: Keys) -> tuple[list[tuple[MappingNode, Pair]], Node | None]:
        """The key and value of each step that is there, with the map that has them, and the last of the values.

        Raises EditRefused if others use one of the values.
        """
        pairs: list[tuple[MappingNode, Pair]] = []
        node = self._root
        for depth, step in enumerate(steps, 1):
            if not isinstance(node, MappingNode):
                break
            pair = next((each for each in node.value if each[0].value == step), None)
            if pair is None:
                self._refuse_merged(node, steps, depth)
                break
            self._refuse_shared(pair, steps[:depth])
            pairs.append((node, pair))
            node = pair[1]
        return pairs, node

    def _refuse_shared(self, pair: Pair, path: Keys) -> None:
        key, value = pair
        if value.start_mark.index < key.end_mark.index:
            alias = _ALIAS.match(self._text, key.end_mark.index)
            reason = f"its value is the alias {alias[1] if alias else '*'} of a value elsewhere; write a separate value here"
            raise EditRefused(key.start_mark.line + 1, dotted_path(path), reason)
        if self._uses[id(value)] > 1:
            anchor = _ANCHOR.match(self._text, value.start_mark.index)
            reason = f"its value has the anchor {anchor[0] if anchor else '&'}, which others use; "
            reason += "change it in the file if all of them should change"
            raise EditRefused(value.start_mark.line + 1, dotted_path(path), reason)

    def _refuse_merged(self, node: MappingNode, steps: Keys, depth: int) -> None:
        """Refuse a key whose value comes from a merge (<<). A key written here would hide the whole merged value."""
        merge = next((key for key, _ in node.value if key.value == "<<"), None)
        found = marked_yaml.value_at(_parse_or_none(self._text), steps[:depth]) if merge else None
        if merge and found is not None:
            path = steps[:depth]
            reason = f"its value comes from the merge `<<` here; write `{path[-1]}:` below it in the file"
            raise EditRefused(merge.start_mark.line + 1, dotted_path(path), reason)

    def _round_trip(self, steps: Keys, keys: Values, pair: Pair | None, depth: int) -> _Edit:
        """The lines of one key, loaded, changed and dumped. Without `pair`, it is the whole document."""
        first, end = self._lines_of(pair) if pair else (0, len(self._lines))
        column = pair[0].start_mark.column if pair else 0
        snippet = "".join(_dedent(line.rstrip("\r\n"), column) + "\n" for line in self._lines[first:end])
        is_inside = pair is None or (len(steps) > depth + 1 and isinstance(pair[1], MappingNode) and pair[1].flow_style)
        if is_inside and end - first > 1:
            holds_others = pair is None or (depth == 0 and steps[0] in _SECTIONS)
            if holds_others or "#" in snippet:
                reason = "its map is in brackets over several lines; write each of its keys on a line of its own"
                raise EditRefused(first + 1, dotted_path(steps), reason)
        star = yaml_errors.unused_character(self._text)  # the anchor of an alias is elsewhere, so the alias is loaded as text
        try:
            data = _yaml(_STEP).load(_ALIAS_STAR.sub(star, snippet))
        except YAMLError:
            raise self.refusal(steps, keys) from None
        _set_in(data, steps[depth:-1], keys, ("", *steps)[depth])
        return _Edit(first, end, [line.replace(star, "*") for line in self._dump(data, column, _STEP)])

    def _insert_keys(
        self, missing: Keys, keys: Values, comments: Mapping[str, Sequence[str]], parent: str, place: _Place
    ) -> _Edit:
        """The lines of new keys under those of `missing` that come before the last one."""
        data = _as_node(nest_value(missing[:-1], keys), parent)
        data.fa.set_block_style()
        for name, lines in comments.items():
            entries, indent = (data, 0) if name in data else (data[missing[0]], place.step)
            text = "\n".join("".join(sign if sign.isprintable() else "?" for sign in line) for line in lines)
            if text:
                entries.yaml_set_comment_before_after_key(name, text, indent)
        new = self._dump(data, place.column, place.step)
        is_apart = place.column or len(new) == 1 or not self._lines or not self._lines[place.line - 1].strip()
        return _Edit(place.line, place.line, new if is_apart else [self._newline, *new])

    def _dump(self, data: object, column: int, step: int) -> list[str]:
        stream = io.StringIO()
        _yaml(step).dump(data, stream)
        lines = stream.getvalue().removesuffix("\n").split("\n")
        return [f"{' ' * column if line else ''}{line}{self._newline}" for line in lines]

    def apply(self, edits: Sequence[_Edit]) -> str:
        """The text with other lines. A missing line break at the end of the file stays missing."""
        is_ended = not self._lines or self._lines[-1].endswith(("\n", "\r"))
        lines = [*self._lines]
        for edit in sorted(edits, key=lambda each: (each.first, each.end), reverse=True):
            lines[edit.first : edit.end] = edit.lines
        text = "".join(line if line.endswith(("\n", "\r")) else f"{line}{self._newline}" for line in lines)
        for mask, sign in self._masks.items():
            text = text.replace(mask, sign)
        return text if is_ended else text.removesuffix(self._newline)

    def _lines_of(self, pair: Pair) -> tuple[int, int]:
        """The first line of a key, and the line after its value, without blank lines and comments behind it."""
        return pair[0].start_mark.line, bisect_right(self._starts, max(self._end(pair[1], pair[0].end_mark.index) - 1, 0))

    def _place_below(self, node: MappingNode) -> _Place:
        """Where to add keys to a map: below its last value, and below comments there that are indented as much as its keys.

        At the margin, a comment may be about the next section.
        """
        column = node.value[0][0].start_mark.column
        _, end = self._lines_of(node.value[-1])
        for number, line in enumerate(self._lines[end:], end + 1):
            if line.strip() and not (line.lstrip().startswith("#") and len(line) - len(line.lstrip()) >= max(column, 1)):
                break
            end = number if line.strip() else end
        inner = [each for _, each in node.value if isinstance(each, MappingNode) and each.value and not each.flow_style]
        step = inner[0].value[0][0].start_mark.column - column if inner else _STEP
        return _Place(end, column, step if 1 < step < 9 else _STEP)

    def _end(self, node: Node, after: int) -> int:
        """The index behind a value. `after` is the index behind its key, or behind the item before it."""
        if node.start_mark.index < after:  # an alias has the position of its anchor
            alias = _ALIAS.match(self._text, after)
            return alias.end() if alias else after
        if isinstance(node, MappingNode | SequenceNode) and not node.flow_style:
            *_, (_, last, behind) = self._children(node)
            return self._end(last, behind)
        if getattr(node, "style", None) in ("|", ">") and "+" not in self._lines[node.start_mark.line][node.start_mark.column :]:
            return len(self._text[: node.end_mark.index].rstrip())
        return max(int(node.end_mark.index), after)

    def _children(self, node: MappingNode | SequenceNode) -> Iterator[tuple[str, Node, int]]:
        """The values in a map or list, each with its key or place, and the index behind its key or behind the item before it."""
        if isinstance(node, MappingNode):
            for key, value in node.value:
                yield key.value, value, key.end_mark.index
            return
        behind = node.start_mark.index
        for place, item in enumerate(node.value):
            yield str(place), item, behind
            behind = self._end(item, behind)

    def _count_uses(self, node: Node) -> None:
        self._uses[id(node)] += 1
        if isinstance(node, MappingNode | SequenceNode) and self._uses[id(node)] == 1:
            for _, child, _ in self._children(node):
                self._count_uses(child)


def _compose(text: str) -> Node | None:
    try:
        root: Node | None = YAML(typ="safe").compose(text)
    except YAMLError:
        raise marked_yaml.UnreadableYaml from None
    return root


def _yaml(step: int) -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 2**31  # no line is folded
    yaml.map_indent = step
    return yaml


def _dedent(line: str, column: int) -> str:
    return line.lstrip() if line[:column].strip() else line[column:]


def _set_in(data: CommentedMap, path: Keys, keys: Values, parent: str) -> None:
    """Change keys of the map at `path` in loaded data. `parent` is the key of the data."""
    for depth, step in enumerate(path):
        inner = data.get(step)
        if not isinstance(inner, CommentedMap) or not inner:
            _drop_comment_of_block(data, step)
            data[step] = _as_node(nest_value(path[depth + 1 :], keys), step, parent)
            return
        data, parent = inner, step
    for key, value in keys.items():
        if value is None:
            data.pop(key)
        elif isinstance(value, str) and isinstance(data.get(key), ScalarString):
            data[key] = value  # ruamel keeps its quotes
        else:
            _drop_comment_of_block(data, key)
            data[key] = _as_node(value, key, parent)


def _drop_comment_of_block(data: CommentedMap, key: str) -> None:
    """Drop the comment behind the | of a text that is replaced. ruamel cannot write it behind a map or a list."""
    if isinstance(data.get(key), LiteralScalarString | FoldedScalarString):
        data.ca.items.pop(key, None)


def _as_node(value: object, key: str = "", parent: str = "") -> Any:
    """A new value. Entries, and maps that contain maps, get lines of their own; all other maps and lists are in brackets."""
    if isinstance(value, Mapping):
        made = CommentedMap((_as_node(name), _as_node(inner, name, key)) for name, inner in value.items())
        is_entry = key in (*_SECTIONS, "heartbeat") or parent in _SECTIONS
        if not is_entry and not any(isinstance(inner, Mapping) for inner in value.values()):
            made.fa.set_flow_style()
        return made
    if isinstance(value, list | tuple):
        items = CommentedSeq(map(_as_node, value))
        items.fa.set_flow_style()
        return items
    if not isinstance(value, str) or as_yaml(value) == value:
        return value
    has_quotes = value.isprintable() and ('"' in value or "\\" in value)
    return SingleQuotedScalarString(value) if has_quotes else DoubleQuotedScalarString(value)
