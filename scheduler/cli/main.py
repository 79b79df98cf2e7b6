"""The command line: which commands there are, and how what goes wrong is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import click

from scheduler import __version__

MAX_SUGGESTIONS = 3  # commands that begin with what was typed; more are no help


class LazyGroup(click.Group):
    """A group whose commands are imported only when they are called: `--help` costs the table of contents alone."""

    def __init__(self, name: str, contents: Mapping[str, tuple[str, str]], help: str) -> None:  # noqa: A002 (click's word)
        super().__init__(name, help=help, no_args_is_help=True)
        self.contents = contents

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.contents)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.contents:
            return None
        module, _, attribute = self.contents[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"scheduler.cli.{module}"), attribute)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.contents and not args[0].startswith("-"):
            from scheduler.config.file.message_parts import did_you_mean
            from scheduler.config.file.remedies import join_with_or  # for those who need it

            begun = tuple(name for name in self.contents if name.startswith(args[0]))
            meant = (
                f"; did you mean {join_with_or(begun)}?"
                if 0 < len(begun) <= MAX_SUGGESTIONS
                else did_you_mean(args[0], self.contents)
            )
            ctx.fail(f"no such command as {args[0]!r}{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.contents.items()])


COMMANDS = {
    "run": ("run:run", "Run the daemon in the foreground."),
    "check": ("check:check", "Check the config, or show what is in force for one entry."),
    "schema": ("check:schema", "Print the JSON schema of config.yaml."),
    "init": ("init:init", "Write a first config.yaml and its agent into a folder."),
    "status": ("status:status", "Say what is due, what runs, and whether the daemon is up."),
    "runs": ("list_runs:runs", "List what ran and what was skipped, the newest first."),
    "show": ("list_runs:show", "Show everything about one run."),
    "plan": ("show_plan:plan", "Say what fires in the next hours or days."),
    "explain": ("explain:explain", "Say why an agent or a job ran or did not run."),
    "cancel": ("cancel:cancel", "End a run that is in progress, or would go on."),
    "report": ("report:report", "Sum up the last days: runs, their cost, what was said, skipped and missed."),
    "outbox": ("manage_outbox:outbox", "List the messages that have not arrived; send them again, or drop them."),
    "wake": ("wake_agent:wake", "Wake an agent now."),
    "pause": ("pause:pause", "Pause an agent or a job, for a time or until resumed."),
    "resume": ("pause:resume", "Resume what was paused."),
    "busy": ("busy:busy", "Run a command while no beat speaks to an agent."),
    "reload": ("reload:reload", "Have the daemon take up the config as it is now."),
    "ping": ("ping:ping", "Send a test message through one channel, or through all that are declared."),
    "cron": ("cron:cron", "Run a cron job now, see when an expression fires, take over or write a crontab."),
    "doctor": ("doctor:doctor", "Look for whatever could go wrong, and say what to do."),
}

DESCRIPTION = """The daemon that wakes LLM agents.

Begin with `heartbeatd init DIR`, and `heartbeatd run` in that folder; `heartbeatd COMMAND --help` says more of each."""

commands = LazyGroup("heartbeatd", COMMANDS, help=DESCRIPTION)
commands.params.append(
    click.Option(
        ["-c", "--config"],
        type=click.Path(path_type=Path),
        default=Path("config.yaml"),
        show_default=True,
        help="The config file.",
    )
)
click.version_option(__version__, message="%(prog)s %(version)s")(commands)


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry one command out; gives its exit code.

    0 fine, 1 it ran and found trouble, 2 usage or config, 130 interrupted. Expected errors are lines on stderr.
    """
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
        told = _describe_error(error)
        if told is None:
            raise
        return _print_error(*told)
    return code or 0


def _print_error(message: str, code: int) -> int:
    for line in message.splitlines():
        click.echo(line, err=True)
    return code


def _format_usage_error(error: click.UsageError) -> str:
    where = error.ctx.command_path if error.ctx else "heartbeatd"
    message = error.format_message().rstrip(".")
    return f"heartbeatd: {message}; see `{where} --help`"


def _discard_output() -> int:
    """Nobody listens any more, and that is no error; the interpreter must not complain about it when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _describe_error(error: Exception) -> tuple[str, int] | None:
    """The lines to print for an expected error of any part of the daemon, and the exit code; None for an unexpected one.

    The faults of a config are printed without a prefix: editors and people jump to them by `file:line:column:`.
    """
    import sqlite3  # these imports cost 0.4 s of CPU: only a command that fails pays for them

    from scheduler.config.file.diagnostics import ConfigError
    from scheduler.engine.inbox import Refused
    from scheduler.store.database import DatabaseFull, DatabaseUnavailable, StoreError
    from scheduler.system.state_lock import AlreadyRunning, StateFolderError
    from scheduler.web.server import CannotListen

    match error:
        case ConfigError():
            return str(error), 2
        case Refused():
            return f"heartbeatd: {error}", 2 if error.code == "not_found" else 1
        case AlreadyRunning() | StateFolderError() | StoreError() | CannotListen():
            return f"heartbeatd: {error}", 1
        case DatabaseFull():
            return f"heartbeatd: {error}; nothing was changed", 1
        case DatabaseUnavailable():
            return f"heartbeatd: the database could not be written: {error}; nothing was changed", 1
        case sqlite3.Error():
            return f"heartbeatd: the database could not be read: {error}; `heartbeatd doctor` looks closer", 1
        case OSError():
            return f"heartbeatd: {error.filename or 'the system says'}: {error.strerror or error}", 1
        case _:
            return None
