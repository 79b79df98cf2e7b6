"""Changes single values in the text of a config, without changing any other byte.

Loading and dumping the YAML would keep comments, but not all spaces, brackets and quotes. A changed text is used only if it
parses to the old data with exactly the wanted change.
"""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from _ruamel_yaml import CParser
from ruamel.yaml.events import AliasEvent, MappingEndEvent, MappingStartEvent, ScalarEvent, SequenceEndEvent, SequenceStartEvent

from scheduler.config.file import marked_yaml, yaml_errors
from scheduler.config.file.diagnostics import Diagnostics
from scheduler.config.file.entry_insertion import parse_or_none, quote_text, render_scalar
from scheduler.config.file.marked_yaml import dotted_path

Keys = tuple[str, ...]

_STEP = "  "
_BLOCK_SCALARS = ("|", ">")
_INNER_BLOCKS = frozenset(("agents", "cron", "channels", "providers", "heartbeat"))  # maps that get lines of their own


class EditRefused(ValueError):
    """The text cannot be changed as wanted. `line` counts from 1; the message says what to write instead."""

    def __init__(self, line: int, path: str, message: str) -> None:
        self.line = line
        self.path = path
        self.message = message
        super().__init__(f"line {line}: {path}: {message}")


@dataclass(slots=True)
class _Node:
    """A value in the text, from `start` to `end` (indexes), without blank lines and comments behind it."""

    start: int
    line: int
    kind: str
    end: int = 0
    style: str | None = None
    is_flow: bool = False
    anchor: str | None = None
    pairs: list[_Pair] = field(default_factory=list)
    items: list[_Node] = field(default_factory=list)

    @property
    def is_block(self) -> bool:
        return self.kind in ("map", "list") and not self.is_flow

    @property
    def is_empty_scalar(self) -> bool:
        return self.kind == "scalar" and self.start == self.end


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value without parts in the text, from `start` to `end` (indexes): a single value, an alias, an empty map or list.

    `path` has the keys and the places in lists above it.
    """

    path: Keys
    start: int
    end: int


@dataclass(slots=True)
class _Pair:
    """A key of a map with its value."""

    key: str
    start: int
    end: int
    column: int
    value: _Node

    @property
    def is_merge(self) -> bool:
        return self.key == "<<"


def apply_patch(text: str, patch: Mapping[str, Any]) -> str:
    """The text with the changes of a JSON merge patch (RFC 7396): maps are merged, None removes a key, all else replaces.

    A patch that changes nothing gives the same text, and so does the removal of a key that is not there. Raises EditRefused if a
    value comes from an anchor, alias or merge, because other entries would change too, or if it stands where it cannot be
    changed, and UnreadableYaml if the text is not YAML.
    """
    data = _read_data(text)
    for steps, value in _list_changes((), data if isinstance(data, dict) else {}, patch):
        data = _changed_data(data, steps, value)
        text = _change_value(text, steps, value, data)
    return text


def list_leaves(text: str) -> list[Leaf]:
    """Every value without parts in the text. The values of a merge have the path of the map into which they are merged."""
    root = _NodeReader(text).read_root()
    return [] if root is None else list(_leaves_in(root, ()))


def _leaves_in(node: _Node, path: Keys) -> Iterator[Leaf]:
    if not node.pairs and not node.items:
        yield Leaf(path, node.start, node.end)
    for pair in node.pairs:
        for value in pair.value.items if pair.is_merge and pair.value.items else [pair.value]:
            yield from _leaves_in(value, path if pair.is_merge else (*path, pair.key))
    for place, item in enumerate(node.items):
        yield from _leaves_in(item, (*path, str(place)))


def changed_spans(old: str, new: str) -> list[tuple[int, int, int, int]]:
    """The changed lines, each time from and to a line of `old`, and from and to a line of `new`, counted from 0."""
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines())
    return [(a, b, c, d) for what, a, b, c, d in matcher.get_opcodes() if what != "equal"]


def shared_line(old: str, new: str, entry: Keys) -> int | None:
    """The first changed line of `old` or `new` that also holds values of others than this entry; None if there is none."""
    changed = changed_spans(old, new)
    for text, spans in ((old, [each[:2] for each in changed]), (new, [each[2:] for each in changed])):
        starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
        for each in list_leaves(text):
            first, last = (bisect_right(starts, index) - 1 for index in (each.start, max(each.start, each.end - 1)))
            if each.path[: len(entry)] != entry and any(first < end and last >= begin for begin, end in spans):
                return first + 1
    return None


def _list_changes(path: Keys, data: Mapping[str, Any], patch: Mapping[str, Any]) -> Iterator[tuple[Keys, Any]]:
    """The path of each key to change, and its new value. None removes the key."""
    for key, value in patch.items():
        old = data.get(key)
        if value is None:
            if key in data:
                yield (*path, key), None
        elif isinstance(value, Mapping) and isinstance(old, Mapping) and old:
            yield from _list_changes((*path, key), old, value)
        elif _removes_only(value):
            continue
        elif not _is_same(old, new := _without_removals(value)):
            yield (*path, key), new


def _removes_only(patch: Any) -> bool:
    return isinstance(patch, Mapping) and bool(patch) and all(each is None or _removes_only(each) for each in patch.values())


def _without_removals(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_removals(inner) for key, inner in value.items() if inner is not None}


def _changed_data(data: Any, steps: Keys, value: Any) -> Any:
    below = dict(data) if isinstance(data, dict) else {}
    first, *rest = steps
    if rest:
        below[first] = _changed_data(below.get(first), tuple(rest), value)
    elif value is None:
        below.pop(first, None)
    else:
        below[first] = value
    return below


def _change_value(text: str, steps: Keys, value: Any, wanted: Any) -> str:
    nodes = _NodeReader(text)
    root = nodes.read_root()
    line = 1
    for made, place in _list_candidates(text, root, steps, value, nodes.aliases):
        if _is_same(parse_or_none(made), wanted):
            return made
        line = place
    how = "remove it" if value is None else f"write `{steps[-1]}: {render_scalar(value)}`"
    raise EditRefused(line, dotted_path(steps), f"it cannot be changed without changing the text around it; {how} yourself")


def _list_candidates(
    text: str, root: _Node | None, steps: Keys, value: Any, aliases: frozenset[str]
) -> Iterator[tuple[str, int]]:
    """Possible new texts, the best first, each with the line where the change begins."""
    if root is None or root.is_empty_scalar:
        if value is not None:
            yield _append_lines(text, _render_block(nest_value(steps, value), "")), 1
        return
    node, owner = root, None
    for depth, step in enumerate(steps):
        path = steps[: depth + 1]
        _refuse_shared(node, steps[:depth], aliases)
        if node.kind != "map":
            break
        pair = next((each for each in node.pairs if each.key == step), None)
        if pair is None:
            if value is None or (merge := next((each for each in node.pairs if each.is_merge), None)) is None:
                yield from _insert_pair(text, node, steps[depth:], value)
                return
            _refuse_merged(text, merge, path)
            yield from _insert_pair(text, node, steps[depth:], value)
            return
        parent, owner, node = node, pair, pair.value
    else:
        _refuse_shared(node, steps, aliases)
        assert owner
        if value is None:
            yield from _remove_pair(text, parent, owner)
        else:
            yield from _set_value(text, parent, owner, value)
        return
    # A single value, or nothing, stands where a map is wanted.
    assert owner
    yield from _set_value(text, parent, owner, nest_value(steps[depth:], value))


def _set_value(text: str, parent: _Node, pair: _Pair, value: Any) -> Iterator[tuple[str, int]]:
    if pair.value.is_empty_scalar and not parent.is_flow and isinstance(value, Mapping):
        indent = " " * pair.column + _STEP
        yield _insert_after_line(text, pair.end, _render_block(value, indent)), pair.value.line
    yield _replace_value(text, pair, value, in_flow=parent.is_flow), pair.value.line


def _refuse_shared(node: _Node, path: Keys, aliases: frozenset[str]) -> None:
    if node.kind == "alias":
        raise EditRefused(
            node.line,
            dotted_path(path),
            f"its value is the alias *{node.anchor} of a value elsewhere; write a separate value here",
        )
    if node.anchor is not None and node.anchor in aliases:
        raise EditRefused(
            node.line,
            dotted_path(path),
            f"its value has the anchor &{node.anchor}, which others use; change it in the file if all of them should change",
        )


def _refuse_merged(text: str, merge: _Pair, path: Keys) -> None:
    """Refuse a key whose value comes from a merge (<<). A key written here would hide the whole merged value."""
    found = _read_data(text)
    for step in path:
        if not isinstance(found, dict) or step not in found:
            return
        found = found[step]
    raise EditRefused(
        merge.value.line, dotted_path(path), f"its value comes from the merge `<<` here; write `{path[-1]}:` below it in the file"
    )


def _replace_value(text: str, pair: _Pair, value: Any, *, in_flow: bool) -> str:
    old = pair.value
    new = _render_value(pair.key, value, in_flow=in_flow, was_quoted=old.style in ("'", '"'))
    anchor = f"&{old.anchor} " if old.anchor else ""  # an anchor that nothing uses stays
    colon = text.index(":", pair.end) + 1
    if old.is_block:
        # The rest of the key's line, which may be a comment, stays behind the new value.
        line_end = _line_end(text, colon)
        rest = text[colon:line_end]
        if old.start >= line_end:
            rest = rest.removeprefix(f" {anchor.strip()}") if anchor else rest
            return f"{text[:colon]} {anchor}{new}{rest}{text[old.end :]}"
    if old.is_empty_scalar:
        return f"{text[:colon]} {anchor}{new}{text[max(colon, old.end) :]}"
    return text[: old.start] + anchor + new + text[old.end :]


def _insert_pair(text: str, node: _Node, steps: Keys, value: Any) -> Iterator[tuple[str, int]]:
    if value is None:
        yield text, node.line
        return
    key, inner = steps[0], nest_value(steps[1:], value)
    last = node.pairs[-1] if node.pairs else None
    if node.is_flow:
        new = f"{render_scalar(key)}: {_render_value(key, inner, in_flow=True, was_quoted=False)}"
        if last is None:
            yield f"{text[: node.start + 1]}{new}{text[node.start + 1 :]}", node.line
            return
        yield f"{text[: last.value.end]}, {new}{text[last.value.end :]}", node.line
        yield f"{text[: node.end - 1]}{new}{text[node.end - 1 :]}", node.line  # after a comma at the end
        return
    assert last
    indent = " " * node.pairs[0].column
    yield _insert_after_line(text, last.value.end, _render_block({key: inner}, indent)), node.line


def _remove_pair(text: str, parent: _Node, pair: _Pair) -> Iterator[tuple[str, int]]:
    position = parent.pairs.index(pair)
    following = parent.pairs[position + 1] if position + 1 < len(parent.pairs) else None
    line = pair.value.line
    if parent.is_flow:
        if following:
            yield text[: pair.start] + text[following.start :], line
        elif position:
            yield text[: parent.pairs[position - 1].value.end] + text[pair.value.end :], line
        yield text[: pair.start] + text[pair.value.end :], line
        return
    if len(parent.pairs) == 1:
        # An empty map has no notation on lines of its own.
        start = text.rfind("\n", 0, parent.start) + 1
        before = text[:start].rstrip("\r\n")
        comment_free = text[parent.start : pair.value.end]
        yield f"{text[: parent.start]}{{}}{text[parent.start + len(comment_free) :]}", line
        yield f"{before} {{}}{text[_line_end(text, pair.value.end) :]}", line
    first = text.rfind("\n", 0, pair.start) + 1
    after = _line_end(text, pair.value.end)
    yield text[:first] + text[after:].removeprefix("\r").removeprefix("\n"), line
    if following:
        yield text[: pair.start] + text[following.start :], line


def _render_value(key: str, value: Any, *, in_flow: bool, was_quoted: bool) -> str:
    if isinstance(value, str) and (in_flow or was_quoted or key == "schedule"):
        return quote_text(value)
    return render_scalar(value)


def _render_block(keys: Mapping[str, Any], indent: str) -> list[str]:
    """The lines of a map. Maps of entries, and maps that contain maps, get lines of their own."""
    lines: list[str] = []
    for key, value in keys.items():
        name = f"{indent}{render_scalar(key)}:"
        inner = value if isinstance(value, Mapping) else {}
        if inner and (key in _INNER_BLOCKS or any(isinstance(each, Mapping) for each in inner.values())):
            lines += [name, *_render_block(inner, indent + _STEP)]
        else:
            lines.append(f"{name} {_render_value(key, value, in_flow=False, was_quoted=False)}")
    return lines


def nest_value(steps: Sequence[str], value: Any) -> Any:
    """The map of maps in which `value` is at these keys."""
    for step in reversed(steps):
        value = {step: value}
    return value


def _insert_after_line(text: str, index: int, lines: Sequence[str]) -> str:
    end = _line_end(text, index)
    newline = _newline_of(text)
    block = newline.join(lines)
    return f"{text[:end]}{newline}{block}{text[end:]}"


def _append_lines(text: str, lines: Sequence[str]) -> str:
    newline = _newline_of(text)
    apart = "" if not text or text.endswith(("\n", "\r")) else newline
    return f"{text}{apart}{newline.join(lines)}{newline}"


def _line_end(text: str, index: int) -> int:
    """The index of the line break after `index`, or the end of the text."""
    end = text.find("\n", index)
    if end < 0:
        return len(text)
    return end - 1 if end > index and text[end - 1] == "\r" else end


def _newline_of(text: str) -> str:
    end = text.find("\n")
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def _read_data(text: str) -> Any:
    return marked_yaml.parse_yaml(text, Diagnostics(""))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal in type too: in YAML and JSON, true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    return type(one) is type(other) and bool(one == other)


class _NodeReader:
    """Reads where each value of a text stands. `aliases` are the anchors that the text uses."""

    def __init__(self, text: str) -> None:
        text, _ = yaml_errors.mask_line_breaks(text)
        self._text = text
        self._next = CParser(text).get_event
        self._aliases: set[str] = set()

    @property
    def aliases(self) -> frozenset[str]:
        return frozenset(self._aliases)

    def read_root(self) -> _Node | None:
        """The root of the first document; None for an empty text."""
        self._next()
        return self._read_node(self._next()) if type(self._next()).__name__ == "DocumentStartEvent" else None

    def _read_node(self, event: Any) -> _Node:
        node = _Node(event.start_mark.index, event.start_mark.line + 1, "scalar", event.end_mark.index, anchor=event.anchor)
        if isinstance(event, AliasEvent):
            node.kind = "alias"
            self._aliases.add(event.anchor)
        elif isinstance(event, ScalarEvent):
            node.style = event.style
            node.end = self._scalar_end(event)
        elif isinstance(event, MappingStartEvent):
            node.kind, node.is_flow = "map", event.flow_style
            self._read_pairs(node)
        elif isinstance(event, SequenceStartEvent):
            node.kind, node.is_flow = "list", event.flow_style
            while not isinstance(item := self._next(), SequenceEndEvent):
                node.items.append(self._read_node(item))
                node.end = node.items[-1].end
            node.end = item.end_mark.index if node.is_flow else node.end
        return node

    def _read_pairs(self, node: _Node) -> None:
        while not isinstance(event := self._next(), MappingEndEvent):
            key = self._read_node(event)
            value = self._read_node(self._next())
            name = event.value if isinstance(event, ScalarEvent) else ""
            node.pairs.append(_Pair(name, key.start, key.end, event.start_mark.column, value))
            node.end = max(key.end, value.end)
        node.end = event.end_mark.index if node.is_flow else node.end

    def _scalar_end(self, event: Any) -> int:
        """The end of a scalar; a text with | or > ends before the blank lines behind it."""
        start: int = event.start_mark.index
        end: int = event.end_mark.index
        if event.style in _BLOCK_SCALARS:
            end = len(self._text[:end].rstrip())
        return max(end, start)
