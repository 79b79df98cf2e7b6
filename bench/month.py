"""Three simulated months with 120 events, watched by a mediocre agent: how often each event is reported, and what that costs."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from month_simulation import DAYS, EVENTS, HARD, Habits, Month, Score, habits_of_level, readme_config

LEVELS = ("0/0/0", "5/5/0", "5/5/10", "20/15/10")
COLUMNS: dict[str, Callable[[Score], float]] = {
    "once": lambda score: score.once,
    "twice or more": lambda score: score.repeated,
    "never": lambda score: score.never,
    "late": lambda score: score.late,
    "wrong ends": lambda score: score.wrong_ends,
    "rises in time": lambda score: score.rises_in_time,
    "needless messages a day": lambda score: score.needless_a_day,
    "calls": lambda score: score.calls,
    "further calls": lambda score: score.further_calls,
    "thousand input tokens": lambda score: score.month.tokens / 1000,
}


def main() -> None:
    given = _parse_arguments()
    more = dict(HARD) if given.hard else {}
    more |= {name: float(value) for name, _, value in (each.partition("=") for each in given.habit)}
    seeds = range(given.first, given.first + given.seeds)
    rises = round(given.events * 45 / 120)
    print(f"{given.seeds} seeds from {given.first}: means, of {given.events} events and {rises} rises in {given.days} days")
    print(f"| other key/forgotten/prose, % | {' | '.join(COLUMNS)} |")
    print(f"|---|{'---|' * len(COLUMNS)}")
    # Forked processes would share the event loop of tests/support, and one could wait for ever for a signal that another took.
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for level in given.levels:
            play = partial(
                measure,
                readme_config(precheck=not given.without_precheck),
                habits_of_level(level, **more),
                given.days,
                given.events,
            )
            print(f"| {level} | {' | '.join(_cells(list(pool.map(play, seeds))))} |", flush=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("levels", nargs="*", default=LEVELS, help="such as 5/5/10: other key, forgotten, prose, in percent")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--days", type=int, default=DAYS)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--hard", action="store_true", help="with the harder habits of the agent and the host")
    parser.add_argument(
        "--habit", action="append", default=[], metavar="NAME=SHARE", help=f"one of {', '.join(Habits.__match_args__)}"
    )
    parser.add_argument("--without-precheck", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    return parser.parse_args()


def measure(config: str, habits: Habits, days: int, events: int, seed: int) -> list[float]:
    """The figures of one seed, one for each column."""
    with tempfile.TemporaryDirectory() as folder:
        month = Month(Path(folder), config, seed, habits, days, events)
        month.close()
        return [figure(month.score()) for figure in COLUMNS.values()]


def _cells(figures: Sequence[Sequence[float]]) -> list[str]:
    return [
        f"{mean(column):.{2 if 'a day' in name else 1}f}"
        for name, column in zip(COLUMNS, zip(*figures, strict=True), strict=True)
    ]


if __name__ == "__main__":
    main()
