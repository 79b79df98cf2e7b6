"""Lists the coming events of a calendar in the format iCalendar, repeated ones included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import MAXYEAR, UTC, date, datetime, time, timedelta
from hashlib import sha256
from threading import Lock
from typing import Any
from zoneinfo import ZoneInfo

from heartbeat.words import squeeze
from scheduler.system import extras

MAX_TEXT = 200  # characters of title and place
MAX_EVENTS = 200
MAX_REPEATS = 200_000  # of an event since its beginning; hourly for 22 years
TOO_OFTEN = frozenset({"SECONDLY", "MINUTELY"})  # counting them from their beginning could take hours

_parsing = Lock()  # the library keeps time zones for the whole process


def list_events(data: bytes, begin: datetime, end: datetime, zone: ZoneInfo) -> dict[str, str]:
    """A line for each event that begins after `begin` and until `end`, in order, by a name that stays if the event is changed.

    `zone` is that of the times in the lines, and of times without a zone. Raises ValueError if it is no calendar.
    """
    try:
        from icalendar import Calendar, use_zoneinfo
    except ImportError:
        raise ValueError(extras.how_to_install("calendar")) from None
    try:
        with _parsing:
            use_zoneinfo()  # forgets the time zones that other calendars have defined, maybe with the same names
            components = [each for calendar in Calendar.from_ical(data, multiple=True) for each in calendar.walk("VEVENT")]
    except Exception as error:  # noqa: BLE001 (the library fails in many ways with what strangers write)
        raise ValueError(f"it is not a calendar ({error})") from None
    try:
        return _lines_of_coming(components, begin, end, zone)
    except ValueError:
        raise
    except Exception as error:  # noqa: BLE001 (both libraries do)
        raise ValueError(f"it is not a valid calendar ({error})") from None


def _lines_of_coming(components: Sequence[Any], begin: datetime, end: datetime, zone: ZoneInfo) -> dict[str, str]:
    changed = {(str(each.get("uid")), _planned(each, zone)) for each in components if "recurrence-id" in each}
    found = []
    for event in components:
        if "dtstart" not in event or str(event.get("status", "")).upper() == "CANCELLED":
            continue
        uid, is_single = str(event.get("uid")), "recurrence-id" in event
        for at in [_aware(event["dtstart"].dt, zone)] if is_single else _starts(event, begin, end, zone):
            if begin < at <= end and (is_single or (uid, at) not in changed):
                repeated = _planned(event, zone) if is_single else at if "rrule" in event or "rdate" in event else ""
                line = _line(event, at, zone)
                name = f"{uid} {repeated}" if "uid" in event else line
                found.append((at, sha256(name.encode(errors="replace")).hexdigest()[:16], line))
    if len(found) > MAX_EVENTS:
        raise ValueError(f"more than {MAX_EVENTS} events begin within this time; write a shorter ahead")
    return {name: line for _, name, line in sorted(found)}


def _starts(event: Any, begin: datetime, end: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """When a repeated event begins within the span. Local times are repeated, so that 9:00 stays 9:00 in summer."""
    from dateutil.rrule import rruleset, rrulestr

    first = _aware(event["dtstart"].dt, zone)
    local = first.tzinfo
    title = squeeze(str(event.get("summary", "")), 60)
    rules = rruleset()
    rules.rdate(first.replace(tzinfo=None))
    for rule in _listed(event.get("rrule")):
        if TOO_OFTEN & {str(each).upper() for each in rule.get("FREQ", ())}:
            raise ValueError(f"the event {title} is repeated more than hourly")
        if min(rule.get("INTERVAL", (1,))) < 1:  # dateutil would never end
            raise ValueError(f"the event {title} is repeated with an interval below 1")
        parts = dict(rule)
        parts["UNTIL"] = [
            _aware(each, zone, at=time.max).astimezone(local).replace(tzinfo=None)
            for each in rule.get("UNTIL", ())
            if each.year < MAXYEAR  # means forever, and has no time in zones to the east
        ]
        text = type(rule)({name: value for name, value in parts.items() if value}).to_ical().decode()
        rules.rrule(rrulestr(text, dtstart=first.replace(tzinfo=None)))
    for key, add in (("rdate", rules.rdate), ("exdate", rules.exdate)):
        for listed in _listed(event.get(key)):
            for each in listed.dts:
                value = each.dt[0] if isinstance(each.dt, tuple) else each.dt
                add(_aware(value, zone).astimezone(local).replace(tzinfo=None))
    first_shown, last = (
        each.astimezone(local).replace(tzinfo=None) for each in (begin - timedelta(hours=3), end + timedelta(hours=3))
    )
    for count, at in enumerate(rules):
        if at > last:
            return
        if count == MAX_REPEATS:
            raise ValueError(f"the event {title} is repeated more than {MAX_REPEATS:,} times")
        if at >= first_shown:
            yield at.replace(tzinfo=local).astimezone(UTC)


def _planned(event: Any, zone: ZoneInfo) -> datetime:
    """When a changed event of a series was to begin.

    In UTC, as Python finds a time of the repeated hour unequal to the same time in another zone.
    """
    return _aware(event["recurrence-id"].dt, zone).astimezone(UTC)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _aware(value: date | datetime, zone: ZoneInfo, at: time = time.min) -> datetime:
    """The beginning of a day, or a time, in its own zone or this one."""
    if not isinstance(value, datetime):
        return datetime.combine(value, at, zone)
    return value if value.tzinfo else value.replace(tzinfo=zone)


def _line(event: Any, at: datetime, zone: ZoneInfo) -> str:
    """Local time, title and place. The time comes first, so that lines are in the order of time."""
    place = f" ({event['location']})" if event.get("location") else ""
    is_day = not isinstance(event["dtstart"].dt, datetime)
    when = f"{at.astimezone(zone):%Y-%m-%d}" + (" (all day)" if is_day else f" {at.astimezone(zone):%H:%M}")
    return f"{when} {squeeze(str(event.get('summary', '(no title)')) + place, MAX_TEXT)}"
