"""What the config declares, for commands that only read: as far as it can be read, and without any secret."""

from __future__ import annotations

import os
from pathlib import Path

import click

from scheduler.cli.reach import Place
from scheduler.config.build import load
from scheduler.config.file.diagnostics import ConfigError
from scheduler.work import plan
from scheduler.work.plan import Plan


def declared(path: Path, state: Path | None, where: Place) -> Plan | None:
    """The plan of the config at `path`; None where `--state` was given, and where the config is broken but there is a database.

    Raises ConfigError where there is neither.
    """
    if state is not None:
        return None
    try:
        return plan.make(load.load(path, os.environ, resolve=False).settings)
    except ConfigError:
        if not where.database.exists():
            raise
        click.echo(f"{path} has faults, `heartbeatd check` lists them; this is what the database knows", err=True)
        return None
