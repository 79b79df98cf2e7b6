"""`plan --worst`: the most that a day can cost, of each entry that asks an agent and of all together."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path

import click

from scheduler.cli.names import called
from scheduler.cli.table import table
from scheduler.cli.times import utc_now
from scheduler.config.build import load
from scheduler.insight.daily_maximum import Ceiling, Worst, as_data, worst

HEAD = ("NAME", "RUNS", "ATTEMPTS", "USD EACH", "USD A DAY", "BY")
UNKNOWN = "no bound"


def tell(path: Path, form: str) -> None:
    """Print the ceilings of the config at `path`. Raises ConfigError."""
    found = worst(load.load(path, os.environ, resolve=False).settings, utc_now())
    click.echo(json.dumps(as_data(found), indent=2) if form == "json" else "\n".join(_lines(found)))


def _lines(found: Worst) -> Iterator[str]:
    if not found.entries:
        yield "nothing asks an agent"
        return
    yield table(HEAD, [_row(ceiling) for ceiling in found.entries])
    total = UNKNOWN if found.usd is None else f"at most {_usd(found.usd)} USD a day"
    yield f"all: {total}" + (" by limits.budget" if found.by == "limits.budget" else "")
    if any(ceiling.by == "runs" and ceiling.usd for ceiling in found.entries):
        yield "by runs: unless somebody sets the clock, stops the daemon or runs jobs by hand"


def _row(ceiling: Ceiling) -> list[str]:
    each = "not known" if ceiling.attempt is None else _usd(ceiling.attempt)
    usd = UNKNOWN if ceiling.usd is None else _usd(ceiling.usd)
    return [called(ceiling.kind, ceiling.name), str(ceiling.runs), str(ceiling.attempts), each, usd, ceiling.by]


def _usd(amount: float) -> str:
    """Rounded up: nothing passes what is printed."""
    places = 2 if amount >= 1 or not amount else 4
    return f"{ceil(round(amount * 10**places, 3)) / 10**places:,.{places}f}"
