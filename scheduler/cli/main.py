"""The entry point of the command line: lists the commands, finds the one that is called, and prints errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from scheduler import __version__
from scheduler.cli import options
from scheduler.cli.commands import SECTIONS, GroupWithExtras
from scheduler.config.file.message_parts import INSTEAD_OF_SHARDS, did_you_mean, join_with_or
from scheduler.model.expected_error import ExpectedError
from scheduler.system import extras

LAST_SECTION = "Set up"  # which lists the commands of extras too
MAX_SUMMARY = 200  # characters: summaries are printed whole
MAX_SUGGESTIONS = 3  # commands that begin with the typed word; with more of them the closest word is suggested


class Commands(GroupWithExtras):
    """All commands, in sections. Those of extras come last."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in FORMER_COMMANDS:
            ctx.fail(f"the command {args[0]!r} {FORMER_COMMANDS[args[0]]}")
        if args[0] not in self.commands and not args[0].startswith("-") and not extras.is_known("commands", args[0]):
            known = self.list_commands(ctx)
            matching = tuple(name for name in known if name.startswith(args[0]))
            meant = (
                f"; did you mean {join_with_or(matching)}?"
                if 0 < len(matching) <= MAX_SUGGESTIONS
                else did_you_mean(args[0], known)
            )
            ctx.fail(f"unknown command {args[0]!r}{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))
        sections = {title: [str(each.name) for each in section] for title, section in SECTIONS.items()}
        sections[LAST_SECTION] += [name for name in self.list_commands(ctx) if name not in self.commands]
        for title, names in sections.items():
            with formatter.section(title):
                found = [(name, command) for name in names if (command := self.get_command(ctx, name))]
                formatter.write_dl([(name.ljust(width), command.get_short_help_str(MAX_SUMMARY)) for name, command in found])


# What former versions had, and the rest of the sentence about it.
WITH_SHARDS = f"was removed together with shards; {INSTEAD_OF_SHARDS}"
FORMER_COMMANDS = {
    **{name: f"is now `heartbeatd files {name}`" for name in ("schema", "systemd", "compose", "grafana", "completion")},
    **{name: f"is now `heartbeatd config {name}`" for name in ("add", "set", "unset", "import")},
    **{name: f"is now `heartbeatd database {name}`" for name in ("backup", "migrate")},
    **{name: f"is now `heartbeatd problems {name}`" for name in ("ack", "unack", "close")},
    "conditions": "is now `heartbeatd problems`, and `heartbeatd problems close` closes a problem",
    "reshard": WITH_SHARDS,
}
FORMER_OPTIONS = {"--shard": WITH_SHARDS, "--drain": WITH_SHARDS, "--outcome": "is now --result", "--reason": "is now --why"}
FORMER_VARIABLE = "HEARTBEATD_SHARD"

DESCRIPTION = """Run LLM agents and cron jobs on schedule.

To begin, run `heartbeatd init DIR`, then `heartbeatd run` in that folder. `heartbeatd COMMAND --help` describes a command."""

commands = Commands(
    "heartbeatd",
    prefix="",
    commands=[each for section in SECTIONS.values() for each in section],
    help=DESCRIPTION,
    no_args_is_help=True,
)
commands.params.append(
    click.Option(
        ["-c", "--config"],
        type=click.Path(path_type=Path),
        default=options.DEFAULT_CONFIG,
        show_default=True,
        help="The config file.",
    )
)
options.color_option(commands)
click.version_option(__version__, message="%(prog)s %(version)s")(commands)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code.

    0 success, 1 the command failed or found a problem, 2 wrong usage or config, 130 interrupted. Expected errors are printed as
    lines on stderr.
    """
    if os.environ.get(FORMER_VARIABLE):
        return _print_error(f"heartbeatd: the variable {FORMER_VARIABLE} {WITH_SHARDS}", 2)
    try:
        code = commands.main(arguments, prog_name="heartbeatd", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        return _print_error(_format_usage_error(error), error.exit_code)
    except click.ClickException as error:
        return _print_error(f"heartbeatd: {error.format_message()}", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        return _discard_output()
    except Exception as error:
        described = _describe_error(error)
        if described is None:
            raise
        return _print_error(*described)
    return code or 0


def _print_error(message: str, code: int) -> int:
    for line in message.splitlines():
        click.echo(line, err=True)
    return code


def _format_usage_error(error: click.UsageError) -> str:
    where = error.ctx.command_path if error.ctx else "heartbeatd"
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.option_name in FORMER_OPTIONS:
        message = f"the option {error.option_name} {FORMER_OPTIONS[error.option_name]}"
    return f"heartbeatd: {message}; see `{where} --help`"


def _discard_output() -> int:
    """Redirect stdout to /dev/null: its reader is gone, and the interpreter would complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _describe_error(error: Exception) -> tuple[str, int] | None:
    """The message for an expected error of any part of the daemon, and the exit code; None for an unexpected error.

    The errors of a config are printed without a prefix, because editors and people jump to them by `file:line:column:`.
    """
    import sqlite3  # only a command that fails needs these

    from scheduler.config.file.diagnostics import ConfigError
    from scheduler.store.database import DatabaseFull, DatabaseUnavailable

    match error:
        case ConfigError():
            return str(error), 2
        case ExpectedError():
            return f"heartbeatd: {error}", error.exit_code
        case DatabaseFull():
            return f"heartbeatd: {error}; nothing was changed", 1
        case DatabaseUnavailable():
            return f"heartbeatd: the database could not be written: {error}; nothing was changed", 1
        case sqlite3.Error():
            return f"heartbeatd: the database could not be read: {error}; `heartbeatd doctor` checks it", 1
        case OSError():
            return f"heartbeatd: {error.filename or 'operating system'}: {error.strerror or error}", 1
        case _:
            return None
