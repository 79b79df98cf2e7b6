"""Figures as people read them: money, amounts, and the words beside an outcome."""

from __future__ import annotations

STEPS = ((1_000_000_000, "g"), (1_000_000, "m"), (1_000, "k"))


def usd(cost: float | None) -> str:
    """An amount of money in USD: to the cent, below ten cents to a hundredth of one; a dash for what is not known."""
    if cost is None:
        return "-"
    if 0 < cost < 0.0001:
        return "<$0.0001"
    return f"${cost:.4f}" if 0 < cost < 0.1 else f"${cost:,.2f}"


def amount(count: int) -> str:
    """A count in three figures or less: 950, 1.2k, 310k, 4.1m."""
    for size, sign in STEPS:
        number = round(count / size, 1)
        if number >= 1:
            return f"{number:.1f}{sign}" if number < 10 else f"{number:.0f}{sign}"
    return str(count)


def why(reason: str | None, suppression: str | None, delivery: str) -> str:
    """What stands beside an outcome: why it was none, or why nobody was told, and where the messages stand."""
    told = None if delivery == "none" else delivery
    return ", ".join(word for word in (reason or suppression, told) if word) or "-"
