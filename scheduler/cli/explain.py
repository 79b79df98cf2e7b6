"""Explains why an agent or a job ran or did not run, now, at one time, or over a day."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from datetime import datetime, time, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import click

from heartbeat.words import abbreviate_duration, format_count
from heartbeatd.answers import (
    CountedCause,
    DaemonStateThen,
    EntryOverview,
    ExplainedSlot,
    Explanation,
    ExplanationAt,
    ExplanationNow,
    ExplanationOn,
    MessagesOfEntry,
    Override,
    Overview,
    RejectedWakes,
    ReloadEvent,
    RunRecord,
    SlotStretch,
)
from scheduler.cli import daemon_files, options
from scheduler.cli.colours import Meaning, meaning_of, meaning_of_run, paint, paint_label
from scheduler.cli.daemon_files import Source, load_declared_plan
from scheduler.cli.output import (
    display_zone,
    entry_label,
    format_elapsed,
    format_fact,
    format_hold,
    format_notice,
    format_table,
    format_target,
    host_zone,
    shorten_to_line,
    utc_now,
    wrap_text,
)
from scheduler.insight import explanation as answers
from scheduler.insight.periods import Period, parse_period
from scheduler.insight.reason_texts import rejected_wakes_text, waiting_wakes_text
from scheduler.insight.records import Records
from scheduler.insight.schedule_texts import parts_text
from scheduler.model import local_days
from scheduler.model.expected_error import InputError
from scheduler.store import database, entries
from scheduler.system import lanes

MAX_CONDITIONS = 10  # in the text; JSON has all of them
MAX_KEY_WIDTH = 40
MAX_ERROR_WIDTH = 200  # of a channel


def print_explanation(name: str | None, instant: str | None, day: str | None, since: str | None, source: Source) -> None:
    """Print why one entry, or all entries, ran or did not run: now, at a time, or in a period."""
    times = {key: value for key, value in (("at", instant), ("on", day), ("since", since)) if value is not None}
    if len(times) > 1:
        raise InputError("--at, --on and --since exclude each other")
    if name is None and instant is not None:
        raise InputError("--at needs the name of an agent or a job")
    files, now = daemon_files.locate_files(source.config, source.state), utc_now()
    plan = load_declared_plan(source, files)
    with (
        daemon_files.open_for_reading(files) as found,
        nullcontext(found) if found else closing(database.open_empty_database()) as db,
    ):
        zone = display_zone() or host_zone()
        period = _parse_period(times, zone, now, may_be_ahead=False) if name is None else None
        daemon, held = daemon_files.read_state(db, files, now), lanes.lanes_beside(files.database)
        records = Records(db, plan, period or Period.today(zone, now), now, daemon, held)
        answer = answers.explain_all(records) if name is None else _explain_one(records, name, times)
    click.echo(json.dumps(answer.as_data(), indent=2) if source.form == "json" else "\n".join(_answer_lines(answer)))


def _answer_lines(answer: Overview | Explanation) -> Iterator[str]:
    match answer:
        case ExplanationNow():
            return _present_lines(answer)
        case ExplanationAt():
            return _instant_lines(answer)
        case ExplanationOn():
            return _day_lines(answer)
        case Overview():
            return _overview_lines(answer)
    raise AssertionError(answer)


def _parse_period(times: Mapping[str, str], zone: ZoneInfo, now: datetime, *, may_be_ahead: bool = True) -> Period | None:
    """The time that the option names; None without an option."""
    try:
        return parse_period(times, zone, now, partial(options.parse_time, zone=zone), may_be_ahead=may_be_ahead)
    except ValueError as error:
        raise InputError(f"--{error}") from error


def _explain_one(records: Records, name: str, times: Mapping[str, str]) -> Explanation:
    """What the options ask for of one entry."""
    plan = records.plan
    key = options.resolve_entry(name, {*entries.states_and_schedules(records.db), *(plan.entries if plan else ())})
    explained = answers.find_entry(records, key)
    assert explained is not None  # it was just found
    return answers.explain(explained, _parse_period(times, explained.zone, records.now))


MAX_ALIKE = 5  # entries with the same status and cause that are listed one by one
MAX_LISTED = 20  # entries that are always listed one by one
MAX_RELOADS = 5  # the latest reloads, and the latest other events, that the text shows; JSON has all of them
MAX_CHANGED_LINES = 3  # of a reload
MAX_OVERRIDES = 5  # environment variables that set values of the config; JSON has all of them
MAX_NAMES = 3  # names of entries that share a line


def _overview_lines(data: Overview) -> Iterator[str]:
    zone = ZoneInfo(data.zone)
    begin, asked, end = (instant.astimezone(zone) for instant in (data.from_, data.asked_at, data.until))
    until = f" until {asked:%H:%M}" if end >= asked else ""
    first = f"{begin:%a %Y-%m-%d}" if begin.time() == time.min else f"{begin:%a %Y-%m-%d %H:%M}"
    yield f"{first}{until}, {zone.key} (UTC{local_days.offset_text(min(asked, end))})"
    for problem in data.problems:
        yield from (paint(line, Meaning.BAD) for line in wrap_text(problem.says, 2))
    listed = data.entries
    for group in _group_alike(listed) if len(listed) > MAX_LISTED else [[each] for each in listed]:
        shown = group if len(group) <= MAX_ALIKE else group[:MAX_NAMES]
        for each in shown:
            lines = wrap_text(f"{_entry_label(each)}  {_day_text(each)}", 2)
            yield from paint_label(lines, _entry_label(each), _day_meaning(each))
        yield from _left_out_lines(group[len(shown) :])
    yield from _override_lines(data.overrides[:MAX_OVERRIDES])
    happened = [(each.at, _reload_text(each)) for each in data.changes[-MAX_RELOADS:]]
    happened += [(each.at, each.says) for each in data.events[-MAX_RELOADS:]]
    for at, says in sorted(happened):
        yield from format_fact(f"{at.astimezone(zone):%H:%M}", says)
    if not listed:
        yield "there are no agents and jobs"
        return
    counts = ", ".join(f"{count:,} {status}" for status, count in data.counts if count)
    yield from wrap_text(f"in all     {len(listed):,}: {counts}", 11)


def _override_lines(overrides: list[Override]) -> Iterator[str]:
    for each in overrides:
        yield from format_fact("override", f"{each.key} {each.in_file} -> {each.value} by {each.variable}")


def _left_out_lines(group: list[EntryOverview]) -> Iterator[str]:
    """One line for further entries with the same status and cause."""
    if not group:
        return
    names = ", ".join(map(_entry_label, group[:MAX_NAMES]))
    more = f" and {len(group) - MAX_NAMES:,} more" if len(group) > MAX_NAMES else ""
    yield from wrap_text(f"{len(group):,} others  {_status_text(group[0])}likewise ({group[0].cause}): {names}{more}", 2)


def _reload_text(change: ReloadEvent) -> str:
    """One reload: who requested it, and what it changed, or why it was rejected."""
    if change.result == "refused":
        return f"config rejected, by {change.by}: {'; '.join(change.problems[:1])}"
    verb = "config reloaded" if change.result == "applied" else "config changed before the start"
    lines = change.lines
    more = f"; and {len(lines) - MAX_CHANGED_LINES} more" if len(lines) > MAX_CHANGED_LINES else ""
    return f"{verb}, by {change.by}: {'; '.join(lines[:MAX_CHANGED_LINES]) or 'nothing changed'}{more}"


def _entry_label(entry: EntryOverview) -> str:
    return entry_label(entry.kind, entry.name)


def _day_text(entry: EntryOverview) -> str:
    """What the overview says of an entry; `explain NAME` begins with the same."""
    command = f" `{entry.command}`" if entry.command else ""
    return f"{_status_text(entry)}{entry.says}.{command}"


def _status_text(entry: EntryOverview) -> str:
    return "" if entry.status == "normal" else f"{entry.status}: "


def _day_meaning(entry: EntryOverview) -> Meaning | None:
    planned = entry.expected and entry.status in ("silent", "unusual")
    return Meaning.PLANNED if planned else meaning_of(entry.status)


def _group_alike(listed: list[EntryOverview]) -> list[list[EntryOverview]]:
    """Entries with the same status and cause together, in the order of the first of each."""
    groups: dict[tuple[str, str], list[EntryOverview]] = {}
    for each in listed:
        groups.setdefault((each.status, each.cause), []).append(each)
    return list(groups.values())


def _present_lines(data: ExplanationNow) -> Iterator[str]:
    yield from wrap_text(_format_title(data), 2)
    yield from format_fact("why", _day_text(data.why), _day_meaning(data.why))
    yield from format_fact("last slot", _format_slot(data, data.last_slot), _slot_meaning(data.last_slot))
    yield from format_fact("last run", _format_run(data, data.last_run), _run_meaning(data.last_run))
    for notice in data.last_run.notices if data.last_run else ():
        yield from format_fact("notice", format_notice(notice, partial(_format_local, data)) if notice.held_back else "")
    for held in data.held_back:
        if held.run != (data.last_run and data.last_run.id):
            waits = f"{format_hold(held.agents)}, until {_format_local(data, held.until)} at most"
            yield from format_fact("notice", f"{held.notice} (run {held.run}): {held.channel} {waits}")
    for each in data.reported_as:
        since = _format_local(data, each.since)
        yield from format_fact("known", f"agent {each.agent} has the condition {each.key} since {since}: {each.says}")
    for line in data.last_run.left_out if data.last_run else ():
        yield from format_fact("left out", f"{line}, intended for the prompt")
    yield from format_fact("answer", data.answer.says if data.answer else "")
    for reason in data.quiet_because:
        yield from format_fact("quiet", reason.says, Meaning.PLANNED)
    yield from _condition_lines(data)
    yield from format_fact("since then", _format_counts(data.skipped_since, "slot"))
    yield from format_fact("wakes", _format_wakes(data))
    for rejected in data.wakes_rejected:
        yield from format_fact("rejected", _format_rejected_wakes(data, rejected))
    for remark in data.checklist_remarks:
        yield from format_fact("checklist", remark)
    yield from format_fact(
        "sent", f"{format_count(data.texts_told, 'alert')} that would be a duplicate now" if data.texts_told else ""
    )
    for message in data.messages:
        yield from format_fact("messages", _format_messages(data, message), meaning_of(message.state))
    for change in data.changes[-MAX_CHANGED_LINES:]:
        yield from format_fact("changed", f"{_format_local(data, change.at)} by {change.by}: {change.says}")
    yield from _override_lines(data.overrides)
    yield from format_fact("daemon", _format_daemon(data), None if _is_still_up(data.daemon) else Meaning.BAD)
    yield from format_fact("next", _format_next(data))
    yield from format_fact("now", _format_now(data))
    yield from format_fact("more", ", ".join(f"`{command}`" for command in data.commands))
    yield ""
    yield format_table(
        ("CHECK", "BLOCKS"),
        [(gate.gate, GATE_ANSWERS[gate.stands_in_the_way]) for gate in data.now.gates],
        meanings=[{1: GATE_MEANINGS.get(gate.stands_in_the_way)} for gate in data.now.gates],
    )


GATE_MEANINGS: dict[bool | None, Meaning] = {True: Meaning.WORRYING, False: Meaning.GOOD}
GATE_ANSWERS = {True: "yes", False: "no", None: "not known before a run"}


def _instant_lines(data: ExplanationAt) -> Iterator[str]:
    yield from wrap_text(_format_title(data), 2)
    yield from format_fact("at", _format_local(data, data.at))
    yield from format_fact("slot", _format_slot(data, data.slot), _slot_meaning(data.slot))
    yield from format_fact("run", _format_run(data, data.slot.run if data.slot else None))
    yield from format_fact("daemon", _format_daemon(data))
    yield from format_fact("following", _format_slot(data, data.following))


def _day_lines(data: ExplanationOn) -> Iterator[str]:
    hours = data.until - data.from_
    length = f"{hours / timedelta(hours=1):g} hours, " if data.day and hours != timedelta(days=1) else ""
    yield from wrap_text(_format_title(data), 2)
    if data.day:
        yield f"{data.day:%a %Y-%m-%d}, {length}{format_count(data.slots, 'slot')}"
    else:
        yield f"since {_format_local(data, data.from_)}, {format_count(data.slots, 'slot')}"
    if data.stretches:
        clock = _clock_formatter(data)
        yield format_table(
            ("FROM", "TO", "SLOTS", "WHY"),
            [_stretch_row(stretch, clock) for stretch in data.stretches],
            meanings=[{3: meaning_of(stretch.causes[0].cause)} for stretch in data.stretches],
        )
    if data.why:
        yield from format_fact("why", _day_text(data.why), _day_meaning(data.why))
    yield from format_fact("in all", _format_counts(data.totals, "slot"))
    yield from format_fact("unplanned", _format_counts(data.beside, "run", " without a slot"))
    for event in data.events:
        yield from format_fact(f"{_format_local(data, event.at):.19}"[11:], event.says)


def _slot_meaning(slot: ExplainedSlot | None) -> Meaning | None:
    return meaning_of(slot.cause) if slot else None


def _run_meaning(run: RunRecord | None) -> Meaning | None:
    return meaning_of_run(run.outcome, run.reason) if run else None


def _stretch_row(stretch: SlotStretch, clock: Callable[[datetime], str]) -> list[str]:
    causes = stretch.causes
    why = causes[0].says if len(causes) == 1 else "; ".join(f"{each.count} {each.says}" for each in causes)
    first, last = stretch.runs or (None, None)
    row = "" if first is None else f" (run {first})" if first == last else f" (runs {first} to {last})"
    if not stretch.slots:
        return [clock(stretch.from_), "", "-", why]
    return [clock(stretch.from_), clock(stretch.to), str(stretch.slots), why + row]


def _clock_formatter(data: ExplanationOn) -> Callable[[datetime], str]:
    """A function that formats times of this day. On a day with a clock change they include the name of the clock."""
    zone = ZoneInfo(data.zone)
    changing = any(event.what == "clock_change" for event in data.events)

    def clock(instant: datetime) -> str:
        local = instant.astimezone(zone)
        return f"{local:%H:%M:%S}".removesuffix(":00") + (f" {local:%Z}" if changing else "")

    return clock


def _format_title(data: Explanation) -> str:
    return f"{entry_label(data.kind, data.name)}: {data.says}, {parts_text(data.pace)} ({data.zone})"


def _format_slot(data: Explanation, slot: ExplainedSlot | None) -> str:
    if slot is None:
        return "none"
    at = _format_local(data, slot.slot) if slot.slot else "none"
    run = slot.run
    error = f": {run.error}" if run and run.outcome == "skipped" and run.error else ""
    return f"{at}: {slot.says}{error}" + (f" (run {run.id})" if run else "")


def _format_run(data: Explanation, run: RunRecord | None) -> str:
    if run is None or run.started_at is None:
        return ""
    duration = f", took {format_elapsed(run.started_at, run.finished_at)}" if run.finished_at else ""
    worker = f" on {run.worker}" if run.worker else ""
    why = f" {run.reason or run.suppression}" if run.reason or run.suppression else ""
    error = f": {run.error}" if run.error else ""
    outcome = run.outcome or run.state
    return f"{run.id}, {_format_local(data, run.started_at)}, {outcome}{why}{worker}{duration}{error}"


def _condition_lines(data: ExplanationNow) -> Iterator[str]:
    """The open conditions: since when, where each was reported, and what would close it."""
    for condition in data.conditions[:MAX_CONDITIONS]:
        reports = ", ".join(
            f"reported {_format_local(data, report.reported_at)} to {format_target(report)}"
            if report.reported_at
            else report.says
            for report in condition.reports
        )
        key, since = shorten_to_line(condition.key, MAX_KEY_WIDTH), _format_local(data, condition.opened_at)
        by = f", acknowledged by {condition.acknowledged_by}" if condition.acknowledged_at else ""
        facts = f"{key} ({condition.severity}) since {since}, {reports or 'not reported yet'}{by}"
        yield from format_fact("open", f"{facts}. It {condition.closes.says}")
    if left_out := len(data.conditions[MAX_CONDITIONS:]):
        yield from format_fact("", f"and {left_out} more: `heartbeatd conditions {data.name}`")


def _format_counts(counts: list[CountedCause], noun: str, sort: str = "") -> str:
    if not counts:
        return ""
    total = format_count(sum(each.count for each in counts), noun)
    return f"{total}{sort}: " + "; ".join(f"{each.count} {each.says}" for each in counts)


def _format_messages(data: Explanation, messages: MessagesOfEntry) -> str:
    """Messages of the last day with the same channel and state."""
    since = "" if messages.state == "delivered" else f", since {_format_local(data, messages.oldest)}"
    return shorten_to_line(messages.says, MAX_ERROR_WIDTH) + since


def _format_wakes(data: ExplanationNow) -> str:
    if data.wakes is None:
        return ""
    return waiting_wakes_text(data.wakes_waiting, data.wakes.says, data.wakes.until, partial(_format_local, data))


def _format_rejected_wakes(data: Explanation, rejected: RejectedWakes) -> str:
    """Wakes of an agent that a job has sent, or those that reached an agent by someone."""
    whose = f"of agent/{rejected.agent}" if data.kind == "cron" else f"by {rejected.sender} ({rejected.source})"
    return rejected_wakes_text(rejected.count, whose, rejected.first_at, rejected.says, partial(_format_local, data))


def _format_next(data: ExplanationNow) -> str:
    due = data.next.due_at
    if due is None:
        return "nothing is planned"
    ahead = due - data.asked_at
    return f"{_format_local(data, due)}, {f'in {abbreviate_duration(ahead)}' if ahead > timedelta() else 'overdue'}"


def _format_now(data: ExplanationNow) -> str:
    """Whether the entry would run now. Nothing runs while the daemon is down, whatever the checks would find."""
    limitation = "" if data.now.complete else " (only the checks that need no config were made)"
    return data.now.says + limitation + ("" if _is_still_up(data.daemon) else "; the daemon is not running")


def _is_still_up(boot: DaemonStateThen) -> bool:
    return boot.state == "up" and boot.until is None


def _format_daemon(data: ExplanationNow | ExplanationAt) -> str:
    boot = data.daemon
    if boot.state == "never":
        return "had not run yet"
    span = f"from {_format_local(data, boot.since)}" + (f" to {_format_local(data, boot.until)}" if boot.until else " on")
    if boot.state == "down":
        return f"down {span}, {'stopped cleanly' if boot.clean else 'ended unexpectedly'}"
    return f"up {span}, pid {boot.pid}"


def _format_local(data: Explanation, instant: datetime | None) -> str:
    return "-" if instant is None else f"{instant.astimezone(ZoneInfo(data.zone)):%Y-%m-%d %H:%M:%S %Z}"
