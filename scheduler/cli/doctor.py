"""The command `doctor`: checks the installation, the config and the database, and prints advice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from heartbeat.runners import ProcessResult
from scheduler.cli import daemon_files, output
from scheduler.cli.daemon_files import DaemonFiles, Source
from scheduler.cli.progress import show_progress
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.settings.load import load_config
from scheduler.insight import installation_checks
from scheduler.insight.installation_checks import CheckResult
from scheduler.model.expected_error import ExpectedError
from scheduler.model.levels import level_of
from scheduler.store import boots, database
from scheduler.store.boots import Leader
from scheduler.system import extras
from scheduler.system.process import Children
from scheduler.work.run_extras import remote_executors

CRONTAB_TIMEOUT = timedelta(seconds=5)
MAX_CRONTAB_BYTES = 1024 * 1024  # the rest of a longer crontab is not read


def print_findings(source: Source) -> int:
    """Print the result of each check. Returns 1 if one is `bad`."""
    with show_progress("checking"):
        findings = list(_check_everything(source))
    lines = (line for each in findings for line in _format_result(each))
    output.print_answer([asdict(finding) for finding in findings], source.form, lines)
    return 1 if any(finding.level == "bad" for finding in findings) else 0


def _format_result(finding: CheckResult) -> list[str]:
    lines = output.wrap_text(f"{finding.level:<5} {finding.what:<9} {finding.text}", 16)
    return output.paint_label(lines, finding.level, level_of(finding.level))


def _check_everything(source: Source) -> Iterator[CheckResult]:
    yield from installation_checks.check_installation()
    yield from _check_commands()
    files = daemon_files.locate_files(source.config, source.state)
    environ: Mapping[str, str] = os.environ
    with suppress(ExpectedError):  # the check of the database reports it
        environ = daemon_files.daemon_environ(files)
    is_down = daemon_files.find_running_daemon(files) is None  # a running daemon has variables that this shell may lack
    yield from installation_checks.check_config(
        source.config, environ, output.utc_now(), read_user_crontab, resolve_secrets=is_down
    )
    yield from _check_queue(source.config)
    yield from installation_checks.check_folder(files.database.parent)
    yield from _check_database(files)


def _check_commands() -> Iterator[CheckResult]:
    """The commands of extras that cannot be imported."""
    for name in extras.find_names("commands"):
        try:
            extras.load_without_libraries("commands", name)
        except extras.UnusableExtra as error:
            yield CheckResult("warn", "command", str(error))


def _check_queue(path: Path) -> Iterator[CheckResult]:
    """Whether workers on other machines can execute runs. Errors of the config are reported elsewhere."""
    try:
        settings = load_config(path, os.environ).settings
    except ConfigError:
        return
    if settings.remote is not None:
        yield installation_checks.check_queue(remote_executors().ask_state(settings))


def read_user_crontab(program: str = "crontab") -> str:
    """The output of `crontab -l`; empty if the user has no crontab, or the host no cron."""
    process = asyncio.run(_run_program([program, "-l"]))
    return process.output.decode(errors="surrogateescape") if process.exit_code == 0 else ""


async def _run_program(argv: list[str]) -> ProcessResult:
    return await Children("doctor").start(argv, stdin=b"", env={}, cwd=Path("/"), keep=MAX_CRONTAB_BYTES, timeout=CRONTAB_TIMEOUT)


def _check_database(files: DaemonFiles) -> Iterator[CheckResult]:
    leader = None
    try:
        if files.server is None:
            database.check_database(files.database)
        with daemon_files.open_for_reading(files) as db:
            if not files.may_exist:
                yield CheckResult("ok", "database", f"{files.database} does not exist yet; `heartbeatd run` creates it")
            else:
                yield CheckResult("ok", "database", f"{files.shown} {'can be read' if files.server else 'is intact'}")
                yield from installation_checks.check_records(db, output.utc_now(), output.format_time, output.zone_name())
                leader = boots.find_leader(db)
    except ExpectedError as error:
        yield CheckResult("bad", "database", str(error))
    if files.database.exists():
        yield installation_checks.check_disk(files.database)
    yield _check_daemon(files, leader)


def _check_daemon(files: DaemonFiles, leader: Leader | None) -> CheckResult:
    up = daemon_files.find_running_daemon(files)
    if up is None:
        return CheckResult("warn", "daemon", "not running; `heartbeatd run` starts it")
    standby = daemon_files.describe_standby(files, up, leader)
    return CheckResult("ok", "daemon", output.describe_process(up, standby, output.utc_now()))
