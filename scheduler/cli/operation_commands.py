"""Lists the commands of verbs and questions. operation_options.py makes their options, and verb_work.py sends the verbs.

Such a class needs pydantic, so its command is made when it is called, and its summary is read from the source.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click

from scheduler.cli import options

MODULES = ("heartbeatd.verbs", "heartbeatd.questions")
CLASS = re.compile(r'^class (\w+)\([^\n]*\):\n    """(.+?)"""(.*?)\n\n\n', re.MULTILINE | re.DOTALL)  # docstring, and the rest
WORD_OF_CLASS = re.compile(r'^    (section|command) = "(\w+)"$', re.MULTILINE)


class OperationCommand(click.Command):
    """The command of a verb or of a question. Without a `name` it is called as the class."""

    def __init__(self, operation: str, name: str | None = None) -> None:
        super().__init__(name or operation.lower())
        self._operation = operation

    def get_short_help_str(self, limit: int = 45) -> str:
        return _split_sentences(_read_classes()[self._operation].docstring)[0]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        return self.made().make_context(info_name, args, parent, **extra)

    def made(self) -> click.Command:
        """The command with its arguments, options and help."""
        source = _read_classes()[self._operation]
        operation = getattr(options.import_large(source.module), self._operation)
        made: click.Command = options.import_place("operation_options:make_command")(
            self.name, operation, *_split_sentences(source.docstring)
        )
        return made


def commands_of_section(title: str) -> list[OperationCommand]:
    """The commands of the verbs that are listed in a section of the help, or by the command with this name."""
    found = []
    for operation, text in _read_classes().items():
        words = dict(WORD_OF_CLASS.findall(text.rest))
        if words.get("section") == title:
            found.append(OperationCommand(operation, words.get("command")))
    return found


class ClassText(NamedTuple):
    """The source of a class: its module, its docstring, and what follows."""

    module: str
    docstring: str
    rest: str


@cache
def _read_classes() -> dict[str, ClassText]:
    """The classes of verbs and questions. An import would take three times as long as the whole help."""
    found = {}
    for module in MODULES:
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None
        for name, docstring, rest in CLASS.findall(Path(spec.origin).read_text("utf-8")):
            found[name] = ClassText(module, docstring, rest)
    return found


def _split_sentences(docstring: str) -> tuple[str, str]:
    """The first sentence of a docstring, and the others."""
    summary, _, details = " ".join(docstring.split()).partition(". ")
    return f"{summary.rstrip('.')}.", details
