"""The command `config import`: converts the config of another heartbeat system, with a receipt of every value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from heartbeat.words import format_count, one_line
from heartbeatd import state_folder
from scheduler.cli import output
from scheduler.cli.config_edits import find_source_zone, parse_config, print_inherited, read_config, report_refusal, write_config
from scheduler.cli.progress import show_progress
from scheduler.config.settings import load
from scheduler.config.settings.load import LoadedConfig
from scheduler.config.settings.time_checks import TimeCheck
from scheduler.extras.importers import config_writer, foreign_system, import_receipt
from scheduler.extras.importers.config_draft import Draft
from scheduler.extras.importers.config_writer import NothingToImport
from scheduler.extras.importers.foreign_system import HOST_ZONE, OPTION_ZONE, ForeignSystem, import_sources
from scheduler.extras.importers.source_files import MAX_BYTES, Problem, SourceFile, read_source
from scheduler.model.expected_error import InputError
from scheduler.store import entries


@load.pause_garbage_collection()
def import_files(system: str, paths: Sequence[str], into: Path | None, strict: bool, timezone: str | None, form: str) -> int:
    """Convert the files of another system, and print or add the result. Returns the exit code."""
    found = foreign_system.load_system(system)
    with show_progress(f"reading the files of {found.title}"):
        sources, problems = _read_files(paths)
        draft = import_sources(found, sources, find_source_zone(timezone).key, OPTION_ZONE if timezone else HOST_ZONE)
    heading = (
        f"Imported by `heartbeatd config import {system}` from {', '.join(one_line(path) for path in paths)}.",
        f"Switch off the heartbeats and jobs in {found.title}, or both systems run them.",
    )
    check = TimeCheck(output.utc_now(), entries.has_seen_one_time_job)
    text, loaded, there = "", None, 0
    try:
        with show_progress("checking the new config"):
            text, loaded = config_writer.write_new_config(draft, heading, check)
    except NothingToImport:
        problems.append(Problem(found.title, 0, "there is nothing to import in these files"))
    lost = strict and bool(draft.receipt.losses or draft.receipt.changed_meanings or problems)
    if into is not None and text and not lost:
        with show_progress(f"adding the entries to {into}"):
            there = _add_to_config(draft, into, check)
    report = _Report(found, draft, problems, loaded, there)
    if form == "json":
        click.echo(json.dumps(report.as_json(None if into or lost else text, into if text and not lost else None), indent=2))
    else:
        report.print(text if into is None and not lost else "", into if text and not lost else None)
    if lost:
        click.echo("heartbeatd config import: --strict: settings would be lost; nothing was written", err=True)
        return 2
    return 1 if problems or draft.receipt.changed_meanings else 0


def _read_files(paths: Sequence[str]) -> tuple[list[SourceFile], list[Problem]]:
    sources: list[SourceFile] = []
    problems: list[Problem] = []
    for path in dict.fromkeys(paths):
        try:
            with state_folder.open_regular(Path(path)) as file:
                content = state_folder.read_up_to(file, MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            problems.append(Problem(path, 0, f"cannot be read: {reason}"))
            continue
        source = read_source(path, content)
        sources.append(source)
        problems += source.problems
    return sources, problems


def _add_to_config(draft: Draft, path: Path, check: TimeCheck) -> int:
    """Add the entries to a config; the number of entries that it had already."""
    before = read_config(path)
    data = parse_config(path, before)
    there = config_writer.fit_into(draft, data, before.decode("utf-8-sig", "replace"))
    if not any(draft.data.values()):
        return there
    try:
        with report_refusal(path, before):
            text, _ = config_writer.insert_into_config(draft, path, before, check)
    except NothingToImport:
        raise InputError(f"{path}: none of the entries is valid in this config; nothing was written") from None
    write_config(path, before, text.encode())
    print_inherited(data, agents=bool(draft.data["agents"]), jobs=bool(draft.data["cron"]))
    return there


class _Report:
    """The result of an import, for people and for programs."""

    def __init__(
        self, system: ForeignSystem, draft: Draft, problems: Sequence[Problem], loaded: LoadedConfig | None, there: int
    ) -> None:
        self._system = system
        self._draft = draft
        self._problems = problems
        self._warnings = [str(warning) for warning in loaded.warnings] if loaded else []
        self._there = there

    def as_json(self, config: str | None, written: Path | None) -> dict[str, object]:
        found = self._draft.receipt
        return {
            "system": self._system.name,
            "receipt": [entry.as_json() for entry in found.entries.values()],
            "added": [{"key": each.target, "value": each.value, "why": each.why} for each in found.additions],
            "changed_meanings": [each.as_json() for each in found.changed_meanings],
            "problems": [{"file": each.file, "line": each.line, "message": each.message} for each in self._problems],
            "variables": self._draft.variables,
            "warnings": self._warnings,
            "losses": len(found.losses),
            "config": config or None,
            "written": str(written) if written else None,
        }

    def print(self, config: str, written: Path | None) -> None:
        """The config on standard output, if there is one, and the receipt on standard error; else the receipt alone."""
        if config:
            click.echo(config, nl=False)
        for line in import_receipt.format_receipt(self._draft.receipt):
            click.echo(line, err=written is None)
        for problem in self._problems:
            click.echo(str(problem), err=True)
        output.print_warnings(self._warnings)
        if self._draft.variables:
            names = ", ".join(f"{name} (was {one_line(key)})" if key else name for name, key in self._draft.variables.items())
            click.echo(f"set these environment variables: {names}", err=written is None)
        if written:
            self._print_written(written)

    def _print_written(self, path: Path) -> None:
        new = {section: len(entries_of) for section, entries_of in self._draft.data.items() if entries_of}
        added = ", ".join(
            format_count(number, {"agents": "agent", "cron": "job"}.get(section, section[:-1])) for section, number in new.items()
        )
        old = f", {self._there:,} already there" if self._there else ""
        click.echo(f"{path}: {added} added{old}" if new else f"nothing to add: {path} has all of this already")
        if new:
            click.echo(f"next: switch off the heartbeats and jobs in {self._system.title}, or both systems run them")
