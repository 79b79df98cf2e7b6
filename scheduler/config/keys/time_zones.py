"""Finds IANA time zones by name, and suggests zones for cities, countries, offsets and abbreviations."""

from __future__ import annotations

import re
import zoneinfo
from collections import defaultdict
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from unicodedata import combining, normalize
from zoneinfo import ZoneInfo

from scheduler.config.file.message_parts import edit_distance
from scheduler.config.file.remedies import InvalidValue, Remedy, join_with_or
from scheduler.config.keys.zone_places import ABBREVIATIONS, CITIES, COUNTRIES, UNEVEN

# The zone files of a machine are often years old, so zones come from the tzdata package alone. This is set here, where zones
# are made from the config, so that no zone can be made before.
zoneinfo.reset_tzpath(to=[])

UTC_ZONE = ZoneInfo("UTC")
WRITE_A_ZONE = "write an IANA name, like Europe/Berlin or UTC"
MOST_LISTED = 3  # zones of a country that a message lists

_OLD_REGIONS = ("Etc", "US", "Canada", "Mexico", "Brazil", "Chile")  # obsolete regions that the IANA list keeps

_OFFSET = re.compile(r"(?:gmt|utc)?\s*(?P<sign>[+\u2212-])\s*(?P<hours>\d{1,2})(?::?(?P<minutes>[0-5]\d))?", re.ASCII)
_UTC_WORDS = (
    "z",
    "utc",
    "gmt",
    "zulu",
    "universal",
    "utc+0",
    "gmt+0",
    "+00:00",
    "+0000",
    "utc+00:00",
    "coordinated universal time",
)


@lru_cache(maxsize=1024)
def find_zone(name: str) -> ZoneInfo:
    """The time zone of that name. Raises InvalidValue (a ValueError) with suggestions if there is none."""
    if name in _zone_names():
        return ZoneInfo(name)
    problem = f"{_quote_name(name)} is not a time zone"
    words = name.strip().casefold()
    if len(name) > 40 or not words:
        raise _unknown_zone(problem)
    if words in _UTC_WORDS:
        raise _suggest_zones(problem, "UTC")
    if known := _zones_by_plain_name().get(_plain_name(name)):
        raise _suggest_zones(problem, known)
    if offset := _OFFSET.fullmatch(words):
        raise _explain_offset(problem, offset)
    if name.strip().upper() in ABBREVIATIONS:
        places = ABBREVIATIONS[name.strip().upper()]
        words = f"an abbreviation has no summer time, or is ambiguous; write a place, like {join_with_or(places)}"
        raise InvalidValue(problem, *(Remedy(place, is_certain=len(places) == 1) for place in places), advice=words)
    raise _explain_place(problem, name)


def _unknown_zone(problem: str) -> InvalidValue:
    return InvalidValue(problem, Remedy("Europe/Berlin"), Remedy("UTC"), advice=WRITE_A_ZONE)


def _suggest_zones(problem: str, *names: str) -> InvalidValue:
    return InvalidValue(
        problem, *(Remedy(name, is_certain=len(names) == 1) for name in names), advice=f"did you mean {join_with_or(names)}?"
    )


def _explain_offset(problem: str, found: re.Match[str]) -> InvalidValue:
    """The error for an offset from UTC: it is not a time zone, because the offset of most zones changes twice a year."""
    minutes = int(found["hours"]) * 60 + int(found["minutes"] or 0)
    minutes = minutes if found["sign"] == "+" else -minutes
    if not minutes:
        return _suggest_zones(problem, "UTC")
    if minutes in UNEVEN:
        return InvalidValue(
            problem, Remedy(UNEVEN[minutes], is_certain=True), advice=f"name a place with that offset, like {UNEVEN[minutes]}"
        )
    hours, rest = divmod(abs(minutes), 60)
    fixed = f"Etc/GMT{'-' if minutes > 0 else '+'}{hours}"
    if rest or fixed not in _zone_names():
        return _unknown_zone(problem)
    side = "ahead of" if minutes > 0 else "behind"
    count = f"{hours} hour{'' if hours == 1 else 's'}"
    words = f"name a place, like Europe/Berlin, or write {fixed}: in Etc/ the sign is reversed, and this is {count} {side} UTC"
    return InvalidValue(problem, Remedy(fixed, is_certain=True), advice=words)


def _explain_place(problem: str, name: str) -> InvalidValue:
    """The error for a city, a country, a region or a misspelt zone."""
    region, _, last = name.strip().rpartition("/")
    whole, place = _plain_name(name), _plain_name(last)
    if cities := _zones_by_other_city().get(place) or _zones_by_city().get(place):
        inside = [zone for zone in cities if region and _plain_name(zone).startswith(f"{_plain_name(region)}/")]
        return _suggest_zones(problem, *(inside or cities)[:MOST_LISTED])
    if zones := _zones_by_country().get(place):
        if len(zones) == 1:
            return _suggest_zones(problem, zones[0])
        return InvalidValue(
            problem,
            *map(Remedy, zones[:MOST_LISTED]),
            advice=f"it has several zones; name a place, like {join_with_or(zones[:MOST_LISTED])}",
        )
    if below := tuple(zone for zone in sorted(_zone_names()) if _plain_name(zone).startswith(f"{whole}/")):
        return InvalidValue(problem, Remedy(below[0]), advice=f"name a place in it, like {below[0]}")
    close = _closest_zones(whole) or _closest_cities(place, _plain_name(region))
    return _suggest_zones(problem, *close) if close else _unknown_zone(problem)


def _closest_zones(whole: str) -> tuple[str, ...]:
    """The zones one or two letters away, the nearest alone."""
    return _nearest_names(whole, {plain: (zone,) for plain, zone in _zones_by_plain_name().items()})


def _closest_cities(place: str, region: str) -> tuple[str, ...]:
    """The zones whose last part, or one of whose cities, is one or two letters away."""
    near = _nearest_names(place, {**_zones_by_other_city(), **_zones_by_city()})
    return tuple(zone for zone in near if not region or _plain_name(zone).startswith(f"{region}/")) or (() if region else near)


def _nearest_names(word: str, among: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    most = 2 if len(word) > 6 else 1 if len(word) > 3 else 0
    alike = (other for other in among if _digits_of(other) == _digits_of(word)) if most else ()  # GMT+2 is no misspelt GMT+3
    ranked = sorted((away, other) for other in alike if (away := edit_distance(word, other, most)) <= most)
    found = dict.fromkeys(zone for away, other in ranked if away == ranked[0][0] for zone in among[other])
    return tuple(found) if 0 < len(found) <= MOST_LISTED else ()


def _digits_of(word: str) -> str:
    return "".join(sign for sign in word if sign.isdigit() or sign in "+")


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones()) - {"Factory", "localtime", "posixrules"}


@lru_cache(maxsize=1)
def _zones_by_plain_name() -> dict[str, str]:
    return {_plain_name(name): name for name in sorted(_zone_names(), key=lambda name: ("/" in name, name), reverse=True)}


@lru_cache(maxsize=1)
def _zones_by_city() -> dict[str, tuple[str, ...]]:
    """Zones by the city in their name; current names come before their aliases."""
    found = defaultdict[str, list[str]](list)
    places = {name for zones in _zones_by_country().values() for name in zones}
    for name in sorted(_zone_names(), key=lambda name: (name not in places, name)):
        city = _plain_name(name.rpartition("/")[2])
        if not any(name.startswith(f"{old}/") for old in _OLD_REGIONS) and "/" in name and not found[city]:
            found[city].append(name)
    return {city: tuple(zones) for city, zones in found.items() if zones}


@lru_cache(maxsize=1)
def _zones_by_other_city() -> dict[str, tuple[str, ...]]:
    return {_plain_name(city): (name,) for name, cities in CITIES.items() for city in cities.split(", ")}


@lru_cache(maxsize=1)
def _zones_by_country() -> dict[str, tuple[str, ...]]:
    """The zones of each country, from the tables of the IANA list, which begin with the largest places."""
    names = dict(row[:2] for row in _read_table("iso3166.tab"))
    zones = defaultdict[str, list[str]](list)
    for code, _, name, *_ in _read_table("zone.tab"):
        zones[code].append(name)
    zones_of = {code: _distinct_clocks(names) for code, names in zones.items()}
    found = {_plain_name(re.sub(r" \(.*\)", "", country)): zones_of[code] for code, country in names.items() if zones[code]}
    return found | {name: zones_of[code] for name, code in COUNTRIES.items()}


def _distinct_clocks(names: list[str]) -> tuple[str, ...]:
    """The zones without those that have the same time all year as an earlier one."""
    seasons = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 7, 1, tzinfo=UTC))
    clocks = {tuple(day.astimezone(ZoneInfo(name)).utcoffset() for day in seasons): name for name in reversed(names)}
    return tuple(reversed(clocks.values()))


def _read_table(name: str) -> list[list[str]]:
    text = (files("tzdata.zoneinfo") / name).read_text("utf-8")
    return [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]


def _plain_name(name: str) -> str:
    """Without accents, capitals, blanks, dots and apostrophes."""
    bare = "".join(sign for sign in normalize("NFKD", name.strip()) if not combining(sign))
    return re.sub(r"[ _-]+", "_", re.sub(r"['’.,]", "", bare.casefold().replace("ß", "ss").replace("ø", "o").replace("đ", "d")))


def _quote_name(name: str) -> str:
    return repr(name) if len(name) <= 40 else "this"
