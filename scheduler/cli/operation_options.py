"""Gives the commands of verbs and questions their arguments, options and help, and makes the verb or question of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, get_args

import click

from heartbeatd.operations import Concern, Operation, choices_of, parse_operation
from heartbeatd.verbs import VERB_ENDPOINTS
from scheduler.cli import options
from scheduler.cli.options import (
    DURATION,
    FILE,
    NUMBER,
    TIME,
    TIME_AHEAD,
    TIME_AHEAD_RULE,
    TIME_RULE,
    CommandFunction,
    ParsedParam,
    WordOption,
    WordParam,
)
from scheduler.model.expected_error import InputError

TIME_RULES: Mapping[object, str] = {TIME: TIME_RULE, TIME_AHEAD: TIME_AHEAD_RULE}
TYPES = {timedelta: DURATION, datetime: TIME, int: click.INT}  # of options; any other value is a text

Made = TypeVar("Made", bound=Operation, covariant=True)


def make_command(name: str, operation: type[Operation], summary: str, details: str) -> click.Command:
    """The command of an operation, with its arguments, options and help. What it does: `summary`, and further `details`."""
    shape = _shape_of(operation)
    named = {each.name for each in shape.arguments}
    titled = [name for name, key in operation.model_fields.items() if key.title and name not in named]
    own = [_option_of(operation, name, shape.types.get(name)) for name in titled]

    def work(**given: Any) -> object:
        return options.call_work(shape.work, given, Make(operation, {name: given.pop(name) for name in titled}))

    help_text = "\n\n".join(filter(None, (summary, shape.help, details)))
    made = click.command(name, help=help_text)(work)
    made.params = [*shape.arguments, *own, *shape.more_options, *options.parameters_of(shape.shared)]
    return made


def _option_of(operation: type[Operation], name: str, chosen: click.ParamType[object] | None) -> click.Option:
    """The option for a field of an operation, of the `chosen` type or that of the field."""
    key = operation.model_fields[name]
    parts = (key.annotation, *get_args(key.annotation))
    types = [inner for each in parts for inner in (each, *get_args(each)[:1])]  # the second is that of an Annotated
    words = choices_of(key)
    kind = chosen or (click.Choice(words) if words else next((TYPES[each] for each in types if each in TYPES), None))
    help_text = f"{key.title} {TIME_RULES[kind]}" if kind in TIME_RULES else key.title
    of = WordOption if isinstance(kind, WordParam) else click.Option
    is_flag = bool in types or None
    return of([f"--{name.rstrip('_').replace('_', '-')}", name], is_flag=is_flag, type=kind, default=None, help=help_text)


@dataclass(frozen=True, slots=True)
class Make(Generic[Made]):
    """Makes the operation of a command from the values of its options."""

    operation: type[Made]
    keys: Mapping[str, object]  # None or False: not given

    def __call__(self, **more: object) -> Made:
        """The operation, with `more` keys. Raises InputError."""
        keys = {**self.keys, **more}
        given = {name.rstrip("_"): value for name, value in keys.items() if value is not None and value is not False}
        try:
            return parse_operation(self.operation, given, is_query=True)
        except ValueError as error:
            raise InputError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Shape:
    """What a command has beside the options of its operation, and the function that does its work.

    `help` is about the `arguments`. `shared` adds options that many commands have. `types` are those of options whose words the
    field does not list, or whose texts the work itself parses.
    """

    work: str
    arguments: tuple[click.Argument, ...] = ()
    more_options: tuple[click.Option, ...] = ()
    help: str = ""
    shared: Callable[[CommandFunction], CommandFunction] = options.config_option
    types: Mapping[str, click.ParamType[object]] = field(default_factory=dict)


def _shape_of(operation: type[Operation]) -> Shape:
    if operation.__name__ in SPECIAL:
        return SPECIAL[operation.__name__]
    concerns = {each.concern for each in VERB_ENDPOINTS.values() if each.operation is operation}
    if Concern.MESSAGE in concerns:
        return MESSAGES
    if Concern.PROBLEM in concerns:
        return PROBLEMS
    return ENTRY_OR_ALL if Concern.ALL in concerns else ENTRY


def _name(*words: str, name: str = "name", **settings: Any) -> click.Argument:
    return click.Argument([name], shell_complete=options.complete_names(*words), **settings)


def _flag(help_text: str, *names: str) -> click.Option:
    return click.Option(names, is_flag=True, help=help_text)


WAIT = _flag("Wait for the run to end. The exit code is 1 if it failed or was skipped, or if the daemon is down.", "--wait")
ENTRY = Shape("verb_work:send_for_entry", (_name(),))
ENTRY_OR_ALL = Shape(
    "verb_work:send_for_entry", (_name(required=False),), (_flag("All agents and jobs.", "--all", "everything"),)
)
MESSAGES = Shape(
    "verb_work:send_for_messages",
    (click.Argument(["ids"], metavar="[ID]...", type=NUMBER, nargs=-1),),
    (_flag("All undelivered messages.", "--all", "everything"),),
)
PROBLEMS = Shape(
    "verb_work:send_for_problem",
    (_name(name="problem", metavar="pNUMBER|NAME"), click.Argument(["key"], required=False)),
    help="Give the number of the problem, such as p12, or the agent or job that has it, and its key.",
)
SPECIAL = {
    "Wake": Shape("verb_work:wake", (_name("agent", name="agent"),), (WAIT,), types={"at": TIME_AHEAD}),
    "CancelWake": Shape("verb_work:send_for_number", (click.Argument(["number"], metavar="WAKE", type=NUMBER),)),
    "RunJob": Shape("verb_work:run_job", (_name("cron"),), (WAIT,)),
    "Ask": Shape(
        "verb_work:ask",
        (click.Argument(["text"]),),
        (click.Option(["--run"], type=NUMBER, help="The run that asks.  [default: the one that has started the command]"),),
        types={"options": click.STRING},
    ),
    "AnswerQuestion": Shape(
        "verb_work:send_for_number", (click.Argument(["number"], metavar="QUESTION", type=NUMBER), click.Argument(["answer"]))
    ),
    "Cancel": Shape(
        "verb_work:cancel", (click.Argument(["run"], type=NUMBER),), help="RUN is the number of the run in `heartbeatd runs`."
    ),
    "Ping": Shape(
        "verb_work:ping",
        (click.Argument(["channel"], metavar="[CHANNEL]", required=False),),
        help="If the URL of a channel contains {target}, give a target too, for example chat:4711. The exit code is 1 if a"
        " message was not delivered.",
    ),
    "Reload": Shape(
        "reload:reload_config",
        help="If the new config has errors, the exit code is 2.",
        shared=lambda command: options.config_option(options.state_option(options.format_option(command))),
    ),
    "ListRuns": Shape(
        "listings:print_runs",
        (_name(required=False),),
        (options.limit_option("runs"),),
        "The column WHY shows why a run was skipped, failed or sent nothing, and the delivery state of its messages.",
        options.reading_options,
        {
            "result": WordParam("result", "scheduler.model.outcome:Outcome", "running"),
            "why": WordParam("word", "scheduler.model.outcome:WHY_WORDS"),
        },
    ),
    "Explain": Shape(
        "explain:print_explanation",
        (_name(required=False),),
        help="""Without NAME, the output covers all agents and jobs of a day, by default today. Agents and jobs that were silent,
or whose scheduled runs were partly skipped or failed, come first, each with the cause and a command that shows details.

With NAME and without --at, --on and --since, the output shows the last scheduled run, the checks that would block a run now, and
the next planned time. Times are then in the time zone of the agent or job, also those that are given without an offset.""",
        shared=options.reading_options,
        types={"at": ParsedParam("time", str, str), "on": ParsedParam("day", str, str), "since": ParsedParam("time", str, str)},
    ),
    "GetPlan": Shape(
        "show_plan:print_plan",
        (_name(required=False),),
        (
            _flag("Instead, show the maximum cost of one day, for each agent and job and in total.", "--worst"),
            click.Option(
                ["--diff", "other"],
                type=FILE,
                metavar="FILE",
                help="Instead, show what the config FILE would change: keys, next runs, runs a week, and maximum cost of a day."
                " With NAME, only for this agent or job. With --for, runs are counted for this time instead of a week.",
            ),
        ),
        """With NAME, each run of that agent or job is on its own line. The times of agents and jobs with an interval depend on a
start time that is stored in the database. Without a database, the plan assumes that the daemon starts now for the first time.
Days and local times are in the time zone of each agent or job.""",
        options.reading_options,
    ),
}
