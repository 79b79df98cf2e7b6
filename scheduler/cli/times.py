"""Times as people read them: to the second, in the host's zone, which is named beside them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def local(instant: str | datetime | None) -> str:
    """An instant, also as JSON has it, to the second in the host's zone; a dash for none."""
    if instant is None:
        return "-"
    moment = datetime.fromisoformat(instant) if isinstance(instant, str) else instant
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def short(instant: str | None, now: datetime) -> str:
    """An instant as a table has it, in the host's zone: the time alone if it is today's, else the day and the minute."""
    if instant is None:
        return "-"
    moment, today = datetime.fromisoformat(instant).astimezone(), now.astimezone().date()
    return f"{moment:%H:%M:%S}" if moment.date() == today else f"{moment:%m-%d %H:%M}"


def zone_name(localtime: Path = Path("/etc/localtime")) -> str:
    """What the host's zone is called: its IANA name where the host tells it, else the short name of its clock."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if not named and localtime.is_symlink():
        _, _, named = str(localtime.readlink()).partition("zoneinfo/")
    return named or datetime.now().astimezone().tzname() or "local time"


def between(since: str | None, until: str | None) -> str:
    """How long something took, in seconds; a dash for what has not begun or ended."""
    if since is None or until is None:
        return "-"
    return f"{(datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds():.1f}s"


def rough(span: timedelta) -> str:
    """A length of time in its largest unit and the one below it: 3d4h, 5m20s, 12d."""
    seconds = max(0, int(span.total_seconds()))
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    while len(parts) > 1 and not parts[0][0]:
        del parts[0]
    return "".join(f"{number}{unit}" for number, unit in parts[:2] if number) or "0s"
