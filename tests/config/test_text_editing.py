"""Edits of single values in the text of a config: every other byte stays, and the text reads as asked."""

from __future__ import annotations

import json
import random
import textwrap
from time import process_time
from typing import Any

import pytest
import simulation
from loops import loop_over

from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Diagnostics
from scheduler.config.file.text_editing import EditRefused, apply_patch


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
        ({"agents": {"mail": {"heartbeat": {"interval": "1h"}}}}, "interval: 30m ", "interval: 1h  "),
        ({"agents": {"mail": {"heartbeat": {"active_hours": "always"}}}}, '"08:00-22:00"', '"always"'),
        ({"agents": {"mail": {"heartbeat": {"budget": {"usd_per_day": 2}}}}}, "0.50, on_exceed: skip}", "2, on_exceed: skip}   "),
        ({"agents": {"mail": {"heartbeat": {"budget": {"on_exceed": None}}}}}, ", on_exceed: skip}", "}" + " " * 17),
        (
            {"agents": {"mail": {"heartbeat": {"budget": {"usd_per_day": None}}}}},
            "usd_per_day: 0.50, on_exceed: skip}",
            "on_exceed: skip}" + " " * 19,
        ),
        ({"agents": {"disk": {"heartbeat": {"interval": None}}}}, "{interval: 1h}", "{}"),
        ({"agents": {"disk": {"heartbeat": {"enabled": False}}}}, "{interval: 1h}", "{interval: 1h, enabled: false}"),
        ({"agents": {"disk": {"note": "short"}}}, "note: |\n      first\n      second\n", "note: |-\n      short\n"),
        ({"agents": {"disk": {"note": None}}}, "    note: |\n      first\n      second\n", ""),
        (
            {"agents": {"mail": {"heartbeat": {"deliver": ["log", "me"]}}}},
            "on_exceed: skip}   # money\n",
            "on_exceed: skip}   # money\n      deliver: [log, me]\n",
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
            '    heartbeat: "off"\n',
        ),
        ({"limits": {"wake_flood": "20 per 10m"}}, "command: uptime\n", "command: uptime\nlimits: {wake_flood: 20 per 10m}\n"),
        ({"cron": {"measure": {"command": 'grep "\\d" x'}}}, "command: uptime", "command: 'grep \"\\d\" x'"),
        ({"timezone": "Europe/Berlin"}, "UTC   #", "Europe/Berlin #"),
    ],
)
def test_an_edit_changes_only_its_value(patch: dict[str, Any], old: str, new: str) -> None:
    assert apply_patch(CONFIG, patch) == CONFIG.replace(old, new)


def test_a_new_section_comes_below_the_comments_of_the_last_one_and_above_those_of_the_next() -> None:
    above, below = "agents:\n  mail:\n    interval: 30m\n    # budget: {usd_per_day: 0.50}\n", "\n# cron:\n#   nightly:\n"
    assert apply_patch(above + below, {"limits": {"concurrency": 2}}) == f"{above}limits: {{concurrency: 2}}\n{below}"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_line_breaks_of_the_file_stay(newline: str) -> None:
    text = "a:\n  b: 1\n  c: 2".replace("\n", newline)
    assert apply_patch(text, {"a": {"d": 3}}) == "a:\n  b: 1\n  c: 2\n  d: 3".replace("\n", newline)


def test_an_empty_file_gets_its_first_value() -> None:
    assert apply_patch("", {"timezone": "UTC"}) == "timezone: UTC\n"
    assert apply_patch("# nothing yet", {"timezone": "UTC"}) == "# nothing yet\ntimezone: UTC"


def test_a_patch_with_what_is_there_changes_no_byte() -> None:
    assert apply_patch(CONFIG, {"agents": {"mail": {"heartbeat": {"interval": "30m"}, "workspace": "agents/mail"}}}) == CONFIG
    assert apply_patch(CONFIG, {"agents": {"mail": {"nothing": None}}}) == CONFIG


def test_a_text_of_several_lines_with_a_comment_behind_its_sign_is_replaced_by_a_map_or_a_list() -> None:
    for sign in ("|", ">-"):
        text = f"a:\n  check: {sign}  # why\n    one\n  next: 1\n"
        for new, shown in (({"command": "x"}, "{command: x}"), (["x"], "[x]")):
            assert apply_patch(text, {"a": {"check": new}}) == f"a:\n  check: {shown}\n  next: 1\n"


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
    five = apply_patch(SHARED, {"agents": {"five": {"heartbeat": {"interval": "6m"}}}})
    assert five == SHARED.replace("&alone {interval: 5m}", "{interval: 6m}")
    assert apply_patch(SHARED, {"agents": {"three": {"model": "big"}}}) == SHARED.replace("small", "big")


TEXTS = [
    "30m",
    "08:00-22:00",
    "* * * * *",
    "true",
    "null",
    "1",
    "",
    " x",
    "a: b",
    "a #b",
    "'",
    '"',
    "é\n",
    "{",
    "- x",
    "two\nlines\n",
    "\x85",
]
KEYS = ["interval", "prompt", "note", "x y", "é", "no", "1", "budget", "deliver", "heartbeat"]
SHARED_LINES = ["x-base: &base", "  note: shared   # everywhere", "  budget: {usd_per_day: 1}", "x-list: &list [log, me]"]


class RandomConfig:
    """A config as people write it. `lines` are its lines, each with the path of its key, and a comment that no other line has."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[tuple[tuple[str, ...], str]] = [(("x-base",), line) for line in SHARED_LINES[:3]]
        self.lines.append((("x-list",), SHARED_LINES[3]))
        for section in ("defaults", "agents", "cron"):
            names = ["agent", "cron"] if section == "defaults" else [f"{section[0]}{n}" for n in range(self.random.randint(1, 3))]
            self.write_map((section,), {name: self.keys() for name in names}, 0)
            if self.random.random() < 0.5:
                self.lines.append(((), self.random.choice(["", "# a comment", "  # another"])))
        self.newline = self.random.choice(["\n", "\r\n"])
        self.text = self.newline.join(line for _, line in self.lines) + self.random.choice(["", self.newline])

    def value(self, depth: int = 0) -> Any:
        kind = self.random.random()
        if kind < 0.2 and depth < 2:
            return self.keys(depth + 1)
        if kind < 0.35:
            return [self.random.choice(TEXTS) for _ in range(self.random.randint(0, 3))]
        return self.random.choice([*TEXTS, True, False, 0, -3, 17, 0.5, 1e20])

    def keys(self, depth: int = 0) -> dict[str, Any]:
        return {key: self.value(depth) for key in self.random.sample(KEYS, self.random.randint(0 if depth else 1, 4))}

    def write_map(self, path: tuple[str, ...], data: dict[str, Any], indent: int) -> None:
        """A key with its map on lines of its own, in brackets on one line or on several, or with an anchor or a merge."""
        style = self.random.random() if len(path) > 1 else 0.0
        name = f"{' ' * indent}{self.scalar(path[-1])}:"
        if style > 0.6 or not data:
            text = f"{name} {self.flow(data)}"
            parts = text.split(", ") if style > 0.9 else [text]
            for number, part in enumerate(parts):
                self.add(path, f"{' ' * (indent + 4) if number else ''}{part}{',' if part is not parts[-1] else ''}")
            return
        self.add(path, f"{name} &a{len(self.lines)}" if style > 0.55 else name)
        inner = indent + self.random.choice([1, 2, 4])
        if style > 0.5 and len(path) > 1:
            self.add((*path, "<<"), f"{' ' * inner}<<: *base")
        for key, value in data.items():
            if self.random.random() < 0.2:
                self.lines.append(((*path, "# alone"), f"{' ' * inner}# {len(self.lines)}"))
            if isinstance(value, dict):
                self.write_map((*path, key), value, inner)
            elif isinstance(value, list) and self.random.random() < 0.2:
                self.add((*path, key), f"{' ' * inner}{self.scalar(key)}: *list")
            elif isinstance(value, str) and value.endswith("lines\n"):
                self.lines += [((*path, key), f"{' ' * inner}{self.scalar(key)}: |")]
                self.lines += [((*path, key), f"{' ' * (inner + 2)}{line}") for line in value.splitlines()]
            else:
                self.add((*path, key), f"{' ' * inner}{self.scalar(key)}: {self.flow(value)}")

    def add(self, path: tuple[str, ...], line: str) -> None:
        self.lines.append((path, f"{line}{self.random.choice([' ', '    '])}# {len(self.lines)}"))

    def scalar(self, value: Any) -> str:
        if isinstance(value, str) and value.isascii() and value.isalpha() and value not in ("true", "null"):
            return value if self.random.random() < 0.7 else f"'{value}'"
        return json.dumps(value)

    def flow(self, value: Any) -> str:
        blank = self.random.choice(["", " "])
        if isinstance(value, dict):
            return (
                "{" + blank + ", ".join(f"{self.scalar(key)}: {self.flow(inner)}" for key, inner in value.items()) + blank + "}"
            )
        if isinstance(value, list):
            return "[" + ", ".join(map(self.flow, value)) + "]"
        return self.scalar(value)

    def edit(self, data: Any) -> dict[str, Any]:
        """A random edit: a key is set or removed, several keys are set, or an entry is added or removed."""
        section = self.random.choice(["defaults", "agents", "cron"])
        names = [*(data.get(section) or {})]
        path = [section, self.random.choice([*names, *names, "new"])]
        below = (data.get(section) or {}).get(path[1])
        while isinstance(below, dict) and self.random.random() < 0.8:
            path.append(self.random.choice([*below, *KEYS]))
            below = below.get(path[-1])
        edit = self.random.choice([None, self.value(), self.value(), {**self.keys(), "note": None}])
        for step in reversed(path):
            edit = {step: edit}
        return edit


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


def touches(path: tuple[str, ...], patch: Any) -> bool:
    """Whether a line of this path may change: its key is in the patch, or below or above a key there."""
    for step in path:
        if not isinstance(patch, dict) or not patch:
            return True
        if step not in patch:
            return False
        patch = patch[step]
    return True


@pytest.mark.simulation
@simulation.seeds(short=60, long=4000)
def test_any_edits_of_any_config_change_the_edited_keys_only(seed: int) -> None:
    config = RandomConfig(seed)
    text, lines = config.text, [(path, line) for path, line in config.lines if path and "# " in line]
    for _ in range(5):
        before = read(text) or {}
        patch = config.edit(before)
        try:
            after = apply_patch(text, patch)
        except EditRefused as refused:
            shared = "anchor", "alias", "merge", "brackets", "the text around it"
            assert any(word in refused.message for word in shared), refused
            continue
        assert read(after) == merged(before, patch), patch
        assert apply_patch(after, patch) == after
        lines = [(path, line) for path, line in lines if not touches(path, patch)]
        found = after.split(config.newline)
        assert [line for line in found if line in {each for _, each in lines}] == [line for _, line in lines], patch
        text = after


def test_most_random_edits_are_local_and_not_refused() -> None:
    refused = 0
    for seed in range(200):
        config = RandomConfig(seed)
        try:
            apply_patch(config.text, config.edit(read(config.text)))
        except EditRefused:
            refused += 1
    assert refused < 40, refused


def test_the_readme_config_can_be_edited(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "config.yaml").read_text()
    changed = apply_patch(text, {"agents": {"assistant": {"heartbeat": {"enabled": True, "interval": "1h"}}}})
    different = [new for old, new in zip(text.splitlines(), changed.splitlines(), strict=True) if old != new]
    assert textwrap.dedent("\n".join(different)).split("\n")[0].startswith("enabled: true ")
    assert len(different) == 2


def test_a_line_with_values_of_others_is_refused_for_one_entry() -> None:
    patch = {"agents": {"ops": {"heartbeat": {"interval": "31m"}}}}
    for other in ("*tree", "{}", "[]", "1"):
        text = f"x-tree: &tree {{interval: 1h}}\nagents: {{ops: {{heartbeat: {{interval: 30m}}}}, web: {other}}}\n"
        assert apply_patch(text, patch) == text.replace("30m", "31m")
        with pytest.raises(EditRefused) as refused:
            apply_patch(text, patch, ("agents", "ops"))
        assert (refused.value.line, refused.value.path) == (2, "agents.ops"), other
    alone = "agents:\n  ops: {heartbeat: {interval: 30m}}\n  web: {}\n"
    assert apply_patch(alone, patch, ("agents", "ops")) == alone.replace("30m", "31m")


def test_a_hundred_values_are_changed_nearly_as_fast_as_one() -> None:
    text = "agents:\n  ops:\n    env:\n" + "".join(f"      KEY_{number}: old  # {number}\n" for number in range(1000))

    def seconds_for(changes: int) -> float:
        patch = {"agents": {"ops": {"env": {f"KEY_{number * 10}": "new" for number in range(changes)}}}}
        begun = process_time()
        changed = apply_patch(text, patch)
        took = process_time() - begun
        assert changed.count(": new  # ") == changes
        return took

    assert seconds_for(100) < 20 * seconds_for(1)
