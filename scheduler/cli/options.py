"""Options that several commands share, and the error for wrong input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import click

Decorated = Callable[..., Any]


class Mistake(click.ClickException):
    """Told in one line, without a hint at `--help`."""

    exit_code: ClassVar[int] = 2


def config(command: Decorated) -> Decorated:
    """`-c/--config`, as `path`; here, or before the command, or config.yaml."""
    option = click.option(
        "-c",
        "--config",
        "path",
        type=click.Path(path_type=Path),
        callback=_nearest,
        is_eager=True,  # times among the other arguments are read in its zone
        help="The config file.  [default: config.yaml]",
    )
    return option(command)


def state(command: Decorated) -> Decorated:
    """`--state`, as `state`: the database itself, whatever the config says; None if not given."""
    return click.option(
        "--state", type=click.Path(path_type=Path, dir_okay=False), help="The database; else the config's `state`."
    )(command)


def form(command: Decorated) -> Decorated:
    """`--format text|json`, as `form`."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="For people, or for programs.",
    )(command)


def _nearest(ctx: click.Context, _: click.Parameter, value: Path | None) -> Path:
    """Said here, or at a group on the way here, or before the command."""
    above: click.Context | None = ctx
    while value is None and above is not None:
        value = above.params.get("path") or above.params.get("config")
        above = above.parent
    return value or Path("config.yaml")
