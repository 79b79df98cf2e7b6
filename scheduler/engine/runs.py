"""What may be asked of a run: to take the answer that comes later, or to end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from heartbeat.runners import MAX_ANSWER
from scheduler.engine import closing
from scheduler.engine.inbox import Refused
from scheduler.outcome import Ending, Failure, Outcome, Reason, storable
from scheduler.tables import duequeue, history, past
from scheduler.turn import Turn
from scheduler.work.entry import Entry

LATE_RESULT = timedelta(hours=24)  # a run that answers later has so long


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a run that said it would answer later: a text, or an error. Answers the id of the row that it gets."""

    run_id: int
    text: str | None
    error: str | None

    def apply(self, turn: Turn) -> int:
        """One row more for the same slot, judged and delivered like any other; asked for too late or twice, it is refused."""
        found = history.awaited(turn.db, self.run_id)
        if found is None and history.is_open(turn.db, self.run_id):
            raise Refused("not_yet", f"run {self.run_id} has not said yet that it answers later; try again in a moment")
        if found is None:
            raise Refused("not_found", f"run {self.run_id} is not one that was to answer later")
        kind, name, slot, ended_at = found
        entry = turn.plan.entries.get((kind, name))
        if entry is None or turn.now - ended_at > LATE_RESULT:
            raise Refused("too_late", f"run {self.run_id} is no longer waited for")
        ending = Ending(Outcome.FAILED, Failure.EXIT, error=self.error) if self.text is None else _judged(entry, self.text)
        run_id = closing.report(turn, entry, slot, storable(ending))
        if run_id is None:
            raise Refused("already_reported", f"run {self.run_id} has its result already")
        return run_id


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a run: one in progress, one that waits for its next attempt, or one whose answer is still to come.

    Answers whether it has ended by that; one in progress ends within seconds.
    """

    run_id: int

    def apply(self, turn: Turn) -> bool:
        """It ends `abandoned` with the reason `cancelled`, is not tried again, and the wakes that it held wait on."""
        found = duequeue.open_by_id(turn.db, self.run_id)
        if found is None:
            self._expect_no_answer(turn)
            return True
        kind, name, run = found
        if run.state == "running":
            history.mark_cancelled(turn, self.run_id)
            turn.cancelled.append(self.run_id)
            return False
        standing = duequeue.get(turn, kind, name)
        closing.end(turn, turn.plan.entries.get((kind, name)), standing, run, _cancelled("was cancelled before its next attempt"))
        return True

    def _expect_no_answer(self, turn: Turn) -> None:
        """The row of its result says that none will be taken any more."""
        found = history.awaited(turn.db, self.run_id)
        entry = found and turn.plan.entries.get((found[0], found[1]))
        if found is None or entry is None or turn.now - found[3] > LATE_RESULT:
            raise Refused(*_nothing_to_cancel(turn, self.run_id))
        if closing.report(turn, entry, found[2], _cancelled("was cancelled before its answer came")) is None:
            raise Refused("closed", f"run {self.run_id} has its result already")


def _cancelled(error: str) -> Ending:
    return Ending(Outcome.ABANDONED, Reason.CANCELLED, error=error)


def _nothing_to_cancel(turn: Turn, run_id: int) -> tuple[str, str]:
    known = past.one(turn.db, run_id)
    if known is None:
        return "not_found", f"no run {run_id}; `heartbeatd runs` lists them"
    return "closed", f"run {run_id} has ended already: {known['outcome']}"


def _judged(entry: Entry, text: str) -> Ending:
    """Judged as if it had been answered at once, by the same rules for what an answer may be."""
    kept = text.replace("\0", "")
    if len(kept.encode(errors="replace")) > MAX_ANSWER:
        return Ending(Outcome.FAILED, Failure.BAD_ANSWER, error=f"the answer is larger than {MAX_ANSWER} bytes")
    return entry.judge(kept)
