"""Explains the day of an agent or a job in one sentence: whether it was silent or unusual, why, and which command shows details.

The runs of the day are counted by cause. Details are read only if they explain something, so ten thousand entries take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property

from heartbeat.checklist import parse_checklist
from heartbeat.checks import load_checklist
from heartbeat.spec import Heartbeat
from heartbeat.words import format_count, squeeze
from heartbeatd.answers import DayResult, EntryOverview, RunRecord
from scheduler.insight import entry_states, reason_texts, schedule_texts, wake_waits
from scheduler.insight.reason_texts import DAEMON_DOWN, DUE, REASON_TEXTS, RUNNING, SlotCause
from scheduler.insight.records import NEW_ENTRY, ExplainedEntry, Records
from scheduler.model import entry_schedule, local_days, outcome
from scheduler.model.entry_row import EntryRow
from scheduler.model.entry_schedule import MICROSECOND
from scheduler.model.outcome import ANSWERED, FAILURES, DeliveryState, Failure, Kind, Outcome, Reason, Skip, Suppression, Trigger
from scheduler.model.problem import FALLBACK
from scheduler.model.settings import LAST_TARGET, LOG_CHANNEL
from scheduler.store import entries, run_history
from scheduler.store.run_history import CauseCount

MAX_CHANGES = 2  # changed keys in a line
MAX_ERROR = 160  # characters of an error in a line
SOON = timedelta(minutes=1)  # a due run may wait this long without being unusual

# Skips that are part of normal work if the entry also ran on that day.
NORMAL_SKIPS = outcome.SCHEDULE_SKIPS | outcome.NOTHING_TO_DO | {Skip.SUPERSEDED}


def explain_day(records: Records, row: EntryRow) -> EntryOverview:
    """The most important fact about the period of the records for one entry."""
    return _EntryDay(records, row).explain()


def existed(records: Records, row: EntryRow) -> bool:
    """Whether an entry belongs to the period: it existed at that time, or is new in the config now."""
    if row.id == NEW_ENTRY:
        return records.is_today and row.state == "active"
    if row.first_seen_at >= records.period.end:
        return False
    return row.state != "removed" or row.key in records.past


class _EntryDay(ExplainedEntry):
    """The day of one entry.

    `ran` counts the runs of the day, by slots or wakes, whatever their outcome, `skipped` the slots that did not run, and
    `delivered` the delivered messages of its runs. `undelivered` are messages and notifications that have not arrived. Those that
    will never arrive by themselves come first.
    """

    def __init__(self, records: Records, row: EntryRow) -> None:
        super().__init__(records, row)
        self._schedule_parts = entry_schedule.schedule_parts(row.schedule_text)
        found = records.causes.get(self.key, [])
        # A job after another one has no slots: each end of that job is like one.
        others = outcome.WITHOUT_SLOT - ({Trigger.CRON} if "after" in self._schedule_parts else set())
        self._causes = sorted((each for each in found if each.trigger not in others), key=_newest)
        self._other_runs = [each for each in found if each.trigger in others]
        self._all_runs = (*self._causes, *self._other_runs)
        self._failed = [each for each in self._all_runs if _has_failed(each)]
        self._open_cause = next((each for each in self._causes if each.state != "closed"), None)  # its run that has not ended
        self._messages = records.messages.get(self.key, [])
        self._past = records.past.get(self.key, [])
        self.ran = sum(each.runs for each in self._all_runs if _has_run(each))
        self.skipped = sum(each.slots for each in self._causes if each.outcome == Outcome.SKIPPED)
        arrived = (each for each in self._messages if each.state is DeliveryState.DELIVERED and not each.is_notice)
        self.delivered = sum(each.count for each in arrived)
        self.undelivered = sorted((each for each in self._messages if each.is_undelivered(self.now)), key=lambda each: each.rank)
        self._adopt_command = "heartbeatd reload" if records.daemon.is_running else "heartbeatd run"
        self._explain_command = f"heartbeatd explain {self.label}"
        is_agent = row.kind is Kind.HEARTBEAT
        self._effective_command = f"heartbeatd check --effective {row.name}" if is_agent else self._explain_command

    def _is_normal(self, reason: str | None) -> bool:
        """Whether slots are skipped for this reason as part of normal work."""
        waits_for_failure = reason == Skip.PREDECESSOR and self._schedule_parts.get("on") == "failure"
        return reason in NORMAL_SKIPS or waits_for_failure

    def explain(self) -> EntryOverview:
        """The most important fact about this day. The first check that finds an explanation decides."""
        about_now = (
            self._open_question,
            self._paused,
            self._other_settings,
            self._daemon_is_away,
            self._open_run,
            self._predecessor_is_off,
        )
        questions: tuple[Callable[[], EntryOverview | None], ...] = (
            self._new_entry,
            self._undelivered_messages,
            self._alerts_without_target,
            self._retired,
            *(about_now if self.records.is_today else ()),
            self._last_slot_failed,
            self._no_run,
            self._muted,
            self._held_messages,
            self._awaited_results,
            self._waiting_wakes,
            self._rejected_wakes,
            self._partly_skipped_or_failed,
            self._changed_settings,
            self._fallback_in_use,
            self._nothing_sent,
            self._known_problems,
        )
        for question in questions:
            explained = question()
            if explained is not None:
                # The notification about what it explains is suppressed, too.
                mute = self._quiet_text(Suppression.MUTED)
                explained.says += f"; {mute}" if mute and explained.why != Suppression.MUTED else ""
                return explained
        if self.delivered and all(each.channel == LOG_CHANNEL for each in self._messages):
            says = f"{self._normal_text()}, only to the log"
            return self._overview("quiet", "log_only", says, self._effective_command, is_expected=True)
        return self._overview("normal", "ran", self._normal_text(), is_expected=True)

    def _overview(
        self, result: DayResult, code: str, says: str, command: str = "", run: int | None = None, *, is_expected: bool = False
    ) -> EntryOverview:
        """The line of the entry. `code` is a word for programs: an outcome, a reason, a suppression, or a word of this file."""
        return EntryOverview(
            kind=self.row.kind.value,
            name=self.row.name,
            result=result,
            why=code,
            says=says,
            command=command,
            expected=is_expected,
            run=run,
            ran=self.ran,
            skipped=self.skipped,
            delivered=self.delivered,
            undelivered=sum(each.count for each in self.undelivered),
        )

    def _new_entry(self) -> EntryOverview | None:
        if self.row.id != NEW_ENTRY:
            return None
        says = "in the config file, but not yet applied by the daemon"
        return self._overview("silent", "not_adopted", says, self._adopt_command)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _undelivered_messages(self) -> EntryOverview | None:
        if not self.undelivered:
            return None
        first = self.undelivered[0]
        number = sum(each.count for each in self.undelivered)
        more = f", and {number - first.count} more" if number > first.count else ""
        says = f"{squeeze(first.says, MAX_ERROR)}{more}, since {self.times.at(first.since)}"
        return self._overview("undelivered", first.state, says, "heartbeatd outbox", first.run)

    def _held_messages(self) -> EntryOverview | None:
        held = [each for each in self._messages if each.is_held and each.state is DeliveryState.PENDING]
        if not held:
            return None
        says = "; ".join(each.says for each in held)
        return self._overview("quiet", "held", says, "heartbeatd outbox", held[0].run, is_expected=True)

    def _alerts_without_target(self) -> EntryOverview | None:
        if self.key not in self.records.unaddressed:
            return None
        number, run_id = self.records.unaddressed[self.key]
        code, why = "no_target", "no target was known"
        if self.entry and not self.entry.deliver:
            code, why = "deliver_none", "it has no `deliver`, or `deliver: none`"
        elif self.entry and LAST_TARGET in self.entry.deliver:
            why = "no target is known for `deliver: last`, because no conversation was reported yet"
        says = f"{format_count(number, 'alert')} sent to no one: {why}"
        return self._overview("undelivered", code, says, f"heartbeatd show {run_id}", run_id)

    # --- state --------------------------------------------------------------------------------------------------------

    def _retired(self) -> EntryOverview | None:
        """It is disabled or removed at the end of the period."""
        state, since = self._state_at_end()
        reload = next((each for each in self.records.reloads if each.at == since), None)
        when = (f" since {self.times.at(since)}" if since else "") + (f", by {reload.event.by}" if reload else "")
        if state == "disabled":
            says = f"disabled in the config{when}{self._disabling_key()}{self._override_text()}"
            return self._overview("silent", Skip.DISABLED, says, self._effective_command, is_expected=since is None)
        if state != "removed":
            return None
        renamed = self._new_name(since)
        if renamed and self.records.may_see(self.row.kind, renamed.partition("/")[2]):
            why = "" if reload else f": it is gone, and {renamed} was added with the same schedule"
            says = f"renamed to {renamed}{when}{why}"
            return self._overview("silent", "renamed", says, f"heartbeatd explain {renamed}")
        return self._overview("silent", Skip.REMOVED, f"no longer in the config{when}", self._explain_command)

    def _disabling_key(self) -> str:
        """The key that disables it: `interval: 0` and `enabled: false` do."""
        spec = self.entry.spec if self.entry else None
        if spec is None or spec.enabled:
            return ""
        if not isinstance(spec, Heartbeat) or spec.interval or spec.schedule:
            return ": enabled: false"
        was = next((schedule_texts.schedule_text(past.schedule_text) for past in self._past if past.state == "active"), "")
        return ": interval: 0" + (f" ({was} before)" if was else "")

    def _state_at_end(self) -> tuple[str, datetime | None]:
        """Its state at the end of the period, and since when within the period (None: since before)."""
        later = next((past for past in self._past if past.until >= self.records.period.until), None)
        earlier = [past for past in self._past if past.until < self.records.period.until]
        state = later.state if later else self.row.state
        since = next((after.until for after in reversed(earlier) if after.state != state), None)
        return state, since

    def _new_name(self, since: datetime | None) -> str | None:
        """The entry that was added when this one was removed, if it is the only one with the same schedule."""
        if since is None or not self._past:
            return None
        added = self.records.added.get((self.row.kind, since), [])
        same = [each.name for each in added if each.schedule_text == self.row.schedule_text and each.state != "removed"]
        return self.row.kind.label_of(same[0]) if len(same) == 1 else None

    def _open_question(self) -> EntryOverview | None:
        asked = self.records.asking.get(self.key)
        if asked is None:
            return None
        says = f"has waited for a person to answer since {self.times.at(asked.waits_since)}: {squeeze(asked.text, MAX_ERROR)}"
        return self._overview("silent", "asks", says, f"heartbeatd answer {asked.id} {asked.options[0]}", asked.run)

    def _paused(self) -> EntryOverview | None:
        state = entry_states.entry_state(self.row, self.now, self.times, is_open=False)
        if state.state != "paused":
            return None
        return self._overview("silent", Skip.PAUSED, state.says, f"heartbeatd resume {self.label}")

    @cached_property
    def _predecessor(self) -> _EntryDay | None:
        """The day of the job that it follows."""
        name = self._schedule_parts.get("after")
        row = entries.find_entry(self.records.db, Kind.CRON, name) if name else None
        if row is None:
            return None
        only = self.records.only and (Kind.CRON, row.name)
        return _EntryDay(replace(self.records, only=only) if only else self.records, row)

    def _predecessor_is_off(self) -> EntryOverview | None:
        """The job that it follows, or one before that, is paused, disabled or removed."""
        job = self._predecessor
        found = job and (job._paused() or job._retired() or job._predecessor_is_off())
        if not found:
            return None
        why = found.says.removeprefix("it ") if found.why == Skip.PREDECESSOR else f"is {found.says}"
        says = f"it runs {schedule_texts.schedule_text(self.row.schedule_text)}, which {why}"
        return self._overview("silent", Skip.PREDECESSOR, says, found.command, is_expected=found.expected)

    def _other_settings(self) -> EntryOverview | None:
        """Whether the config file differs from the active config."""
        if self.entry is None:
            return None
        planned = "active" if self.entry.enabled else "disabled"
        if planned != self.row.state:
            says = f"{self.row.state} for the daemon, but {planned} in the config file"
        elif self.entry.schedule_text != self.row.schedule_text:
            says = "the config file has another schedule than the daemon (`heartbeatd check --diff` shows it)"
        else:
            return None
        return self._overview("unusual", "not_adopted", says, self._adopt_command)

    # --- slots --------------------------------------------------------------------------------------------------------

    @cached_property
    def _unsettled(self) -> tuple[int, datetime | None, dict[Skip, int]]:
        """Slots of the period without a record: how many have come due, the first one, and how many are excluded, by reason."""
        row, period = self.row, self.records.period
        if row.state != "active":
            return 0, None, {}
        schedule = row.schedule
        after = max(row.settled_until, period.begin - MICROSECOND - schedule.offset, row.first_seen_at - timedelta(seconds=1))
        until = period.until - schedule.offset
        if after >= until:
            return 0, None, {}
        passed = schedule.slots(after, until)
        closed = {reason: slots.count for reason, slots in schedule.closed_slots(after, until)}
        return (passed.count, passed.first, closed) if passed else (0, None, closed)

    def _daemon_is_away(self) -> EntryOverview | None:
        """Slots have come due, and the daemon does not run, is stopped, or has no capacity for them."""
        count, first, _ = self._unsettled
        if not count or first is None:
            return None
        daemon, slots = self.records.daemon, f"{format_count(count, 'planned run')} since {self.times.at(first)}"
        if not daemon.is_running:
            return self._overview("silent", DAEMON_DOWN, f"the daemon does not run: {slots} did not start", "heartbeatd run")
        if daemon.is_frozen:
            return self._overview("silent", "frozen", f"the daemon is frozen: {slots} did not start", "heartbeatd status")
        if self._open_cause or self.now - first - self.row.schedule.offset < SOON:
            return None
        running = self.records.in_progress
        most = self.records.plan.settings.limits.concurrency if self.records.plan else None
        if not running or most is None or len(running) < most:
            return self._overview("silent", DUE, f"due, and not started yet: {slots}", "heartbeatd status")
        shown = [each for each in running if self.records.may_see(each[0], each[1])]
        kind, name, run_id = shown[0] if shown else (None, "", None)
        names = [f"{kind.label_of(name)} (run {run_id})"] if kind else []
        if others := len(running) - len(names):
            names.append(f"{others} more" if names else format_count(others, "run"))
        says = f"limits.concurrency is reached by {' and '.join(names)}: {slots} did not start"
        command = f"heartbeatd show {run_id}" if shown else "heartbeatd status"
        return self._overview("silent", "no_capacity", says, command, run_id)

    def _open_run(self) -> EntryOverview | None:
        """A run waits, or has been in progress beyond the next slot."""
        run = self._open_cause
        if run is None:
            return None
        begin = f"its run of {self.times.at(run.last_slot)}"
        if run.state == "running":
            following = self.row.schedule.next(run.last_slot)
            is_late = following is not None and following + self.row.schedule.offset <= self.now
            return self._with_run("silent", RUNNING, f"{begin} is still in progress", run) if is_late else None
        data = self._run(run.last_id)
        if run.outcome != Outcome.SKIPPED:
            says = f"{begin} {OUTCOME_VERBS.get(run.outcome or '', 'failed')} and will be retried{self._error_text(data)}"
            return self._with_run("failed", str(run.why), says, run)
        held = self.records.holds.get(self.row.name) if run.why == Skip.BUSY else None
        detail = data.error or (f"{held[-1].id} holds it over HTTP" if held else "")
        says = f"{begin} waits: {SlotCause(run.why or '').text_for_now}" + (f": {detail}" if detail else "")
        return self._with_run("silent", str(run.why), says, run)

    def _last_slot_failed(self) -> EntryOverview | None:
        """The last slot failed, or was skipped for a reason that is not part of normal work."""
        last = next((each for each in reversed(self._causes) if each.why not in outcome.SCHEDULE_SKIPS), None)
        if last is None or last.state != "closed":
            return None
        if _has_failed(last):
            return self._failure(last, "failed")
        if last.outcome == Outcome.SKIPPED and not self._is_normal(last.why):
            return self._skip(last, "silent")
        return None

    def _failure(self, cause: CauseCount, result: DayResult) -> EntryOverview:
        """How many runs failed, and the last error."""
        failed, total = sum(each.runs for each in self._failed), self.ran
        verb = OUTCOME_VERBS.get(cause.outcome or "", "failed")
        alike = {each.outcome for each in self._failed} == {cause.outcome}
        number = f"all {total} runs" if failed == total else f"{failed} of {total} runs"
        says = f"its run {verb}" if total <= 1 else f"{number} {verb if alike else 'failed'}"
        return self._with_run(result, cause.why or str(cause.outcome), says + self._error_text(self._run(cause.last_id)), cause)

    def _error_text(self, data: RunRecord) -> str:
        """The class and the text of a run's error, and the model if the error may concern only that."""
        why, error, model = data.why, data.error, data.model_requested
        if why == Reason.NO_TIME_LEFT:
            following = f"try {data.tries + 1} of {self.entry.spec.retries + 1}" if self.entry else "another try"
            return f": no time was left for {following}: {squeeze(error or 'it was interrupted', MAX_ERROR)}"
        named = [why.replace("_", " ")] if why and why not in UNTOLD_REASONS else []
        if model and why in MODEL_FAILURES and model not in (error or ""):
            named.append(f"model {model}")
        words = [", ".join(named), squeeze(error or "", MAX_ERROR)]
        return "".join(f": {word}" for word in words if word)

    def _no_run(self) -> EntryOverview | None:
        """Nothing ran in the period: by its settings, or because every slot was skipped."""
        if self.ran:
            return None
        skips = [each for each in self._causes if each.outcome == Outcome.SKIPPED]
        by_choice = [each for each in skips if each.why not in outcome.SCHEDULE_SKIPS]
        _, _, closed = self._unsettled
        if by_choice:
            return self._skip(by_choice[-1], "silent")
        if skips or closed:
            return self._closed_by_schedule({Skip(each.why or ""): each for each in skips}, closed)
        return self._without_slots()

    def _skip(self, cause: CauseCount, result: DayResult) -> EntryOverview:
        """Slots that were skipped for one reason."""
        code, data = str(cause.why), self._run(cause.last_id)
        extent = self._extent(cause)
        if cause.why == Skip.MISSED:
            found = self.records.missed.cause(cause.last_slot + self.row.schedule.offset)
            if found.code != Skip.MISSED or not data.error:  # the daemon was down or frozen, or the clock jumped
                return self._with_run(result, found.code, f"{extent}: {found.text}", cause)
            why = data.error if self.records.agents is None else found.text  # the error names other entries
            return self._with_run(result, "no_capacity", f"{extent} did not start: {why}", cause)
        detail = self._skip_detail(code, data)
        says = f"{extent}: {REASON_TEXTS.get(code, code)}{f': {detail}' if detail else ''}"
        if cause.why == Skip.ALREADY_RUNNING and self._open_cause:
            says += f" (run {self._open_cause.last_id})"
        return self._with_run(result, code, says, cause, is_expected=self._is_normal(cause.why))

    def _extent(self, cause: CauseCount) -> str:
        """How many slots of the period have this cause."""
        alike = [each for each in self._causes if each.why == cause.why and each.outcome == cause.outcome]
        number = sum(each.slots for each in alike)
        others = [each for each in self._causes if each.why not in (cause.why, *outcome.SCHEDULE_SKIPS)]
        begin = min(each.first_slot for each in alike)
        since = f" since {self.times.at(begin)}" if begin >= self.records.period.begin else ""
        if begin < self.records.period.begin:
            return f"not run since {self.times.at(begin)}"
        if not others:
            return f"all {number} planned runs{since}" if number > 1 else f"the planned run of {self.times.at(begin)}"
        return f"{format_count(number, 'planned run')}{since}" if number > 1 else f"the planned run of {self.times.at(begin)}"

    def _skip_detail(self, code: str, data: RunRecord) -> str:
        """What a skip is about: the holder of the lock, the file of the checklist, the output of the precheck, or an error."""
        error = data.error or ""
        if code == Skip.ALREADY_RUNNING:
            return ""
        if code == Skip.BUSY:
            return error
        if code in outcome.CHECKLIST_SKIPS:
            spec = self.spec
            file = self.records.path_text(spec.workspace / spec.checklist) if spec and spec.reads_checklist else ""
            place = file or ("it is in the config" if spec else "")
            return place + (f" ({error})" if error else "")
        if code == Skip.NOTHING_DUE:
            return self._due_text()
        if code == Skip.PRECHECK_UNCHANGED:
            since = self.row.looked_at
            return f"its output is the same as at {self.times.at(since)}" if since else ""
        if code == Skip.PRECHECK:
            printed = data.precheck.output.strip().splitlines() if data.precheck else []
            if data.precheck and data.precheck.exit_code is None:
                return data.precheck.output  # of a source, which says what it is about
            return f"it printed {printed[-1][:60]}" if printed else ""
        if code == Skip.PRECHECK_FAILED and data.precheck:
            error = data.precheck.error or ""
        if code == Skip.PROMPT_TOO_LARGE and not error:
            return f"about {sum(each.tokens for each in data.prompt_parts):,} tokens"
        return squeeze(error, MAX_ERROR)

    def _due_text(self) -> str:
        """Whether all items are paused, or only not due."""
        text = load_checklist(self.spec) if self.spec else Skip.CHECKLIST_MISSING
        if isinstance(text, Skip):
            return ""
        parsed = parse_checklist(text)
        if parsed.has_work and not parsed.select_due_items(self.now, {}, everything=True).has_work:
            return "all its items are paused or completed"
        return "each was checked within its [every ...]"

    def _closed_by_schedule(self, recorded: Mapping[Skip, CauseCount], closed: Mapping[Skip, int]) -> EntryOverview:
        """Every slot was outside the active hours, or on a day that calendars exclude."""
        text, until, zone = self.row.schedule_text, self.records.period.until, self.records.period.zone
        reason = Skip.CALENDAR if Skip.CALENDAR in (recorded.keys() | closed.keys()) else Skip.ACTIVE_HOURS
        if reason is Skip.CALENDAR:
            calendars = self.records.plan.settings.calendars if self.records.plan else {}
            found = schedule_texts.excluding_calendar(text, until, calendars)
            says = "a calendar excludes the day" + (f" ({found})" if found else "")
        else:
            zones = {window.zone for window in entry_schedule.active_hours(text).windows}
            local = until.astimezone(zones.pop()) if len(zones) == 1 else None
            is_elsewhere = local is not None and local.utcoffset() != until.astimezone(zone).utcoffset()
            clock = f", where it is {local:%H:%M} (UTC{local_days.offset_text(local)})" if local and is_elsewhere else ""
            says = f"outside its active hours {schedule_texts.hours_text(text)}{clock}"
        run = recorded[reason].last_id if reason in recorded else None
        says += self._override_text() + self._next_text() + self._changes_text()
        return self._overview("silent", reason, says, self._explain_command, run, is_expected=True)

    def _next_text(self) -> str:
        due = self.row.due_at or self.row.slot_due_at
        return f"; next {self.times.at(due)}" if due and due > self.now else ""

    def _without_slots(self) -> EntryOverview | None:
        """There is no slot in the period."""
        row = self.row
        if row.schedule is entry_schedule.NO_SCHEDULE:
            changed, is_job = self._changes_text(), row.kind is Kind.CRON
            says = f"it has no schedule, so it runs only when it is woken{changed}{self._override_text()}"
            if "after" in self._schedule_parts:
                says = f"it runs {schedule_texts.schedule_text(row.schedule_text)}, which has not ended in this time"
                first = self._predecessor.explain() if self._predecessor else None
                says += f": {first.says}" if first and not first.expected else ""
            elif is_job:
                says = "it has no schedule, so it runs only by hand or at the start of the daemon"
            is_expected = is_job and not changed
            return self._overview("silent", "no_schedule", says, self._effective_command, is_expected=is_expected)
        if done := row.done_at(self.now, is_open=False):
            return self._overview("normal", "done", f"done at {self.times.at(done)}", is_expected=True)
        is_ahead = row.due_at is not None and self.now <= row.due_at < self.records.period.end
        when = f"no planned run {'yet' if is_ahead else 'on this day' if self.records.period.day else 'in this time'}"
        says = f"{when}, {schedule_texts.schedule_text(row.schedule_text)}{self._next_text()}"
        if entry_schedule.active_hours(row.schedule_text).windows:
            says += f"; active hours {schedule_texts.hours_text(row.schedule_text)}"
        says += self._changes_text() + self._override_text()
        return self._overview("silent", "no_slot", says, f"heartbeatd plan {self.label}", is_expected=True)

    # --- further facts -------------------------------------------------------------------------------------------------

    def _waiting_wakes(self) -> EntryOverview | None:
        number = self.records.waiting_wakes.get(self.row.name, 0) if self.row.kind is Kind.HEARTBEAT else 0
        if not number or not self.records.is_today:
            return None
        found = wake_waits.explain_waiting(self.db, self.key, number, self.now, self.times.exactly)
        if found.waits_for in QUIET_WAITS:
            return None
        return self._overview("unusual", "wakes_wait", found.says, self._explain_command)

    def _rejected_wakes(self) -> EntryOverview | None:
        """Wakes that reached no agent: those of a job, or those of people and programs to an agent."""
        found = self.records.rejected_wakes.get(self.key)
        if not found:
            return None
        last = found[-1]
        number = sum(each.count for each in found if (each.agent, each.why) == (last.agent, last.why))
        of_job = last.source == Trigger.CRON
        says = reason_texts.rejected_wakes_text(replace(last, count=number), self.times.at, of_job=of_job)
        command = f"heartbeatd explain agent/{last.agent}" if of_job else self._explain_command
        return self._overview("unusual", "wake_rejected", says, command)

    def _partly_skipped_or_failed(self) -> EntryOverview | None:
        """Some slots of the day were skipped for a reason that is not part of normal work, or some runs failed."""
        skipped = [each for each in self._causes if each.outcome == Outcome.SKIPPED and not self._is_normal(each.why)]
        if skipped:
            return self._skip(skipped[-1], "unusual")
        return self._failure(max(self._failed, key=_newest), "unusual") if self._failed else None

    def _changed_settings(self) -> EntryOverview | None:
        text = self._changes_text()
        if not text:
            return None
        if self.row.schedule is entry_schedule.NO_SCHEDULE:
            return self._without_slots()
        changed_at = self.records.config_changes[self.label][-1][0].at
        _, _, closed = self._unsettled
        if closed and not any(_has_run(each) and each.last_slot > changed_at for each in self._all_runs):
            return self._closed_by_schedule({}, closed)
        return self._overview("unusual", "changed", text.removeprefix("; "), self._explain_command)

    def _changes_text(self) -> str:
        """What the last reload of the period has changed."""
        recorded = self.records.config_changes.get(self.label, ())
        if not recorded:
            return ""
        last = recorded[-1][0]
        changes = [each for reload, each in recorded if reload.id == last.id]
        shown = "; ".join(squeeze(each.says, MAX_ERROR) for each in changes[:MAX_CHANGES])
        more = f" and {len(changes) - MAX_CHANGES} more keys" if len(changes) > MAX_CHANGES else ""
        return f"; changed at {self.times.at(last.at)} by {last.event.by}: {shown}{more}"

    def _override_text(self) -> str:
        """The environment variables that set values of the entry, with the values of the file."""
        shown = self.overrides[:MAX_CHANGES]
        return "".join(f"; by {each.variable} (file: {squeeze(each.in_file, MAX_ERROR)})" for each in shown)

    def _nothing_sent(self) -> EntryOverview | None:
        """It ran, and every answer was suppressed, or some alerts were hidden."""
        answers = [each for each in self._all_runs if each.outcome in ANSWERED and each.why]
        if self.delivered or (self.row.kind is Kind.CRON and self.reporter is None):
            answers = [each for each in answers if each.why in HIDDEN]
        if not answers:
            return None
        loud = [each for each in answers if each.outcome == Outcome.ALERT]
        most = max(loud or answers, key=lambda each: each.runs)
        given = sum(each.runs for each in self._all_runs if each.outcome in ANSWERED)
        number = f"{most.runs} of {given} answers" if most.runs < given else format_count(most.runs, "answer")
        known = self._quiet_text("acknowledged", "known") if most.why == Suppression.DUPLICATE else ""
        says = f"{number} not sent: {known or Suppression.text_of(most.why or '')}"
        result: DayResult = "unusual" if most.why in HIDDEN else "quiet"
        return self._with_run(result, most.why or "", says, most, is_expected=not loud)

    def _quiet_text(self, *codes: str) -> str:
        return "; ".join(each.says for each in self.quiet_reasons if each.code in codes)

    def _muted(self) -> EntryOverview | None:
        text = self._quiet_text(Suppression.MUTED)
        if not text:
            return None
        held = sum(each.runs for each in self._all_runs if each.why == Suppression.MUTED)
        says = f"{text}, {format_count(held, 'answer')} not sent" if held else text
        return self._overview("unusual", Suppression.MUTED, says, f"heartbeatd unmute {self.label}")

    def _awaited_results(self) -> EntryOverview | None:
        """Several runs wait for their result. One is normal for an agent that answers later."""
        found = next((each for each in self.quiet_reasons if each.code == "awaits_results" and each.count > 1), None)
        return self._overview("unusual", found.code, found.says, self._explain_command) if found else None

    def _fallback_in_use(self) -> EntryOverview | None:
        """It runs, and a fallback answers in place of the agent itself."""
        text = self._quiet_text(FALLBACK) if self.records.is_today else ""
        return self._overview("unusual", FALLBACK, text, self._explain_command) if text else None

    def _known_problems(self) -> EntryOverview | None:
        """It ran, and what it has found is known or acknowledged."""
        known = [each for each in self.quiet_reasons if each.code in ("acknowledged", "known")]
        if not known:
            return None
        says = f"{self._normal_text()}; {self._quiet_text('acknowledged', 'known')}"
        return self._overview("quiet", known[0].code, says, self._explain_command)

    def _normal_text(self) -> str:
        times = "once" if self.ran == 1 else f"{self.ran:,} times"
        sent = f", {format_count(self.delivered, 'message')} delivered" if self.delivered else ""
        return (f"ran {times}" if self.ran else "nothing to do") + sent

    # --- details ------------------------------------------------------------------------------------------------------

    def _run(self, run_id: int) -> RunRecord:
        found = run_history.get_run(self.db, run_id)
        assert found is not None  # its id has just been read
        return found

    def _with_run(
        self, result: DayResult, code: str, says: str, cause: CauseCount, *, is_expected: bool = False
    ) -> EntryOverview:
        return self._overview(result, code, says, f"heartbeatd show {cause.last_id}", cause.last_id, is_expected=is_expected)


QUIET_WAITS = (None, wake_waits.STARTING, wake_waits.NEXT_RUN, wake_waits.OTHER_JOBS, Skip.ALREADY_RUNNING)
OUTCOME_VERBS = {Outcome.FAILED.value: "failed", Outcome.TIMEOUT.value: "timed out", Outcome.ABANDONED.value: "was interrupted"}
HIDDEN = (Suppression.NOT_SHOWN, Suppression.MUTED)
UNTOLD_REASONS = (Failure.EXIT, Failure.TIMEOUT)  # the error is more precise
MODEL_FAILURES = (Failure.NOT_FOUND, Failure.RATE, Failure.OVERLOADED, Failure.TOO_LARGE, Reason.RATE_LIMITED)


def _newest(cause: CauseCount) -> tuple[datetime, int]:
    return cause.last_slot, cause.last_id


def _has_failed(cause: CauseCount) -> bool:
    return cause.outcome in FAILURES and cause.why != Reason.CANCELLED


def _has_run(cause: CauseCount) -> bool:
    """Whether these are runs. A late result belongs to an earlier run."""
    is_run = cause.outcome not in (None, Outcome.SKIPPED) or cause.state == "running"
    return is_run and cause.trigger is not Trigger.RESULT
