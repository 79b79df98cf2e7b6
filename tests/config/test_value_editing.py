"""Edits of single values in the text of a config: every other byte stays, and the text reads as asked."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import loop_over

from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Diagnostics
from scheduler.config.file.value_editing import EditRefused, apply_patch, shared_line


def read(text: str) -> Any:
    diagnostics = Diagnostics("")
    data = marked_yaml.parse_yaml(text, diagnostics)
    diagnostics.raise_errors()
    return data


CONFIG = """\
timezone: UTC   # for all
agents:
  mail:                       # reads the mail
    workspace: agents/mail
    heartbeat:
      interval: 30m           # twice an hour
      active_hours: "08:00-22:00"
      budget: {usd_per_day: 0.50, on_exceed: skip}   # money

  # the disk
  disk:
    heartbeat: {interval: 1h}
    note: |
      first
      second

  bare:
    heartbeat:
cron:
    measure:
        schedule: "* * * * *"
        command: uptime
"""


@loop_over(
    ("patch", "old", "new"),
    [
        ({"agents": {"mail": {"heartbeat": {"interval": "1h"}}}}, "interval: 30m  ", "interval: 1h  "),
        ({"agents": {"mail": {"heartbeat": {"active_hours": "always"}}}}, '"08:00-22:00"', '"always"'),
        ({"agents": {"mail": {"heartbeat": {"budget": {"usd_per_day": 2}}}}}, "usd_per_day: 0.50", "usd_per_day: 2"),
        ({"agents": {"mail": {"heartbeat": {"budget": {"on_exceed": None}}}}}, ", on_exceed: skip", ""),
        ({"agents": {"mail": {"heartbeat": {"budget": {"usd_per_day": None}}}}}, "usd_per_day: 0.50, ", ""),
        ({"agents": {"disk": {"heartbeat": {"interval": None}}}}, "{interval: 1h}", "{}"),
        ({"agents": {"disk": {"heartbeat": {"enabled": False}}}}, "{interval: 1h}", "{interval: 1h, enabled: false}"),
        ({"agents": {"disk": {"note": "short"}}}, "note: |\n      first\n      second\n", "note: short\n"),
        ({"agents": {"disk": {"note": None}}}, "    note: |\n      first\n      second\n", ""),
        (
            {"agents": {"mail": {"heartbeat": {"deliver": ["log", "me"]}}}},
            "on_exceed: skip}   # money\n",
            'on_exceed: skip}   # money\n      deliver: ["log", "me"]\n',
        ),
        (
            {"agents": {"bare": {"heartbeat": {"interval": "5m"}}}},
            "  bare:\n    heartbeat:\n",
            "  bare:\n    heartbeat:\n      interval: 5m\n",
        ),
        ({"cron": {"measure": {"schedule": "0 9 * * *"}}}, '"* * * * *"', '"0 9 * * *"'),
        ({"cron": {"measure": {"command": None}}}, "        command: uptime\n", ""),
        (
            {"agents": {"mail": {"heartbeat": "off"}}},
            CONFIG[CONFIG.index("    heartbeat:\n      interval") : CONFIG.index("\n  # the disk")],
            '    heartbeat: "off"   # money\n',
        ),
        ({"limits": {"wake_flood": "20 per 10m"}}, "command: uptime\n", 'command: uptime\nlimits: {wake_flood: "20 per 10m"}\n'),
        ({"timezone": "Europe/Berlin"}, "UTC   #", "Europe/Berlin   #"),
    ],
)
def test_an_edit_changes_only_its_value(patch: dict[str, Any], old: str, new: str) -> None:
    assert apply_patch(CONFIG, patch) == CONFIG.replace(old, new)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_line_breaks_of_the_file_stay(newline: str) -> None:
    text = "a:\n  b: 1\n  c: 2".replace("\n", newline)
    assert apply_patch(text, {"a": {"d": 3}}) == "a:\n  b: 1\n  c: 2\n  d: 3".replace("\n", newline)


def test_an_empty_file_gets_its_first_value() -> None:
    assert apply_patch("", {"timezone": "UTC"}) == "timezone: UTC\n"
    assert apply_patch("# nothing yet", {"timezone": "UTC"}) == "# nothing yet\ntimezone: UTC\n"


def test_a_patch_with_what_is_there_changes_no_byte() -> None:
    assert apply_patch(CONFIG, {"agents": {"mail": {"heartbeat": {"interval": "30m"}, "workspace": "agents/mail"}}}) == CONFIG
    assert apply_patch(CONFIG, {"agents": {"mail": {"nothing": None}}}) == CONFIG


def test_true_is_not_one() -> None:
    assert apply_patch("a: true\n", {"a": 1}) == "a: 1\n"
    assert apply_patch("a: [1]\n", {"a": [True]}) == "a: [true]\n"


SHARED = """\
x-quiet: &quiet {interval: 2h}
x-hours: &hours "08:00-20:00"
agents:
  one: &one
    heartbeat: {interval: 1h}
  two:
    heartbeat: *quiet
  three:
    <<: *one
    model: small
  four:
    heartbeat: {active_hours: *hours}
  five: &unused
    heartbeat: &alone {interval: 5m}
"""


@pytest.mark.parametrize(
    ("agent", "key", "line", "reason"),
    [
        ("one", "interval", 4, "its value has the anchor &one, which others use"),
        ("two", "interval", 7, "its value is the alias *quiet"),
        ("three", "interval", 9, "its value comes from the merge"),
        ("four", "active_hours", 12, "its value is the alias *hours"),
    ],
)
def test_a_value_that_is_shared_is_refused_with_its_line(agent: str, key: str, line: int, reason: str) -> None:
    with pytest.raises(EditRefused) as refused:
        apply_patch(SHARED, {"agents": {agent: {"heartbeat": {key: "3h"}}}})
    assert (refused.value.line, refused.value.message.startswith(reason)) == (line, True), refused.value


def test_an_anchor_that_nothing_uses_is_no_obstacle() -> None:
    assert apply_patch(SHARED, {"agents": {"five": {"heartbeat": {"interval": "6m"}}}}) == SHARED.replace(
        "5m", "'6m'".replace(chr(39), chr(34))
    )
    assert apply_patch(SHARED, {"agents": {"three": {"model": "big"}}}) == SHARED.replace("small", "big")


# Random configs: each line has a comment with its number, so that it can be recognised after an edit.

NAMES = st.sampled_from(["a", "b", "interval", "heartbeat", "schedule", "x y", "é", "no", "1"])
TEXTS = st.one_of(
    st.sampled_from(
        ["30m", "08:00-22:00", "* * * * *", "true", "null", "1", "", " x", "a: b", "a #b", "'", '"', "é\n", "{", "- x"]
    ),
    st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6),
)
SCALARS = st.one_of(TEXTS, st.booleans(), st.integers(-9, 99), st.floats(0, 9, width=16))
LEAVES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3))
TREES = st.dictionaries(
    NAMES,
    st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8),
    min_size=1,
    max_size=4,
)


class Writer:
    """Writes data as YAML in the many ways of people."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.lines: list[tuple[tuple[str, ...], str]] = []

    def scalar(self, value: Any) -> str:
        if isinstance(value, str):
            escaped = "".join(
                f"\\u{ord(sign):04x}" if not sign.isprintable() and ord(sign) < 65536 else sign
                for sign in value.replace("\\", "\\\\").replace('"', '\\"')
            )
            return f'"{escaped}"'
        return str(value).lower() if isinstance(value, bool) else str(value)

    def flow(self, value: Any) -> str:
        if isinstance(value, dict):
            blank = self.draw(st.sampled_from(["", " "]))
            return (
                "{" + blank + ", ".join(f"{self.scalar(key)}: {self.flow(inner)}" for key, inner in value.items()) + blank + "}"
            )
        if isinstance(value, list):
            return "[" + ", ".join(map(self.flow, value)) + "]"
        return self.scalar(value)

    def add(self, path: tuple[str, ...], line: str) -> None:
        self.lines.append((path, f"{line}{self.draw(st.sampled_from([' ', '   ']))}# {len(self.lines)}"))

    def block(self, path: tuple[str, ...], data: dict[str, Any], indent: int) -> None:
        step = self.draw(st.sampled_from([1, 2, 4]))
        for key, value in data.items():
            here = (*path, key)
            name = " " * indent + self.draw(st.sampled_from([self.scalar(key)])) + ":"
            if self.draw(st.integers(0, 4)) == 0:
                self.add((*path, "# a comment"), " " * indent)
            if isinstance(value, dict) and value and self.draw(st.booleans()):
                self.add(here, name)
                self.block(here, value, indent + step)
            elif isinstance(value, list) and value and self.draw(st.booleans()):
                self.add(here, name)
                for item in value:
                    self.add((*here, "-"), " " * (indent + step) + "- " + self.scalar(item))
            else:
                self.add(here, f"{name} {self.flow(value)}")


@st.composite
def configs(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[tuple[str, ...], str]]]:
    data = draw(TREES)
    writer = Writer(draw)
    writer.block((), data, 0)
    return data, writer.lines


def merged(data: Any, patch: Any) -> Any:
    """RFC 7396, but a removal below a key that is missing adds no empty map."""
    if not isinstance(patch, dict):
        return patch
    result = dict(data) if isinstance(data, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif not removes_only(value) or isinstance(result.get(key), dict):
            result[key] = merged(result.get(key), value)
    return result


def removes_only(patch: Any) -> bool:
    return isinstance(patch, dict) and bool(patch) and all(value is None or removes_only(value) for value in patch.values())


def touches(path: tuple[str, ...], tree: Any, patch: Any) -> bool:
    """Whether a line with the value of this path may change."""
    for step in path:
        if not isinstance(patch, dict) or not isinstance(tree, dict):
            return True  # at or below a changed value, or a comment inside
        if step not in patch:
            return False
        patch, tree = patch[step], tree.get(step)
    return True


@given(configs(), st.data())
def test_any_edit_of_any_config_changes_its_values_only(
    config: tuple[dict[str, Any], list[tuple[tuple[str, ...], str]]], data: st.DataObject
) -> None:
    tree, lines = config
    text = "".join(f"{line}\n" for _, line in lines)
    assert read(text) == tree
    edit: Any = data.draw(st.one_of(LEAVES, st.none(), st.dictionaries(NAMES, LEAVES, max_size=2)))
    path: list[str] = []
    below: Any = tree
    for _ in range(data.draw(st.integers(1, 4))):
        path.append(data.draw(st.one_of(NAMES, st.sampled_from(sorted(below))) if isinstance(below, dict) and below else NAMES))
        below = below.get(path[-1]) if isinstance(below, dict) else None
    patch = edit
    for step in reversed(path):
        patch = {step: patch}
    changed = apply_patch(text, patch)
    assert read(changed) == merged(tree, patch)
    assert apply_patch(changed, patch) == changed
    kept = [line for place, line in lines if not touches(place, tree, patch)]
    assert [line for line in changed.split("\n") if line in set(kept)] == kept


def test_the_readme_config_can_be_edited(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "config.yaml").read_text()
    changed = apply_patch(text, {"agents": {"assistant": {"heartbeat": {"enabled": True, "interval": "1h"}}}})
    different = [new for old, new in zip(text.splitlines(), changed.splitlines(), strict=True) if old != new]
    assert textwrap.dedent("\n".join(different)).split("\n")[0].startswith("enabled: true ")
    assert len(different) == 2


def test_a_line_with_an_alias_or_an_empty_value_of_another_entry_is_shared() -> None:
    for other in ("*tree", "{}", "[]", "1"):
        old = f"x-tree: &tree {{interval: 1h}}\nagents: {{ops: {{interval: 30m}}, web: {other}}}\n"
        assert shared_line(old, old.replace("30m", "31m"), ("agents", "ops")) == 2, other
    alone = "agents:\n  ops: {interval: 30m}\n  web: {}\n"
    assert shared_line(alone, alone.replace("30m", "31m"), ("agents", "ops")) is None
