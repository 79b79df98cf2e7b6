"""Plays a recorded period again with another config, with the recorded answers, wakes, failures and downtimes.

A run for which nothing was recorded is unknown: it is counted, and nothing is invented for it.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from heartbeat.runners import AgentRequest, Answer, ProcessResult
from heartbeat.words import format_count
from heartbeatd.answers import Downtime, EntryName, ResponseBody, Time
from heartbeatd.verbs import Mute, RunJob, Unmute, Wake
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.settings.config_snapshot import load_stored
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.foresight.playback import Attempt, Playback, record_passed_slots, start_when_first_seen
from scheduler.foresight.recording import Recording, recorded_answer, recorded_command, recorded_precheck
from scheduler.foresight.simulation import model_that_decides
from scheduler.insight.slot_history import cause_of_run
from scheduler.model import entry_schedule
from scheduler.model.entry import Claim, HeartbeatEntry
from scheduler.model.entry_row import EntryRow
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import (
    ANSWERED,
    CHECKLIST_SKIPS,
    FAILURES,
    WOKEN,
    AttemptResult,
    DeliveryState,
    Key,
    Kind,
    Outcome,
    Reason,
    Skip,
    Suppression,
    Trigger,
)
from scheduler.model.settings import History, Settings
from scheduler.model.timestamps import MILLISECOND
from scheduler.store import boots, config_history, entries, recorded_runs
from scheduler.store.recorded_runs import RecordedRun, RecordedWake
from scheduler.work.plan import make_plan

WARM_UP = timedelta(days=7)  # that are played before the period, so that open problems and spent budgets are known
NEAR = timedelta(minutes=5)  # a run without an interval takes an answer that was recorded so long before or after it
EVERYTHING = History(timedelta(days=36_500), 1_000_000_000)
CHECKLIST = "- as recorded\n"  # the present one may differ from that of the time

# The recorded slot was skipped for something outside of the config, which another config does not change.
AS_RECORDED = CHECKLIST_SKIPS | {
    Skip.PAUSED, Skip.BUSY, Skip.ALREADY_RUNNING, Skip.MISSED, Skip.SUPERSEDED, Skip.NOTHING_DUE, Skip.PROMPT_TOO_LARGE,
}  # fmt: skip
# Slots without an attempt, which share a record. They are only counted.
WITHOUT_ATTEMPT = frozenset({
    Skip.DISABLED, Skip.REMOVED, Skip.CALENDAR, Skip.ACTIVE_HOURS, Skip.ALREADY_RUNNING, Skip.MISSED, Skip.PAUSED,
})  # fmt: skip
NOT_SCHEDULED = "not_scheduled"  # the other config has no run at this time
UNKNOWN = AttemptResult(Outcome.SKIPPED, Skip.NOTHING_DUE)  # has no effect on problems, budgets and failures


class RunVerdict(ResponseBody):
    """What became of a run: its result, why, and the messages about it."""

    result: str
    why: str | None
    messages: int


class ReplayedRun(EntryName):
    """A recorded run that ends differently with another config. `id` is that of the recorded run."""

    id: int
    planned_at: Time
    trigger: str
    before: RunVerdict
    after: RunVerdict


class ReplayTotals(ResponseBody):
    """The sums of a period. `suppressed` are runs with an answer that was not sent. `usd` is null without a known price."""

    runs: int
    failed: int
    calls: int
    messages: int
    suppressed: int
    skipped: int
    usd: float | None


class UnknownRuns(EntryName):
    """Runs of an agent or a job for which nothing was recorded, so it is unknown how they would end."""

    runs: int


class Replay(ResponseBody):
    """A recorded period, played again with another config. `after` has nothing of the unknown runs."""

    from_: Time
    until: Time
    before: ReplayTotals
    after: ReplayTotals
    unchanged: int
    changed: list[ReplayedRun]
    unknown: list[UnknownRuns]


class _NothingRecorded(Exception):
    """The run would look at something that was not recorded."""


@dataclass(frozen=True, slots=True)
class Past:
    """What was recorded: runs with their messages, wakes, downtimes, when each entry was first seen, and its former precheck."""

    recording: Recording
    runs: Sequence[RecordedRun]
    messages: Mapping[int, int]
    wakes: Sequence[RecordedWake]
    downtimes: Sequence[Downtime]
    rows: Sequence[EntryRow]
    prechecks: Mapping[Key, str | None] | None  # None: the former config is not known

    @classmethod
    def read(cls, db: sqlite3.Connection, since: datetime, settings: Settings, former: Settings | None) -> Past:
        """Read everything from `since` on. `former` is the config by which it was recorded."""
        found = recorded_runs.read_runs(db, since)
        downs = boots.downtimes_between(boots.all_boots(db), running=True)
        return cls(
            Recording(found, settings.zone),
            found,
            recorded_runs.read_messages(db, since),
            recorded_runs.read_wakes(db, since),
            [down for down in downs if down.since >= since and down.until],
            entries.all_entries(db),
            None if former is None else _precheck_commands(former),
        )


def settings_of_records(db: sqlite3.Connection) -> Settings | None:
    """The active config, by which the last days were recorded; None if it is not known."""
    stored = config_history.config_in_force(db)
    try:
        return load_stored(stored[0]).settings if stored else None
    except ConfigError:  # of an older version; all prechecks then count as those that were recorded
        return None


def _precheck_commands(settings: Settings) -> dict[Key, str | None]:
    return {key: entry.precheck.identity if entry.precheck else None for key, entry in make_plan(settings).entries.items()}


class RecordedOutside:
    """Agents, programs and channels that do again what was recorded. Each recorded run is used once."""

    def __init__(self, past: Past) -> None:
        self.unknown: set[int] = set()  # runs for which nothing was recorded
        self.before_first_seen: set[int] = set()  # runs of entries that were not declared yet
        self.sources: dict[int, RecordedRun] = {}  # of runs, by their IDs
        self._past = past
        self._used: set[int] = set()
        self._first_seen = {(row.kind, row.name): row.first_seen_at for row in past.rows}
        self._intervals = {(row.kind, row.name): entry_schedule.grid_period(row.schedule_text) for row in past.rows}
        self._is_charged = False

    def attempt(self, claim: Claim, carry_out: Attempt) -> tuple[AttemptResult, timedelta]:
        run, key = claim.run, claim.entry.key
        if run.slot < self._first_seen.get(key, run.slot):
            self.before_first_seen.add(run.id)
            return UNKNOWN, timedelta()
        self._is_charged = run.id in self.sources
        self._source = self.sources.get(run.id) or self._find_source(claim)
        if self._source is not None:
            self.sources[run.id] = self._source
            self._used.add(self._source.id)
            if self._source.outcome is Outcome.SKIPPED and self._source.why in AS_RECORDED:
                return AttemptResult(Outcome.SKIPPED, Skip(self._source.why), error=self._source.error), timedelta()
        try:
            result = carry_out(_without_questions(claim))
        except _NothingRecorded:
            self.unknown.add(run.id)
            return UNKNOWN, timedelta()
        return (_as_recorded(result, self._source), self._source.took) if self._source else (result, timedelta())

    def _find_source(self, claim: Claim) -> RecordedRun | None:
        """The record of this run, or one of nearly the same time that no other run takes.

        With an interval, that is at most half of it away, and half of the former interval: the grid of slots may have moved.
        """
        run, key, recording = claim.run, claim.entry.key, self._past.recording
        if (own := recording.at(key, run.slot, run.trigger)) is not None:
            return own
        former, interval = self._intervals.get(key), entry_schedule.grid_period(claim.entry.schedule_text)
        is_slot = run.trigger not in WOKEN
        within = min(former, interval) / 2 if former and interval and is_slot else NEAR
        near = recording.near(key, run.slot, within)
        is_free = near is not None and near.id not in self._used and (near.trigger in WOKEN) is not is_slot
        return near if is_free else None

    def call_agent(self, claim: Claim, request: AgentRequest) -> Answer:
        if self._source is None or self._source.outcome is Outcome.SKIPPED:
            raise _NothingRecorded
        answer = recorded_answer(self._source, request.form, decides=model_that_decides(claim.entry))
        # The record has the usage of all attempts, and of all calls but the decision.
        is_charged, self._is_charged = self._is_charged, self._is_charged or request.form != "decision"
        return replace(answer, tokens=None, cost_usd=None) if is_charged else answer

    def run_program(self, claim: Claim, *, is_precheck: bool) -> ProcessResult:
        source, former = self._source, self._past.prechecks
        if source is None:
            raise _NothingRecorded
        if not is_precheck:
            if source.outcome is Outcome.SKIPPED:
                raise _NothingRecorded
            return recorded_command(source)
        now = claim.entry.precheck
        if source.precheck_output is None or (former is not None and now and former.get(claim.entry.key) != now.identity):
            raise _NothingRecorded
        return recorded_precheck(source)

    def send(self, delivery: Delivery) -> DeliveryResult:
        return DeliveryResult("delivered")


def _without_questions(claim: Claim) -> Claim:
    """The claim of an agent that is not asked again. The recorded answer is that after all questions."""
    entry = claim.entry
    if not isinstance(entry, HeartbeatEntry):
        return claim
    return replace(claim, entry=HeartbeatEntry(replace(entry.spec, ask_again=0)))


def _as_recorded(result: AttemptResult, source: RecordedRun) -> AttemptResult:
    """The result with what only the record knows. The record is that of the last attempt, so it is not tried again."""
    result = replace(result, transient=False)
    if result.outcome in ANSWERED and source.why == Reason.POSTCHECK:
        return result.as_failure(Reason.POSTCHECK, source.error or "", transient=False)
    if source.fallback:
        result = replace(result, fallback=source.fallback, fallback_why=source.fallback_why)
    if result.outcome in FAILURES and source.outcome in FAILURES:
        return replace(result, outcome=source.outcome, reason=_reason(source.why) or result.reason, error=source.error)
    if source.why == Suppression.NO_FINDINGS:  # it was asked again, and answered in prose; a reason to skip or fail counts more
        return replace(result, message=None, suppression=Suppression.NO_FINDINGS)
    return result


def _reason(word: str | None) -> Reason | None:
    return Reason(word) if word in tuple(Reason) else None


def replay(
    past: Past,
    settings: Settings,
    since: datetime,
    until: datetime,
    folder: Path,
    note: Callable[[float], None] = lambda _: None,
    *,
    shown: Collection[str] | None = None,
) -> Replay:
    """Play the time from `since` to `until` again with these settings.

    1. The engine is played from the beginning of the records on, or from the warm-up before `since`.
    2. Wakes, downtimes and runs that `run --once` started come at their recorded times.
    3. The records that this makes are compared with the recorded ones, run by run.

    `note` is called with the share of the time that is played, from 0 to 1. With `shown`, everything is played, and only the runs
    of these agents are compared.
    """
    outside = RecordedOutside(past)
    known = (*(run.slot for run in past.runs), *(row.first_seen_at for row in past.rows))  # passed slots may have no record yet
    begin = max(min(known, default=since), since - WARM_UP) - timedelta(seconds=1)
    playback = Playback(
        _as_then(settings), folder, begin, outside, lambda now, _: note((now - begin) / (until - begin)), known=past.rows
    )
    for at, act in sorted(_course(past, playback), key=lambda each: each[0]):
        if playback.clock.now <= at < until:
            playback.run_until(at)
            act()
    playback.run_until(until)
    playback.request(record_passed_slots)
    runs = recorded_runs.read_runs(playback.connection, begin)
    messages = recorded_runs.read_messages(playback.connection, begin)
    playback.close()
    runs = [run for run in runs if run.id not in outside.before_first_seen and _is_shown(run, shown)]
    past = replace(past, runs=[run for run in past.runs if _is_shown(run, shown)])
    found = _compare(past, runs, messages, outside, since, until)
    found.before.skipped += sum(_count_closed_slots(row, since, until) for row in past.rows if _is_shown(row, shown))
    return found


def _count_closed_slots(row: EntryRow, since: datetime, until: datetime) -> int:
    """How many slots of closed hours have no record yet. The playback has recorded its own."""
    after = max(row.settled_until, since - MILLISECOND)
    closed = row.schedule.closed_slots(after, until) if row.state == "active" and not row.paused and after < until else ()
    return sum(found.count for _, found in closed)


def _is_shown(run: RecordedRun | EntryRow, shown: Collection[str] | None) -> bool:
    return shown is None or (run.kind is Kind.HEARTBEAT and run.name in shown)


def _as_then(settings: Settings) -> Settings:
    """The settings without what the agents read today, and with all history."""
    beats = {name: replace(beat, checklist=CHECKLIST, context=(), memory=()) for name, beat in settings.heartbeats.items()}
    agents = {name: replace(agent, context=()) for name, agent in settings.job_agents.items()}
    return replace(settings, heartbeats=beats, job_agents=agents, history=EVERYTHING)


def _course(past: Past, playback: Playback) -> list[tuple[datetime, Callable[[], None]]]:
    """What happens outside of the daemon, each with its time."""
    found: list[tuple[datetime, Callable[[], None]]] = [
        (down.since, partial(playback.be_down_until, down.until)) for down in past.downtimes if down.until is not None
    ]
    rows = {(row.kind, row.name): row for row in past.rows if (row.kind, row.name) in playback.entries}
    found += [
        (run.slot, partial(playback.request, partial(start_when_first_seen, key=run.key)))
        for run in past.runs
        if run.key in rows and run.trigger not in WOKEN and _was_started_when_first_seen(run, rows[run.key])
    ]
    for wake in past.wakes:
        key = (wake.kind, wake.name)
        if key in playback.entries:
            verb = RunJob() if wake.kind is Kind.CRON else Wake(text=wake.text)
            request = VerbRequest(verb, key, Sender(wake.sender, source=wake.source, token=wake.token))
            found.append((wake.at, partial(playback.request, request)))
    return [*found, *_mutes(past, playback)]


def _mutes(past: Past, playback: Playback) -> Iterator[tuple[datetime, Callable[[], None]]]:
    """Mutes: from a run whose answer one has suppressed until the next run whose answer none has. Others leave no trace."""
    muted: set[Key] = set()
    for run in past.runs:
        is_muted = run.suppression == Suppression.MUTED
        if run.outcome in ANSWERED and is_muted != (run.key in muted) and run.key in playback.entries:
            muted ^= {run.key}
            yield run.slot - MILLISECOND, partial(playback.request, VerbRequest(Mute() if is_muted else Unmute(), run.key))


def _was_started_when_first_seen(run: RecordedRun, row: EntryRow) -> bool:
    """Whether `run --once` started a run: it is planned when its agent was first seen, which is no time of its schedule."""
    return run.slot == row.first_seen_at and row.schedule.slots(run.slot - MILLISECOND, run.slot) is None


# --- the comparison -----------------------------------------------------------------------------------------------------------


def _compare(
    past: Past,
    runs: Sequence[RecordedRun],
    messages: Mapping[int, int],
    outside: RecordedOutside,
    since: datetime,
    until: datetime,
) -> Replay:
    """Compare what was recorded with the `runs` that were played, the messages about each of them, and what they have used."""
    after = Recording(runs, past.recording.zone)
    by_source = {outside.sources[run.id].id: run for run in runs if run.id in outside.sources}
    changed, unchanged = [], 0
    for run in past.runs:
        if not _is_compared(run, since, until):
            continue
        other = by_source.get(run.id) or after.at(run.key, run.slot, run.trigger)
        if other is not None and other.id in outside.unknown:
            continue
        before, now = _verdict(run, past.messages), _verdict(other, messages)
        if before == now:
            unchanged += 1
            continue
        changed.append(
            ReplayedRun(
                kind=run.kind.value, name=run.name, id=run.id, planned_at=run.slot, trigger=run.trigger.value,
                before=before, after=now,
            )
        )  # fmt: skip
    known = [run for run in runs if run.id not in outside.unknown]
    unknown = Counter(run.key for run in runs if run.id in outside.unknown and since <= run.slot < until)
    return Replay(
        from_=since,
        until=until,
        before=_totals(past.runs, past.messages, since, until),
        after=_totals(known, messages, since, until, outside.sources),
        unchanged=unchanged,
        changed=changed,
        unknown=[UnknownRuns(kind=kind.value, name=name, runs=number) for (kind, name), number in sorted(unknown.items())],
    )


def _is_compared(run: RecordedRun, since: datetime, until: datetime) -> bool:
    """Whether a recorded run is compared: one in the period with an attempt. A result that came later belongs to another run."""
    has_attempt = run.outcome is not Outcome.SKIPPED or run.why not in WITHOUT_ATTEMPT
    return has_attempt and since <= run.slot < until and run.trigger is not Trigger.RESULT


def _verdict(run: RecordedRun | None, messages: Mapping[int, int]) -> RunVerdict:
    if run is None:
        return RunVerdict(result=Outcome.SKIPPED.value, why=NOT_SCHEDULED, messages=0)
    is_shared = run.slots > 1  # the messages are not about one of its slots
    return RunVerdict(
        result=run.outcome.value,
        why=run.why,
        messages=0 if is_shared else messages.get(run.id, 0),
    )


def verdict_text(verdict: RunVerdict) -> str:
    """What became of a run in words, with the number of messages that it sent."""
    says = cause_of_run("closed", verdict.result, verdict.why, DeliveryState.NONE).text
    if not verdict.messages:
        return says
    return f"{'ran' if verdict.result in ANSWERED else says}, {format_count(verdict.messages, 'message')}"


def _totals(
    runs: Sequence[RecordedRun],
    messages: Mapping[int, int],
    since: datetime,
    until: datetime,
    sources: Mapping[int, RecordedRun] | None = None,
) -> ReplayTotals:
    """The sums of the period. A run that was played again has made the calls of its source, whose usage it has as one call."""
    found = [run for run in runs if since <= run.slot < until]
    ran = [run for run in found if run.outcome is not Outcome.SKIPPED and run.trigger is not Trigger.RESULT]
    costs = [run.cost_usd for run in found if run.cost_usd is not None]
    return ReplayTotals(
        runs=len(ran),
        failed=sum(run.outcome in FAILURES for run in ran),
        calls=sum((sources.get(run.id, run) if sources else run).calls for run in ran),
        messages=sum(messages.get(run.id, 0) for run in found),
        suppressed=sum(run.outcome in ANSWERED and run.why is not None for run in ran),
        skipped=sum(run.slots for run in found if run.outcome is Outcome.SKIPPED),
        usd=round(sum(costs), 6) if costs else None,
    )
