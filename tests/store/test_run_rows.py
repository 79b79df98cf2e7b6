"""Runs and their questions in the database, with two of everything: entries, attempts, results, messages, accounts and costs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from heartbeat_specs import AGENT
from world import add_entry_row, utc

from heartbeat.result import SentPrompt
from heartbeat.runners import Tokens, ToolCall
from heartbeat.runners.agent_json import MAX_TOOL_CALLS
from scheduler.model.budget import Amount
from scheduler.model.entry import Claim, HeartbeatEntry, OpenRun
from scheduler.model.local_days import LocalDay
from scheduler.model.outcome import AttemptResult, Kind, Outcome, Reason, Skip, Trigger
from scheduler.model.prompt_cache import LOOKS_KEPT, MISSES
from scheduler.model.timestamps import MILLISECOND, from_millis, to_millis
from scheduler.model.wake import Wake
from scheduler.store import asked_questions, cost_history, entries, lane_holds, overviews, recorded_runs, run_history, runs, wakes
from scheduler.store.rows import insert_new
from scheduler.store.run_history import RunFilter
from scheduler.store.transaction import Transaction

EIGHT = utc("2026-03-02 08:00")
OPS, JOB = (Kind.HEARTBEAT, "ops"), (Kind.CRON, "ops")


def at(minutes: float) -> datetime:
    return EIGHT + timedelta(minutes=minutes)


def add(
    tx: Transaction, minute: float = 0, outcome: str | None = "ok", name: str = "ops", kind: str = "heartbeat",
    trigger: str = "interval", state: str = "closed", finished: float | None = None, **more: Any,
) -> int:  # fmt: skip
    """Add a run whose slot is at this minute, and which ended a minute later."""
    ended = at(minute + 1 if finished is None else finished) if state == "closed" else None
    row = {"kind": kind, "name": name, "slot": at(minute), "trigger": trigger, "state": state, "outcome": outcome, "attempt": 1}
    found = insert_new(tx.db, "run", row | {"started_at": at(minute), "finished_at": ended} | more)
    assert found is not None
    return found


def add_message(tx: Transaction, run: int, channel: str, notice: str | None = None, part: int = 1, **more: Any) -> None:
    row = {
        "key": f"{run} {notice} {part}", "channel": channel, "run_id": run, "kind": "heartbeat", "name": "ops", "notice": notice,
        "trigger": "interval", "slot": EIGHT, "part": part, "parts": 1, "title": "", "text": "", "state": "delivered",
        "not_before": EIGHT, "created_at": EIGHT,
    }  # fmt: skip
    insert_new(tx.db, "outbox", row | more)


def open_claim(tx: Transaction, minute: float = 0) -> Claim:
    run = runs.open_run(tx, OPS, at(minute), Trigger.INTERVAL)
    assert run is not None
    return Claim(HeartbeatEntry(AGENT), run)


def next_attempt(tx: Transaction, claim: Claim) -> Claim:
    found = runs.claim_next_attempt(tx, reread(tx, claim.run), None)
    assert found is not None
    return Claim(claim.entry, found)


def reread(tx: Transaction, run: OpenRun) -> OpenRun:
    found = runs.find_open_run(tx.db, *OPS)
    assert found is not None
    assert found.id == run.id
    return found


def column(tx: Transaction, name: str, run: int) -> Any:
    return tx.db.execute(f"select {name} from run where id = ?", (run,)).fetchone()[0]


def test_the_latest_answers_errors_and_outputs_are_those_of_the_same_entry(tx: Transaction) -> None:
    add(tx, 20, "failed", error="late slot"), add(tx, 5, "timeout", error="latest run", text="old")
    add(tx, 6, "ok", error="of a success", text="answer"), add(tx, 30, "failed", name="night", error="other", text="other")
    newest = add(tx, 7, "ok", kind="cron", trigger="every", text="output", finished=9)
    open_run = add(tx, 8, None, state="running", text="not yet")
    assert (runs.last_error(tx.db, *OPS), runs.last_text(tx.db, *OPS)) == ("latest run", "answer")
    output, unfinished = runs.last_output(tx.db, "ops", [Outcome.OK]), runs.output_of_run(tx.db, open_run)
    assert output is not None and (output.run, output.text, output.at) == (newest, "output", at(9))
    assert unfinished is not None and (unfinished.outcome, unfinished.at) == ("running", at(8))
    assert runs.newest_run(tx.db, *OPS) == (open_run, Trigger.INTERVAL, at(8))


def test_only_an_answer_of_a_later_slot_is_newer(tx: Transaction) -> None:
    claim = open_claim(tx, 10)
    tx.db.execute("update run set state = 'closed'")
    add(tx, 10, trigger="manual"), add(tx, 9), add(tx, 11, "failed"), add(tx, 12, name="night"), add(tx, 13, kind="cron")
    add(tx, 14, "alert", state="waiting")  # its answer was cut, and it is tried again
    assert not runs.has_newer_answer(tx.db, claim)
    add(tx, 11, "alert", trigger="manual")
    assert runs.has_newer_answer(tx.db, claim)


def test_runs_that_programs_started_are_counted_without_skips_and_in_their_time(tx: Transaction) -> None:
    for minute, outcome, trigger in ((1, "ok", "api"), (2, "skipped", "cron"), (3, "failed", "webhook"), (4, "ok", "manual")):
        add(tx, minute, outcome, trigger=trigger)
    add(tx, 5, "ok", trigger="reminder"), add(tx, 6, "ok", name="night", trigger="api"), add(tx, 9, "ok", trigger="api")
    found = [runs.nth_last_program_start(tx.db, *OPS, (at(0), at(5)), nth) for nth in (1, 2, 3, 4)]
    assert found == [at(5), at(3), at(1), None]
    assert runs.last_refused_program_start(tx.db, *OPS, (at(0), at(5))) == at(3)


def test_a_run_counts_for_each_account_that_it_has_called(tx: Transaction) -> None:
    first, second = add(tx, 1), add(tx, 2)
    for run, accounts in ((first, {"a"}), (first, {"a", "b"}), (second, {"b"}), (second, {"c"})):
        runs.record_accounts(tx, run, accounts)
    runs.record_accounts(tx, add(tx, 3, "skipped"), {"a"})
    runs.record_accounts(tx, add(tx, 9), {"a"})
    tx.now = at(5)
    within = timedelta(minutes=10)
    assert runs.starts_with_account(tx, "a", within) == [(first, at(1))]
    assert runs.starts_with_account(tx, "b", within) == [(first, at(1)), (second, at(2))]
    assert runs.starts_with_account(tx, "b", timedelta(minutes=4)) == [(second, at(2))]


def test_the_usage_of_a_run_is_that_of_all_its_attempts_by_model(tx: Transaction) -> None:
    claim = open_claim(tx)
    calls = [("big", Tokens(input=5, output=1), 0.5), ("small", Tokens(input=2), 0.1), ("big", Tokens(input=1), 0.25)]
    for attempt in (1, 2):
        assert runs.add_usage(tx, claim, calls, SentPrompt(), 0.25, Amount())
        tx.db.execute("update run set state = 'waiting', outcome = 'failed'")
        claim = next_attempt(tx, claim)
        used = json.loads(column(tx, "model_usage", claim.run.id))
        figures = {model: (each["calls"], each["input"], each["usd"]) for model, each in used.items()}
        assert figures == {"big": (2 * attempt, 6 * attempt, 0.75 * attempt), "small": (attempt, 2 * attempt, 0.1 * attempt)}
        assert column(tx, "cache_saved_usd", claim.run.id) == 0.25 * attempt


@pytest.mark.parametrize(
    ("outcome", "cut_at", "begins"), [("failed", None, 0), ("failed", 3, 5), ("abandoned", None, 5), ("skipped", None, 5)]
)
def test_a_run_begins_with_its_first_attempt_unless_that_was_interrupted_or_did_not_begin(
    tx: Transaction, outcome: str, cut_at: float | None, begins: float
) -> None:
    claim = open_claim(tx)
    change = "update run set state = 'waiting', outcome = ?, cut_at = ?, not_before = 1, worker = 'w'"
    tx.db.execute(change, (outcome, None if cut_at is None else to_millis(at(cut_at))))
    waiting = reread(tx, claim.run)
    tx.now = at(5)
    again = next_attempt(tx, claim).run
    assert (from_millis(column(tx, "started_at", again.id)), again.attempt, again.fence) == (at(begins), 2, 2)
    assert [column(tx, name, again.id) for name in ("cut_at", "not_before", "worker")] == [None] * 3
    tx.db.execute("update run set state = 'waiting'")
    assert runs.claim_next_attempt(tx, waiting, None) is None, "it was claimed by another daemon since"


def test_all_tools_that_we_called_in_earlier_attempts_stay_on_record_the_latest_of_too_many(tx: Transaction) -> None:
    claim, tool = open_claim(tx), ToolCall("disk", arguments="{}")
    for number in range(3):
        called = AttemptResult(Outcome.FAILED, tool_calls=(replace(tool, name=f"ours {number}"), replace(tool, arguments=None)))
        assert runs.keep_run_for_retry(tx, claim, called, at(1))
        claim = next_attempt(tx, claim)
    assert [each["name"] for each in json.loads(column(tx, "tool_calls", claim.run.id))] == ["ours 0", "ours 1", "ours 2"]
    many = tuple(replace(tool, name=str(number)) for number in range(MAX_TOOL_CALLS))
    assert runs.keep_run_for_retry(tx, claim, AttemptResult(Outcome.FAILED, tool_calls=many), at(1))
    kept = json.loads(column(tx, "tool_calls", claim.run.id))
    assert (len(kept), kept[-1]["name"]) == (MAX_TOOL_CALLS, str(MAX_TOOL_CALLS - 1))


def test_what_a_provider_kept_is_known_of_the_last_runs_and_of_the_last_that_asked_for_it(tx: Transaction) -> None:
    usage = json.dumps({"big": {"calls": 2}, "small": {"calls": 1}})
    for minute in range(LOOKS_KEPT + MISSES + 2):
        tokens = json.dumps({"cache_read": minute, "cache_write": 100 + minute})
        asked = {"cache_ttl": "5m"} if minute <= MISSES + 1 else {}
        add(tx, minute, static_digest="x", tokens=tokens, model_usage=usage, **asked)
    add(tx, 50), add(tx, 51, name="night", static_digest="x", tokens=tokens, model_usage=usage, cache_ttl="5m")
    looks, asked_looks = (runs.last_cache_looks(tx.db, OPS, asked=asked) for asked in (False, True))
    assert [each.read for each in looks] == [*range(LOOKS_KEPT + MISSES + 1, MISSES + 1, -1)]
    assert [(each.read, each.written, each.calls) for each in asked_looks] == [
        (number, 100 + number, 3) for number in range(MISSES + 1, 0, -1)
    ]


def test_old_records_are_deleted_by_their_end_with_their_messages_and_questions_unless_something_needs_them(
    tx: Transaction,
) -> None:
    day, hour = 1440, 60
    gone = [add(tx, -3 * day), add(tx, -3 * day, "skipped", trigger="api", finished=-2 * day), add(tx, -3 * day, name="night")]
    gone.append(add(tx, -3 * day + 2, trigger="api"))
    add_message(tx, gone[0], "phone", finished_at=at(-day)), ask(tx, gone[0])
    long = add(tx, -3 * day + 1, finished=-hour)
    needed = [add(tx, minute - 2 * day, trigger="api" if minute == 1 else "interval") for minute in range(1, 8)]
    tx.db.execute("update run set started_at = ? where id = ?", (to_millis(at(-hour)), needed[0]))
    for run, state in zip(needed[1:4], ("pending", "held", "delivered"), strict=True):
        add_message(tx, run, "phone", state=state, finished_at=EIGHT if state == "delivered" else None)
    tx.db.execute(
        "insert into wake (kind, name, source, sender, token, text, created_at, updated_at, state, after_run)"
        " values ('cron', 'next', 'cron', 'ops', '', '', 1, 1, 'taken', ?)",
        (needed[4],),
    )
    tx.db.execute("update run set result_due_at = 1, outcome = 'async' where id = ?", (needed[5],))
    keep = runs.NeededRuns((needed[6],), timedelta(hours=2))
    assert runs.delete_old_runs(tx, timedelta(days=1), 99, keep) == len(gone)
    left = [row[0] for row in tx.db.execute("select id from run order by id")]
    assert left == [long, *needed]
    assert [tx.db.execute(f"select count(*) from {table}").fetchone()[0] for table in ("question", "outbox")] == [0, 3]
    assert runs.delete_surplus_runs(tx, *OPS, 8, 99, keep) == 0
    assert runs.delete_surplus_runs(tx, *OPS, 7, 99, keep) == 1
    assert [row[0] for row in tx.db.execute("select id from run order by id")] == needed


def test_a_run_that_waits_keeps_the_result_of_its_last_attempt_and_says_what_it_waits_for(tx: Transaction) -> None:
    claim = open_claim(tx)
    assert runs.defer_run(tx, claim, Skip.BUSY, at(1), "chat holds it")
    assert runs.retry_waiting_run_now(tx, add_entry_row(tx, *OPS), Skip.BREAKER_OPEN) is False
    waiting = reread(tx, claim.run)
    assert (waiting.outcome, waiting.error, waiting.attempt) == ("skipped", "chat holds it", 0)
    claim = next_attempt(tx, claim)
    assert runs.defer_run(tx, claim, Skip.BREAKER_OPEN, at(2), "no key")
    assert (reread(tx, claim.run).error, reread(tx, claim.run).waits_for) == ("no key", Skip.BREAKER_OPEN)
    tx.db.execute("update run set outcome = 'failed', error = 'exit 1'")
    claim = next_attempt(tx, claim)
    assert runs.defer_run(tx, claim, Skip.BUSY, at(3), "chat holds it")
    assert (reread(tx, claim.run).outcome, reread(tx, claim.run).error) == ("failed", "exit 1")


def test_an_interrupted_run_ended_when_it_was_cut_and_only_a_crash_uses_up_an_attempt(tx: Transaction) -> None:
    claim = open_claim(tx)
    tx.db.execute("update run set outcome = 'skipped'")  # it has waited for its lock
    for crashed, attempt in ((True, 1), (False, 1)):
        claim = claim if crashed else next_attempt(tx, claim)
        runs.record_interruption(tx, claim.run, at(-5))
        assert from_millis(column(tx, "cut_at", claim.run.id)) >= EIGHT, "not before its start"
        runs.requeue_interrupted_run(tx, claim.run, crashed=crashed)
        waiting = reread(tx, claim.run)
        assert (waiting.outcome, waiting.attempt, waiting.crashes) == ("abandoned", attempt, 1)
    runs.mark_run_cancelled(tx, waiting.id)
    assert reread(tx, waiting).reason != Reason.CANCELLED, "it is not in progress"
    runs.record_interruption(tx, waiting, at(2))
    tx.now = at(9)
    runs.close_undeclared_run(tx, *OPS, waiting, AttemptResult(Outcome.ABANDONED))
    assert from_millis(column(tx, "finished_at", waiting.id)) == at(2)


def test_each_awaited_result_has_its_own_time_which_stops_while_a_person_is_asked(tx: Transaction) -> None:
    ids = [add(tx, minute, "async", result_due_at=at(60 + minute)) for minute in (3, 1, 2)]
    job = add(tx, 3, "async", kind="cron", trigger="every", result_due_at=at(68))
    given_up = add(tx, 0, "async")
    add(tx, 0, "failed", trigger="result", reason="no_result"), add(tx, 1, "failed", trigger="result", reason="exit")
    asked = ask(tx, ids[2])
    assert runs.next_overdue_at(tx.db) == at(61)
    assert [each.run_id for each in runs.overdue_results(tx.db, at(63), 9)] == [ids[1], ids[0]]
    assert [bool((each := runs.find_awaited_result(tx.db, run)) and each.given_up) for run in (*ids, given_up)] == [False] * 3 + [
        True
    ]
    tx.now = at(5)
    asked_questions.close_question(tx, asked, answer="yes")
    assert from_millis(column(tx, "result_due_at", ids[2])) == at(67)
    runs.stop_awaiting_result(tx, *OPS, at(3))
    assert [column(tx, "result_due_at", run) is None for run in (*ids, job)] == [True, False, False, False]
    runs.stop_awaiting_result(tx, *OPS, at(1))
    assert runs.next_overdue_at(tx.db) == at(67)


def ask(
    tx: Transaction, run: int, key: str = "a", fence: int = 1, text: str = "Go?", options: tuple[str, ...] = ("yes", "no")
) -> int:
    asked = asked_questions.add_question(tx, run, OPS, key, fence, text, options, (), "command", at(30))
    return asked.id


def test_a_run_has_waited_since_its_first_open_question_until_its_last_one_has_ended(tx: Transaction) -> None:
    run, other = (add(tx, minute, "async", result_due_at=at(60)) for minute in (0, 1))
    numbers = []
    for minute, key in ((0, "a"), (2, "b")):
        tx.now = at(minute)
        numbers.append(ask(tx, run, key))
    ask(tx, other)
    for minute, number, due in ((3, numbers[0], 60), (7, numbers[1], 67)):
        tx.now = at(minute)
        asked_questions.close_question(tx, number, answer="yes")
        assert from_millis(column(tx, "result_due_at", run)) == at(due)
    tx.now = at(10)
    later = asked_questions.find_question(tx.db, ask(tx, run, "c"))
    assert later is not None
    assert later.waits_since == at(10)
    assert [each.run for each in asked_questions.open_questions(tx.db)] == [other, run]


def test_a_further_attempt_asks_the_same_question_again_by_its_key_or_its_text_unless_nobody_has_answered_it(
    tx: Transaction,
) -> None:
    run, other = add(tx, 0), add(tx, 1)
    by_key, by_text = ask(tx, run, "a"), ask(tx, run, "b", text="Which?", options=("x", "y"))
    unanswered = ask(tx, run, "c", text="Nobody?")
    asked_questions.close_question(tx, unanswered, why="time")

    def again(key: str, fence: int, text: str, options: tuple[str, ...], of: int = run) -> int | None:
        found = asked_questions.asked_before(tx, of, key, fence, text, options)
        return found and found.id

    assert again("new", 1, "Which?", ("x", "y")) is None, "the same attempt"
    assert again("new", 2, "Which?", ("x", "y", "z")) is None
    assert again("new", 2, "Nobody?", ("yes", "no")) is None
    assert again("a", 2, "Which?", ("x", "y"), other) is None
    assert again("a", 2, "Which?", ("x", "y")) == by_key
    assert again("new", 2, "Which?", ("x", "y")) == by_text
    assert again("new", 2, "Other?", ("yes", "no")) == by_text, "it has the new key now"


def test_a_question_is_over_when_its_time_is_or_when_nothing_waits_for_it(tx: Transaction) -> None:
    ended, awaited = add(tx, 0), add(tx, 1, "async", result_due_at=at(60))
    waits = add(tx, 2, "failed", state="waiting", fence=2)
    numbers = [ask(tx, run, fence=fence) for run, fence in ((ended, 1), (awaited, 0), (waits, 1))]
    assert [each.id for each in asked_questions.questions_over(tx.db, at(29))] == [numbers[0]]
    assert [each.id for each in asked_questions.questions_over(tx.db, at(30))] == numbers
    assert not asked_questions.waits_for_person(tx.db, waits), "an earlier attempt has asked it"
    ask(tx, waits, "b", fence=2)
    assert asked_questions.waits_for_person(tx.db, waits)


def test_runs_are_listed_by_their_filters_and_page_by_page(tx: Transaction) -> None:
    costs = (0.5, None, 2.0, 0.5, None)
    ids = [add(tx, minute, cost_usd=cost, suppression="heartbeat_ok") for minute, cost in enumerate(costs)]
    failed = add(tx, 9, "failed", reason="exit", suppression="muted")
    running = add(tx, 5, None, state="running", name="night")

    def listed(limit: int = 9, sort: str = "id", after: int | None = None, **wanted: Any) -> list[int]:
        return [each.id for each in run_history.list_runs(tx.db, RunFilter(**wanted), limit, sort, after)]

    assert listed(since=at(1), until=at(3)) == [ids[2], ids[1]]
    assert (listed(result="running"), listed(result="failed"), listed(why="heartbeat_ok")) == ([running], [failed], ids[::-1])
    assert (listed(why="exit"), listed(why="muted"), listed(name="night")) == ([failed], [], [running])
    by_cost = listed(sort="cost", name="ops")
    assert by_cost == [ids[2], ids[3], ids[0], failed, ids[4], ids[1]]
    assert [listed(1, "cost", run, name="ops") for run in by_cost] == [[run] for run in by_cost[1:]] + [[]]


def test_what_became_of_an_answer_is_that_of_its_own_messages_or_of_those_that_it_repeats(tx: Transaction) -> None:
    first, second, third = add(tx, 0, "alert"), add(tx, 1, "alert"), add(tx, 2, "alert")
    (
        add_message(tx, first, "phone"),
        add_message(tx, second, "mail", state="pending"),
        add_message(tx, third, "phone", "opened p1"),
    )
    repeating = {third: json.dumps([first, second]), first: None}
    found = run_history.deliveries_of_runs(tx.db, repeating)
    assert {run: [each.target.channel for each in targets] for run, targets in found.items()} == {
        third: ["phone", "mail"], first: ["phone"],
    }  # fmt: skip
    states = [("heartbeat", "alert", None), ("heartbeat", "ok", None), ("heartbeat", "ok", "heartbeat_ok"), ("cron", "ok", None)]
    words = [run_history.delivery_state(*state, ()).value for state in (*states, ("heartbeat", "failed", "muted"))]
    assert words == ["no_target", "no_target", "none", "none", "muted"]


def test_alerts_without_any_message_are_unaddressed_and_notifications_are_no_messages(tx: Transaction) -> None:
    ids = [add(tx, minute, "alert") for minute in range(3)]
    add_message(tx, ids[0], "phone"), add_message(tx, ids[1], "phone", "opened p1")
    add(tx, 4, "alert", suppression="duplicate"), add(tx, 5), add(tx, 6, "alert", kind="cron", trigger="every")
    for only in (None, OPS):
        assert run_history.unaddressed_alerts(tx.db, at(0), at(9), only) == {OPS: (2, ids[2])}


def test_records_of_several_slots_and_open_runs_count_in_each_time_that_they_reach(tx: Transaction) -> None:
    skipped = {"outcome": "skipped", "trigger": "interval"}
    many = add(tx, 0, reason="paused", slots=5, finished=20, **skipped)
    add(tx, 1, reason="paused", name="night", **skipped), add(tx, 30, reason="busy", slots=2, finished=31, **skipped)
    waiting = add(tx, 5, "failed", state="waiting")
    causes = run_history.count_causes(tx.db, at(10), at(30))
    assert [(each.last_id, each.slots) for each in causes[OPS]] == [(many, 5), (waiting, 1)]
    assert [row["id"] for row in run_history.runs_covering(tx.db, *OPS, at(10), at(30))] == [many]
    add(tx, 32, reason="busy", **skipped), add(tx, 32, "skipped", kind="cron", trigger="every", reason="busy", slots=9)
    assert [*run_history.skipped_since(tx.db, *OPS, 0).items()] == [("paused", 5), ("busy", 3)]
    last = add(tx, 11, "ok", finished=12)
    assert run_history.runs_in_progress_at(tx.db, at(12)) == []
    assert [run for *_, run in run_history.runs_in_progress_at(tx.db, at(11))] == [last]


def test_the_most_expensive_run_has_the_result_with_which_it_is_counted(tx: Transaction) -> None:
    for minute, outcome, cost in ((0, "ok", 0.5), (1, "alert", 0.5), (2, "ok", 0.25), (3, "alert", 0.25)):
        add(tx, minute, outcome, cost_usd=cost)
    add(tx, 4, "ok", trigger="result", cost_usd=0.1), add(tx, 5, "abandoned", reason="cancelled")
    counted = {each.outcome: each for each in run_history.count_runs(tx.db, at(0), at(9))}
    assert {each.value: count.most_expensive_run for each, count in counted.items()} == {"ok": 1, "alert": 2, "abandoned": None}
    assert (counted[Outcome.OK].count, counted[Outcome.OK].runs, counted[Outcome.ABANDONED].failed) == (3, 2, 0)
    add(tx, 6, "alert", suppression="duplicate")
    assert [each.said for each in run_history.count_runs(tx.db, at(0), at(9)) if each.outcome is Outcome.ALERT] in (
        [2, 0],
        [0, 2],
    )


def test_a_run_shows_what_it_is_charged_also_if_that_is_nothing_and_until_when_a_notification_is_delayed(tx: Transaction) -> None:
    run = add(tx, charged_nanos=0, charged_tokens=0)
    add_message(tx, run, "phone", "opened p1", not_before=at(9), hold_note="sent", created_at=at(5))
    add_message(tx, run, "phone", "opened p2", not_before=at(9), awaits='["night"]', state="pending", created_at=at(6))
    found = run_history.get_run(tx.db, run)
    assert found is not None
    assert found.charged is not None
    assert [each.held_back and each.held_back.until for each in found.notices] == [None, at(9)]
    counted = run_history.count_messages(tx.db, at(5), at(6))
    assert [(each.channel, each.state, each.messages) for each in counted] == [("phone", "delivered", 1)]


def test_the_overview_of_an_entry_has_its_own_wakes_delays_and_costs(tx: Transaction) -> None:
    rows = {key: add_entry_row(tx, *key) for key in (JOB, OPS, (Kind.HEARTBEAT, "night"), (Kind.HEARTBEAT, "gone"))}
    for key, change in ((OPS, {"muted_until": at(5)}), ((Kind.HEARTBEAT, "gone"), {"muted_until": at(5), "state": "removed"})):
        entries.change_entry(tx, rows[key], rows[key]._replace(**change))
    wakes.keep_wake(tx, rows[JOB], Wake("ops", "manual", "command", kind=Kind.CRON), at(1))
    for run, kind, awaits in ((1, "heartbeat", '["other"]'), (2, "cron", "[]"), (3, "cron", '["night"]')):
        add_message(tx, run, "phone", "opened p1", kind=kind, awaits=awaits, state="pending")
    found = overviews.entry_overviews(tx.db, None, None)
    assert [(row.kind.value, row.name, each["wakes"], each["failing_awaits"]) for row, each in found] == [
        ("heartbeat", "night", 0, None), ("heartbeat", "ops", 0, None), ("cron", "ops", 1, '["night"]'),
    ]  # fmt: skip
    assert (overviews.muted_entries(tx.db, EIGHT), overviews.muted_entries(tx.db, at(5))) == ({OPS}, set())
    add(tx, -5, "ok", cost_usd=0.5, finished=1, text="x" * 9), add(tx, 2, "ok", trigger="result", cost_usd=0.25, text="yes")
    add(tx, 3, "skipped", reason="budget"), add(tx, 5, "skipped", reason="budget"), add(tx, 6, "ok", kind="cron", cost_usd=9.0)
    cost = overviews.cost_since(tx.db, "ops", EIGHT)
    assert (cost.cost_usd, cost.runs, overviews.last_skips(tx.db, Skip.BUDGET)) == (0.75, 1, {OPS: at(6)})
    answers = [overviews.latest_answer(tx.db, "ops", length) for length in (2, 3)]
    assert [each and (each.text, each.is_cut) for each in answers] == [("ye", True), ("yes", False)]


def test_each_former_state_of_an_entry_is_kept_with_its_end(tx: Transaction) -> None:
    row = add_entry_row(tx, *OPS)
    for minute, change in (
        (1, {"anchor": at(9)}),
        (2, {"schedule_text": '{"every":60}'}),
        (3, {"failures": 1}),
        (4, {"state": "disabled"}),
    ):
        tx.now = at(minute)
        changed = row._replace(**change)
        entries.change_entry(tx, row, changed)
        row = changed
    found = [(each.until, each.state, each.anchor) for each in entries.past_states(tx.db, *OPS)]
    assert found == [(at(1), "active", EIGHT), (at(2), "active", at(9)), (at(4), "active", at(9))]
    assert [each.until for each in entries.past_states_since(tx.db, at(2))[OPS]] == [at(2), at(4)]


def test_only_active_entries_without_any_next_time_are_unplanned_and_expected_ones_are_those_after_a_time(
    tx: Transaction,
) -> None:
    for name, change in (
        ("none", {}), ("due", {"due_at": at(1)}), ("slot", {"slot": at(1)}), ("paused", {"paused_until": at(1)}),
        ("off", {"state": "disabled"}), ("later", {"settled_until": at(1), "expected_at": at(1)}), ("now", {"expected_at": at(0)}),
    ):  # fmt: skip
        row = add_entry_row(tx, Kind.HEARTBEAT, name)
        entries.change_entry(tx, row, row._replace(**change))
    assert [row.name for row in entries.unplanned_entries(tx.db, 0, 99, at(0))] == ["none", "now"]
    assert [row.name for row in entries.entries_expected_between(tx, at(0), at(1))] == ["later"]
    times = [
        ("a", "2026-12-24T18:00:00", "UTC"),
        ("a", "2026-12-24T18:00:00", "Europe/Berlin"),
        ("b", "2026-12-24T18:00:00", "UTC"),
    ]
    seen = [entries.record_one_time_job(tx, name, json.dumps({"at": moment, "zone": zone})) for name, moment, zone in times * 2]
    assert seen == [True] * 3 + [False] * 3


def test_a_late_result_stands_for_its_own_slot(tx: Transaction) -> None:
    for minute in (0, 1, 2):
        add(tx, minute, "async")
    late = [add(tx, minute, outcome, trigger="result") for minute, outcome in ((1, "alert"), (0, "ok"))]
    shown = [(row["id"], row["outcome"]) for row in overviews.latest_slots(tx.db, "ops", 3)]
    assert shown == [(3, "async"), (late[0], "alert"), (late[1], "ok")]


def test_the_log_of_an_entry_has_no_events_of_the_other_kind_with_its_name(tx: Transaction) -> None:
    add(tx, 0), add(tx, 1, kind="cron", trigger="every"), add(tx, 2, name="night")
    assert [(each.id, each.kind) for each in overviews.list_activity(tx.db, JOB, at(0), 9)] == [(2, "cron")]
    assert len(overviews.list_activity(tx.db, None, at(0), 9)) == 3
    problem = "insert into problem (kind, name, part, key, severity, text, reason, fault, count, since, last_seen_at, openings, opened_at, over_at)"
    for key, opened in (("opened", 1), ("only seen", None)):
        values = (key, opened, to_millis(at(5)))
        tx.db.execute(f"{problem} values ('cron', 'ops', '', ?, 'info', '', '', '', 1, 1, 1, '[]', ?, ?)", values)
    events = overviews.list_activity(tx.db, JOB, at(0), 9)
    assert [(each.event, each.result, each.detail) for each in events[1:]] == [("problem", "over", "opened")]


def test_costs_of_a_time_end_before_its_end_and_name_the_sender_who_started_the_run(tx: Transaction) -> None:
    first = add(tx, 0, "alert", trigger="api", cost_usd=1.0, tokens='{"input": 1}', finished=15)
    add(tx, 1, "alert", suppression="duplicate", finished=16), add(tx, 2, "abandoned", reason="cancelled", finished=30)
    for sender, started in (("joined", 0), ("starter", 1)):
        tx.db.execute(
            "insert into wake (kind, name, source, sender, token, text, created_at, updated_at, state, started, run_id)"
            " values ('heartbeat', 'ops', 'api', ?, '', '', 1, 1, 'ended', ?, ?)",
            (sender, started, first),
        )
    quarters = cost_history.count_by_quarter(tx.db, at(15), at(30))
    assert [(each.begins, each.runs, each.alerts, each.failed) for each in quarters] == [(at(15), 2, 1, 0)]
    assert [(each.sender, each.runs) for each in cost_history.cost_by_cause(tx.db, at(15), at(16))] == [("starter", 1)]
    assert [each.failed for each in cost_history.count_by_quarter(tx.db, at(30), at(31))] == [0]


def test_a_time_begins_with_its_first_instant_and_ends_before_its_last(tx: Transaction) -> None:
    for finished in (timedelta(minutes=15) - MILLISECOND, timedelta(minutes=15), timedelta(minutes=30)):
        add(tx, finished / timedelta(minutes=1) - 9, finished=finished / timedelta(minutes=1), cost_usd=1.0)
    quarters = cost_history.count_by_quarter(tx.db, at(0), at(30))
    assert [(each.begins, each.runs) for each in quarters] == [(at(0), 1), (at(15), 1)]
    spent = cost_history.spend_of_day(tx.db, LocalDay(EIGHT.date(), at(15), at(30)), ZoneInfo("UTC"))
    assert (spent.runs, spent.cost_usd) == (1, 1.0)
    tx.now = at(5)
    for name in ("older", "new"):
        add_entry_row(tx, Kind.HEARTBEAT, name)
        add(tx, 10, name=name)
        tx.now = at(10)
    found = [cost_history.entries_with_deleted_records(tx.db, at(minute)) for minute in (5, 10, 11)]
    assert found == [[], [(Kind.HEARTBEAT, "older")], []]


def test_the_use_of_a_cache_is_that_of_the_last_prompt_and_of_all_since_a_time(tx: Transaction) -> None:
    for minute, ttl, saved in ((0, "1h", 4.0), (1, "1h", 2.0), (2, "5m", 1.0)):
        add(tx, minute, static_digest="x", cache_ttl=ttl, cache_saved_usd=saved)
    add(tx, 3, cache_ttl=None), add(tx, 4, name="night", static_digest="x", cache_ttl="1h")
    assert cost_history.cache_use(tx.db, OPS, at(1)) == cost_history.CacheUse("5m", 3.0, 2)


def test_wakes_are_played_again_when_they_came_and_reminders_when_their_time_had_come(tx: Transaction) -> None:
    wake = (
        "insert into wake (kind, name, source, sender, token, text, created_at, updated_at, due_at, state)"
        " values ('heartbeat', 'ops', ?, ?, '', '', ?, ?, ?, ?)"
    )
    for source, sender, created, due, state in (
        ("api", "a", 5, 9, "ended"), ("reminder", "b", 1, 7, "ended"), ("reminder", "c", 2, 8, "planned"), ("cron", "d", 3, 3, "ended"),
        ("manual", "e", -1, None, "ended"),
    ):  # fmt: skip
        tx.db.execute(
            wake, (source, sender, *(to_millis(at(each)) for each in (created, created)), due and to_millis(at(due)), state)
        )
    assert [(each.sender, each.at) for each in recorded_runs.read_wakes(tx.db, EIGHT)] == [("a", at(5)), ("b", at(7))]
    add(tx, 0, finished=3, model_usage=json.dumps({"a": {"calls": 2}, "b": {"calls": 1}}))
    (
        add(tx, 10, "skipped", reason="busy", finished=13, started_at=None),
        add(tx, 20, finished=19),
        add(tx, 30, finished=-1, name="old"),
    )
    found = [(each.took / timedelta(minutes=1), each.calls) for each in recorded_runs.read_runs(tx.db, EIGHT)]
    assert found == [(3, 3), (0, 0), (0, 1)]


def test_a_model_that_costs_nothing_has_a_price_and_one_whose_cost_is_not_known_has_none(tx: Transaction) -> None:
    used = {"calls": 2, "input": 3, "output": 4, "cache_read": 5, "cache_write": 6}
    models = {"free": used | {"usd": 0.0}, "unknown": used | {"usd": None}}
    add(tx, 0, tokens="{}", model_usage=json.dumps(models)), add(tx, 1, tokens="{}", model_usage=json.dumps(models))
    add(tx, 2, tokens=json.dumps(used), model_requested="old", model_used="other", cost_usd=0.5), add(tx, 9, tokens="{}")
    found = {each.model: each for each in cost_history.usage_by_model(tx.db, at(0), at(4))}
    assert {model: (each.runs, each.calls, each.unpriced, each.cost_usd) for model, each in found.items()} == {
        "free": (2, 4, 0, 0.0), "unknown": (2, 4, 2, None), "old": (1, 1, 0, 0.5),
    }  # fmt: skip
    assert (found["old"].tokens_in, found["free"].tokens_in, found["free"].cache_write) == (14, 28, 12)


def test_the_messages_about_a_run_are_counted_by_channel_without_their_further_parts(tx: Transaction) -> None:
    for channel in ("phone", "mail"):
        add_message(tx, 1, channel), add_message(tx, 1, channel, part=2)
    add_message(tx, 1, "phone", "opened p1"), add_message(tx, 2, "phone")
    assert recorded_runs.read_messages(tx.db, EIGHT) == {1: 3, 2: 1}


def test_those_who_have_waited_longest_come_first_if_more_entries_are_due_than_there_are_places(tx: Transaction) -> None:
    for name, due, slot, ended in (("a", -3, -5, -1), ("b", -2, -9, -8), ("c", -1, -6, -7), ("future", -4, 90, -6)):
        row = add_entry_row(tx, Kind.HEARTBEAT, name)
        times = {"due_at": at(due), "last_slot": at(slot), "last_ended_at": at(ended), "settled_until": at(-9)}
        entries.change_entry(tx, row, row._replace(**times))
    assert [runs.any_open_or_due(tx, Kind.HEARTBEAT, [each]) for each in ("a", "ops")] == [True, False]
    tx.now = at(-3)
    assert runs.any_open_or_due(tx, Kind.HEARTBEAT, ["ops", "a"])
    assert not runs.any_open_or_due(tx, Kind.CRON, ["a"])
    due_now = lambda places: [row.name for row, _ in entries.due_entries(tx.db, EIGHT, places, 9)]  # noqa: E731
    assert (due_now(4), due_now(3)) == (["future", "a", "b", "c"], ["b", "c", "future"])


def test_each_holder_of_a_lock_counts_once_and_the_last_one_is_named(tx: Transaction) -> None:
    for name, holder, minutes in (("ops", "a", 5), ("ops", "b", 9), ("ops", "c", 7), ("night", "a", 99)):
        assert lane_holds.save_hold(tx, name, holder, at(minutes))
    found = lane_holds.describe_holder(tx.db, "ops", None, EIGHT)
    assert found == "b holds it over HTTP until 2026-03-02 08:09:00 UTC, and 2 others for a shorter time"
    for number in range(lane_holds.MAX_HOLDS_PER_AGENT):
        assert lane_holds.save_hold(tx, "day", str(number), at(5))
    assert [lane_holds.save_hold(tx, "day", holder, at(9)) for holder in ("7", "another")] == [True, False]
    lane_holds.delete_hold(tx, "ops", "b")
    assert [each.id for each in lane_holds.holds_by_agent(tx.db, at(5))["ops"]] == ["c"]
