"""The command `explain`: why an agent or a job ran or did not run, now, at one time, or over a day."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from scheduler.cli import arguments, daemon_state, options
from scheduler.cli.daemon_state import load_declared_plan
from scheduler.cli.options import InputError
from scheduler.cli.output import (
    entry_label,
    format_elapsed,
    format_fact,
    format_hold,
    format_notice,
    format_table,
    format_target,
    shorten_to_line,
    utc_now,
    wrap_text,
)
from scheduler.config.file.message_parts import abbreviate_duration, format_count, format_duration
from scheduler.insight import explanation as answers
from scheduler.insight.explanation import ExplainedEntry
from scheduler.insight.reason_texts import SlotCause
from scheduler.store import database, entries
from scheduler.system import lanes

MAX_CONDITIONS = 10  # in the text; JSON has all of them
MAX_KEY_WIDTH = 40

Data = dict[str, Any]


@click.command()
@click.argument("name")
@click.option(
    "--at",
    "instant",
    metavar="TIME",
    help="Explain the last scheduled time (slot) at or before TIME."
    " A TIME without an offset is in the time zone of the agent or job.",
)
@click.option(
    "--on", "day", metavar="DAY", help="Explain every scheduled time (slot) of a local day: 2026-11-20, today or yesterday."
)
@options.config_option
@options.state_option
@options.format_option
def explain(name: str, instant: str | None, day: str | None, path: Path, state: Path | None, form: str) -> None:
    """Explain why an agent or a job ran or did not run.

    Without --at and --on, the output shows the last scheduled run, the checks that would block a run now, and the next scheduled
    time. Times are in the time zone of the agent or job.
    """
    if instant is not None and day is not None:
        raise InputError("--at and --on exclude each other")
    files, now = daemon_state.locate_files(path, state), utc_now()
    plan = load_declared_plan(path, state, files)
    with (
        daemon_state.open_for_reading(files) as found,
        nullcontext(found) if found else closing(database.open_empty_database()) as db,
    ):
        declares = plan.entries if plan else {}
        key = arguments.resolve_entry(
            name,
            lambda key: key in declares or entries.find_entry(db, *key) is not None,
            lambda: declares.keys() | entries.states_and_schedules(db).keys(),
        )
        running = daemon_state.find_running_daemon(files) is not None
        explained = answers.find_entry(db, plan, key, lanes.lanes_beside(files.database), now, running=running)
        assert explained is not None  # it was just found
        data, lines = _select_answer(explained, instant, day)
    click.echo(json.dumps(data, indent=2) if form == "json" else "\n".join(lines(data)))


def _select_answer(
    explained: ExplainedEntry, instant: str | None, day: str | None
) -> tuple[Data, Callable[[Data], Iterator[str]]]:
    """The data that the options ask for, and the function that formats it."""
    try:
        if instant is not None:
            return answers.explain_time(explained, arguments.parse_time(instant, explained.zone)), _instant_lines
        if day is not None:
            return answers.explain_day(explained, _parse_day(day, explained)), _day_lines
    except ValueError as error:
        raise InputError(f"{'--on' if instant is None else '--at'}: {error}") from error
    return answers.explain_now(explained), _present_lines


def _parse_day(text: str, explained: ExplainedEntry) -> date:
    try:
        return arguments.parse_named_day(text, explained.now.astimezone(explained.zone)) or date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a day; write 2026-11-20, today or yesterday") from None


def _present_lines(data: Data) -> Iterator[str]:
    yield from wrap_text(_format_title(data), 2)
    yield from format_fact("last slot", _format_slot(data, data["last_slot"]))
    yield from format_fact("last run", _format_run(data, data["last_run"]))
    for notice in data["last_run"]["notices"] if data["last_run"] else ():
        yield from format_fact("notice", format_notice(notice, partial(_format_local, data)) if "held_back" in notice else "")
    for held in data["held_back"]:
        if held["run"] != (data["last_run"] or {}).get("id"):
            waits = f"{format_hold(held['agents'])}, until {_format_local(data, held['until'])} at most"
            yield from format_fact("notice", f"{held['notice']} (run {held['run']}): {held['channel']} {waits}")
    for each in data["reported_as"]:
        known = f"by agent {each['agent']} as the condition {each['key']}, open since {_format_local(data, each['since'])}"
        yield from format_fact("reported", known)
    for line in data["last_run"]["left_out"] if data["last_run"] else ():
        yield from format_fact("left out", f"{line}, intended for the prompt")
    yield from format_fact("answer", data["answer"]["says"] if data["answer"] else "")
    yield from _condition_lines(data)
    yield from format_fact("since then", _format_counts(data["skipped_since"], "slot"))
    yield from format_fact("wakes", _format_wakes(data))
    for remark in data["checklist_remarks"]:
        yield from format_fact("checklist", remark)
    yield from format_fact(
        "sent", f"{format_count(data['texts_told'], 'alert')} that would be a duplicate now" if data["texts_told"] else ""
    )
    yield from format_fact("daemon", _format_daemon(data))
    yield from format_fact("next", _format_next(data))
    yield from format_fact("now", _format_now(data))
    yield ""
    yield format_table(
        ("CHECK", "BLOCKS"), [(gate["gate"], GATE_ANSWERS[gate["stands_in_the_way"]]) for gate in data["now"]["gates"]]
    )


GATE_ANSWERS = {True: "yes", False: "no", None: "not known before a run"}


def _instant_lines(data: Data) -> Iterator[str]:
    yield from wrap_text(_format_title(data), 2)
    yield from format_fact("at", _format_local(data, data["at"]))
    yield from format_fact("slot", _format_slot(data, data["slot"]))
    yield from format_fact("run", _format_run(data, data["slot"]["run"] if data["slot"] else None))
    yield from format_fact("daemon", _format_daemon(data))
    yield from format_fact("following", _format_slot(data, data["following"]))


def _day_lines(data: Data) -> Iterator[str]:
    hours = datetime.fromisoformat(data["until"]) - datetime.fromisoformat(data["from"])
    length = f"{hours / timedelta(hours=1):g} hours, " if hours != timedelta(days=1) else ""
    yield from wrap_text(_format_title(data), 2)
    yield f"{date.fromisoformat(data['day']):%a %Y-%m-%d}, {length}{format_count(data['slots'], 'slot')}"
    if data["stretches"]:
        clock = _clock_formatter(data)
        yield format_table(("FROM", "TO", "SLOTS", "WHY"), [_stretch_row(stretch, clock) for stretch in data["stretches"]])
    yield from format_fact("in all", _format_counts(data["totals"], "slot"))
    yield from format_fact("unplanned", _format_counts(data["beside"], "run", " without a slot"))
    for event in data["events"]:
        yield from format_fact(f"{_format_local(data, event['at']):.19}"[11:], event["says"])


def _stretch_row(stretch: Data, clock: Callable[[str], str]) -> list[str]:
    causes = stretch["causes"]
    why = causes[0]["says"] if len(causes) == 1 else "; ".join(f"{each['count']} {each['says']}" for each in causes)
    row = f" (run {stretch['run']})" if stretch["run"] is not None else ""
    if not stretch["slots"]:
        return [clock(stretch["from"]), "", "-", why]
    return [clock(stretch["from"]), clock(stretch["to"]), str(stretch["slots"]), why + row]


def _clock_formatter(data: Data) -> Callable[[str], str]:
    """A function that formats times of this day. On a day with a clock change they include the name of the clock."""
    zone = ZoneInfo(data["zone"])
    changing = any(event["what"] == "clock_change" for event in data["events"])

    def clock(instant: str) -> str:
        local = datetime.fromisoformat(instant).astimezone(zone)
        return f"{local:%H:%M:%S}".removesuffix(":00") + (f" {local:%Z}" if changing else "")

    return clock


def _format_title(data: Data) -> str:
    state = data["state"] + (f" until {_format_local(data, data['paused_until'])}" if data["paused_until"] else "")
    state += f" at {_format_local(data, data['done_at'])}" if data["done_at"] else ""
    return f"{entry_label(data['kind'], data['name'])}: {state}, {_format_schedule(data['pace'])} ({data['zone']})"


def _format_schedule(schedule: Data) -> str:
    if "schedule" in schedule:
        return f"by {schedule['schedule']!r}"
    if "at" in schedule:
        return f"once, at {schedule['at']}"
    period = schedule.get("interval") or schedule.get("every")
    return f"every {format_duration(timedelta(seconds=period))}" if period else "without a schedule"


def _format_slot(data: Data, slot: Data | None) -> str:
    if slot is None:
        return "none"
    at = _format_local(data, slot["slot"]) if slot["slot"] else "none"
    run = slot["run"]
    error = f": {run['error']}" if run and run["outcome"] == "skipped" and run["error"] else ""
    return f"{at}: {slot['says']}{error}" + (f" (run {run['id']})" if run else "")


def _format_run(data: Data, run: Data | None) -> str:
    if run is None or run["started_at"] is None:
        return ""
    duration = f", took {format_elapsed(run['started_at'], run['finished_at'])}" if run["finished_at"] else ""
    why = f" {run['reason'] or run['suppression']}" if run["reason"] or run["suppression"] else ""
    error = f": {run['error']}" if run["error"] else ""
    return f"{run['id']}, {_format_local(data, run['started_at'])}, {run['outcome'] or run['state']}{why}{duration}{error}"


def _condition_lines(data: Data) -> Iterator[str]:
    """The open conditions: since when, where each was reported, and what would close it."""
    for condition in data["conditions"][:MAX_CONDITIONS]:
        reports = ", ".join(
            f"{_format_local(data, report['reported_at'])} to {format_target(report)}" for report in condition["reports"]
        )
        reported = f"reported {reports}" if reports else "not reported yet"
        key, since = shorten_to_line(condition["key"], MAX_KEY_WIDTH), _format_local(data, condition["opened_at"])
        line = f"{key} ({condition['severity']}) since {since}, {reported}. It {condition['closes']['says']}"
        yield from format_fact("open", line)
    if left_out := len(data["conditions"][MAX_CONDITIONS:]):
        yield from format_fact("", f"and {left_out} more: `heartbeatd conditions {data['name']}`")


def _format_counts(counts: list[Data], noun: str, sort: str = "") -> str:
    if not counts:
        return ""
    total = format_count(sum(each["count"] for each in counts), noun)
    return f"{total}{sort}: " + "; ".join(f"{each['count']} {each['says']}" for each in counts)


def _format_wakes(data: Data) -> str:
    """How many wakes wait, for what, and until when."""
    wait = data["wakes"]
    if wait is None:
        return ""
    until = f", until {_format_local(data, wait['until'])}" if wait["until"] else ""
    return f"{data['wakes_waiting']} waiting: {wait['says']}{until}"


def _format_next(data: Data) -> str:
    due = data["next"]["due_at"]
    if due is None:
        return "nothing is planned"
    ahead = datetime.fromisoformat(due) - datetime.fromisoformat(data["asked_at"])
    return f"{_format_local(data, due)}, {f'in {abbreviate_duration(ahead)}' if ahead > timedelta() else 'overdue'}"


def _format_now(data: Data) -> str:
    """Whether the entry would run now. Nothing runs while the daemon is down, whatever the checks would find."""
    if data["done_at"]:
        return "done: a one-time job that has already run"
    reason = data["now"]["reason"]
    found = (
        "nothing blocks it" if reason is None else f"it would not run: {SlotCause(reason, data['now']['detail']).text_for_now}"
    )
    limitation = "" if data["now"]["complete"] else " (only the checks that need no config were made)"
    return found + limitation + ("" if _is_still_up(data["daemon"]) else "; the daemon is not running")


def _is_still_up(boot: Data) -> bool:
    return boot["state"] == "up" and boot["until"] is None


def _format_daemon(data: Data) -> str:
    boot = data["daemon"]
    if boot["state"] == "never":
        return "had not run yet"
    span = f"from {_format_local(data, boot['since'])}" + (
        f" to {_format_local(data, boot['until'])}" if boot["until"] else " on"
    )
    if boot["state"] == "down":
        return f"down {span}, {'stopped cleanly' if boot['clean'] else 'ended unexpectedly'}"
    return f"up {span}, pid {boot['pid']}"


def _format_local(data: Data, instant: str) -> str:
    return f"{datetime.fromisoformat(instant).astimezone(ZoneInfo(data['zone'])):%Y-%m-%d %H:%M:%S %Z}"
