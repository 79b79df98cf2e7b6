"""Time zones: names of the IANA list, read from the tzdata package and nowhere else."""

from __future__ import annotations

import zoneinfo
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo

# A machine's own zone files are often years old; with no path to them the package is the one source. Done where zones are
# made from the user's words, so that nothing can make one before.
zoneinfo.reset_tzpath(to=[])

UTC_ZONE = ZoneInfo("UTC")


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """The zone of that name; ValueError, with a suggestion, where there is none. `Europe` alone is none."""
    if name in _names():
        return ZoneInfo(name)
    raise ValueError(f"{_shown(name)} is not a time zone; {_advice(name)}")


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones()) - {"Factory", "localtime", "posixrules"}


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 40 else "this"


def _advice(name: str) -> str:
    wanted = name.casefold().replace(" ", "_") or "?"
    for known in sorted(_names()):
        if wanted in (known.casefold(), known.casefold().rpartition("/")[2]):
            return f"did you mean {known}?"
        if known.casefold().startswith(f"{wanted}/"):
            return f"name a place in it too, like {known}"
    close = get_close_matches(name, _names(), n=1) if 4 < len(name) <= 40 else []
    return f"did you mean {close[0]}?" if close else "write a name of the IANA list, like Europe/Berlin or UTC"
