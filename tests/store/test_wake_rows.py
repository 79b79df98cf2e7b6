"""Wakes in the database, with two of everything: agents, senders, tokens, runs and times."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from world import add_entry_row, utc

from scheduler.insight.wake_waits import WakeWait, wait_of_wake
from scheduler.model.entry_row import EntryRow
from scheduler.model.events import WakeMoved
from scheduler.model.outcome import Kind, Trigger
from scheduler.model.timestamps import from_optional_millis, to_millis
from scheduler.model.wake import RejectedBecause, Wake
from scheduler.store import entries, runs, wakes
from scheduler.store.transaction import Transaction

EIGHT = utc("2026-03-02 08:00")
OPS = (Kind.HEARTBEAT, "ops")
BOT = Wake("ops", "api", "bot", "look")
PERSON = Wake("ops", Trigger.MANUAL, "command", "look")
Row = tuple[str, str, int, int, float | None, str | None]


def at(minutes: float) -> datetime:
    return EIGHT + timedelta(minutes=minutes)


def entry_of(tx: Transaction, wake: Wake) -> EntryRow:
    return entries.current_entry(tx, wake.kind, wake.name) or add_entry_row(tx, wake.kind, wake.name)


def keep(tx: Transaction, wake: Wake, minutes: float | None = 0, waits_for: str | None = None, held: float | None = None) -> int:
    """Keep a wake that may start a run so many minutes after 08:00."""
    times = {"due_at": None if minutes is None else at(minutes), "held_until": None if held is None else at(held)}
    return wakes.keep_wake(tx, entry_of(tx, wake), wake, waits_for=waits_for, **times)


def waiting(tx: Transaction, name: str = "ops") -> list[Row]:
    """Sender, text, count, tries, minutes after 08:00 and reason of each waiting wake of an agent."""
    query = "select sender, text, count, tries, due_at, waits_for from wake where state = 'waiting' and name = ? order by id"
    found = []
    for sender, text, count, tries, due, why in tx.db.execute(query, (name,)).fetchall():
        starts = from_optional_millis(due)
        found.append((sender, text, count, tries, starts and (starts - EIGHT) / timedelta(minutes=1), why))
    return found


def results(tx: Transaction) -> list[str]:
    return [f"{each.sender} {each.result}" for each in tx.events if isinstance(each, WakeMoved) and each.final]


def test_only_wakes_of_the_same_entry_source_sender_and_token_merge(tx: Transaction) -> None:
    first = replace(BOT, token="a")
    changes = [{"name": "night"}, {"kind": Kind.CRON}, {"source": "webhook"}, {"sender": "monitor"}, {"token": "b"}]
    different = [first, *(replace(first, **change) for change in changes)]
    ids = [keep(tx, each) for each in different]
    assert len({*ids}) == len(different)
    assert [keep(tx, each) for each in different] == ids
    assert [row[2] for row in waiting(tx) + waiting(tx, "night")] == [2] * len(different)


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ((5, None), (3, None), (3, None)),
        ((3, None), (5, None), (3, None)),
        ((None, None), (3, None), (3, None)),
        ((3, None), (None, None), (3, None)),
        ((5, "wake_gap"), (3, "wake_flood"), (3, "wake_flood")),
        ((3, "wake_gap"), (5, "wake_flood"), (3, "wake_gap")),
        ((3, "wake_gap"), (5, "active_hours"), (5, "active_hours")),
        ((3, None), (None, "paused"), (None, "paused")),
    ],
)
def test_a_merged_wake_starts_no_later_than_the_first_unless_it_was_just_refused(
    tx: Transaction, first: tuple[float | None, str | None], second: tuple[float | None, str | None], merged: tuple[float, str]
) -> None:
    keep(tx, BOT, *first)
    keep(tx, BOT, *second)
    assert [row[4:] for row in waiting(tx)] == [merged]


def test_an_urgent_wake_begins_the_delays_of_its_sender_again_and_one_that_waits_for_a_slot_does_not(tx: Transaction) -> None:
    for urgent, tries in ((False, 1), (True, 0)):
        keep(tx, BOT)
        wakes.take_waiting_wakes(tx, *OPS, 1, None)
        wakes.return_wakes(tx, 1)
        keep(tx, replace(BOT, urgent=urgent), 0 if urgent else None)
        assert [row[3] for row in waiting(tx)] == [tries]


def test_the_wake_that_has_waited_longest_starts_the_run_once_no_more_wakes_are_expected(tx: Transaction) -> None:
    ids = [keep(tx, replace(BOT, sender="lazy"), None), keep(tx, replace(BOT, sender="third"), 3)]
    ids += [keep(tx, replace(BOT, sender="second"), 2), keep(tx, replace(BOT, sender="job"), 0, held=5)]
    assert [each.sender for each in wakes.list_waiting_wakes(tx.db, *OPS, 9)] == ["second", "third", "job", "lazy"]
    assert (wakes.next_start_at(tx, *OPS), wakes.start_of_wake(tx.db, ids[-1])) == (at(2), at(5))
    starting = []
    for minute in (1, 2, 3, 5):
        tx.now = at(minute)
        found = wakes.find_starting_wake(tx, *OPS)
        starting.append(found and found.sender)
    assert starting == [None, "second", "second", "job"]
    taken = wakes.take_waiting_wakes(tx, *OPS, 1, replace(BOT, id=ids[2]))
    assert [each.sender for each in taken if each.started] == ["second"]


@pytest.mark.parametrize(
    ("due", "held", "waits"),
    [(2, None, ("wake_gap", 2)), (2, 1, ("wake_gap", 2)), (2, 5, ("other_jobs", 5)), (0, 5, ("other_jobs", 5))],
)
def test_a_wake_waits_for_other_jobs_if_they_last_longer_than_its_own_wait(
    tx: Transaction, due: float, held: float | None, waits: tuple[str, float]
) -> None:
    number = keep(tx, BOT, due, held=held)
    assert wait_of_wake(tx.db, wakes.find_wake(tx.db, number), tx.now) == WakeWait(waits[0], at(waits[1]))


def test_waiting_and_taken_wakes_of_an_agent_count_for_their_token_and_ended_ones_do_not(tx: Transaction) -> None:
    senders = [replace(BOT, token="a"), replace(BOT, token="a", sender="monitor"), PERSON]
    for wake in senders:
        keep(tx, wake)
    wakes.take_waiting_wakes(tx, *OPS, 1, None)
    wakes.end_delivered_wakes(tx, 1)
    keep(tx, senders[0])
    wakes.take_waiting_wakes(tx, *OPS, 2, None)
    keep(tx, senders[1])
    for name in ("night", "day"):
        keep(tx, replace(BOT, name=name, token="a"))
    keep(tx, replace(BOT, kind=Kind.CRON, token="a"))
    assert wakes.count_wakes_by_token(tx, *OPS) == {"a": 2}
    assert wakes.count_waiting_by_agent(tx.db) == {"day": 1, "night": 1, "ops": 1}


def test_a_wake_without_a_text_adds_nothing_to_the_next_one_and_stays_with_the_run_that_refused_it(tx: Transaction) -> None:
    keep(tx, replace(PERSON, text=""))
    wakes.take_waiting_wakes(tx, *OPS, 1, None)
    wakes.keep_wake(tx, entry_of(tx, PERSON), PERSON, None, waits_for="paused", refused_by=7)
    keep(tx, PERSON)
    assert [each.text for each in wakes.wakes_of_run(tx.db, 7)] == ["look"]
    wakes.return_wakes(tx, 1)
    assert [row[:3] for row in waiting(tx)] == [("command", "look", 3)]


def test_returned_wakes_of_a_person_keep_all_texts_in_order_and_those_of_a_program_the_latest(tx: Transaction) -> None:
    for text in ("first", "second", "third"):
        for wake in (PERSON, BOT):
            keep(tx, replace(wake, text=text), 3 if text == "third" else 0)
        if text != "third":
            wakes.take_waiting_wakes(tx, *OPS, 1, wakes.find_starting_wake(tx, *OPS))
    wakes.return_wakes(tx, 1, at(9), "failed")
    assert waiting(tx) == [("command", "first\n\nsecond\n\nthird", 3, 1, 3, None), ("bot", "third", 3, 1, 3, None)]
    tx.events.clear()
    wakes.take_waiting_wakes(tx, *OPS, 2, None)
    keep(tx, BOT, None)  # waits for a slot, and starts with the returned one now
    wakes.return_wakes(tx, 2, at(9), "failed")
    assert waiting(tx) == [("command", "first\n\nsecond\n\nthird", 3, 2, 9, "failed"), ("bot", "look", 4, 2, 9, None)]


def test_a_delivered_wake_was_deferred_if_a_run_failed_or_refused_it_and_not_by_the_gap(tx: Transaction) -> None:
    keep(tx, replace(BOT, sender="failed"))
    wakes.take_waiting_wakes(tx, *OPS, 1, wakes.find_starting_wake(tx, *OPS))
    wakes.return_wakes(tx, 1, at(0))
    starts = keep(tx, replace(BOT, sender="starts"), 0)
    keep(tx, replace(BOT, sender="gap"), 0, "wake_gap")
    keep(tx, replace(BOT, sender="flood"), 0, "wake_flood")
    wakes.take_waiting_wakes(tx, *OPS, 2, replace(BOT, id=starts))
    wakes.end_delivered_wakes(tx, 2)
    assert results(tx) == ["failed deferred", "starts started", "gap joined", "flood deferred"]


def test_only_wakes_that_are_due_sooner_are_delayed_by_the_gap_and_keep_their_reason(tx: Transaction) -> None:
    for sender, minutes, why in (("a", -1, None), ("b", 1, "budget"), ("c", 9, None), ("d", None, None)):
        keep(tx, replace(BOT, sender=sender), minutes, why)
    wakes.delay_waiting_wakes(tx, *OPS, timedelta())
    assert [row[4:] for row in waiting(tx)] == [(0, None), (1, "budget"), (9, None), (None, None)]
    wakes.delay_waiting_wakes(tx, *OPS, timedelta(minutes=5))
    assert [row[4:] for row in waiting(tx)] == [(5, "wake_gap"), (5, "budget"), (9, None), (None, None)]


def test_a_change_lets_each_delayed_wake_start_sooner_and_none_later(tx: Transaction) -> None:
    for sender, minutes, why in (("lazy", None, None), ("refused", None, "budget"), ("soon", 2, None), ("late", 9, "budget")):
        keep(tx, replace(BOT, sender=sender), minutes, why)
    keep(tx, replace(BOT, name="night"), 9, "paused")
    assert [each.name for each in wakes.entries_with_delayed_wakes(tx, ["budget"])] == ["ops"]
    wakes.start_waiting_wakes(tx, *OPS, at(5), refused_only=True)
    assert [row[4] for row in waiting(tx)] == [None, 5, 2, 9]
    row = entry_of(tx, BOT)._replace(last_woken_at=at(2))
    wakes.start_delayed_wakes_by(tx, row, at(4), timedelta(minutes=5))
    assert [row[4] for row in waiting(tx)] == [None, 5, 2, 7], "after the gap"
    wakes.start_delayed_wakes_by(tx, row, at(8), timedelta(minutes=5))
    wakes.start_waiting_wakes(tx, *OPS, at(6), refused_only=False)
    assert [row[4] for row in waiting(tx)] == [6, 5, 2, 7]
    tx.db.execute("update wake set due_at = null where sender in ('refused', 'soon')")
    keep(tx, replace(BOT, name="night", sender="late"), None, "budget")
    assert [each.name for each in wakes.entries_with_delayed_wakes(tx, ["budget"])] == ["ops", "night"]
    assert waiting(tx, "night")[0][4] == 9


def test_the_waiting_wakes_of_an_entry_end_without_its_reminders_and_without_the_wakes_of_others(tx: Transaction) -> None:
    reminder = replace(BOT, source=Trigger.REMINDER, sender="agent/ops")
    wakes.keep_reminder(tx, reminder, at(60), is_timer=False)
    taken = keep(tx, replace(BOT, sender="taken"))
    wakes.take_waiting_wakes(tx, *OPS, 1, None)
    keep(tx, BOT)
    keep(tx, replace(BOT, kind=Kind.CRON))
    keep(tx, replace(BOT, name="night"))
    ended = wakes.expire_wakes_of_entry(tx, *OPS, RejectedBecause.REMOVED)
    assert [each.sender for each in ended] == ["bot"]
    assert len(wakes.list_reminders(tx.db, "ops")) == 1
    assert wakes.end_waiting_wake(tx, taken, RejectedBecause.CANCELLED) is None
    assert (len(waiting(tx)), len(waiting(tx, "night"))) == (1, 1)


def test_a_wake_expires_so_long_after_its_latest_text_and_a_reminder_never(tx: Transaction) -> None:
    wakes.keep_reminder(tx, replace(BOT, source=Trigger.REMINDER), at(6000), is_timer=False)
    keep(tx, BOT)
    keep(tx, replace(BOT, sender="old"))
    tx.now = at(60)
    keep(tx, BOT)
    tx.now = at(61)
    assert [each.sender for each in wakes.expire_old_wakes(tx, timedelta(hours=1))] == ["old"]


def test_reminders_are_listed_by_their_times_and_limited_for_each_agent(tx: Transaction) -> None:
    texts = [replace(BOT, source=Trigger.REMINDER, text=str(number)) for number in range(21)]
    kept = [wakes.keep_reminder(tx, each, at(90 - number), is_timer=False) for number, each in enumerate(texts)]
    assert (kept[20], len({*kept})) == (None, 21)
    assert wakes.keep_reminder(tx, replace(texts[0], name="night"), at(30), is_timer=False) is not None
    assert [each.text for each in wakes.list_reminders(tx.db, "ops")] == [str(number) for number in range(19, -1, -1)]
    assert wakes.keep_reminder(tx, replace(texts[0], token="b"), at(5), is_timer=False) is None, "of another token"
    assert wakes.next_reminder_at(tx.db) == at(30)
    assert len(wakes.list_reminders(tx.db)) == 21


def test_a_job_wake_in_a_run_or_an_awaited_one_replaces_the_one_that_waits(tx: Transaction) -> None:
    job = replace(BOT, source=Trigger.CRON)
    change = "update run set state = 'closed', outcome = ?, result_due_at = ? where id = ?"
    for minute, sender, outcome, due in ((0, "awaited", "async", to_millis(at(60))), (1, "done", "ok", None)):
        run = runs.open_run(tx, OPS, at(minute), Trigger.CRON)
        assert run is not None
        keep(tx, replace(job, sender=sender))
        wakes.take_waiting_wakes(tx, *OPS, run.id, None)
        wakes.end_delivered_wakes(tx, run.id)
        tx.db.execute(change, (outcome, due, run.id))
    for sender in ("taken", "waits"):
        keep(tx, replace(job, sender=sender))
        if sender == "taken":
            wakes.take_waiting_wakes(tx, *OPS, 9, None)
    for sender in ("taken", "awaited"):
        keep(tx, replace(job, sender=sender))
    keep(tx, replace(job, name="night", sender="other"))
    keep(tx, replace(BOT, sender="api"))
    assert {name: each.is_in_run for name, each in wakes.job_wakes_of(tx.db, "ops").items()} == {
        "awaited": True, "taken": True, "waits": False,
    }  # fmt: skip
    slots = [at(minute) for minute in (0, 1)]
    assert [[each.sender for each in wakes.wakes_of_slot(tx.db, *OPS, slot)] for slot in slots] == [["awaited"], []]


def test_rejected_wakes_of_an_hour_share_a_record_if_agent_source_and_reason_are_the_same(tx: Transaction) -> None:
    disabled, expired = RejectedBecause.DISABLED, RejectedBecause.EXPIRED
    job = replace(BOT, source=Trigger.CRON, sender="backup")
    different = [
        (BOT, disabled),
        (BOT, expired),
        (replace(BOT, name="night"), disabled),
        (replace(BOT, source="webhook"), disabled),
    ]
    different += [(job, disabled), (replace(job, sender="sync"), disabled)]
    for minute in (0, 45, 90):
        tx.now = at(minute)
        for wake, why in different:
            wakes.reject_wake(tx, wake, why)
    wakes.reject_wake(tx, replace(BOT, sender="another", count=3), disabled)
    found = tx.db.execute("select agent, source, sender, why, count from rejected_wake order by id").fetchall()
    rows = [(wake.name, wake.source, wake.sender, why, 2) for wake, why in different]
    later = [(*row[:4], 1) for row in rows]
    assert [tuple(row) for row in found] == [*rows, ("ops", "api", "another", "disabled", 4), *later[1:]]
    between = wakes.rejected_wakes_between(tx.db, at(50), at(91))
    assert [(each.sender, each.count) for each in between if each.agent == "ops" and each.why is disabled] == [
        ("another", 4), ("bot", 1), ("backup", 1), ("sync", 1),
    ]  # fmt: skip
    (whole, *_) = (each for each in wakes.rejected_wakes_between(tx.db, at(45), at(91)) if each.why is expired)
    assert (whole.count, whole.first_at, whole.at) == (3, EIGHT, at(90))
