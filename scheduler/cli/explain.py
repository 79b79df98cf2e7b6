"""`explain`: why an agent or a job ran or did not run: now, at one instant, or over a whole day."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from scheduler.cli import arguments, daemon_state, options
from scheduler.cli.daemon_state import declared
from scheduler.cli.options import Mistake
from scheduler.cli.output import between, called, fact, rough, table, utc_now, wrapped
from scheduler.config.file.message_parts import format_count, format_duration
from scheduler.insight import explanation as answers
from scheduler.insight.explanation import ExplainedEntry
from scheduler.insight.reason_texts import SlotCause
from scheduler.store import database, entries
from scheduler.system import lanes

Told = dict[str, Any]


@click.command()
@click.argument("name")
@click.option(
    "--at",
    "instant",
    metavar="TIME",
    help="What became, or will become, of the slot that covers this time; in the entry's own zone without an offset.",
)
@click.option("--on", "day", metavar="DAY", help="What became of every slot of this local day: 2026-11-20, today or yesterday.")
@options.config
@options.state
@options.form
def explain(name: str, instant: str | None, day: str | None, path: Path, state: Path | None, form: str) -> None:
    """Say why an agent or a job ran or did not run.

    Without an option: its last slot, each gate's answer if it came due now, and when it comes next. Times are those of its
    own zone.
    """
    if instant is not None and day is not None:
        raise Mistake("--at and --on exclude each other")
    where, now = daemon_state.place(path, state), utc_now()
    plan = declared(path, state, where)
    with daemon_state.reading(where) as found, nullcontext(found) if found else closing(database.blank()) as db:
        declares = plan.entries if plan else {}
        key = arguments.choose(
            name,
            lambda key: key in declares or entries.find(db, *key) is not None,
            lambda: declares.keys() | entries.texts(db).keys(),
        )
        running = daemon_state.running(where) is not None
        asked = answers.find_entry(db, plan, key, lanes.beside(where.database), now, running=running)
        assert asked is not None  # it was just found
        told, lines = _answered(asked, instant, day)
    click.echo(json.dumps(told, indent=2) if form == "json" else "\n".join(lines(told)))


def _answered(asked: ExplainedEntry, instant: str | None, day: str | None) -> tuple[Told, Callable[[Told], Iterator[str]]]:
    """What was asked for, and how it is shown to people."""
    try:
        if instant is not None:
            return answers.explain_time(asked, arguments.moment(instant, asked.zone)), _of_instant
        if day is not None:
            return answers.explain_day(asked, _day(day, asked)), _of_day
    except ValueError as error:
        raise Mistake(f"{'--on' if instant is None else '--at'}: {error}") from error
    return answers.explain_now(asked), _of_present


def _day(text: str, asked: ExplainedEntry) -> date:
    try:
        return arguments.named_day(text, asked.now.astimezone(asked.zone)) or date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a day; write 2026-11-20, today or yesterday") from None


def _of_present(told: Told) -> Iterator[str]:
    yield from wrapped(_title(told), 2)
    yield from fact("last slot", _slot(told, told["last_slot"]))
    yield from fact("last run", _run(told, told["last_run"]))
    for line in told["last_run"]["left_out"] if told["last_run"] else ():
        yield from fact("left out", f"{line}, which was to be in its prompt")
    yield from fact("since then", _counts(told["skipped_since"], "slot"))
    yield from fact("wakes", _wakes(told))
    for remark in told["checklist_remarks"]:
        yield from fact("checklist", remark)
    yield from fact("told", f"{format_count(told['texts_told'], 'text')} that would be no news" if told["texts_told"] else "")
    yield from fact("daemon", _life(told))
    yield from fact("next", _next(told))
    yield from fact("now", _now(told))
    yield ""
    yield table(("GATE", "IN THE WAY"), [(gate["gate"], GATES[gate["stands_in_the_way"]]) for gate in told["now"]["gates"]])


GATES = {True: "yes", False: "no", None: "only a run can say"}


def _of_instant(told: Told) -> Iterator[str]:
    yield from wrapped(_title(told), 2)
    yield from fact("at", _local(told, told["at"]))
    yield from fact("slot", _slot(told, told["slot"]))
    yield from fact("run", _run(told, told["slot"]["run"] if told["slot"] else None))
    yield from fact("daemon", _life(told))
    yield from fact("following", _slot(told, told["following"]))


def _of_day(told: Told) -> Iterator[str]:
    hours = datetime.fromisoformat(told["until"]) - datetime.fromisoformat(told["from"])
    length = f"{hours / timedelta(hours=1):g} hours, " if hours != timedelta(days=1) else ""
    yield from wrapped(_title(told), 2)
    yield f"{date.fromisoformat(told['day']):%a %Y-%m-%d}, {length}{format_count(told['slots'], 'slot')}"
    if told["stretches"]:
        clock = _clock_of(told)
        yield table(("FROM", "TO", "SLOTS", "WHY"), [_stretch(stretch, clock) for stretch in told["stretches"]])
    yield from fact("in all", _counts(told["totals"], "slot"))
    yield from fact("beside", _counts(told["beside"], "run", " without a slot"))
    for event in told["events"]:
        yield from fact(f"{_local(told, event['at']):.19}"[11:], event["says"])


def _stretch(stretch: Told, clock: Callable[[str], str]) -> list[str]:
    causes = stretch["causes"]
    why = causes[0]["says"] if len(causes) == 1 else "; ".join(f"{each['count']} {each['says']}" for each in causes)
    row = f" (run {stretch['run']})" if stretch["run"] is not None else ""
    if not stretch["slots"]:
        return [clock(stretch["from"]), "", "-", why]
    return [clock(stretch["from"]), clock(stretch["to"]), str(stretch["slots"]), why + row]


def _clock_of(told: Told) -> Callable[[str], str]:
    """How the table of a day writes a time: with the name of the clock on a day on which that changes."""
    zone = ZoneInfo(told["zone"])
    changing = any(event["what"] == "clock_change" for event in told["events"])

    def clock(instant: str) -> str:
        local = datetime.fromisoformat(instant).astimezone(zone)
        return f"{local:%H:%M:%S}".removesuffix(":00") + (f" {local:%Z}" if changing else "")

    return clock


def _title(told: Told) -> str:
    state = told["state"] + (f" until {_local(told, told['paused_until'])}" if told["paused_until"] else "")
    state += f" at {_local(told, told['done_at'])}" if told["done_at"] else ""
    return f"{called(told['kind'], told['name'])}: {state}, {_pace(told['pace'])} ({told['zone']})"


def _pace(pace: Told) -> str:
    if "schedule" in pace:
        return f"by {pace['schedule']!r}"
    if "at" in pace:
        return f"once, at {pace['at']}"
    period = pace.get("interval") or pace.get("every")
    return f"every {format_duration(timedelta(seconds=period))}" if period else "without slots of its own"


def _slot(told: Told, slot: Told | None) -> str:
    if slot is None:
        return "none"
    at = _local(told, slot["slot"]) if slot["slot"] else "none"
    run = slot["run"]
    error = f": {run['error']}" if run and run["outcome"] == "skipped" and run["error"] else ""
    return f"{at}: {slot['says']}{error}" + (f" (run {run['id']})" if run else "")


def _run(told: Told, run: Told | None) -> str:
    if run is None or run["started_at"] is None:
        return ""
    took = f", took {between(run['started_at'], run['finished_at'])}" if run["finished_at"] else ""
    why = f" {run['reason'] or run['suppression']}" if run["reason"] or run["suppression"] else ""
    error = f": {run['error']}" if run["error"] else ""
    return f"{run['id']}, {_local(told, run['started_at'])}, {run['outcome'] or run['state']}{why}{took}{error}"


def _counts(counts: list[Told], what: str, sort: str = "") -> str:
    if not counts:
        return ""
    total = format_count(sum(each["count"] for each in counts), what)
    return f"{total}{sort}: " + "; ".join(f"{each['count']} {each['says']}" for each in counts)


def _wakes(told: Told) -> str:
    """How many wait, for what, and until when."""
    wait = told["wakes"]
    if wait is None:
        return ""
    until = f", until {_local(told, wait['until'])}" if wait["until"] else ""
    return f"{told['wakes_waiting']} waiting: {wait['says']}{until}"


def _next(told: Told) -> str:
    due = told["next"]["due_at"]
    if due is None:
        return "nothing is planned"
    ahead = datetime.fromisoformat(due) - datetime.fromisoformat(told["asked_at"])
    return f"{_local(told, due)}, {f'in {rough(ahead)}' if ahead > timedelta() else 'which has passed'}"


def _now(told: Told) -> str:
    """Whether it would run now; with no daemon it does not, whatever the gates say."""
    if told["done_at"]:
        return "done: it fires once, and that has been"
    reason = told["now"]["reason"]
    found = (
        "nothing stands in its way"
        if reason is None
        else f"it would not run: {SlotCause(reason, told['now']['detail']).text_for_now}"
    )
    asked = "" if told["now"]["complete"] else " (only gates that the database knows were asked)"
    return found + asked + ("" if _goes_on(told["daemon"]) else "; no daemon is there to run it")


def _goes_on(life: Told) -> bool:
    return life["state"] == "up" and life["until"] is None


def _life(told: Told) -> str:
    life = told["daemon"]
    if life["state"] == "never":
        return "had not run yet"
    span = f"from {_local(told, life['since'])}" + (f" to {_local(told, life['until'])}" if life["until"] else " on")
    if life["state"] == "down":
        return f"down {span}, {'stopped in order' if life['clean'] else 'ended unexpectedly'}"
    return f"up {span}, pid {life['pid']}"


def _local(told: Told, instant: str) -> str:
    return f"{datetime.fromisoformat(instant).astimezone(ZoneInfo(told['zone'])):%Y-%m-%d %H:%M:%S %Z}"
