"""Writes the man page from the help texts of all commands: `python packaging/manual.py > packaging/heartbeatd.1`.

click-man would write a page for each command. One page with all commands can be searched.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from scheduler.cli.main import commands
from scheduler.cli.operation_commands import OperationCommand

WIDTH = 100  # of the usage lines. All other text is filled by the program that shows the page

EXIT_CODES = (
    ("0", "success"),
    ("1", "the command failed or found a problem"),
    ("2", "wrong usage or an invalid config"),
    ("130", "interrupted"),
)
FILES = (
    ("config.yaml", "The config, in the current folder. `-c` selects another file."),
    (
        "state/heartbeatd.db",
        "The database, next to the config. `state` in the config selects another file or a PostgreSQL server.",
    ),
)


def manual() -> str:
    """The man page heartbeatd(1) in the language of man(7)."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    context = _context(commands, "heartbeatd", None)
    yield '.TH HEARTBEATD 1 "" "heartbeatd" "User Commands"'
    yield ".SH NAME"
    yield "heartbeatd \\- run LLM agents and cron jobs on schedule"
    yield ".SH SYNOPSIS"
    yield "\\fBheartbeatd\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]"
    yield ".SH DESCRIPTION"
    yield from _paragraphs(commands.help or "")
    yield "The command \\fBheartbeatd docs\\fR prints the documentation."
    yield ".SH OPTIONS"
    yield from _options(commands, context)
    yield ".SH COMMANDS"
    yield from _commands(commands, context)
    for title, items in (("EXIT STATUS", EXIT_CODES), ("FILES", FILES)):
        yield f".SH {title}"
        for term, text in items:
            yield from (".TP", f"\\fB{_escape(term)}\\fR", _escape(text))


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        command = command.made() if isinstance(command, OperationCommand) else command
        inner = _context(command, name, context)
        if isinstance(command, click.Group) and not command.invoke_without_command:
            yield from _commands(command, inner)
            continue
        usage = " ".join([inner.command_path, *command.collect_usage_pieces(inner)])
        yield f".SS {_escape(usage)}"
        yield from _paragraphs(command.help or "")
        yield from _options(command, inner)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and "--help" not in parameter.opts:
            yield from (".TP", f"\\fB{_escape(record[0])}\\fR", _escape(" ".join(record[1].split())))


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text, without the marks of click that keep line breaks."""
    for paragraph in text.replace("\b", "").split("\n\n"):
        if paragraph.strip():
            yield from (".PP", _escape(" ".join(paragraph.split())))


def _escape(text: str) -> str:
    """The text without a meaning for roff: backslashes, hyphens, and a dot or quote at the beginning of a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in {".", "'"} else escaped


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    return click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH)


if __name__ == "__main__":
    click.echo(manual(), nl=False)
