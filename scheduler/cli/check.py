"""The commands `check` and `schema`: validate config.yaml, show the values in force, print the JSON schema."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from scheduler.cli import arguments, config_preview, options
from scheduler.cli.colours import Meaning, paint
from scheduler.cli.options import InputError
from scheduler.cli.output import format_table, utc_now
from scheduler.cli.progress import show_progress
from scheduler.config.build import load
from scheduler.config.build.effective_values import list_effective_values
from scheduler.config.build.load import LoadedConfig
from scheduler.config.build.time_checks import TimeCheck
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.file.message_parts import format_count
from scheduler.model.settings import Settings
from scheduler.store import entries


@click.command()
@click.option(
    "--effective",
    "name",
    metavar="NAME",
    shell_complete=arguments.complete_names(),
    help="Show all settings of this agent or job, including defaults, and where each is set.",
)
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option(
    "--diff",
    is_flag=True,
    help="Show what the file would change in the config that is in force: keys, next runs, runs a week, highest possible cost.",
)
@options.config_option
@options.state_option
@options.format_option
@options.color_option
def check(name: str | None, strict: bool, diff: bool, path: Path, state: Path | None, form: str) -> int:
    """Check the config, show all settings of one agent or job, or show what a reload would change.

    Each error is printed on its own line. The exit code is 2 if there are errors. A missing file, folder or program is only a
    warning.
    """
    try:
        with show_progress(f"checking {path}"):
            times = TimeCheck(utc_now(), entries.has_seen_one_time_job)
            loaded = load.load_config(path, os.environ, time_check=times, check_files=True)
    except ConfigError as error:
        return _print_faults(ConfigError((*error.errors, *error.warnings), ()) if strict else error, form)
    if strict and loaded.warnings:
        return _print_faults(ConfigError(loaded.warnings, ()), form)
    if diff:
        return _show_diff(path, state, loaded, form)
    return _print_valid(path, loaded, form) if name is None else _show_effective(path, name, form)


def _show_diff(path: Path, state: Path | None, loaded: LoadedConfig, form: str) -> int:
    preview = config_preview.preview_file(path, state)
    if form == "text":
        for warning in loaded.warnings:
            click.echo(f"{paint('warning:', Meaning.WORRYING)} {warning}", err=True)
    else:
        preview.data["warnings"] = [each.as_json() for each in loaded.warnings]
    config_preview.print_preview(preview, form)
    return 0


def _show_effective(path: Path, name: str, form: str) -> int:
    try:
        rows = list_effective_values(path, os.environ, name)
    except LookupError as error:
        raise InputError(str(error)) from error
    if form == "json":
        click.echo(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        click.echo(format_table(("KEY", "VALUE", "FROM"), rows))
    return 0


def _print_valid(path: Path, loaded: LoadedConfig, form: str) -> int:
    if form == "json":
        found = {"ok": True, "errors": [], "warnings": [each.as_json() for each in loaded.warnings]}
        click.echo(json.dumps(found | ({"overrides": loaded.overrides} if loaded.overrides else {})))
        return 0
    for warning in loaded.warnings:
        click.echo(f"{paint('warning:', Meaning.WORRYING)} {warning}", err=True)
    click.echo(f"{path} is {paint('valid', Meaning.GOOD)}: {_count_entries(loaded.settings)}")
    for variable in loaded.overrides:
        click.echo(f"overridden by {variable}")
    return 0


def _print_faults(error: ConfigError, form: str) -> int:
    if form == "json":
        errors, warnings = ([each.as_json() for each in notes] for notes in (error.errors, error.warnings))
        click.echo(json.dumps({"ok": False, "errors": errors, "warnings": warnings}))
        return 2
    for warning in error.warnings:
        click.echo(f"{paint('warning:', Meaning.WORRYING)} {warning}", err=True)
    for complaint in error.errors:
        place, colon, wrong = str(complaint).partition(": ")
        click.echo(f"{paint(place, Meaning.BAD)}{colon}{wrong}", err=True)
    return 2


def _count_entries(settings: Settings) -> str:
    return f"{format_count(len(settings.heartbeats), 'agent')}, {format_count(len(settings.jobs), 'job')}"


@click.command()
def schema() -> None:
    """Print the JSON schema of config.yaml.

    A YAML language server in an editor can use it to complete and check the file.
    """
    click.echo(json.dumps(load.config_schema(), indent=2))
