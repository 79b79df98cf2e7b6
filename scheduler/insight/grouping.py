"""Folding: many fates in a row told as few stretches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from scheduler.insight.reason_texts import Cause
from scheduler.insight.slot_history import Fate

MOST = 12


@dataclass(frozen=True, slots=True)
class Stretch:
    """Slots in a row, from the first to the last: how many for each cause, the most frequent first, and the row if it is one."""

    first: datetime
    last: datetime
    counts: tuple[tuple[Cause, int], ...]
    run: int | None

    @property
    def slots(self) -> int:
        """How many slots it stands for; 0: a time without any."""
        return sum(count for _, count in self.counts)


def fold(fates: Iterable[Fate], most: int = MOST) -> list[Stretch]:
    """About `most` stretches. Fates in a row with one cause are one; if there are too many, short neighbours become mixed ones.

    Those that ran are mixed with each other first, so that a silence stands by itself as long as it may; a time without slots
    is never mixed.
    """
    stretches = _joined([Stretch(fate.at, fate.at, ((fate.cause, fate.count),), fate.run) for fate in fates], _have_one_cause)
    slots = sum(stretch.slots for stretch in stretches)
    for mixed in (_ran, _has_slots):
        size = 2
        while len(stretches) > most and size <= slots:
            stretches = _joined(stretches, partial(_are_short, size, mixed))
            size += 1
    return stretches


def total(stretches: Iterable[Stretch]) -> list[tuple[Cause, int]]:
    """How many slots there were for each cause, the most frequent first."""
    return _sum(count for stretch in stretches for count in stretch.counts)


def _are_short(size: int, mixed: Callable[[Stretch], bool], before: Stretch, after: Stretch) -> bool:
    return mixed(before) and mixed(after) and before.slots + after.slots <= size


def _ran(stretch: Stretch) -> bool:
    return all(cause.ran for cause, _ in stretch.counts)


def _has_slots(stretch: Stretch) -> bool:
    return stretch.slots > 0


def _have_one_cause(before: Stretch, after: Stretch) -> bool:
    return [cause for cause, _ in before.counts] == [cause for cause, _ in after.counts]


def _joined(stretches: Sequence[Stretch], may: Callable[[Stretch, Stretch], bool]) -> list[Stretch]:
    """Each stretch joined to the one before it where it may be."""
    joined: list[Stretch] = []
    for stretch in stretches:
        if joined and may(joined[-1], stretch):
            joined[-1] = _together(joined[-1], stretch)
        else:
            joined.append(stretch)
    return joined


def _together(before: Stretch, after: Stretch) -> Stretch:
    run = before.run if before.run == after.run else None
    return Stretch(before.first, after.last, tuple(_sum([*before.counts, *after.counts])), run)


def _sum(counts: Iterable[tuple[Cause, int]]) -> list[tuple[Cause, int]]:
    sums: Counter[Cause] = Counter()
    for cause, count in counts:
        sums[cause] += count
    return sums.most_common()
