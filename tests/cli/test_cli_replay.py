"""`replay` and `simulate --like-history`: what they print, and that they change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli_simulate import files_below
from test_story_replay import CONFIG, NIGHT, a_day
from world import MakeWorld, World

from scheduler.cli import output
from scheduler.cli.main import main
from scheduler.config.settings.config_snapshot import store_config
from scheduler.config.settings.load import load_config
from scheduler.store.config_history import record_config_in_force
from scheduler.store.transaction import Transaction


@pytest.fixture
def world(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> World:
    """A day of a daemon, at whose end the command runs."""
    world = a_day(make_world)
    monkeypatch.setattr(output, "utc_now", lambda: world.clock.now)
    return world


def new_config(world: World) -> Path:
    """A config with narrower hours."""
    path = world.folder / "new.yaml"
    path.write_text(CONFIG.replace("stagger: 0s", 'stagger: 0s, active_hours: "06:00-20:00"'), "utf-8")
    return path


def test_a_replay_shows_both_sums_and_each_changed_run(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    path = new_config(world)
    before = files_below(world.folder)
    assert main(["replay", "-c", str(path), "--state", str(world.database), "--since", NIGHT.replace(" ", "T") + "Z"]) == 0
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "messages 2 0" in shown
    assert "15 runs unchanged, 10 changed" in shown
    assert sum(line.endswith("agent/ops ran, 1 message outside active hours") for line in shown) == 2
    assert files_below(world.folder) == before


def test_json_has_every_changed_run_with_the_old_and_the_new_reason(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    path = new_config(world)
    assert main(["replay", "-c", str(path), "--state", str(world.database), "--since", "2d", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["changed"][0]["after"] == {"result": "skipped", "why": "active_hours", "messages": 0}
    assert found["before"]["messages"] == 2


def test_an_unchanged_config_with_a_secret_in_a_precheck_has_no_unknown_runs(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stored config, with which that of the file is compared, has no secrets."""
    yaml = CONFIG.replace("interval: 1h,", 'interval: 1h, precheck: "./new-mail.sh --password correct-horse-battery",')
    world = make_world(yaml, start=NIGHT)
    world.prechecks["ops"] = lambda call: f"mail {call.at.hour}"
    world.run(hours=24)
    with world.store.transaction() as db:
        record_config_in_force(Transaction(db, world.clock.now, ""), store_config(load_config(world.config, {})))
    monkeypatch.setattr(output, "utc_now", lambda: world.clock.now)
    since = NIGHT.replace(" ", "T") + "Z"
    assert main(["replay", "-c", str(world.config), "--state", str(world.database), "--since", since, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["unknown"], found["changed"]) == ([], [])
    assert found["unchanged"] > 20


def test_a_simulation_can_repeat_the_recorded_days(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The first and the last day may be recorded in part, so they are left out if there are others."""
    world.run(hours=24)
    given = ["--like-history", "--for", "2d", "--seeds", "1", "--answers", "quiet:1", "--format", "json"]
    assert main(["simulate", "-c", str(world.config), "--state", str(world.database), *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["assumed"][0] == "each day repeats a recorded day, chosen by the seed; 1 day with 51 run records"
    assert found["recipients"][0]["by_hour"][20] == 2.0  # as on the recorded day


def test_without_records_there_is_nothing_to_play(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    empty = world.folder / "empty" / "heartbeatd.db"
    assert main(["replay", "-c", str(new_config(world)), "--state", str(empty)]) == 2
    assert capsys.readouterr().err.startswith("heartbeatd: no run since 2026-02-24 ")
