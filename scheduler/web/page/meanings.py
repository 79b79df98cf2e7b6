"""Gives each word for a state or a result the class of its colour, as on the dashboards (docs/dashboards.md)."""

from __future__ import annotations

from scheduler.model.outcome import FAILURES, WORRYING_SKIPS, Outcome

# good: green. bad: red. late: orange, a warning. wait: yellow. note: blue, an alert. off: grey, as planned.
MEANINGS: dict[str, str] = {
    **dict.fromkeys(("ok", "delivered", "active", "applied", "info"), "good"),
    **dict.fromkeys((*map(str, FAILURES), "dead", "no_target", "refused", "critical", "bad"), "bad"),
    **dict.fromkeys(("held", "uncertain", "partial", "warning", "warn", *map(str, WORRYING_SKIPS)), "late"),
    **dict.fromkeys(("pending", "sending", "waiting", "running", "async", "paused", "muted", "open"), "wait"),
    **dict.fromkeys(("alert", "started"), "note"),
}


def meaning_of_word(word: str | None) -> str:
    """The class of a word; `off` (grey) for a word without a meaning."""
    return MEANINGS.get(word or "", "off")


def meaning_of_run(run: dict[str, object]) -> str:
    """The class of a run as the API returns it: of its outcome, of the reason if it was skipped, or of its state."""
    if run["outcome"] == Outcome.SKIPPED:
        return meaning_of_word(str(run["reason"]))
    return meaning_of_word(str(run["outcome"] or run["state"]))
