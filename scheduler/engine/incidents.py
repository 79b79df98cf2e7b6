"""Incidents: who is told that something goes wrong, at first, again, when it changes, and when it is over."""

from __future__ import annotations

from dataclasses import replace

from heartbeat.verdict import digest
from scheduler.engine import notices
from scheduler.engine.notices import Notice, Story
from scheduler.events import Told
from scheduler.outcome import ANSWERS, FAILURES, Delivery, Ending, Failure, Kind, Outcome, Reason, Skip, Trigger
from scheduler.settings import OnFailure
from scheduler.tables import breakers, history, incidents, outbox, targets
from scheduler.tables.duequeue import Standing
from scheduler.tables.incidents import CHANNEL, Incident
from scheduler.tables.outbox import Letter, Origin
from scheduler.tables.targets import Target
from scheduler.turn import Turn
from scheduler.wake import Wake
from scheduler.work.entry import Claim, Entry

MOST_FAULTS = 5  # of one incident that are each told at once; one that is new every time is left to the reminders

LOG = "log"
CHAIN = tuple(Skip)  # in the order in which a beat is checked

# What one and the same check may say: where it says something else, it does not say the first any more.
CHECKS = (
    {Skip.CHECKLIST_MISSING, Skip.CHECKLIST_EMPTY, Skip.CHECKLIST_UNREADABLE, Skip.CHECKLIST_TOO_LARGE},
    {Skip.PRECHECK, Skip.PRECHECK_UNCHANGED, Skip.PRECHECK_FAILED},
)


def hear(turn: Turn, claim: Claim, ending: Ending, standing: Standing) -> Standing:
    """How a run ended, for those who want to know of its failures; gives what the standing row remembers of it.

    A run that goes well while nothing was wrong costs nothing here.
    """
    if _is_trouble(ending) and claim.entry.on_failure.after:
        return _worse(turn, claim, ending, standing)
    if ending.precheck_problem and ending.outcome in ANSWERS and claim.entry.on_failure.after:
        return _precheck_fails(turn, claim, ending, standing)
    if standing.troubles and _is_over(turn, claim, ending):
        return _better(turn, claim, standing)
    return standing


def hear_of_channels(turn: Turn) -> None:
    """What became of messages in this turn: the first that a channel lets die, of each whom it leads to, is told elsewhere."""
    for happened in tuple(turn.events):
        if not isinstance(happened, Told) or happened.channel == LOG:
            continue
        if happened.state is Delivery.DELIVERED:
            incidents.drop_target(turn, happened.outbox_id)
        elif happened.state is Delivery.DEAD:
            _lost(turn, outbox.letter(turn.db, happened.outbox_id), happened.error)


def _is_trouble(ending: Ending) -> bool:
    if ending.outcome is Outcome.SKIPPED:
        return ending.reason in notices.WHY
    return ending.outcome in FAILURES and ending.reason is not Reason.CANCELLED


def _is_over(turn: Turn, claim: Claim, ending: Ending) -> bool:
    """An answer ends any trouble; a skip ends one that another check had caused, which has been passed now."""
    if not isinstance(ending.reason, Skip):
        return ending.outcome in ANSWERS
    was = incidents.find(turn.db, claim.entry.kind, claim.entry.name)
    if was is None or was.reason not in CHAIN:
        return False
    trouble = Skip(was.reason)
    shut_off = trouble is Skip.BREAKER_OPEN and breakers.is_open(turn, claim.entry)  # a probe that asked nobody
    return not shut_off and _is_past(trouble, ending.reason)


def _is_past(trouble: Skip, reason: Skip) -> bool:
    return CHAIN.index(reason) > CHAIN.index(trouble) or any({trouble, reason} <= check for check in CHECKS)


def _worse(turn: Turn, claim: Claim, ending: Ending, standing: Standing) -> Standing:
    entry, count = claim.entry, standing.troubles + 1
    was = (incidents.find(turn.db, entry.kind, entry.name) if standing.troubles else None) or Incident(turn.now)
    fault = digest(ending.error or ending.reason or "", "numbers")
    known = fault in was.faults or _is_consequence(was, ending)
    faults = was.faults if known or len(was.faults) >= MOST_FAULTS else (*was.faults, fault)
    now = replace(was, faults=faults, reason=_lasting(was.reason, ending))
    notice = _news(turn, was, now, count, entry.on_failure)
    if notice is not None:
        text = notices.worse(notice, claim, ending, _story(turn, now, count))
        _notify(turn, claim, notice, text)
        now = replace(now, told_at=turn.now)
    incidents.put(turn, entry.kind, entry.name, now)
    return standing._replace(troubles=count)


def _precheck_fails(turn: Turn, claim: Claim, ending: Ending, standing: Standing) -> Standing:
    """The agent has answered, so that whatever else was wrong is over; but its precheck failed, and it was asked all the same."""
    was = incidents.find(turn.db, claim.entry.kind, claim.entry.name) if standing.troubles else None
    if was is not None and was.reason != Skip.PRECHECK_FAILED:
        standing = _better(turn, claim, standing)
    failing = replace(ending, reason=Skip.PRECHECK_FAILED, error=ending.precheck_problem)
    return _worse(turn, claim, failing, standing)


def _lasting(before: str | None, ending: Ending) -> str | None:
    """By what a trouble is known: a failure stays one, for only an answer ends it, whatever check stands in the way since."""
    return before if before and before not in CHAIN and isinstance(ending.reason, Skip) else ending.reason


def _is_consequence(was: Incident, ending: Ending) -> bool:
    """A provider that is left alone is no new fault where its refusal has been told."""
    return ending.reason is Skip.BREAKER_OPEN and was.reason in (
        Failure.AUTH,
        Failure.PAYMENT,
        Failure.NOT_FOUND,
        Reason.RATE_LIMITED,
        Skip.BREAKER_OPEN,
    )


def _news(turn: Turn, was: Incident, now: Incident, count: int, rule: OnFailure) -> Notice | None:
    """What there is to tell of a trouble that has come again; None where it has been told."""
    if was.told_at is None:
        return Notice.FAILING if count >= rule.after else None
    if now.faults != was.faults:
        return Notice.CHANGED
    return Notice.REMINDER if turn.now - was.told_at >= rule.remind else None


def _better(turn: Turn, claim: Claim, standing: Standing) -> Standing:
    was = incidents.find(turn.db, claim.entry.kind, claim.entry.name)
    incidents.drop(turn, claim.entry.kind, claim.entry.name)
    if claim.entry.on_failure.after and was is not None and was.told_at is not None:
        text = notices.better(claim, was.reason, _story(turn, was, standing.troubles))
        _notify(turn, claim, Notice.RECOVERED, text)
    return standing._replace(troubles=0)


def _story(turn: Turn, incident: Incident, count: int) -> Story:
    return Story(count, incident.since, turn.now, turn.plan.settings.zone)


def _notify(turn: Turn, claim: Claim, notice: Notice, text: str) -> None:
    """Tell those who are to be told; where all of their channels are dead, somebody else."""
    wished, dead = claim.entry.on_failure.deliver, incidents.dead_targets(turn.db)
    living = tuple(target for target in targets.of(turn, wished, claim.entry.lane) if target not in dead)
    outbox.notify(turn, outbox.origin(claim), notice, text, living or (_elsewhere(turn, wished, dead),))


def tell_of_expired(turn: Turn, entry: Entry, expired: tuple[Wake, ...]) -> None:
    """Wakes of an agent have waited for too long: one notice for all that ended together."""
    found = history.newest(turn.db, entry.kind, entry.name)
    run_id, trigger, slot = found or (0, Trigger(expired[0].source), turn.now)
    about = Origin(run_id, entry.kind, entry.name, trigger, slot)
    text = notices.expired(expired, turn.limits.wake_keep)
    wished, dead = entry.on_failure.deliver, incidents.dead_targets(turn.db)
    living = tuple(target for target in targets.of(turn, wished, entry.lane) if target not in dead)
    outbox.notify(turn, about, f"wakes expired {expired[-1].id}", text, living or (_elsewhere(turn, wished, dead),))


def _lost(turn: Turn, letter: Letter, error: str) -> None:
    """A message has been given up: told on another channel, once until whoever was to get it has got another one.

    Of one that was told before, and has been given up again, there is nothing to tell; the next one is still news.
    """
    lost, dead = Target(letter.channel, letter.whom), incidents.dead_targets(turn.db)
    if lost in dead:
        return
    entry = turn.plan.entries.get((Kind(letter.kind), letter.name))
    wished = entry.on_failure.deliver if entry else ()
    target = _elsewhere(turn, wished, dead | {Target(letter.channel)})
    text = notices.undelivered(letter, error)
    if outbox.notify(turn, letter.origin, f"undelivered {letter.channel}", text, (target,)):
        incidents.put(turn, CHANNEL, letter.channel, Incident(turn.now, told_at=turn.now), letter.whom)


def _elsewhere(turn: Turn, wished: tuple[str, ...], dead: frozenset[Target]) -> Target:
    """A channel that works as far as we know: of those that are wished, else any that is declared, else the log."""
    declared = turn.plan.settings.channels
    usable = (name for name in (*wished, *declared) if name in declared and Target(name) not in dead and declared[name].usable)
    return Target(next((name for name in usable if name != LOG), LOG))
