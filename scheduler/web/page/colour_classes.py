"""Maps each state, result and level to the class of its colour in style.css, as on the dashboards (docs/dashboards.md)."""

from __future__ import annotations

from heartbeatd.answers import LastRun, RunRecord
from scheduler.model.levels import Level, level_of
from scheduler.model.outcome import Outcome

# good: green. bad: red. late: orange, a warning. wait: yellow. note: blue, an alert. off: grey, as planned.
COLOURS_OF_LEVELS: dict[Level, str] = {
    Level.GOOD: "good",
    Level.ALERT: "note",
    Level.WAITING: "wait",
    Level.LOST: "late",
    Level.BAD: "bad",
}


def colour_of_level(level: Level) -> str:
    """The class of a level; `off` (grey) for what is planned or unknown."""
    return COLOURS_OF_LEVELS.get(level, "off")


def colour_of_word(word: str | None) -> str:
    """The class of a word; `off` (grey) for any other word."""
    level = level_of(word)
    return colour_of_level(level) if level else "off"


def colour_of_run(run: RunRecord | LastRun) -> str:
    """The class of a run as the API returns it: of its outcome, of the reason if it was skipped, or of its state."""
    if run.outcome == Outcome.SKIPPED:
        return colour_of_word(str(run.reason))
    return colour_of_word(str(run.outcome or run.state))
