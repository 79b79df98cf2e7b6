"""Tallies: what happened within a stretch of time, counted by the database in one read of each table."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from scheduler.model.outcome import FAILURES, Kind, Outcome, Reason, Skip
from scheduler.model.timestamps import millis

# Rows that came to their end within the stretch, found by the index on that. Beside max(cost_usd) stands its row's own id:
# https://www.sqlite.org/lang_select.html#bareagg
RUNS = """
select kind, name, outcome, reason, suppression, model_requested as model, count(*) as count, sum(slots) as slots,
  sum(trigger <> 'result') as started, sum(cost_usd) as cost_usd, sum(tokens is not null and cost_usd is null) as unpriced,
  sum(max(0, coalesce(charged_nanos, 0) / 1e9 - coalesce(cost_usd, 0))) as untold_usd,
  sum(coalesce(json_extract(tokens, '$.input') + json_extract(tokens, '$.cache_read') + json_extract(tokens, '$.cache_write'), 0))
    as tokens_in,
  sum(coalesce(json_extract(tokens, '$.output'), 0)) as tokens_out, max(cost_usd) as dearest_usd, id as dearest_run
from run where state = 'closed' and finished_at >= ? and finished_at < ?
group by kind, name, outcome, reason, suppression, model_requested
"""

MESSAGES = """
select channel, state, count(*) as messages, sum(doubted_at is not null) as doubted
from outbox where created_at >= ? and created_at < ? group by channel, state
"""


@dataclass(frozen=True, slots=True)
class Tally:
    """Rows of one entry that ended alike. `started` leaves out results that came later: they belong to a run before them.

    `cost_usd` is None where no cost is known, and `unpriced` the number of rows of which it is not known though tokens were
    taken. `untold_usd` is what budgets count beyond the known cost, for nobody said what was taken. `tokens_in` counts what was
    read from a cache or written to one too.
    """

    kind: Kind
    name: str
    outcome: Outcome
    reason: str | None
    suppression: str | None
    model: str | None
    count: int
    slots: int
    started: int
    cost_usd: float | None
    unpriced: int
    untold_usd: float
    tokens_in: int
    tokens_out: int
    dearest_usd: float | None
    dearest_run: int

    @property
    def skipped(self) -> int:
        """Slots that were not run."""
        return self.slots if self.outcome is Outcome.SKIPPED else 0

    @property
    def missed(self) -> int:
        """Slots that nobody was there for."""
        return self.skipped if self.reason == Skip.MISSED else 0

    @property
    def ran(self) -> int:
        """Runs that were started."""
        return 0 if self.outcome is Outcome.SKIPPED else self.started

    @property
    def said(self) -> int:
        """Runs that had something to say to somebody."""
        return self.count if self.outcome is Outcome.ALERT and self.suppression is None else 0

    @property
    def failed(self) -> int:
        """Runs that failed, ran out of time or were cut short; one that somebody cancelled is no failure."""
        return self.count if self.outcome in FAILURES and self.reason != Reason.CANCELLED else 0


@dataclass(frozen=True, slots=True)
class Post:
    """Messages for one channel that stand alike; of `doubted` it was once not known whether they had arrived."""

    channel: str
    state: str
    messages: int
    doubted: int


def runs(db: sqlite3.Connection, since: datetime, until: datetime) -> list[Tally]:
    """What ended from `since` on and before `until`."""
    return [_tally(row) for row in db.execute(RUNS, (millis(since), millis(until)))]


def count_messages(db: sqlite3.Connection, since: datetime, until: datetime) -> list[Post]:
    """What was to be told from `since` on and before `until`, as it stands now."""
    return [Post(*row) for row in db.execute(MESSAGES, (millis(since), millis(until)))]


def cost(tallies: Iterable[Tally]) -> float | None:
    """What is known of their cost; None where nothing is."""
    known = [tally.cost_usd for tally in tallies if tally.cost_usd is not None]
    return sum(known) if known else None


def _tally(row: sqlite3.Row) -> Tally:
    kind, outcome = Kind(row["kind"]), Outcome(row["outcome"])
    return Tally(kind, row["name"], outcome, *tuple(row)[3:])
