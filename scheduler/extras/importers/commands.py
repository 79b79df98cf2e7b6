"""The commands `config import`, `cron import` and `cron export`, with their options and help."""

from __future__ import annotations

from pathlib import Path

import click

from scheduler.cli import options
from scheduler.cli.commands import command
from scheduler.cli.options import WordParam


@command("scheduler.extras.importers.import_config:import_files", name="import")
@click.argument("system", type=WordParam("system", "scheduler.extras.importers.foreign_system:SYSTEM_NAMES"), metavar="SYSTEM")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    help="The config file to add the agents, jobs, channels and providers to. Without this option, a new config is printed.",
)
@click.option("--strict", is_flag=True, help="Write nothing if a setting would be lost or a file is damaged (exit code 2).")
@click.option("--timezone", metavar="ZONE", help="The IANA time zone of times that name no zone.  [default: this host's]")
@options.format_option
def import_config() -> None:
    """Import the config of another heartbeat system.

    SYSTEM is the name of the system in lower case, such as openclaw. FILE is a config, a job store (jobs.json) or a HEARTBEAT.md
    of that system.

    The new config is printed on standard output, and a receipt on standard error. The receipt lists every value of the files:
    kept, changed or dropped, with the reason. With --into, the agents and jobs are added to an existing config instead, and the
    rest of that config is not changed. The receipt is then printed on standard output. Each secret is replaced by a reference to
    an environment variable. The receipt names these variables.

    An agent or job whose meaning cannot be kept is disabled or left out. The last lines of the receipt list these
    agents and jobs.

    The exit code is 1 if an agent or job was disabled or left out, if a file is damaged, or if there is nothing to import. The
    valid parts are imported nevertheless.
    """


@command("scheduler.extras.importers.convert_crontab:import_jobs", name="import")
@click.argument("file")
@click.option("--user-column", is_flag=True, help="The sixth field is a user name, as in /etc/crontab and /etc/cron.d.")
@click.option(
    "--user",
    metavar="NAME",
    help="The user who runs the commands. With --user-column, only this user's lines are imported.  [default: you]",
)
@click.option("--timezone", metavar="ZONE", help="The IANA time zone of the times in the crontab.  [default: this host's]")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    help="The config file to add the jobs to. Without this option, the jobs are printed.",
)
def import_crontab() -> None:
    """Import a crontab as cron jobs.

    FILE is the crontab, or - for standard input. The jobs are printed as YAML. With --into, they are added to a config, and the
    rest of the config stays the same. A line that cannot be imported is reported, and the exit code is then 1. All other lines
    are imported.
    """


@command("scheduler.extras.importers.convert_crontab:print_crontab", name="export")
@click.option("--user", metavar="NAME", help="The user who will own the crontab.  [default: you]")
@click.option(
    "--timezone", metavar="ZONE", help="The IANA time zone of the host that will run the crontab.  [default: this host's]"
)
@options.config_option
def export_crontab() -> None:
    """Print the config's cron jobs as a crontab for one user.

    Settings that a crontab cannot express are written as comments.
    """
