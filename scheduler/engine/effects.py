"""Carries out the verbs of people and programs within a tick: wake, run, pause, mute, locks, messages, problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, Literal

from typing_extensions import TypeVar

from heartbeat.findings import parse_report
from heartbeat.words import format_count, format_duration, one_line
from heartbeatd import verbs
from heartbeatd.answers import (
    Asked,
    CancelledRun,
    CancelledWake,
    ChangedMessage,
    ChangedProblem,
    Done,
    LockHeld,
    LockReleased,
    Muted,
    PausedEntries,
    RecordedActivity,
    ResumedEntries,
    RunNumber,
    Unmuted,
    WakeAccepted,
)
from heartbeatd.operations import LONGEST_DURATION
from heartbeatd.verbs import Verb
from scheduler.channels import registry
from scheduler.config.file.message_parts import did_you_mean
from scheduler.engine import ask_people, notices, pending_runs, planning, wake_starts
from scheduler.engine.problem_rules import after_close
from scheduler.engine.tick_items import Refused, Tick
from scheduler.model.entry import Entry
from scheduler.model.entry_row import UNTIL_RESUMED, EntryRow, KnownState, Mute, parse_mute
from scheduler.model.events import MuteChanged, PauseChanged, ProblemChanged
from scheduler.model.local_days import local_text
from scheduler.model.outcome import DeliveryState, Key, Kind, Skip, Trigger
from scheduler.model.problem import Acknowledgement, Problem, Subject
from scheduler.model.settings import Target
from scheduler.model.wake import RejectedBecause, Wake
from scheduler.store import agent_memory, asked_questions, entries, lane_holds, outbox, problems, runs, slot_records, wakes
from scheduler.store.outbox import OutboxMessage
from scheduler.store.transaction import Transaction

AVerb = TypeVar("AVerb", bound=Verb, default=Verb, covariant=True)
AnAnswer = TypeVar("AnAnswer", bound=Done)


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends a verb. Without arguments it is the command line.

    `name` is that of the token, with a `noun`, of the person, or of the agent or job. `source` is the trigger of the runs that
    the verb starts. `token` is empty for people. `run` is the mark of the run that sends the verb.
    """

    name: str = "command"
    noun: str = ""
    source: Trigger = Trigger.MANUAL
    token: str = ""
    run: str | None = None

    @property
    def by(self) -> str:
        """The sender in records of changes: command, token NAME, a person, or an agent or job."""
        return f"{self.noun} {self.name}".lstrip()


COMMAND_LINE = Sender()


@dataclass(frozen=True, slots=True)
class VerbRequest(Generic[AVerb]):
    """A verb with what it does not contain itself: the entry, run, message or problem that it is for, and its sender.

    `subject` None: all entries, or what the verb names.
    """

    verb: AVerb
    subject: Key | int | None = None
    sender: Sender = COMMAND_LINE

    def __call__(self, tick: Tick) -> Done:
        """Carry the verb out, and return its answer. Raises Refused."""
        return EFFECTS[type(self.verb)](tick, self)

    @property
    def key(self) -> Key:
        """The entry that the verb is for."""
        assert isinstance(self.subject, tuple)
        return self.subject

    @property
    def name(self) -> str:
        """The name of the entry that the verb is for."""
        return self.key[1]

    @property
    def number(self) -> int:
        """The number of the run, message or problem that the verb is for."""
        assert isinstance(self.subject, int)
        return self.subject


Effect = Callable[[Tick, VerbRequest[Any]], AnAnswer]
EFFECTS: dict[type[Verb], Effect[Done]] = {}


def effect_of(verb: type[Verb[AnAnswer]]) -> Callable[[Effect[AnAnswer]], Effect[AnAnswer]]:
    """Decorates the function that carries out this verb within a tick. Rows that it wrote before it raises Refused are kept."""

    def register(effect: Effect[AnAnswer]) -> Effect[AnAnswer]:
        EFFECTS[verb] = effect
        return effect

    return register


@effect_of(verbs.Wake)
def wake_agent(tick: Tick, request: VerbRequest[verbs.Wake]) -> WakeAccepted:
    """A wake by a run of the agent itself is rejected, because it could repeat without end. It may set a reminder."""
    sender, verb = request.sender, request.verb
    at = verb.at if verb.in_ is None else tick.now + verb.in_
    source = sender.source if at is None else Trigger.REMINDER
    wake = Wake(request.name, source, sender.name, verb.text, urgent=verb.urgent, token=sender.token)
    entry_row = _declared_entry(tick, *request.key)
    if entry_row.state != "active":
        slot_records.record_skip(tick.tx, entry_row, sender.source, Skip.DISABLED, tick.now)
        wakes.reject_wake(tick.tx, wake, RejectedBecause.DISABLED)
        raise Refused(Skip.DISABLED, f"agent {wake.name!r} is disabled in {tick.plan.settings.path.name}")
    if at is not None:
        wake_id = wake_starts.set_reminder(tick, wake, at, is_timer=verb.in_ is not None)
        return WakeAccepted(wake=wake_id, says=f"wake {wake_id} for {_label(request)} is planned")
    run = runs.find_open_run(tick.tx.db, Kind.HEARTBEAT, wake.name)
    if run is not None and sender.run == f"{run.owner}/{run.id}":
        wakes.reject_wake(tick.tx, wake, RejectedBecause.OWN_RUN)
        raise Refused("own_run", f"agent {wake.name!r} cannot wake itself from within its own run")
    wake_id = wake_starts.accept_wake(tick, entry_row, wake)
    return WakeAccepted(wake=wake_id, says=f"wake {wake_id} for {_label(request)} is queued")


@effect_of(verbs.CancelWake)
def cancel_wake(tick: Tick, request: VerbRequest[verbs.CancelWake]) -> CancelledWake:
    """It is recorded as rejected. An entry that would have run for it alone does not run."""
    wake = wakes.find_wake(tick.tx.db, request.number)
    if wake is None:
        raise Refused("not_found", f"no wake {request.number}; `heartbeatd status` lists reminders")
    ended = wakes.end_waiting_wake(tick.tx, wake.id, RejectedBecause.CANCELLED)
    if ended is None:
        is_taken = wake.state == "taken"
        raise Refused(wake.state, f"wake {wake.id} {f'is in the prompt of run {wake.run_id}' if is_taken else 'has ended'}")
    entry_row = entries.current_entry(tick.tx, wake.kind, wake.name)
    if entry_row is not None and wake.state == "waiting":
        wake_starts.record_ended_start(tick, entry_row, ended, Skip.CANCELLED)
        planning.save_with_next_due(tick.tx, entry_row, entry_row)
    return CancelledWake(wake=wake.id, says=f"wake {wake.id} for {wake.kind.label_of(wake.name)} is cancelled")


@effect_of(verbs.RunJob)
def run_job(tick: Tick, request: VerbRequest[verbs.RunJob]) -> WakeAccepted:
    """A job that is disabled, paused or running is refused, and the skip is recorded."""
    entry_row, source = _declared_entry(tick, *request.key), request.sender.source
    obstacles = (
        (entry_row.state != "active", Skip.DISABLED, "disabled in the config"),
        (entry_row.is_paused_at(tick.now), Skip.PAUSED, "paused; resume it first"),
        (runs.find_open_run(tick.tx.db, *request.key) is not None, Skip.ALREADY_RUNNING, "already running"),
    )
    for applies, obstacle, says in obstacles:
        if applies:
            slot_records.record_skip(tick.tx, entry_row, source, obstacle, tick.now)
            raise Refused(obstacle, f"cron job {request.name!r} is {says}")
    wake = Wake(request.name, source, request.sender.name, kind=Kind.CRON)
    return WakeAccepted(wake=wake_starts.accept_wake(tick, entry_row, wake), says=f"{_label(request)} is queued")


@effect_of(verbs.ReportResult)
def report_result(tick: Tick, request: VerbRequest[verbs.ReportResult]) -> RunNumber:
    """The result is another run of the same slot."""
    verb = request.verb
    try:
        report = None if verb.findings is None else parse_report({"findings": verb.findings, "text": verb.text})
    except ValueError as error:
        raise Refused("bad_request", str(error)) from None
    run = pending_runs.record_result(tick, request.number, verb.text, verb.error, truncated=verb.truncated, report=report)
    return RunNumber(run=run, says=f"the result of run {request.number} is recorded as run {run}")


@effect_of(verbs.Ask)
def ask_person(tick: Tick, request: VerbRequest[verbs.Ask]) -> Asked:
    """The time of the run stops until the question has ended."""
    asked = ask_people.ask_person(tick, request.number, request.verb, request.sender.by)
    return Asked(question=asked, says=f"question {asked.id} of run {asked.run}: {asked.course}")


@effect_of(verbs.AnswerQuestion)
def answer_question(tick: Tick, request: VerbRequest[verbs.AnswerQuestion]) -> Asked:
    """A run cannot answer its own questions, nor a token of some agents those that it has asked."""
    sender, asked = request.sender, asked_questions.find_question(tick.tx.db, request.number)
    is_limited = any(each.name == sender.token and each.agents is not None for each in tick.plan.settings.server.tokens)
    if asked and ((sender.run or "").endswith(f"/{asked.run}") or (is_limited and asked.asked_by == sender.by)):
        raise Refused("own_question", f"question {asked.id} is for people; who has asked it cannot answer it")
    answered = ask_people.answer_question(tick, request.number, request.verb.answer, sender.by)
    return Asked(question=answered, says=f"question {answered.id} of run {answered.run}: {answered.course}")


@effect_of(verbs.Cancel)
def cancel_run(tick: Tick, request: VerbRequest[verbs.Cancel]) -> CancelledRun:
    """A run in progress ends within seconds."""
    run, has_ended = request.number, pending_runs.cancel_run(tick, request.number)
    return CancelledRun(run=run, ended=has_ended, says=f"run {run} is {'cancelled' if has_ended else 'being cancelled'}")


def _end_of(verb: verbs.Pause | verbs.Mute, now: datetime) -> datetime | None:
    """When a pause or a mute ends; None if it lasts until somebody ends it."""
    if verb.until is not None and verb.until <= now:
        raise Refused("bad_request", "until: this time is in the past")
    if verb.until is not None and verb.until > now + LONGEST_DURATION:  # the last days of the year 9999 have no local time
        raise Refused("bad_request", "until: this time is more than ten years ahead; leave it out")
    return verb.until if verb.for_ is None else now + verb.for_


def _label(request: VerbRequest) -> str:
    """What a sentence calls the entry that a verb is for."""
    return "all agents and jobs" if request.subject is None else request.key[0].label_of(request.name)


def _until(tick: Tick, end: datetime) -> str:
    zone = tick.plan.settings.zone
    return f"until {local_text(end, zone)} {zone.key}"


@effect_of(verbs.Pause)
def pause(tick: Tick, request: VerbRequest[verbs.Pause]) -> PausedEntries:
    """Slots that came due before the pause are recorded with their own reason.

    A pause of all leaves those as they are that are paused after failures, so that they do not run again when it ends.
    """
    until, by = _end_of(request.verb, tick.now), request.sender.by
    chosen = list(_chosen_entries(tick, request.subject))
    kept = [entry_row for entry_row in chosen if request.subject is None and entry_row.is_paused_by_failures]
    for entry_row in (each for each in chosen if each not in kept):
        settled = entry_row if entry_row.paused else planning.record_passed_slots(tick, entry_row, Skip.MISSED)
        since = settled.paused_at if settled.paused else tick.now
        paused = settled._replace(paused_until=until or UNTIL_RESUMED, paused_at=since, paused_by=by, paused_after_failures=0)
        planning.save_with_next_due(tick.tx, entry_row, paused)
        tick.tx.report(PauseChanged(*entry_row.key, True, by, until))
    are = "are" if request.subject is None else "is"
    says = f"{_label(request)} {are} paused {_until(tick, until) if until else 'until resumed'}"
    says += "".join(f"; {each.label} stays {each.pause_says}, until resumed" for each in kept if until)
    return PausedEntries(paused=[entry_row.label for entry_row in chosen], says=says)


@effect_of(verbs.Resume)
def resume(tick: Tick, request: VerbRequest[verbs.Resume]) -> ResumedEntries:
    """The answer names those that were paused. The slots of the pause are recorded as one skip with a count."""
    paused = [entry_row for entry_row in _chosen_entries(tick, request.subject) if entry_row.paused]
    for entry_row in paused:
        planning.save_with_next_due(tick.tx, entry_row, planning.end_pause(tick, entry_row, tick.now))
        tick.tx.report(PauseChanged(*entry_row.key, False, request.sender.by, None))
    labels = [entry_row.label for entry_row in paused]
    if not labels:
        nothing = "nothing was" if request.subject is None else f"{_label(request)} was not"
        return ResumedEntries(resumed=[], says=f"{nothing} paused")
    return ResumedEntries(resumed=labels, says=f"{', '.join(sorted(labels))} {'is' if len(labels) == 1 else 'are'} resumed")


@effect_of(verbs.NoteActivity)
def record_activity(tick: Tick, request: VerbRequest[verbs.NoteActivity]) -> RecordedActivity:
    """The answer has the values that are recorded now. If messages cannot be sent to the target, the whole request is refused."""
    entry_row, verb = _declared_entry(tick, *request.key), request.verb
    if verb.channel is not None and verb.target is not None:
        target = Target(one_line(verb.channel), one_line(verb.target))
        try:
            registry.check_target(tick.plan.settings.channels, target)
        except ValueError as error:
            raise Refused("bad_request", str(error)) from None
        agent_memory.record_target(tick.tx, request.name, target, verb.title and one_line(verb.title))
    counts = {"queue": verb.queue, "approvals": verb.pending_approvals}
    given = {name: count for name, count in counts.items() if count is not None}
    updated_row = entry_row._replace(**given, active_at=tick.now) if given else entry_row
    entries.change_entry(tick.tx, entry_row, updated_row)
    last = next(iter(agent_memory.known_targets(tick.tx.db, request.name)), None)
    return RecordedActivity(
        last=last,
        queue=updated_row.queue,
        pending_approvals=updated_row.approvals,
        says=f"the activity of {_label(request)} is recorded",
    )


@effect_of(verbs.HoldLock)
def hold_lock(tick: Tick, request: VerbRequest[verbs.HoldLock]) -> LockHeld:
    """A run in progress continues. The holder has the lock once it has ended."""
    verb, name = request.verb, request.name
    if verb.for_ > lane_holds.MAX_HOLD:
        longest = format_duration(lane_holds.MAX_HOLD)
        raise Refused("bad_request", f"for: at most {longest}; send it again to prolong it")
    entry_row, until = _declared_entry(tick, *request.key), tick.now + verb.for_
    if not lane_holds.save_hold(tick.tx, name, verb.id, until):
        raise Refused("too_many", f"the lock of agent {name!r} is already held by {lane_holds.MAX_HOLDS_PER_AGENT} others")
    run = runs.find_open_run(tick.tx.db, *entry_row.key)
    running = run.id if run is not None and run.state == "running" else None
    says = f"the lock of {_label(request)} is held by {verb.id} {_until(tick, until)}"
    return LockHeld(id=verb.id, until=until, run=running, says=says)


@effect_of(verbs.ReleaseLock)
def release_lock(tick: Tick, request: VerbRequest[verbs.ReleaseLock]) -> LockReleased:
    """Runs that wait for the lock start at once."""
    _declared_entry(tick, *request.key)
    lane_holds.delete_hold(tick.tx, request.name, request.verb.id)
    if not lane_holds.is_lane_held(tick.tx, request.name):
        for kind, name, _ in runs.all_open_runs(tick.tx.db):
            entry = tick.plan.entries.get((kind, name))
            if entry is not None and entry.lane == request.name:
                planning.retry_waiting_run(tick.tx, entries.get_entry(tick.tx, kind, name), Skip.BUSY)
    return LockReleased(id=request.verb.id, says=f"{request.verb.id} does not hold the lock of {_label(request)} any more")


UNSENDABLE_STATES = {
    DeliveryState.DELIVERED: "has been delivered",
    DeliveryState.DROPPED: "has been dropped",
    DeliveryState.SENDING: "is being sent; wait for the result before you resend or drop it",
}


@effect_of(verbs.Retry)
def retry_message(tick: Tick, request: VerbRequest[verbs.Retry]) -> ChangedMessage:
    """A waiting, held or dead message is sent with the same key. One that is older than a day gets a single attempt."""
    message = _undelivered_message(tick.tx, request.number)
    outbox.resend_message(tick.tx, message)
    return ChangedMessage(message=message.id, channel=message.channel, says=f"message {message.id} will be sent again")


@effect_of(verbs.Drop)
def drop_message(tick: Tick, request: VerbRequest[verbs.Drop]) -> ChangedMessage:
    """Its text remains readable in its run. The same text may be sent again."""
    message = _undelivered_message(tick.tx, request.number)
    outbox.drop_message(tick.tx, message)
    return ChangedMessage(message=message.id, channel=message.channel, says=f"message {message.id} is dropped")


def _undelivered_message(tx: Transaction, message_id: int) -> OutboxMessage:
    found = outbox.find_message(tx.db, message_id)
    if found is None:
        raise Refused("not_found", f"no message {message_id}; `heartbeatd outbox` lists them")
    message, state = found
    if state in UNSENDABLE_STATES:
        why = f" ({message.error})" if state is DeliveryState.DROPPED and message.error else ""
        raise Refused(state, f"message {message_id} {UNSENDABLE_STATES[state]}{why}")
    if message.merged_into and state is DeliveryState.PENDING:
        raise Refused(state, f"message {message_id} is sent together with others as message {message.merged_into}; name that one")
    return message


@effect_of(verbs.CloseProblem)
def close_problem(tick: Tick, request: VerbRequest[verbs.CloseProblem]) -> ChangedProblem:
    """If the problem is found again, it opens again."""
    closed = after_close(_open_problem(tick, request), tick.now)
    notices.record_close(tick.tx, closed)
    return _changed_problem(tick, request, closed, "closed", "is closed")


@effect_of(verbs.Ack)
def acknowledge(tick: Tick, request: VerbRequest[verbs.Ack]) -> ChangedProblem:
    """Another acknowledgement replaces the first."""
    problem = _open_problem(tick, request)
    acknowledgement = Acknowledgement(tick.now, problem.found.severity, request.sender.by)
    problems.save_problem(tick.tx, replace(problem, acknowledgement=acknowledgement))
    return _changed_problem(tick, request, problem, "acknowledged", "is acknowledged: no messages until it is worse or over")


@effect_of(verbs.Unack)
def unacknowledge(tick: Tick, request: VerbRequest[verbs.Unack]) -> ChangedProblem:
    """The next run sends a reminder if it is due."""
    problem = _open_problem(tick, request)
    if problem.acknowledgement is None:
        raise Refused("not_acknowledged", f"problem {problem.number} was not acknowledged")
    problems.save_problem(tick.tx, replace(problem, acknowledgement=None))
    return _changed_problem(tick, request, problem, "unacknowledged", "is not acknowledged any more")


def _open_problem(tick: Tick, request: VerbRequest) -> Problem:
    """The problem with the number of the request. Raises Refused if it is over, or if there is none."""
    problem = problems.get_problem(tick.tx.db, request.number)
    if problem is None:
        raise Refused("not_found", f"no problem p{request.number}; `heartbeatd problems` lists them")
    if problem.over_at is not None:
        raise Refused("closed", f"problem {problem.number} ({problem.subject.label} {problem.label}) is over already")
    return problem


def _changed_problem(
    tick: Tick,
    request: VerbRequest,
    problem: Problem,
    change: Literal["closed", "acknowledged", "unacknowledged"],
    says: str,
) -> ChangedProblem:
    number, subject, key = problem.number, problem.subject.label, problem.label
    tick.tx.report(ProblemChanged(number, subject, key, change, request.sender.by))
    return ChangedProblem(problem=number, subject=subject, key=key, says=f"problem {number} ({subject} {key}) {says}")


@effect_of(verbs.Mute)
def mute(tick: Tick, request: VerbRequest[verbs.Mute]) -> Muted:
    """A further mute replaces the first."""
    entry_row, until = _declared_entry(tick, *request.key), _end_of(request.verb, tick.now)
    is_until_changed = request.verb.until_changed
    known = _state_now(tick.tx, tick.plan.entries[request.key], entry_row) if is_until_changed else None
    held = parse_mute(entry_row.mute).held if entry_row.mute and entry_row.is_muted(tick.now) else 0
    muted = Mute(tick.now, request.sender.by, held, known).to_text()
    tick.tx.report(MuteChanged(*entry_row.key, True, request.sender.by, until or UNTIL_RESUMED))
    entries.change_entry(tick.tx, entry_row, entry_row._replace(muted_until=until or UNTIL_RESUMED, mute=muted))
    outbox.reconsider_hours(tick.tx)  # it may end earlier than the first
    ends = [_until(tick, until) if until else "", "until something changes" if is_until_changed else ""]
    says = f"{_label(request)} is muted {' or '.join(filter(None, ends)) or 'until unmuted'}"
    return Muted(muted_until=until, until_changed=is_until_changed, says=says)


def _state_now(tx: Transaction, entry: Entry, entry_row: EntryRow) -> KnownState:
    reported = problems.open_reports_of(tx.db, entry.name, entry.kind)
    observed = problems.problems_of(tx.db, Subject(*entry.key))
    last = runs.last_text(tx.db, *entry_row.key)
    texts = outbox.recent_digests(tx.db, *entry_row.key)
    return KnownState(
        {each.key: each.found.severity.rank for each in reported},
        (*texts, entry.message_digest(last.strip())) if last else tuple(texts),
        " ".join(each.found.reason for each in observed if each.over_at is None),
    )


@effect_of(verbs.Unmute)
def unmute(tick: Tick, request: VerbRequest[verbs.Unmute]) -> Unmuted:
    """`held` is how many runs had suppressed messages.

    What is still news to recipients is sent with the next run.
    """
    entry_row = _declared_entry(tick, *request.key)
    if not entry_row.is_muted(tick.now) or entry_row.mute is None:
        return Unmuted(was_muted=False, held=0, says=f"{_label(request)} was not muted")
    tick.tx.report(MuteChanged(*entry_row.key, False, request.sender.by, None))
    entries.change_entry(tick.tx, entry_row, entry_row._replace(muted_until=None))
    outbox.reconsider_hours(tick.tx)
    held = parse_mute(entry_row.mute).held
    says = f"{_label(request)} is unmuted; messages of {format_count(held, 'run')} were suppressed"
    return Unmuted(was_muted=True, held=held, says=says)


def _declared_entry(tick: Tick, kind: Kind, name: str) -> EntryRow:
    entry_row = entries.current_entry(tick.tx, kind, name)
    if entry_row is None or (kind, name) not in tick.plan.entries:
        others = [other for each, other in tick.plan.entries if each is kind]
        instead = did_you_mean(name, others) or "; `heartbeatd status` lists them"
        raise Refused("not_found", f"no {kind.noun} {name!r} in {tick.plan.settings.path.name}{instead}")
    return entry_row


def _chosen_entries(tick: Tick, subject: Key | int | None) -> Iterable[EntryRow]:
    if isinstance(subject, tuple):
        return [_declared_entry(tick, *subject)]
    return [entry_row for entry_row in entries.all_entries(tick.tx.db) if entry_row.key in tick.plan.entries]
