"""The lines of a change name its entries, and stay short."""

from __future__ import annotations

import json

from scheduler.model.config_changes import MAX_STORED_VALUE, ConfigDiff, KeyChange, diff_from_data, shorten_values

AGENTS = tuple(f"agent/a{number:02}" for number in range(37))


def test_the_lines_of_a_change() -> None:
    common = "Look at the disk, the memory and the load of each of these machines: "
    for diff, expected in (
        (ConfigDiff(), []),
        (
            ConfigDiff(changes=(KeyChange("heartbeat.interval", "30m", "1h", ("agent/ops",)),)),
            ["agent/ops: heartbeat.interval 30m -> 1h"],
        ),
        (ConfigDiff(changes=(KeyChange("limits.concurrency", "8", "4"),)), ["limits.concurrency 8 -> 4"]),
        (
            ConfigDiff(changes=(KeyChange("heartbeat.active_hours", "08:00-22:00", "09:00-18:00", AGENTS),)),
            ["37 agents: heartbeat.active_hours 08:00-22:00 -> 09:00-18:00 (a00, a01, a02, a03, a04, a05 and 31 more)"],
        ),
        (ConfigDiff(changes=(KeyChange("timeout", "5m", "1m", ("cron/a", "cron/b")),)), ["2 jobs: timeout 5m -> 1m (a, b)"]),
        (
            ConfigDiff(changes=(KeyChange("heartbeat.prompt", f"{common}web1", f"{common}web2", ("agent/ops",)),)),
            ["agent/ops: heartbeat.prompt ...achines: web1 -> ...achines: web2"],
        ),
        (
            ConfigDiff(("agent/new", "cron/new"), tuple(f"cron/more{number}" for number in range(9))),
            ["added agent/new", "added cron/new", "removed 9 jobs: more0, more1, more2, more3 and 5 more"],
        ),
    ):
        assert diff.lines() == expected
        assert bool(diff) == bool(expected)
        assert diff_from_data(json.loads(json.dumps(diff.as_data()))) == diff


def test_the_number_of_lines_about_keys_is_limited() -> None:
    found = ConfigDiff(changes=tuple(KeyChange(f"prices.m{number}.input", "1", "2") for number in range(50))).lines()
    assert len(found) == 8
    assert found[-1] == "and 43 more keys"


def test_values_of_any_length_are_cut() -> None:
    old, new = shorten_values("a" * 5000, "b" * 5000, MAX_STORED_VALUE)
    assert len(old) == len(new) == 200
    assert len(str(KeyChange("heartbeat.prompt", old, new, ("agent/ops",)))) < 160


def test_a_reader_who_is_limited_to_agents_sees_only_what_concerns_them() -> None:
    diff = ConfigDiff(
        ("agent/new", "agent/mine"),
        ("agent/old", "cron/mine"),
        (
            KeyChange("timezone", "UTC", "Europe/Riga"),
            KeyChange("model", "a", "b", ("agent/mine", "agent/old")),
            KeyChange("model", "a", "c", ("agent/new",)),
        ),
    )
    assert diff.of_agents({"mine"}) == ConfigDiff(("agent/mine",), (), (KeyChange("model", "a", "b", ("agent/mine",)),))
    assert not diff.of_agents({"other"})
