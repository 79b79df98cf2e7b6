"""Reads the shares of answers that a simulation assumes. `simulate --help` shows the usual ones, so it imports little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scheduler.config.file.message_parts import quote_value

AnswerKind = Literal["quiet", "problem", "fail"]

ANSWER_KINDS: tuple[AnswerKind, ...] = ("quiet", "problem", "fail")
TOLERANCE = 1e-6  # of the sum of shares


@dataclass(frozen=True, slots=True)
class Shares:
    """How often an answer reports nothing, has a problem, or fails: shares between 0 and 1, together 1."""

    quiet: float = 0.97
    problem: float = 0.02
    fail: float = 0.01

    def choose(self, point: float) -> AnswerKind:
        """The kind of answer at this point of [0, 1)."""
        return "fail" if point < self.fail else "problem" if point < self.fail + self.problem else "quiet"

    def __str__(self) -> str:
        return f"{self.quiet:.1%} quiet, {self.problem:.1%} with a problem, {self.fail:.1%} failed"


USUAL_SHARES = Shares()
EXAMPLE_OF_SHARES = ",".join(f"{kind}:{getattr(USUAL_SHARES, kind)}" for kind in ANSWER_KINDS)


def parse_shares(text: str) -> Shares:
    """The shares in a text such as EXAMPLE_OF_SHARES. A kind that is left out has the share 0. Raises ValueError."""
    found: dict[str, float] = dict.fromkeys(ANSWER_KINDS, 0.0)
    seen = set[str]()
    for part in text.split(","):
        kind, _, share = (each.strip() for each in part.partition(":"))
        if kind not in ANSWER_KINDS:
            raise ValueError(f"unknown answer {quote_value(kind)}; write {EXAMPLE_OF_SHARES}")
        if kind in seen:
            raise ValueError(f"{kind} is given twice; write {EXAMPLE_OF_SHARES}")
        seen.add(kind)
        found[kind] = parse_share(share)
    if abs(sum(found.values()) - 1) > TOLERANCE:
        raise ValueError(f"the shares add up to {sum(found.values()):g}, not to 1; write {EXAMPLE_OF_SHARES}")
    return Shares(**found)


def parse_share(text: str) -> float:
    """A number from 0 to 1. Raises ValueError."""
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{quote_value(text)} is not a share; write a number from 0 to 1, such as 0.02")
    return share
