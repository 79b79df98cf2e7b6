"""A wake: somebody's wish that an agent beats now, and what they want to tell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.model.outcome import Kind, Trigger

TEXT_LIMIT = 4096  # bytes of UTF-8 kept of what a sender says

GAP = "wake_gap"
FLOOD = "wake_flood"


@dataclass(frozen=True, slots=True)
class Wake:
    """A wish to run `name`: an agent, or a job that somebody wants to run beside its schedule.

    `source` is cron, manual, api or webhook (reboot for a job); `sender` says who within that source. `token` names the token
    that a program showed; it is empty for people and jobs. `urgent` False leaves it to the next slot. `count` is how often the
    same sender asked while it waited, `tries` how many runs were to tell it and did not. `waits_for` says why it did not start
    a run at once: the reason of a run that did not tell it, GAP or FLOOD. `started`: it started the run that has taken it.
    """

    name: str
    source: str
    sender: str
    text: str = ""
    outcome: str | None = None
    urgent: bool = True
    count: int = 1
    tries: int = 0
    id: int = 0
    kind: Kind = Kind.HEARTBEAT
    token: str = ""
    waits_for: str | None = None
    started: bool = False

    @property
    def by_program(self) -> bool:
        """Whether a program asked, over HTTP or as a job. Who uses the command line counts as a person."""
        return self.source != Trigger.MANUAL


def clip_wake_text(text: str) -> str:
    """`text` cut to what is kept of a wake, never in the middle of a character; a text that is cut says so at its end."""
    whole = text.encode("utf-8", "replace")
    if len(whole) <= TEXT_LIMIT:
        return whole.decode()
    note = f"\n(cut: {len(whole)} bytes were sent)"
    return whole[: TEXT_LIMIT - len(note)].decode("utf-8", "ignore") + note


def interleave_senders(wakes: Iterable[Wake]) -> tuple[Wake, ...]:
    """People's wakes first, then one of each token or job, then a second one of each...: no token fills a prompt alone."""
    before: Counter[tuple[str, str]] = Counter()
    turns = []
    for wake in wakes:
        asker = ("token", wake.token) if wake.token else (wake.source, wake.sender)
        turns.append((wake.by_program, before[asker], wake))
        before[asker] += 1
    return tuple(wake for _, _, wake in sorted(turns, key=lambda turn: turn[:2]))
