"""Defines a wake: the request that an agent or a job runs now, with a text for the agent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from heartbeat.checks import Skip
from heartbeat.words import Word
from scheduler.model.outcome import Kind, Trigger

TEXT_LIMIT = 4096  # bytes of UTF-8 that are kept of a wake's text

MAX_REMINDERS = 20  # that may wait for an agent
LONGEST_REMINDER = timedelta(days=90)  # from when it is set

WAITS_FOR_GAP = "wake_gap"
WAITS_FOR_FLOOD = "wake_flood"
LONG_OBSTACLES = (Skip.BUDGET, Skip.BREAKER_OPEN)  # they may also prevent the next planned run


class RejectedBecause(Word):
    """Why a wake reached no agent."""

    DISABLED = "disabled", "the agent is disabled in the config"
    REMOVED = "removed", "the agent is not in the config"
    OWN_RUN = "own_run", "an agent cannot wake itself from within its own run"
    TOO_MANY = "too_many_wakes", "too many wakes were waiting for the agent"
    EXPIRED = "expired", "no run of the agent handled it within limits.wake_keep"
    CANCELLED = "cancelled", "it was cancelled"
    TOO_MANY_REMINDERS = "too_many_reminders", "the agent had too many reminders"
    BAD_REMINDER = "bad_reminder", "the time for the reminder cannot be read, has passed, or is more than 90 days ahead"


@dataclass(frozen=True, slots=True)
class Wake:
    """A request to run `name`: an agent, or a job in addition to its schedule.

    `source` is cron, manual, api, webhook or reminder (reboot for a job), and `sender` names the sender within that source.
    `token` is the name of the token that a program used; it is empty for users and jobs. `urgent` False: it waits for the next
    planned time. `count` is how often the same sender woke the agent while this wake waited, `earlier_runs` how many runs had
    it and did not deliver it. `waits_for` is why it did not start a run at once: the reason of a run that did not deliver it,
    GAP or FLOOD. `started`: it started the run that has it. `after_run` is the run of another job after which this job runs.
    """

    name: str
    source: str
    sender: str
    text: str = ""
    outcome: str | None = None
    urgent: bool = True
    count: int = 1
    earlier_runs: int = 0
    id: int = 0
    kind: Kind = Kind.HEARTBEAT
    token: str = ""
    waits_for: str | None = None
    started: bool = False
    after_run: int | None = None

    @property
    def by_program(self) -> bool:
        """Whether a program sent it, over HTTP or as a job. The command line counts as a person."""
        return self.source != Trigger.MANUAL


def clip_wake_text(text: str) -> str:
    """`text` cut to the length that is kept, never inside a character. A note at the end says that it was cut."""
    whole = text.encode("utf-8", "replace")
    if len(whole) <= TEXT_LIMIT:
        return whole.decode()
    note = f"\n(cut: {len(whole)} bytes were sent)"
    return whole[: TEXT_LIMIT - len(note)].decode("utf-8", "ignore") + note


def interleave_senders(wakes: Iterable[Wake]) -> tuple[Wake, ...]:
    """People's wakes first, then one of each token or job, then a second one of each, and so on: no token fills a prompt."""
    before: defaultdict[tuple[str, str], int] = defaultdict(int)
    turns = []
    for wake in wakes:
        asker = ("token", wake.token) if wake.token else (wake.source, wake.sender)
        turns.append((wake.by_program, before[asker], wake))
        before[asker] += 1
    return tuple(wake for _, _, wake in sorted(turns, key=lambda turn: turn[:2]))
