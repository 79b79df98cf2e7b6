"""`report`: the last days summed up, to be read or to be delivered."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import click

from scheduler.cli import options, reach
from scheduler.cli.arguments import Span
from scheduler.cli.summary import text
from scheduler.cli.times import utc_now
from scheduler.insight.report_data import report as summed


@click.command()
@click.option("--for", "span", type=Span(), default="7d", show_default=True, help="How far back.")
@click.option("--by", type=click.Choice(["entry", "model"]), default="entry", show_default=True, help="What the table lists.")
@options.config
@options.state
@options.form
def report(span: timedelta, by: str, path: Path, state: Path | None, form: str) -> None:
    """Sum up the last days: runs, their cost, what was said, skipped and missed.

    As the command of a cron job with `deliver:` it comes by itself.
    """
    where, until = reach.looked_at(path, state), utc_now()
    with reach.reading(where) as db:
        told = summed(db, until - span, until, running=reach.running(where) is not None) if db else None
    if form == "json":
        click.echo(json.dumps(told, indent=2))
    else:
        click.echo(text(told, by) if told else f"nothing is known yet: there is no database {where.database}")
