"""The work of the commands that send a verb: each finds the subject, sends the verb, and prints the sentence of the answer.

A wake can be followed until the run that it starts has ended.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import click

from heartbeat.words import escape_control, shorten
from heartbeatd.answers import Asked, CancelledRun, Done, PersonQuestion, RunRecord, WakeAccepted
from heartbeatd.state_folder import RUN_ID_VARIABLE
from heartbeatd.verbs import Verb
from scheduler.cli import daemon_files, options
from scheduler.cli.daemon_client import connect_to_daemon, open_client
from scheduler.cli.daemon_files import DaemonFiles
from scheduler.cli.output import answer_text, format_time, utc_now
from scheduler.config.file.message_parts import did_you_mean, join_with_or
from scheduler.config.settings import load
from scheduler.engine.tick_items import Refused
from scheduler.insight import problem_list, wake_waits
from scheduler.insight.wake_waits import WakeWait, add_wait, explain_waiting
from scheduler.model.expected_error import InputError
from scheduler.model.outcome import Key, Kind
from scheduler.store import run_history, wakes
from scheduler.store.database import parse_row_id
from scheduler.store.outbox import movable_messages
from scheduler.system import log

CLOSE_TIMEOUT = 15.0  # seconds: longer than a cancelled run may take to end
POLL_INTERVAL = 0.1  # seconds
REFUSAL_TIMEOUT = 0.5  # seconds in which most runs that are skipped have ended
ASK_SECONDS = 20  # for which one request waits for the answer of a person
ASK_AGAIN_SECONDS = 1.0  # while the daemon is down
RESTART_TIME = timedelta(minutes=2)  # of a daemon whose answer is awaited
OTHER_ANSWER, NO_ANSWER = 3, 4  # exit codes
SUCCESSFUL_OUTCOMES = ("ok", "alert", "async")
MAX_KEY = 120  # characters of a key in an error message


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
    with daemon_files.open_for_reading(daemon_files.locate_files(path)) as db:
        newest = run_history.list_runs(db, limit=1)
    before = newest[0].id if newest else 0  # the run that the verb starts has a higher number
    accepted = open_client(path).perform(verb, key)
    if wait:
        return _wait_for_run(path, accepted.wake, before)
    is_answered = key[0] is Kind.CRON or accepted.waits_for is not None
    obstacle = None if is_answered else find_obstacle(path, accepted.wake)
    click.echo(add_wait(accepted.says, obstacle, format_time))
    return 0


def _wait_for_run(path: Path, wake_id: int, before: int) -> int:
    """Wait until a run newer than `before` has consumed the wake and ended, and print it.

    Returns 1 if the run failed or was skipped, else 0.
    """
    files, printed_reason = daemon_files.locate_files(path), None
    while True:
        up = daemon_files.find_running_daemon(files)
        run, over = _find_run(files, wake_id, before)
        wait = None if over else _find_wait(files, wake_id)
        # Without a daemon, the command itself may have recorded why its run is skipped. The wake still waits for a daemon.
        if run is not None and (up or run.started_at):
            return _print_run(run, wait)
        if over:
            raise click.ClickException(f"wake {wake_id} ended without a run; `heartbeatd status` shows the state of its agent")
        if up is None:
            raise click.ClickException(f"the daemon is not running; wake {wake_id} is kept for its next start")
        if wait is not None and wait.was_refused:
            raise click.ClickException(f"wake {wake_id} {wait.describe(format_time)}")
        if wait is not None and not wait.is_starting and wait.reason != printed_reason:
            click.echo(f"wake {wake_id} {wait.describe(format_time)}", err=True)
            printed_reason = wait.reason
        time.sleep(POLL_INTERVAL)


def find_obstacle(path: Path, wake_id: int) -> WakeWait | None:
    """What a wake waits for, unless its run starts at once.

    A run that a daemon has just started may be skipped within moments. This is waited for, but only REFUSAL_TIMEOUT seconds.
    """
    files, deadline = daemon_files.locate_files(path), time.monotonic() + REFUSAL_TIMEOUT
    while (wait := _find_wait(files, wake_id)) is not None and wait.is_starting:
        if daemon_files.find_running_daemon(files) is None or time.monotonic() >= deadline:
            return None
        time.sleep(POLL_INTERVAL / 4)
    return wait


def _find_wait(files: DaemonFiles, wake_id: int) -> WakeWait | None:
    with daemon_files.open_for_reading(files) as db:
        return wake_waits.wait_of_wake(db, wakes.find_wake(db, wake_id), utc_now())


def _wait_until_closed(files: DaemonFiles, run_id: int) -> bool:
    """Wait for the end of a run. Returns False if it has not ended within CLOSE_TIMEOUT seconds."""
    deadline = time.monotonic() + CLOSE_TIMEOUT
    while time.monotonic() < deadline:
        with daemon_files.open_for_reading(files) as db:
            run = run_history.get_run(db, run_id)
        if run is None or run.state == "closed":
            return True
        time.sleep(POLL_INTERVAL)
    return False


def _find_run(files: DaemonFiles, wake_id: int, before: int) -> tuple[RunRecord | None, bool]:
    """The closed run that consumed the wake, or None; and whether no run will consume it any more."""
    with daemon_files.open_for_reading(files) as db:
        wake = wakes.find_wake(db, wake_id)
        run_id = wake.run_id or 0 if wake else 0
        run = run_history.get_run(db, run_id) if run_id > before else None
    if run is not None:
        return (run if run.state == "closed" else None), False
    return None, wake is None or wake.state == "ended"


def _print_run(run: RunRecord, wait: WakeWait | None) -> int:
    """Print the result of a run. `wait` is what the wake still waits for, if the run did not consume it."""
    click.echo(f"run {run.id}: {run.result}" + (f" ({run.why})" if run.why else ""))
    for text in (answer_text(run), escape_control(run.error or "")):
        if text:
            click.echo(text)
    if wait is not None:
        click.echo(f"the wake {wait.describe(format_time)}", err=True)
    return 0 if run.result in SUCCESSFUL_OUTCOMES else 1


def cancel(make: Callable[..., Verb[CancelledRun]], run: int, path: Path) -> None:
    files = daemon_files.locate_files_or_warn(path)
    running = connect_to_daemon(files)
    if running is None:
        raise click.ClickException("the daemon is not running, so no run is in progress; `heartbeatd pause` prevents a retry")
    cancelled = running.perform(make(), run)
    click.echo(cancelled.says)
    if not cancelled.ended:
        if not _wait_until_closed(files, run):
            click.echo(f"`heartbeatd show {run}` shows when it has ended")
            return
        click.echo(f"run {run} has ended")
    _print_waiting_wakes(files, run)


def _print_waiting_wakes(files: DaemonFiles, run_id: int) -> None:
    """Print what wakes still wait for: the cancelled run did not deliver them to the agent."""
    with daemon_files.open_for_reading(files) as db:
        run = run_history.get_run(db, run_id)
        key = (Kind(run.kind), run.name) if run else None
        if key and (number := wakes.count_waiting_wakes(db, *key)):
            click.echo(f"{key[0].label_of(key[1])}: {explain_waiting(db, key, number, utc_now(), format_time).says}")


def ask(make: Callable[..., Verb[Asked]], text: str, run: int | None, path: Path) -> int:
    """Print the answer to a question of a run. While the daemon is restarted, this waits for it."""
    run = run or parse_row_id(os.environ.get(RUN_ID_VARIABLE, "").rpartition("/")[2])
    if run is None:
        raise InputError("no run has started this command; name the run that asks with --run")
    files, wait = daemon_files.locate_files_or_warn(path), timedelta(seconds=ASK_SECONDS)
    verb = make(text=text, wait=wait)
    # The key makes what is sent again the same question: after a wait, and after a broken connection.
    verb = verb if "key" in verb.model_fields_set else make(text=text, wait=wait, key=secrets.token_hex(8))
    question = _ask_when_up(files, verb, run, utc_now())
    while question.state == "open":
        question = _ask_when_up(files, verb, run, question.until)
    if question.answer is None:
        click.echo(f"heartbeatd: no answer: {question.why}", err=True)
        return NO_ANSWER
    click.echo(question.answer)
    return 0 if question.answer == question.options[0] else OTHER_ANSWER


def _ask_when_up(files: DaemonFiles, verb: Verb[Asked], run: int, until: datetime) -> PersonQuestion:
    """The question as the daemon answers, which may be restarted meanwhile. Raises ClickException if it is down after `until`."""
    while True:
        try:
            if (client := connect_to_daemon(files)) is not None:
                return client.perform(verb, run).question
            down = click.ClickException("the daemon is not running, so nobody can be asked")
        except click.ClickException as error:
            down = error
        if utc_now() >= until + RESTART_TIME:
            raise down
        time.sleep(ASK_AGAIN_SECONDS)


def send_for_number(make: Make, number: int, path: Path, **keys: str) -> None:
    """Send a verb with these keys for the wake or the question with a number."""
    click.echo(open_client(path).perform(make(**keys), number).says)


def send_for_problem(make: Make, problem: str, key: str | None, path: Path) -> None:
    """Send a verb for a problem: with this number, or that of an entry with this key. Raises InputError if there is none."""
    if key is None and not problem_list.NUMBER.fullmatch(problem):
        raise InputError("give the number of a problem, such as p12, or a name and a key; `heartbeatd problems` lists them")
    number = problem if key is None else _number_of_problem(problem, key, path)
    row_id = parse_row_id(number.removeprefix("p"))
    if row_id is None:
        raise InputError(f"no problem {number}; `heartbeatd problems` lists them")
    click.echo(open_client(path).perform(make(), row_id).says)


def _number_of_problem(name: str, key: str, path: Path) -> str:
    """The number of the problem of an entry with this key, which is not over. Case and blanks in the key are ignored."""
    with daemon_files.open_for_reading(daemon_files.locate_files_or_warn(path)) as db:
        own = daemon_files.find_problems(db, path, name, utc_now(), advice="`heartbeatd problems` lists them")
    found = problem_list.problems_with_key(own, key)
    if not found:
        instead = did_you_mean(key, [each.key for each in own]) or "; `heartbeatd problems` lists them"
        raise InputError(f"{name} has no open problem {shorten(key, MAX_KEY)!r}{instead}")
    if len(found) > 1:
        raise InputError(f"several problems have the key {key!r}; write {join_with_or(tuple(each.number for each in found))}")
    return found[0].number


def send_for_messages(make: Make, ids: tuple[int, ...], everything: bool, path: Path) -> int:
    """Send a verb for each message. An error is printed, and the next message follows."""
    if bool(ids) == everything:
        raise InputError("name messages by their ID, or use --all; `heartbeatd outbox` lists them")
    if everything:
        with daemon_files.open_for_reading(daemon_files.locate_files_or_warn(path)) as db:
            ids = tuple(movable_messages(db))
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
