"""The command `report`: sums up the last days as text or JSON."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from scheduler.cli import daemon_files, options, report_text
from scheduler.cli.arguments import DurationParam
from scheduler.cli.options import InputError
from scheduler.cli.output import display_zone, host_zone, utc_now, wrap_text
from scheduler.insight.report_data import build_report
from scheduler.system.files import write_output_file


class ReportFormat(click.Choice[str]):
    """The formats of the report. The former format `html` names the page that shows the same charts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "html":
            self.fail("HTML was removed; the page shows the charts under Costs (`heartbeatd docs page`)", param, ctx)
        return super().convert(value, param, ctx)


@click.command()
@click.option("--for", "span", type=DurationParam(), default="7d", show_default=True, help="How far back to look.")
@click.option(
    "--by",
    type=click.Choice(["entry", "model"]),
    default="entry",
    show_default=True,
    help="Group by agent and job (entry), or by model.",
)
@click.option(
    "--format",
    "form",
    type=ReportFormat(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, or JSON for programs.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report to this file. Only a summary is printed.",
)
@options.config_option
@options.state_option
def report(span: timedelta, by: str, form: str, out: Path | None, path: Path, state: Path | None) -> None:
    """Summarise the last days: runs, cost, alerts, skipped and missed runs.

    To receive the report regularly, run this command in a cron job with `deliver:`. The text begins with a summary.
    """
    files, until = daemon_files.locate_files_or_warn(path, state), utc_now()
    with daemon_files.open_for_reading(files) as db:
        running = daemon_files.find_running_daemon(files) is not None
        data = build_report(db, until - span, until, running=running, zone=display_zone() or host_zone()) if db else None
    if data is None and form != "json":
        click.echo(f"there is no database yet: {files.shown}")
        return
    text = json.dumps(data, indent=2) if form == "json" or data is None else report_text.format_report(data, by)
    if out is None:
        click.echo(text)
        return
    _write_report(out, text + "\n")
    if data is not None:
        click.echo("\n".join(wrap_text(" ".join(report_text.summary_sentences(data)), 0)))


def _write_report(path: Path, text: str) -> None:
    """Replace the file in one step, so that a web server never sends half a report."""
    try:
        write_output_file(path, text.encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
