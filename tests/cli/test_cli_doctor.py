"""`doctor`: one line for each check, and exit code 1 if one of them is bad."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from config_file import write
from loops import loop_over
from world import World, open_store

from scheduler.cli import doctor
from scheduler.cli.main import main
from scheduler.config.settings.load import load_config
from scheduler.insight import installation_checks
from scheduler.model.message import DeliveryResult
from scheduler.system.state_lock import StateLock

CONFIG = """\
state: state/heartbeatd.db
agents:
  ops:
    runner: {kind: command, argv: [cat]}
    heartbeat: {interval: 30m, deliver: log}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write(tmp_path, CONFIG)


def found(config: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> set[tuple[str, str]]:
    assert main(["doctor", "-c", str(config), "--format", "json"]) == code
    return {(finding["what"], finding["level"]) for finding in json.loads(capsys.readouterr().out)}


def make_database(config: Path) -> Path:
    state = config.parent / "state"
    state.mkdir(mode=0o700)
    open_store(state / "heartbeatd.db").close()
    return state


@loop_over(
    ("version", "level"),
    [
        ((3, 40, 1), "warn"),
        ((3, 44, 5), "warn"),
        ((3, 44, 6), "ok"),
        ((3, 45, 0), "warn"),
        ((3, 50, 6), "warn"),
        ((3, 50, 7), "ok"),
        ((3, 51, 0), "warn"),
        ((3, 51, 2), "warn"),
        ((3, 51, 3), "ok"),
        ((3, 52, 0), "ok"),
        ((3, 6, 23), "ok"),
    ],
)
def test_an_sqlite_version_that_can_lose_data_causes_a_warning(version: tuple[int, ...], level: str) -> None:
    assert installation_checks.check_sqlite(version).level == level


def test_a_new_folder_has_no_problems(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looked_at = found(config, capsys)
    assert {
        ("config", "ok"),
        ("state", "ok"),
        ("database", "ok"),
        ("daemon", "warn"),
        ("python", "ok"),
        ("tzdata", "ok"),
    } <= looked_at
    assert not (config.parent / "state").exists()


def test_an_invalid_checklist_annotation_causes_a_warning(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ("checklist", "warn") not in found(config, capsys)
    workspace = config.parent / "agents/ops"
    workspace.mkdir(parents=True)
    (workspace / "HEARTBEAT.md").write_text("- [every 30] Is there mail?\n")
    assert ("checklist", "warn") in found(config, capsys)


def test_an_intact_database_is_ok(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_database(config)
    assert {("database", "ok"), ("state", "ok"), ("disk", "ok")} <= found(config, capsys)


def test_a_damaged_database_is_an_error(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = make_database(config) / "heartbeatd.db"
    database.write_bytes(b"x" * 4096)
    assert ("database", "bad") in found(config, capsys, code=1)
    assert database.read_bytes() == b"x" * 4096


def test_a_folder_with_access_for_others_causes_a_warning(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_database(config).chmod(0o755)
    assert ("state", "warn") in found(config, capsys)


def test_a_config_that_everybody_can_change_is_an_error(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.chmod(0o666)
    assert ("config", "bad") in found(config, capsys, code=1)


def test_an_invalid_config_is_an_error_and_the_other_checks_are_still_made(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_database(config)
    config.write_text("state: state/heartbeatd.db\nagents: {ops: {heartbeat: {interval: soon}}}\n")
    assert {("config", "bad"), ("database", "ok")} <= found(config, capsys, code=1)


def test_dead_letters_cause_a_warning(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(make_database(config) / "heartbeatd.db")
    with store.transaction() as db:
        db.execute(
            "insert into outbox (key, channel, run_id, kind, name, trigger, slot, part, parts, title, text, state,"
            " not_before, created_at)"
            " values ('k', 'phone', 1, 'cron', 'x', 'every', 1, 1, 1, 't', 't', 'dead', 1, 1)"
        )
    store.close()
    assert ("outbox", "warn") in found(config, capsys)


def test_a_message_that_waits_for_over_ten_minutes_and_a_provider_that_is_not_called_cause_warnings(tmp_path: Path) -> None:
    yaml = CONFIG.replace("deliver: log", 'stagger: 0s, checklist: "- look\\n", deliver: phone')
    yaml += 'channels: {phone: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}\n'
    later = DeliveryResult("retry", "503")
    world = World(tmp_path, yaml, scripts={"ops": lambda call: "The disk is full."}, send=lambda _: later)
    world.run(minutes=9)

    def warnings() -> list[str]:
        found = installation_checks.check_records(world.store.connection, world.clock.now, lambda at: f"{at:%H:%M}", "UTC")
        return [each.text for each in found if each.level == "warn"]

    assert warnings() == []
    world.run(minutes=2)
    with world.store.transaction() as db:
        db.execute(
            "insert into breaker (provider, model, reason, opened_at, probe_at, half_open_at, error, turns)"
            " values ('anthropic', '*', 'auth', 0, 1800000, 1800000, 'invalid x-api-key', '[]')"
        )
    assert warnings() == [
        "phone: 1 message waiting since 08:00 UTC; `heartbeatd outbox` lists them",
        "provider anthropic has been blocked since 00:00 UTC: invalid x-api-key; the next trial call is at 00:30 UTC",
    ]


def test_the_warning_about_an_old_sqlite_has_advice_to_avoid_its_bug() -> None:
    text = installation_checks.check_sqlite((3, 40, 1)).text
    assert "normal use is safe" in text
    assert "copy it only with `heartbeatd database backup`" in text


def test_the_findings_fit_into_eighty_columns(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG.replace("30m", "often enough for all of us"))
    assert main(["doctor", "-c", str(config)]) == 1
    output = capsys.readouterr().out
    assert "write 90s, 30m or 1h30m" in " ".join(output.split())
    assert all(len(line) <= 80 or len(line.split()) == 1 for line in output.replace(str(config.parent), ".").splitlines())


def test_a_variable_that_only_the_running_daemon_has_is_no_error(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG + "channels: {hook: {kind: webhook, url: '${ONLY_OF_THE_SERVICE}'}}\n")
    state = make_database(config)

    def is_reported() -> bool:
        assert main(["doctor", "-c", str(config), "--format", "json"]) == 0
        return "ONLY_OF_THE_SERVICE is not set" in capsys.readouterr().out

    assert is_reported()
    with StateLock.take(state / "heartbeatd.db.lock", started_at=datetime.now(UTC), instance="boot1"):
        assert not is_reported()


def test_each_check_prints_one_finding(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "-c", str(config)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.split()[0] in ("ok", "warn", "bad") for line in lines if not line.startswith(" "))
    assert "warn  daemon    not running; `heartbeatd run` starts it" in lines


def test_a_job_that_is_still_in_the_crontab_is_named(tmp_path: Path) -> None:
    program = tmp_path / "crontab"
    program.write_text("#!/bin/sh\nprintf '0 3 * * * date +%s\\n0 4 * * * other\\n' '\\%F'\n")
    program.chmod(0o755)
    config = tmp_path / "config.yaml"
    config.write_text(
        'cron: {day: {schedule: "@daily", command: date +%F}, off: {enabled: false, schedule: "@daily", command: other}}\n'
    )
    config.chmod(0o644)
    jobs = load_config(config, {}).settings.jobs.values()
    assert installation_checks.jobs_in_crontab(doctor.read_user_crontab(str(program)), jobs) == ["day"]


def test_a_host_without_cron_has_no_crontab(tmp_path: Path) -> None:
    assert doctor.read_user_crontab(str(tmp_path / "crontab")) == ""
