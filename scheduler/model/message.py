"""A message as a channel sends it, and the result of one attempt to deliver it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

DeliveryOutcome = Literal["delivered", "retry", "uncertain", "dead"]


@dataclass(frozen=True, slots=True)
class Message:
    """A message about a run, or one part of it. `key` is the same for every attempt; `part` counts from 1 to `parts`."""

    key: str
    kind: str
    name: str
    trigger: str
    planned_at: datetime
    part: int
    parts: int
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class Button:
    """A button of a message: its name for programs, its label, and the data that comes back."""

    name: str
    label: str
    data: str


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of one attempt to deliver a message.

    `delivered`: the receiver has accepted it. `retry`: it was not accepted, but may be later, not before `retry_after` (not
    capped) if the receiver has given a time. `uncertain`: it may have arrived. `dead`: it will never be accepted. `error` is one
    line without secrets, empty if delivered. `receipt` is the number of the message in its chat, empty if it has none.
    """

    state: DeliveryOutcome
    error: str = ""
    retry_after: timedelta | None = None
    receipt: str = ""
