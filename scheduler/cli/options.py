"""Options, types of arguments and names of agents and jobs that several commands take."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta, tzinfo
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.config.file.message_parts import did_you_mean, join_with_or, quote_value
from scheduler.model.expected_error import InputError

if TYPE_CHECKING:
    import sqlite3

    from click.shell_completion import CompletionItem

    from scheduler.model.outcome import Key

CommandFunction = Callable[..., object]
Parsed = TypeVar("Parsed")
Completion = Callable[[click.Context, click.Parameter, str], list[str]]

ZONE_RULE = "A time without an offset is in the config's top-level timezone."
TIME_RULE = f"Write 2026-11-20T03:00, yesterday, or 2h for two hours ago. {ZONE_RULE}"
TIME_AHEAD_RULE = f"Write 2026-11-20T03:00. {ZONE_RULE}"
MAX_LISTED = 10  # words that an error lists
COLOR_CHOICES = ("auto", "always", "never")
DEFAULT_CONFIG = Path("config.yaml")
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


def import_place(place: str) -> Any:
    """Import a command or function by its place: `status:print_status` in this package, or `package.module:name`."""
    module, _, name = place.partition(":")
    return getattr(import_large(module if "." in module else f"scheduler.cli.{module}"), name)


def import_large(path: str) -> Any:
    """Import a module that takes long."""
    if path not in sys.modules:
        gc.disable()  # modules stay: searching their objects for garbage would be a fifth of the CPU time of `status`
        try:
            import_module(path)
        finally:
            gc.freeze()
            gc.enable()
    return sys.modules[path]


def call_work(place: str, given: dict[str, Any], *more: object) -> object:
    """Call the function at a place with `more` and the values of the options. What it reads becomes one value, `source`."""
    if given.keys() >= {"path", "state", "form"}:
        from scheduler.cli.daemon_files import Source

        given["source"] = Source(given.pop("path"), given.pop("state"), given.pop("form"))
    work: Callable[..., object] = import_place(place)
    return work(*more, **given)


def _nearest_config(ctx: click.Context, _: click.Parameter, value: Path | None) -> Path:
    """The value of this command, of a group above it, or of the main command."""
    above: click.Context | None = ctx
    while value is None and above is not None:
        value = above.params.get("path") or above.params.get("config")
        above = above.parent
    return value or DEFAULT_CONFIG


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


# As `path`. It can also be given before the command.
config_option = click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path),
    callback=_nearest_config,
    is_eager=True,  # other arguments are times in the zone of the config
    help="The config file.  [default: config.yaml]",
)
# None: the database in the config.
state_option = click.option("--state", type=FILE, help="The database file.  [default: `state` in the config]")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show the change without writing it.")
# It can also be given before the command.
color_option = click.option(
    "--color",
    type=click.Choice(COLOR_CHOICES),
    callback=_choose_colours,
    expose_value=False,
    is_eager=True,
    help="When to use colours. `auto` means: on a terminal, unless NO_COLOR is set.  [default: auto]",
)


def format_option(
    command: CommandFunction, flag: str = "--format", of_what: str = "Text for people, or JSON for programs."
) -> CommandFunction:
    """Add `--format text|json` to a command, as `form`."""
    kind = click.Choice(["text", "json"])
    return click.option(flag, "form", type=kind, default="text", show_default=True, help=of_what)(command)


def limit_option(what: str) -> click.Option:
    """The option `--limit` of a list."""
    most = click.IntRange(1, 100_000)
    return click.Option(["--limit"], type=most, default=20, show_default=True, help=f"Maximum number of {what}.")


def parameters_of(*decorators: Callable[[CommandFunction], CommandFunction]) -> list[click.Parameter]:
    """The parameters that these functions add to a command."""

    def command() -> None: ...

    for decorate in decorators:
        decorate(command)
    return click.command()(command).params


def reading_options(command: CommandFunction) -> CommandFunction:
    """Add the options of a command that reads the database, which gets them as `source`, and the choice of colours."""
    return config_option(state_option(format_option(color_option(command))))


class ParsedParam(click.ParamType[Parsed]):
    """A value of the type `of`, which `parse` makes from a text. Its ValueError is the message."""

    def __init__(self, name: str, of: type[Parsed], parse: Callable[[str], Parsed]) -> None:
        self.name = name
        self._of = of
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Parsed:
        if isinstance(value, self._of):
            return value
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _parse_duration(text: str) -> timedelta:
    from scheduler.config.keys.value_types import parse_positive_duration

    return parse_positive_duration(text)


def _parse_number(text: str) -> int:
    from scheduler.store.database import parse_row_id

    if number := parse_row_id(text):
        return number
    raise ValueError(f"{text!r} is not a number such as 12")


DURATION = ParsedParam("duration", timedelta, _parse_duration)  # in the format of the config: 90s, 30m, 1h30m
NUMBER = ParsedParam("number", int, _parse_number)  # of a run or a message
TIME = ParsedParam("time", datetime, lambda text: parse_time(text))
TIME_AHEAD = ParsedParam("time", datetime, lambda text: parse_time_ahead(text))


class WordParam(click.ParamType[str]):
    """One of the words of an enum or a constant, such as `scheduler.model.outcome:WHY_WORDS`, or one of `more` words.

    The enum or constant is imported when its words are needed.
    """

    def __init__(self, name: str, words: str, *more: str) -> None:
        self.name = name
        self._place = words
        self._more = more

    def words(self) -> tuple[str, ...]:
        module, _, name = self._place.partition(":")
        return (*map(str, getattr(import_module(module), name)), *self._more)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        words, value = self.words(), str(value)
        if value not in words:
            instead = did_you_mean(value, words) or (f"; write {join_with_or(words)}" if len(words) <= MAX_LISTED else "")
            self.fail(f"unknown {self.name} {quote_value(value)}{instead}", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # the help does not need it

        return [CompletionItem(word) for word in self.words() if word.startswith(incomplete)]


class WordOption(click.Option):
    """An option with a WordParam, whose words are listed in its help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        assert isinstance(self.type, WordParam) and self.help
        found = super().get_help_record(ctx)
        return found and (found[0], found[1].replace(self.help, f"{self.help}: {', '.join(self.type.words())}.", 1))


def parse_time(text: str, zone: tzinfo | None = None) -> datetime:
    """Parse a time such as `2026-11-20` or `2026-11-20T03:00`, and return it in UTC.

    A time without an offset or Z is in `zone`, or in the zone of all printed times if that is None. `2h` is two hours ago.
    `today` and `yesterday` are the beginning of that day. Raises ValueError with a message of one line.
    """
    from scheduler.cli import output
    from scheduler.config.keys.value_types import parse_positive_duration
    from scheduler.model.local_days import parse_named_day

    try:
        return output.utc_now() - parse_positive_duration(text)
    except ValueError:
        pass
    zone = zone or output.display_zone()
    try:
        return _parse_moment(str(parse_named_day(text, output.utc_now().astimezone(zone)) or text), zone)
    except (ValueError, OverflowError):
        wanted = "write 2026-11-20T03:00, 2026-11-20T03:00:00Z, today, yesterday, or 2h for two hours ago"
        raise ValueError(f"{text!r} is not a time; {wanted}") from None


def parse_time_ahead(text: str) -> datetime:
    """Parse a time that has yet to come, in UTC. Days and spans that `parse_time` looks for in the past are no such times."""
    from scheduler.cli import output

    try:
        return _parse_moment(text, output.display_zone())
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time; write 2026-11-20T03:00 or 2026-11-20T03:00:00Z") from None


def _parse_moment(text: str, zone: tzinfo | None) -> datetime:
    parsed = datetime.fromisoformat(text)
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)).astimezone(UTC)


def complete_names(*words: str) -> Completion:
    """A function with which a shell completes the names of agents (`agent`) or jobs (`cron`) from the config; by default both.

    If an agent and a job have the same name, it is completed with its kind: agent/NAME.
    """

    def complete(ctx: click.Context, _: click.Parameter, typed: str) -> list[str]:
        from scheduler.config.file.lenient_reading import read_names
        from scheduler.model.outcome import Kind

        found = read_names(ctx.params.get("path") or DEFAULT_CONFIG)
        kinds = [kind for kind in Kind if not words or kind.word in words]
        labels = {kind.label_of(name): name for kind in kinds for name in found[kind.section]}
        times = Counter(labels.values())
        if "/" in typed:
            return [label for label in labels if label.startswith(typed)]
        plain = (name if times[name] == 1 else label for label, name in labels.items())
        return [each for each in plain if each.startswith(typed)] or [
            label for label, name in labels.items() if times[name] > 1 and name.startswith(typed)
        ]

    return complete


def resolve_entry(text: str, known: Collection[Key]) -> Key:
    """The known entry with the name `text`, which may have the prefix agent/ or cron/.

    Raises InputError if no entry has this name, or if an agent and a job have it.
    """
    from scheduler.model.outcome import Kind

    word, slash, name = text.partition("/")
    kinds = list(Kind)
    if slash:
        kinds = [kind for kind in Kind if kind.word == word]
        if not kinds:
            raise InputError(f"{text!r} is neither agent/NAME nor cron/NAME")
        text = name
    found = [(kind, text) for kind in kinds if (kind, text) in known]
    if len(found) > 1:
        raise InputError(f"{text!r} is the name of an agent and of a cron job; write agent/{text} or cron/{text}")
    if not found:
        noun = "agent or cron job" if len(kinds) > 1 else kinds[0].noun
        raise InputError(f"no {noun} {text!r}{suggest_entry(text, [name for kind, name in known if kind in kinds])}")
    return found[0]


def resolve_recorded(text: str, db: sqlite3.Connection) -> Key:
    """As `resolve_entry`, of the entries in a database."""
    from scheduler.store.entries import states_and_schedules

    return resolve_entry(text, states_and_schedules(db))


def suggest_entry(name: str, known: Collection[str]) -> str:
    """The end of an error message for an unknown name: a similar name, or how to list all names."""
    return did_you_mean(name, known) or "; `heartbeatd status` lists them"


def name_of_kind(wanted: str, text: str, advice: str) -> str:
    """The name of an agent (`agent`), or of a job (`cron`), without its prefix.

    Raises InputError if the name is empty, or with `advice` if the prefix is that of the other kind.
    """
    word, _, name = text.partition("/") if "/" in text else (wanted, "", text)
    if not name:
        raise InputError(f"{text!r} is not {wanted}/NAME; `heartbeatd status` lists the names")
    if word != wanted:
        raise InputError(f"{text!r} is not {wanted}/NAME; {advice}")
    return name
