"""Makes the commands that send a verb from the classes of the verbs: arguments, options and help. verb_work.py does their work.

The class of a verb needs pydantic, so its command is made when it is called, and its summary is read from the source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from scheduler.cli import options
from scheduler.cli.options import DurationParam, NumberParam, TimeParam
from scheduler.model.expected_error import InputError

if TYPE_CHECKING:
    from heartbeatd.verbs import Verb

VERBS = "heartbeatd.verbs"
CLASS = re.compile(r'^class (\w+)\([^\n]*\):\n    """(.+?)"""(.*?)\n\n\n', re.MULTILINE | re.DOTALL)  # docstring, and the rest
TYPES = {timedelta: DurationParam(), datetime: TimeParam(), int: click.INT}  # of options; any other value is a text


class VerbCommand(click.Command):
    """The command of a verb. Without a `name` it is called as the class."""

    def __init__(self, verb: str, name: str | None = None) -> None:
        super().__init__(name or verb.lower())
        self._verb = verb

    def get_short_help_str(self, limit: int = 45) -> str:
        return _split(_read_classes()[self._verb][0])[0]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return self.made().make_context(info_name, args, parent, **extra)

    def made(self) -> click.Command:
        """The command with its arguments, options and help."""
        verb = getattr(options.import_large(VERBS), self._verb)
        shape = _shape_of(verb)
        summary, details = _split(verb.__doc__)
        named = {parameter.name for parameter in shape.parameters}
        own = [_option_of(name, field) for name, field in verb.model_fields.items() if field.title and name not in named]

        def work(**given: object) -> object:
            keys = {str(option.name): given.pop(str(option.name)) for option in own}
            return options.call_work(shape.work, given, partial(_make, verb, keys))

        help_text = "\n\n".join(filter(None, (summary, shape.help, details)))
        made = click.command(self.name, help=help_text)(options.config_option(work))
        made.params[:0] = [*shape.parameters, *own]
        return made


def commands_of_section(title: str) -> list[VerbCommand]:
    """The commands of the verbs that are listed in a section of the help."""
    return [VerbCommand(name) for name, (_, rest) in _read_classes().items() if f'    section = "{title}"\n' in f"{rest}\n"]


@cache
def _read_classes() -> dict[str, tuple[str, str]]:
    """The docstring of each verb, and the rest of its class. An import would take three times as long as the whole help."""
    spec = find_spec(VERBS)
    assert spec is not None and spec.origin is not None
    return {name: (docstring, rest) for name, docstring, rest in CLASS.findall(Path(spec.origin).read_text("utf-8"))}


def _split(docstring: str) -> tuple[str, str]:
    """The first sentence of a docstring, and the others."""
    summary, _, details = " ".join(docstring.split()).partition(". ")
    return f"{summary.rstrip('.')}.", details


def _option_of(name: str, field: Any) -> click.Option:
    types = (field.annotation, *get_args(field.annotation))
    word = name.rstrip("_").replace("_", "-")
    kind = next((TYPES[each] for each in types if each in TYPES), None)
    return click.Option([f"--{word}", name], is_flag=bool in types or None, type=kind, help=field.title)


def _make(verb: type[Verb], keys: dict[str, object], **more: object) -> Verb:
    """The verb with the values of its options, and with `more` keys. Raises InputError."""
    from heartbeatd.operations import parse_operation

    given = {name.rstrip("_"): value for name, value in (keys | more).items() if value is not None and value is not False}
    try:
        return parse_operation(verb, given, is_query=True)
    except ValueError as error:
        raise InputError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Shape:
    """How a command names what its verb is for, and the function that sends the verb. `help` is about the arguments."""

    work: str
    parameters: tuple[click.Parameter, ...]
    help: str = ""


def _shape_of(verb: type[Verb]) -> Shape:
    from heartbeatd.operations import Concern
    from heartbeatd.verbs import VERB_ENDPOINTS

    if verb.__name__ in SPECIAL:
        return SPECIAL[verb.__name__]
    concerns = {each.concern for each in VERB_ENDPOINTS.values() if each.operation is verb}
    if Concern.MESSAGE in concerns:
        return MESSAGES
    if Concern.PROBLEM in concerns:
        return PROBLEMS
    return ENTRY_OR_ALL if Concern.ALL in concerns else ENTRY


def _name(*words: str, name: str = "name", **settings: Any) -> click.Argument:
    return click.Argument([name], shell_complete=options.complete_names(*words), **settings)


WAIT = click.Option(["--wait"], is_flag=True, help="Wait for the run to end. The exit code is 1 if it failed or was skipped.")
ENTRY = Shape("verb_work:send_for_entry", (_name(),))
ENTRY_OR_ALL = Shape(
    "verb_work:send_for_entry",
    (_name(required=False), click.Option(["--all", "everything"], is_flag=True, help="All agents and jobs.")),
)
MESSAGES = Shape(
    "verb_work:send_for_messages",
    (
        click.Argument(["ids"], metavar="[ID]...", type=NumberParam(), nargs=-1),
        click.Option(["--all", "everything"], is_flag=True, help="All undelivered messages."),
    ),
)
PROBLEMS = Shape(
    "verb_work:send_for_problem",
    (
        _name(name="problem", metavar="pNUMBER|NAME"),
        click.Argument(["key"], required=False),
    ),
    "Give the number of the problem, such as p12, or the agent or job that has it, and its key.",
)
SPECIAL = {
    "Wake": Shape("verb_work:wake", (_name("agent", name="agent"), WAIT)),
    "RunJob": Shape("verb_work:run_job", (_name("cron"), WAIT)),
    "Cancel": Shape(
        "verb_work:cancel",
        (click.Argument(["run"], type=NumberParam()),),
        "RUN is the number of the run in `heartbeatd runs`.",
    ),
    "Ping": Shape(
        "verb_work:ping",
        (click.Argument(["channel"], metavar="[CHANNEL]", required=False),),
        "If the URL of a channel contains {target}, give a target too, for example chat:4711. The exit code is 1 if a message was"
        " not delivered.",
    ),
    "Reload": Shape(
        "reload:reload_config",
        tuple(options.parameters_of(options.format_option, options.state_option)),
        "If the new config has errors, the exit code is 2.",
    ),
}
