"""The commands `worker` and `database migrate`, with their options and help."""

from __future__ import annotations

import click

from scheduler.cli import options
from scheduler.cli.commands import command, log_options


def _parse_queues(text: str) -> tuple[str, ...]:
    from scheduler.config.keys.value_types import parse_name  # takes long to import, and the help does not need it

    return tuple(dict.fromkeys(parse_name(name.strip()) for name in text.split(",")))


@click.group(invoke_without_command=True)
@click.option("--name", help="The name of this worker in the log, in `doctor` and for `worker drain`.  [default: HOST-PID]")
@click.option(
    "--queue",
    "queues",
    type=options.ParsedParam("names", tuple, _parse_queues),
    metavar="NAME,...",
    help="Take only runs of these queues. An agent or a job names its queue with `executor: {queue: NAME}`.  [default: default]",
)
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
@click.pass_context
def worker(ctx: click.Context, /, **given: object) -> None:
    """Execute runs for a daemon on another machine.

    The daemon's config must contain `executor: {kind: procrastinate}`. The worker needs the same config.yaml, the secrets of the
    agents that it runs, and access to the same PostgreSQL server. After SIGTERM or Ctrl-C, the worker waits until its runs in
    progress have ended, and stops. Runs that are still in progress after `limits.shutdown_grace`, or at a second signal, are
    stopped. The daemon repeats stopped runs if this is allowed, as after a crash. SIGHUP reloads the config.
    """
    if ctx.invoked_subcommand is None:
        options.call_work("scheduler.extras.cluster.worker:run_worker", given)


@command("scheduler.extras.cluster.worker:drain_worker", of=worker)
@click.argument("name")
@options.config_option
def drain() -> None:
    """Let a worker take no more runs.

    NAME is a name that `heartbeatd doctor` lists. If several workers have this name, all of them drain. The worker ends as soon
    as its runs in progress have ended. Unlike after SIGTERM, they get as much time as they need. A worker that you start later
    takes runs, also under the same name.
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
