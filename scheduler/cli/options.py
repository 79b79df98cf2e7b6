"""Options that several commands share, and the error for wrong input."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

CommandFunction = Callable[..., Any]
Command = TypeVar("Command", bound=CommandFunction | click.Command)

COLOR_CHOICES = ("auto", "always", "never")


def import_place(place: str) -> Any:
    """Import a command or function of this package by its place, such as `status:print_status`."""
    module, _, name = place.partition(":")
    path = f"scheduler.cli.{module}"
    if path not in sys.modules:
        gc.disable()  # modules stay: searching their objects for garbage would be a fifth of the CPU time of `status`
        try:
            import_module(path)
        finally:
            gc.freeze()
            gc.enable()
    return getattr(sys.modules[path], name)


class InputError(click.ClickException):
    """Wrong input, printed as one line without a hint at `--help`."""

    exit_code: ClassVar[int] = 2


def config_option(command: CommandFunction) -> CommandFunction:
    """Add `-c/--config` to a command, as `path`. It can also be given before the command; the default is config.yaml."""
    option = click.option(
        "-c",
        "--config",
        "path",
        type=click.Path(path_type=Path),
        callback=_nearest_config,
        is_eager=True,  # other arguments are times in the zone of the config
        help="The config file.  [default: config.yaml]",
    )
    return option(command)


def state_option(command: CommandFunction) -> CommandFunction:
    """Add `--state` to a command, as `state`: the path of the database, or None to use the one in the config."""
    return click.option(
        "--state", type=click.Path(path_type=Path, dir_okay=False), help="The database file.  [default: `state` in the config]"
    )(command)


def format_option(command: CommandFunction) -> CommandFunction:
    """Add `--format text|json` to a command, as `form`."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Text for people, or JSON for programs.",
    )(command)


def color_option(command: Command) -> Command:
    """Add `--color` to a command. It can also be given before the command."""
    return click.option(
        "--color",
        type=click.Choice(COLOR_CHOICES),
        callback=_choose_colours,
        expose_value=False,
        is_eager=True,
        help="When to use colours. `auto` means: on a terminal, unless NO_COLOR is set.  [default: auto]",
    )(command)


def reading_options(command: CommandFunction) -> CommandFunction:
    """Add the options of a command that reads the database: `path`, `state`, `form` and colours."""
    return config_option(state_option(format_option(color_option(command))))


def _nearest_config(ctx: click.Context, _: click.Parameter, value: Path | None) -> Path:
    """The value of this command, of a group above it, or of the main command."""
    above: click.Context | None = ctx
    while value is None and above is not None:
        value = above.params.get("path") or above.params.get("config")
        above = above.parent
    return value or Path("config.yaml")


def _choose_colours(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    """Apply `--color`. Without it, the choice of the main command stays, and at first that of the environment.

    `NO_COLOR` (https://no-color.org) and a terminal without colours count as `never`.
    """
    if value is None and ctx.parent is not None:
        return value
    if value in ("always", "never"):
        ctx.color = value == "always"
    else:
        ctx.color = False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None
    return value
