"""Reloads the config file: on request, on SIGHUP, and when the file changes. A faulty config changes nothing."""

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
from scheduler.work.plan import ConfigChanges, Plan

ANSWER_TIMEOUT = 30.0  # seconds
MIN_ENTRIES_TO_DOUBT = 4  # with fewer entries, a file that removes more than half of them is not doubted


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of a successful reload: what changed, and the warnings of the loader."""

    diff: ConfigChanges
    warnings: tuple[str, ...]


class Reloader:
    """Loads the file, makes a plan from it, and lets the engine adopt it.

    Any thread may call it except the engine's, because it waits for the engine.
    """

    def __init__(
        self, load: Callable[[], LoadedConfig], current_plan: Callable[[], Plan], inbox: Inbox, clock: Callable[[], datetime]
    ) -> None:
        self._load = load
        self._current_plan = current_plan
        self._inbox = inbox
        self._clock = clock
        self._one_at_a_time = threading.Lock()
        self._last_rejection: tuple[str | None, str] | None = None  # the last rejected file (its hash), and its errors
        self.reload_state = ReloadState(successful=True, succeeded_at=clock())

    def reload(self, *, dry: bool = False, doubt: bool = False) -> Reloaded:
        """Load and apply the file. Raises ConfigError with all its errors, or Refused; then the old config stays in force.

        `dry` only returns what would change. `doubt` refuses a file that removes more than half of the entries, because it may
        be half-written: then only an explicit reload applies it.
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
        new = plans.make_plan(loaded.settings)
        change = plans.compare_settings(self._current_plan().settings, new.settings)
        if doubt:
            _check_removals(self._current_plan(), change)
        warnings = (*map(str, loaded.warnings), *_restart_warnings(self._current_plan().settings, new.settings))
        if dry:
            return Reloaded(change, warnings)
        # Everything above may fail, and changes nothing. From here on, only a database that cannot be written fails.
        adopted = self._adopt_plan(new)
        self.reload_state, self._last_rejection = ReloadState(successful=True, succeeded_at=self._clock()), None
        for line in adopted.lines():
            log_event(logging.INFO, "reload", change=line)
        for warning in warnings:
            log_event(logging.WARNING, "config", problem=warning)
        return Reloaded(adopted, warnings)

    def _adopt_plan(self, new: Plan) -> ConfigChanges:
        try:
            adopted: ConfigChanges = self._inbox.submit(AdoptPlan(new)).result(ANSWER_TIMEOUT)
        except NoAnswer as error:
            raise Refused("no_answer", "the database cannot be written now; the new config is applied once it can be") from error
        return adopted

    def _report_rejection(self, error: ConfigError | Refused) -> None:
        """Log the errors once per file, however often a reload is requested. `status` continues to show them."""
        before, self._last_rejection = self._last_rejection, (hash_of_file(self._current_plan().settings.path), str(error))
        self.reload_state = ReloadState(successful=False, succeeded_at=self.reload_state.succeeded_at, problem=str(error))
        self._inbox.submit(NoteRejectedConfig(str(error)))
        for line in str(error).splitlines():
            log_event(logging.DEBUG if before == self._last_rejection else logging.ERROR, "reload_refused", problem=line)


def _check_removals(in_force: Plan, change: ConfigChanges) -> None:
    had = len(in_force.entries)
    if had >= MIN_ENTRIES_TO_DOUBT and len(change.removed) * 2 > had:
        raise Refused(
            "too_much_removed",
            f"the changed file removes {len(change.removed)} of {had} entries; if this is intended, run `heartbeatd reload`",
        )


def _restart_warnings(old: Settings, new: Settings) -> tuple[str, ...]:
    """Warnings about changed settings that a running daemon cannot apply."""
    changed = {
        "state": old.state != new.state,
        "server.listen": (old.server.host, old.server.port) != (new.server.host, new.server.port),
    }
    return tuple(
        f"{key}: changed; the change takes effect when the daemon is restarted" for key, is_new in changed.items() if is_new
    )
