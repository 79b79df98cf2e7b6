"""The texts and the recipients of failure notifications and recoveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from heartbeat.words import abbreviate_duration, format_count, format_duration, list_names, squeeze
from scheduler.channels import target_urls
from scheduler.engine.tick import Tick
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import ANSWERED, FAILURES, AttemptResult, Failure, Kind, Outcome, Skip
from scheduler.model.settings import LAST_TARGET, LOG_CHANNEL, Channel, Target
from scheduler.model.wake import Wake
from scheduler.store import incidents, targets
from scheduler.store.breakers import PROBE_EVERY
from scheduler.store.outages import Outage
from scheduler.store.outbox import OutboxMessage

MAX_ERROR_LENGTH = 500  # characters of an error
MAX_OUTPUT_LENGTH = 700  # characters of a job's output, counted from its end
MAX_ENTRIES_LISTED = 10  # affected entries in one notification
MAX_WAKES_LISTED = 20  # expired wakes in one notification
MAX_WAKE_TEXT_LENGTH = 200  # characters of the text of each wake

# The skips that count as failures, in words.
SKIP_EXPLANATIONS = {
    Skip.BREAKER_OPEN: "the circuit breaker of its provider or model is open",
    Skip.BUDGET: "its budget is used up",
    Skip.CHECKLIST_TOO_LARGE: "its checklist is too large",
    Skip.CHECKLIST_UNREADABLE: "its checklist file cannot be read",
    Skip.PRECHECK_FAILED: "its precheck fails",
    Skip.PROMPT_TOO_LARGE: "its prompt is too long",
}

ALTERNATED = "flaps: it alternated between failing and working within 24 hours."
UNTIL_STABLE = "Single changes are not reported until it has been stable for an hour."


class Notice(StrEnum):
    """What a notification reports."""

    FAILING = "failing"
    CHANGED = "changed"
    REMINDER = "reminder"
    RECOVERED = "recovered"
    FLAPPING = "flapping"
    STEADY = "steady"  # it flapped before, and now fails all the time
    REPLACED = "replaced"  # the last affected entry was switched to another model


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """The number of failures in a row, and the time of the first one. As text, times are local times of `zone`."""

    count: int
    since: datetime
    now: datetime
    zone: ZoneInfo

    def __str__(self) -> str:
        if self.count == 1:
            return f"at {_local_time(self.since, self.zone)}"
        lasted = abbreviate_duration(self.now - self.since)
        return f"{self.count} times in a row, since {_local_time(self.since, self.zone)} ({lasted})"


def failure_text(notice: Notice, claim: Claim, result: AttemptResult, history: FailureHistory) -> str:
    """The notification that an entry fails: how often, since when, the error, and the command for details."""
    who, verb = _entry_label(claim), _failure_verb(result)
    first = {
        Notice.CHANGED: f"{who} has a different problem now: it {verb} {history}.",
        Notice.REMINDER: f"{who} still has the same problem: it {verb} {history}.",
        Notice.STEADY: f"{who} no longer flaps but fails all the time: it {verb} {history}.",
        Notice.FLAPPING: f"{who} {ALTERNATED} It currently fails. {UNTIL_STABLE}",
    }.get(notice, f"{who} {verb} {history}.")
    lines = (first, _failure_reason(result), _job_output(claim, result), f"More: heartbeatd show {claim.run_id}")
    return "\n".join(line for line in lines if line)


def recovery_text(claim: Claim, reason: str | None, history: FailureHistory) -> str:
    """The notification that an entry works again. `reason` is the reason of its last failure."""
    return f"{_entry_label(claim)} works again. Before that, {_what_failed(claim, reason)} {history}."


def flapping_text(claim: Claim) -> str:
    """The notification that an entry flaps and currently works."""
    return f"{_entry_label(claim)} {ALTERNATED} It currently works. {UNTIL_STABLE}"


def stable_text(claim: Claim) -> str:
    """The notification that an entry flapped and has worked for an hour."""
    return f"{_entry_label(claim)} works again and has been stable for an hour."


def _entry_label(claim: Claim) -> str:
    """The kind and name of an entry, to begin a sentence with."""
    who = f"{claim.entry.kind.noun} {claim.entry.name}"
    return who[0].upper() + who[1:]


def _failure_verb(result: AttemptResult) -> str:
    if result.outcome in ANSWERED:
        return "was called although its precheck failed"
    if result.outcome is Outcome.ABANDONED:
        return "was interrupted"
    return "failed" if result.outcome in FAILURES else "was not run"


def _what_failed(claim: Claim, reason: str | None) -> str:
    precheck = claim.entry.precheck
    if reason == Skip.PRECHECK_FAILED and precheck and precheck.on_error == "run":
        return "its precheck failed"
    return "it was not run" if reason in SKIP_EXPLANATIONS else "it failed"


def _failure_reason(result: AttemptResult) -> str:
    why = SKIP_EXPLANATIONS.get(result.reason) if isinstance(result.reason, Skip) else None
    return ": ".join(part for part in (result.reason, why, _shorten(result.error or "")) if part)


def _job_output(claim: Claim, result: AttemptResult) -> str:
    """The end of a job's output. The answer of an agent is not part of notifications."""
    printed = (result.text or "").strip() if claim.entry.kind is Kind.CRON else ""
    return f"Output: {printed[-MAX_OUTPUT_LENGTH:]}" if printed else ""


# What a failing provider does, by class of failure: (the provider as a whole, one of its models).
OUTAGE_VERBS: Mapping[str, tuple[str, str]] = {
    Failure.AUTH: ("refuses the key", "does not allow the use of {model}"),
    Failure.PAYMENT: ("refuses calls until the account is paid", ""),
    Failure.NOT_FOUND: ("", "does not know {model}"),
    Failure.RATE: ("refuses calls because of its rate limit", ""),
    Failure.OVERLOADED: ("is overloaded", ""),
    Failure.SERVER: ("answers with server errors", ""),
    Failure.CONNECT: ("cannot be reached", ""),
    Failure.DNS: ("has a host name that cannot be resolved", ""),
    Failure.TLS: ("has a certificate that is not trusted", ""),
    Failure.TIMEOUT: ("does not answer in time", ""),
}

DEFAULT_REMEDY = "see the provider's status page. Runs continue as soon as the provider answers."

# What to do about it, by class of failure: (the provider as a whole, one of its models).
REMEDIES: Mapping[str, tuple[str, str]] = {
    Failure.AUTH: (
        "set a valid key in providers.{provider}.api_key, then run `heartbeatd reload`. If it is in the environment, restart.",
        "allow the model for this key at the provider, or set another `model:`. Then run `heartbeatd reload`.",
    ),
    Failure.PAYMENT: ("check the account at the provider (credit, billing), then run `heartbeatd reload`.", ""),
    Failure.NOT_FOUND: ("", "correct `model:` or the provider's `base_url` in the config, and save it."),
    Failure.RATE: ("use longer intervals or fewer agents, or ask the provider for a higher limit.", ""),
    Failure.CONNECT: ("check the network, `network.proxy` and providers.{provider}.base_url.", ""),
    Failure.DNS: ("check the name server and providers.{provider}.base_url.", ""),
    Failure.TLS: ("check providers.{provider}.base_url, `network.ca_file` and the clock of this machine.", ""),
}

# Failures that only a person can end. All others of a provider count as one kind.
PERMANENT_FAILURES = frozenset({Failure.AUTH, Failure.PAYMENT, Failure.NOT_FOUND, Failure.TLS})


def outage_text(
    notice: Notice,
    outage: Outage,
    affected: Sequence[tuple[str, str]],
    is_open: bool,
    run_id: int,
    now: datetime,
    zone: ZoneInfo,
) -> str:
    """The notification that a provider or model fails, flaps or answers again.

    `affected` are entries by kind and name. `is_open`: its circuit breaker is open, so no calls are made.
    """
    since = f"{_local_time(outage.since, zone)} ({abbreviate_duration(now - outage.since)})"
    failed = f"It failed since {since}: {_first_line(outage.error or outage.reason)}"
    does = _outage_verb(outage)
    flaps = f"{_outage_subject(outage)} flaps: it failed repeatedly within 24 hours"
    names = f"Affected: {_list_entries(affected)}." if affected else ""
    minutes = PROBE_EVERY // timedelta(minutes=1)
    probed = f" No calls are made except a probe every {minutes} minutes." if is_open else ""
    match notice:
        case Notice.RECOVERED if outage.failing:
            return "\n".join(line for line in (f"{_outage_subject(outage)} answers again. {failed}", names) if line)
        case Notice.RECOVERED:
            return f"{_outage_subject(outage)} answers again and has been stable since {since}."
        case Notice.FLAPPING if not outage.failing:
            return f"{flaps}. It currently answers. {UNTIL_STABLE}"
    first = {
        Notice.CHANGED: f"Different failure: {does}, since {since}.",
        Notice.REMINDER: f"Still failing: {does}, since {since}.",
        Notice.STEADY: f"No longer flapping, but failing all the time: {does}, since {since}.",
        Notice.FLAPPING: f"{flaps}. Currently, {does}. {UNTIL_STABLE}",
    }.get(notice, f"{does[0].upper()}{does[1:]}, since {_local_time(outage.since, zone)}.")
    remedy = f"What to do: {_outage_remedy(outage)}"
    lines = (first, _shorten(outage.error), f"{names}{probed}".strip(), remedy, f"More: heartbeatd show {run_id}")
    return "\n".join(line for line in lines if line)


def replaced_text(claim: Claim, outage: Outage) -> str:
    """The notification that the last entry affected by a failing model was switched to another one, and works."""
    return f"{_entry_label(claim)} uses another model now and works. No run waits for {outage.circuit} any longer."


def outage_kind(outage: Outage) -> str:
    """The kind of failure. Classes that alternate within one outage (overload, timeouts, ...) count as one kind."""
    return outage.reason if outage.reason in PERMANENT_FAILURES else "unavailable"


def _outage_subject(outage: Outage) -> str:
    name = str(outage.circuit)
    return name[0].upper() + name[1:]


def _outage_verb(outage: Outage) -> str:
    """The provider and what it does, as the beginning of a sentence."""
    whole, model = OUTAGE_VERBS.get(outage.reason, ("", ""))
    said = whole if outage.circuit.is_whole_provider else model
    named = f"the model {outage.circuit.model}" if outage.circuit.model else "its only model"
    return f"provider {outage.circuit.provider} {(said or 'fails').format(model=named)}"


def _outage_remedy(outage: Outage) -> str:
    whole, model = REMEDIES.get(outage.reason, (DEFAULT_REMEDY, DEFAULT_REMEDY))
    said = whole if outage.circuit.is_whole_provider else model
    return (said or DEFAULT_REMEDY).format(provider=outage.circuit.provider)


def _list_entries(entries: Sequence[tuple[str, str]]) -> str:
    """The names of the first ten entries, and the number of the others."""
    return list_names([f"{Kind(kind).noun} {name}" for kind, name in entries], MAX_ENTRIES_LISTED)


def undelivered_text(message: OutboxMessage, error: str) -> str:
    """The notification that a message was given up. Its text is left out, because it was meant for other recipients."""
    return (
        f"A message from {Kind(message.kind).noun} {message.name} could not be delivered to {_describe_target(message)}"
        " and is not sent any more.\n"
        f"{_shorten(error)}\n"
        f"Its text: heartbeatd show {message.run_id}\n"
        f"Further undelivered messages are not reported until {message.channel} has accepted one. See: heartbeatd status"
    )


def _describe_target(message: OutboxMessage) -> str:
    return f"{message.recipient} on the channel {message.channel}" if message.recipient else f"the channel {message.channel}"


def expired_wakes_text(wakes: tuple[Wake, ...], keep: timedelta) -> str:
    """The notification that wakes of one agent expired: their senders, what they waited for, and how their texts begin."""
    shown = [_describe_wake(wake) for wake in wakes[:MAX_WAKES_LISTED]]
    more = [f"... and {len(wakes) - MAX_WAKES_LISTED} more"] if len(wakes) > MAX_WAKES_LISTED else []
    how_many = f"{format_count(len(wakes), 'wake')} of agent {wakes[0].name} expired"
    first = f"{how_many}: not delivered to the agent within {format_duration(keep)} (limits.wake_keep)."
    return "\n".join([first, *shown, *more, f"Why it did not run: heartbeatd explain {wakes[0].name}"])


def _describe_wake(wake: Wake) -> str:
    times = f", {wake.count} times" if wake.count > 1 else ""
    reason = f" (waited for: {wake.waits_for})" if wake.waits_for else ""
    cut = squeeze(wake.text, MAX_WAKE_TEXT_LENGTH)
    return f"- by {wake.source} {wake.sender}{times}{reason}" + (f": {cut}" if cut else "")


def _local_time(instant: datetime, zone: ZoneInfo) -> str:
    return f"{instant.astimezone(zone):%Y-%m-%d %H:%M} {zone.key}"


def _first_line(text: str) -> str:
    return _shorten(text.partition("\n")[0])


def _shorten(text: str) -> str:
    half = MAX_ERROR_LENGTH // 2  # the end has what a program printed last
    return text if len(text) <= MAX_ERROR_LENGTH else f"{text[:half]}...{text[-half:]}"


def notice_targets(tick: Tick, entry: Entry) -> tuple[Target, ...]:
    """The recipients of an entry's notifications; a substitute if all of their channels are dead."""
    wished, dead = entry.on_failure.deliver, incidents.dead_targets(tick.tx.db)
    alive = tuple(target for target in resolve_targets(tick, wished, entry.lane) if target not in dead)
    return alive or (substitute_target(tick.plan.settings.channels, wished, dead),)


def target_or_substitute(tick: Tick, target: Target) -> Target:
    """A target that was notified before; a substitute if its channel is dead or no longer declared."""
    dead, declared = incidents.dead_targets(tick.tx.db), (LOG_CHANNEL, *tick.plan.settings.channels)
    is_alive = target not in dead and target.channel in declared
    return target if is_alive else substitute_target(tick.plan.settings.channels, (), dead)


def substitute_target(declared: Mapping[str, Channel], wished: tuple[str, ...], dead: frozenset[Target]) -> Target:
    """A channel that is not known to be dead: one of `wished`, otherwise any of the `declared` ones, otherwise the log."""
    usable = (name for name in (*wished, *declared) if name in declared and Target(name) not in dead and declared[name].is_usable)
    return Target(next((name for name in usable if name != LOG_CHANNEL), LOG_CHANNEL))


def resolve_targets(tick: Tick, deliver: tuple[str, ...], agent: str | None) -> tuple[Target, ...]:
    """The targets of messages of an agent. `last` in `deliver` adds none while no target of the agent is known."""
    channels = tick.plan.settings.channels
    last = targets.last_target(tick.tx.db, channels, agent) if LAST_TARGET in deliver else None
    return target_urls.resolve_targets(channels, deliver, last)


def is_last_target_unknown(tick: Tick, deliver: tuple[str, ...], agent: str | None) -> bool:
    """Whether `deliver` contains `last` although no target of the agent is known."""
    return LAST_TARGET in deliver and targets.last_target(tick.tx.db, tick.plan.settings.channels, agent) is None
