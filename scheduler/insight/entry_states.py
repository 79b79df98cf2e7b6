"""Says in which state an entry is, and whether it is muted. The commands, the page, the API and MCP say it with these words."""

from __future__ import annotations

from datetime import datetime

from heartbeatd.answers import ActiveMute, EntryState
from scheduler.insight.reason_texts import REASON_TEXTS
from scheduler.insight.schedule_texts import TimeFormat
from scheduler.model.entry_row import UNTIL_RESUMED, EntryRow, parse_mute


def entry_state(row: EntryRow, now: datetime, times: TimeFormat, *, is_open: bool) -> EntryState:
    """Whether an entry may run; `is_open`: it has a run that has not ended."""
    state, done = row.state_at(now), row.done_at(now, is_open=is_open)
    is_paused = state == "paused"
    says = REASON_TEXTS.get(row.state, "active")
    if is_paused:
        begin = f" since {times.at(row.paused_at)}" if row.paused_at else ""
        by = "" if row.is_paused_by_failures or not row.paused_by else f" by {row.paused_by}"
        how = row.pause_says if row.is_paused_by_failures else "paused"
        says = f"{how}{begin}{by} until {times.at(row.pause_ends) if row.pause_ends else 'someone resumes it'}"
    return EntryState(
        kind=row.kind.value,
        name=row.name,
        state="done" if done else state,
        says=f"done at {times.at(done)}" if done else says,
        paused_until=row.pause_ends if is_paused else None,
        paused_at=row.paused_at if is_paused else None,
        paused_by=row.paused_by if is_paused else None,
        done_at=done,
    )


def active_mute(row: EntryRow, now: datetime, times: TimeFormat) -> ActiveMute | None:
    """The mute of an entry; None without one."""
    if row.mute is None or not row.is_muted(now):
        return None
    mute, until = parse_mute(row.mute), None if row.muted_until == UNTIL_RESUMED else row.muted_until
    until_changed = mute.known is not None
    ends = [f"until {times.at(until)}"] if until else []
    ends += ["until something changes"] if until_changed else []
    says = f"muted by {mute.by} {' or '.join(ends) or 'until unmuted'}"
    return ActiveMute(since=mute.since, by=mute.by, until=until, until_changed=until_changed, held=mute.held, says=says)
