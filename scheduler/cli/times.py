"""Times as people read and write them: in the top-level zone of the config that the command is about, else in the host's."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import click


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def local(instant: str | datetime | None) -> str:
    """An instant, also as JSON has it, to the second in `zone()`; a dash for none."""
    if instant is None:
        return "-"
    moment = datetime.fromisoformat(instant) if isinstance(instant, str) else instant
    return f"{moment.astimezone(zone()):%Y-%m-%d %H:%M:%S}"


def short(instant: str | None, now: datetime) -> str:
    """An instant as a table has it, in `zone()`: the time alone if it is today's, else the day and the minute."""
    if instant is None:
        return "-"
    moment, today = datetime.fromisoformat(instant).astimezone(zone()), now.astimezone(zone()).date()
    return f"{moment:%H:%M:%S}" if moment.date() == today else f"{moment:%m-%d %H:%M}"


def zone() -> ZoneInfo | None:
    """The zone in which times are printed, and read where they have no offset; None, the host's, where no config says which."""
    context = click.get_current_context(silent=True)
    path = context.params.get("path") if context else None
    if context is None or path is None:
        return None
    if _ZONE not in context.meta:
        context.meta[_ZONE] = _declared(path)
    found: ZoneInfo | None = context.meta[_ZONE]
    return found


def zone_name() -> str:
    """What `zone()` is called."""
    found = zone()
    return found.key if found else host_zone_name()


def host_zone_name(localtime: Path = Path("/etc/localtime")) -> str:
    """What the host's zone is called: its IANA name where the host tells it, else the short name of its clock."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if not named and localtime.is_symlink():
        _, _, named = str(localtime.readlink()).partition("zoneinfo/")
    return named or datetime.now().astimezone().tzname() or "local time"


_ZONE = f"{__name__}.zone"


def _declared(path: Path) -> ZoneInfo | None:
    """The top-level zone of a config, however broken that is otherwise."""
    from scheduler.config.file import lenient_reading
    from scheduler.config.keys import time_zones  # for commands that tell times alone

    name = lenient_reading.peek_timezone(path, os.environ)
    try:
        return time_zones.zone(name) if name else None
    except ValueError:
        return None


def between(since: str | None, until: str | None) -> str:
    """How long something took, in seconds; a dash for what has not begun or ended."""
    if since is None or until is None:
        return "-"
    return f"{(datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds():.1f}s"


def passed(since: str | datetime, until: str | datetime) -> timedelta:
    """How long it is between two instants as people see them, to the second: what is printed beside them agrees."""
    begin, end = (datetime.fromisoformat(each) if isinstance(each, str) else each for each in (since, until))
    return end.replace(microsecond=0) - begin.replace(microsecond=0)


def rough(span: timedelta) -> str:
    """A length of time in its largest unit and the one below it: 3d4h, 5m20s, 12d."""
    seconds = max(0, int(span.total_seconds()))
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    while len(parts) > 1 and not parts[0][0]:
        del parts[0]
    return "".join(f"{number}{unit}" for number, unit in parts[:2] if number) or "0s"
