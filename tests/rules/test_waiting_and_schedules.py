"""Small rules of wakes, queues, schedules and entries, with two of everything."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from heartbeat_specs import AGENT
from test_cron_job import JOB
from world import utc

from cron.job import After, follow_chain
from heartbeat.findings import Severity
from scheduler.engine.clock_adjustment import ClockReading
from scheduler.engine.runs_in_progress import MAX_NOTED_RUNS, HeldPlaces
from scheduler.model import entry_schedule
from scheduler.model.daemon_health import EngineHealth, QueueState, WaitingRuns, WorkerState
from scheduler.model.entry import Claim, HeartbeatEntry, OpenRun
from scheduler.model.entry_row import UNTIL_RESUMED, EntryRow
from scheduler.model.outcome import Kind, Trigger
from scheduler.model.problem import Acknowledgement, Problem, ProblemNotice, State, Subject, Symptom, Told
from scheduler.model.settings import Target
from scheduler.model.wake import TEXT_LIMIT, Wake, clip_wake_text, interleave_senders

EIGHT = utc("2026-03-02 08:00")
MINUTE = timedelta(minutes=1)


def test_people_come_first_and_then_each_token_or_job_in_turn() -> None:
    person, other = Wake("ops", Trigger.MANUAL, "command"), Wake("ops", Trigger.MANUAL, "anna")
    job, reminder = Wake("ops", "cron", "backup"), Wake("ops", Trigger.REMINDER, "agent/ops")
    first, second, third = (Wake("ops", "api", sender, token="a") for sender in ("x", "y", "z"))
    modest = Wake("ops", "api", "x", token="b")
    wakes = (
        first,
        second,
        third,
        job,
        replace(job, text="again"),
        modest,
        person,
        replace(person, text="again"),
        other,
        reminder,
    )
    ordered = [
        person,
        other,
        replace(person, text="again"),
        first,
        job,
        modest,
        reminder,
        second,
        replace(job, text="again"),
        third,
    ]
    assert interleave_senders(wakes) == tuple(ordered)


@pytest.mark.parametrize(
    ("text", "kept"), [("x" * TEXT_LIMIT, True), ("x" * (TEXT_LIMIT + 1), False), ("é" * (TEXT_LIMIT // 2 + 1), False)]
)
def test_a_text_is_cut_by_its_bytes_with_its_note(text: str, kept: bool) -> None:
    clipped = clip_wake_text(text)
    assert (clipped == text) is kept
    assert TEXT_LIMIT - 1 <= len(clipped.encode()) <= TEXT_LIMIT
    assert kept or clipped.endswith(f"(cut: {len(text.encode())} bytes were sent)")


def test_a_queue_is_served_by_a_worker_that_takes_its_runs() -> None:
    one, two = WorkerState("one", ("default", "gpu")), WorkerState("two", ("default",))
    state = QueueState(
        workers=(one, two), needed=frozenset({"default", "gpu"}), waiting={"a": WaitingRuns(1, 3.0), "b": WaitingRuns(2, 9.0)}
    )
    assert (state.unserved, state.longest_wait, state.why_runs_wait) == ([], 9.0, None)
    draining = replace(state, workers=(replace(one, is_draining=True), two))
    assert (draining.unserved, draining.workers_of("default")) == (["gpu"], [two])
    assert draining.why_runs_wait == "no worker serves the queue gpu; start `heartbeatd worker --queue gpu`"
    more = replace(draining, needed=frozenset({"default", "gpu", "big"}))
    assert more.why_runs_wait == "no worker serves the queue big; start `heartbeatd worker --queue big,gpu`"
    nobody = replace(state, workers=(replace(one, is_draining=True), replace(two, is_draining=True)))
    assert (
        nobody.why_runs_wait
        == "no worker takes runs; start `heartbeatd worker --queue default,gpu` on a machine with this config"
    )
    plain = replace(nobody, needed=frozenset({"default"}))
    assert plain.why_runs_wait == "no worker takes runs; start `heartbeatd worker` on a machine with this config"
    assert [EngineHealth(queue=each).why_not_working for each in (nobody, replace(nobody, problem="down"))] == [
        None, "the queue of the workers cannot be used: down",
    ]  # fmt: skip


def text_of(**parts: object) -> str:
    return json.dumps(parts)


def test_each_failure_doubles_the_interval_up_to_eight_times_and_only_of_a_schedule_that_backs_off() -> None:
    text = text_of(interval=60, stagger=0, hours=[], backoff=True)
    pauses = [entry_schedule.backoff_pause(text, failures) for failures in (1, 2, 3, 4, 50)]
    assert pauses == [2 * MINUTE, 4 * MINUTE, 8 * MINUTE, 8 * MINUTE, 8 * MINUTE]
    assert entry_schedule.backoff_pause(text_of(every=60, offset=0), 1) is None
    row = EntryRow(1, Kind.HEARTBEAT, "ops", "active", text, EIGHT, EIGHT, EIGHT, None, None)
    failing = row._replace(last_slot=EIGHT, failures_for_backoff=2)
    assert [each.next_slot_after(EIGHT + MINUTE / 2) for each in (row, failing)] == [EIGHT + MINUTE, EIGHT + 4 * MINUTE]
    assert failing.next_slot_after(EIGHT + 9 * MINUTE / 2) == EIGHT + 5 * MINUTE
    assert failing._replace(last_slot=EIGHT + MINUTE).next_slot_after(EIGHT) == EIGHT + MINUTE, (
        "from before the clock was set back"
    )


def test_a_paused_entry_that_is_disabled_is_disabled_and_a_pause_has_an_end_or_none() -> None:
    row = EntryRow(1, Kind.HEARTBEAT, "ops", "active", "{}", EIGHT, EIGHT, EIGHT, EIGHT, None)
    paused = row._replace(paused_until=EIGHT, paused_by="command")
    before = EIGHT - MINUTE
    assert [each.state_at(before) for each in (row, paused, paused._replace(state="disabled"))] == [
        "active",
        "paused",
        "disabled",
    ]
    assert paused.state_at(EIGHT) == "active"
    assert [paused._replace(paused_until=until).pause_ends for until in (EIGHT, UNTIL_RESUMED)] == [EIGHT, None]
    assert (paused.pause_says, paused._replace(paused_after_failures=2, paused_by="2 failures").pause_says) == (
        "paused by command", "paused after 2 failures",
    )  # fmt: skip
    assert [each.runs_when_first_seen for each in (row, row._replace(last_slot=EIGHT))] == [True, False]


def test_an_entry_that_runs_once_is_done_when_its_slot_is_settled() -> None:
    text = text_of(at="2026-03-02T09:00:00", zone="Europe/Berlin", offset=0)
    for state, settled, is_open, done in (
        ("active", EIGHT, False, EIGHT), ("active", EIGHT - MINUTE, False, None), ("active", EIGHT, True, None), ("paused", EIGHT, False, None),
    ):  # fmt: skip
        assert entry_schedule.done_at(state, text, settled, is_open=is_open) == done


def test_a_schedule_has_a_zone_if_all_its_hours_have_the_same() -> None:
    hours = [[0, 60, [0], "Europe/Berlin"], [60, 90, [1], "Europe/Berlin"], [60, 90, [1], "UTC"]]
    zones = [entry_schedule.schedule_zone(text_of(interval=60, stagger=0, hours=hours[:count])) for count in (0, 2, 3)]
    assert [zone and zone.key for zone in zones] == [None, "Europe/Berlin", None]
    own = entry_schedule.schedule_zone(text_of(schedule="0 9 * * *", zone="UTC", offset=0, hours=hours[:1]))
    assert own is not None
    assert own.key == "UTC"
    text = text_of(interval=60, stagger=0, hours=hours[:1], days="UTC skip:sat")
    less = [json.loads(each) for each in entry_schedule.less_restricted(text)]
    assert [("days" in each, len(each["hours"])) for each in less] == [(False, 1), (False, 0)]


def test_a_job_follows_its_predecessors_back_to_the_first_or_around_in_a_circle() -> None:
    follow = {"a": None, "b": "a", "c": "b", "x": "y", "y": "z", "z": "y"}
    jobs = {name: replace(JOB, name=name, after=before and After(before, "any")) for name, before in follow.items()}
    assert {name: follow_chain(jobs, name) for name in jobs} == {
        "a": (["a"], False), "b": (["a"], False), "c": (["b", "a"], False),
        "x": (["y", "z"], True), "y": (["z", "y"], True), "z": (["y", "z"], True),
    }  # fmt: skip
    follows = {on: [After("a", on).follows(succeeded) for succeeded in (True, False)] for on in ("success", "failure", "any")}
    assert follows == {"success": [True, False], "failure": [False, True], "any": [True, True]}


WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL
DISK = Problem(Subject.of_reports("ops"), Symptom("disk", WARNING, "92 %", "", ""), EIGHT, EIGHT, opened_at=EIGHT)


def test_a_recipient_knows_a_problem_by_its_last_message_unless_that_was_lost() -> None:
    known = ProblemNotice(Told.OPEN, CRITICAL, EIGHT, severity_before=WARNING)
    lost = replace(known, is_lost=True)
    end, lost_end = replace(known, kind=Told.OVER), replace(known, kind=Told.LOST_END)
    arrived = [each.arrived for each in (known, lost)]
    assert arrived == [CRITICAL, WARNING]
    assert [each.is_settled for each in (known, end, lost_end, replace(lost_end, is_lost=True))] == [False, True, True, False]
    phone, mail = Target("phone"), Target("mail")
    notices = [{phone: each} for each in (known, lost, end)]
    assert [replace(DISK, notices=each).is_known_to(phone) for each in notices] == [True, False, False]
    over = replace(DISK, over_at=EIGHT)
    assert [replace(over, notices={phone: end, mail: each}).is_settled for each in (end, known)] == [True, False]
    assert [replace(over, last_seen_at=EIGHT + each).is_mentioned_since for each in (0 * MINUTE, MINUTE)] == [False, True]


def test_a_problem_is_acknowledged_until_it_is_worse_and_unstable_within_a_day() -> None:
    day = timedelta(days=1)
    acknowledged = replace(DISK, acknowledgement=Acknowledgement(EIGHT, WARNING, "command"))
    worse = replace(acknowledged, found=replace(DISK.found, severity=CRITICAL))
    assert [each.state(EIGHT) for each in (acknowledged, worse)] == [State.ACKNOWLEDGED, State.OPEN]
    often = replace(DISK, openings=(EIGHT - day, EIGHT - MINUTE, EIGHT))
    assert [often.is_unstable(EIGHT - each) for each in (0 * MINUTE, MINUTE)] == [False, True]


def test_the_prompt_has_when_the_latest_message_about_an_open_problem_arrived() -> None:
    sent = {
        Target(channel): ProblemNotice(kind, WARNING, EIGHT, delivered_at=at)
        for channel, kind, at in (
            ("a", Told.OPEN, EIGHT),
            ("b", Told.UNSTABLE, EIGHT + MINUTE),
            ("c", Told.OVER, EIGHT + 9 * MINUTE),
            ("d", Told.OPEN, None),
        )
    }
    assert replace(DISK, notices=sent).for_prompt.reported_at == EIGHT + MINUTE


def test_a_run_that_held_its_place_for_long_is_named_after_any_number_of_short_ones() -> None:
    places = HeldPlaces()
    entry = HeartbeatEntry(AGENT)
    for second in range(2 * MAX_NOTED_RUNS):
        run = 7 if second < 100 else second
        claim = Claim(entry, OpenRun(run, "running", EIGHT, Trigger.INTERVAL, 1, 0, 1, "me", EIGHT))
        places.note({run: claim}, ClockReading(EIGHT, float(second)), full=True)
    assert places.describe() == "limits.concurrency (1) was reached by agent/ops (run 7)"
