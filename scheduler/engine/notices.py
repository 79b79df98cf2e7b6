"""Notices: in which words people are told that something fails, still fails, or works again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from heartbeat.spec import Heartbeat
from scheduler.channels import target_urls
from scheduler.config.file.message_parts import format_count, format_duration
from scheduler.engine.tick import Tick
from scheduler.model.entry import Claim, Entry
from scheduler.model.outcome import ANSWERED, FAILURES, AttemptResult, Failure, Kind, Outcome, Skip
from scheduler.model.settings import LAST_TARGET, LOG_CHANNEL, Target
from scheduler.model.wake import Wake
from scheduler.store import incidents, targets
from scheduler.store.outages import Outage
from scheduler.store.outbox import OutboxMessage

MAX_ERROR_LENGTH = 500  # characters
MAX_OUTPUT_LENGTH = 700  # of a job's output, from its end
MAX_WAKES_LISTED = 20  # of those that expired together
MAX_WAKE_TEXT_LENGTH = 200  # characters of the text of each

SKIP_EXPLANATIONS = {
    Skip.BREAKER_OPEN: "its provider or model refuses calls",
    Skip.BUDGET: "its budget is used up",
    Skip.CHECKLIST_TOO_LARGE: "its checklist is too large",
    Skip.CHECKLIST_UNREADABLE: "its checklist is not a file that may be read",
    Skip.PRECHECK_FAILED: "its precheck fails",
    Skip.PROMPT_TOO_LARGE: "its prompt is larger than max_input_tokens",
}

MAX_ENTRIES_LISTED = 10  # entries that a notice names

# What a provider does that fails, by the class of the failure: of the provider as a whole, and of one of its models.
OUTAGE_VERBS: Mapping[str, tuple[str, str]] = {
    Failure.AUTH: ("refuses the key", "does not allow the use of {model}"),
    Failure.PAYMENT: ("refuses the account until it is paid", ""),
    Failure.NOT_FOUND: ("", "does not know {model}"),
    Failure.RATE: ("limits the rate of calls", ""),
    Failure.OVERLOADED: ("is overloaded", ""),
    Failure.SERVER: ("answers with server errors", ""),
    Failure.CONNECT: ("cannot be connected to", ""),
    Failure.DNS: ("cannot be found by its name", ""),
    Failure.TLS: ("has no certificate that can be trusted", ""),
    Failure.TIMEOUT: ("does not answer in time", ""),
}

# What to do about it.
REMEDIES: Mapping[str, tuple[str, str]] = {
    Failure.AUTH: (
        "put a valid key where providers.{provider}.api_key says; then `heartbeatd reload`; restart if the environment has it.",
        "have the provider allow the model for this key, or name another `model:`; then `heartbeatd reload`.",
    ),
    Failure.PAYMENT: ("see to the account at the provider (credit, billing); then `heartbeatd reload`.", ""),
    Failure.NOT_FOUND: ("", "correct `model:`, or the provider's `base_url`, in the config and save it."),
    Failure.RATE: ("use longer intervals or fewer agents, or have the provider raise the limit.", ""),
    Failure.CONNECT: ("check the network, `network.proxy` and providers.{provider}.base_url.", ""),
    Failure.DNS: ("check the name server and providers.{provider}.base_url.", ""),
    Failure.TLS: ("check providers.{provider}.base_url, `network.ca_file` and the clock of this machine.", ""),
}
UNTIL_STABLE = "Single changes are not reported until it has been stable for an hour."
PERMANENT_FAILURES = frozenset(
    {Failure.AUTH, Failure.PAYMENT, Failure.NOT_FOUND, Failure.TLS}
)  # failures that somebody has to mend
DEFAULT_REMEDY = "see the provider's status page; runs go on as soon as it answers."


class Notice(StrEnum):
    """What a notice reports."""

    FAILING = "failing"
    CHANGED = "changed"
    REMINDER = "reminder"
    RECOVERED = "recovered"
    FLAPPING = "flapping"
    STEADY = "steady"  # it flapped, and fails all the time now
    REPLACED = "replaced"  # who suffered from a model asks another one


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """How often something went wrong in a row and since when, as it stands at `now`; times are told in `zone`."""

    count: int
    since: datetime
    now: datetime
    zone: ZoneInfo

    def __str__(self) -> str:
        if self.count == 1:
            return f"at {_local_time(self.since, self.zone)}"
        return (
            f"{self.count} times in a row, since {_local_time(self.since, self.zone)} ({_rough_duration(self.now - self.since)})"
        )


def _local_time(instant: datetime, zone: ZoneInfo) -> str:
    return f"{instant.astimezone(zone):%Y-%m-%d %H:%M} {zone.key}"


def failure_text(notice: Notice, claim: Claim, result: AttemptResult, story: FailureHistory) -> str:
    """What went wrong, how often, since when, with what error, and where to look."""
    who, verb = _entry_label(claim), _failure_verb(result)
    first = {
        Notice.CHANGED: f"{who} has another fault now; it {verb} {story}.",
        Notice.REMINDER: f"{who} still has the same fault; it {verb} {story}.",
        Notice.STEADY: f"{who} does not flap any more, but fails all the time; it {verb} {story}.",
        Notice.FLAPPING: f"{who} flaps: it failed and worked again by turns within 24 hours. At present it fails. {UNTIL_STABLE}",
    }.get(notice, f"{who} {verb} {story}.")
    lines = (first, _failure_reason(result), _job_output(claim, result), f"More: heartbeatd show {claim.run_id}")
    return "\n".join(line for line in lines if line)


def recovery_text(claim: Claim, reason: str | None, story: FailureHistory) -> str:
    """It works again, and how long it did not; `reason` is that of the last time."""
    return f"{_entry_label(claim)} works again. Before that {_what_failed(claim, reason)} {story}."


def _what_failed(claim: Claim, reason: str | None) -> str:
    spec = claim.entry.spec
    if reason == Skip.PRECHECK_FAILED and isinstance(spec, Heartbeat) and spec.precheck and spec.precheck.on_error == "run":
        return "its precheck failed"
    return "it was not run" if reason in SKIP_EXPLANATIONS else "it failed"


def flapping_text(claim: Claim) -> str:
    """It fails again and again, and works at present."""
    return (
        f"{_entry_label(claim)} flaps: it failed and worked again by turns within 24 hours. At present it works. {UNTIL_STABLE}"
    )


def stable_text(claim: Claim) -> str:
    """It flapped, and has worked for an hour."""
    return f"{_entry_label(claim)} works again, and has been stable for an hour."


def outage_text(
    notice: Notice,
    outage: Outage,
    affected: Sequence[tuple[str, str]],
    shut_off: bool,
    run_id: int,
    now: datetime,
    zone: ZoneInfo,
) -> str:
    """What a provider does that fails, its words, who is affected, what to do; or that it answers again.

    `affected` are entries by kind and name; `shut_off`: its circuit breaker is open, and no calls are made.
    """
    since = f"{_local_time(outage.since, zone)} ({_rough_duration(now - outage.since)})"
    failed = f"It failed since {since}: {_first_line(outage.error or outage.reason)}"
    does = _outage_verb(outage)
    flaps = f"{_outage_subject(outage)} flaps: it failed again and again within 24 hours"
    names = f"Affected: {_list_entries(affected)}." if affected else ""
    probed = " No calls are made but for a probe every 30 minutes." if shut_off else ""
    match notice:
        case Notice.RECOVERED if outage.failing:
            return "\n".join(line for line in (f"{_outage_subject(outage)} answers again. {failed}", names) if line)
        case Notice.RECOVERED:
            return f"{_outage_subject(outage)} answers again, and has been stable since {since}."
        case Notice.FLAPPING if not outage.failing:
            return f"{flaps}, and answers at present. {UNTIL_STABLE}"
    first = {
        Notice.CHANGED: f"Another failure: {does}, since {since}.",
        Notice.REMINDER: f"Still: {does}, since {since}.",
        Notice.STEADY: f"No longer flapping, but failing: {does}, since {since}.",
        Notice.FLAPPING: f"{flaps}. At present {does}. {UNTIL_STABLE}",
    }.get(notice, f"{does[0].upper()}{does[1:]}, since {_local_time(outage.since, zone)}.")
    remedy = f"What to do: {_outage_remedy(outage)}"
    lines = (first, _shorten(outage.error), f"{names}{probed}".strip(), remedy, f"More: heartbeatd show {run_id}")
    return "\n".join(line for line in lines if line)


def replaced_text(claim: Claim, outage: Outage) -> str:
    """An entry that suffered from a model asks another one by now, and works."""
    return f"{_entry_label(claim)} asks another model now, and works. No run waits for {outage.circuit} any more."


def outage_kind(outage: Outage) -> str:
    """The kind of failure: classes that come and go with one and the same trouble of a provider are one kind."""
    return outage.reason if outage.reason in PERMANENT_FAILURES else "unavailable"


def _outage_subject(outage: Outage) -> str:
    name = str(outage.circuit)
    return name[0].upper() + name[1:]


def _outage_verb(outage: Outage) -> str:
    """What a provider does that fails, as a sentence without its end."""
    whole, model = OUTAGE_VERBS.get(outage.reason, ("", ""))
    said = whole if outage.circuit.is_whole_provider else model
    named = f"the model {outage.circuit.model}" if outage.circuit.model else "its only model"
    return f"provider {outage.circuit.provider} {(said or 'fails').format(model=named)}"


def _outage_remedy(outage: Outage) -> str:
    whole, model = REMEDIES.get(outage.reason, (DEFAULT_REMEDY, DEFAULT_REMEDY))
    said = whole if outage.circuit.is_whole_provider else model
    return (said or DEFAULT_REMEDY).format(provider=outage.circuit.provider)


def _list_entries(entries: Sequence[tuple[str, str]]) -> str:
    """Entries by their names, the agents first; of many only the first ten."""
    shown = ", ".join(_kind_and_name(kind, name) for kind, name in entries[:MAX_ENTRIES_LISTED])
    more = len(entries) - MAX_ENTRIES_LISTED
    return f"{shown} and {format_count(more, 'other')}" if more > 0 else shown


def _first_line(text: str) -> str:
    return _shorten(text.partition("\n")[0])


def undelivered_text(message: OutboxMessage, error: str) -> str:
    """A message was given up; what it said is for its own people to read, and so not repeated here."""
    return (
        f"A message of {_kind_and_name(message.kind, message.name)} was not delivered to {_describe_target(message)},"
        " and is given up.\n"
        f"{_shorten(error)}\n"
        f"Its text: heartbeatd show {message.run_id}\n"
        f"Further ones that {message.channel} does not take are not told here, until it has taken one: heartbeatd status"
    )


def expired_wakes_text(wakes: tuple[Wake, ...], keep: timedelta) -> str:
    """Wakes that ended before their agent was told them: from whom they came, why they waited, how their texts begin."""
    shown = [_describe_wake(wake) for wake in wakes[:MAX_WAKES_LISTED]]
    more = [f"... and {len(wakes) - MAX_WAKES_LISTED} more"] if len(wakes) > MAX_WAKES_LISTED else []
    how_many = f"{format_count(len(wakes), 'wake')} of agent {wakes[0].name} expired"
    first = f"{how_many}: the agent was not told within {format_duration(keep)} (limits.wake_keep)."
    return "\n".join([first, *shown, *more, f"Why it did not run: heartbeatd explain {wakes[0].name}"])


def _describe_wake(wake: Wake) -> str:
    times = f", {wake.count} times" if wake.count > 1 else ""
    reason = f" (waited for: {wake.waits_for})" if wake.waits_for else ""
    text = " ".join(wake.text.split())
    cut = text if len(text) <= MAX_WAKE_TEXT_LENGTH else f"{text[:MAX_WAKE_TEXT_LENGTH]}..."
    return f"- by {wake.source} {wake.sender}{times}{reason}" + (f": {cut}" if cut else "")


def _describe_target(message: OutboxMessage) -> str:
    return f"{message.recipient} on the channel {message.channel}" if message.recipient else f"the channel {message.channel}"


def _entry_label(claim: Claim) -> str:
    """As a sentence begins with it."""
    who = _kind_and_name(claim.entry.kind, claim.entry.name)
    return who[0].upper() + who[1:]


def _kind_and_name(kind: str, name: str) -> str:
    return f"{'agent' if kind == Kind.HEARTBEAT else 'cron job'} {name}"


def _failure_verb(result: AttemptResult) -> str:
    if result.outcome in ANSWERED:
        return "was asked although its precheck failed"
    if result.outcome is Outcome.ABANDONED:
        return "was cut short"
    return "failed" if result.outcome in FAILURES else "was not run"


def _failure_reason(result: AttemptResult) -> str:
    why = SKIP_EXPLANATIONS.get(result.reason) if isinstance(result.reason, Skip) else None
    return ": ".join(part for part in (result.reason, why, _shorten(result.error or "")) if part)


def _job_output(claim: Claim, result: AttemptResult) -> str:
    """The end of what a job printed; an agent's words are not for this."""
    printed = (result.text or "").strip() if claim.entry.kind is Kind.CRON else ""
    return f"It printed: {printed[-MAX_OUTPUT_LENGTH:]}" if printed else ""


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_ERROR_LENGTH else f"{text[:MAX_ERROR_LENGTH]}..."


def _rough_duration(span: timedelta) -> str:
    """A length of time to the minute."""
    minutes = max(0, round(span.total_seconds() / 60))
    parts = ((minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "m"))
    return " ".join(f"{number}{unit}" for number, unit in parts if number) or "less than a minute"


def resolve_targets(tick: Tick, deliver: tuple[str, ...], agent: str | None) -> tuple[Target, ...]:
    """Where messages about an agent go now; `last` in `deliver` leads nowhere while no target of the agent is known."""
    channels = tick.plan.settings.channels
    last = targets.last_target(tick.tx.db, channels, agent) if LAST_TARGET in deliver else None
    return target_urls.resolve_targets(channels, deliver, last)


def is_last_target_unknown(tick: Tick, deliver: tuple[str, ...], agent: str | None) -> bool:
    """Whether `deliver` names `last`, and no target of the agent is known."""
    return LAST_TARGET in deliver and targets.last_target(tick.tx.db, tick.plan.settings.channels, agent) is None


def notice_targets(tick: Tick, entry: Entry) -> tuple[Target, ...]:
    """Who is notified of what happens to an entry; where all of their channels are dead, somebody else."""
    wished, dead = entry.on_failure.deliver, incidents.dead_targets(tick.tx.db)
    alive = tuple(target for target in resolve_targets(tick, wished, entry.lane) if target not in dead)
    return alive or (substitute_target(tick, wished, dead),)


def target_or_substitute(tick: Tick, target: Target) -> Target:
    """A target that was notified before, or somebody else if its channel is dead or no longer declared."""
    dead, declared = incidents.dead_targets(tick.tx.db), (LOG_CHANNEL, *tick.plan.settings.channels)
    is_alive = target not in dead and target.channel in declared
    return target if is_alive else substitute_target(tick, (), dead)


def substitute_target(tick: Tick, wished: tuple[str, ...], dead: frozenset[Target]) -> Target:
    """A channel that works as far as we know: of those that are wished, else any that is declared, else the log."""
    declared = tick.plan.settings.channels
    usable = (name for name in (*wished, *declared) if name in declared and Target(name) not in dead and declared[name].is_usable)
    return Target(next((name for name in usable if name != LOG_CHANNEL), LOG_CHANNEL))
