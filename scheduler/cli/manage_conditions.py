"""The command `conditions`: lists the conditions that agents have reported, or closes one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click

from heartbeat.findings import comparable_key
from heartbeatd.answers import Condition, ConditionReport
from scheduler.cli import arguments, daemon_files, options
from scheduler.cli.options import InputError
from scheduler.cli.output import format_detailed_table, format_short_time, format_target, utc_now, zone_name
from scheduler.config.file.message_parts import did_you_mean, join_with_or
from scheduler.insight.reason_texts import ENDED_BY_TEXTS
from scheduler.model.condition import ReportKind
from scheduler.model.entry import Key
from scheduler.store import entries
from scheduler.store.conditions import list_conditions

COLUMNS = ("AGENT", "KEY", "SEVERITY", "SINCE", "LAST SEEN", "REPORTED", "TO")
MAX_CHOICES = 5  # agents that an error message lists
MAX_KEY_WIDTH = 18  # a longer key is printed on a line of its own, because the table may have to cut it
NO_CONDITIONS_ADVICE = "only agents have conditions"


class ListOrSubcommand(click.Group):
    """A group that lists if its first word is not a subcommand. This word is then passed to its function as `name`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The word may come before or after options. Without the word, `name` is None."""
        ctx.params["name"] = None
        while (words := self._words_after_options(ctx, args)) and words[0] not in self.commands:
            if ctx.params["name"] is not None:
                ctx.fail(f"unexpected argument {words[0]!r}")
            ctx.params["name"] = words[0]
            args = [*args[: len(args) - len(words)], *words[1:]]
        return super().parse_args(ctx, args)

    def _words_after_options(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, words, _ = self.make_parser(ctx).parse_args(list(args))
        return words


@click.group(cls=ListOrSubcommand, invoke_without_command=True, subcommand_metavar="[AGENT]")
@click.option("--all", "closed", is_flag=True, help="Also list closed conditions that are still in the database.")
@options.config_option
@options.state_option
@options.format_option
@click.pass_context
def conditions(ctx: click.Context, name: str | None, closed: bool, path: Path, state: Path | None, form: str) -> None:
    """List the conditions that agents have reported, or close one.

    A condition is a problem that an agent found and reported with a key, such as `disk:/var`. It is open until the agent reports
    its end or no longer mentions it. The most severe conditions of each agent come first.
    """
    if ctx.invoked_subcommand is not None:
        if name is not None:
            ctx.fail(f"unexpected argument {name!r}")
        return
    with daemon_files.open_for_reading(daemon_files.locate_files_or_warn(path, state)) as db:
        names = None if name is None else [_resolve_agent(db, name)]
        found = list_conditions(db, names, closed=closed) if db else []
    if form == "json":
        click.echo(json.dumps([each.as_data() for each in found], indent=2))
    elif found:
        click.echo(_conditions_table(found, utc_now()))
        click.echo(f"times in {zone_name()}")
    else:
        click.echo("there are no conditions" if closed else "there are no open conditions")


@conditions.command(short_help="Close an open condition.")
@click.argument("key")
@click.option(
    "--agent",
    metavar="AGENT",
    shell_complete=arguments.complete_names("agent"),
    help="The agent, if several agents have an open condition with this key.",
)
@options.config_option
def close(key: str, agent: str | None, path: Path) -> None:
    """Close an open condition without a message.

    Case and blanks in KEY are ignored. If the agent mentions the condition again, it is opened again and reported as new.
    If the daemon is down, the condition is closed in the database.
    """
    from heartbeatd.verbs import CloseProblem
    from scheduler.cli.daemon_client import open_client  # half a second of imports that the list does not need

    if agent is not None:
        name = arguments.name_of_kind("agent", agent, NO_CONDITIONS_ADVICE)
    else:
        with daemon_files.open_for_reading(daemon_files.locate_files_or_warn(path)) as db:
            name = find_agent_with_condition(list_conditions(db) if db else [], key)
    closed = open_client(path).perform(CloseProblem(agent=name, key=key)).key
    click.echo(f"the condition {closed} of agent/{name} is closed")


def find_agent_with_condition(found: list[Condition], key: str) -> str:
    """The only agent that has an open condition with this key. Raises InputError if there is none or more than one."""
    names = [each.name for each in found if comparable_key(each.key) == comparable_key(key)]
    if not names:
        instead = did_you_mean(key, list(dict.fromkeys(each.key for each in found)))
        raise InputError(f"no open condition {key!r}{instead or '; `heartbeatd conditions` lists them'}")
    if len(names) > 1:
        choices = tuple(f"--agent {name}" for name in names[:MAX_CHOICES])
        raise InputError(f"several agents have the condition {key!r}; add {join_with_or(choices)}")
    return names[0]


def _resolve_agent(db: sqlite3.Connection | None, text: str) -> str:
    """The name of an agent in the database. Raises InputError for another name."""
    name = arguments.name_of_kind("agent", text, NO_CONDITIONS_ADVICE)

    def is_known(key: Key) -> bool:
        return db is not None and (entries.find_entry(db, *key) is not None or bool(list_conditions(db, [name], closed=True)))

    _, found = arguments.resolve_entry(f"agent/{name}", is_known, lambda: entries.states_and_schedules(db) if db else ())
    return found


def _conditions_table(found: list[Condition], now: datetime) -> str:
    """A table of the conditions. Below each row are further reports, how it ended, and the beginning of its text."""
    return format_detailed_table(COLUMNS, [(_condition_row(each, now), _detail_lines(each, now)) for each in found])


def _condition_row(each: Condition, now: datetime) -> list[str]:
    first = next(iter(_reports_newest_first(each)), None)
    return [
        each.name,
        each.key,
        each.severity,
        format_short_time(each.opened_at, now),
        format_short_time(each.last_seen_at, now),
        format_short_time(first.reported_at, now) if first and first.reported_at else "not yet",
        format_target(first) if first else "-",
    ]


def _detail_lines(each: Condition, now: datetime) -> Iterator[str]:
    further = [report for report in _reports_newest_first(each)[1:] if report.reported_at]
    if len(each.key) > MAX_KEY_WIDTH:
        yield each.key
    if further:
        times = (f"{format_target(report)} {format_short_time(report.reported_at, now)}" for report in further)
        yield f"also to {', '.join(times)}"
    yield from (report.says for report in each.reports if not report.reported_at)
    if any(report.kind == ReportKind.FLAPPING for report in each.reports):
        yield "reported as flapping: changes are not reported until it is stable"
    if each.acknowledged_at:
        when = format_short_time(each.acknowledged_at, now)
        yield f"acknowledged {when} by {each.acknowledged_by}: quiet until it gets worse or ends"
    if each.closed_at:
        yield f"closed {format_short_time(each.closed_at, now)}: {ENDED_BY_TEXTS[each.ended_by or '']}"
    yield f"“{each.text.strip()}”"


def _reports_newest_first(each: Condition) -> list[ConditionReport]:
    return sorted(each.reports, key=lambda report: str(report.reported_at), reverse=True)
