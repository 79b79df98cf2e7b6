"""Times are shown in one zone by the log and the commands, also with a broken config, and with an offset in a repeated hour."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import pytest
from click.testing import CliRunner
from world import MakeWorld, World

from scheduler.cli import output
from scheduler.cli.commands import status
from scheduler.cli.main import main
from scheduler.config.settings.load import load_config
from scheduler.engine.config_reload import plan_for_start
from scheduler.engine.plan_sync import adopt_plan
from scheduler.insight.schedule_texts import TimeFormat
from scheduler.model.events import SettingsApplied
from scheduler.system import log
from scheduler.telemetry.event_log import EventLog

BERLIN = ZoneInfo("Europe/Berlin")
CONFIG = """
timezone: Asia/Tokyo
agents:
  ops: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 1h, checklist: "- look\\n", deliver: log}}
"""
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A daemon whose active config has the zone of Tokyo."""
    world: World = make_world(CONFIG)
    plan, _ = plan_for_start(load_config(world.config, world.environ), None)
    world.request(partial(adopt_plan, plan=plan))
    world.run(hours=3)
    return world


@pytest.fixture
def text() -> Iterator[io.StringIO]:
    """The log. The handlers of pytest are put back."""
    root, own = logging.getLogger(), logging.getLogger(log.LOGGER_NAME)
    before, level = root.handlers, own.level
    yield io.StringIO()
    root.handlers = before
    own.setLevel(level)
    log.set_log_zone(UTC)


def shown_zone(path: Path, *more: str) -> str:
    """The zone that `status` names in its last line."""
    result = CliRunner().invoke(status, ["-c", str(path), *more])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()[-1]


@pytest.mark.parametrize(
    "broken",
    [
        "timezone: Asia/Tokyoo\n",
        "timezone: Europe/Berlin\nagents: [\n",
        CONFIG.replace("Asia/Tokyo", "Europe/Berlin").replace("1h", "1x"),
        "",
    ],
    ids=["an unknown zone", "no YAML", "another zone and an error", "an empty file"],
)
def test_with_a_broken_config_the_commands_use_the_last_valid_zone(world: World, broken: str) -> None:
    world.config.write_text(broken, "utf-8")
    assert shown_zone(world.config) == "times in Asia/Tokyo"


def test_without_a_config_the_commands_use_the_last_valid_zone(world: World) -> None:
    world.config.unlink()
    assert shown_zone(world.config, "--state", str(world.state)) == "times in Asia/Tokyo"


def test_another_zone_in_a_valid_config_counts_after_the_reload(world: World) -> None:
    world.config.write_text(CONFIG.replace("Asia/Tokyo", "Europe/Berlin"), "utf-8")
    assert shown_zone(world.config) == "times in Asia/Tokyo"
    plan, _ = plan_for_start(load_config(world.config, world.environ), None)
    world.request(partial(adopt_plan, plan=plan))
    assert shown_zone(world.config) == "times in Europe/Berlin"


def test_explain_uses_the_last_valid_zone_too(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.config.write_text("agents: [\n", "utf-8")
    assert main(["-c", str(world.config), "explain", "--on", "2026-03-02"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "Mon 2026-03-02, Asia/Tokyo (UTC+09:00)"
    assert main(["-c", str(world.config), "explain", "ops"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "agent/ops: active, every 1h (Asia/Tokyo)"


def test_a_zone_that_the_environment_of_the_daemon_sets_counts_for_commands_in_any_shell(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, environ={"HEARTBEATD_SET__timezone": "America/New_York"})
    plan, _ = plan_for_start(load_config(world.config, world.environ), None)
    world.request(partial(adopt_plan, plan=plan))
    assert shown_zone(world.config) == "times in America/New_York"


def test_the_text_log_has_the_zone_of_the_config_and_json_has_utc(world: World, text: io.StringIO) -> None:
    slot = datetime(2026, 3, 2, 23, 30, tzinfo=UTC)
    log.set_up_log(text)
    EventLog().log_event(SettingsApplied(world.engine.plan.settings))
    log.log_event(logging.INFO, "run", planned_at=slot)
    line = text.getvalue()
    assert line.split()[0].endswith("+09:00") and line.endswith("planned_at=2026-03-03T08:30:00+09:00\n")
    text.truncate(text.seek(0))
    log.set_up_log(text, form="json")
    log.set_log_zone(BERLIN)
    log.log_event(logging.INFO, "run", planned_at=slot)
    data = json.loads(text.getvalue())
    assert data["time"].endswith("Z") and data["planned_at"] == "2026-03-02T23:30:00Z"


# The clocks of Berlin go back from 03:00 to 02:00 on 25 October 2026, at 01:00 UTC.
@pytest.mark.parametrize(
    ("hour", "minute", "shown"),
    [(23, 30, "01:30"), (0, 30, "02:30 (UTC+02:00)"), (1, 30, "02:30 (UTC+01:00)"), (2, 0, "03:00")],
)
def test_a_time_in_the_repeated_hour_has_its_offset(tmp_path: Path, hour: int, minute: int, shown: str) -> None:
    day = 24 if hour == 23 else 25
    instant = datetime(2026, 10, day, hour, minute, tzinfo=UTC)
    times = TimeFormat(BERLIN, datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 10, 25, 23, tzinfo=UTC), BERLIN)
    assert times.at(instant) == shown
    (tmp_path / "config.yaml").write_text("timezone: Europe/Berlin\n")
    offset = shown[5:].replace(" (UTC", " ").rstrip(")")
    with click.Context(status) as context:
        context.params["path"] = tmp_path / "config.yaml"
        assert output.format_time(instant) == f"2026-10-25 {shown[:5]}:00{offset}"
        assert output.format_short_time(instant, NEW_YEAR) == f"10-25 {shown[:5]}{offset}"
