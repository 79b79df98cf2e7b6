"""Chooses the shards that a command concerns, if several daemons share the config and none of them is named."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import click

from heartbeatd.answers import Condition
from scheduler.cli import daemon_files, options
from scheduler.cli.manage_conditions import find_agent_with_condition
from scheduler.cli.options import InputError
from scheduler.cli.output import KIND_BY_WORD
from scheduler.config.file.lenient_reading import SHARD_VARIABLE, NamedShard, read_shard
from scheduler.config.file.message_parts import did_you_mean
from scheduler.model.outcome import Kind
from scheduler.model.shards import IDS_PER_SHARD
from scheduler.store import conditions, outbox, run_history

# Commands that read or change one database: for all shards if they name no agent, job, run or message, and only for one.
FOR_ALL_OR_ONE = (
    "status", "runs", "logs", "plan", "explain", "report", "outbox", "conditions", "pause", "resume", "reload", "doctor",
    "outbox retry", "outbox drop",
)  # fmt: skip
FOR_ONE = ("wake", "busy", "mute", "unmute", "ack", "unack", "show", "cancel", "cron run", "conditions close")
NAMES = ("name", "agent")  # parameters with the name of an agent or a job
OF_RUN = ("show", "cancel", "ack", "unack")  # commands with the number of a run
# A command with one of these options is not called for each shard: it does not end, writes one file, or reads no database.
NEED_ONE_SHARD = ("watch", "follow", "out", "other", "worst")


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command of the command line: its words, such as `cron run`, and its parameters."""

    words: str
    params: Mapping[str, Any]

    @property
    def name(self) -> str | None:
        """The name of the agent or job that it is about."""
        return next((str(self.params[key]) for key in NAMES if self.params.get(key)), None)

    @property
    def number(self) -> int | None:
        """The number of the run that it is about."""
        found = self.params.get("run")
        if found is None and self.words in ("ack", "unack") and str(self.params.get("name")).isdecimal():
            found = self.params["name"]
        return None if found is None else int(found)


def shards_of(invocation: Invocation, path: Path, shard: NamedShard) -> list[int] | None:
    """The shards that a command concerns; None if it concerns the config and no database, or needs one shard to be named.

    Raises InputError if the agent, job, run or message is in no shard, and ConfigError.
    """
    if invocation.params.get("state") is not None or invocation.words not in (*FOR_ALL_OR_ONE, *FOR_ONE):
        return None
    if invocation.params.get("ids"):
        return None  # the messages may be in several shards; the command calls `group_messages`
    if invocation.number is not None and invocation.words in OF_RUN:
        found = _find_shard(invocation.number, path, shard, run_history.get_run)
        if found is None:
            raise InputError(f"no shard has the run {invocation.number}")
        return [found]
    if invocation.name is not None:
        return [_shard_of_name(invocation, path)]
    if invocation.words == "conditions close" and (key := invocation.params.get("key")):
        return [_shard_of_condition(key, path, shard)]
    is_one_document = invocation.params.get("form") == "html"
    if is_one_document or invocation.words in FOR_ONE or any(invocation.params.get(key) for key in NEED_ONE_SHARD):
        return None
    return list(range(shard.of))


def _shard_of_name(invocation: Invocation, path: Path) -> int:
    from scheduler.config.settings.load import load_config

    settings = load_config(path, os.environ, resolve_secrets=False).settings
    shard_of = settings.shard.shard_of if settings.shard else {}
    word, slash, bare = (invocation.name or "").partition("/")
    kinds = [KIND_BY_WORD[word]] if slash and word in KIND_BY_WORD else _kinds_of_command(invocation.words)
    name = bare if slash else word
    found = {shard_of[kind, name] for kind in kinds if (kind, name) in shard_of}
    if len(found) == 1:
        return found.pop()
    if found:
        raise InputError(f"{name!r} is the name of an agent and of a cron job; write agent/{name} or cron/{name}")
    similar = did_you_mean(name, [known for kind, known in shard_of if kind in kinds])
    raise InputError(
        f"{path} has no {invocation.name!r}{similar or '; if it was removed, name its shard: heartbeatd --shard 0 ...'}"
    )


def _kinds_of_command(words: str) -> list[Kind]:
    if words in ("wake", "busy", "ack", "unack", "conditions close"):
        return [Kind.HEARTBEAT]
    return [Kind.CRON] if words == "cron run" else list(Kind)


def _find_shard(number: int, path: Path, shard: NamedShard, find: Callable[[Any, int], object]) -> int | None:
    """The shard with this run or message. Its number says where it was created; it may have been moved since."""
    first = number // IDS_PER_SHARD
    for index in sorted(range(shard.of), key=lambda index: index != first):
        with choose_shard(index), _open_if_exists(path) as db:
            if db is not None and find(db, number) is not None:
                return index
    return None


def group_messages(ids: Sequence[int], path: Path) -> tuple[Mapping[int | None, Sequence[int]], Sequence[int]]:
    """The messages of each shard, and those that no shard has. If there are no shards, or one is chosen, the key is None."""
    shard = read_shard(path, os.environ)
    if shard is None or shard.index is not None:
        return {None: ids}, ()
    groups: defaultdict[int | None, list[int]] = defaultdict(list)
    for each in ids:
        groups[_find_shard(each, path, shard, outbox.sender_of_message)].append(each)
    return groups, groups.pop(None, ())


def _shard_of_condition(key: str, path: Path, shard: NamedShard) -> int:
    """The shard of the only agent that has an open condition with this key. Raises InputError if no or several agents have it."""
    found: dict[str, int] = {}
    known: list[Condition] = []
    for index in range(shard.of):
        with choose_shard(index), _open_if_exists(path) as db:
            here = conditions.list_conditions(db) if db is not None else []
        known += here
        found |= {each.name: index for each in here}
    return found[find_agent_with_condition(known, key)]


@contextmanager
def _open_if_exists(path: Path) -> Iterator[Any]:
    """A connection to the database of the chosen shard; None if there is none yet."""
    files = daemon_files.locate_files(path)
    if not files.may_exist:
        yield None
        return
    with daemon_files.open_for_reading(files) as db:
        yield db


@contextmanager
def choose_shard(index: int | None) -> Iterator[None]:
    """Let this process concern one shard, as with `--shard`. None: nothing is changed."""
    if index is None:
        yield
        return
    before = os.environ.get(SHARD_VARIABLE)
    os.environ[SHARD_VARIABLE] = str(index)
    try:
        yield
    finally:
        options.restore_variable(SHARD_VARIABLE, before)


def run_for_each(
    invocation: Invocation, indexes: Sequence[int], of: int, run: Callable[[], Any], print_error: Callable[[Exception], int]
) -> int:
    """Run a command for each of these shards. Returns the highest exit code.

    In text, the number of the shard is printed first. In JSON, one object is printed, with the value of each shard by its number,
    or null after an error. `logs` prints one value per line in any case. An error is printed, and the next shard follows:
    `print_error` returns its exit code, or raises it.
    """
    is_json = invocation.params.get("form") == "json"
    joined = is_json and invocation.words != "logs"
    codes = [0]
    values: dict[str, Any] = {}
    for index in indexes:
        with choose_shard(index), redirect_stdout(StringIO()) if joined else nullcontext() as output:
            if not is_json:
                click.echo(f"{'' if index == indexes[0] else chr(10)}shard {index} of {of}:")
            try:
                codes.append(run() or 0)
            except (click.UsageError, BrokenPipeError):
                raise
            except Exception as error:  # noqa: BLE001 (an unexpected error is raised again)
                codes.append(print_error(error))
        if output is not None:
            values[str(index)] = json.loads(output.getvalue() or "null")
    if joined:
        click.echo(json.dumps(values, indent=2))
    return max(codes)
