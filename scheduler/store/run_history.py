"""Reads past runs: lists and single runs as plain data, and counts of outcomes, costs and messages."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from heartbeatd.answers import (
    ChargedAmounts,
    HeldNotice,
    ModelUsage,
    PrecheckRecord,
    PromptPartSize,
    RunDelivery,
    RunFinding,
    RunNotice,
    RunRecord,
    RunWithWakes,
    TokenCounts,
    ToolCallRecord,
)
from scheduler.model.budget import NANO
from scheduler.model.outcome import ANSWERED, FAILURES, DeliveryState, Key, Kind, Outcome, Reason, Skip, Suppression, Trigger
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store import asked_questions, outbox, wakes
from scheduler.store.outbox import TargetDelivery
from scheduler.store.rows import read_part, read_row

WHY = "coalesce(reason, suppression)"  # of a run record, as `AttemptResult.why`
RECORDS = f"select *, {WHY} as why, slot as planned_at, slots as planned_runs, attempt as tries from run"  # noqa: S608 (a literal of this file)

PROMPT_PARTS = {"contract": "instructions", "last_beat": "last run"}  # their names in answers, where these differ

ORDERS = {"id": "id desc", "cost": "cost_usd desc nulls last, id desc"}


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; None matches any. Slots lie in [since, until). The result of an open run is its state."""

    kind: Kind | None = None
    name: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    result: str | None = None
    why: str | None = None


ALL_RUNS = RunFilter()


def list_runs(
    db: sqlite3.Connection, wanted: RunFilter = ALL_RUNS, limit: int = 20, sort: str = "id", after: int | None = None
) -> list[RunRecord]:
    """At most `limit` run records, the newest first, or by descending cost if `sort` is `cost`.

    Only those that come after the run `after` in this order. Raises LookupError if the order needs that run and it is gone.
    """
    filters = {
        "kind = ?": wanted.kind,
        "name = ?": wanted.name,
        "slot >= ?": wanted.since and to_millis(wanted.since),
        "slot < ?": wanted.until and to_millis(wanted.until),
        "case state when 'closed' then outcome else state end = ?": wanted.result,
        f"{WHY} = ?": wanted.why,
    }
    used = {text: value for text, value in filters.items() if value is not None}
    place, values = _place_after(db, sort, after) if after is not None else ("true", ())
    where = " and ".join((*used, place))
    query = f"{RECORDS} where {where} order by {ORDERS[sort]} limit ?"
    return [read_run(db, row) for row in db.execute(query, (*used.values(), *values, limit))]


def _place_after(db: sqlite3.Connection, sort: str, after: int) -> tuple[str, tuple[float | int, ...]]:
    """The condition for the runs that come after the run `after`, and its values."""
    if sort == "id":
        return "id < ?", (after,)
    row = db.execute("select cost_usd from run where id = ?", (after,)).fetchone()
    if row is None:
        raise LookupError(f"run {after}")
    if row["cost_usd"] is None:
        return "(cost_usd is null and id < ?)", (after,)
    return "(cost_usd < ? or cost_usd = ? and id < ? or cost_usd is null)", (row["cost_usd"], row["cost_usd"], after)


def runs_covering(db: sqlite3.Connection, kind: Kind, name: str, begin: datetime, end: datetime) -> list[sqlite3.Row]:
    """The rows of an entry's slots in [begin, end), the oldest first, and earlier rows that may reach into that time."""
    query = f"{RECORDS} where kind = ? and name = ? and slot < ? and (slot >= ? or (slots > 1 and finished_at >= ?)) order by id"
    return db.execute(query, (kind, name, to_millis(end), to_millis(begin), to_millis(begin))).fetchall()


# Both parts find their rows by an index. A record of several slots may begin before the period.
CAUSES = f"""
select kind, name, 'closed', outcome, {WHY} as why, trigger, count(*) as runs, sum(slots) as slots, max(id) as last_id,
  min(slot) as first_slot, max(slot) as last_slot
from run where state = 'closed' and finished_at >= :begin and slot < :end and (slot >= :begin or slots > 1)
group by kind, name, outcome, why, trigger
union all
select kind, name, state, outcome, {WHY}, trigger, 1, slots, id, slot, slot
from run where state in ('running', 'waiting') and slot < :end
"""  # noqa: S608 (literals of this file)

# An agent had an alert, and there is no message: no target was configured or known.
UNADDRESSED = """
select kind, name, count(*) as runs, max(id) as last_id
from run where state = 'closed' and finished_at >= :begin and slot >= :begin and slot < :end and kind = 'heartbeat'
  and outcome = 'alert' and suppression is null and not exists (select 1 from outbox where run_id = run.id and notice is null)
group by kind, name
"""

# Of one entry, found by the index on its runs.
CAUSES_OF_ENTRY, UNADDRESSED_OF_ENTRY = (
    query.replace("from run where", "from run where kind = :kind and name = :name and") for query in (CAUSES, UNADDRESSED)
)


@dataclass(frozen=True, slots=True)
class CauseCount:
    """Run records of one entry with equal state, outcome, why and trigger. `last_id` is the newest of them.

    `slots` counts those of the whole record if one began before the period; `first_slot` is then earlier too.
    """

    state: str
    outcome: str | None
    why: str | None
    trigger: Trigger
    runs: int
    slots: int
    last_id: int
    first_slot: datetime
    last_slot: datetime


def count_causes(db: sqlite3.Connection, begin: datetime, end: datetime, only: Key | None = None) -> dict[Key, list[CauseCount]]:
    """What happened to the slots and wakes of all entries in [begin, end), counted by cause. Open runs are listed one by one.

    `only` limits them to one entry.
    """
    found: dict[Key, list[CauseCount]] = {}
    for row in db.execute(CAUSES_OF_ENTRY if only else CAUSES, _period(begin, end, only)):
        kind, name, state, outcome, why, trigger, runs, slots, last_id, first, last = row
        count = CauseCount(state, outcome, why, Trigger(trigger), runs, slots, last_id, from_millis(first), from_millis(last))
        found.setdefault((Kind(kind), name), []).append(count)
    return found


def unaddressed_alerts(
    db: sqlite3.Connection, begin: datetime, end: datetime, only: Key | None = None
) -> dict[Key, tuple[int, int]]:
    """The agents whose alerts of [begin, end) were queued for no target: their number, and the id of the last such run.

    `only` limits them to one entry.
    """
    rows = db.execute(UNADDRESSED_OF_ENTRY if only else UNADDRESSED, _period(begin, end, only))
    return {(Kind(row[0]), row[1]): (row[2], row[3]) for row in rows}


def _period(begin: datetime, end: datetime, only: Key | None) -> dict[str, int | str]:
    """The parameters of a query about a period, and about one entry."""
    entry = {"kind": only[0], "name": only[1]} if only else {}
    return {"begin": to_millis(begin), "end": to_millis(end), **entry}


def runs_in_progress_at(db: sqlite3.Connection, instant: datetime) -> list[tuple[Kind, str, int]]:
    """The runs that were in progress at a time: kind, name and id, the oldest first. Skipped runs never were."""
    rows = db.execute(
        "select kind, name, id from run where state in ('running', 'closed') and started_at <= :at"
        " and (finished_at > :at or state = 'running') and coalesce(outcome, '') <> 'skipped' order by started_at, id",
        {"at": to_millis(instant)},
    )
    return [(Kind(row[0]), row[1], row[2]) for row in rows]


def count_awaited_results(db: sqlite3.Connection, kind: Kind, name: str) -> int:
    """How many runs of an entry wait for a result that comes later."""
    query = "select count(*) from run where result_due_at is not null and kind = ? and name = ?"
    return int(db.execute(query, (kind, name)).fetchone()[0])


def awaiting_entries(db: sqlite3.Connection) -> frozenset[Key]:
    """The entries that have such runs."""
    rows = db.execute("select kind, name from run where result_due_at is not null")  # with `distinct`, SQLite reads all runs
    return frozenset((Kind(row[0]), row[1]) for row in rows)


def last_real_run(db: sqlite3.Connection, kind: Kind, name: str) -> int | None:
    """The id of the newest closed run that was not skipped; None if there is none."""
    row = db.execute(
        "select id from run where kind = ? and name = ? and state = 'closed' and outcome <> 'skipped' order by id desc limit 1",
        (kind, name),
    ).fetchone()
    return row["id"] if row else None


def skipped_since(db: sqlite3.Connection, kind: Kind, name: str, run_id: int) -> dict[str, int]:
    """How many slots were skipped after this run, by reason."""
    rows = db.execute(
        "select reason, sum(slots) from run where kind = ? and name = ? and id > ? and outcome = 'skipped' and state = 'closed'"
        " group by reason order by sum(slots) desc",
        (kind, name, run_id),
    )
    return {row[0]: row[1] for row in rows}


def get_run(db: sqlite3.Connection, run_id: int) -> RunRecord | None:
    """One run; None if there is none."""
    query = f"{RECORDS} where id = ?"
    row = db.execute(query, (run_id,)).fetchone()
    return read_run(db, row) if row else None


def get_run_with_wakes(db: sqlite3.Connection, run_id: int) -> RunWithWakes | None:
    """One run, with the whole texts of the wakes that were in its prompt if there were any."""
    run, held = get_run(db, run_id), wakes.wakes_of_run(db, run_id)
    if run is None:
        return None
    found = RunWithWakes(**{key: value for key, value in run if key in run.model_fields_set})
    if held:
        found.wakes = held
    return found


def read_run(db: sqlite3.Connection, row: sqlite3.Row) -> RunRecord:
    """The run in a row, with the state of its messages."""
    deliveries = deliveries_of_runs(db, {row["id"]: row["repeats"]})[row["id"]]
    asked = asked_questions.questions_of_run(db, row["id"])
    was_checked = row["precheck_output"] is not None
    checked = read_part(PrecheckRecord, row, "precheck_", exit_code=row["precheck_exit"]) if was_checked else None
    return read_row(
        RunRecord,
        row,
        result=row["outcome"] if row["state"] == "closed" else None,
        tokens=_token_counts(json.loads(row["tokens"] or "{}")),
        models=_usage_by_model(row),
        charged=_charged_amounts(row),
        prompt_parts=[
            PromptPartSize(name=PROMPT_PARTS.get(name, name), tokens=tokens)
            for name, tokens in json.loads(row["prompt_parts"] or "{}").items()
        ],
        left_out=json.loads(row["left_out"] or "[]"),
        findings=[RunFinding.model_validate(each) for each in json.loads(row["findings"] or "[]")],
        precheck=checked,
        tool_calls=[ToolCallRecord.model_validate(each) for each in json.loads(row["tool_calls"] or "[]")],
        delivery=RunDelivery(
            state=delivery_state(row["kind"], row["outcome"], row["suppression"], deliveries),
            targets=[each.as_answer for each in deliveries],
        ),
        repeats=json.loads(row["repeats"] or "[]"),
        notices=_read_notices(db, row["id"]),
        **({"questions": asked} if asked else {}),
    )


def _token_counts(used: Mapping[str, int]) -> TokenCounts:
    return TokenCounts(**{kind: used.get(kind, 0) for kind in TokenCounts.model_fields})


def _usage_by_model(row: sqlite3.Row) -> list[ModelUsage]:
    """The usage of each model that the run has called. Calls without reported usage are not counted."""
    return [
        ModelUsage(model=model or None, calls=used["calls"], tokens=_token_counts(used), cost_usd=used["usd"])
        for model, used in json.loads(row["model_usage"] or "{}").items()
    ]


def _charged_amounts(row: sqlite3.Row) -> ChargedAmounts | None:
    """What the run is charged to its budgets: more than its cost if the usage was not reported. None: it has no budget."""
    if row["charged_nanos"] is None:
        return None
    return ChargedAmounts(usd=row["charged_nanos"] / NANO, tokens=row["charged_tokens"])


def deliveries_of_runs(db: sqlite3.Connection, repeats: Mapping[int, str | None]) -> dict[int, list[TargetDelivery]]:
    """What became of the messages of runs. For an answer that was not sent again, of the messages that have its content.

    `repeats` has the column of this name for each run.
    """
    sources = {run_id: json.loads(text) if text else [run_id] for run_id, text in repeats.items()}
    found = outbox.deliveries_of_runs(db, {source for runs in sources.values() for source in runs})
    return {run_id: [each for source in runs for each in found.get(source, ())] for run_id, runs in sources.items()}


def _read_notices(db: sqlite3.Connection, run_id: int) -> list[RunNotice]:
    """The notifications about a run: which, to which channel, and their state."""
    query = (
        "select notice, channel, state, text, awaits, not_before, hold_note from outbox"
        " where run_id = ? and notice is not null order by id"
    )
    return [_read_notice(row) for row in db.execute(query, (run_id,))]


def _read_notice(row: sqlite3.Row) -> RunNotice:
    """A notification. If it is or was delayed: for which agents, until when at the latest, and what has happened to it."""
    notice = RunNotice(notice=row["notice"], channel=row["channel"], state=row["state"], text=row["text"])
    if row["awaits"] is not None or row["hold_note"] is not None:
        until = from_millis(row["not_before"]) if row["awaits"] else None
        notice.held_back = HeldNotice(agents=json.loads(row["awaits"] or "[]"), until=until, note=row["hold_note"])
    return notice


def delivery_state(
    kind: str, outcome: str | None, suppression: str | None, deliveries: Sequence[TargetDelivery]
) -> DeliveryState:
    """One word for all messages of a run. `no_target`: it had a message, and no target was known. `muted`: it is not sent."""
    if deliveries:
        return outbox.combined_state([each.state for each in deliveries])
    if suppression == Suppression.MUTED:  # its reason hides this if it has also failed
        return DeliveryState.MUTED
    has_message = kind == Kind.HEARTBEAT and outcome in (Outcome.ALERT, Outcome.OK)
    return DeliveryState.NO_TARGET if has_message and suppression is None else DeliveryState.NONE


# The rows that ended within a time, found by the index on finished_at.
RUNS = f"""
select counted.*, case when most_expensive_usd > 0 then (
    select max(id) from run where run.kind = counted.kind and run.name = counted.name and state = 'closed'
      and finished_at >= :since and finished_at < :until and cost_usd = most_expensive_usd and outcome = counted.outcome
      and {WHY} is not distinct from counted.why
      and coalesce(model_requested, model_used) is not distinct from counted.model) end as most_expensive_run
from (
select kind, name, outcome, {WHY} as why, coalesce(model_requested, model_used) as model, count(*) as count,
  sum(slots) as slots, count(*) filter (where trigger <> 'result') as started, sum(cost_usd) as cost_usd,
  count(*) filter (where tokens is not null and cost_usd is null) as unpriced,
  sum(max(0, coalesce(charged_nanos, 0) / 1e9 - coalesce(cost_usd, 0))) as untold_usd,
  sum(coalesce(json_extract(tokens, '$.input') + json_extract(tokens, '$.cache_read') + json_extract(tokens, '$.cache_write'), 0))
    as tokens_in,
  sum(coalesce(json_extract(tokens, '$.output'), 0)) as tokens_out,
  sum(coalesce(json_extract(tokens, '$.cache_read'), 0)) as cache_read,
  sum(coalesce(json_extract(tokens, '$.cache_write'), 0)) as cache_write, sum(coalesce(cache_saved_usd, 0)) as cache_saved,
  max(cost_usd) as most_expensive_usd
from run where state = 'closed' and finished_at >= :since and finished_at < :until
group by kind, name, outcome, why, coalesce(model_requested, model_used)
) as counted order by kind, name
"""  # noqa: S608 (literals of this file)


MESSAGES = """
select channel, state, count(*) as messages, count(doubted_at) as doubted
from outbox where created_at >= ? and created_at < ? group by channel, state
"""
MESSAGES_OF_AGENTS = MESSAGES.replace("group by", "and kind = 'heartbeat' and name in (select value from json_each(?)) group by")

# `|| ''` as in `cost_history.MODELS`.
EFFECTS = """
select kind || '', name || '', found.value ->> 'effect' as effect, count(*) as count from run, json_each(run.findings) as found
where run.state = 'closed' and run.finished_at >= ? and run.finished_at < ? and run.findings is not null
group by 1, 2, effect
"""


@dataclass(frozen=True, slots=True)
class RunCount:
    """Run records of one entry with equal outcome, why and model.

    `started` leaves out late results: each belongs to an earlier run.

    `cost_usd` is None if no cost is known. `unpriced` is the number of rows with tokens and no known cost. `untold_usd` is what
    budgets charge beyond the known cost, because the usage was not reported. `tokens_in` includes `cache_read` and `cache_write`,
    the tokens that were read from and written to a cache.
    """

    kind: Kind
    name: str
    outcome: Outcome
    why: str | None
    model: str | None
    count: int
    slots: int
    started: int
    cost_usd: float | None
    unpriced: int
    untold_usd: float
    tokens_in: int
    tokens_out: int
    cache_read: int
    cache_write: int
    cache_saved: float  # USD
    most_expensive_usd: float | None
    most_expensive_run: int | None  # None if nothing is known to have cost anything

    @property
    def skipped(self) -> int:
        """Slots that were not run."""
        return self.slots if self.outcome is Outcome.SKIPPED else 0

    @property
    def missed(self) -> int:
        """Slots that passed while no daemon ran."""
        return self.skipped if self.why == Skip.MISSED else 0

    @property
    def runs(self) -> int:
        """Runs that were started."""
        return 0 if self.outcome is Outcome.SKIPPED else self.started

    @property
    def said(self) -> int:
        """Runs that had a message to deliver."""
        return self.count if self.outcome is Outcome.ALERT and self.why is None else 0

    @property
    def suppressed(self) -> int:
        """Runs with an answer that was not sent."""
        return self.count if self.outcome in ANSWERED and self.why else 0

    @property
    def failed(self) -> int:
        """Runs that failed, timed out or were interrupted. A run that a user cancelled is no failure."""
        return self.count if self.outcome in FAILURES and self.why != Reason.CANCELLED else 0


@dataclass(frozen=True, slots=True)
class MessageCount:
    """Messages for one channel in one state. For `doubted` of them it was unknown at some time whether they had arrived."""

    channel: str
    state: str
    messages: int
    doubted: int


def count_runs(db: sqlite3.Connection, since: datetime, until: datetime) -> list[RunCount]:
    """What ended in [since, until), counted by entry and outcome."""
    return [read_row(RunCount, row) for row in db.execute(RUNS, {"since": to_millis(since), "until": to_millis(until)})]


def count_messages(
    db: sqlite3.Connection, since: datetime, until: datetime, agents: Collection[str] | None = None
) -> list[MessageCount]:
    """The messages that were queued in [since, until), counted by channel and present state. `agents`: only of these agents."""
    query, wanted = (MESSAGES, ()) if agents is None else (MESSAGES_OF_AGENTS, (json.dumps(sorted(agents)),))
    rows = db.execute(query, (to_millis(since), to_millis(until), *wanted))
    return [MessageCount(*row) for row in rows]


def count_effects(db: sqlite3.Connection, since: datetime, until: datetime) -> dict[Key, dict[str, int]]:
    """What happened to the findings of the runs that ended in [since, until): the number of each effect, by entry."""
    counts: dict[Key, dict[str, int]] = {}
    for kind, name, effect, count in db.execute(EFFECTS, (to_millis(since), to_millis(until))):
        counts.setdefault((Kind(kind), name), {})[effect] = count
    return counts
