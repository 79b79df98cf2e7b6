"""The entry point of the command line: finds and imports the command that is called, and prints errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from scheduler import __version__
from scheduler.cli import options
from scheduler.model.expected_error import ExpectedError
from scheduler.model.state_address import INSTEAD_OF_SHARDS

MAX_SUGGESTIONS = 3  # commands that begin with the typed word; with more of them the closest word is suggested


class LazyGroup(click.Group):
    """A group that imports a command only when it is called, so that `--help` imports none of them."""

    def __init__(self, name: str, sections: Mapping[str, Mapping[str, tuple[str, str]]], help: str) -> None:  # noqa: A002 (the name that click uses)
        super().__init__(name, help=help, no_args_is_help=True)
        self.sections = sections
        self.contents = {name: entry for section in sections.values() for name, entry in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.contents)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.contents:
            return None
        command: click.Command = options.import_place(self.contents[cmd_name][0])
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in FORMER_COMMANDS:
            ctx.fail(f"the command {args[0]!r} {FORMER_COMMANDS[args[0]]}")
        if args[0] not in self.contents and not args[0].startswith("-"):
            from scheduler.config.file.message_parts import (
                did_you_mean,
                join_with_or,  # for those who need it
            )

            matching = tuple(name for name in self.contents if name.startswith(args[0]))
            meant = (
                f"; did you mean {join_with_or(matching)}?"
                if 0 < len(matching) <= MAX_SUGGESTIONS
                else did_you_mean(args[0], self.contents)
            )
            ctx.fail(f"unknown command {args[0]!r}{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.contents))
        for title, section in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in section.items()])


SECTIONS = {
    "Look": {
        "status": ("commands:status", "Show what is due, what is running, and whether the daemon is up."),
        "explain": ("commands:explain", "Explain why agents and jobs ran or did not run."),
        "plan": ("commands:plan", "List the runs that are scheduled for the next hours or days."),
        "runs": ("commands:runs", "List runs and skipped runs, newest first."),
        "show": ("commands:show", "Show all details of one run."),
        "logs": ("commands:logs", "List the events of the daemon, or of one agent or job."),
        "report": ("commands:report", "Summarise the last days: runs, cost, alerts, skipped and missed runs."),
    },
    "Act": {
        "wake": ("commands:wake", "Run an agent now, outside of its schedule (a wake)."),
        "cancel": ("commands:cancel", "Cancel a run that is in progress or will be retried."),
        "pause": ("commands:pause", "Pause an agent or a job until it is resumed, or for a given time."),
        "resume": ("commands:resume", "Resume a paused agent or job."),
        "busy": ("commands:busy", "Lock an agent, run a command, and release the agent."),
        "cron": ("commands:cron", "Run a cron job now, show when an expression fires, import or export a crontab."),
    },
    "Messages": {
        "outbox": ("commands:outbox", "List undelivered messages, send them again, or drop them."),
        "conditions": ("commands:conditions", "List the conditions that agents have reported, or close one."),
        "ack": ("commands:ack", "Suppress the messages about an open condition until it gets worse or ends."),
        "unack": ("commands:unack", "Remove the acknowledgement of a condition."),
        "mute": ("commands:mute", "Suppress the messages of an agent or a job."),
        "unmute": ("commands:unmute", "Stop suppressing the messages of an agent or job."),
        "ping": ("commands:ping", "Send a test message through one channel, or through all channels."),
    },
    "Configure": {
        "check": (
            "commands:check",
            "Check the config, show all settings of one agent or job, or show what a reload would change.",
        ),
        "config": ("commands:config", "Add agents and jobs to the config file, change its keys, or import another config."),
        "reload": ("commands:reload", "Reload the config in the running daemon."),
    },
    "Set up": {
        "init": ("commands:init", "Create a config.yaml with one agent in a folder."),
        "run": ("commands:run", "Run the daemon in the foreground."),
        "worker": ("commands:worker", "Execute runs for a daemon on another machine."),
        "mcp": ("commands:mcp", "Run an MCP server on stdin and stdout, through which an agent can use the daemon."),
        "doctor": ("commands:doctor", "Check the installation, the config and the database, and print advice."),
        "database": ("commands:database_group", "Copy the database to a file, or to and from a PostgreSQL server."),
        "docs": ("commands:docs", "Print a page of the documentation, or list all pages."),
        "files": (
            "deployment_files:files",
            "Write the files that come with heartbeatd: for systemd, containers, Grafana, shells and editors.",
        ),
    },
}

# What former versions had, and the rest of the sentence about it.
WITH_SHARDS = f"was removed together with shards; {INSTEAD_OF_SHARDS}"
FORMER_COMMANDS = {
    **{name: f"is now `heartbeatd files {name}`" for name in ("schema", "systemd", "compose", "grafana", "completion")},
    **{name: f"is now `heartbeatd config {name}`" for name in ("add", "set", "unset", "import")},
    **{name: f"is now `heartbeatd database {name}`" for name in ("backup", "migrate")},
    "reshard": WITH_SHARDS,
}
FORMER_OPTIONS = ("--shard", "--drain")
FORMER_VARIABLE = "HEARTBEATD_SHARD"

DESCRIPTION = """Run LLM agents and cron jobs on schedule.

To begin, run `heartbeatd init DIR`, then `heartbeatd run` in that folder. `heartbeatd COMMAND --help` describes a command."""

commands = LazyGroup("heartbeatd", SECTIONS, help=DESCRIPTION)
commands.params.append(
    click.Option(
        ["-c", "--config"],
        type=click.Path(path_type=Path),
        default=Path("config.yaml"),
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
        message = f"the option {error.option_name} {WITH_SHARDS}"
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
