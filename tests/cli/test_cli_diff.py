"""`check --diff`, `reload --dry-run` and `plan --diff` show what an edited config would change, with the daemon up and down."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from config_file import write
from test_cli_daemon import call, stop
from warm_start import Heartbeatd
from world import World

from scheduler.cli.config_preview import NOT_COMPARED
from scheduler.cli.main import main
from scheduler.config.settings.config_snapshot import store_config
from scheduler.config.settings.load import load_config
from scheduler.store.config_history import record_config_in_force
from scheduler.store.transaction import Transaction

pytestmark = pytest.mark.process

HEAD = """\
timezone: Europe/Berlin
server: {listen: "127.0.0.1:0"}
limits: {shutdown_grace: 1s}
prices: {claude-haiku-5-5: {input: 1, output: 5}}
defaults:
  heartbeat: {on_missing: run, active_hours: "08:00-22:00", interval: 30m, stagger: 0s, deliver: log, budget: {usd_per_try: 0.01}}
agents:
"""
AGENT = "  {name}: {{runner: {{kind: command, argv: ['true']}}{more}}}\n"
FORTY = HEAD + "".join(AGENT.format(name=f"a{number:02}", more="") for number in range(37))
FORTY += "".join(AGENT.format(name=f"night{number}", more=", heartbeat: {active_hours: '00:00-06:00'}") for number in range(3))
EDITED = FORTY.replace('"08:00-22:00"', '"09:00-18:00"')


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write(tmp_path, FORTY)


@contextmanager
def running(config: Path) -> Iterator[tuple[Heartbeatd, IO[str]]]:
    """A daemon that has started, and the rest of its log."""
    with Heartbeatd("run", "-c", config, cwd=config.parent, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if " started " in line)
        try:
            yield process, process.stderr
        finally:
            process.kill()


@pytest.fixture
def daemon(config: Path) -> Iterator[Heartbeatd]:
    with running(config) as (process, _):
        yield process


def edited(config: Path, text: str = EDITED) -> Path:
    copy = config.with_name("edited.yaml")
    copy.write_text(text)
    return copy


def as_data(file: Path, *arguments: str) -> dict[str, Any]:
    ended = call(file, *arguments, "--format", "json")
    assert ended.returncode == 0, ended.stderr
    data: dict[str, Any] = json.loads(ended.stdout)
    return data


def test_forty_agents_of_which_37_get_other_hours_are_shown_in_a_few_lines(config: Path, daemon: Heartbeatd) -> None:
    copy = edited(config)
    for state in ("running", "down"):
        for words in (("check", "--diff"), ("reload", "--dry-run")):
            ended = call(copy, *words)
            assert (ended.returncode, ended.stderr) == (0, "")
            shown = ended.stdout.splitlines()
            assert len(shown) <= 12
            assert shown[0].endswith(f"daemon {state}")
            assert shown[1].startswith("37 agents: heartbeat.active_hours 08:00-22:00 -> 09:00-18:00 (a00, a01, a02")
            assert "  a03, a04, a05 and 31 more)" in shown
            # 37 agents with 28 and then 18 runs a day, and three with 12; at night, the first runs of these three may be in progress
            (line,) = (line for line in shown if line.startswith("runs a week: agents "))
            counts = [int(word.replace(",", "")) for word in line.removeprefix("runs a week: agents ").split(" -> ")]
            expected = [37 * runs * 7 + 3 * 12 * 7 for runs in (28, 18)]
            assert all(0 <= whole - count <= 3 for whole, count in zip(expected, counts, strict=True)), line
            assert any(line.startswith("next runs (Europe/Berlin): agent/a00 ") for line in shown)
            # and one delayed slot and two floods of wakes a day, each with two retries and three restarts
            assert any(line.startswith("maximum cost a day: ") and " -> " in line for line in shown)
        if state == "running":
            assert stop(daemon) == 0
    assert config.read_text() == FORTY


def test_the_json_has_every_name_and_the_consequences(config: Path, daemon: Heartbeatd) -> None:
    data = as_data(edited(config), "check", "--diff")
    (change,) = data["changes"]
    assert (change["key"], change["old"], change["new"], change["count"]) == (
        "heartbeat.active_hours", "08:00-22:00", "09:00-18:00", 37,
    )  # fmt: skip
    assert change["entries"] == [f"agent/a{number:02}" for number in range(37)]
    assert data["against"]["path"] == str(config)
    assert [each["name"] for each in data["consequences"]["next"]] == change["entries"]
    weeks = data["consequences"]["next"][0]["runs_a_week"]
    # one run less has been seen once, on a busy machine, while the daemon was starting
    assert (abs(weeks["before"] - 28 * 7) <= 1, weeks["after"]) == (True, 18 * 7)
    cost = data["consequences"]["usd_a_day"]
    assert cost["before"] > cost["after"] > 0


def test_a_file_in_another_folder_is_compared_with_the_database_that_is_named(
    config: Path, daemon: Heartbeatd, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = write(tmp_path_factory.mktemp("elsewhere"), FORTY)
    state = str(config.parent / "state" / "heartbeatd.db")
    assert call(copy, "check", "--diff", "--state", state).stdout.splitlines()[1] == "nothing changes"
    assert stop(daemon) == 0
    assert call(copy, "reload", "--dry-run", "--state", state).stdout.splitlines()[1] == "nothing changes"
    lost = call(copy, "check", "--diff")
    assert lost.returncode == 2
    assert "--state names the one of the daemon" in lost.stderr


def test_a_reload_of_a_file_that_the_daemon_does_not_read_is_refused(config: Path, daemon: Heartbeatd) -> None:
    copy = edited(config)
    refused = call(copy, "reload")
    assert refused.returncode == 2
    assert f"the daemon reads {config}, not {copy}; copy the file there first" in refused.stderr


def test_an_invalid_copy_prints_its_errors_and_changes_nothing(config: Path, daemon: Heartbeatd) -> None:
    copy = edited(config, EDITED.replace("interval: 30m", "interval: soon"))
    for words in (("check", "--diff"), ("reload", "--dry-run")):
        refused = call(copy, *words)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"{copy}:6:71: defaults.heartbeat.interval: 'soon' is not a duration" in refused.stderr


def test_a_dry_run_shows_the_errors_that_only_the_daemon_can_know(
    config: Path, daemon: Heartbeatd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is set in this shell, but not in the environment of the daemon."""
    config.write_text("reload: manual\n" + FORTY)
    assert call(config, "reload").returncode == 0
    monkeypatch.setenv("ONLY_HERE", "1")
    config.write_text("reload: manual\n" + FORTY + "  web: {runner: {kind: http, url: '${ONLY_HERE}'}}\n")
    refused = call(config, "reload", "--dry-run")
    assert refused.returncode == 2
    assert "ONLY_HERE is not set" in refused.stderr


def test_with_reload_manual_a_saved_file_waits_for_the_command(tmp_path: Path) -> None:
    config = write(tmp_path, "reload: manual\n" + FORTY)
    with running(config) as (daemon, _):
        assert "reload: manual; a changed file is applied by `heartbeatd reload`" in call(config, "status").stdout
        config.write_text("reload: manual\n" + EDITED)
        assert as_data(config, "reload", "--dry-run")["changes"][0]["count"] == 37
        # These commands take seconds, in which a file watch would have applied the file.
        assert as_data(config, "check", "--diff")["changes"][0]["count"] == 37
        assert as_data(config, "status")["reload"] == {"mode": "manual", "last": None}
        assert call(config, "reload").stdout.splitlines()[1].startswith("37 agents: heartbeat.active_hours")
        last = as_data(config, "status")["reload"]["last"]
        assert (last["by"], last["result"]) == ("command", "applied")
        config.write_text(EDITED)
        daemon.send_signal(signal.SIGHUP)
        while as_data(config, "status")["reload"]["mode"] == "manual":
            assert daemon.poll() is None
        assert as_data(config, "status")["reload"]["last"]["by"] == "SIGHUP"
        assert stop(daemon) == 0


def test_a_change_while_the_daemon_was_down_is_shown_by_status(config: Path, daemon: Heartbeatd) -> None:
    assert stop(daemon) == 0
    config.write_text(EDITED)
    with running(config) as (again, log):
        line = next(line for line in log if " config_changed " in line)
        assert 'change="37 agents: heartbeat.active_hours 08:00-22:00 -> 09:00-18:00' in line
        assert stop(again) == 0
    shown = call(config, "status").stdout
    assert "config changed before the start, by start, " in shown
    assert "37 agents: heartbeat.active_hours 08:00-22:00 -> 09:00-18:00" in shown


def test_the_overrides_of_the_daemon_apply_to_the_copy_too(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = "HEARTBEATD_SET__agents__a00__heartbeat__interval"
    monkeypatch.setenv(variable, "3h")
    with running(config) as (daemon, _):
        monkeypatch.delenv(variable)
        assert call(config, "check", "--diff").stdout.splitlines()[1:] == ["nothing changes"]  # not even a secret
        assert stop(daemon) == 0
    assert call(config, "check", "--diff").stdout.splitlines()[1] == "agent/a00: heartbeat.interval 3h -> 30m"


def test_plan_diff_compares_two_files_without_a_daemon(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--diff", str(edited(config)), "-c", str(config)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "37 agents: heartbeat.active_hours 08:00-22:00 -> 09:00-18:00" in "\n".join(shown)
    assert any(line.split()[0] == "agent/a00" and line.split()[-2:] == ["196", "126"] for line in shown if line)
    assert shown[-1] == "and 17 more; --format json lists all"


def test_plan_diff_of_one_agent_counts_its_runs_in_a_given_time(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare = ["plan", "--diff", str(edited(config)), "-c", str(config)]
    assert main([*compare, "a07", "--for", "7d"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "agent/a07: heartbeat.active_hours 08:00-22:00 -> 09:00-18:00" in shown
    assert "runs a week: agents 196 -> 126" in shown
    assert main([*compare, "agent/a07", "--for", "48h"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "runs in 2d: agents 56 -> 36" in shown
    assert shown[-2].split()[-4:] == ["RUNS", "IN", "2d", "THEN"]
    assert (shown[-1].split()[0], shown[-1].split()[-2:]) == ("agent/a07", ["56", "36"])
    assert main([*compare, "night1", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []
    assert main([*compare, "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err


def test_an_entry_that_runs_neither_before_nor_after_a_change_is_not_among_the_next_runs(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    World(config.parent, config.read_text()).stop()
    config.write_text(HEAD + AGENT.format(name="a", more=", heartbeat: {enabled: false}") + AGENT.format(name="b", more=""))
    copy = edited(config, config.read_text().replace("08:00-22:00", "09:00-18:00"))
    assert main(["plan", "--diff", str(copy), "-c", str(config)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "never" not in shown
    assert "next runs (Europe/Berlin): agent/b " in shown


def test_a_secret_that_changed_is_named_where_both_files_have_it(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stored copy has no secrets, so that a comparison with it cannot show another one, and must not call it the same."""
    config.write_text(FORTY + "providers: {anthropic: {api_key: first-secret-key}}\n")
    copy = edited(config, config.read_text().replace("first", "second"))
    world = World(config.parent, config.read_text())
    with world.store.transaction() as db:
        stored = store_config(load_config(config, {}))
        record_config_in_force(Transaction(db, world.clock.now, ""), replace(stored, path=config))
    world.stop()
    state = ("--state", str(world.state))
    for words, expected in (
        (("plan", "--diff", str(copy), "-c", str(config)), ["providers.anthropic.api_key *** -> *** (another value)"]),
        (("check", "--diff", "-c", str(config), *state), ["nothing changes"]),
        (("check", "--diff", "-c", str(copy), *state), ["nothing changes", NOT_COMPARED]),
    ):
        assert main([*words]) == 0
        shown = capsys.readouterr()
        lines = [
            line.strip()
            for line in shown.out.splitlines()
            if "nothing changes" in line or "value" in line or "secret may" in line
        ]
        assert lines == expected, shown
        assert "secret-key" not in shown.out + shown.err


def test_without_a_database_the_commands_name_another_way(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--diff", "-c", str(config)]) == 2
    assert "`heartbeatd plan --diff FILE` compares two files" in capsys.readouterr().err
