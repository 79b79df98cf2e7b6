"""The command `wake`: wakes an agent now, and can wait for the run."""

from __future__ import annotations

from pathlib import Path

import click

from scheduler.cli import arguments, options


@click.command()
@click.argument("agent", shell_complete=arguments.complete_names("agent"))
@click.option("--text", default="", help="Text to put into the agent's prompt.")
@click.option("--wait", is_flag=True, help="Wait for the answer. The exit code is 1 if the run failed or was skipped.")
@options.config_option
def wake(agent: str, text: str, wait: bool, path: Path) -> int:
    """Run an agent now, outside of its schedule (a wake).

    If the daemon is down, the agent is woken when the daemon starts again.
    """
    from heartbeatd.verbs import Wake
    from scheduler.cli.daemon_client import open_client
    from scheduler.cli.wake_progress import newest_run_id, print_wait, wait_for_run
    from scheduler.model.outcome import Kind

    name = arguments.name_of_kind("agent", agent, "`heartbeatd cron run` runs jobs")
    before = newest_run_id(path)
    wake_id = open_client(path).perform(Wake(text=text), (Kind.HEARTBEAT, name)).wake
    if wait:
        return wait_for_run(path, wake_id, before)
    click.echo(f"wake {wake_id} for agent/{name} is queued")
    print_wait(path, wake_id)
    return 0
