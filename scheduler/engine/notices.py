"""Notices: in which words people are told that something fails, still fails, or works again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from heartbeat.spec import Heartbeat
from scheduler.config.wording import counted, written
from scheduler.outcome import ANSWERS, FAILURES, Ending, Kind, Outcome, Skip
from scheduler.tables.outbox import Letter
from scheduler.wake import Wake
from scheduler.work.entry import Claim

ERROR_SHOWN = 500  # characters
OUTPUT_SHOWN = 700  # of a job's output, from its end
WAKES_SHOWN = 20  # of those that expired together
WAKE_SHOWN = 200  # characters of the text of each

WHY = {
    Skip.BREAKER_OPEN: "its provider or model refuses calls",
    Skip.BUDGET: "its budget is used up",
    Skip.CHECKLIST_TOO_LARGE: "its checklist is too large",
    Skip.CHECKLIST_UNREADABLE: "its checklist is not a file that may be read",
    Skip.PRECHECK_FAILED: "its precheck fails",
    Skip.PROMPT_TOO_LARGE: "its prompt is larger than max_input_tokens",
}


class Notice(StrEnum):
    """What is told of a run."""

    FAILING = "failing"
    CHANGED = "changed"
    REMINDER = "reminder"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Story:
    """How often something went wrong in a row and since when, as it stands at `now`; times are told in `zone`."""

    count: int
    since: datetime
    now: datetime
    zone: ZoneInfo

    def __str__(self) -> str:
        if self.count == 1:
            return f"at {self._local(self.since)}"
        return f"{self.count} times in a row, since {self._local(self.since)} ({_rough(self.now - self.since)})"

    def _local(self, instant: datetime) -> str:
        return f"{instant.astimezone(self.zone):%Y-%m-%d %H:%M} {self.zone.key}"


def worse(notice: Notice, claim: Claim, ending: Ending, story: Story) -> str:
    """What went wrong, how often, since when, with what error, and where to look."""
    who, verb = _called(claim), _verb(ending)
    first = {
        Notice.CHANGED: f"{who} has another fault now; it {verb} {story}.",
        Notice.REMINDER: f"{who} still has the same fault; it {verb} {story}.",
    }.get(notice, f"{who} {verb} {story}.")
    lines = (first, _fault(ending), _output(claim, ending), f"More: heartbeatd show {claim.run_id}")
    return "\n".join(line for line in lines if line)


def better(claim: Claim, reason: str | None, story: Story) -> str:
    """It works again, and how long it did not; `reason` is that of the last time."""
    return f"{_called(claim)} works again. Before that {_before(claim, reason)} {story}."


def _before(claim: Claim, reason: str | None) -> str:
    spec = claim.entry.spec
    if reason == Skip.PRECHECK_FAILED and isinstance(spec, Heartbeat) and spec.precheck and spec.precheck.on_error == "run":
        return "its precheck failed"
    return "it was not run" if reason in WHY else "it failed"


def undelivered(letter: Letter, error: str) -> str:
    """A message was given up; what it said is for its own people to read, and so not repeated here."""
    return (
        f"A message of {_who(letter.kind, letter.name)} was not delivered to {_place(letter)}, and is given up.\n"
        f"{_cut(error)}\n"
        f"Its text: heartbeatd show {letter.run_id}\n"
        f"Further ones that {letter.channel} does not take are not told here, until it has taken one: heartbeatd status"
    )


def expired(wakes: tuple[Wake, ...], keep: timedelta) -> str:
    """Wakes that ended before their agent was told them: from whom they came, why they waited, how their texts begin."""
    shown = [_expired(wake) for wake in wakes[:WAKES_SHOWN]]
    more = [f"... and {len(wakes) - WAKES_SHOWN} more"] if len(wakes) > WAKES_SHOWN else []
    how_many = f"{counted(len(wakes), 'wake')} of agent {wakes[0].name} expired"
    first = f"{how_many}: the agent was not told within {written(keep)} (limits.wake_keep)."
    return "\n".join([first, *shown, *more, f"Why it did not run: heartbeatd explain {wakes[0].name}"])


def _expired(wake: Wake) -> str:
    times = f", {wake.count} times" if wake.count > 1 else ""
    reason = f" (waited for: {wake.waits_for})" if wake.waits_for else ""
    text = " ".join(wake.text.split())
    cut = text if len(text) <= WAKE_SHOWN else f"{text[:WAKE_SHOWN]}..."
    return f"- by {wake.source} {wake.sender}{times}{reason}" + (f": {cut}" if cut else "")


def _place(letter: Letter) -> str:
    return f"{letter.whom} on the channel {letter.channel}" if letter.whom else f"the channel {letter.channel}"


def _called(claim: Claim) -> str:
    """As a sentence begins with it."""
    who = _who(claim.entry.kind, claim.entry.name)
    return who[0].upper() + who[1:]


def _who(kind: str, name: str) -> str:
    return f"{'agent' if kind == Kind.HEARTBEAT else 'cron job'} {name}"


def _verb(ending: Ending) -> str:
    if ending.outcome in ANSWERS:
        return "was asked although its precheck failed"
    if ending.outcome is Outcome.ABANDONED:
        return "was cut short"
    return "failed" if ending.outcome in FAILURES else "was not run"


def _fault(ending: Ending) -> str:
    why = WHY.get(ending.reason) if isinstance(ending.reason, Skip) else None
    return ": ".join(part for part in (ending.reason, why, _cut(ending.error or "")) if part)


def _output(claim: Claim, ending: Ending) -> str:
    """The end of what a job printed; an agent's words are not for this."""
    printed = (ending.text or "").strip() if claim.entry.kind is Kind.CRON else ""
    return f"It printed: {printed[-OUTPUT_SHOWN:]}" if printed else ""


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_SHOWN else f"{text[:ERROR_SHOWN]}..."


def _rough(span: timedelta) -> str:
    """A length of time to the minute."""
    minutes = max(0, round(span.total_seconds() / 60))
    parts = ((minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "m"))
    return " ".join(f"{number}{unit}" for number, unit in parts if number) or "less than a minute"
