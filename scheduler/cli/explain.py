"""Explains why an agent or a job ran or did not run, now, at one time, or over a day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, time, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from heartbeat.words import format_count, list_names
from heartbeatd.answers import (
    EntryOverview,
    Explanation,
    ExplanationNow,
    ExplanationOn,
    Overview,
    PreconditionResult,
    ReloadEvent,
    SlotStretch,
)
from heartbeatd.questions import Explain
from scheduler.cli import daemon_files, options, output
from scheduler.cli.daemon_files import Source, load_declared_plan
from scheduler.cli.operation_options import Make
from scheduler.insight import explanation as explaining
from scheduler.insight.periods import LONGEST_DAY, Period, parse_period
from scheduler.insight.records import Records
from scheduler.insight.schedule_texts import parts_text
from scheduler.model import local_days
from scheduler.model.expected_error import InputError
from scheduler.model.levels import Level, level_of, level_of_run
from scheduler.store import entries
from scheduler.system import lanes


def print_explanation(make: Make[Explain], name: str | None, source: Source) -> None:
    """Print why one entry, or all entries, ran or did not run: now, at a time, or in a period."""
    times = {key: str(text) for key, text in make.keys.items() if text is not None}  # without an offset, in the zone of the entry
    if len(times) > 1:
        raise InputError("--at, --on and --since exclude each other")
    if name is None and "at" in times:
        raise InputError("--at needs the name of an agent or a job")
    files, now = daemon_files.locate_files(source.config, source.state), output.utc_now()
    plan = load_declared_plan(source, files)
    with daemon_files.open_for_reading(files) as db:
        zone = output.display_zone() or output.host_zone()
        period = _parse_period(times, zone, now, may_be_ahead=False) if name is None else None
        daemon, held = daemon_files.read_state(db, files, now), lanes.lanes_beside(files.database)
        records = Records(db, plan, period or Period.today(zone, now), now, daemon, held)
        answer = explaining.explain_all(records) if name is None else _explain_one(records, name, times)
    lines = _overview_lines(answer) if isinstance(answer, Overview) else _entry_lines(answer)
    output.print_answer(answer.as_data(), source.form, lines)


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
    explained = explaining.find_entry(records, key)
    assert explained is not None  # it was just found
    return explaining.explain(explained, _parse_period(times, explained.zone, records.now))


MAX_ALIKE = 5  # entries with the same result for the same reason that are listed one by one
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
        yield from (output.paint(line, Level.BAD) for line in output.wrap_text(problem.says, 2))
    listed = data.entries
    for group in _group_alike(listed) if len(listed) > MAX_LISTED else [[each] for each in listed]:
        shown = group if len(group) <= MAX_ALIKE else group[:MAX_NAMES]
        for each in shown:
            lines = output.wrap_text(f"{output.entry_label(each)}  {_day_text(each)}", 2)
            yield from output.paint_label(lines, output.entry_label(each), _day_level(each))
        yield from _left_out_lines(group[len(shown) :])
    for override in data.overrides[:MAX_OVERRIDES]:
        yield from output.format_fact("override", override.says)
    happened = [(each.at, _reload_text(each)) for each in data.changes[-MAX_RELOADS:]]
    happened += [(each.at, each.says) for each in data.events[-MAX_RELOADS:]]
    for at, says in sorted(happened):
        yield from output.format_fact(output.format_clock(at.replace(second=0), zone, with_date=end - begin > LONGEST_DAY), says)
    if not listed:
        yield "there are no agents and jobs"
        return
    counts = ", ".join(f"{count:,} {status}" for status, count in data.counts if count)
    yield from output.wrap_text(f"in all     {len(listed):,}: {counts}", 11)


def _left_out_lines(group: list[EntryOverview]) -> Iterator[str]:
    """One line for further entries with the same result for the same reason."""
    if not group:
        return
    names = list_names(list(map(output.entry_label, group)), MAX_NAMES)
    yield from output.wrap_text(f"{len(group):,} others  {_result_text(group[0])}likewise ({group[0].why}): {names}", 2)


def _reload_text(change: ReloadEvent) -> str:
    """One reload: who requested it, and what it changed, or why it was rejected."""
    lines = change.problems[:1] or change.lines or ["nothing changed"]
    more = f"; and {len(lines) - MAX_CHANGED_LINES} more" if len(lines) > MAX_CHANGED_LINES else ""
    return f"{change.says}: {'; '.join(lines[:MAX_CHANGED_LINES])}{more}"


def _day_text(entry: EntryOverview, typed: str = "") -> str:
    """What the overview says of an entry; `explain NAME` begins with the same. The command `typed` is not named again."""
    command = f" `{entry.command}`" if entry.command and entry.command != typed else ""
    return f"{_result_text(entry)}{entry.says.rstrip('.')}.{command}"  # an error that is quoted may end in a full stop


def _result_text(entry: EntryOverview) -> str:
    return "" if entry.result == "normal" else f"{entry.result}: "


def _day_level(entry: EntryOverview) -> Level | None:
    planned = entry.expected and entry.result in ("silent", "unusual")
    return Level.PLANNED if planned else level_of(entry.result)


def _group_alike(listed: list[EntryOverview]) -> list[list[EntryOverview]]:
    """Entries with the same result for the same reason together, in the order of the first of each."""
    groups: dict[tuple[str, str], list[EntryOverview]] = {}
    for each in listed:
        groups.setdefault((each.result, each.why), []).append(each)
    return list(groups.values())


def _entry_lines(data: Explanation) -> Iterator[str]:
    """What is known about one entry: the table of a period, then all facts, then the table of the checks."""
    yield from output.wrap_text(f"{output.entry_label(data)}: {data.says}, {parts_text(data.pace)} ({data.zone})", 2)
    if isinstance(data, ExplanationOn):
        yield from _period_lines(data)
    if isinstance(data, ExplanationNow | ExplanationOn) and data.overview:
        day = _day_text(data.overview, typed=f"heartbeatd explain {output.entry_label(data)}")
        yield from output.format_fact("why", day, _day_level(data.overview))
    for fact in data.facts:
        yield from output.format_fact(fact.label, fact.says, level_of(fact.code))
    if isinstance(data, ExplanationNow):
        yield ""
        yield output.format_list(data.now.gates, GATE_COLUMNS)


GATE_LEVELS: dict[bool | None, Level] = {True: Level.LOST, False: Level.GOOD}
GATE_ANSWERS = {True: "yes", False: "no", None: "not known before a run"}
GATE_COLUMNS: list[output.Column[PreconditionResult]] = [
    output.Column("CHECK", lambda each: each.gate),
    output.Column(
        "BLOCKS", lambda each: GATE_ANSWERS[each.stands_in_the_way], level=lambda each: GATE_LEVELS.get(each.stands_in_the_way)
    ),
]


def _period_lines(data: ExplanationOn) -> Iterator[str]:
    """The period, and a table of what happened to its planned times."""
    zone, hours = ZoneInfo(data.zone), data.until - data.from_
    length = f"{hours / timedelta(hours=1):g} hours, " if data.day and hours != timedelta(days=1) else ""
    when = f"{data.day:%a %Y-%m-%d}" if data.day else f"since {data.from_.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"
    yield f"{when}, {length}{format_count(data.planned_runs, 'planned run')}"
    clock = partial(
        output.format_clock,
        zone=zone,
        with_zone=any(fact.code == "clock_change" for fact in data.facts),
        with_date=hours > LONGEST_DAY,
    )
    if data.stretches:
        columns: list[output.Column[SlotStretch]] = [
            output.Column("FROM", lambda each: clock(each.from_)),
            output.Column("TO", lambda each: clock(each.to) if each.planned_runs else ""),
            output.Column("TIMES", lambda each: str(each.planned_runs or "-")),
            output.Column("WHY", _stretch_text, level=lambda each: level_of_run(each.results[0].result, each.results[0].why)),
        ]
        yield output.format_list(data.stretches, columns)


def _stretch_text(stretch: SlotStretch) -> str:
    """What happened to the planned times, and their run records."""
    results = stretch.results
    why = results[0].says if len(results) == 1 else "; ".join(f"{each.count} {each.says}" for each in results)
    first, last = (stretch.runs if stretch.planned_runs else None) or (None, None)
    return why + ("" if first is None else f" (run {first})" if first == last else f" (runs {first} to {last})")
