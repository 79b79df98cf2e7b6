"""`plan` lists the times at which the daemon then runs, for random schedules, hours, calendars, pauses and clock changes."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from simulation import seeds
from world import World

from scheduler.config.file.diagnostics import ConfigError
from scheduler.insight.forecast import forecast_entries, forecast_runs
from scheduler.model.outcome import Kind

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Pacific/Apia")
STARTS = ("2026-10-24 20:00", "2026-10-25 00:30", "2026-03-28 21:00", "2026-04-04 12:00", "2026-11-01 03:00", "2028-02-28 22:00")
MINUTES, HOURS = ("0", "*/15", "5,35", "0-10/5", "59"), ("*", "*/2", "2", "1-3", "0,12,23", "9-17")
DAYS, WEEKDAYS = ("*", "*", "*", "*/2", "L", "1,15,25"), ("*", "*", "*", "mon", "1-5", "sun")
PERIODS = ("7m", "30m", "45m", "1h", "3h", "8h", "24h")
CALENDARS = ("", "", "", ", skip_on: weekend", ", only_on: some")
HEAD = """timezone: {zone}
calendars: {{weekend: {{days: sat-sun}}, some: {{dates: [2026-10-25, 2026-03-29, 2026-11-01, 2026-04-05, 2028-02-29]}}}}
"""


def random_config(chance: Random) -> str:
    agents = "".join(
        f"  a{number}: {{runner: {{kind: command, argv: [x]}}, "
        f'heartbeat: {{{_schedule(chance, "interval")}{_hours(chance)}, checklist: "- look\\n", deliver: log}}}}\n'
        for number in range(3)
    )
    jobs = "".join(f"  j{number}: {{{_schedule(chance, 'every')}, command: x}}\n" for number in range(3))
    return f"{HEAD.format(zone=chance.choice(ZONES))}agents:\n{agents}cron:\n{jobs}"


def _schedule(chance: Random, period: str) -> str:
    times = (*map(chance.choice, (MINUTES, HOURS, DAYS)), "*", chance.choice(WEEKDAYS))
    when = f'schedule: "{" ".join(times)}"' if chance.random() < 0.5 else f"{period}: {chance.choice(PERIODS)}"
    stagger = chance.choice(("", ", stagger: 2m"))
    return f"{when}{stagger}, timezone: {chance.choice(ZONES)}{chance.choice(CALENDARS)}"


def _hours(chance: Random) -> str:
    start, end = (f"{quarter // 4:02}:{quarter % 4 * 15:02}" for quarter in chance.sample(range(96), 2))
    return f', active_hours: {{start: "{start}", end: "{end}"}}' if chance.random() < 0.6 else ""


def random_world(chance: Random, folder: Path) -> World:
    start = chance.choice(STARTS)
    for _ in range(50):
        with suppress(ConfigError):  # some schedules have no time in their hours or calendars
            return World(folder, random_config(chance), start=start)
    raise AssertionError("no valid config")


def let_things_happen(chance: Random, world: World) -> None:
    for _ in range(chance.randrange(4)):
        what, minutes = chance.choice(("run", "run", "pause", "down", "suspended")), chance.randrange(1, 600)
        if what == "run":
            world.run(minutes=minutes)
        elif what == "pause":
            world.pause(
                chance.choice(((Kind.HEARTBEAT, "a0"), (Kind.CRON, "j0"), None)), world.clock.now + timedelta(minutes=minutes)
            )
        elif what == "down":
            world.downtime(minutes=minutes)
        else:
            world.sleep(minutes=minutes)
        world.settle()


@pytest.mark.simulation
@seeds(6, 200)
def test_a_plan_is_what_the_daemon_then_runs(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)
    world = random_world(chance, tmp_path)
    let_things_happen(chance, world)
    before, now, day = len(world.calls), world.clock.now, timedelta(hours=chance.choice((6, 24, 50)))
    planned = forecast_runs(forecast_entries(world.store.connection, world.plan(), now), now, now + day, each=True)
    times = {entry.name: [time for each in entry.days for time in each.firings or ()] for entry in planned.entries}
    world.run(seconds=day.total_seconds() - 0.001)
    ran = defaultdict[str, list[datetime]](list)
    for call in world.calls[before:]:
        ran[call.name].append(call.at)
    assert {name: found for name, found in times.items() if found} == ran
    assert {entry.name: entry.total for entry in planned.entries if entry.total} == {
        name: len(each) for name, each in ran.items()
    }
