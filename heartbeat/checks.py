"""Defines the reasons to skip a slot (`Skip`), and the checks before a heartbeat run, in their order.

The precheck and the length of the prompt are expensive, so they are computed only if the cheap checks skip nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property

from heartbeat.checklist import Selection, parse_checklist
from heartbeat.checklist_file import FileProblem, create_checklist, read_file
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.spec import Heartbeat, Precheck


class Skip(StrEnum):
    """Why a slot was skipped, in the order of the checks.

    No check here gives `removed`, `already_running`, `missed` and `superseded`: the scheduler records them by itself. A new
    reason also needs a text in scheduler/insight/reason_texts.py, a place in the lists of grafana/panels.py, a row in
    docs/operations.md, and, if the agent should have run, in WORRYING_SKIPS of scheduler/model/outcome.py.
    """

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


@dataclass(frozen=True)
class Situation:
    """Everything that the checks read.

    `checklist` is its text, or the reason why there is none, as `load_checklist` returns it. `blocked` has the reasons that are
    known beforehand, each with its details: paused, another program holds the agent's lock, the budget has no room for this run,
    the circuit breaker of the model's provider is open. `slot` and `last_prompted` decide which items are due, as
    `Checklist.select_due_items` says.
    """

    heartbeat: Heartbeat
    now: datetime
    woken: bool
    checklist: str | Skip
    blocked: Mapping[Skip, str | None] = field(default_factory=dict)
    slot: datetime | None = None
    last_prompted: Mapping[str, datetime] = field(default_factory=dict)

    @cached_property
    def selection(self) -> Selection:
        """What of the checklist goes into the prompt. A woken run gets all of it."""
        if isinstance(self.checklist, Skip):
            return EMPTY_SELECTION
        parsed = parse_checklist(self.checklist)
        return parsed.select_due_items(self.slot or self.now, self.last_prompted, everything=self.woken)

    @property
    def has_work(self) -> bool:
        """Whether the checklist has any work, due or not."""
        return not isinstance(self.checklist, Skip) and parse_checklist(self.checklist).has_work

    @property
    def runs_without_checklist(self) -> bool:
        """Whether the run takes place although the checklist is empty or missing, because the config says so."""
        if isinstance(self.checklist, Skip):
            return self.checklist is Skip.CHECKLIST_MISSING and self.heartbeat.on_missing == "run"
        return self.heartbeat.on_empty == "run" and not self.has_work


EMPTY_SELECTION = Selection("", has_work=False)
Check = tuple[Skip, Callable[[Situation], bool]]


def first_obstacle(situation: Situation) -> Skip | None:
    """The first reason to skip the run that is known without the precheck. None if all checks pass."""
    return next((reason for reason, blocks in _CHECKS if blocks(situation)), None)


def check_results(situation: Situation) -> list[tuple[Skip, bool | None]]:
    """Every check in its order, with whether it blocks the run. None for checks that only a real run can do."""
    late = late_checks(situation.heartbeat.precheck)
    return [*((reason, blocks(situation)) for reason, blocks in _CHECKS), *((reason, None) for reason in late)]


def late_checks(precheck: Precheck | None) -> tuple[Skip, ...]:
    """The reasons that only a real run can find, in their order."""
    return (*(PRECHECK_SKIPS if precheck else ()), Skip.PROMPT_TOO_LARGE)


def load_checklist(heartbeat: Heartbeat) -> str | Skip:
    """The text of the checklist, from its file unless it is in the config itself, or the reason why it cannot be read."""
    if "\n" in heartbeat.checklist:
        return heartbeat.checklist
    found = read_file(heartbeat.workspace, heartbeat.checklist)
    return _SKIP_BY_PROBLEM[found] if isinstance(found, FileProblem) else found


def create_missing_checklist(heartbeat: Heartbeat, obstacle: Skip) -> str | None:
    """Write a checklist template if the file is missing and `on_missing` is `create`. Returns an error message if that failed."""
    if obstacle is not Skip.CHECKLIST_MISSING or heartbeat.on_missing != "create":
        return None
    try:
        create_checklist(heartbeat.workspace, heartbeat.checklist)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return f"could not create {heartbeat.workspace / heartbeat.checklist}: {why}"
    return None


def _is_checklist_missing(situation: Situation) -> bool:
    """`on_missing: create` counts as missing too: what was just created holds no work."""
    return situation.checklist is Skip.CHECKLIST_MISSING and situation.heartbeat.on_missing != "run" and not situation.woken


def _is_checklist_empty(situation: Situation) -> bool:
    if situation.woken or situation.heartbeat.on_empty == "run" or isinstance(situation.checklist, Skip):
        return False
    return not situation.has_work


def _has_nothing_due(situation: Situation) -> bool:
    return situation.has_work and not situation.woken and not situation.selection.has_work


def precheck_obstacle(precheck: Precheck, checked: PrecheckResult, *, woken: bool) -> Skip | None:
    """The reason to skip a run after its precheck; None if the agent is to be called."""
    if checked.status is PrecheckStatus.NOTHING and not woken:
        return Skip.PRECHECK
    if checked.status is PrecheckStatus.UNCHANGED and not woken and precheck.unchanged == "skip":
        return Skip.PRECHECK_UNCHANGED
    if checked.status is PrecheckStatus.FAILED and precheck.on_error == "skip":
        return Skip.PRECHECK_FAILED
    return None


def _is_known(reason: Skip) -> Check:
    return reason, lambda situation: reason in situation.blocked


_CHECKS: tuple[Check, ...] = (
    (Skip.DISABLED, lambda it: not it.heartbeat.enabled),
    _is_known(Skip.PAUSED),
    (Skip.CALENDAR, lambda it: not it.heartbeat.calendars.open_at(it.now)),
    (Skip.ACTIVE_HOURS, lambda it: not it.heartbeat.hours.open_at(it.now)),
    _is_known(Skip.BUSY),
    (Skip.CHECKLIST_MISSING, _is_checklist_missing),
    (Skip.CHECKLIST_EMPTY, _is_checklist_empty),
    (Skip.CHECKLIST_UNREADABLE, lambda it: it.checklist is Skip.CHECKLIST_UNREADABLE),
    (Skip.CHECKLIST_TOO_LARGE, lambda it: it.checklist is Skip.CHECKLIST_TOO_LARGE),
    (Skip.NOTHING_DUE, _has_nothing_due),
    (Skip.NOT_SHOWN, lambda it: not (it.heartbeat.show_ok or it.heartbeat.show_alerts)),
    _is_known(Skip.BUDGET),
    _is_known(Skip.BREAKER_OPEN),
)

PRECHECK_SKIPS = (Skip.PRECHECK, Skip.PRECHECK_UNCHANGED, Skip.PRECHECK_FAILED)

_SKIP_BY_PROBLEM = {
    FileProblem.MISSING: Skip.CHECKLIST_MISSING,
    FileProblem.UNREADABLE: Skip.CHECKLIST_UNREADABLE,
    FileProblem.TOO_LARGE: Skip.CHECKLIST_TOO_LARGE,
}
