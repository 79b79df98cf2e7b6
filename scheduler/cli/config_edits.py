"""The commands that change the config file: `config add`, `set` and `unset`; and `init`, which writes the first one."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from heartbeat.words import format_duration
from scheduler.cli import daemon_files
from scheduler.cli.output import host_zone_name, paint, utc_now
from scheduler.config.file import config_text, marked_yaml, text_editing
from scheduler.config.file.diagnostics import Diagnostics
from scheduler.config.file.text_editing import EditRefused, NewEntry, add_entries
from scheduler.config.keys import time_zones
from scheduler.config.keys.models import text_keys
from scheduler.config.settings import load, templates
from scheduler.config.settings.config_data import HEARTBEAT_SCHEDULE_KEYS, JOB_SCHEDULE_KEYS, expand_runners, map_at
from scheduler.config.settings.load import LoadedConfig
from scheduler.config.settings.time_checks import TimeCheck
from scheduler.engine.config_reload import changed_lines
from scheduler.insight.schedule_texts import schedule_text
from scheduler.model import entry_schedule
from scheduler.model.expected_error import InputError
from scheduler.model.levels import Level
from scheduler.model.settings import LOG_CHANNEL
from scheduler.store import entries
from scheduler.system.files import FileChanged, read_file, replace_file

_DOTS = re.compile(r"(?<!\\)\.")
ECHO = {"kind": "command", "argv": ["echo", "HEARTBEAT_OK"]}
LOGS = (LOG_CHANNEL, [LOG_CHANNEL])


def read_config(path: Path) -> bytes:
    """The content of the config. Raises InputError."""
    try:
        return read_file(path)
    except OSError as error:
        advice = "`heartbeatd init DIR` writes a config to begin with"
        raise InputError(f"{path} cannot be read: {error.strerror or error}; {advice}") from error


def write_config(path: Path, before: bytes, after: bytes) -> None:
    """Replace the content `before` of the config. Raises InputError; then the file is unchanged."""
    try:
        replace_file(path, before, after)
    except FileChanged as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{path} was not written: {error.strerror or error}") from error


def parse_config(path: Path, content: bytes) -> object:
    """The config as data. Raises ConfigError if the config cannot be parsed, or if other users may write to it."""
    diagnostics = Diagnostics(str(path))
    config_text.check_owner(path.stat(), path, diagnostics)
    diagnostics.raise_errors()
    return config_text.parse_content(content, diagnostics).node


def find_source_zone(name: str | None) -> ZoneInfo:
    """The zone of times in a file that names none: the one that `--timezone` names, or that of this host."""
    try:
        return time_zones.find_zone(name or host_zone_name())
    except ValueError as error:
        raise InputError(f"{error}" if name else f"{error}; use --timezone to name the zone of the times") from error


def print_inherited(root: object, *, agents: bool, jobs: bool) -> None:
    """Hints about the keys that new agents and jobs inherit from the config."""
    of_agents = [key for key in map_at(root, "defaults") if key not in ("cron", "heartbeat")]
    of_agents += [f"heartbeat.{key}" for key in map_at(root, "defaults", "heartbeat")]
    of_jobs = [f"cron.{key}" for key in map_at(root, "defaults", "cron")]
    for what, keys in (("agents", of_agents if agents else []), ("jobs", of_jobs if jobs else [])):
        if keys:
            click.echo(f"hint: the new {what} inherit from defaults: {', '.join(keys)}", err=True)


@contextmanager
def report_refusal(path: Path, before: bytes) -> Iterator[None]:
    """Turn an edit that is refused into an InputError. Errors that the config already has are reported first."""
    try:
        yield
    except EditRefused as error:
        load.load_config(path, os.environ, resolve_secrets=False, content=before)
        raise InputError(error.located_in(path)) from error


def set_values(values: tuple[str, ...], dry_run: bool, path: Path) -> None:
    """Write values of the form KEY=VALUE into the config."""
    _edit_file(path, map(_parse_assignment, values), dry_run=dry_run)


def unset_values(keys: tuple[str, ...], dry_run: bool, path: Path) -> None:
    """Remove keys from the config."""
    _edit_file(path, ((_parse_key(key), None) for key in keys), dry_run=dry_run)


def _edit_file(path: Path, edits: Iterable[tuple[list[str], object]], *, dry_run: bool) -> None:
    """Write the edits, and print the changed lines. Raises ConfigError or InputError; then the file is as it was."""
    before = read_config(path)
    parse_config(path, before)
    new = old = before.decode()
    with report_refusal(path, before):
        for steps, value in edits:
            new = text_editing.apply_patch(new, _patch_of(new, steps, value))
    load.load_config(path, os.environ, content=new.encode(), resolve_secrets=False)
    _show_and_write(path, old, new, dry_run=dry_run)


def _patch_of(text: str, steps: list[str], value: object) -> Any:
    """The edit of one value as a merge patch. A text in place of a map, such as the kind of a runner, becomes a map with it."""
    data: Any = marked_yaml.parse_yaml(text, Diagnostics(""))
    expanded = expand_runners(data)
    for depth in range(1, len(steps)):
        written, whole = (marked_yaml.value_at(each, steps[:depth]) for each in (data, expanded))
        if isinstance(whole, str) and whole != "none" and (key := text_keys().get(steps[depth - 1])):
            whole = {key: whole}
        if value is not None and isinstance(written, str) and isinstance(whole, dict):
            value = {**whole, **text_editing.nest_value(steps[depth:], value)}
            return text_editing.nest_value(steps[:depth], value)
    return text_editing.nest_value(steps, value)


def _show_and_write(path: Path, old: str, new: str, *, dry_run: bool) -> None:
    """Print the changed lines, write the file unless `dry_run`, and say when the daemon applies it."""
    for line in changed_lines(old, new) or ("nothing changed",):
        click.echo(paint(line, Level.GOOD) if line.startswith("+") else line)
    if dry_run or old == new:
        return
    write_config(path, old.encode(), new.encode())
    files = daemon_files.locate_files(path, None)
    if daemon_files.find_running_daemon(files) is None:
        click.echo("written; the daemon is not running and reads the file when it starts", err=True)
    elif load.load_config(path, os.environ, resolve_secrets=False).settings.reload == "manual":
        click.echo("written; the daemon applies the file after `heartbeatd reload`", err=True)
    else:
        click.echo("written; the daemon applies the file within a few seconds", err=True)


def _parse_assignment(text: str) -> tuple[list[str], object]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{text!r} has no =; write KEY=VALUE, as in agents.mail.heartbeat.interval=1h")
    diagnostics = Diagnostics("")
    try:
        found = marked_yaml.parse_yaml(value, diagnostics)
    except marked_yaml.UnreadableYaml:
        found = None
    if diagnostics.has_errors:
        raise InputError(f"the value of {key} is not YAML: {value!r}; put a text with special characters in quotes of its own")
    written = value.strip()
    if isinstance(found, str) and found != written and written[0] not in "'\"|>":  # YAML ends it at a #
        raise InputError(f"the value of {key} would be {found!r}; put a text with special characters in quotes of its own")
    if found is None:
        raise InputError(f"{key} has no value; write KEY=VALUE, or `heartbeatd config unset {key}` to remove it")
    return _parse_key(key), found


def _parse_key(text: str) -> list[str]:
    steps = [step.replace("\\.", ".") for step in _DOTS.split(text.strip())]
    if not all(steps):
        raise InputError(f"{text!r} is not the path of a key; write for example agents.mail.heartbeat.interval")
    return steps


def create_config(folder: Path) -> None:
    """Write the first files into a folder. Raises InputError if one of them exists."""
    texts = {folder / path: text for path, text in templates.STARTER_FILES.items()}
    for path in texts:
        if os.path.lexists(path):
            raise InputError(f"{path} already exists; nothing was written")
    for path, text in texts.items():
        _write_new_file(path, text)
        click.echo(f"wrote {path}")
    click.echo(f"next: cd {shlex.quote(str(folder))}; heartbeatd check; heartbeatd run")


def _write_new_file(path: Path, text: str) -> None:
    """Write a file with mode 0644 at most: a config that others may write is rejected."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "w", encoding="utf-8") as file:
        file.write(text)


def add_agent(name: str, template: str, target: str | None, interval: timedelta | None, dry_run: bool, path: Path) -> None:
    """Add an agent from a template."""

    def make_entry(old: LoadedConfig, inherits: bool) -> NewEntry:
        shared, comment = _shared_keys(old)
        keys = templates.agent_keys(template, target, _as_text(interval), shared, has_interval=inherits)
        return NewEntry(name, keys, comment)

    loaded, inherits = _add_entry(path, "agents", name, make_entry, interval, dry_run=dry_run)
    beat = loaded.settings.heartbeats[name]
    schedule = entry_schedule.heartbeat_schedule_text(beat)
    _print_effect(name, schedule, inherits=inherits, what="messages go to", targets=beat.deliver)
    checklist = beat.workspace / beat.checklist
    if beat.reads_checklist and not os.path.lexists(checklist):
        _write_checklist(checklist, f"# Heartbeat\n\n{templates.TEMPLATES[template].checklist}", dry_run=dry_run)
    if not dry_run:
        click.echo(f"next: heartbeatd check; heartbeatd wake {name}; heartbeatd logs {name}")


def add_job(name: str, template: str, target: str | None, interval: timedelta | None, dry_run: bool, path: Path) -> None:
    """Add a job from a template."""

    def make_entry(_: LoadedConfig, inherits: bool) -> NewEntry:
        return NewEntry(name, templates.job_keys(template, target, _as_text(interval), has_interval=inherits))

    loaded, inherits = _add_entry(path, "cron", name, make_entry, interval, dry_run=dry_run)
    added = loaded.settings.jobs[name]
    schedule = entry_schedule.job_schedule_text(added)
    targets = (added.problems_deliver or added.deliver) if added.problems_after else ()
    _print_effect(name, schedule, inherits=inherits, what="failures are reported to", targets=targets)
    if not dry_run:
        click.echo(f"next: heartbeatd check; heartbeatd cron run {name} --wait; heartbeatd logs {name}")


def _add_entry(
    path: Path,
    section: str,
    name: str,
    make_entry: Callable[[LoadedConfig, bool], NewEntry],
    interval: timedelta | None,
    *,
    dry_run: bool,
) -> tuple[LoadedConfig, bool]:
    """Add an entry to the config. Returns what the new config loads to, and whether the entry inherits its schedule.

    Raises ConfigError if one of the configs is invalid, and InputError.
    """
    before = read_config(path)
    old = load.load_config(path, os.environ, resolve_secrets=False, content=before, may_be_empty=True)
    is_agent = section == "agents"
    if name in (old.data.file.get(section) or {}):
        raise InputError(f"{path} already has {'an agent' if is_agent else 'a job'} {name!r}; choose another name")
    defaults = map_at(old.data.agent, "heartbeat") if is_agent else old.data.job
    keys = HEARTBEAT_SCHEDULE_KEYS if is_agent else JOB_SCHEDULE_KEYS
    inherits = interval is None and any(defaults.get(key) is not None for key in keys)
    try:
        entry = make_entry(old, inherits)
    except templates.NoTarget as error:
        raise InputError(str(error)) from None
    with report_refusal(path, before):
        after = add_entries(before.decode(), section, [entry])
    check = TimeCheck(utc_now(), entries.has_seen_one_time_job)
    loaded = load.load_config(path, os.environ, resolve_secrets=False, content=after.encode(), time_check=check)
    _show_and_write(path, before.decode(), after, dry_run=dry_run)
    return loaded, inherits


def _as_text(interval: timedelta | None) -> str | None:
    return format_duration(interval) if interval else None


def _print_effect(name: str, schedule: str, *, inherits: bool, what: str, targets: tuple[str, ...]) -> None:
    """Say what the config makes of the new entry: when it runs, and where its messages go."""
    origin = " (set in defaults)" if inherits else ""
    click.echo(f"{name} runs {schedule_text(schedule)}{origin}, {what} {', '.join(targets) or 'nobody'}")


def _shared_keys(config: LoadedConfig) -> tuple[dict[str, object], tuple[str, ...]]:
    """The keys that say how a new agent is called, and a comment if there is no agent to take them from.

    Keys that `defaults` sets are left out. So is `deliver` if no other agent has one, or if the others have `log` although the
    config has a channel that an agent without `deliver` uses.
    """
    defaults = config.data.agent
    others = [each for each in map_at(config.data.file, "agents").values() if isinstance(each, Mapping)]
    shared: dict[str, object] = {}
    comment: tuple[str, ...] = ()
    if "runner" not in defaults:
        called = [each for each in others if "runner" in each] or others  # an agent without a runner calls Anthropic
        shared = {key: called[-1][key] for key in ("runner", "model") if key in called[-1]} if called else {"runner": ECHO}
        comment = () if called else (templates.ECHO_ADVICE,)
    if "deliver" not in map_at(defaults, "heartbeat"):
        beats = [each["heartbeat"] for each in others if isinstance(each.get("heartbeat"), Mapping)]
        deliver = next((beat["deliver"] for beat in reversed(beats) if "deliver" in beat), None)
        if deliver is not None and not (deliver in LOGS and len(config.settings.channels) == 2):
            shared["heartbeat"] = {"deliver": deliver}
    return shared, comment


def _write_checklist(path: Path, text: str, *, dry_run: bool) -> None:
    if dry_run:
        click.echo(f"would write {path}:\n{text}", nl=False)
        return
    _write_new_file(path, text)
    click.echo(f"wrote {path}")
