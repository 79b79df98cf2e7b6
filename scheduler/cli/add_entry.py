"""The command `add`: adds an agent or a job from a template to config.yaml, and changes no other byte of the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from difflib import unified_diff
from pathlib import Path
from typing import Any

import click

from scheduler.cli import options
from scheduler.cli.arguments import DurationParam
from scheduler.cli.colours import Meaning, paint
from scheduler.cli.options import InputError
from scheduler.cli.output import utc_now
from scheduler.config.build import load, templates
from scheduler.config.build.load import LoadedConfig
from scheduler.config.build.templates import JOB_TEMPLATES, TEMPLATES
from scheduler.config.build.time_checks import TimeCheck
from scheduler.config.file import config_text, entry_insertion
from scheduler.config.file.diagnostics import Diagnostics
from scheduler.config.file.entry_insertion import NewEntry, NoInsertionPoint
from scheduler.config.file.message_parts import format_duration
from scheduler.store import entries
from scheduler.system import files

ECHO = {"kind": "command", "argv": ["echo", "HEARTBEAT_OK"]}
ECHO_ADVICE = "This program gets the prompt on stdin and prints the answer. Put your agent here, e.g. [claude, -p]."
AGENT_TARGET_HELP = "What to watch: a folder or file (mail, disk, repository), a host (certificate) or a URL (feed)."
JOB_TARGET_HELP = "What to watch: a folder or file (disk, repository), or a host (certificate)."


@click.group()
def add() -> None:
    """Add an agent or a job from a template to the config."""


@add.command(short_help="Add an agent from a template.")
@click.argument("name")
@click.option("--template", type=click.Choice([*TEMPLATES]), required=True, help="What the agent watches.")
@click.option("--target", help=AGENT_TARGET_HELP)
@click.option("--interval", type=DurationParam(), help="The time between runs.  [default: chosen by the template]")
@click.option("--dry-run", is_flag=True, help="Show the change without writing it.")
@options.config_option
@options.color_option
def agent(name: str, template: str, target: str | None, interval: timedelta | None, dry_run: bool, path: Path) -> None:
    """Add an agent from a template, with a precheck that looks for work before the agent is called.

    The agent gets the runner in `defaults`. Without such a runner, it gets the runner of the last agent in the file. A
    HEARTBEAT.md is written if the agent has none. The rest of the config is not changed.
    """
    before, root = _read_config(path)
    _check_is_new(name, "agents", root, path)
    shared, comment = _shared_keys(root)
    try:
        keys = templates.agent_keys(template, target, _as_text(interval), shared)
    except templates.NoTarget as error:
        raise InputError(str(error)) from None
    after, loaded = _insert_entry(path, before, "agents", NewEntry(name, keys, comment))
    _write_config(path, before, after, dry_run=dry_run)
    beat = loaded.settings.heartbeats[name]
    checklist = beat.workspace / beat.checklist
    if beat.reads_checklist and not os.path.lexists(checklist):
        _write_checklist(checklist, templates.checklist_text(template), dry_run=dry_run)
    if not dry_run:
        click.echo(f"next: heartbeatd check; heartbeatd wake {name}; heartbeatd logs {name}")


@add.command(short_help="Add a job from a template.")
@click.argument("name")
@click.option("--template", type=click.Choice(JOB_TEMPLATES), required=True, help="What the job watches.")
@click.option("--target", help=JOB_TARGET_HELP)
@click.option("--interval", type=DurationParam(), help="The time between runs.  [default: chosen by the template]")
@click.option("--dry-run", is_flag=True, help="Show the change without writing it.")
@options.config_option
@options.color_option
def job(name: str, template: str, target: str | None, interval: timedelta | None, dry_run: bool, path: Path) -> None:
    """Add a job from a template.

    The job fails if it finds something to do. You then get a failure notification with its output. The rest of the config is not
    changed.
    """
    before, root = _read_config(path)
    _check_is_new(name, "cron", root, path)
    try:
        keys = templates.job_keys(template, target, _as_text(interval))
    except templates.NoTarget as error:
        raise InputError(str(error)) from None
    after, _ = _insert_entry(path, before, "cron", NewEntry(name, keys))
    _write_config(path, before, after, dry_run=dry_run)
    if not dry_run:
        click.echo(f"next: heartbeatd check; heartbeatd cron run {name} --wait; heartbeatd logs {name}")


def _as_text(interval: timedelta | None) -> str | None:
    return format_duration(interval) if interval else None


def _read_config(path: Path) -> tuple[bytes, Mapping[str, Any]]:
    """The content of the config and its data. Raises InputError, and ConfigError if it is invalid."""
    try:
        before = files.read_file(path)
    except OSError as error:
        advice = "`heartbeatd init DIR` writes a config to begin with"
        raise InputError(f"{path} cannot be read: {error.strerror or error}; {advice}") from error
    load.load_config(path, os.environ, resolve_secrets=False, content=before)
    root = config_text.parse_content(before, Diagnostics(str(path)))
    return before, root if isinstance(root, Mapping) else {}


def _check_is_new(name: str, section: str, root: Mapping[str, Any], path: Path) -> None:
    if name in (root.get(section) or {}):
        noun = "an agent" if section == "agents" else "a job"
        raise InputError(f"{path} already has {noun} {name!r}; choose another name")


def _shared_keys(root: Mapping[str, Any]) -> tuple[dict[str, object], tuple[str, ...]]:
    """The keys that say how a new agent is called, and a comment if there is no agent to take them from.

    Keys that `defaults` sets are left out.
    """
    defaults = root.get("defaults") or {}
    others = [each for each in (root.get("agents") or {}).values() if isinstance(each, Mapping) and "runner" in each]
    shared: dict[str, object] = {}
    comment: tuple[str, ...] = ()
    if "runner" not in (defaults.get("agent") or {}):
        shared = {key: others[-1][key] for key in ("runner", "model") if key in others[-1]} if others else {"runner": ECHO}
        comment = () if others else (ECHO_ADVICE,)
    if "deliver" not in (defaults.get("heartbeat") or {}):
        beats = [each["heartbeat"] for each in others if isinstance(each.get("heartbeat"), Mapping)]
        shared["heartbeat"] = {"deliver": next((beat["deliver"] for beat in reversed(beats) if "deliver" in beat), "log")}
    return shared, comment


def _insert_entry(path: Path, before: bytes, section: str, entry: NewEntry) -> tuple[bytes, LoadedConfig]:
    """The new content of the config, and what it loads to. Raises ConfigError and InputError."""
    try:
        text = entry_insertion.insert_entries(before.decode("utf-8-sig"), section, [entry]).text
    except NoInsertionPoint as error:
        raise InputError(f"{path} {error}") from error
    mark = b"\xef\xbb\xbf" if before.startswith(b"\xef\xbb\xbf") else b""
    after = mark + text.encode()
    check = TimeCheck(utc_now(), entries.has_seen_one_time_job)
    return after, load.load_config(path, os.environ, resolve_secrets=False, content=after, time_check=check)


def _write_config(path: Path, before: bytes, after: bytes, *, dry_run: bool) -> None:
    """Print the difference, and write the file unless `dry_run`."""
    old, new = (text.decode().splitlines() for text in (before, after))
    for line in unified_diff(old, new, str(path), str(path), lineterm="", n=1):
        click.echo(paint(line, Meaning.GOOD) if line.startswith("+") else line)
    if dry_run:
        click.echo("nothing was written (--dry-run)")
        return
    try:
        files.replace_file(path, before, after)
    except files.FileChanged as error:
        raise InputError(str(error)) from error
    click.echo(f"wrote {path}")


def _write_checklist(path: Path, text: str, *, dry_run: bool) -> None:
    if dry_run:
        click.echo(f"would write {path}:\n{text}", nl=False)
        return
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "w", encoding="utf-8") as file:
        file.write(text)
    click.echo(f"wrote {path}")
