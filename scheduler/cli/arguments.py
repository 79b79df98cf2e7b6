"""Types of arguments that several commands take: names of agents and jobs, durations, times, run numbers and reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import click

from scheduler.cli import output
from scheduler.cli.options import InputError
from scheduler.cli.output import KIND_BY_WORD
from scheduler.config.file.message_parts import did_you_mean, quote_value
from scheduler.config.keys.value_parsers import parse_positive_duration
from scheduler.model.day_names import parse_named_day
from scheduler.model.entry import Key
from scheduler.model.outcome import Failure, Kind, Reason, Skip
from scheduler.store.database import parse_row_id

Completion = Callable[[click.Context, click.Parameter, str], list[str]]

ZONE_RULE = "A time without an offset is in the config's top-level timezone."
REASONS = tuple(dict.fromkeys(str(word) for words in (Skip, Reason, Failure) for word in words))


class DurationParam(click.ParamType[timedelta]):
    """A duration in the format of the config: 90s, 30m, 1h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return parse_positive_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class NumberParam(click.ParamType[int]):
    """The number of a run or a message."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = value if isinstance(value, int) else parse_row_id(value)
        return number or self.fail(f"{value!r} is not a number such as 12", param, ctx)


class TimeParam(click.ParamType[datetime]):
    """A time in a format of `parse_time`, in the zone of the config."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_time(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ReasonParam(click.ParamType[str]):
    """The reason of a skipped or failed run."""

    name = "reason"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in REASONS:
            self.fail(f"unknown reason {quote_value(value)}{did_you_mean(value, REASONS)}", param, ctx)
        return str(value)


def parse_time(text: str, zone: tzinfo | None = None) -> datetime:
    """Parse a time such as `2026-11-20` or `2026-11-20T03:00`, and return it in UTC.

    A time without an offset or Z is in `zone`, or in the zone of all printed times if that is None. `2h` is two hours ago.
    `today` and `yesterday` are the beginning of that day. Raises ValueError with a message of one line.
    """
    try:
        return output.utc_now() - parse_positive_duration(text)
    except ValueError:
        pass
    zone = zone or output.display_zone()
    try:
        parsed = datetime.fromisoformat(str(parse_named_day(text, output.utc_now().astimezone(zone)) or text))
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        wanted = "write 2026-11-20T03:00, 2026-11-20T03:00:00Z, today, yesterday, or 2h for two hours ago"
        raise ValueError(f"{text!r} is not a time; {wanted}") from None


def complete_names(*kinds: Kind) -> Completion:
    """A function with which a shell completes the names of agents or jobs from the config; both if no kind is given.

    If an agent and a job have the same name, it is completed with its kind: agent/NAME.
    """

    def complete(ctx: click.Context, _: click.Parameter, typed: str) -> list[str]:
        from scheduler.config.file.lenient_reading import read_entry_names  # only a shell needs it

        sections = read_entry_names(ctx.params.get("path") or Path("config.yaml"))
        names = {Kind.HEARTBEAT: sections["agents"], Kind.CRON: sections["cron"]}
        wanted = [(kind, name) for kind in kinds or names for name in names[kind]]
        if "/" in typed:
            return [label for kind, name in wanted if (label := output.entry_label(kind, name)).startswith(typed)]
        times = Counter(name for _, name in wanted)
        plain = (name if times[name] == 1 else output.entry_label(kind, name) for kind, name in wanted)
        return [name for name in plain if name.startswith(typed)] or [
            output.entry_label(kind, name) for kind, name in wanted if times[name] > 1 and name.startswith(typed)
        ]

    return complete


def resolve_entry(text: str, is_known: Callable[[Key], bool], list_keys: Callable[[], Iterable[Key]]) -> Key:
    """The entry with the name `text`, which may have the prefix agent/ or cron/.

    Raises InputError if no entry has this name, or if an agent and a job have it.
    """
    word, slash, name = text.partition("/")
    kinds = list(KIND_BY_WORD.values())
    if slash:
        if word not in KIND_BY_WORD:
            raise InputError(f"{text!r} is neither agent/NAME nor cron/NAME")
        kinds, text = [KIND_BY_WORD[word]], name
    found = [(kind, text) for kind in kinds if is_known((kind, text))]
    if len(found) > 1:
        raise InputError(f"{text!r} is the name of an agent and of a cron job; write agent/{text} or cron/{text}")
    if not found:
        noun = "agent or cron job" if len(kinds) > 1 else kinds[0].noun
        raise InputError(f"no {noun} {text!r}{suggest_entry(text, [name for kind, name in list_keys() if kind in kinds])}")
    return found[0]


def suggest_entry(name: str, known: Collection[str]) -> str:
    """The end of an error message for an unknown name: a similar name, or how to list all names."""
    return did_you_mean(name, known) or "; `heartbeatd status` lists them"


def name_of_kind(kind: Kind, text: str, advice: str) -> str:
    """The name of an agent, or of a job, without its prefix.

    Raises InputError with `advice` if the prefix is that of the other kind.
    """
    word, slash, name = text.partition("/")
    if not slash:
        return text
    if KIND_BY_WORD.get(word) is not kind:
        raise InputError(f"{text!r} is not {kind.section}/NAME; {advice}")
    return name
