"""Changes of many entries are folded into a few lines, and stay short in the database."""

from __future__ import annotations

import json

import pytest

from scheduler.model.config_changes import ConfigDiff, FoldedChange, KeyChange, diff_from_data, fold_changes

AGENTS = [f"agent/a{number:02}" for number in range(37)]


def lines(*changes: KeyChange, limit: int = 8) -> list[str]:
    return ConfigDiff(changes=fold_changes(changes)).lines(limit)


def test_one_change_shows_its_entry_and_both_values() -> None:
    assert lines(KeyChange("agent/ops", "heartbeat.interval", "30m", "1h")) == ["agent/ops: heartbeat.interval 30m -> 1h"]
    assert lines(KeyChange("", "limits.concurrency", "8", "4")) == ["limits.concurrency 8 -> 4"]


def test_the_same_change_in_many_entries_is_one_line() -> None:
    changes = [KeyChange(name, "heartbeat.active_hours", "08:00-22:00", "09:00-18:00") for name in AGENTS]
    assert lines(*changes) == [
        "37 agents: heartbeat.active_hours 08:00-22:00 -> 09:00-18:00 (a00, a01, a02, a03, a04, a05 and 31 more)"
    ]


def test_agents_and_jobs_are_counted_separately() -> None:
    changes = [KeyChange(f"{kind}/{name}", "timeout", "5m", "1m") for kind in ("agent", "cron") for name in "ab"]
    assert lines(*changes) == ["2 agents: timeout 5m -> 1m (a, b)", "2 jobs: timeout 5m -> 1m (a, b)"]


def test_many_different_changes_of_one_key_share_a_line() -> None:
    changes = [KeyChange(name, "heartbeat.active_hours", "always", f"08:{number:02}-22:00") for number, name in enumerate(AGENTS)]
    assert len(lines(*changes, limit=37)) == 37
    assert lines(*changes) == [
        "37 agents: heartbeat.active_hours, 37 different changes, such as always -> 08:00-22:00 (a00)",
    ]


def test_the_number_of_lines_is_limited() -> None:
    changes = [KeyChange("", f"prices.m{number}.input", "1", "2") for number in range(50)]
    found = lines(*changes)
    assert len(found) == 8
    assert found[-1] == "and 43 more keys"


def test_of_long_values_the_part_that_differs_is_shown() -> None:
    common = "Look at the disk, the memory and the load of each of these machines: "
    (line,) = lines(KeyChange("agent/ops", "heartbeat.prompt", f"{common}web1", f"{common}web2"))
    assert line == "agent/ops: heartbeat.prompt ...achines: web1 -> ...achines: web2"


def test_values_of_any_length_are_cut() -> None:
    (line,) = lines(KeyChange("agent/ops", "heartbeat.prompt", "a" * 5000, "b" * 5000))
    assert len(line) < 160
    (change,) = fold_changes([KeyChange("agent/ops", "heartbeat.prompt", "a" * 5000, "b" * 5000)])
    assert len(change.old) == len(change.new) == 200


def test_added_removed_and_renamed_entries_have_lines_of_their_own() -> None:
    diff = ConfigDiff(("agent/new",), tuple(f"cron/more{number}" for number in range(9)), (("agent/a", "agent/b"),))
    assert diff.lines() == [
        "added agent/new",
        "removed 9 jobs: more0, more1, more2, more3 and 5 more",
        "renamed agent/a -> agent/b",
    ]
    many = ConfigDiff(renamed=tuple((f"agent/a{number}", f"agent/b{number}") for number in range(5)))
    assert many.lines() == ["renamed 5 entries: agent/a0 -> agent/b0 and 4 more"]


def test_no_change_has_no_lines() -> None:
    assert not ConfigDiff()
    assert ConfigDiff().lines() == []


@pytest.mark.parametrize("names", [10, 40, 100])
def test_only_so_many_names_are_stored_and_the_others_are_counted(names: int) -> None:
    diff = ConfigDiff(("agent/new",), (), (("cron/a", "cron/b"),), (FoldedChange("model", "x", "y", tuple(AGENTS)),))
    stored = json.loads(json.dumps(diff.as_data(names)))
    assert stored["more"] == max(0, len(AGENTS) + 1 - names)
    assert stored["changes"][0]["count"] == len(AGENTS)
    if names > len(AGENTS):
        assert diff_from_data(stored) == diff
