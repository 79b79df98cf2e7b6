"""A wake: somebody's wish that an agent beats now, and what they want to tell it."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.outcome import Kind

TEXT_LIMIT = 4096  # bytes of UTF-8 kept of what a sender says


@dataclass(frozen=True, slots=True)
class Wake:
    """A wish to run `name`: an agent, or a job that somebody wants to run beside its schedule.

    `source` is cron, manual, api or webhook (reboot for a job); `sender` says who within that source. `urgent` False leaves it to
    the next slot. `count` is how often the same sender asked while it waited, `tries` how many runs were to tell it and did not.
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


def clip(text: str) -> str:
    """`text` cut to what is kept of a wake, never in the middle of a character."""
    return text.encode("utf-8", "replace")[:TEXT_LIMIT].decode("utf-8", "ignore")
