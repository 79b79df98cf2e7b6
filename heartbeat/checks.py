"""The chain of checks that a beat must pass before anything is asked, and the words for each refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property

from heartbeat import checklist, due_items
from heartbeat.checklist_file import FileProblem, create_checklist, read_file
from heartbeat.due_items import Selection
from heartbeat.precheck import PrecheckResult, PrecheckStatus
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


@dataclass(frozen=True)
class Situation:
    """All that the chain looks at.

    `checklist` is its text, or why there is none, as `checklist_of` finds it; `slot` and `asked` decide which of its items are
    due, as `items.select` says. `breaker_open` says that the provider of the model refuses us, and that it is not yet time to
    try it again; `busy`, that somebody else is speaking to the agent; `over_budget`, that the day's budget has no room for this
    beat; `room` is how many tokens a prompt may have by that budget. What costs something is found last: `precheck` and
    `tokens`, the prompt's length, are None until all that stands before them in the chain has been passed.
    """

    heartbeat: Heartbeat
    now: datetime
    woken: bool
    paused: bool
    checklist: str | Skip
    breaker_open: bool = False
    busy: bool = False
    over_budget: bool = False
    token_limit: int | None = None
    slot: datetime | None = None
    last_prompted: Mapping[str, datetime] = field(default_factory=dict)
    precheck: PrecheckResult | None = None
    prompt_tokens: int | None = None

    @cached_property
    def selection(self) -> Selection:
        """What of the checklist is asked about; a wake asks about all of it."""
        if isinstance(self.checklist, Skip):
            return EMPTY_SELECTION
        return due_items.select_due_items(self.checklist, self.slot or self.now, self.last_prompted, everything=self.woken)

    def with_results(self, *, precheck: PrecheckResult | None = None, tokens: int | None = None) -> Situation:
        """A copy with the result of the precheck or the length of the prompt; keeps the selection that is already cached."""
        later = object.__new__(Situation)
        later.__dict__.update(self.__dict__)
        if precheck is not None:
            later.__dict__["precheck"] = precheck
        if tokens is not None:
            later.__dict__["prompt_tokens"] = tokens
        return later

    @property
    def has_work(self) -> bool:
        """Whether anything stands on the checklist, due or not."""
        return not isinstance(self.checklist, Skip) and checklist.has_work(self.checklist)

    @property
    def runs_without_checklist(self) -> bool:
        """Whether it is the config that wants this beat though there is nothing on the checklist, or none."""
        if isinstance(self.checklist, Skip):
            return self.checklist is Skip.CHECKLIST_MISSING and self.heartbeat.on_missing == "run"
        return self.heartbeat.on_empty == "run" and not self.has_work


EMPTY_SELECTION = Selection("", has_work=False)
Check = tuple[Skip, Callable[[Situation], bool]]


def first_obstacle(situation: Situation) -> Skip | None:
    """The first reason in the chain not to run; None when nothing stands in the way."""
    return _first_blocking(situation, (*_CHECKS, *_LATE_CHECKS))


def check_results(situation: Situation) -> list[tuple[Skip, bool | None]]:
    """Every check of the chain in its order, with whether it stands in the way; None for what only a beat finds out."""
    late = (reason for reason, _ in _LATE_CHECKS if situation.heartbeat.precheck or reason is Skip.PROMPT_TOO_LARGE)
    return [*((reason, stands(situation)) for reason, stands in _CHECKS), *((reason, None) for reason in late)]


def late_obstacle(situation: Situation) -> Skip | None:
    """The same, of a situation in which nothing stood in the way until what is found last was found."""
    return _first_blocking(situation, _LATE_CHECKS)


def _first_blocking(situation: Situation, chain: tuple[Check, ...]) -> Skip | None:
    return next((reason for reason, stands in chain if stands(situation)), None)


def load_checklist(heartbeat: Heartbeat) -> str | Skip:
    """The checklist's text, from its file unless it stands in the config itself, or why it cannot be had."""
    if "\n" in heartbeat.checklist:
        return heartbeat.checklist
    found = read_file(heartbeat.workspace, heartbeat.checklist)
    return _SKIP_BY_PROBLEM[found] if isinstance(found, FileProblem) else found


def create_missing_checklist(heartbeat: Heartbeat, obstacle: Skip) -> str | None:
    """Write a checklist to start from where there is none and `on_missing: create` says so; gives why it could not be written."""
    if obstacle is not Skip.CHECKLIST_MISSING or heartbeat.on_missing != "create":
        return None
    try:
        create_checklist(heartbeat.workspace, heartbeat.checklist)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return f"could not create {heartbeat.workspace / heartbeat.checklist}: {why}"
    return None


def _is_disabled(situation: Situation) -> bool:
    return not situation.heartbeat.enabled


def _is_paused(situation: Situation) -> bool:
    return situation.paused


def _is_day_off(situation: Situation) -> bool:
    return not situation.heartbeat.calendars.open_at(situation.now)


def _is_outside_hours(situation: Situation) -> bool:
    return not situation.heartbeat.hours.open_at(situation.now)


def _is_busy(situation: Situation) -> bool:
    return situation.busy


def _is_checklist_missing(situation: Situation) -> bool:
    """`on_missing: create` counts as missing too: what was just created holds no work."""
    return situation.checklist is Skip.CHECKLIST_MISSING and situation.heartbeat.on_missing != "run" and not situation.woken


def _is_checklist_empty(situation: Situation) -> bool:
    if situation.woken or situation.heartbeat.on_empty == "run" or isinstance(situation.checklist, Skip):
        return False
    return not situation.has_work


def _is_checklist_unreadable(situation: Situation) -> bool:
    return situation.checklist is Skip.CHECKLIST_UNREADABLE


def _is_checklist_too_large(situation: Situation) -> bool:
    return situation.checklist is Skip.CHECKLIST_TOO_LARGE


def _has_nothing_due(situation: Situation) -> bool:
    return situation.has_work and not situation.woken and not situation.selection.has_work


def _shows_no_answer(situation: Situation) -> bool:
    return not (situation.heartbeat.show_ok or situation.heartbeat.show_alerts)


def _is_over_budget(situation: Situation) -> bool:
    return situation.over_budget


def _is_breaker_open(situation: Situation) -> bool:
    return situation.breaker_open


def _precheck_found_nothing(situation: Situation) -> bool:
    return _has_precheck_status(situation, PrecheckStatus.NOTHING) and not situation.woken


def _precheck_is_unchanged(situation: Situation) -> bool:
    precheck = situation.heartbeat.precheck
    return (
        _has_precheck_status(situation, PrecheckStatus.UNCHANGED)
        and not situation.woken
        and precheck is not None
        and precheck.unchanged == "skip"
    )


def _precheck_has_failed(situation: Situation) -> bool:
    precheck = situation.heartbeat.precheck
    return _has_precheck_status(situation, PrecheckStatus.FAILED) and precheck is not None and precheck.on_error == "skip"


def _has_precheck_status(situation: Situation, found: PrecheckStatus) -> bool:
    return situation.precheck is not None and situation.precheck.status is found


def _is_prompt_too_large(situation: Situation) -> bool:
    room = situation.heartbeat.max_input_tokens if situation.token_limit is None else situation.token_limit
    return situation.prompt_tokens is not None and situation.prompt_tokens > room


_CHECKS: tuple[Check, ...] = (
    (Skip.DISABLED, _is_disabled),
    (Skip.PAUSED, _is_paused),
    (Skip.CALENDAR, _is_day_off),
    (Skip.ACTIVE_HOURS, _is_outside_hours),
    (Skip.BUSY, _is_busy),
    (Skip.CHECKLIST_MISSING, _is_checklist_missing),
    (Skip.CHECKLIST_EMPTY, _is_checklist_empty),
    (Skip.CHECKLIST_UNREADABLE, _is_checklist_unreadable),
    (Skip.CHECKLIST_TOO_LARGE, _is_checklist_too_large),
    (Skip.NOTHING_DUE, _has_nothing_due),
    (Skip.NOT_SHOWN, _shows_no_answer),
    (Skip.BUDGET, _is_over_budget),
    (Skip.BREAKER_OPEN, _is_breaker_open),
)

_LATE_CHECKS: tuple[Check, ...] = (
    (Skip.PRECHECK, _precheck_found_nothing),
    (Skip.PRECHECK_UNCHANGED, _precheck_is_unchanged),
    (Skip.PRECHECK_FAILED, _precheck_has_failed),
    (Skip.PROMPT_TOO_LARGE, _is_prompt_too_large),
)

_SKIP_BY_PROBLEM = {
    FileProblem.MISSING: Skip.CHECKLIST_MISSING,
    FileProblem.UNREADABLE: Skip.CHECKLIST_UNREADABLE,
    FileProblem.TOO_LARGE: Skip.CHECKLIST_TOO_LARGE,
}
