"""A message as a channel sends it, and the result of one attempt to deliver it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

DeliveryOutcome = Literal["delivered", "retry", "uncertain", "dead"]


@dataclass(frozen=True, slots=True)
class Message:
    """One part of what a run has to say. `key` is the same for every attempt; `part` counts from 1 to `parts`."""

    key: str
    kind: str
    name: str
    trigger: str
    slot: datetime
    part: int
    parts: int
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What became of one attempt.

    `delivered`: accepted. `retry`: surely not accepted, may be later; not before `retry_after` if the receiver said so
    (uncapped). `uncertain`: it may have arrived. `dead`: it will never be accepted. `error` is one line free of secrets,
    empty when delivered.
    """

    state: DeliveryOutcome
    error: str = ""
    retry_after: timedelta | None = None
