"""Says why an agent or a job is quiet although it runs: it is muted, its problem is known, or its answers have not come."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from typing import Literal

from heartbeat.spec import Heartbeat
from heartbeat.words import shorten
from heartbeatd.answers import QuietReason
from scheduler.engine import condition_news
from scheduler.insight.schedule_texts import TimeFormat
from scheduler.model.condition import Condition, ReportKind
from scheduler.model.entry_row import UNTIL_RESUMED, EntryRow
from scheduler.model.mute import parse_mute
from scheduler.model.outcome import Kind
from scheduler.store import conditions, run_history

MAX_CONDITIONS = 3  # conditions that a reason names; the list of conditions has all of them
MAX_KEY = 40  # characters that are shown of a key


def quiet_reasons(
    db: sqlite3.Connection, row: EntryRow, spec: Heartbeat | None, now: datetime, times: TimeFormat
) -> list[QuietReason]:
    """Why an entry is quiet now, the strongest reason first. Without its `spec` the times of reminders are not known."""
    found: list[QuietReason] = []
    if row.is_muted(now):
        found.append(QuietReason(code="muted", says=_mute_text(row, times), count=1))
    count = run_history.count_awaited_results(db, row.kind, row.name)
    if count:
        says = "1 run waits for its result" if count == 1 else f"{count:,} runs wait for their result"
        found.append(QuietReason(code="awaits_results", says=says, count=count))
    if row.kind is Kind.HEARTBEAT and row.conditions:
        found += _condition_reasons(conditions.open_conditions_of(db, row.name), spec, now, times)
    return found


def _mute_text(row: EntryRow, times: TimeFormat) -> str:
    assert row.mute is not None and row.muted_until is not None  # it is muted
    mute = parse_mute(row.mute)
    ends = [f"until {times.at(row.muted_until)}"] if row.muted_until != UNTIL_RESUMED else []
    ends += ["until something changes"] if mute.known is not None else []
    return f"muted by {mute.by} {' or '.join(ends) or 'until unmuted'}"


def _condition_reasons(known: list[Condition], spec: Heartbeat | None, now: datetime, times: TimeFormat) -> Iterator[QuietReason]:
    """The acknowledged conditions, and those of which all recipients know."""
    texts: dict[Literal["acknowledged", "known"], list[str]] = {"acknowledged": [], "known": []}
    for each in known:
        if each.is_acknowledged:
            texts["acknowledged"].append(f"{shorten(each.label, MAX_KEY)}: acknowledged by {each.acked_by}")
        elif _is_reported(each):
            texts["known"].append(f"{shorten(each.label, MAX_KEY)}: {_known_text(each, spec, now, times)}")
    for code, found in texts.items():
        more = [f"and {len(found) - MAX_CONDITIONS} more"] if len(found) > MAX_CONDITIONS else []
        if found:
            yield QuietReason(code=code, says="; ".join([*found[:MAX_CONDITIONS], *more]), count=len(found))


def _is_reported(condition: Condition) -> bool:
    reports = condition.reports.values()
    return bool(reports) and all(each.kind is not ReportKind.ENDED and each.delivered_at is not None for each in reports)


def _known_text(condition: Condition, spec: Heartbeat | None, now: datetime, times: TimeFormat) -> str:
    since = f"known since {times.at(condition.opened_at)}"
    reminder = condition_news.next_reminder(condition, spec) if spec else None
    if reminder is None:
        return since
    return f"{since}, next reminder {times.at(reminder) if reminder > now else 'with the next answer that mentions it'}"
