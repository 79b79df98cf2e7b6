"""Loads the config for a start. Reloads it on request, on SIGHUP and after a change, and edits it. An error changes nothing."""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from heartbeatd.state_folder import read_state_path, read_state_server
from scheduler.config.file.diagnostics import ConfigError, Diagnostic
from scheduler.config.file.text_editing import BYTE_ORDER_MARK
from scheduler.config.settings import load
from scheduler.config.settings.config_diff import compare_configs, compare_stored
from scheduler.config.settings.config_snapshot import mask_text, store_config
from scheduler.config.settings.load import LoadedConfig
from scheduler.config.settings.time_checks import TimeCheck
from scheduler.engine import observed_problems
from scheduler.engine.plan_sync import adopt_plan
from scheduler.engine.tick_items import Inbox, Refused, Tick
from scheduler.model.config_changes import ConfigDiff, ConfigEvent, StoredConfig, Undo
from scheduler.model.daemon_health import ReloadState
from scheduler.model.settings import Settings
from scheduler.store import config_history, entries
from scheduler.system.file_watch import hash_of_file
from scheduler.system.files import FileChanged, read_file, replace_file
from scheduler.system.log import log_event
from scheduler.system.state_lock import RefusedStart, record_refused_start
from scheduler.work import plan as plans
from scheduler.work.plan import Plan

NO_ANSWER = "no_answer"
NOT_IN_FORCE = "not_in_force"
NOT_IN_FORCE_ADVICE = (
    "the config file has other changes that are not applied yet, and this token may not apply them; ask somebody to check the"
    " file and to run `heartbeatd reload`, then try again"
)
ANSWER_TIMEOUT = 30.0  # seconds
STOPPING = "the daemon is stopping; it applies the config when it starts again"
NOTHING_CHANGED = "nothing changed"
MAX_LINES = 40  # lines in the log and in an answer; the database has the rest
MIN_ENTRIES_TO_DOUBT = 4  # with fewer entries, a file that removes more than half of them is not doubted


def load_for_start(path: Path, environ: Mapping[str, str], now: datetime) -> LoadedConfig:
    """Load the config for a start. Raises ConfigError, and records the refused start if a daemon has run here before."""
    try:
        return load.load_config(path, environ, time_check=_lenient_time_check(now))
    except ConfigError as error:
        database = read_state_path(path, environ)
        trace = database.parent if read_state_server(path, environ) else database  # of an earlier daemon on this machine
        if trace.exists():
            problem = str(error).splitlines()[0].removeprefix(f"{path.parent}/")
            refused = RefusedStart(now, os.getpid(), str(path.absolute()), problem)
            record_refused_start(database.with_name(database.name + ".lock"), refused)
        raise


def load_for_standby(
    in_force: Plan, loaded_in_force: LoadedConfig, path: Path, environ: Mapping[str, str], now: datetime
) -> tuple[LoadedConfig, ConfigError | Refused | None]:
    """The config for a daemon that returns to standby, and the error if it is not the file's.

    It is the last config in force if a running daemon would not apply the file either: because the file has errors or
    may be half-written, or with `reload: manual`. The daemon must not exit because of a bad file, because it
    may have to take over. `state` stays as it was at the start, whatever the file says now.
    """
    state, server = in_force.settings.state, in_force.settings.postgresql
    with_old_state = replace(loaded_in_force, settings=replace(loaded_in_force.settings, state=state, postgresql=server))
    if in_force.settings.reload == "manual":
        return with_old_state, None
    try:
        loaded = load.load_config(path, environ, time_check=_lenient_time_check(now))
        check_removals(in_force, loaded)
        if loaded.settings.database != in_force.settings.database:  # a standby of the old database might lead beside this one
            raise Refused("restart_needed", "`state` has changed; restart all daemons of this config with the new value")
    except (ConfigError, Refused) as error:
        return with_old_state, error
    return loaded, None


def _lenient_time_check(now: datetime) -> TimeCheck:
    return TimeCheck(now, entries.has_seen_one_time_job, strict=False)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of a successful reload: the changes, the number of unchanged entries, and the loader's warnings."""

    diff: ConfigDiff
    unchanged: int
    warnings: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """The changes as lines for people."""
        return self.diff.lines(MAX_LINES) or [NOTHING_CHANGED]


@dataclass(frozen=True, slots=True)
class EditedConfig:
    """The result of an edit: the SHA-256 of the new file, its changed lines as a diff without context, and the reload.

    Secrets in `diff` are masked. `problems` are the warnings of the loader. `stored` is the copy for the database.
    """

    hash: str
    diff: tuple[str, ...]
    reloaded: Reloaded
    problems: tuple[Diagnostic, ...]
    stored: StoredConfig | None = None


class LoadConfig(Protocol):
    """Loads the config file; with `content` the file as it would be with that content. Raises ConfigError."""

    def __call__(self, *, content: bytes | None = None) -> LoadedConfig: ...


class Reloader:
    """Loads the file, makes a plan from it, and lets the engine adopt it.

    `loaded` is the config in force. Any thread may call the methods except the engine's, because they wait for the engine.
    """

    def __init__(
        self,
        load: LoadConfig,
        loaded: LoadedConfig,
        current_plan: Callable[[], Plan],
        inbox: Inbox,
        clock: Callable[[], datetime],
    ) -> None:
        self._load = load
        self.loaded = loaded
        self._current_plan = current_plan
        self._inbox = inbox
        self._clock = clock
        self._one_at_a_time = threading.Lock()
        self._submitting = threading.Lock()
        self._answer: Future[object] | None = None  # of the engine to the last plan
        self._is_stopped = False
        self._last_rejection: tuple[str | None, str] | None = None  # the last rejected file (its hash), and its errors
        self.reload_state = ReloadState(successful=True, succeeded_at=clock())

    def reload(self, *, by: str, dry: bool = False, doubt: bool = False) -> Reloaded:
        """Load and apply the file. Raises ConfigError with all its errors, or Refused; then the previous config stays active.

        `by` is who asks for it. `dry` only returns what would change. `doubt` refuses a file that removes more than half of the
        entries, because it may be half-written: then only an explicit reload applies it.
        """
        with self._one_at_a_time:
            try:
                return self._reload(by=by, dry=dry, doubt=doubt)
            except (ConfigError, Refused) as error:
                refusal: ConfigError | Refused = error
            except Exception as error:  # noqa: BLE001 (a defect in a check must not end the thread that watches the file)
                log_event(logging.ERROR, "reload_broken", error=error)
                refusal = Refused.by_defect("load the config")
            if not dry and not _is_late(refusal):
                self.report_rejection(refusal, by)
            raise refusal

    def edit(
        self,
        change: Callable[[str], str],
        expected_hash: str,
        *,
        by: str,
        dry: bool = False,
        alone: bool = False,
        undo: Undo | None = None,
    ) -> EditedConfig:
        """Change the text of the file, and apply it. `dry` only returns what would change. `undo` is recorded with the change.

        With `alone`, nothing but this change may be applied: Refused is raised while the file has other changes that are not in
        force. `expected_hash` is the SHA-256 of the version that the caller has read. Raises FileChanged if the file is another
        one by now, ConfigError if the new text has errors, Refused, OSError, or what `change` raises. In all of these cases the
        file is as it was, except after Refused with the code `no_answer`.
        """
        path = self._current_plan().settings.path
        with self._one_at_a_time:
            before = read_file(path)
            if hash_of_bytes(before) != expected_hash:
                raise FileChanged(f"{path.name} has changed since you read it")
            old = before.decode()
            if alone:
                self._check_in_force(before)
            new = change(old)
            after = new.encode()
            loaded = self._load(content=after)
            plan, reloaded = self._describe_reload(loaded)
            if not dry and after != before:
                replace_file(path, before, after)
                event = ConfigEvent("applied", by, reloaded.diff, undo=undo)
                self._adopt_plan(plan, event, loaded, reloaded)
        return EditedConfig(
            hash_of_bytes(after), changed_lines(old, new, mask_text), reloaded, tuple(loaded.warnings), plan.stored_config
        )

    def stop(self) -> None:
        """Apply nothing more. A reload in progress ends: the engine's thread, which calls this, will wait for it."""
        with self._submitting:
            self._is_stopped = True
            if self._answer is not None:
                self._answer.cancel()

    def _check_in_force(self, content: bytes) -> None:
        """Raise Refused if the file would change anything as it is."""
        try:
            loaded = self._load(content=content)
        except ConfigError:
            raise Refused(NOT_IN_FORCE, NOT_IN_FORCE_ADVICE) from None
        if loaded.settings.hash != self._current_plan().settings.hash or compare_configs(self.loaded, loaded):
            raise Refused(NOT_IN_FORCE, NOT_IN_FORCE_ADVICE)

    def _reload(self, *, by: str, dry: bool, doubt: bool) -> Reloaded:
        in_force, loaded = self._current_plan(), self._load()
        new, reloaded = self._describe_reload(loaded)
        if doubt:
            check_removals(in_force, loaded)
        is_known = self.reload_state.successful and loaded.settings.hash == in_force.settings.hash
        if dry or (doubt and is_known):  # after `reload: manual`, the watch reports a change that is active already
            return reloaded
        # Everything above may fail, and changes nothing. From here on, only a database that cannot be written fails.
        self._adopt_plan(new, ConfigEvent("applied", by, reloaded.diff), loaded, reloaded)
        return reloaded

    def _describe_reload(self, loaded: LoadedConfig) -> tuple[Plan, Reloaded]:
        """The plan of a loaded config, and everything that it changes."""
        in_force, diff = self._current_plan().settings, compare_configs(self.loaded, loaded)
        new = plans.make_plan(_keep_until_restart(in_force, loaded.settings), store_config(loaded))
        changed = {*diff.added, *(name for each in diff.changes for name in each.entries)}
        warnings = (*map(str, loaded.warnings), *restart_warnings(in_force, loaded.settings))
        return new, Reloaded(diff, len(new.entries) - len(changed), warnings)

    def _adopt_plan(self, plan: Plan, event: ConfigEvent, loaded: LoadedConfig, reloaded: Reloaded) -> None:
        """Let the engine adopt the plan. Raises Refused if the engine cannot do it now. It then does it later."""
        by = event.by
        with self._submitting:
            if self._is_stopped:
                raise Refused(NO_ANSWER, STOPPING)
            answer = self._answer = self._inbox.submit(partial(adopt_plan, plan=plan, event=event))
        try:
            answer.result(ANSWER_TIMEOUT)
        except CancelledError:
            raise Refused(NO_ANSWER, STOPPING) from None
        except NoAnswer as error:
            late = Refused(NO_ANSWER, "the database cannot be written now; the new config is applied once it can be")
            self.report_rejection(late, by)
            answer.add_done_callback(partial(self._report_late_answer, loaded, reloaded, by))
            raise late from error
        self._report_success(loaded, reloaded, by)

    def _report_late_answer(self, loaded: LoadedConfig, reloaded: Reloaded, by: str, answer: Future[object]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if isinstance(error, Refused):
            self.report_rejection(error, by)
        else:
            self._report_success(loaded, reloaded, by)

    def _report_success(self, loaded: LoadedConfig, reloaded: Reloaded, by: str) -> None:
        self.loaded = loaded
        self.reload_state, self._last_rejection = ReloadState(successful=True, succeeded_at=self._clock()), None
        for line in reloaded.lines:
            log_event(logging.INFO, "reload", change=line, by=by)
        for warning in reloaded.warnings:
            log_event(logging.WARNING, "config", problem=warning)

    def report_rejection(self, error: ConfigError | Refused, by: str) -> None:
        """Log and record the errors once per file, however often a reload is requested. `status` continues to show them."""
        before, self._last_rejection = self._last_rejection, (hash_of_file(self._current_plan().settings.path), str(error))
        self.reload_state = ReloadState(successful=False, succeeded_at=self.reload_state.succeeded_at, problem=str(error))
        is_new = before != self._last_rejection
        if not _is_late(error):  # a late config is applied later, so the database must not call it rejected
            self._inbox.submit(partial(note_rejected_config, problem=str(error), by=by, is_new=is_new))
        for line in str(error).splitlines():
            log_event(logging.ERROR if is_new else logging.DEBUG, "reload_refused", problem=line, by=by)


def note_rejected_config(tick: Tick, problem: str, by: str, *, is_new: bool = True) -> None:
    """Record that a changed config was rejected, and who requested the reload. `is_new` False: it was recorded before.

    The default channel is notified if the last config was not rejected.
    """
    observed_problems.note_daemon(tick, observed_problems.CONFIG, problem.replace(f"{tick.plan.settings.path.parent}/", ""))
    if is_new:
        config_history.record_config_event(tick.tx, ConfigEvent("refused", by, problem=problem))


def hash_of_bytes(content: bytes) -> str:
    """The SHA-256 of a config file, by which edits say which version they have read."""
    return hashlib.sha256(content).hexdigest()


def changed_lines(old: str, new: str, mask: Callable[[str], str] = str) -> tuple[str, ...]:
    """The lines of a unified diff without context, because a caller who may edit one entry may not see the others.

    `mask` hides the secrets of a text without changing the number of its lines.
    """
    old, new = old.removeprefix(BYTE_ORDER_MARK), new.removeprefix(BYTE_ORDER_MARK)
    before, after = mask(old).splitlines(), mask(new).splitlines()
    lines: list[str] = []
    for what, from_old, to_old, from_new, to_new in difflib.SequenceMatcher(
        None, old.splitlines(), new.splitlines()
    ).get_opcodes():
        if what == "equal":
            continue
        lines.append(f"@@ -{_line_range(from_old, to_old)} +{_line_range(from_new, to_new)} @@")
        lines += [f"-{line}" for line in before[from_old:to_old]] + [f"+{line}" for line in after[from_new:to_new]]
    return tuple(lines)


def _line_range(start: int, stop: int) -> str:
    """Lines in the head of a change, as `diff` counts them: one line is its number, and no line is the one before."""
    return str(start + 1) if stop - start == 1 else f"{start if start == stop else start + 1},{stop - start}"


def _is_late(error: Exception) -> bool:
    """Whether the engine has not answered in time. It adopts the plan later."""
    return isinstance(error, Refused) and error.code == NO_ANSWER


def plan_for_start(loaded: LoadedConfig, last: StoredConfig | None) -> tuple[Plan, ConfigEvent | None]:
    """The first plan of a boot, and what has changed since `last`, the last active config; None if nothing has."""
    stored = store_config(loaded)
    # The last one may be that of another host, whose folder and name are others. Relative paths are then no change.
    found = compare_stored(replace(last, path=stored.path), stored) if last and last.hash != stored.hash else None
    diff = found.diff if found else ConfigDiff()
    if loaded.settings.postgresql is not None:
        diff = replace(diff, changes=tuple(each for each in diff.changes if each.key != "host"))
    return plans.make_plan(loaded.settings, stored), ConfigEvent("started", "start", diff) if diff else None


def check_removals(in_force: Plan, loaded: LoadedConfig) -> None:
    """Raise Refused if a config removes more than half of the entries: the file may be half-written."""
    had, kept = len(in_force.entries), len(in_force.entries.keys() & plans.make_plan(loaded.settings).entries.keys())
    if had >= MIN_ENTRIES_TO_DOUBT and (had - kept) * 2 > had:
        raise Refused(
            "too_much_removed",
            f"the changed file removes {had - kept} of {had} entries; if this is intended, run `heartbeatd reload`",
        )


def _keep_until_restart(in_force: Settings, new: Settings) -> Settings:
    """The new settings, with those that the process has begun with and cannot change."""
    server = replace(new.server, host=in_force.server.host, port=in_force.server.port)
    return replace(new, state=in_force.state, postgresql=in_force.postgresql, remote=in_force.remote, server=server)


def restart_warnings(old: Settings, new: Settings) -> tuple[str, ...]:
    """Warnings about changed settings that a running daemon cannot apply."""
    changed = {
        "executor": old.remote != new.remote,
        "state": old.database != new.database,
        "server.listen": (old.server.host, old.server.port) != (new.server.host, new.server.port),
    }
    return tuple(
        f"{key}: changed; the change takes effect when the daemon is restarted" for key, is_new in changed.items() if is_new
    )
