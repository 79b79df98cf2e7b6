"""`replay`: recorded answers, wakes, failures and downtimes play a past month again with another config."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from month_simulation import START, Month, habits_of_level, readme_config
from servers import completions
from servers.scripted import Server, reply
from simulation import size
from test_story_asking_again import CONFIG as ASKED
from test_story_asking_again import DISK, VAR, Model
from test_story_budgets import cost_report, model_agent
from test_story_run_once import world_after_run_once
from world import MakeWorld, World, utc

from heartbeat.runners import HttpReply
from heartbeatd.verbs import Mute
from scheduler.config.settings.load import load_config
from scheduler.engine.effects import VerbRequest
from scheduler.foresight.replay import Past, Replay, replay, verdict_text
from scheduler.model.outcome import Kind


def replayed(world: World, yaml: str, since: str, folder: Path, **more: Any) -> Replay:
    """The time until now, played again with this config."""
    folder.mkdir(exist_ok=True)
    other = folder / "other.yaml"
    other.write_text(yaml, "utf-8")
    settings = load_config(other, world.environ).settings
    former = load_config(world.config, world.environ).settings
    past = Past.read(world.store.connection, utc(since), settings, former)
    return replay(past, settings, utc(since), world.clock.now, folder / "files", **more)


def lines(found: Replay) -> list[str]:
    """The changed runs as short lines."""
    return [f"{each.name} {each.planned_at:%m-%d %H:%M} {words(each.before)} -> {words(each.after)}" for each in found.changed]


def words(verdict: Any) -> str:
    parts = (verdict.result, verdict.why, f"{verdict.messages} sent" if verdict.messages else None)
    return " ".join(part for part in parts if part)


@pytest.mark.simulation
def test_the_unchanged_config_reproduces_every_verdict_of_a_month(tmp_path: Path) -> None:
    """Of 30 days with 40 events in `make simulate`, of five days with 7 events otherwise. The agent forgets and answers in prose."""
    days, events = size(5, 30), size(7, 40)
    month = Month(tmp_path / "past", readme_config(), 1, habits_of_level("5/5/10"), days, events)
    found = replayed(month.world, readme_config(), START, tmp_path)
    month.close()
    assert lines(found) == []
    assert found.unchanged > days * 90
    assert found.unknown == []
    assert found.after.as_data() == found.before.as_data()
    assert found.before.messages > events


class AnswersLater:
    """An agent behind a URL that answers later, and never does."""

    async def post(self, *_: Any) -> HttpReply:
        return HttpReply(202, {}, b"{}")


CONFIG = """
timezone: UTC
channels: {hook: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}
history: {runs: 100000}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {checklist: "- look\\n", deliver: hook, interval: 1h, stagger: 0s}
cron:
  backup: {schedule: "30 3 * * *", command: backup, deliver: hook, wake_heartbeat: ops, wake_on: failure}
"""
NIGHT = "2026-03-02 00:00"


def a_day(make_world: MakeWorld, yaml: str = CONFIG, **scripts: Any) -> World:
    """A day of a daemon. The disk is full from 20:00 to 22:00."""
    world = make_world(yaml, start=NIGHT)
    world.scripts["ops"] = lambda call: "[disk] nearly full" if call.at.hour in (20, 21) else "HEARTBEAT_OK"
    world.scripts.update(scripts)
    world.run(hours=24)
    return world


def test_wakes_failures_and_downtimes_are_played_again_as_they_were(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(CONFIG, start=NIGHT)
    world.scripts["ops"] = lambda call: (
        1 if call.at.hour in (5, 6) else "[job:backup] failed" if "exit" in call.stdin else "HEARTBEAT_OK"
    )
    world.scripts["backup"] = lambda _: 1
    world.run(hours=8, minutes=10)
    world.wake("ops", "a deployment ended")
    world.run(minutes=20)
    world.downtime(hours=5)
    world.run(hours=6)
    found = replayed(world, CONFIG, NIGHT, tmp_path)
    assert lines(found) == []
    assert found.unknown == []
    assert found.after.as_data() == found.before.as_data()
    assert found.before.failed >= 3 and found.before.skipped >= 4


def test_reminders_and_reported_failures_are_played_again_as_they_were(make_world: MakeWorld, tmp_path: Path) -> None:
    """At 05:00 the agent fails and finds a problem, and at 09:00 it wants to be reminded at 09:25."""
    reminder = {"findings": [], "remind": [{"text": "is it done?", "in": "25m"}]}
    failure = {"findings": [{"key": "disk", "text": "nearly full", "severity": "info", "resolved": False}], "failed": "no access"}
    answers = {(5, 0): failure, (9, 0): reminder}
    world = a_day(make_world, ops=lambda call: json.dumps(answers.get((call.at.hour, call.at.minute), {"findings": []})))
    assert any("09:25 reminder" in line for line in world.history("ops"))
    assert any("failed reported_failure" in line for line in world.history("ops"))
    found = replayed(world, CONFIG, NIGHT, tmp_path)
    assert lines(found) == []
    assert found.after.as_data() == found.before.as_data()


def test_mutes_of_answers_are_played_again_as_they_were(make_world: MakeWorld, tmp_path: Path) -> None:
    """The disk is full from 20:00 on. The agent is muted until 20:30, and again when the mail is stuck at 22:00."""
    world = make_world(CONFIG, start=NIGHT)
    said = {20: "[disk] nearly full", 21: "[disk] nearly full", 22: "[disk] nearly full\n[mail] stuck", 23: "[disk] nearly full"}
    world.scripts["ops"] = lambda call: said.get(call.at.hour, "HEARTBEAT_OK")
    for hours in (19.5, 2):
        world.run(hours=hours)
        world.request(VerbRequest(Mute(for_=timedelta(hours=1)), (Kind.HEARTBEAT, "ops")))
    world.run(hours=2)
    assert [row["planned_at"][11:13] for row in world.records("ops") if row["why"] == "muted"] == ["20", "22"]
    found = replayed(world, CONFIG, NIGHT, tmp_path)
    assert lines(found) == []
    assert found.after.as_data() == found.before.as_data()
    assert found.before.messages == 2


def test_a_failed_postcheck_is_played_again_as_it_was(make_world: MakeWorld, tmp_path: Path) -> None:
    checked = CONFIG.replace("command: backup,", "command: backup, postcheck: {file: missing.tar},")
    world = a_day(make_world, checked)
    assert any("failed postcheck" in line for line in world.history("backup"))
    found = replayed(world, checked, NIGHT, tmp_path)
    assert lines(found) == []
    assert found.after.as_data() == found.before.as_data()


@pytest.mark.parametrize("before", [[], [[DISK]]])
def test_prose_of_an_agent_that_was_asked_again_is_played_again_as_it_was(
    make_world: MakeWorld, tmp_path: Path, before: list[Any]
) -> None:
    """Also while it reports a problem. With a smaller budget, a run is skipped like any other."""
    yaml = ASKED.format(more=", precheck: {command: look}")
    model = Model(*before, "I have looked.")
    world = make_world(yaml, start=NIGHT, http=model, environ={"KEY": "k"}, prechecks={"ops": lambda _: VAR})
    world.run(minutes=40)
    assert [row["why"] for row in world.records("ops")][-2:] == ["no_findings"] * 2
    found = replayed(world, yaml, NIGHT, tmp_path)
    assert lines(found) == []
    assert found.after.as_data() == found.before.as_data()
    fewer = replayed(world, yaml.replace("precheck:", "budget: {runs_per_day: 2}, precheck:"), NIGHT, tmp_path / "fewer")
    assert lines(fewer) == ["ops 03-02 00:30 alert no_findings -> skipped budget"]
    assert verdict_text(fewer.changed[0].before) == "ran, prose without findings: not sent"


def test_the_answers_of_a_fallback_are_played_again_as_they_were(make_world: MakeWorld, tmp_path: Path) -> None:
    yaml = "runners: {backup: {kind: command, argv: [backup]}}\n" + CONFIG.replace(
        "    heartbeat:", "    fallbacks: [{runner: backup}]\n    heartbeat:"
    )
    failing = lambda call: 1 if call.argv[0] == "agent" and call.at.hour in (5, 6, 7) else "HEARTBEAT_OK"  # noqa: E731
    world = a_day(make_world, yaml, ops=failing)
    assert [row["planned_at"][11:13] for row in world.records("ops") if row["fallback"]] == ["05", "06", "07"]
    found = replayed(world, yaml, NIGHT, tmp_path)
    assert lines(found) == []
    assert found.after.as_data() == found.before.as_data()
    assert found.before.messages > 0


def test_a_fallback_that_answers_later_is_played_again_as_it_was(make_world: MakeWorld, tmp_path: Path) -> None:
    yaml = 'runners: {backup: {kind: http, url: "http://127.0.0.1:9/y"}}\n' + CONFIG.replace(
        "    heartbeat:", "    fallbacks: [{runner: backup}]\n    heartbeat:"
    )
    world = make_world(yaml, start=NIGHT, scripts={"ops": lambda _: 1}, http=AnswersLater())
    world.run(hours=3)
    assert [row["fallback"] for row in world.records("ops") if row["result"] == "async"] == ["backup"] * 4
    assert world.problem("fallback").opened_at is not None
    found = replayed(world, yaml, NIGHT, tmp_path)
    assert lines(found) == []
    assert found.after.as_data() == found.before.as_data()
    assert found.before.messages > 0


CHAINED = """
timezone: UTC
channels: {hook: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}
history: {runs: 100000}
cron:
  backup: {schedule: "0 */3 * * *", command: backup, deliver: {to: hook, hours: "08:00-22:00"}}
  verify: {after: backup, command: verify, deliver: {to: hook, hours: "08:00-22:00"}}
  repair: {after: {job: backup, on: failure}, command: repair, deliver: {to: hook, hours: "08:00-22:00"}}
"""


def test_answers_that_come_later_to_the_news_of_a_source_are_played_again(make_world: MakeWorld, tmp_path: Path) -> None:
    """Each look is compared with the news of the runs whose answers are awaited."""
    yaml = CONFIG.replace("{kind: command, argv: [agent]}", '{kind: http, url: "http://127.0.0.1:9/y"}')
    yaml = yaml.replace("interval: 1h,", 'interval: 30m, precheck: {files: "inbox/*"},')
    world = make_world(yaml, start=NIGHT, http=AnswersLater())
    for number in range(3):
        world.run(minutes=30)
        world.write(f"ops/inbox/{number}.txt", "news")
    assert [row["result"] for row in world.records()].count("async") == 2
    found = replayed(world, yaml, NIGHT, tmp_path)
    assert (lines(found), found.unknown) == ([], [])


def test_chains_of_jobs_and_messages_that_wait_for_the_morning_are_played_again_as_they_were(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    world = make_world(CHAINED, start=NIGHT)
    world.scripts = {
        "backup": lambda call: 1 if call.at.hour == 6 else "saved",
        "verify": lambda _: "good",
        "repair": lambda _: "",
    }
    world.run(hours=24)
    assert {row["name"] for row in world.records() if row["result"] == "ok"} == {"backup", "verify", "repair"}
    found = replayed(world, CHAINED, NIGHT, tmp_path)
    assert lines(found) == []
    assert found.unknown == []
    assert found.after.as_data() == found.before.as_data()


def test_runs_outside_of_narrower_hours_are_listed_with_both_reasons(make_world: MakeWorld, tmp_path: Path) -> None:
    world = a_day(make_world)
    found = replayed(world, CONFIG.replace("stagger: 0s", 'stagger: 0s, active_hours: "06:00-20:00"'), NIGHT, tmp_path)
    assert lines(found)[0] == "ops 03-02 00:00 ok heartbeat_ok -> skipped active_hours"
    assert "ops 03-02 20:00 alert 1 sent -> skipped active_hours" in lines(found)
    assert len(found.changed) == 6 + 4
    assert (found.before.messages, found.after.messages) == (2, 0)
    assert found.unknown == []


def test_slots_of_closed_hours_that_have_no_record_yet_are_counted_on_both_sides(make_world: MakeWorld, tmp_path: Path) -> None:
    hours = CONFIG.replace("stagger: 0s", 'stagger: 0s, active_hours: "06:00-20:00"')
    found = replayed(a_day(make_world, hours), hours, NIGHT, tmp_path)
    assert lines(found) == []
    assert (found.before.skipped, found.after.skipped) == (11, 11)  # from 00:00 to 05:00, and from 20:00 to 24:00


def test_an_agent_that_was_added_later_is_played_again_at_its_times(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(CONFIG, start=NIGHT)
    world.run(hours=10, minutes=37)
    added = CONFIG.replace(
        "cron:\n", CONFIG[CONFIG.index("  ops:\n") : CONFIG.index("cron:\n")].replace("ops", "mail") + "cron:\n"
    )
    world.reload(added)
    world.run(hours=5, minutes=10)
    assert world.history("mail")[:2] == ["03-02 10:37 interval ok heartbeat_ok", "03-02 11:37 interval ok heartbeat_ok"]
    found = replayed(world, added, NIGHT, tmp_path)
    assert lines(found) == []
    assert found.after.as_data() == found.before.as_data()


def test_runs_that_only_the_new_config_makes_are_unknown(make_world: MakeWorld, tmp_path: Path) -> None:
    world = a_day(make_world)
    found = replayed(world, CONFIG.replace("interval: 1h", "interval: 30m"), NIGHT, tmp_path)
    assert [(each.name, each.runs) for each in found.unknown] == [("ops", 24)]
    assert (found.after.messages, found.after.calls) == (found.before.messages, found.before.calls)
    assert lines(found) == []


def test_a_run_between_two_recorded_ones_takes_the_nearest_answer_that_no_other_run_takes(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    """00:00 and 03:00 have their own answers, 00:45 takes that of 01:00, 02:15 that of 02:00, and 01:30 is too far from both."""
    world = a_day(make_world)
    found = replayed(world, CONFIG.replace("interval: 1h", "interval: 45m"), NIGHT, tmp_path)
    assert [(each.name, each.runs) for each in found.unknown] == [("ops", 8)]
    assert (found.after.runs, found.after.messages) == (found.before.runs, found.before.messages)
    assert lines(found) == []


def test_an_interval_in_place_of_a_schedule_takes_the_recorded_answers(make_world: MakeWorld, tmp_path: Path) -> None:
    world = a_day(make_world, CONFIG.replace("interval: 1h, stagger: 0s", 'schedule: "0 * * * *"'))
    found = replayed(world, CONFIG, NIGHT, tmp_path)
    assert found.unknown == []
    assert lines(found) == []


def test_an_interval_takes_no_answer_of_a_schedule_that_is_half_an_hour_away(make_world: MakeWorld, tmp_path: Path) -> None:
    world = a_day(make_world, CONFIG.replace("interval: 1h, stagger: 0s", 'schedule: "30 3 * * *"'))
    found = replayed(world, CONFIG.replace("interval: 1h", "interval: 2h"), NIGHT, tmp_path)
    assert [(each.name, each.runs) for each in found.unknown] == [("ops", 12)]


def test_a_run_does_not_take_the_answer_of_a_wake(make_world: MakeWorld, tmp_path: Path) -> None:
    """The wake was at 08:10. Only 00:00 was planned."""
    yaml = CONFIG.replace("interval: 1h", "interval: 1d")
    world = make_world(yaml, start=NIGHT)
    world.run(hours=8, minutes=10)
    world.wake("ops")
    world.run(hours=15)
    found = replayed(world, yaml.replace("interval: 1d", "interval: 4h"), NIGHT, tmp_path)
    assert [(each.name, each.runs) for each in found.unknown] == [("ops", 5)]


def test_a_run_that_a_budget_skips_does_not_fail_as_it_did(make_world: MakeWorld, tmp_path: Path) -> None:
    checked = CONFIG.replace("stagger: 0s", "stagger: 0s, postcheck: {file: missing.tar}, retries: 0")
    world = a_day(make_world, checked)
    found = replayed(world, checked.replace("stagger: 0s", "stagger: 0s, budget: {runs_per_day: 2}"), NIGHT, tmp_path)
    assert (found.before.failed, found.after.failed) == (24, 2)


@pytest.mark.parametrize(
    ("keys", "answer", "recorded"),
    [
        ("retries: 0, postcheck: {file: missing.tar}", "HEARTBEAT_OK", "failed postcheck"),
        ("retries: 0", 1, "failed exit"),
    ],
)
def test_a_run_that_a_failed_precheck_skips_does_not_end_as_it_did(
    make_world: MakeWorld, tmp_path: Path, keys: str, answer: Any, recorded: str
) -> None:
    yaml = CONFIG.replace("stagger: 0s", f"stagger: 0s, precheck: {{command: look}}, {keys}")
    world = make_world(yaml, start=NIGHT, scripts={"ops": lambda _: answer}, prechecks={"ops": lambda _: 1})
    world.run(hours=3)
    found = replayed(world, yaml.replace("command: look", "command: look, on_error: skip"), NIGHT, tmp_path)
    assert f"ops 03-02 02:00 {recorded} -> skipped precheck_failed" in lines(found)
    assert (found.after.failed, found.after.skipped) == (0, 3)


CUT = json.dumps({"result": "<think>The disk is nearly full.</think>", "truncated": True})


def test_an_answer_that_was_cut_before_its_text_fails_without_the_reasoning_that_was_sent(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    yaml = CONFIG.replace("stagger: 0s", "stagger: 0s, strip_reasoning: false")
    world = make_world(yaml, start=NIGHT, scripts={"ops": lambda _: CUT})
    world.run(hours=1)
    found = replayed(world, CONFIG, NIGHT, tmp_path)
    assert lines(found) == ["ops 03-02 00:00 alert 1 sent -> failed bad_answer"]


def test_a_moved_grid_of_slots_takes_the_recorded_answers(make_world: MakeWorld, tmp_path: Path) -> None:
    world = a_day(make_world)
    found = replayed(world, CONFIG.replace("stagger: 0s", "stagger: 10m"), NIGHT, tmp_path)
    assert found.unknown == []
    assert lines(found) == []


@pytest.mark.parametrize(
    ("right", "other", "unknown"),
    [
        ('"30 3 * * *"', '"35 3 * * *"', []),
        ('"30 3 * * *"', '"36 3 * * *"', ["backup"]),
        ('"30 3 * * *"', '"30,33 3 * * *"', ["backup"]),  # the first run takes the only answer
        ("timezone: UTC", "limits: {wake_gap: 6m}", []),
        ("timezone: UTC", "limits: {wake_gap: 9m}", ["ops"]),
    ],
)
def test_a_cron_run_and_a_wake_take_an_answer_that_is_at_most_five_minutes_away(
    make_world: MakeWorld, tmp_path: Path, right: str, other: str, unknown: list[str]
) -> None:
    """A person wakes the agent at 03:28, and the failed job at 03:30."""
    world = make_world(CONFIG, start=NIGHT, scripts={"ops": lambda call: "HEARTBEAT_OK", "backup": lambda call: 1})
    world.run(hours=3, minutes=28)
    world.wake("ops")
    world.run(hours=3)
    found = replayed(world, CONFIG.replace(right, other), NIGHT, tmp_path)
    assert [each.name for each in found.unknown] == unknown


def test_a_run_of_run_once_is_played_again_although_no_slot_started_it(make_world: MakeWorld, tmp_path: Path) -> None:
    world = world_after_run_once(make_world, CONFIG, start=f"{NIGHT}:00.400")
    world.scripts.update(ops=lambda call: "[disk] nearly full" if call.at.hour == 0 else "HEARTBEAT_OK", backup=lambda _: 0)
    world.run(hours=3)
    found = replayed(world, CONFIG, NIGHT, tmp_path)
    assert lines(found) == []
    assert found.after.as_data() == found.before.as_data()
    assert (found.before.runs, found.unknown) == (4, [])


def test_with_a_longer_interval_the_other_recorded_runs_are_not_scheduled(make_world: MakeWorld, tmp_path: Path) -> None:
    world = a_day(make_world)
    found = replayed(world, CONFIG.replace("interval: 1h", "interval: 2h"), NIGHT, tmp_path)
    assert {words(each.after) for each in found.changed if each.planned_at.hour % 2} == {"skipped not_scheduled"}
    assert (found.before.calls, found.after.calls) == (25, 13)  # with that of the job
    assert found.unknown == []


def test_only_the_agents_that_are_shown_are_compared(make_world: MakeWorld, tmp_path: Path) -> None:
    """Not a job with the name of one."""
    yaml = CONFIG.replace("  backup:", "  ops:")
    other = yaml.replace("interval: 1h", "interval: 2h").replace("30 3", "30 4")
    found = replayed(a_day(make_world, yaml), other, NIGHT, tmp_path, shown=("ops",))
    assert {(each.kind, words(each.after)) for each in found.changed} == {("heartbeat", "skipped not_scheduled")}
    assert (found.before.runs, found.after.runs, found.unknown) == (24, 12, [])


def test_a_smaller_budget_skips_runs_and_spends_less(make_world: MakeWorld, tmp_path: Path) -> None:
    priced = CONFIG.replace("stagger: 0s", "stagger: 0s, budget: {usd_per_day: 10.0, usd_per_try: 0.1}")
    world = a_day(make_world, priced, ops=lambda call: '{"text": "HEARTBEAT_OK", "cost_usd": 0.05}')
    found = replayed(world, priced.replace("10.0", "0.52"), NIGHT, tmp_path)
    assert found.before.usd == pytest.approx(24 * 0.05)
    assert found.after.usd == pytest.approx(9 * 0.05)
    assert {words(each.after) for each in found.changed} >= {"skipped budget"}


def test_the_costs_of_a_decision_and_of_the_answer_after_it_are_played_again(make_world: MakeWorld, tmp_path: Path) -> None:
    decision = completions.completion(None, calls=[completions.tool("decide", {"action": "run", "tasks": "look"})])
    with Server([reply(decision)]) as server:
        yaml = model_agent(server.url, "{usd_per_day: 1, usd_per_try: 0.05}", decide="{model: big, provider: local}")
        yaml = yaml.replace("{kind: openai, provider: local}, model: big", "{kind: command, argv: [agent]}")
        world = make_world(yaml, start=NIGHT, scripts={"ops": cost_report(0.004)})
        world.run(hours=3)
    found = replayed(world, yaml, NIGHT, tmp_path)
    assert found.after.as_data() == found.before.as_data()
    assert found.before.usd == pytest.approx(found.before.runs * (0.004 + (127 * 2 + 30 * 10) / 1e6))


def test_another_rule_of_problems_sends_other_failures(make_world: MakeWorld, tmp_path: Path) -> None:
    world = a_day(make_world, ops=lambda call: 1 if call.at.hour in (5, 6, 12) else "HEARTBEAT_OK")
    found = replayed(world, CONFIG.replace("stagger: 0s", "stagger: 0s, problems: {after: 3}"), NIGHT, tmp_path)
    assert found.before.failed == found.after.failed == 3
    assert found.before.messages > found.after.messages == 0
    assert [line for line in lines(found) if "05:00" in line] == []  # it was the first failure, of which nobody hears


def test_a_precheck_is_judged_by_its_recorded_output_and_another_command_is_unknown(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    checked = CONFIG.replace("stagger: 0s", "stagger: 0s, precheck: {command: look, unchanged: skip}")
    world = make_world(checked, start=NIGHT)
    world.prechecks["ops"] = lambda call: f"mail {call.at.hour // 4}"
    world.run(hours=24)
    same = replayed(world, checked, NIGHT, tmp_path)
    assert (same.changed, same.unknown) == ([], [])
    always = replayed(world, checked.replace("unchanged: skip", "unchanged: run"), NIGHT, tmp_path / "always")
    assert [each.runs for each in always.unknown] == [same.before.skipped]
    other = replayed(world, checked.replace("command: look", "command: see"), NIGHT, tmp_path / "other")
    assert [each.runs for each in other.unknown] == [24]


def test_a_time_without_any_record_is_replayed_as_nothing(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(CONFIG.replace("deliver: hook, interval: 1h", "enabled: false, interval: 1h"), start=NIGHT)
    world.run(hours=2)
    found = replayed(world, CONFIG, NIGHT, tmp_path)
    assert (found.before.runs, found.unchanged, found.changed) == (0, 0, [])
    assert sum(each.runs for each in found.unknown) > 0


def test_slots_of_closed_hours_before_the_first_run_are_counted_on_both_sides(make_world: MakeWorld, tmp_path: Path) -> None:
    calendar = "calendars: {weekend: {days: sat-sun}}\n"
    jobs = 'cron:\n  backup: {every: 1h, skip_on: weekend, command: x}\n  clean: {schedule: "0 5 * * *", command: x}\n'
    world = make_world(f"timezone: UTC\n{calendar}{jobs}", start="2026-03-07 00:30")
    world.run(hours=5, minutes=15)
    found = replayed(world, world.yaml, "2026-03-07 00:00", tmp_path)
    assert found.after.as_data() == found.before.as_data()
    assert found.before.skipped >= 5
