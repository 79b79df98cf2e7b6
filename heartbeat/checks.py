"""The chain of checks that a beat must pass before anything is asked, and the words for each refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from heartbeat import checklist
from heartbeat.checklist import Refusal
from heartbeat.spec import Heartbeat


class Skip(StrEnum):
    """Why a slot was not run, in the order of the chain; the last two come from elsewhere."""

    DISABLED = "disabled"
    PAUSED = "paused"
    REMOVED = "removed"
    CALENDAR = "calendar"
    ACTIVE_HOURS = "active_hours"
    ALREADY_RUNNING = "already_running"
    BUSY = "busy"
    CHECKLIST_MISSING = "checklist_missing"
    CHECKLIST_EMPTY = "checklist_empty"
    CHECKLIST_UNREADABLE = "checklist_unreadable"
    CHECKLIST_TOO_LARGE = "checklist_too_large"
    NOTHING_DUE = "nothing_due"
    NOT_SHOWN = "not_shown"
    BUDGET = "budget"
    BREAKER_OPEN = "breaker_open"
    PRECHECK = "precheck"
    PRECHECK_UNCHANGED = "precheck_unchanged"
    PRECHECK_FAILED = "precheck_failed"
    PROMPT_TOO_LARGE = "prompt_too_large"
    MISSED = "missed"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the chain looks at.

    `checklist` is its text, or why there is none, as `checklist_of` finds it. `breaker_open` says that the provider of the
    model refuses us, and that it is not yet time to try it again; `busy`, that somebody is speaking to the agent.
    """

    heartbeat: Heartbeat
    now: datetime
    woken: bool
    paused: bool
    checklist: str | Skip
    breaker_open: bool = False
    busy: bool = False


def first_obstacle(situation: Situation) -> Skip | None:
    """The first reason in the chain not to run; None when nothing stands in the way."""
    return next((reason for reason, stands in _CHAIN if stands(situation)), None)


def checklist_of(heartbeat: Heartbeat) -> str | Skip:
    """The checklist's text, from its file unless it stands in the config itself, or why it cannot be had."""
    if "\n" in heartbeat.checklist:
        return heartbeat.checklist
    found = checklist.read(heartbeat.workspace, heartbeat.checklist)
    return _REFUSED[found] if isinstance(found, Refusal) else found


def _disabled(situation: Situation) -> bool:
    return not situation.heartbeat.enabled


def _paused(situation: Situation) -> bool:
    return situation.paused


def _outside_hours(situation: Situation) -> bool:
    return not situation.heartbeat.hours.open_at(situation.now)


def _busy(situation: Situation) -> bool:
    return situation.busy


def _missing(situation: Situation) -> bool:
    """`on_missing: create` counts as missing too: what was just created holds no work."""
    return situation.checklist is Skip.CHECKLIST_MISSING and situation.heartbeat.on_missing != "run" and not situation.woken


def _empty(situation: Situation) -> bool:
    if situation.woken or situation.heartbeat.on_empty == "run" or isinstance(situation.checklist, Skip):
        return False
    return not checklist.has_work(situation.checklist)


def _unreadable(situation: Situation) -> bool:
    return situation.checklist is Skip.CHECKLIST_UNREADABLE


def _too_large(situation: Situation) -> bool:
    return situation.checklist is Skip.CHECKLIST_TOO_LARGE


def _not_shown(situation: Situation) -> bool:
    return not (situation.heartbeat.show_ok or situation.heartbeat.show_alerts)


def _breaker_open(situation: Situation) -> bool:
    return situation.breaker_open


_CHAIN: tuple[tuple[Skip, Callable[[Situation], bool]], ...] = (
    (Skip.DISABLED, _disabled),
    (Skip.PAUSED, _paused),
    (Skip.ACTIVE_HOURS, _outside_hours),
    (Skip.BUSY, _busy),
    (Skip.CHECKLIST_MISSING, _missing),
    (Skip.CHECKLIST_EMPTY, _empty),
    (Skip.CHECKLIST_UNREADABLE, _unreadable),
    (Skip.CHECKLIST_TOO_LARGE, _too_large),
    (Skip.NOT_SHOWN, _not_shown),
    (Skip.BREAKER_OPEN, _breaker_open),
)

_REFUSED = {
    Refusal.MISSING: Skip.CHECKLIST_MISSING,
    Refusal.UNREADABLE: Skip.CHECKLIST_UNREADABLE,
    Refusal.TOO_LARGE: Skip.CHECKLIST_TOO_LARGE,
}
