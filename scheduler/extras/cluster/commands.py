"""The commands `worker` and `database migrate`, with their options and help."""

from __future__ import annotations

import click

from scheduler.cli import options
from scheduler.cli.commands import command, log_options


@command("scheduler.extras.cluster.worker:run_worker")
@click.option("--name", help="The name of this worker in the log.  [default: HOST-PID]")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    help="The maximum number of runs at the same time.  [default: `limits.concurrency` in the config]",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve /healthz and /metrics at this address. There is no token, so use an address that only your own network can"
    " reach.",
)
@log_options
@options.config_option
def worker() -> None:
    """Execute runs for a daemon on another machine.

    The daemon's config must contain `executor: {kind: procrastinate}`. The worker needs the same config.yaml, the secrets of the
    agents that it runs, and access to the same PostgreSQL server. After SIGTERM or Ctrl-C, the worker waits until its runs in
    progress have ended, and stops. Runs that are still in progress after `limits.shutdown_grace`, or at a second signal, are
    stopped. The daemon repeats stopped runs if this is allowed, as after a crash. SIGHUP reloads the config.
    """


@command("scheduler.extras.cluster.transfer:copy_database")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
def migrate() -> None:
    """Copy the database from a file to a PostgreSQL server, or back.

    FROM and TO are files or addresses such as postgresql://USER@HOST/DATABASE. TO must be empty. First stop
    all daemons that use FROM or TO. FROM is not changed. At the end, the row counts are compared. If the command is interrupted,
    nothing is copied.
    """
