"""Several firings told as one: the first, the latest and how many."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class SlotRange:
    """At least one firing; `first` and `latest` are aware, UTC, and equal if `count` is 1."""

    first: datetime
    latest: datetime
    count: int
