"""The command `status`: shows whether the daemon is up, what is due, and the last run of each entry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import click

from heartbeat.words import abbreviate_duration, format_count, format_usd, squeeze
from heartbeatd.answers import (
    BudgetStatus,
    DaemonBoot,
    EntryName,
    EntryStatus,
    Problem,
    ReloadStatus,
    SpendToday,
    Status,
    UsedLimit,
    time_as_json,
)
from scheduler.cli import daemon_files, output, progress
from scheduler.cli.daemon_files import DaemonFiles, Source
from scheduler.insight.health import read_verdict
from scheduler.insight.reason_texts import SLEPT, breaker_text, ending_text
from scheduler.insight.schedule_texts import TimeFormat
from scheduler.insight.status_data import read_status
from scheduler.model.budget import MONTH_LIMIT, USD_LIMITS, describe_unknown
from scheduler.model.levels import Level, level_of, level_of_run
from scheduler.model.outcome import Kind
from scheduler.store import boots, disk_reserve
from scheduler.store.boots import STOPPED
from scheduler.system.state_lock import LockOwner, read_refused_starts

BUDGET_NOUNS = {"usd_per_day": "", "tokens_per_day": "token", "runs_per_day": "run", "usd_per_month": ""}
"""What the limits count, in the order in which they are shown. Money has no noun."""
MAX_SHARES = 3  # entries with the largest shares of the budget of all entries
MAX_PROBLEMS = 10  # in the text; JSON and `problems` have all of them
MAX_CHANGES = 3  # lines of the last reload in the text; JSON has more
MAX_OVERRIDES = 5  # in the text; JSON has all of them
STARTS = ("start_refused", "second_daemon")  # of the database folder of this machine
STARTS_AND_FREEZES = (*STARTS, "frozen")  # of the leader; the other problems have lines of their own
MAX_REMINDER = 60  # characters of the text of a reminder
MAX_DOWNTIMES = 3  # in the text; JSON has all of them


class StatusLine(NamedTuple):
    """One line, and the level by which its label, before the first colon, is coloured."""

    text: str
    level: Level | None = None


def print_status(watch: float | None, source: Source) -> None:
    """Print the status, once or every `watch` seconds."""
    if watch is None:
        click.echo("\n".join(_status_lines(source)))
    else:
        progress.show_repeatedly(partial(_status_lines, source), watch, in_place=source.form == "text")


def _status_lines(source: Source) -> Iterator[str]:
    files, now = source.files, output.utc_now()
    times = TimeFormat.of_today(output.display_zone() or output.host_zone(), now)
    up = daemon_files.find_running_daemon(files)
    reserved = 0 if files.server else disk_reserve.reserved_bytes(files.database)
    with source.open() as db:
        data = read_status(db, now, output.display_zone() or output.host_zone(), reserved)
        runs_elsewhere = boots.is_leader_running(db)
        leader = boots.find_leader(db)
        problems = daemon_files.read_state(db, files, now).problems(times)
    standby = daemon_files.describe_standby(files, up, leader) if up else None
    down = next((says for what, says in problems if what not in STARTS), "")
    what_is_down = "the daemon is frozen" if up and down else "the daemon is down" if down else ""
    data.verdict = read_verdict(data, times.at, what_is_down)
    if source.form == "json":
        as_json = _status_data(data, up, standby, leader.host if leader else None) | {"refused_starts": _refused_starts(files)}
        yield json.dumps(as_json, indent=2)
        return
    for line in (
        _daemon_line(data.daemon, up, files, standby, now, elsewhere=runs_elsewhere),
        *([StatusLine(f"now: {data.verdict.says}", level_of(data.verdict.level))] if data.entries else []),
        *([StatusLine(f"leader: {leader.describe(output.format_time)}")] if leader else []),
        *(
            StatusLine(f"problem: {says}", Level.BAD)
            for what, says in problems
            if what in (STARTS if standby else STARTS_AND_FREEZES)
        ),
        *_open_problem_lines(data.problems, now),
        *_daemon_detail_lines(data, up, now, files),
        *(_queue_lines(data) if files.may_exist else ()),
    ):
        yield from _wrap_line(line)
    for text in _entry_lines(data, now) if files.may_exist else ():
        yield from text.split("\n")


def _wrap_line(line: StatusLine) -> list[str]:
    lines = output.wrap_text(line.text, 2 + len(line.text) - len(line.text.lstrip()))
    return output.paint_label(lines, line.text.partition(":")[0], line.level)


def _open_problem_lines(found: list[Problem], now: datetime) -> Iterator[StatusLine]:
    """The open problems, the most severe first: what is wrong, since when, and what was sent about it."""
    for each in found[:MAX_PROBLEMS]:
        first, *more = (each.text or "").strip().splitlines() or [""]
        course = each.course(lambda at: output.format_short_time(at, now))
        what = f"{each.severity}: {each.subject} {each.key}: {first} ({course})   {each.number}"
        yield StatusLine(what, level_of(each.severity))
        yield from (StatusLine(f"  {line}") for line in more if each.kind is None)
    if left_out := found[MAX_PROBLEMS:]:
        yield StatusLine(f"  and {format_count(len(left_out), 'more problem')}: `heartbeatd problems`")


def _reload_lines(reload: ReloadStatus) -> Iterator[StatusLine]:
    """The last reload, and whether the file is watched. The errors of a rejected one are a problem of the daemon."""
    if reload.mode == "manual":
        yield StatusLine("reload: manual; a changed file is applied by `heartbeatd reload`")
    last = reload.last
    if last:
        lines = last.lines or ([] if last.problems else ["nothing changed"])
        yield StatusLine(f"{last.says}, {output.format_time(last.at)}")
        yield from (StatusLine(f"  {line}") for line in lines[:MAX_CHANGES])
        if len(lines) > MAX_CHANGES:
            yield StatusLine(f"  further changes: {len(lines) - MAX_CHANGES}")


def _status_data(data: Status, up: LockOwner | None, standby: str | None, leader: str | None) -> dict[str, object]:
    """The status, with the state of the process, which only the lock, or a leader on another machine, shows."""
    process = {"running": (up, leader) != (None, None), "pid": up.pid if up else None, "standby": standby, "leader": leader}
    found = data.as_data()
    return found | {"daemon": (found["daemon"] or {}) | process}


def _daemon_line(
    boot: DaemonBoot | None, up: LockOwner | None, files: DaemonFiles, standby: str | None, now: datetime, *, elsewhere: bool
) -> StatusLine:
    """Whether the daemon is up, here or `elsewhere`, and since when."""
    if up is not None:
        if boot and not standby and boot.pid == up.pid and boot.ended_at is None:  # otherwise the boot is another one
            up = replace(up, started_at=boot.started_at)  # this time agrees with the end of the printed downtime
        return StatusLine(f"daemon: {output.describe_process(up, standby, now)}", Level.GOOD)
    if boot is None:
        return StatusLine(f"daemon: has never run on {files.shown}; `heartbeatd run` starts it", None)
    if elsewhere:
        last = abbreviate_duration(output.elapsed_time(boot.last_tick_at or boot.started_at, now))
        return StatusLine(f"daemon: running on another machine, last tick {last} ago", Level.GOOD)
    ended = boot.ended_at or boot.last_tick_at or boot.started_at
    is_clean = boot.ended_at is not None
    return StatusLine(
        f"daemon: down {output.format_since(ended, now)}, {ending_text(is_clean)}", Level.LOST if is_clean else Level.BAD
    )


def _daemon_detail_lines(data: Status, up: LockOwner | None, now: datetime, files: DaemonFiles) -> Iterator[StatusLine]:
    """The disk, the last reload, overrides, failing pings, open circuit breakers, and the latest times without a daemon."""
    is_local = up is not None and files.server is None
    if is_local and (shortage := disk_reserve.shortage_message(disk_reserve.reserve_path(files.database))):
        yield StatusLine(f"disk: {shortage}", Level.BAD)
    yield from _reload_lines(data.reload)
    for each in data.overrides[:MAX_OVERRIDES]:
        yield StatusLine(f"override: {each.says}")
    if more := data.overrides[MAX_OVERRIDES:]:
        yield StatusLine(f"  and {format_count(len(more), 'more override')}")
    if data.deadman_problem:
        yield StatusLine(f"deadman: pings do not arrive: {data.deadman_problem}", Level.BAD)
    for breaker in data.breakers:
        yield StatusLine(f"circuit breaker open: {breaker_text(breaker, output.format_time)}", Level.BAD)
    for down in data.downs[:MAX_DOWNTIMES]:
        yield StatusLine(f"  was down {output.format_period(down.since, down.until or now)}, {ending_text(down.clean)}")
    for frozen in data.frozen[:MAX_DOWNTIMES]:
        yield StatusLine(f"  {FROZEN_TEXTS[frozen.cause]} {output.format_period(frozen.since, frozen.until)}")


FROZEN_TEXTS = {
    SLEPT: "machine was suspended",
    STOPPED: "was frozen (stopped by a signal)",
    None: "was frozen (no CPU time or disk access, or stopped)",
}


def _refused_starts(files: DaemonFiles) -> list[dict[str, object]]:
    """The starts that were refused, the oldest first. `problem` null: another daemon had the database."""
    return [
        {"at": time_as_json(each.at), "pid": each.pid, "config": each.config, "problem": each.problem}
        for each in read_refused_starts(files.lock_file)
    ]


def _queue_lines(data: Status) -> Iterator[StatusLine]:
    """The queue, messages, budgets, pauses, mutes, wakes and busy agents."""
    if queue := data.queue:
        yield StatusLine(f"queue: {queue.due} due, {queue.running} running, {queue.retrying} waiting for another try")
    for box in data.outbox:
        since = f" since {output.format_time(box.oldest_at)}" if box.oldest_at else ""
        line = f"outbox: {box.channel}: {box.pending} pending{since}, {box.dead} dead"
        yield StatusLine(line, Level.BAD if box.dead else Level.LOST)
    for later in data.held:
        until = f"the next until {output.format_time(later.next_at)}"
        yield StatusLine(f"waiting: {later.channel}: {format_count(later.count, 'message')}, {until}")
    if data.spend:
        yield from _spend_lines(data.spend)
    yield from _budget_lines(data.budgets)
    for entry in data.entries:
        if undelivered := entry.undelivered:
            says = f"{output.entry_label(entry)} {undelivered.says}, since {output.format_time(undelivered.since)}"
            yield StatusLine(f"undelivered: {says}", Level.BAD)
    for entry in data.entries:
        if entry.state == "paused":
            yield StatusLine(f"paused: {output.entry_label(entry)} {entry.says.removeprefix('paused ')}")
    for entry in data.entries:
        if muted := entry.muted:
            held = f"messages of {format_count(muted.held, 'run')} suppressed" if muted.held else "nothing suppressed yet"
            yield StatusLine(f"muted: {output.entry_label(entry)} {muted.says.removeprefix('muted ')}, {held}", Level.LOST)
    for entry in data.entries:
        for hold in entry.busy:
            yield StatusLine(f"busy: {hold.id} holds {output.entry_label(entry)} until {output.format_time(hold.until)}")
    yield from (StatusLine(f"wakes: {output.entry_label(each)}: {each.says}") for each in data.wakes)
    for asked in data.questions:
        says = f"question: {asked.id} of {output.entry_label(asked)}, run {asked.run}, until {output.format_time(asked.until)}"
        yield StatusLine(f"{says}: {squeeze(asked.text, MAX_REMINDER)} ({', '.join(asked.options)})", Level.LOST)
    for reminder in data.reminders:
        says = f"{output.entry_label(reminder)} at {output.format_time(reminder.at)} (wake {reminder.wake}, by {reminder.by})"
        yield StatusLine(f"reminder: {says}: {squeeze(reminder.text, MAX_REMINDER)}")


def _entry_lines(data: Status, now: datetime) -> Iterator[str]:
    if data.entries:
        yield ""
        yield output.format_list(data.entries, _entry_columns(now))
    yield f"times in {output.zone_name()}"


def _spend_lines(spent: SpendToday) -> Iterator[StatusLine]:
    """The cost of all runs of today; nothing as long as nothing is known about it."""
    runs = f"today for {format_count(spent.runs, 'run')} since {output.format_time(spent.since)[:16]}"
    if cost := output.describe_cost(spent.cost_usd, runs, spent.runs_without_price, spent.untold_usd):
        yield StatusLine(f"spent: {cost}")


def _budget_lines(budgets: list[BudgetStatus]) -> Iterator[StatusLine]:
    """Each budget that was used today, and the number of the others; for that of all entries also what it counts."""
    used = [each for each in budgets if each.name is None or any(limit.used for limit in each.limits.values())]
    for budget in used:
        name = Kind(budget.kind).label_of(budget.name) if budget.kind and budget.name else "all"
        limits = "; ".join(_period_usage(budget))
        counted = f"; counts {_format_counted(budget.counts)}{_format_shares(budget)}" if budget.name is None else ""
        yield StatusLine(f"budget: {name}: {limits}{counted}")
    if unused := len(budgets) - len(used):
        yield StatusLine(f"budget: {format_count(unused, 'other')} counted nothing today")


def _period_usage(budget: BudgetStatus) -> Iterator[str]:
    """What is used of the limits of the day, and of that of the month, and when they start again."""
    texts = {key: _format_usage(budget.limits[key], noun) for key, noun in BUDGET_NOUNS.items() if key in budget.limits}
    usd = next((key for key in USD_LIMITS if key in texts), None)
    if usd is not None:
        texts[usd] += describe_unknown(budget.untold_usd or 0)
    month = texts.pop(MONTH_LIMIT, None)
    if texts:
        yield f"{', '.join(texts.values())} today, resets {output.format_time(budget.ends_at)[:16]}"
    if month is not None:
        yield f"{month} this month, resets {output.format_time(budget.month_ends_at)[:16]}"


def _format_usage(limit: UsedLimit, noun: str) -> str:
    if not noun:
        return f"{format_usd(limit.used)} of {format_usd(limit.of)}"
    return f"{limit.used:,.0f} of {format_count(int(limit.of), noun)}"


def _format_counted(entries: list[EntryName]) -> str:
    """How many agents and jobs a budget counts."""
    agents = sum(entry.kind == "heartbeat" for entry in entries)
    counts = ((agents, "agent"), (len(entries) - agents, "job"))
    return " and ".join(format_count(count, noun) for count, noun in counts if count) or "nothing"


def _format_shares(budget: BudgetStatus) -> str:
    """The entries with the largest shares, in the unit of the first limit."""
    part, _, _ = next(key for key in BUDGET_NOUNS if key in budget.limits).partition("_")
    read, show = attrgetter(part), format_usd if part == "usd" else "{:,}".format
    largest = sorted(filter(read, budget.shares), key=lambda each: -read(each))[:MAX_SHARES]
    named = ", ".join(f"{output.entry_label(each)} {show(read(each))}" for each in largest)
    return f"; most used by {named}" if named else ""


def _entry_columns(now: datetime) -> list[output.Column[EntryStatus]]:
    def ended(entry: EntryStatus) -> Level | None:
        return level_of_run(entry.last_run.result, entry.last_run.why) if entry.last_run else None

    def why(entry: EntryStatus) -> str:
        last = entry.last_run
        if last is None:
            return "-"
        if last.state == "running" and last.worker:
            return f"on {last.worker}"
        return output.format_why(last.why, last.delivery)

    def undelivered(entry: EntryStatus) -> Level | None:
        return (level_of(entry.last_run.delivery) if entry.last_run else None) or ended(entry)

    return [
        output.Column("NAME", output.entry_label),
        output.Column(
            "STATE", lambda entry: entry.state, level=lambda entry: None if entry.state == "active" else level_of(entry.state)
        ),
        output.Column("NEXT", lambda entry: output.format_short_time(entry.next_due or entry.paused_until, now)),
        output.Column(
            "LAST", lambda entry: entry.last_run.result or entry.last_run.state if entry.last_run else "-", level=ended
        ),
        output.Column("WHY", why, level=undelivered),
        output.Column(
            "ENDED", lambda entry: output.format_short_time(entry.last_run.finished_at if entry.last_run else None, now)
        ),
    ]
