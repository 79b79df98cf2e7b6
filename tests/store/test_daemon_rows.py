"""What the daemon records of itself and of its agents, with two of everything: boots, clock changes, configs, skips, memories."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from heartbeat_specs import AGENT
from world import add_entry_row, utc

from heartbeat.checklist import Selection
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.prompt import Memory
from heartbeat.result import AttemptResult, SentPrompt
from scheduler.model.config_changes import ConfigEvent
from scheduler.model.entry import Claim, Facts, HeartbeatEntry
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import Kind, Outcome, Skip, Trigger
from scheduler.model.settings import Target
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store import agent_memory, boots, clock_changes, config_history, retention, runs, slot_records
from scheduler.store.boots import Boot
from scheduler.store.clock_changes import ClockChange, ClockSetBack
from scheduler.store.transaction import Transaction

EIGHT = utc("2026-03-02 08:00")
OPS = (Kind.HEARTBEAT, "ops")
HOUR = timedelta(hours=1)


def at(minutes: float) -> datetime:
    return EIGHT + timedelta(minutes=minutes)


def boot(tx: Transaction, instance: str, tzdata: str = "2026a") -> bool:
    tx.owner = instance
    return boots.record_boot(tx, Boot(instance, 1, "1.0", tzdata))


def test_a_boot_differs_by_its_program_or_its_zone_rules_and_a_stop_in_order_is_no_crash(tx: Transaction) -> None:
    differs = []
    for minute, (instance, tzdata, stop) in enumerate(
        (("a", "2026a", 5), ("b", "2026a", None), ("c", "2026b", 25), ("d", "2026b", None))
    ):
        tx.now = at(10 * minute)
        differs.append(boot(tx, instance, tzdata))
        tx.now = at(10 * minute + 3)
        boots.record_last_tick(tx)
        if stop:
            tx.now = at(stop)
            boots.record_clean_end(tx)
    assert differs == [False, False, True, False]
    assert boots.count_crashes(tx.db) == 1
    assert boots.last_crash_seen_at(tx.db) == at(20)
    downs = [(each.since, each.until, each.clean) for each in boots.latest_downtimes(tx.db)]
    assert downs == [(at(25), at(30), True), (at(13), at(20), False), (at(5), at(10), True)]
    assert boots.latest_downtimes(tx.db, 2) == boots.latest_downtimes(tx.db)[:2]


def test_a_freeze_belongs_to_each_time_that_it_reaches(tx: Transaction) -> None:
    for minute, minutes in ((10, 5), (30, 5)):
        tx.now = at(minute)
        boots.record_freeze(tx, timedelta(minutes=minutes), None)
    spans = ((0, 5), (0, 6), (10, 11), (11, 25), (7, 26))
    assert [len(boots.freezes_between(tx.db, at(begin), at(end))) for begin, end in spans] == [0, 1, 1, 0, 2]


Change = tuple[float, float]
"""A change of the clock: what it showed right after, in hours after 08:00, and by how many hours it moved."""


@pytest.mark.parametrize(
    ("changes", "set_back", "returned_to"),
    [
        ([(10, 10), (1, -10)], (10, 0, None), None),
        ([(10, 10), (7, -4)], (4, 0, None), None),
        ([(10, 10), (7, -4), (2, -6)], (6, 0, None), None),
        ([(-5, -5)], (0, 5, None), None),
        ([(-5, -5), (1, 5)], None, 0),
        ([(-5, -5), (-1, 3)], None, None),
        ([(-5, -5), (-6, -2), (1, 8)], None, 0),  # of both set-backs, from the one that began later
        ([(-5, -5), (-7, -3), (-4, 3.5)], None, -4),  # from the second one only
        ([(-5, -5), (-7, -3), (-4, 3.5), (1, 4.5)], None, 0),
        ([(2, 2), (-3, -5)], (0, 5, None), None),  # less than half of it is explained
        ([(2, 2), (-2, -4)], (2, 2, None), None),
        ([(2, 2), (0, -3)], (3, 0, None), None),  # the correction itself may be an hour off
        ([(1, 1), (4, 2), (2, -2.5), (1, -0.5)], (0.5, 0, None), None),
        ([(-3, -3), (0.5, 3), (-2, -3)], (3, 0, 0), None),  # the daemon has run until 08:00 before
        ([(-3, -3), (0.5, 3), (0.25, -0.5)], (0.5, 0, None), None),
    ],
)
def test_a_clock_that_is_set_back_takes_back_what_was_ahead_or_is_wrong_now(
    tx: Transaction, changes: list[Change], set_back: tuple[float, float, float | None] | None, returned_to: float | None
) -> None:
    for hour, by in changes:
        tx.now = EIGHT + hour * HOUR
        clock_changes.record_clock_change(tx, by * HOUR)
    known = clock_changes.read_clock_history(tx.db)
    found, returned = known.set_back, known.returned
    assert (found and _in_hours(found)) == set_back
    assert (returned and (returned.undone_to - EIGHT) / HOUR) == returned_to


def _in_hours(found: ClockSetBack) -> tuple[float, float, float | None]:
    until = found.been_until
    assert found.never_been == max(found.undone_to, until or found.undone_to)
    return found.undone / HOUR, found.beyond / HOUR, None if until is None else (until - EIGHT) / HOUR


def test_a_clock_change_belongs_to_each_time_that_it_reaches_and_is_a_sleep_if_that_explains_it(tx: Transaction) -> None:
    for minute, by in ((30, 20), (40, -20)):
        tx.now = at(minute)
        clock_changes.record_clock_change(tx, timedelta(minutes=by))
    clock_changes.record_clock_change(tx, timedelta(minutes=90), down=True)
    spans = ((0, 10), (0, 11), (30, 31), (31, 40), (55, 61), (61, 70))
    assert [len(clock_changes.clock_changes_between(tx.db, at(a), at(b))) for a, b in spans] == [0, 1, 1, 0, 1, 0]
    tx.now = at(10)
    clock_changes.record_clock_change(tx, timedelta(minutes=-5))
    assert [clock_changes.was_shown_before(tx, at(minute)) for minute in (60, 61)] == [True, False]
    minute, second = timedelta(minutes=1), timedelta(seconds=1)
    cases = ((minute, minute), (minute, 30 * second), (minute, 29 * second), (30 * second, 0 * second), (-minute, minute))
    assert [ClockChange(EIGHT, by, slept).is_sleep for by, slept in cases] == [True, True, False, False, False]


def test_after_a_change_of_the_clock_open_problems_questions_and_timers_have_lasted_as_long_as_before(tx: Transaction) -> None:
    problem = "insert into problem (kind, name, part, key, severity, text, reason, fault, count, since, last_seen_at, openings, over_at)"
    for key, over in (("open", None), ("over", 1)):
        tx.db.execute(f"{problem} values ('cron', 'a', '', ?, 'info', '', '', '', 1, 1000, 1, '[]', ?)", (key, over))
    question = (
        "insert into question (run_id, kind, name, key, fence, text, options, people, asked_by, asked_at, waits_since, ends_at, state)"
        " values (1, 'cron', 'a', ?, 1, '', '[]', '[]', '', 1000, 900, 2000, ?)"
    )
    wake = (
        "insert into wake (kind, name, source, sender, token, text, created_at, updated_at, state, timer, due_at)"
        " values ('heartbeat', 'a', 'reminder', ?, '', '', 1, 1, ?, ?, 3000)"
    )
    for state in ("open", "answered"):
        tx.db.execute(question, (state, state))
    for number, (state, timer) in enumerate((("planned", 1), ("planned", 0), ("waiting", 1))):
        tx.db.execute(wake, (str(number), state, timer))
    clock_changes.move_beginnings(tx, timedelta(milliseconds=500))
    assert [row[0] for row in tx.db.execute("select since from problem order by key")] == [1500, 1000]
    moved = tx.db.execute("select asked_at, waits_since, ends_at from question order by id").fetchall()
    assert [tuple(row) for row in moved] == [(1500, 1400, 2500), (1000, 900, 2000)]
    assert [row[0] for row in tx.db.execute("select due_at from wake order by id")] == [3500, 3000, 3000]


def test_events_of_the_config_are_those_of_a_time_and_an_edited_checklist_is_none_of_its_file(tx: Transaction) -> None:
    for minute, result in enumerate(("started", "applied", "refused", "checklist")):
        tx.now = at(minute)
        config_history.record_config_event(tx, ConfigEvent(result, "command"))
    assert [each.event.result for each in config_history.config_events(tx.db, at(1), at(3))] == ["applied", "refused"]
    last = config_history.last_config_event(tx.db)
    assert last is not None
    assert last.event.result == "refused"


def test_rows_are_kept_as_long_as_they_are_needed(tx: Transaction) -> None:
    old, day = to_millis(EIGHT - 30 * 24 * HOUR), 86_400_000
    now, message = (
        to_millis(EIGHT),
        "insert into outbox (id, key, channel, run_id, kind, name, trigger, slot, part, parts, title, text, state, not_before, created_at, finished_at)",
    )
    states = {1: "pending", 2: "held", 3: "dead", 4: "delivered"}
    for number, state in states.items():
        for place, (run, finished) in enumerate(((5, old - day), (0, old - day), (0, old + day), (0, None))):
            key = 10 * number + place
            values = (key, str(key), run, state, finished)
            tx.db.execute(f"{message} values (?, ?, 'log', ?, 'cron', 'a', 'every', 1, 1, 1, '', '', ?, 1, 1, ?)", values)
    for number, (place, until) in enumerate(((13, 1), (23, 1), (33, 0), (33, 1), (43, 0), (43, now + 1), (43, now - 1), (99, 0))):
        tx.db.execute(
            "insert into digest values ('cron', 'a', 'log', '', ?, ?, ?, 1)", (str(number), 10 * (place // 10) + 3, until)
        )
    for ago in (99, 101):
        day_text = (EIGHT - ago * 24 * HOUR).date().isoformat()
        tx.db.execute(
            "insert into spend (day, kind, name, nanos, tokens, runs, ends_at) values (?, '', '', 1, 1, 1, 1)", (day_text,)
        )
    for ago in (39, 41):
        day_text = (EIGHT - ago * 24 * HOUR).date().isoformat()
        tx.db.execute("insert into budget_share (day, kind, name, nanos, tokens, runs) values (?, '', '', 1, 1, 1)", (day_text,))
    for ended, by in ((old + day, 2 * day), (old - day, -2 * day), (old - day, 2 * day)):
        tx.db.execute("insert into jump (at, by_ms, down, slept_ms) values (?, ?, 0, 0)", (ended, by))
    for _ in range(retention.MAX_CONFIG_EVENTS + 1):
        config_history.record_config_event(tx, ConfigEvent("applied", "command"))
    retention.delete_old_rows(tx, 30 * 24 * HOUR)
    count = lambda table: tx.db.execute(f"select count(*) from {table}").fetchone()[0]  # noqa: E731
    assert sorted(row[0] for row in tx.db.execute("select id from outbox")) == sorted(
        10 * number + place for number in states for place in (0, 2, 3)
    )
    assert [row[0] for row in tx.db.execute("select hash from digest order by hash")] == ["0", "1", "2", "4", "5"]
    assert (count("spend"), count("budget_share"), count("jump")) == (1, 1, 2)
    assert count("config_event") == retention.MAX_CONFIG_EVENTS
    tx.db.execute("update config_event set at = 1")
    retention.delete_old_rows(tx, 30 * 24 * HOUR)
    assert count("config_event") == 1, "the latest is kept, however old it is"


EVERY_TEN_MINUTES = json.dumps({"every": 600, "offset": 0})


def scheduled(tx: Transaction) -> EntryRow:
    """A job with a slot at 08:10, 08:20, and so on."""
    row = add_entry_row(tx, Kind.CRON, "backup")
    return row._replace(schedule_text=EVERY_TEN_MINUTES, anchor=EIGHT)


def skip(tx: Transaction, row: EntryRow, minute: float, count: int = 1, reason: Skip = Skip.PAUSED) -> int | None:
    return slot_records.record_skip(tx, row, Trigger.EVERY, reason, at(minute), count)


def test_skips_of_slots_that_are_still_to_come_are_taken_back_one_by_one(tx: Transaction) -> None:
    row = scheduled(tx)
    tx.now = at(120)
    whole, part = skip(tx, row, 10, 2), skip(tx, row, 30, 3)  # 08:10 and 08:20, and 08:30 to 08:50
    later, last = skip(tx, row, 60, 2, Skip.MISSED), skip(tx, row, 80)
    tried = skip(tx, row, 100)
    tx.db.execute("update run set fence = 1 where id = ?", (tried,))
    clock_changes.record_clock_change(tx, -HOUR)
    assert skip(tx, row, 80) is None, "each slot has one record, also after the clock was set back"
    stretches = slot_records.recorded_stretches(tx, row, row.schedule, at(35), at(75))
    assert stretches == [(at(30), at(50)), (at(60), at(75))]
    assert slot_records.delete_future_skips(tx, row, row.schedule, at(35)) == at(35)
    left = {found["id"]: found["slots"] for found in tx.db.execute("select id, slots from run")}
    assert left == {whole: 2, part: 1, tried: 1}
    assert {later, last}.isdisjoint(left)
    assert slot_records.delete_future_skips(tx, row, row.schedule, at(35)) is None


def test_missed_slots_of_a_suspended_machine_use_up_no_error_budget(tx: Transaction) -> None:
    row = scheduled(tx)
    tx.now = at(60)
    clock_changes.record_clock_change(tx, timedelta(minutes=25))  # from 08:35 on
    tx.now = at(70)
    skip(tx, row, 20, 5, Skip.MISSED)  # 08:20 to 09:00, of which 08:40, 08:50 and 09:00 came then
    skip(tx, row, 70, 1, Skip.BUSY), skip(tx, row, 10, 1, Skip.PAUSED)
    assert tx.db.execute("select bad_slots from entry where id = ?", (row.id,)).fetchone()[0] == 3


def claim(tx: Transaction, minute: float, memory: Memory, name: str = "ops") -> Claim:
    run = runs.open_run(tx, (Kind.HEARTBEAT, name), at(minute), Trigger.INTERVAL)
    assert run is not None
    return Claim(HeartbeatEntry(replace(AGENT, name=name)), run, Facts(memory=memory))


def test_the_items_that_were_in_the_prompt_were_checked_at_its_slot_and_removed_ones_are_forgotten(tx: Transaction) -> None:
    known = {"a": at(-60), "b": at(-60), "gone": at(-60)}
    for name in ("ops", "night"):
        for item, time in known.items():
            tx.db.execute("insert into item values (?, ?, ?)", (name, item, to_millis(time)))
    tx.now = at(7)
    sent = SentPrompt(selection=Selection("", True, frozenset({"a", "new"}), frozenset({"a", "b", "new"})))
    agent_memory.remember_run(tx, claim(tx, 5, Memory(last_checked=known)), AttemptResult(Outcome.OK, prompt=sent))
    items = {(name, item): from_millis(asked) for name, item, asked in tx.db.execute("select * from item")}
    assert {item: time for (name, item), time in items.items() if name == "ops"} == {"a": at(5), "b": at(-60), "new": at(5)}
    assert len(items) == 6


def test_the_last_alerts_of_an_agent_are_kept_each_with_its_prompt(tx: Transaction) -> None:
    for minute in (0, 10, 20):
        for name in ("ops", "night"):
            told = claim(tx, minute, Memory(), name)
            agent = replace(told.entry.spec, session_keep=3)
            agent_memory.remember_run(
                tx, replace(told, entry=HeartbeatEntry(agent)), AttemptResult(Outcome.ALERT, text=f"{name} {minute}")
            )
            tx.db.execute("update run set state = 'closed'")
    assert agent_memory.session_messages(tx, "ops", 3) == (
        ("user", "Heartbeat of 2026-03-02 08:20 UTC."),
        ("assistant", "ops 20"),
    )
    assert agent_memory.session_messages(tx, "ops", 1) == (("assistant", "ops 20"),)


def test_a_later_answer_belongs_to_the_items_and_the_precheck_of_its_own_slot(tx: Transaction) -> None:
    row, later = add_entry_row(tx, *OPS), {}
    for minute in (5, 0):
        asked = claim(tx, minute, Memory(source_state=f"before {minute}"))
        checked = PrecheckResult(PrecheckStatus.WORK, 0, f"output {minute}", digest=f"digest {minute}", state=f"state {minute}")
        sent = SentPrompt(selection=Selection("", True, frozenset({f"item {minute}"}), frozenset({"all", f"item {minute}"})))
        result = AttemptResult(Outcome.ASYNC, prompt=sent, precheck=checked)
        agent_memory.remember_run(tx, asked, result)
        assert runs.close_run(tx, asked, result)
    for minute in (0, 5):
        found, before = agent_memory.restore_pending_items(tx, row, at(minute), AttemptResult(Outcome.OK))
        assert found.precheck is not None
        assert found.prompt.selection is not None
        later[minute] = (
            before,
            found.precheck.output,
            found.precheck.digest,
            found.precheck.state,
            *found.prompt.selection.prompted_items,
        )
    assert later == {m: (f"before {m}", f"output {m}", f"digest {m}", f"state {m}", f"item {m}") for m in (0, 5)}


def test_a_look_at_a_source_is_compared_with_the_newest_one_that_was_compared_with_what_counts(tx: Transaction) -> None:
    row = add_entry_row(tx, *OPS)._replace(source_state="s0")
    seen = {
        name: json.dumps({"source": source, "seen": name}) for name, source in (("s1", "mail"), ("s2", "mail"), ("s3", "other"))
    }
    asked = ((1, seen["s1"], "s0"), (2, seen["s2"], seen["s1"]), (3, seen["s3"], seen["s2"]), (4, seen["s1"], "lost"))
    for number, state, before in asked:
        run = claim(tx, number, Memory()).run
        tx.db.execute(
            "update run set state = 'closed', outcome = 'async', result_due_at = 1, asked = ? where id = ?",
            (json.dumps({"state": state, "before": before}), run.id),
        )
    assert agent_memory.source_state(tx, row, "mail") == seen["s2"]
    tx.db.execute("update run set result_due_at = null where slot = ?", (to_millis(at(1)),))
    assert agent_memory.source_state(tx, row, "mail") == "s0", "what it was compared with does not count any more"
    looking = claim(tx, 9, Memory(source_state=seen["s3"]))
    agent_memory.add_to_awaited_state(tx, looking, "s4")
    states = [json.loads(each[0])["state"] for each in tx.db.execute("select asked from run where asked is not null order by id")]
    assert states == [seen["s1"], seen["s2"], "s4", seen["s1"]]


def test_a_place_that_an_agent_was_written_to_from_again_is_the_latest_and_keeps_its_title(tx: Transaction) -> None:
    for minute, (agent, target, title) in enumerate(
        (("ops", "1", "Ann"), ("ops", "2", "Bob"), ("night", "1", "Eve"), ("ops", "1", None), ("night", "2", None))
    ):
        tx.now = at(-minute)  # the clock may be wrong
        agent_memory.record_target(tx, agent, Target("phone", target), title)
    known = {
        agent: [(each.target, each.title) for each in agent_memory.known_targets(tx.db, agent)] for agent in ("ops", "night")
    }
    assert known == {"ops": [("1", "Ann"), ("2", "Bob")], "night": [("2", ""), ("1", "Eve")]}
