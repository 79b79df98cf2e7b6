"""Finds IANA time zones by name, and suggests the closest one for a name that is none."""

from __future__ import annotations

import zoneinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from scheduler.config.file.message_parts import find_closest, quote_value

# The zone files of a machine are often years old, so zones come from the tzdata package alone. This is set here, where zones
# are made from the config, so that no zone can be made before.
zoneinfo.reset_tzpath(to=[])

UTC_ZONE = ZoneInfo("UTC")


@lru_cache(maxsize=1024)
def find_zone(name: str) -> ZoneInfo:
    """The time zone of that name. Raises ValueError with the closest zone if there is none."""
    if name in _zone_names():
        return ZoneInfo(name)
    places = {zone for zone in _zone_names() if "/" in zone and not zone.startswith("Etc/")}  # UTC+2 is not Etc/GMT+2
    cities = {zone.rpartition("/")[2]: zone for zone in sorted(places)} | {"UTC": "UTC"}
    is_abbreviation = name.isupper() and len(name) < 6  # CEST has no summer time, and resembles the names of other places
    close = not is_abbreviation and (find_closest(name, places) or cities.get(find_closest(name, cities)))
    advice = f"did you mean {close}?" if close else "write an IANA name, like Europe/Berlin or UTC"
    raise ValueError(f"{quote_value(name)} is not a time zone; {advice}")


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones()) - {"Factory", "localtime", "posixrules"}
