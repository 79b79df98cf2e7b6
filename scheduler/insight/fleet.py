"""Describes an agent for its card on the page, with what `explain` says of it, and its latest slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heartbeat.spec import CommandRunner, Heartbeat, HttpRunner, ModelRunner
from heartbeatd.answers import EntryOverview
from scheduler.insight.entry_day import explain_day
from scheduler.insight.explanation import find_entry
from scheduler.insight.health import EntryHealth
from scheduler.insight.records import Records
from scheduler.insight.slot_history import cause_of_run
from scheduler.model import local_days
from scheduler.model.levels import Level
from scheduler.model.outcome import Kind
from scheduler.store import overviews
from scheduler.store.overviews import DayCost, LatestAnswer, SlotRecord

STRIP_SLOTS = 48
ANSWER_LENGTH = 280  # characters of the latest answer on a card


@dataclass(frozen=True, slots=True)
class AgentCard:
    """All that a card shows. `why` is what the overview says of today, and `quiet` what else keeps the agent quiet.

    `slots` are the latest levels, the oldest first.
    """

    state: EntryHealth
    why: EntryOverview
    model: str
    channels: tuple[str, ...]
    quiet: tuple[str, ...]
    answer: LatestAnswer | None
    slots: Sequence[Level]
    cost: DayCost
    timezone: str

    @property
    def slot_counts(self) -> list[tuple[Level, int]]:
        """How many of the slots had each level, without the levels that none had."""
        counts = Counter(self.slots)
        return [(level, counts[level]) for level in Level if counts[level]]


def read_card(records: Records, state: EntryHealth) -> AgentCard:
    """The card of an agent, from records of today."""
    explained = find_entry(records, (Kind.HEARTBEAT, state.name))
    assert explained is not None  # it has a state
    db, now, heartbeat = records.db, records.now, explained.spec
    today = local_days.whole_day(now.astimezone(explained.zone).date(), explained.zone)
    why = explain_day(explained.records, explained.row)
    return AgentCard(
        state,
        why,
        model_or_runner(heartbeat) if heartbeat else "not in the config",
        heartbeat.deliver if heartbeat else (),
        tuple(each.says for each in explained.quiet_reasons if each.says not in why.says),
        overviews.latest_answer(db, state.name, ANSWER_LENGTH),
        _latest_levels(overviews.latest_slots(db, state.name, STRIP_SLOTS)),
        overviews.cost_since(db, state.name, today.begins),
        explained.zone.key,
    )


def model_or_runner(heartbeat: Heartbeat) -> str:
    """The model of an agent, or how it is called if it chooses its model itself."""
    if heartbeat.model is not None:
        return heartbeat.model
    match heartbeat.runner:
        case CommandRunner(argv=argv):
            return f"command {argv[0].rpartition('/')[2]}"
        case HttpRunner():
            return "HTTP gateway"
        case ModelRunner(provider=provider):
            return provider.name
    return "Python function"


def _latest_levels(records: Iterable[SlotRecord]) -> list[Level]:
    """How good or bad the latest slots were, the oldest first."""
    found: list[Level] = []
    for record in records:
        cause = cause_of_run(record.state, record.outcome, record.reason, record.suppression, record.delivery)
        found += [cause.level] * min(record.slots, STRIP_SLOTS - len(found))
        if len(found) >= STRIP_SLOTS:
            break
    return found[::-1]
