"""The work of the commands that send a verb: each finds the subject, sends the verb, and prints the sentence of the answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from heartbeat.findings import comparable_key
from heartbeatd.answers import CancelledRun, Condition, Done, WakeAccepted
from heartbeatd.verbs import Verb
from scheduler.cli import daemon_files, options
from scheduler.cli.daemon_client import connect_to_daemon, open_client
from scheduler.cli.daemon_files import DaemonFiles
from scheduler.cli.output import format_time, utc_now
from scheduler.cli.wake_progress import find_obstacle, newest_run_id, wait_for_run, wait_until_closed
from scheduler.config.file.message_parts import did_you_mean, join_with_or
from scheduler.config.settings import load
from scheduler.engine.inbox import Refused
from scheduler.insight.wake_waits import add_wait, explain_waiting
from scheduler.model.entry import Key
from scheduler.model.expected_error import InputError
from scheduler.model.outcome import Kind
from scheduler.store import run_history, wakes
from scheduler.store.conditions import list_conditions
from scheduler.store.database import parse_row_id
from scheduler.store.outbox import MOVABLE, list_messages
from scheduler.system import log

CLOSE_TIMEOUT = 15.0  # seconds: longer than a cancelled run may take to end
MAX_CHOICES = 5  # agents that an error message lists


Make = Callable[..., Verb[Done]]  # gives the verb with the values of the options, and with further keys


def send_for_entry(make: Make, path: Path, name: str | None, everything: bool = False) -> None:
    """Send a verb for the entry with this name, or for all."""
    if (name is None) != everything:
        raise InputError("name an agent or a job, or use --all")
    client = open_client(path)
    key = None if name is None else options.resolve_entry(name, client.list_entries())
    click.echo(client.perform(make(), key).says)


def wake(make: Callable[..., Verb[WakeAccepted]], agent: str, wait: bool, path: Path) -> int:
    name = options.name_of_kind("agent", agent, "`heartbeatd cron run` runs jobs")
    return _start_run(make(), (Kind.HEARTBEAT, name), wait, path)


def run_job(make: Callable[..., Verb[WakeAccepted]], name: str, wait: bool, path: Path) -> int:
    name = options.name_of_kind("cron", name, "`heartbeatd wake` wakes agents")
    return _start_run(make(), (Kind.CRON, name), wait, path)


def _start_run(verb: Verb[WakeAccepted], key: Key, wait: bool, path: Path) -> int:
    """Send a verb that starts a run. Returns 1 if the run is waited for and fails, else 0."""
    before = newest_run_id(path)
    accepted = open_client(path).perform(verb, key)
    if wait:
        return wait_for_run(path, accepted.wake, before)
    is_answered = key[0] is Kind.CRON or accepted.waits_for is not None
    obstacle = None if is_answered else find_obstacle(path, accepted.wake)
    click.echo(add_wait(accepted.says, obstacle, format_time))
    return 0


def cancel(make: Callable[..., Verb[CancelledRun]], run: int, path: Path) -> None:
    files = daemon_files.locate_files_or_warn(path)
    running = connect_to_daemon(files)
    if running is None:
        raise click.ClickException("the daemon is not running, so no run is in progress; `heartbeatd pause` prevents a retry")
    cancelled = running.perform(make(), run)
    click.echo(cancelled.says)
    if not cancelled.ended:
        if not wait_until_closed(CLOSE_TIMEOUT, files, run):
            click.echo(f"`heartbeatd show {run}` shows when it has ended")
            return
        click.echo(f"run {run} has ended")
    _print_waiting_wakes(files, run)


def _print_waiting_wakes(files: DaemonFiles, run_id: int) -> None:
    """Print what wakes still wait for: the cancelled run did not deliver them to the agent."""
    with daemon_files.open_for_reading(files) as db:
        run = run_history.get_run(db, run_id) if db else None
        key = (Kind(run.kind), run.name) if run else None
        if db and key and (number := wakes.count_waiting_wakes(db, *key)):
            click.echo(f"{key[0].label_of(key[1])}: {explain_waiting(db, key, number, utc_now(), format_time).says}")


def send_for_conditions(make: Make, agent: str, key: str | None, path: Path) -> None:
    """Send a verb for the condition of an agent, or for those of the run with this number."""
    click.echo(open_client(path).perform(make(**_chosen_conditions(agent, key))).says)


def _chosen_conditions(name: str, key: str | None) -> dict[str, object]:
    """The fields that say which conditions: agent and key, or the number of a run. Raises InputError."""
    if key is not None:
        return {"agent": options.name_of_kind(Kind.HEARTBEAT, name, "only agents have conditions"), "key": key}
    run_id = parse_row_id(name)
    if not run_id:
        raise InputError("give an agent and the key of a condition, or the number of a run; `heartbeatd conditions` lists them")
    return {"run": run_id}


def close(make: Make, key: str, agent: str | None, path: Path) -> None:
    if agent is not None:
        name = options.name_of_kind("agent", agent, "only agents have conditions")
    else:
        with daemon_files.open_for_reading(daemon_files.locate_files_or_warn(path)) as db:
            name = _find_agent_with_condition(list_conditions(db) if db else [], key)
    click.echo(open_client(path).perform(make(agent=name, key=key)).says)


def _find_agent_with_condition(found: list[Condition], key: str) -> str:
    """The only agent that has an open condition with this key. Raises InputError if there is none or more than one."""
    names = [each.name for each in found if comparable_key(each.key) == comparable_key(key)]
    if not names:
        instead = did_you_mean(key, list(dict.fromkeys(each.key for each in found)))
        raise InputError(f"no open condition {key!r}{instead or '; `heartbeatd conditions` lists them'}")
    if len(names) > 1:
        choices = tuple(f"--agent {name}" for name in names[:MAX_CHOICES])
        raise InputError(f"several agents have the condition {key!r}; add {join_with_or(choices)}")
    return names[0]


def send_for_messages(make: Make, ids: tuple[int, ...], everything: bool, path: Path) -> int:
    """Send a verb for each message. An error is printed, and the next message follows."""
    if bool(ids) == everything:
        raise InputError("name messages by their ID, or use --all; `heartbeatd outbox` lists them")
    if everything:
        with daemon_files.open_for_reading(daemon_files.locate_files_or_warn(path)) as db:
            ids = tuple(each.id for each in list_messages(db) if each.state in MOVABLE) if db else ()
    client, code = open_client(path), 0
    for message_id in ids:
        try:
            done = client.perform(make(), message_id)
        except Refused as refusal:
            click.echo(f"heartbeatd: {refusal}", err=True)
            code = 1
        else:
            click.echo(done.says)
    if not ids:
        click.echo("there is nothing to do")
    return code


def ping(_: Make, channel: str | None, path: Path) -> int:
    """Send a test message through the channels of the config, without the daemon. Returns 1 if one was not delivered."""
    from scheduler.engine import ping_message  # it needs aiohttp

    settings = load.load_config(path, os.environ).settings
    log.set_up_log(sys.stderr)
    try:
        tested = ping_message.send_test_messages(settings, channel, utc_now())
    except ValueError as error:
        raise InputError(str(error)) from None
    click.echo(tested.says)
    return int(any(each.state != "delivered" for each in tested.channels))
