"""Defines the reasons to skip a planned time (`Skip`), and the checks before a heartbeat run, in their order.

The precheck and the length of the prompt are expensive, so they are computed only if the cheap checks skip nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from heartbeat.checklist import Selection, parse_checklist
from heartbeat.checklist_file import FileProblem, create_checklist, read_file
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.spec import Heartbeat, Precheck
from heartbeat.words import Word


class Skip(Word):
    """Why a planned time was skipped, in the order of the checks.

    No check here gives `removed`, `already_running`, `missed`, `superseded`, `predecessor` and `cancelled`: the scheduler records
    them by itself. A new reason also needs a place in the lists of grafana/panels.py, a row in docs/why.md, and, if the agent
    should have run, in LOST_SKIPS of scheduler/model/outcome.py.
    """

    DISABLED = "disabled", "disabled in the config"
    PAUSED = "paused", "paused"
    REMOVED = "removed", "not in the config"
    CALENDAR = "calendar", "excluded by a calendar"
    ACTIVE_HOURS = "active_hours", "outside active hours"
    ALREADY_RUNNING = "already_running", "the previous run was still in progress"
    BUSY = "busy", "busy: the agent was locked"
    CHECKLIST_MISSING = "checklist_missing", "no checklist"
    CHECKLIST_EMPTY = "checklist_empty", "nothing on the checklist"
    CHECKLIST_UNREADABLE = "checklist_unreadable", "the checklist cannot be read"
    CHECKLIST_TOO_LARGE = "checklist_too_large", "the checklist is too large"
    NOTHING_DUE = "nothing_due", "no item of the checklist was due"
    NOT_SHOWN = "not_shown", "no answer would be sent (show_ok, show_alerts: false)"
    BUDGET = "budget", "the budget is used up"
    BREAKER_OPEN = "breaker_open", "the circuit breaker of its provider, model or account is open"
    PRECHECK = "precheck", "the precheck found nothing to do"
    PRECHECK_UNCHANGED = "precheck_unchanged", "the precheck found nothing new"
    PRECHECK_FAILED = "precheck_failed", "the precheck failed"
    PROMPT_TOO_LARGE = "prompt_too_large", "the prompt was too large"
    MISSED = "missed", "missed: it could not start within its grace"
    SUPERSEDED = "superseded", "replaced by a woken run, or skipped because of the longer interval after failures"
    PREDECESSOR = "predecessor", "the job that it follows ended in another way"
    CANCELLED = "cancelled", "its start after another job was cancelled"


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


def first_obstacle(situation: Situation) -> Skip | None:
    """The first reason to skip the run that is known without the precheck. None if all checks pass."""
    for reason, blocks in _checks(situation):
        if blocks:
            return reason
    return None


def check_results(situation: Situation) -> list[tuple[Skip, bool | None]]:
    """Every check in its order, with whether it blocks the run. None for checks that only a real run can do."""
    return [*_checks(situation), *((reason, None) for reason in late_checks(situation.heartbeat.precheck))]


def _checks(it: Situation) -> tuple[tuple[Skip, bool], ...]:
    """The checks in their order. `on_missing: create` counts as missing too: what was just created holds no work."""
    spec, has_text, has_work, blocked = it.heartbeat, not isinstance(it.checklist, Skip), it.has_work, it.blocked
    return (
        (Skip.DISABLED, not spec.enabled),
        (Skip.PAUSED, Skip.PAUSED in blocked),
        (Skip.CALENDAR, not spec.calendars.open_at(it.now)),
        (Skip.ACTIVE_HOURS, not spec.hours.open_at(it.now)),
        (Skip.BUSY, Skip.BUSY in blocked),
        (Skip.CHECKLIST_MISSING, it.checklist is Skip.CHECKLIST_MISSING and spec.on_missing != "run" and not it.woken),
        (Skip.CHECKLIST_EMPTY, has_text and not (has_work or it.woken or spec.on_empty == "run")),
        (Skip.CHECKLIST_UNREADABLE, it.checklist is Skip.CHECKLIST_UNREADABLE),
        (Skip.CHECKLIST_TOO_LARGE, it.checklist is Skip.CHECKLIST_TOO_LARGE),
        (Skip.NOTHING_DUE, has_work and not (it.woken or it.selection.has_work)),
        (Skip.NOT_SHOWN, not (spec.show_ok or spec.show_alerts)),
        (Skip.BUDGET, Skip.BUDGET in blocked),
        (Skip.BREAKER_OPEN, Skip.BREAKER_OPEN in blocked),
    )


def late_checks(precheck: Precheck | None) -> tuple[Skip, ...]:
    """The reasons that only a real run can find, in their order."""
    return (*(PRECHECK_SKIPS if precheck else ()), Skip.PROMPT_TOO_LARGE)


def load_checklist(heartbeat: Heartbeat) -> str | Skip:
    """The text of the checklist, from its file unless it is in the config itself, or the reason why it cannot be read."""
    if "\n" in heartbeat.checklist:
        return heartbeat.checklist
    found = read_file(heartbeat.workspace, heartbeat.checklist)
    return Skip(f"checklist_{found.value}") if isinstance(found, FileProblem) else found


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


def precheck_obstacle(precheck: Precheck, checked: PrecheckResult, *, woken: bool) -> Skip | None:
    """The reason to skip a run after its precheck; None if the agent is to be called."""
    if checked.status is PrecheckStatus.NOTHING and not woken:
        return Skip.PRECHECK
    if checked.status is PrecheckStatus.UNCHANGED and not woken and precheck.unchanged == "skip":
        return Skip.PRECHECK_UNCHANGED
    if checked.status is PrecheckStatus.FAILED and precheck.on_error == "skip":
        return Skip.PRECHECK_FAILED
    return None


PRECHECK_SKIPS = (Skip.PRECHECK, Skip.PRECHECK_UNCHANGED, Skip.PRECHECK_FAILED)
