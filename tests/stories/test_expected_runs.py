"""Tests of the metric that says until when an entry must have had its next successful run, and of the counters of slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from metrics_page import Page
from servers import gateway
from servers.scripted import Server
from test_story_async_results import http_agent
from world import Delayed, MakeWorld, World, utc

from heartbeatd.verbs import Cancel, HoldLock, ReportResult
from scheduler.engine.effects import VerbRequest
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import from_millis

OPS = (Kind.HEARTBEAT, "ops")


def agent(limits: str = "", **keys: str) -> str:
    """A config with the agent ops, which runs at 08:00, 08:30, ..., may start 10 minutes late, and may take 5 minutes."""
    words = {
        "schedule": '"*/30 * * * *"', "timezone": "UTC", "checklist": '"- look\\n"', "deliver": "log", "timeout": "5m",
        "retries": "0", "misfire": "{grace: 10m}",
    } | keys  # fmt: skip
    heartbeat = ", ".join(f"{key}: {value}" for key, value in words.items() if value)
    return f"{limits}\nagents:\n  ops:\n    runner: {{kind: command, argv: [agent]}}\n    heartbeat: {{{heartbeat}}}\n"


def expected_by(world: World, series: str = "{heartbeat,ops}") -> str | None:
    """The day and the time in UTC until which a successful run is expected; None without the series."""
    return moment(world, f"expected_by_timestamp_seconds{series}")


def moment(world: World, series: str) -> str | None:
    found = Page(world).series().get(series)
    return None if found is None else from_millis(round(found * 1000)).strftime("%d %H:%M")


def is_silent(world: World, series: str = "{heartbeat,ops}") -> bool:
    """What the alert rule asks."""
    found = Page(world).series("expected_by").get(f"expected_by_timestamp_seconds{series}")
    return found is not None and world.clock.now.timestamp() > found


def silent_times(world: World, until: str, minutes: int = 10) -> list[str]:
    """At which times the alert rule would fire, from now on."""
    found = []
    while world.clock.now < utc(until):
        world.run(minutes=minutes)
        if is_silent(world):
            found.append(world.clock.now.strftime("%d %H:%M"))
    return found


def slots(world: World) -> tuple[float, float]:
    """The good and the bad slots of ops."""
    counted = Page(world).series("slots_total")
    return counted["slots_total{heartbeat,ops,good}"], counted["slots_total{heartbeat,ops,bad}"]


def test_a_run_must_have_ended_after_the_next_slot_with_its_grace_and_all_attempts(make_world: MakeWorld) -> None:
    world = make_world(agent(), start="2026-03-02 08:10")
    assert expected_by(world) == "02 08:45"
    world.run_until("2026-03-02 08:31")
    assert expected_by(world) == "02 09:15"
    world.reload(agent(misfire="{grace: 20m}", timeout="9m"))
    assert expected_by(world) == "02 09:29"


def test_a_quiet_night_with_active_hours_and_a_weekend_is_not_silent(make_world: MakeWorld) -> None:
    hours = agent(active_hours='{start: "09:00", end: "17:00", days: mon-fri}')
    world = make_world(hours, start="2026-03-06 15:40")  # a Friday
    assert silent_times(world, "2026-03-09 11:00", minutes=60) == []
    assert slots(world)[1] == 0


def test_a_night_on_which_the_clock_changes_is_not_silent(make_world: MakeWorld) -> None:
    world = make_world(agent(timezone="Europe/Berlin"), start="2026-03-28 23:10")
    assert silent_times(world, "2026-03-29 04:00") == []


@pytest.mark.parametrize("content", [None, "# nothing\n"], ids=["missing", "empty"])
def test_an_agent_without_a_checklist_is_silent_until_it_has_one_again(make_world: MakeWorld, content: str | None) -> None:
    world = make_world(agent(checklist="HEARTBEAT.md"), start="2026-03-02 08:10")
    path = world.write("ops/HEARTBEAT.md", "- look\n")
    world.run_until("2026-03-02 08:40")
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    assert silent_times(world, "2026-03-02 10:20", minutes=20) == ["02 09:20", "02 09:40", "02 10:00", "02 10:20"]
    path.write_text("- look\n")
    world.run_until("2026-03-02 10:31")
    assert not is_silent(world)


def test_an_agent_that_is_always_busy_is_silent(make_world: MakeWorld) -> None:
    world = make_world(agent(), start="2026-03-02 08:10")
    world.request(VerbRequest(HoldLock(id="gateway", for_=utc("2026-03-02 12:00") - world.clock.now), (Kind.HEARTBEAT, "ops")))
    assert silent_times(world, "2026-03-02 09:50", minutes=20) == ["02 08:50", "02 09:10", "02 09:30", "02 09:50"]
    assert slots(world)[1] >= 1


def test_an_agent_slower_than_its_interval_is_silent(make_world: MakeWorld) -> None:
    world = make_world(agent(schedule='"*/5 * * * *"', misfire="{grace: 2m}", timeout="1h"), start="2026-03-02 08:01")
    world.durations["ops"] = timedelta(minutes=32)
    assert len(silent_times(world, "2026-03-02 11:00", minutes=5)) > 28
    good, bad = slots(world)
    assert bad > 5 * good


def test_one_run_longer_than_the_interval_is_not_silent(make_world: MakeWorld) -> None:
    world = make_world(agent(timeout="40m"), start="2026-03-02 08:10")
    world.durations["ops"] = timedelta(minutes=33)
    world.run_until("2026-03-02 08:31")
    world.durations.clear()
    assert silent_times(world, "2026-03-02 11:00") == []


@pytest.fixture
def later() -> Iterator[Server]:
    """An agent behind a URL that always answers 202."""
    with Server([gateway.async_answer()] * 20) as server:
        yield server


def test_an_agent_that_never_reports_its_result_is_silent(make_world: MakeWorld, later: Server) -> None:
    world = make_world(http_agent(later.url, interval="30m", async_timeout="1h"), start="2026-03-02 08:00")
    found = silent_times(world, "2026-03-02 12:00")
    assert found[0] < "02 10:30"
    assert found[-1] == "02 12:00"
    assert slots(world)[0] == 0
    assert slots(world)[1] >= 4  # each result that was given up


def test_an_agent_that_reports_each_result_in_time_is_not_silent(make_world: MakeWorld, later: Server) -> None:
    world = make_world(http_agent(later.url, interval="30m", async_timeout="1h"), start="2026-03-02 08:00")
    found: list[str] = []
    while world.clock.now < utc("2026-03-02 13:00"):
        world.run(minutes=10)
        for run in world.records("ops"):
            waits = world.clock.now - utc(run["planned_at"][:16].replace("T", " "))
            if run["result"] == "async" and waits == timedelta(minutes=40):
                world.request(VerbRequest(ReportResult(text="HEARTBEAT_OK"), run["id"]))
        found += ["silent"] * is_silent(world)
    assert found == []
    assert slots(world)[0] >= 8
    assert slots(world)[1] == 0


def test_nothing_is_expected_of_a_paused_a_disabled_or_a_waiting_entry(make_world: MakeWorld) -> None:
    world = make_world(agent(), start="2026-03-02 08:10")
    world.pause(OPS)
    assert expected_by(world) is None
    world.run(hours=5)
    world.resume(OPS)
    assert expected_by(world) == "02 13:45"
    world.reload(agent(enabled="false"))
    assert expected_by(world) is None
    world.reload(agent(schedule="", interval="none"))
    assert expected_by(world) is None


def test_a_pause_without_an_end_shows_its_beginning(make_world: MakeWorld) -> None:
    world = make_world(agent(), start="2026-03-02 08:10")
    world.pause(OPS, utc("2026-03-02 09:10"))
    assert Page(world).series("paused_since") == {}
    world.pause(OPS)
    assert Page(world).series("paused_since") == {
        "paused_since_timestamp_seconds{heartbeat,ops}": utc("2026-03-02 08:10").timestamp()
    }


def _restart_in_order(world: World) -> None:
    world.stop()


def _kill(world: World) -> None:
    world.kill()


@pytest.mark.parametrize(
    ("end", "down", "silent"),
    [(_restart_in_order, 2, False), (_restart_in_order, 45, True), (_kill, 20, True)],
    ids=["a planned restart", "a long stop", "a crash"],
)
def test_a_downtime_over_a_slot(make_world: MakeWorld, end: Callable[[World], None], down: int, silent: bool) -> None:
    """The slot of 08:30 may start only a second late, so that the downtime loses it."""
    world = make_world(agent(misfire="{grace: 1s}", timeout="10s"), start="2026-03-02 08:10")
    world.run_until("2026-03-02 08:29")
    end(world)
    world.clock.advance(timedelta(minutes=down))
    world.boot()
    world.run(minutes=3)
    assert is_silent(world) is silent
    world.run_until("2026-03-02 10:01")
    assert not is_silent(world)


def test_a_suspended_machine_is_not_silent(make_world: MakeWorld) -> None:
    world = make_world(agent(), start="2026-03-02 08:10")
    world.run_until("2026-03-02 08:15")
    world.clock.now += timedelta(hours=9, minutes=30)  # the monotonic clock stands still
    world.run(minutes=3)
    assert not is_silent(world)


def test_slots_that_a_suspended_machine_lost_do_not_use_up_the_error_budget(make_world: MakeWorld) -> None:
    world = make_world(agent(misfire="{grace: 1s}"), start="2026-03-02 08:10")
    page = Page(world)
    world.run_until("2026-03-02 08:45")
    world.clock.now += timedelta(hours=2)
    world.run_until("2026-03-02 11:10")
    assert page.series("skips_total") == {"skips_total{heartbeat,ops,missed}": 4}
    assert slots(world) == (2, 0)


def test_slots_that_a_stopped_daemon_lost_are_bad_even_if_the_machine_is_suspended_later(make_world: MakeWorld) -> None:
    world = make_world(agent(misfire="{grace: 1s}"), start="2026-03-02 08:10")
    world.run_until("2026-03-02 08:45")
    world.stop()
    world.clock.advance(timedelta(hours=1, minutes=30))
    world.boot()
    world.clock.now += timedelta(hours=1)
    world.run_until("2026-03-02 11:40")
    assert slots(world) == (2, 3)


def test_an_agent_that_was_silent_before_a_restart_still_is(make_world: MakeWorld) -> None:
    world = make_world(agent(checklist="HEARTBEAT.md"), start="2026-03-02 08:10")
    world.run_until("2026-03-02 09:20")
    world.stop()
    world.clock.advance(timedelta(minutes=2))
    world.boot()
    world.run(minutes=3)
    assert is_silent(world)


def test_a_used_up_budget_is_no_silence_but_its_slots_are_bad(make_world: MakeWorld) -> None:
    world = make_world(agent(budget="{runs_per_day: 2}"), start="2026-03-02 08:10")
    page = Page(world)
    world.run_until("2026-03-02 09:10")
    assert page.series("budget")["budget_exhausted{runs_per_day,heartbeat,ops,entry}"] == 0  # used up, and nothing was skipped
    assert page.series("budget")["budget_day_elapsed_ratio{runs_per_day,heartbeat,ops,entry}"] == 19 / 48
    assert silent_times(world, "2026-03-02 12:10", minutes=20) == []
    assert page.series("budget")["budget_exhausted{runs_per_day,heartbeat,ops,entry}"] == 1
    assert slots(world) == (2, 6)
    for time in ("00:10", "00:40"):  # at the second one it is used up again, and nothing was skipped on this day
        world.run_until(f"2026-03-03 {time}")
        assert page.series("budget")["budget_exhausted{runs_per_day,heartbeat,ops,entry}"] == 0


def test_the_budget_of_all_entries_is_exhausted_by_the_first_run_that_it_skips(make_world: MakeWorld) -> None:
    world = make_world("limits: {budget: {runs_per_day: 2}}\n" + agent(), start="2026-03-02 08:10")
    page = Page(world)
    for until, exhausted in (("2026-03-02 09:10", 0), ("2026-03-02 09:40", 1), ("2026-03-03 00:10", 0)):
        world.run_until(until)
        assert page.series("budget_exhausted") == {"budget_exhausted{runs_per_day,,,all}": exhausted}


def test_the_budget_of_all_entries_is_exhausted_by_a_skip_of_an_entry_without_series(make_world: MakeWorld) -> None:
    two = agent(schedule='"0 7 * * *"') + agent().partition("agents:\n")[2].replace("  ops:", "  web:")
    limits = "server: {metrics_entries: 1}\nlimits: {budget: {runs_per_day: 3}}\n"
    world = make_world(limits + two, start="2026-03-02 08:10")
    page = Page(world)
    for until, exhausted in (("2026-03-02 09:10", 0), ("2026-03-02 10:10", 1)):
        world.run_until(until)
        assert page.series("budget_exhausted") == {"budget_exhausted{runs_per_day,,,all}": exhausted}


def test_a_budget_is_still_exhausted_after_a_restart(make_world: MakeWorld) -> None:
    world = make_world(agent(budget="{runs_per_day: 2}"), start="2026-03-02 08:10")
    world.run_until("2026-03-02 09:40")
    world.stop()
    world.boot()
    for until, exhausted in (("2026-03-02 09:45", 1), ("2026-03-03 00:10", 0)):
        world.run_until(until)
        assert Page(world).series("budget_exhausted") == {"budget_exhausted{runs_per_day,heartbeat,ops,entry}": exhausted}


def test_each_limit_of_each_budget_is_exhausted_by_the_runs_that_it_skips_itself(make_world: MakeWorld) -> None:
    beat = '{schedule: "*/30 * * * *", checklist: "- look\\n", deliver: log, budget: {%s}}'
    budgets = {"ops": "runs_per_day: 2, usd_per_day: 9, usd_per_try: 0.01", "web": "runs_per_day: 4"}
    agents = (f"  {name}: {{runner: {{kind: command, argv: [a]}}, heartbeat: {beat % each}}}\n" for name, each in budgets.items())
    world = make_world("agents:\n" + "".join(agents), start="2026-03-02 08:10")
    page = Page(world)
    limits = (("runs_per_day", "ops"), ("usd_per_day", "ops"), ("runs_per_day", "web"))
    for until, exhausted in (("09:10", [0, 0, 0]), ("10:10", [1, 0, 0]), ("10:40", [1, 0, 1])):
        world.run_until(f"2026-03-02 {until}")
        found = page.series("budget_exhausted")
        assert [found[f"budget_exhausted{{{limit},heartbeat,{name},entry}}"] for limit, name in limits] == exhausted, until


def test_the_share_of_a_budgets_day_follows_the_planned_runs(make_world: MakeWorld) -> None:
    hours = '{start: "06:00", end: "12:00"}'
    ops = agent(budget="{runs_per_day: 20, usd_per_month: 9, usd_per_try: 0.01}", active_hours=hours)
    web = ops.partition("agents:\n")[2].replace("ops:", "web:").replace("12:00", "18:00")
    world = make_world(ops + web, start="2026-03-02 05:00")
    page = Page(world)

    def share(limit: str = "runs_per_day", name: str = "ops") -> float:
        return page.series("budget_day")[f"budget_day_elapsed_ratio{{{limit},heartbeat,{name},entry}}"]

    assert share() == 0
    world.run_until("2026-03-02 09:10")
    assert (share(), share(name="web")) == (pytest.approx(7 / 12), pytest.approx(7 / 24))
    world.run_until("2026-03-02 12:10")
    assert share() == 1
    assert share("usd_per_month") == pytest.approx(2 / 31)
    world.run_until("2026-03-02 23:58")
    assert share() == 1
    world.run_until("2026-03-03 00:01")
    assert share() == 0


def test_a_failed_run_is_a_bad_slot_but_no_silence_and_a_cancelled_one_is_neither(make_world: MakeWorld) -> None:
    world = make_world(agent(), start="2026-03-02 08:10", scripts={"ops": lambda call: 3})
    world.run_until("2026-03-02 08:50")
    assert not is_silent(world)
    assert slots(world) == (0, 1)
    world.scripts["ops"] = lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=4))
    world.run_until("2026-03-02 09:02")
    (running,) = [run for run in world.records("ops") if run["state"] == "running"]
    world.request(VerbRequest(Cancel(), running["id"]))
    world.run(minutes=1)
    assert not is_silent(world)
    assert slots(world) == (0, 1)


def test_a_slot_whose_answer_was_cut_is_bad_but_no_silence(make_world: MakeWorld) -> None:
    cut = '{"text": "The disk is", "truncated": true}'
    world = make_world(agent(), start="2026-03-02 08:10", scripts={"ops": lambda call: cut})
    world.run_until("2026-03-02 09:40")
    assert [run["why"] for run in world.records("ops")] == [None, "duplicate", "duplicate"]
    assert slots(world) == (0, 3)
    assert not is_silent(world)


def test_a_successful_wake_ends_the_silence_and_is_no_slot(make_world: MakeWorld) -> None:
    world = make_world(agent(checklist="HEARTBEAT.md"), start="2026-03-02 08:10")
    world.run_until("2026-03-02 08:50")
    assert is_silent(world)
    world.write("ops/HEARTBEAT.md", "- look\n")
    world.wake("ops")
    world.run(minutes=1)
    assert not is_silent(world)
    assert slots(world) == (0, 1)


def test_a_one_time_job_that_was_missed_is_expected_for_one_more_day(make_world: MakeWorld) -> None:
    world = make_world('cron: {once: {command: x, at: "2026-03-02 09:00", timezone: UTC, timeout: 5m, misfire: {grace: 10m}}}')
    world.run_until("2026-03-02 08:50")
    assert expected_by(world, "{cron,once}") == "02 09:15"
    world.downtime(hours=24)
    world.run(minutes=1)
    assert is_silent(world, "{cron,once}")
    world.run_until("2026-03-03 09:30")
    assert expected_by(world, "{cron,once}") is None


def test_slots_are_counted_on_after_a_crash(make_world: MakeWorld) -> None:
    """The counters begin where they ended, so that Prometheus misses nothing before its first scrape."""
    world = make_world(agent(), start="2026-03-02 08:10")
    world.run_until("2026-03-02 10:01")
    assert slots(world) == (4, 0)
    world.kill()
    world.clock.advance(timedelta(hours=2))
    world.boot()
    world.run(minutes=1)
    assert slots(world) == (5, 3)
    assert Page(world).series("crashes") == {"crashes_total": 1}
    assert moment(world, "last_crash_timestamp_seconds") == "02 12:01"
