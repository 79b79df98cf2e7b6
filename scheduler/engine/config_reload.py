"""Reload: one path for every way of asking, and the old config stays in force unless the new one is wholly right."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass
from datetime import datetime

from scheduler.config.build.load import LoadedConfig
from scheduler.config.file.diagnostics import ConfigError
from scheduler.engine.inbox import Inbox, Refused
from scheduler.engine.requests import AdoptPlan, NoteRejectedConfig
from scheduler.model.daemon_health import ReloadState
from scheduler.model.settings import Settings
from scheduler.system.file_watch import hash_of_file
from scheduler.system.log import log_event
from scheduler.work import plan as plans
from scheduler.work.plan import Diff, Plan

ANSWER_TIMEOUT = 30.0  # seconds
MIN_ENTRIES_TO_DOUBT = 4  # entries from which on a file that loses more than half of them is doubted


@dataclass(frozen=True, slots=True)
class Reloaded:
    """A reload that went well: what it changed, and what the loader warned of."""

    diff: Diff
    warnings: tuple[str, ...]


class Reloader:
    """Loads the file, makes a plan of it, and has the engine adopt it. Safe to call from any thread but the engine's."""

    def __init__(
        self, load: Callable[[], LoadedConfig], current_plan: Callable[[], Plan], inbox: Inbox, clock: Callable[[], datetime]
    ) -> None:
        self._load = load
        self._current_plan = current_plan
        self._inbox = inbox
        self._clock = clock
        self._one_at_a_time = threading.Lock()
        self._last_rejection: tuple[str | None, str] | None = None  # what was refused last, and why
        self.reload_state = ReloadState(successful=True, succeeded_at=clock())

    def reload(self, *, dry: bool = False, doubt: bool = False) -> Reloaded:
        """Take the file as it is now. Raises ConfigError with all its faults, or Refused; then the old config stays in force.

        `dry` only says what would change. `doubt` refuses a file that has lost more than half of its entries, as a half-written
        one may have: that takes somebody who says so.
        """
        with self._one_at_a_time:
            try:
                return self._reload(dry=dry, doubt=doubt)
            except (ConfigError, Refused) as error:
                if not dry:
                    self._report_rejection(error)
                raise

    def _reload(self, *, dry: bool, doubt: bool) -> Reloaded:
        loaded = self._load()
        new = plans.make(loaded.settings)
        change = plans.diff(self._current_plan().settings, new.settings)
        if doubt:
            _check_removals(self._current_plan(), change)
        warnings = (*map(str, loaded.warnings), *_restart_warnings(self._current_plan().settings, new.settings))
        if dry:
            return Reloaded(change, warnings)
        # Above this line everything may fail and nothing is touched; below it nothing fails but the database being away.
        adopted = self._adopt_plan(new)
        self.reload_state, self._last_rejection = ReloadState(successful=True, succeeded_at=self._clock()), None
        for line in adopted.lines():
            log_event(logging.INFO, "reload", change=line)
        for warning in warnings:
            log_event(logging.WARNING, "config", problem=warning)
        return Reloaded(adopted, warnings)

    def _adopt_plan(self, new: Plan) -> Diff:
        try:
            adopted: Diff = self._inbox.submit(AdoptPlan(new)).result(ANSWER_TIMEOUT)
        except NoAnswer as error:
            raise Refused("no_answer", "the database cannot be written now; the new config is applied once it can be") from error
        return adopted

    def _report_rejection(self, error: ConfigError | Refused) -> None:
        """A file may be taken up by hand, by a signal and by the watch, and is complained of once; `status` goes on saying it."""
        before, self._last_rejection = self._last_rejection, (hash_of_file(self._current_plan().settings.path), str(error))
        self.reload_state = ReloadState(successful=False, succeeded_at=self.reload_state.succeeded_at, problem=str(error))
        self._inbox.submit(NoteRejectedConfig(str(error)))
        for line in str(error).splitlines():
            log_event(logging.DEBUG if before == self._last_rejection else logging.ERROR, "reload_refused", problem=line)


def _check_removals(in_force: Plan, change: Diff) -> None:
    had = len(in_force.entries)
    if had >= MIN_ENTRIES_TO_DOUBT and len(change.removed) * 2 > had:
        raise Refused(
            "too_much_removed",
            f"the changed file removes {len(change.removed)} of {had} entries; if this is intended, run `heartbeatd reload`",
        )


def _restart_warnings(old: Settings, new: Settings) -> tuple[str, ...]:
    """What cannot change under a running daemon."""
    changed = {
        "state": old.state != new.state,
        "server.listen": (old.server.host, old.server.port) != (new.server.host, new.server.port),
    }
    return tuple(
        f"{key}: changed; the change takes effect when the daemon is restarted" for key, is_new in changed.items() if is_new
    )
