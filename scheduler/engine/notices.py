"""Sends what the rules of problems decided: the texts and the recipients of messages about problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from zoneinfo import ZoneInfo

from heartbeat.findings import Severity
from heartbeat.words import abbreviate_duration, list_names
from scheduler.channels import registry
from scheduler.engine.problem_rules import REMIND_CRITICAL, Change, News, after_end, after_removal, news_of
from scheduler.engine.tick_items import Tick
from scheduler.model.circuit import Circuit
from scheduler.model.entry import Claim, Entry
from scheduler.model.entry_row import EntryRow
from scheduler.model.outcome import AttemptResult, Failure, Kind, Outcome, Skip, Trigger
from scheduler.model.problem import CHANNEL, DAEMON, PROVIDER, EndedBy, Problem, Subject
from scheduler.model.settings import LAST_TARGET, LOG_CHANNEL, Target
from scheduler.store import agent_memory, outbox, problems
from scheduler.store.breakers import PROBE_EVERY
from scheduler.store.outbox import NO_RUN, Hold, Origin, OutboxMessage
from scheduler.store.transaction import Transaction

MAX_ERROR_LENGTH = 500  # characters of an error
MAX_OUTPUT_LENGTH = 700  # characters of a job's output, counted from its end
MAX_ENTRIES_LISTED = 10  # affected entries in one notification
PROBED = "No calls are made except a trial call every {minutes} minutes."

ENDS = {
    EndedBy.NOT_MENTIONED: ", no longer mentioned",
    EndedBy.GONE: ", its lines are gone",
    EndedBy.JOB: ", the job works again",
}


def problem_text(news: News, details: Iterable[str], zone: ZoneInfo) -> str:
    """The message about a problem. The first line has how bad, where, what, whether it is new, and the number of the problem.

    Further lines of what is wrong follow the first line, and the `details` follow them.
    """
    problem, what = news.problem, f"{news.problem.subject} {news.problem.label}"
    says = problem.found.text
    if problem.subject.kind == PROVIDER:
        says = ": ".join(part for part in (_texts_of_failure(problem)[0], _shorten(says)) if part)
    first, _, more = says.partition("\n")
    if problem.over_at is not None:
        lasted = abbreviate_duration(problem.over_at - problem.since)
        last = first if problem.ended_by is EndedBy.RESOLVED else f"It was: {first}"
        why = ENDS.get(problem.ended_by or EndedBy.OBSERVED, "")
        return _join_lines(f"{'over':<8} {what}: after {lasted}{why}   {problem.number}", last, *details)
    severity = problem.found.severity
    word = severity.value.upper() if severity is Severity.CRITICAL else severity.value
    state = ", ".join(_state_of_news(news, zone))
    return _join_lines(f"{word:<8} {what}: {first} ({state})   {problem.number}", more, *details)


def text_by_target(news: Iterable[News], zone: ZoneInfo) -> dict[Target, str]:
    """The text for each recipient about problems that an agent reports, the worst first; none if there is nothing to send."""
    texts: dict[Target, list[str]] = {}
    for each in sorted(news, key=lambda each: -each.known.severity.rank):
        if each.change:
            texts.setdefault(each.target, []).append(problem_text(each, (), zone))
    return {target: "\n".join(found) for target, found in texts.items()}


def _state_of_news(news: News, zone: ZoneInfo) -> Iterator[str]:
    """Whether the problem is new to the recipient, since when it lasts, and how often it was seen in a row."""
    problem = news.problem
    if news.change and news.change.says:
        known = problem.notices.get(news.target)
        yield news.change.says.format(before=known.severity if known else None)
    is_of_runs = problem.subject.kind in tuple(Kind) and not problem.is_reported  # of others, it counts several agents, or looks
    often = f"{problem.count} times in a row " if problem.count > 1 and is_of_runs else ""
    yield f"{often}since {problem.since.astimezone(zone):%Y-%m-%d %H:%M} {zone.key}"


def _join_lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def failure_says(result: AttemptResult) -> str:
    """Why a run failed or was not started: the class of the error if it does not begin with it, an explanation, and the error."""
    why = result.reason.says if isinstance(result.reason, Skip) else None
    how = "interrupted" if result.outcome is Outcome.ABANDONED else ""
    error, reason = _shorten(result.error or ""), str(result.reason or "")
    return ": ".join(filter(None, (how, "" if error.startswith(reason) else reason, why, error)))


def job_output(claim: Claim, result: AttemptResult) -> str:
    """The end of a job's output. The answer of an agent is not part of messages about problems."""
    printed = (result.text or "").strip() if claim.entry.kind is Kind.CRON else ""
    return f"Output: {printed[-MAX_OUTPUT_LENGTH:]}" if printed else ""


def place_of_run(claim: Claim) -> str:
    """The command that shows the run which found a problem."""
    return f"More: heartbeatd show {claim.run.id}"


USUAL_REMEDY = "see the provider's status page. Runs continue as soon as the provider answers."

# What is wrong with a failing provider, and what to do about it, by the class of its failure.
PROVIDER_TEXTS: Mapping[str, tuple[str, str]] = {
    Failure.AUTH: (
        "the key is not valid",
        "set a valid key in providers.{provider}.api_key, then run `heartbeatd reload`. If it is in the environment, restart.",
    ),
    Failure.PAYMENT: (
        "no calls until the account is paid",
        "check the account at the provider (credit, billing), then run `heartbeatd reload`.",
    ),
    Failure.LIMITED: (
        "has reached its usage limit",
        "nothing. Runs begin again by themselves. To spread them, use longer intervals, or `fallbacks` for this time.",
    ),
    Failure.RATE: (
        "refuses calls because of its rate limit",
        "use longer intervals or fewer agents, or ask the provider for a higher limit.",
    ),
    Failure.OVERLOADED: ("is overloaded", USUAL_REMEDY),
    Failure.SERVER: ("answers with server errors", USUAL_REMEDY),
    Failure.CONNECT: ("cannot be reached", "check the network, `network.proxy` and providers.{provider}.base_url."),
    Failure.DNS: ("has a host name that cannot be resolved", "check the name server and providers.{provider}.base_url."),
    Failure.TLS: (
        "has a certificate that is not trusted",
        "check providers.{provider}.base_url, `network.ca_file` and the clock of this machine.",
    ),
    Failure.TIMEOUT: ("does not answer in time", USUAL_REMEDY),
}

# The same of one of its models.
MODEL_TEXTS: Mapping[str, tuple[str, str]] = {
    Failure.AUTH: (
        "does not allow the use of {model}",
        "allow the model for this key at the provider, or set another `model:`. Then run `heartbeatd reload`.",
    ),
    Failure.NOT_FOUND: ("does not know {model}", "correct `model:` or the provider's `base_url` in the config, and save it."),
}


def _texts_of_failure(problem: Problem) -> tuple[str, str]:
    """What is wrong with a provider or model, and what to do about it."""
    circuit = problem.subject.circuit
    texts = PROVIDER_TEXTS if circuit.is_whole_provider else MODEL_TEXTS
    says, remedy = texts.get(problem.found.reason, ("fails", USUAL_REMEDY))
    model = f"the model {circuit.model}" if circuit.model else "its only model"
    return says.format(model=model), remedy.format(provider=circuit.provider)


def provider_details(problem: Problem, affected: Sequence[tuple[str, str]], *, is_open: bool) -> Iterator[str]:
    """Which agents and jobs (by kind and name) a provider stops, and what to do. `is_open`: its circuit breaker is open."""
    entries = list_names([f"{Kind(kind).noun} {name}" for kind, name in affected], MAX_ENTRIES_LISTED)
    minutes = PROBE_EVERY // timedelta(minutes=1)
    is_account = problem.subject.circuit.is_account
    probed = "No program with this account starts before." if is_account else PROBED.format(minutes=minutes)
    yield " ".join(part for part in (f"Stops {entries}." if affected else "", probed if is_open else "") if part)
    yield f"What to do: {_texts_of_failure(problem)[1]}"


def replaced_text(claim: Claim, circuit: Circuit) -> str:
    """That the last entry affected by a failing model was switched to another one, and works."""
    who = claim.entry.kind.noun
    return (
        f"{who[0].upper()}{who[1:]} {claim.entry.name} uses another model now and works. No run waits for {circuit} any longer."
    )


def undelivered_details(message: OutboxMessage, *, is_lost: bool, is_declared: bool) -> Iterator[str]:
    """Which message a channel did not take. Its text is left out, because it was meant for other recipients."""
    sender = "the daemon" if message.kind == DAEMON else f"{Kind(message.kind).noun} {message.name}"
    happened = "was given up" if is_lost else "has waited for an hour. It is tried again for a day"
    yield f"A message from {sender} {happened}."
    if message.run_id != NO_RUN:
        yield f"Its text: heartbeatd show {message.run_id}"
    more = f" Nothing more is sent until {message.channel} takes a message, except reminders." if is_declared else ""
    yield f"All of them: heartbeatd outbox.{more}"


def _shorten(text: str) -> str:
    half = MAX_ERROR_LENGTH // 2  # the end has what a program printed last
    return text if len(text) <= MAX_ERROR_LENGTH else f"{text[:half]}...{text[-half:]}"


def notice_targets(tick: Tick, entry: Entry) -> tuple[Target, ...]:
    """The recipients of an entry's notifications; a substitute if all of their channels are dead."""
    wished, dead = entry.problems_deliver, problems.failing_targets(tick.tx.db)
    alive = tuple(target for target in resolve_targets(tick, wished, entry.lane) if target not in dead)
    return alive or (substitute_target(tick, wished),)


def target_or_substitute(tick: Tick, target: Target) -> Target:
    """A target that was notified before; a substitute if its channel is dead or no longer declared."""
    is_declared = target.channel in (LOG_CHANNEL, *tick.plan.settings.channels)
    is_alive = is_declared and target not in problems.failing_targets(tick.tx.db)
    return target if is_alive else substitute_target(tick, (target.channel,))


def substitute_target(tick: Tick, wished: Sequence[str] = (), refusing: str = "") -> Target:
    """A channel that is not known to be dead, nor `refusing`: one of `wished`, else any declared one, else the log.

    Before the log, a dead one that has refused nothing since the start of the daemon or the last reload: a person may have
    repaired it, and only another message shows that.
    """
    declared = tick.plan.settings.channels
    usable = [each for each in (*wished, *declared) if each in declared and each != LOG_CHANNEL and declared[each].is_usable]
    possible = [Target(name) for name in usable if name != refusing]
    dead = problems.failing_targets(tick.tx.db)
    return next((each for out in (dead, tick.refusing) for each in possible if each not in out), Target(LOG_CHANNEL))


def resolve_targets(tick: Tick, deliver: tuple[str, ...], agent: str | None) -> tuple[Target, ...]:
    """The targets of messages of an agent. `last` in `deliver` adds none while no target of the agent is known."""
    channels = tick.plan.settings.channels
    last = agent_memory.last_target(tick.tx.db, channels, agent) if LAST_TARGET in deliver else None
    return registry.resolve_targets(channels, deliver, last)


def is_last_target_unknown(tick: Tick, deliver: tuple[str, ...], agent: str | None) -> bool:
    """Whether `deliver` contains `last` although no target of the agent is known."""
    return LAST_TARGET in deliver and agent_memory.last_target(tick.tx.db, tick.plan.settings.channels, agent) is None


def send_news(
    tick: Tick,
    problem: Problem,
    recipients: Iterable[Target],
    about: Origin,
    details: Sequence[str] = (),
    remind: timedelta = REMIND_CRITICAL,
) -> None:
    """Send each recipient what is new to it of a problem of a provider, a channel or the daemon, which is saved already."""
    for each in news_of(problem, recipients, remind, tick.now):
        send_message(tick, each, about, problem_text(each, details, tick.plan.settings.zone) if each.change else "")


def send_message(tick: Tick, news: News, about: Origin, text: str, hold: Hold | None = None) -> None:
    """Queue one message for a recipient, or for a substitute if its channel takes no messages. Without a text it gets nothing.

    A message about a provider, a channel or the daemon has its name as its title.
    """
    queued, subject = None, news.problem.subject
    if text:
        target = target_or_substitute(tick, news.target)
        name, title = _name_of_notice(tick, news, about), None if subject.kind in tuple(Kind) else str(subject)
        queued = outbox.queue_notice(tick.tx, tick.plan.settings.channels, about, name, text, (target,), title, hold)[target]
    problems.save_notice(tick.tx, news.problem.id, news.target, news.known, queued)


def _name_of_notice(tick: Tick, news: News, about: Origin) -> str:
    """The kind of the message, which a run has once.

    A message that waits for a day may cause several reminders, and its channel may fail, work and fail again.
    """
    is_known_channel = news.problem.subject.kind == CHANNEL and bool(news.problem.notices)
    is_repeated = is_known_channel or news.change is Change.REMINDER or about.run_id == NO_RUN
    when = f" of {tick.now:%Y-%m-%dT%H:%M:%SZ}" if is_repeated else ""
    recipient = f" to {news.target.recipient}" if news.target.recipient else ""
    return f"{news.change} {news.problem.number}{when}{recipient}"


def send_ends_together(tick: Tick, about: Origin, ended: Iterable[Problem]) -> frozenset[Target]:
    """Send the ends of several problems of an agent, which another event has ended, in one message to each recipient.

    Returns the recipients that get one.
    """
    news = [each for problem in ended for each in news_of(problem, (), REMIND_CRITICAL, tick.now)]  # an end has no reminders
    queued: dict[Target, int] = {}
    for target, text in text_by_target(news, tick.plan.settings.zone).items():
        name = f"over {news[0].problem.number}{f' to {target.recipient}' if target.recipient else ''}"
        sent = target_or_substitute(tick, target)
        queued[target] = outbox.queue_notice(tick.tx, tick.plan.settings.channels, about, name, text, (sent,))[sent]
    record_news(tick.tx, news, queued)
    return frozenset(queued)


def record_news(tx: Transaction, news: Iterable[News], queued: Mapping[Target, int]) -> None:
    """Record what recipients get by messages that are queued for them, each about one problem or several."""
    for each in news:
        problems.save_notice(tx, each.problem.id, each.target, each.known, queued.get(each.target) if each.change else None)


def send_news_of_entry(tick: Tick, entry: Entry, problem: Problem) -> None:
    """Send what is news about a problem of an agent or job while none of its runs ends."""
    about = Origin(NO_RUN, *entry.key, Trigger.MANUAL, tick.now)
    send_news(tick, problem, notice_targets(tick, entry), about, (), entry.spec.problems_remind)


def end_problem(tick: Tick, entry_row: EntryRow, key: str) -> None:
    """End a problem of an agent or job, because a user has removed its cause.

    While the entry is muted, nothing is sent: the next run after the mute sends the end.
    """
    subject, entry = Subject(*entry_row.key), tick.plan.entries.get(entry_row.key)
    was = problems.find_problem(tick.tx.db, subject, key)
    if was is None or was.over_at is not None:
        return
    over = problems.save_problem(tick.tx, after_end(was, tick.now))
    if entry is not None and not entry_row.is_muted(tick.now):
        send_news_of_entry(tick, entry, over)


def forget_problems(tick: Tick, entry_row: EntryRow) -> None:
    """Delete the problems of a disabled or removed entry, and close those that are acknowledged.

    What a removed one has reported is closed: nobody would see its end.
    """
    for own in problems.problems_of(tick.tx.db, Subject(*entry_row.key)):
        if own.acknowledgement is None:
            problems.delete_problem(tick.tx, own.id)
        else:
            record_close(tick.tx, after_removal(own, tick.now))
    if entry_row.state == "removed":
        for reported in problems.open_reports_of(tick.tx.db, entry_row.name, entry_row.kind):
            record_close(tick.tx, after_removal(reported, tick.now))


def record_close(tx: Transaction, closed: Problem) -> None:
    """Save a problem that a user has closed. No recipient gets its end."""
    problems.save_problem(tx, closed)
    for target, last in closed.notices.items():
        problems.save_notice(tx, closed.id, target, last, None)
