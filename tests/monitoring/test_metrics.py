"""Tests of the metrics page: which series exist from the start, how events change them, and when they go."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
import required_programs
from metrics_page import Page
from patience import PATIENCE
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from servers import gateway
from servers.messages import error_answer, text_answer
from servers.scripted import Server
from test_story_async_results import http_agent
from test_story_models import KEY, config
from web_daemon import WebDaemon
from world import Delayed, MakeWorld, utc

from heartbeatd.verbs import Ack, CloseProblem, Mute, ReportResult, Unack
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.tick_items import Refused
from scheduler.model.daemon_health import EngineHealth, ReloadState
from scheduler.model.events import AttemptStarted, RunRecovered, StaleResultDropped
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.store.locations import open_read_only
from scheduler.telemetry import gauges
from scheduler.telemetry.catalog import Reading
from scheduler.telemetry.event_feed import EventFeed
from scheduler.telemetry.metrics import ScrapeState
from scheduler.telemetry.series import MetricFamily

AGENT = """
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log, retries: 1}
"""
BOTH = (
    AGENT
    + """
cron:
  measure: {every: 1h, command: "measure", wake_heartbeat: ops}
"""
)


def agent(**keys: str) -> str:
    words = {"interval": "30m", "stagger": "0s", "checklist": '"- look\\n"', "deliver": "log"} | keys
    heartbeat = ", ".join(f"{key}: {value}" for key, value in words.items())
    return f"agents:\n  ops:\n    runner: {{kind: command, argv: [agent]}}\n    heartbeat: {{{heartbeat}}}\n"


def test_promtool_accepts_the_page(make_world: MakeWorld) -> None:
    promtool = required_programs.need("promtool")
    world = make_world(BOTH)
    page = Page(world)
    world.run(minutes=90)
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=page.text(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_lateness_is_also_measured_for_slots_that_could_not_start(make_world: MakeWorld) -> None:
    beat = '{runner: {kind: command, argv: [a]}, heartbeat: {interval: 10m, checklist: "- look\\n", deliver: log, timeout: 1h}}'
    world = make_world("limits: {concurrency: 1}\nagents:\n" + "".join(f"  {name}: {beat}\n" for name in "abc"))
    page = Page(world)
    for name in "abc":
        world.durations[name] = timedelta(minutes=25)
    world.run(hours=3)
    started = sum(isinstance(happened, AttemptStarted) for happened in world.events)
    missed = sum(row["planned_runs"] for row in world.records() if row["why"] == "missed")
    assert started >= 7
    assert missed > 10
    assert page.series("dispatch_lateness")["dispatch_lateness_seconds_count{heartbeat}"] == started + missed


def test_neither_a_stagger_nor_a_wake_counts_as_lateness(make_world: MakeWorld) -> None:
    job = 'cron: {look: {schedule: "0 * * * *", stagger: 10m, command: look}}\n'
    world = make_world(agent(interval="none") + job, start="2026-03-02 08:30")
    world.run(hours=1)
    (call,) = world.calls
    assert call.at > utc("2026-03-02 09:00")
    world.wake("ops", "look")
    world.run(minutes=1)
    assert [happened.late for happened in world.events_of(AttemptStarted)] == [0.0, None]


def test_downtime_does_not_count_as_lateness(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="10m"))
    world.run(minutes=2)
    world.downtime(days=300, minutes=6)
    page = Page(world)
    world.run(minutes=6)
    assert [row["why"] for row in world.records() if row["planned_runs"] > 1] == ["missed"]
    assert page.series("dispatch_lateness")["dispatch_lateness_seconds_count{heartbeat}"] == 1


def test_a_failed_precheck_counts_once_if_the_result_of_its_run_comes_later(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url, interval="1d", precheck="{command: look}"))
        world.prechecks["ops"] = lambda _: 3
        page = Page(world)
        world.run(minutes=1)
        world.request(VerbRequest(ReportResult(text="HEARTBEAT_OK"), server.requests[0].json["run"]))
    assert page.series("precheck_failures_total") == {"precheck_failures_total{heartbeat,ops}": 1}


def test_a_removed_channel_is_shown_while_it_has_a_message_that_was_given_up(make_world: MakeWorld) -> None:
    world = make_world(
        "channels: {hook: {kind: webhook, url: 'https://example.org/'}}\n" + agent(deliver="hook"),
        scripts={"ops": lambda call: f"ALERT: disk full at {call.at:%H:%M}"},
    )
    world.send = lambda _: Delayed(DeliveryResult("dead", "gone"), timedelta(seconds=20))
    page = Page(world)
    world.run(minutes=1)
    assert page.series("deliveries_total")["deliveries_total{hook,dead}"] == 1
    world.run(minutes=29, seconds=10)
    world.reload(agent())  # while the second message is sent
    world.run(seconds=30)
    assert page.series("outbox_dead")["outbox_dead{hook}"] == 2
    assert [name for name in page.series("deliveries_total") if "hook" in name] == []


def test_what_most_entries_need_exists_at_zero_from_the_start(make_world: MakeWorld) -> None:
    page = Page(make_world(BOTH))
    shown = {name: value for name, value in page.series().items() if not name.startswith("process_")}
    counters = {name: value for name, value in shown.items() if "_total" in name or name.startswith("run_duration")}
    assert set(counters.values()) == {0}
    for name in (
        "runs_total{heartbeat,ops,ok,interval}",
        "runs_total{cron,measure,ok,every}",
        "slots_total{heartbeat,ops,bad}",
        "wakes_refused_total{expired,cron}",
        "deliveries_total{log,dead}",
        "orphans_recovered_total{heartbeat}",
        "stale_results_total",
        "skips_taken_back_total",
        "clock_jumps_total{backward}",
        "db_busy_total",
        "internal_errors_total{due runs}",
        "internal_errors_total{message}",
        "run_duration_seconds_count{cron}",
    ):
        assert name in counters


def test_a_disabled_agent_has_no_counters_of_runs_before_it_is_enabled(make_world: MakeWorld) -> None:
    world = make_world(agent(enabled="false"))
    page = Page(world)
    assert page.series("runs_total") == {}
    world.reload(agent())
    assert page.series("runs_total") == {"runs_total{heartbeat,ops,ok,interval}": 0}


def test_a_new_series_is_zero_on_the_first_page_so_that_its_first_event_is_an_increase(make_world: MakeWorld) -> None:
    world = make_world(AGENT, scripts={"ops": lambda call: 3})
    page = Page(world)
    page.text()
    world.run(minutes=1)
    page.count_events()
    failed = b'heartbeatd_runs_total{kind="heartbeat",name="ops",trigger="interval",outcome="failed"} '
    assert failed + b"0\n" in page.first_page("")
    assert failed + b"1\n" in page.first_page("")


def test_an_unknown_time_has_no_series(make_world: MakeWorld) -> None:
    world = make_world(AGENT)
    page = Page(world)
    before = page.series()
    for name in ("last_run", "last_success", "outbox_oldest"):
        assert not [series for series in before if series.startswith(f"{name}_timestamp")]
    world.run(minutes=1)
    after = page.series()
    assert after["last_run_timestamp_seconds{heartbeat,ops}"] == utc("2026-03-02 08:00").timestamp()
    assert after["last_success_timestamp_seconds{heartbeat,ops}"] == utc("2026-03-02 08:00").timestamp()
    assert after["next_due_timestamp_seconds{heartbeat,ops}"] == utc("2026-03-02 08:30").timestamp()
    assert "oldest_due_timestamp_seconds" not in after
    assert not [series for series in after if series.startswith("outbox_oldest")]


def test_counters_agree_with_the_run_records(make_world: MakeWorld) -> None:
    """One run is suppressed, one sends an alert, one fails twice. Then four slots pass during downtime, and the last one runs late."""
    answers = iter(["HEARTBEAT_OK", "The disk is full.", 3, 3, "HEARTBEAT_OK", "HEARTBEAT_OK"])
    world = make_world(AGENT, scripts={"ops": lambda call: next(answers)})
    page = Page(world)
    world.run(minutes=65)
    world.downtime(minutes=120)
    world.run(minutes=1)
    series = page.series()
    assert series["runs_total{heartbeat,ops,ok,interval}"] == sum(row["result"] == "ok" for row in world.records())
    assert series["runs_total{heartbeat,ops,alert,interval}"] == 1
    assert series["runs_total{heartbeat,ops,failed,interval}"] == 1
    assert series["suppressions_total{heartbeat,ops,heartbeat_ok}"] == 2
    assert series["retries_total{heartbeat,ops}"] == 1
    assert series["skips_total{heartbeat,ops,missed}"] == sum(row["planned_runs"] for row in world.records(result="skipped")) == 3
    assert series["deliveries_total{log,delivered}"] == 1
    assert series["run_duration_seconds_count{heartbeat}"] == 4
    assert not [name for name in series if "skipped" in name]


def test_gauges_have_their_values_after_a_restart(make_world: MakeWorld) -> None:
    world = make_world(AGENT, scripts={"ops": lambda call: 3})
    world.run(minutes=65)
    world.downtime(seconds=10)
    series = Page(world).series()
    assert series["consecutive_failures{heartbeat,ops}"] == 3
    assert series["last_run_timestamp_seconds{heartbeat,ops}"] > utc("2026-03-02 09:00").timestamp()
    assert series["runs_total{heartbeat,ops,ok,interval}"] == 0


def test_the_alerting_gauge_is_1_until_a_run_without_an_alert(make_world: MakeWorld) -> None:
    answers = iter(["The disk is full.", "HEARTBEAT_OK", "HEARTBEAT_OK"])
    world = make_world(AGENT, scripts={"ops": lambda call: next(answers)})
    page = Page(world)
    world.run(minutes=1)
    assert page.series()["alerting{heartbeat,ops}"] == 1
    world.run(minutes=60)
    assert page.series()["alerting{heartbeat,ops}"] == 0


@pytest.mark.parametrize("state", ["active", "paused", "disabled"])
def test_an_entry_has_exactly_one_state(make_world: MakeWorld, state: str) -> None:
    world = make_world(agent(enabled="false") if state == "disabled" else AGENT)
    if state == "paused":
        world.pause((Kind.HEARTBEAT, "ops"))
    shown = Page(world).series("entry_state")
    assert shown == {f"entry_state{{heartbeat,ops,{state}}}": 1}


def test_a_paused_entry_has_no_next_due_time(make_world: MakeWorld) -> None:
    world = make_world(AGENT)
    world.pause((Kind.HEARTBEAT, "ops"), utc("2026-03-02 12:00"))
    assert not Page(world).series("next_due")


def test_counters_disappear_with_their_entry_and_restart_at_zero_when_it_returns(make_world: MakeWorld) -> None:
    world = make_world(BOTH)
    page = Page(world)
    world.run(minutes=61)
    assert page.series()["runs_total{cron,measure,ok,every}"] == 1
    world.reload(AGENT)
    assert not [name for name in page.series() if "measure" in name]
    assert page.series()["runs_total{heartbeat,ops,ok,interval}"] == 3
    world.reload(BOTH)
    assert page.series()["runs_total{cron,measure,ok,every}"] == 0
    (line,) = re.findall(r"heartbeatd_runs_total{.*measure.*", page.first_page("application/openmetrics-text").decode())
    assert line.endswith("} 0"), "no exemplar names a former run"


def test_a_removed_agent_has_no_series_in_any_family(make_world: MakeWorld) -> None:
    """Of a job with its name only that of the job remain."""
    web = AGENT[AGENT.index("  ops:") :].replace("  ops:", "  web:")
    job = "cron: {ops: {every: 1h, command: x}}\n"
    world = make_world(BOTH.replace("cron:", f"{web}cron:").replace("measure:", "ops:"))
    page = Page(world)
    world.run(minutes=61)
    world.scripts["ops"] = lambda call: 3
    world.wake("ops", "look")
    world.run(minutes=35)
    world.downtime(hours=2)
    world.run(minutes=1)
    families = {name.partition("{")[0] for name in page.series() if "ops" in name}
    assert families >= {"runs_total", "suppressions_total", "skips_total", "retries_total", "run_seconds_total"}
    world.reload(f"agents:\n{web}{job}")
    assert {name.partition("{")[2].partition("}")[0] for name in page.series() if "ops" in name and "cron" not in name} == set()
    assert page.series()["runs_total{heartbeat,web,ok,interval}"] == 5


def test_only_answers_of_agents_that_are_sent_are_events_that_something_was_said(make_world: MakeWorld) -> None:
    world = make_world(BOTH.replace("retries: 1", "retries: 0"), scripts={"measure": lambda _: "17 files"})
    world.scripts["ops"] = lambda call: {0: "The disk is full.", 30: 1}[call.at.minute]
    world.run(minutes=61)
    feed = EventFeed("boot1")
    for each in world.events:
        feed.publish(each)
    said = [json.loads(each.data) for each in feed.read_after(0)[0] if each.name == "said"]
    assert [(each["name"], each["run"]) for each in said] == [("ops", 1)]


def test_an_unexpected_reason_is_counted_as_well(make_world: MakeWorld) -> None:
    """A reload disables the agent right after one of its slots has come due."""
    world = make_world(AGENT)
    page = Page(world)
    world.run(minutes=1)
    world.clock.advance(timedelta(minutes=29, seconds=30))
    world.reload(agent(enabled="false"))
    assert page.series()["skips_total{heartbeat,ops,disabled}"] == 1


def test_entries_beyond_the_limit_have_no_series_and_are_counted(make_world: MakeWorld) -> None:
    spare = AGENT[AGENT.index("  ops:") :].replace("  ops:", "  spare:")
    world = make_world("server: {metrics_entries: 1}\n" + BOTH.replace("cron:", f"{spare}cron:"))
    page = Page(world)
    world.run(minutes=61)
    world.pause(("heartbeat", "spare"))
    world.wake("spare")
    world.request(VerbRequest(Mute(until=world.clock.now + timedelta(hours=1)), (Kind.HEARTBEAT, "spare")))
    series = page.series()
    assert series["entries_without_series"] == 2
    assert not [name for name in series if "spare" in name]
    assert not [name for name in series if "measure" in name]
    assert series["run_duration_seconds_count{cron}"] == 1


def test_ten_thousand_different_errors_make_no_new_series(make_world: MakeWorld) -> None:
    count = 0

    def fail(call: object) -> str:
        nonlocal count
        count += 1
        raise RuntimeError(f'error {count} "with quotes" and\nlines')

    world = make_world(AGENT, scripts={"ops": fail})
    page = Page(world)
    before = set(page.series())
    world.run(hours=10)
    assert count > 10
    assert {name.split("_timestamp")[0] for name in set(page.series()) - before} == {
        "last_run", "last_tick", "runs_total{heartbeat,ops,failed,interval}", "problems_open{false,warning,agent/ops}",
        "problems_open{false,critical,daemon}", "problem_oldest",
    }  # fmt: skip


def test_wakes_are_counted_while_they_wait_and_by_their_result(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="none"))
    page = Page(world)
    world.pause((Kind.HEARTBEAT, "ops"))
    world.wake("ops", "look")
    world.settle()
    series = page.series()
    assert series["wakes_pending{ops}"] == 1
    assert not [name for name in series if name.startswith("wakes_total")]
    assert series["skips_total{heartbeat,ops,paused}"] == 1
    world.wake("ops", "look again")
    world.resume((Kind.HEARTBEAT, "ops"))
    world.run(minutes=1)
    world.wake("ops", "once more")
    world.run(minutes=1)
    counted = {name: value for name, value in page.series().items() if name.startswith("wakes_total{ops,") and value}
    assert counted == {f"wakes_total{{ops,{result},api}}": 1 for result in ("deferred", "joined", "started")}


@pytest.mark.parametrize("seed", range(6))
def test_each_wake_is_counted_once_whatever_happens_to_it(make_world: MakeWorld, seed: int) -> None:
    """Pauses, gaps, floods, failed runs that return their wakes, senders that wake again meanwhile, wakes that expire."""
    chance = random.Random(seed)
    world = make_world(
        "limits: {wake_gap: 3m, wake_flood: 3 per 30m, wake_keep: 4h}\n" + agent(interval="none", retries="1"),
        scripts={"ops": lambda call: Delayed(chance.choice(["HEARTBEAT_OK", 1]), timedelta(seconds=90))},
    )
    page = Page(world)
    sent = 0
    for _ in range(120):
        match chance.randrange(8):
            case 0:
                world.pause((Kind.HEARTBEAT, "ops"))
            case 1 | 2:
                world.resume((Kind.HEARTBEAT, "ops"))
            case _:
                sent += 1
                with suppress(Refused):
                    cause = "boot1/1" if chance.random() < 0.1 else None
                    world.wake("ops", f"news {sent}", sender=f"bot{chance.randrange(3)}", cause=cause)
        world.run(seconds=chance.choice([0, 20, 60, 400]))
    if seed % 2:
        world.pause((Kind.HEARTBEAT, "ops"))  # what still waits expires
    else:
        world.resume((Kind.HEARTBEAT, "ops"))
    world.run(hours=12)
    assert page.series("wakes_pending") in ({}, {"wakes_pending{ops}": 0})
    by_result = {name.split(",")[1]: value for name, value in page.series("wakes_total").items() if value}
    assert sum(by_result.values()) == sent, by_result
    assert len(by_result) >= 3, by_result


def test_a_wake_from_within_its_own_run_is_counted_as_rejected(make_world: MakeWorld) -> None:
    world = make_world(AGENT, scripts={"ops": lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=1))})
    page = Page(world)
    world.engine.tick(world.clock.read())
    with pytest.raises(Refused):
        world.wake("ops", cause="boot1/1")
    assert page.series()["wakes_total{ops,rejected,api}"] == 1


def test_undelivered_messages_are_shown_by_channel(make_world: MakeWorld) -> None:
    hook = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}\n'
    world = make_world(
        hook + agent(deliver="hook"),
        scripts={"ops": lambda call: "The disk is full."},
        send=lambda _: DeliveryResult("retry", "no route"),
    )
    page = Page(world)
    world.run(seconds=30)
    series = page.series()
    assert series["outbox_pending{hook}"] == 1
    assert series["outbox_dead{hook}"] == 0
    assert series["outbox_oldest_timestamp_seconds{hook}"] == utc("2026-03-02 08:00").timestamp()
    assert series["deliveries_total{hook,retried}"] == 1


def test_the_page_has_metrics_of_the_process(make_world: MakeWorld) -> None:
    world = make_world(BOTH)
    page = Page(world)
    page.running = {"heartbeat": 2}
    page.reload_state = ReloadState(successful=False, succeeded_at=utc("2026-03-02 07:00"), problem="no")
    world.run(minutes=1)
    series = page.series()
    assert series["build_info{2026a,1.2.3}"] == 1
    assert (series["running{heartbeat}"], series["running{cron}"]) == (2, 0)
    assert series["concurrency_limit"] == world.engine.plan.settings.limits.concurrency
    assert series["config_last_reload_successful"] == 0
    assert series["config_last_reload_success_timestamp_seconds"] == utc("2026-03-02 07:00").timestamp()
    assert series["config_hash"] == int(world.engine.plan.settings.hash[:12], 16)
    assert series["last_tick_timestamp_seconds"] == world.clock.now.timestamp()
    assert series["db_bytes{db}"] == world.state.stat().st_size
    assert series["db_bytes{wal}"] > 0


def test_due_entries_are_counted_with_the_oldest_due_time(make_world: MakeWorld) -> None:
    world = make_world(AGENT)
    world.clock.advance(timedelta(minutes=5))
    series = Page(world).series()
    assert series["due_entries"] == 1
    assert series["oldest_due_timestamp_seconds"] == utc("2026-03-02 08:00").timestamp()


def test_recovered_runs_and_stale_results_are_counted(make_world: MakeWorld) -> None:
    page = Page(make_world(AGENT))
    page.metrics.count_event(RunRecovered(1, Kind.CRON, "measure", again=False))
    page.metrics.count_event(StaleResultDropped(1, Kind.HEARTBEAT, "ops"))
    assert page.series()["orphans_recovered_total{cron}"] == 1
    assert page.series()["stale_results_total"] == 1


def test_without_a_database_the_page_still_has_the_counters(make_world: MakeWorld) -> None:
    world = make_world(AGENT)
    page = Page(world)
    now = ScrapeState(EngineHealth(), page.reload_state, {}, world.clock.now)
    text = page.metrics.render_page(None, now).body.decode()
    assert "heartbeatd_runs_total{" in text
    assert "heartbeatd_next_due" not in text
    assert "heartbeatd_last_tick" not in text


def test_a_daemon_on_standby_leaves_the_gauges_of_the_database_to_the_leader(make_world: MakeWorld) -> None:
    """Otherwise sums over both daemons would be too high, and an alert would fire once for each of them."""
    page = Page(make_world(AGENT))
    health = EngineHealth(standby="one leads")
    now = ScrapeState(health, page.reload_state, {}, page._world.clock.now)
    with closing(open_read_only(page._world.database)) as db:
        text = page.metrics.render_page(db, now).body.decode()
    assert "heartbeatd_runs_total{" in text
    assert "heartbeatd_next_due" not in text
    assert "heartbeatd_outbox" not in text


def test_a_label_cannot_break_out_of_its_quotes() -> None:
    family = MetricFamily("gauge", "x", "Help.", ("name",))
    value = 'ops"} 1\nevil_metric \\'
    family.set_value(1, value)
    (parsed,) = text_string_to_metric_families("".join(family.exposition_lines()))
    assert [(sample.name, sample.labels, sample.value) for sample in parsed.samples] == [("x", {"name": value}, 1)]


def test_each_new_series_is_0_on_the_first_page() -> None:
    family = MetricFamily("counter", "x_total", "Help.", ("name",))
    for name in ("a", "b"):
        family.increase(name)
    pages = ["".join(family.exposition_lines()).splitlines()[2:] for _ in range(2)]
    assert pages == [['x_total{name="a"} 0', 'x_total{name="b"} 0'], ['x_total{name="a"} 1', 'x_total{name="b"} 1']]


def test_a_family_without_series_is_not_written() -> None:
    assert list(MetricFamily("counter", "x_total", "Help.").exposition_lines()) == []


def test_the_page_of_a_thousand_entries_is_rendered_quickly(tmp_path: Path, make_world: MakeWorld) -> None:
    """The goal is a quarter of a second. The limit is higher because the machine may be busy."""
    names = "\n".join(f"  a{number}: {{}}" for number in range(1000))
    world = make_world(
        "defaults: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 30m, deliver: log}}\nagents:\n" + names
    )
    page = Page(world)
    began = time.process_time()
    text = page.text()
    assert time.process_time() - began < 1.0
    assert text.count("\n") > 9_000


def test_a_heartbeat_by_schedule_counts_under_its_own_trigger(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="30m").replace("interval: 30m", 'schedule: "0 * * * *"'))
    page = Page(world)
    world.run(minutes=90)
    assert page.series("runs_total")["runs_total{heartbeat,ops,ok,schedule}"] == 2
    assert not any("interval" in name for name in page.series("runs_total"))
    assert page.series("next_due") == {"next_due_timestamp_seconds{heartbeat,ops}": 1772445600.0}


def test_the_cost_reported_by_a_program_is_counted_and_survives_a_reload(make_world: MakeWorld) -> None:
    report = '{"result": "HEARTBEAT_OK", "total_cost_usd": 0.25, "usage": {"input_tokens": 3, "output_tokens": 4}}'
    world = make_world(agent(), scripts={"ops": lambda call: report})
    page = Page(world)
    world.run(minutes=1)
    world.reload(agent(retries="0"))
    assert sum(page.series("cost_usd_total").values()) == 0.25
    assert sum(page.series("tokens_total").values()) == 7
    assert sum(page.series("unpriced_tokens_total").values()) == 0


def test_only_the_kinds_of_tokens_that_an_agent_uses_have_series(make_world: MakeWorld) -> None:
    with Server([gateway.text_answer("HEARTBEAT_OK", model="opus-9", tokens={"input": 3, "output": 4})]) as server:
        world = make_world(http_agent(server.url))
        page = Page(world)
        assert page.series("tokens_total") == {}
        world.run(minutes=1)
    assert page.series("tokens_total") == {"tokens_total{heartbeat,,ops,input}": 3, "tokens_total{heartbeat,,ops,output}": 4}


def test_the_counters_of_a_removed_provider_and_model_disappear(make_world: MakeWorld) -> None:
    with Server([text_answer("HEARTBEAT_OK")]) as server:
        yaml = config(server.url).replace(
            ", claude-sonnet-5: {input: 3.0, output: 15.0}", ""
        )  # its tokens are counted without a cost
        world = make_world(yaml, environ={"KEY": KEY}, durations={"ops": timedelta(minutes=5)})
        page = Page(world)
        world.run(minutes=1)
        before = [name for name in page.series() if "anthropic" in name or "claude" in name]
        world.reload(yaml.replace("model: claude-sonnet-5", "model: claude-haiku-5-5"))
        assert [name for name in page.series() if "claude-sonnet" in name] == []
        world.reload(agent())
        world.run(minutes=10)  # a run of the former model ends
    assert {name.split("{")[0] for name in before} >= {
        "provider_requests_total", "provider_request_duration_seconds_count", "unpriced_tokens_total", "cost_usd_total",
    }  # fmt: skip
    left = {name.split("{")[0] for name in set(before) & set(page.series())}
    assert left == {"cost_usd_total"}, "what that run has cost is not lost"


def open_problems(page: Page) -> dict[str, float]:
    """The gauge of open problems, by whether they are acknowledged, by severity and by subject."""
    return {name.removeprefix("problems_open"): value for name, value in page.series("problems_open").items()}


def test_open_problems_are_shown_by_agent_and_severity(make_world: MakeWorld) -> None:
    answers = iter(["[disk!] full\n[mail] waits\n[log] grows", "[disk] resolved\n[mail!] waits\n[log] grows"])
    world = make_world(AGENT, scripts={"ops": lambda _: next(answers)})
    page = Page(world)
    assert open_problems(page) == {}
    world.run(minutes=1)
    assert open_problems(page) == {"{false,warning,agent/ops}": 2, "{false,critical,agent/ops}": 1}
    world.run(minutes=30)
    assert open_problems(page) == {"{false,warning,agent/ops}": 1, "{false,critical,agent/ops}": 1}
    world.request(VerbRequest(CloseProblem(), world.problem("log").id))
    assert open_problems(page) == {"{false,critical,agent/ops}": 1}
    world.reload(AGENT.replace("ops:", "web:"))
    assert open_problems(page) == {}


def test_a_problem_that_a_person_has_acknowledged_is_counted_as_such_until_it_gets_worse(make_world: MakeWorld) -> None:
    answers = iter(["[disk] full\n[mail] waits"] * 2 + ["[disk!] full\n[mail] waits"] * 2)
    world = make_world(AGENT, scripts={"ops": lambda _: next(answers)})
    page = Page(world)
    world.run(minutes=1)
    world.request(VerbRequest(Ack(), world.problem("disk").id, sender=Sender("ann")))
    assert open_problems(page) == {"{false,warning,agent/ops}": 1, "{true,warning,agent/ops}": 1}
    world.request(VerbRequest(Unack(), world.problem("disk").id, sender=Sender("ann")))
    assert open_problems(page) == {"{false,warning,agent/ops}": 2}
    world.request(VerbRequest(Ack(), world.problem("disk").id, sender=Sender("ann")))
    world.run(minutes=30)
    assert open_problems(page) == {"{false,warning,agent/ops}": 1, "{true,warning,agent/ops}": 1}
    world.run(minutes=30)
    assert open_problems(page) == {"{false,warning,agent/ops}": 1, "{false,critical,agent/ops}": 1}


def test_the_oldest_problem_of_an_agent_may_be_one_of_its_runs_or_one_that_it_reports(make_world: MakeWorld) -> None:
    found = '{"findings": [{"key": "disk", "text": "full", "severity": "warning", "resolved": false}], "failed": "no access"}'
    world = make_world(AGENT, scripts={"ops": lambda call: 1 if call.at < utc("2026-03-02 09:00") else found})
    page = Page(world)
    world.run(minutes=70)
    assert open_problems(page) == {"{false,warning,agent/ops}": 2}
    (oldest,) = page.series("problem_oldest").values()
    assert oldest < utc("2026-03-02 08:01").timestamp()


def test_problems_of_agents_beyond_the_limit_have_no_series(make_world: MakeWorld) -> None:
    agents = AGENT + AGENT.partition("agents:\n")[2].replace("ops:", "web:")
    world = make_world(
        "server: {metrics_entries: 1}\n" + agents, scripts={"ops": lambda _: "[disk] full", "web": lambda _: "[disk] full"}
    )
    page = Page(world)
    world.run(minutes=1)
    assert open_problems(page) == {"{false,warning,agent/ops}": 1}


def test_a_muted_entry_has_a_gauge(make_world: MakeWorld) -> None:
    world = make_world(BOTH, scripts={"ops": lambda call: "The disk is full."})
    page = Page(world)
    world.request(VerbRequest(Mute(until=world.clock.now + timedelta(hours=1)), (Kind.HEARTBEAT, "ops")))
    world.run(minutes=31)
    assert page.series("muted") == {"muted{heartbeat,ops}": 1}
    assert page.series("suppressions_total")["suppressions_total{heartbeat,ops,muted}"] == 2
    world.run(minutes=30)
    assert page.series("muted") == {}


def test_each_call_to_a_provider_is_counted_once_with_its_result_and_duration(make_world: MakeWorld) -> None:
    with Server([error_answer(500, "api_error", "no"), error_answer(529, "overloaded_error", "no")]) as server:
        world = make_world(config(server.url), environ={"KEY": KEY})
        page = Page(world)
        assert list(page.series("provider_requests").values()) == [0]
        world.run(minutes=10)
    called = page.series("provider_request")
    counted = {name.split(",")[-1].rstrip("}"): value for name, value in called.items() if "requests_total" in name}
    assert counted.pop("ok") == 0
    assert set(counted) == {"server", "overloaded"}
    (measured,) = [value for name, value in called.items() if "duration_seconds_count" in name]
    assert measured == sum(counted.values())


def test_late_starts_and_late_messages_are_counted(make_world: MakeWorld) -> None:
    world = make_world(
        agent(interval="10m", deliver="hook") + 'channels: {hook: {kind: webhook, url: "https://x.example/"}}\n',
        scripts={"ops": lambda call: f"The disk is full: {call.at}"},
    )
    page = Page(world)
    world.run(minutes=1)
    assert page.series("slots_on_time")["slots_on_time_total{heartbeat,on_time}"] == 1
    assert page.series("messages_on_time")["messages_on_time_total{hook,on_time}"] == 1
    assert page.series("messages_on_time")["messages_on_time_total{hook,late}"] == 0
    world.send = lambda _: Delayed(DeliveryResult("delivered"), timedelta(minutes=5))
    world.clock.advance(timedelta(minutes=10))  # the next slot starts a minute late, and its message takes five: just in time
    world.run(minutes=6)
    assert page.series("slots_on_time")["slots_on_time_total{heartbeat,on_time}"] == 2
    assert page.series("messages_on_time")["messages_on_time_total{hook,on_time}"] == 2
    world.send = lambda _: DeliveryResult("retry", "no route")
    world.run(minutes=20)
    world.send = lambda _: DeliveryResult("delivered")
    world.run(minutes=60)
    assert page.series("messages_on_time")["messages_on_time_total{hook,late}"] >= 1
    before = page.series("slots_on_time")["slots_on_time_total{heartbeat,late}"]
    world.engine.tick(world.clock.read())
    world.clock.advance(timedelta(minutes=12))
    world.run(minutes=1)
    assert page.series("slots_on_time")["slots_on_time_total{heartbeat,late}"] > before


def test_a_message_that_its_channel_refuses_at_once_is_not_counted_as_delivered_on_time(make_world: MakeWorld) -> None:
    world = make_world(
        agent(deliver="hook") + 'channels: {hook: {kind: webhook, url: "https://x.example/"}}\n',
        scripts={"ops": lambda call: "The disk is full."},
        send=lambda _: DeliveryResult("dead", "403 Forbidden"),
    )
    page = Page(world)
    world.run(minutes=1)
    assert page.series("deliveries_total")["deliveries_total{hook,dead}"] == 1
    counted = page.series("messages_on_time")
    assert (counted["messages_on_time_total{hook,on_time}"], counted["messages_on_time_total{hook,late}"]) == (0, 1)


def test_wakes_that_reach_no_run_are_counted_by_reason(make_world: MakeWorld) -> None:
    world = make_world(agent())
    page = Page(world)
    assert set(page.series("wakes_refused").values()) == {0}
    world.pause((Kind.HEARTBEAT, "ops"))
    for number in range(1001):
        try:
            world.wake("ops", sender=f"bot {number}")
        except Refused:
            break
    assert page.series("wakes_refused")["wakes_refused_total{rejected,api}"] == 1
    world.run(days=8)
    assert page.series("wakes_refused")["wakes_refused_total{expired,api}"] == number
    assert page.series("wakes_total")["wakes_total{ops,rejected,api}"] == 1


def test_a_wake_of_a_disabled_agent_is_counted_as_rejected(make_world: MakeWorld) -> None:
    world = make_world(agent(enabled="false"))
    page = Page(world)
    with pytest.raises(Refused):
        world.wake("ops", "look")
    assert page.series()["wakes_total{ops,rejected,api}"] == 1


README_AGENT = """
providers: {anthropic: {api_key: key, base_url: "MODEL"}}
channels: {phone: {kind: webhook, url: "https://chat.example.org/hook"}}
prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}}
defaults: {heartbeat: {deliver: phone, retries: 2}}
agents:
  ops:
    runner: {kind: anthropic}
    model: claude-sonnet-5
    heartbeat:
      interval: 15m
      model: claude-haiku-5-5
      light_context: true
      checklist: "- look\\n"
      budget: {usd_per_day: 5.00, usd_per_try: 0.10}
      precheck: {command: ./check-host.sh, unchanged: {skip: true, max_age: 24h}}
"""


def test_an_agent_like_that_of_the_readme_has_at_most_thirty_series(make_world: MakeWorld) -> None:
    """After a day with quiet and loud answers, an error of the provider, a wake, a restart and a changed precheck."""
    lines = iter([f"line {number}" for number in range(30)])
    answers = [text_answer("HEARTBEAT_OK"), text_answer("[disk!] The disk is full."), error_answer(529, "overloaded_error", "no")]
    with Server([*answers, *(text_answer("HEARTBEAT_OK") for _ in range(200))]) as server:
        world = make_world(README_AGENT.replace("MODEL", server.url), prechecks={"ops": lambda call: next(lines, "the same")})
        page = Page(world)
        world.run(hours=12)
        world.wake("ops", "look")
        world.run(hours=1)
        world.downtime(minutes=40)
        world.run(hours=10)
        shown = [name for name in page.series() if "ops" in name]
    assert 20 < len(shown) <= 30, sorted(shown)


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=1.0.0", "application/openmetrics-text;q=0.6,text/plain"]
)
def test_the_openmetrics_page_passes_a_strict_parser_and_names_the_last_run(make_world: MakeWorld, accept: str) -> None:
    world = make_world(BOTH, scripts={"ops": lambda call: "[disk] full"})
    page = Page(world)
    world.run(minutes=65)
    page.text()
    body = page.first_page(accept).decode()
    assert body.endswith("\n# EOF\n")
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(body)}
    assert families["heartbeatd_runs"].type == "counter"
    assert families["heartbeatd_expected_by_timestamp_seconds"].type == "gauge"
    assert not [name for name in families if name.endswith("_created")]
    last = [run["id"] for run in world.records("ops", result="alert") if run["trigger"] == "interval"][-1]
    samples = [each for each in families["heartbeatd_runs"].samples if each.labels["name"] == "ops" and each.exemplar]
    (alert,) = [each for each in samples if each.labels["trigger"] == "interval" and each.labels["outcome"] == "alert"]
    assert alert.exemplar is not None
    assert (alert.exemplar.labels, float(alert.exemplar.timestamp or 0)) == (
        {"run_id": str(last)},
        utc("2026-03-02 09:00").timestamp(),
    )
    buckets = [sample for sample in families["heartbeatd_run_duration_seconds"].samples if sample.exemplar]
    assert buckets
    assert {sample.name for sample in buckets} == {"heartbeatd_run_duration_seconds_bucket"}


@pytest.mark.parametrize("forbidden", ["config.yaml", "."])
def test_a_config_that_the_daemon_may_not_read_counts_as_missing(make_world: MakeWorld, forbidden: str) -> None:
    settings = make_world(AGENT).engine.plan.settings

    def shown() -> str:
        reading = Reading()
        gauges.read_settings(reading, settings, ())
        return "".join(reading["heartbeatd_config_file_present"].exposition_lines()).splitlines()[-1]

    assert shown() == "heartbeatd_config_file_present 1"
    with no_access(settings.path.parent / forbidden):
        assert shown() == "heartbeatd_config_file_present 0"


@contextmanager
def no_access(path: Path) -> Iterator[None]:
    """This process may not use a file or a folder, even if root runs the tests."""
    user = os.geteuid()
    path.chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(0o700)


def test_the_page_of_a_daemon_that_may_not_read_its_database_has_the_metrics_of_the_process(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon:
        assert b"heartbeatd_db_bytes" in daemon.get("/metrics").body
        with no_access(daemon.world.state.parent):
            page = daemon.get("/metrics")
        assert (page.status, b"heartbeatd_db_bytes" in page.body, b"heartbeatd_running" in page.body) == (200, False, True)


def test_both_formats_have_the_same_series(make_world: MakeWorld) -> None:
    world = make_world(BOTH)
    page = Page(world)
    world.run(minutes=65)

    def shown(families: Iterable[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        return {(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples}

    classic = shown(text_string_to_metric_families(page.text()))
    assert classic == shown(openmetrics.text_string_to_metric_families(page.first_page("application/openmetrics-text").decode()))
