"""Whether all our packages are ours: a published library of another purpose installs a top-level `scheduler/` too."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
ALONE = "install heartbeatd in an environment of its own, and run it from another folder"
PACKAGES = ("scheduler", "heartbeat", "cron")


def stray_package(locate: Callable[[str], Path | None] | None = None) -> str | None:
    """A sentence about the first of our packages that Python finds in another place than this file; None if all is well."""
    locate = locate or _locate
    for package in PACKAGES:
        found = locate(package)
        if found is None:
            return f"the package {package}/ is missing beside {HOME / 'scheduler'}; {ALONE}"
        if found != HOME:
            return f"the package {package}/ comes from {found}, not {HOME}: another library has its name; {ALONE}"
    return None


def _locate(package: str) -> Path | None:
    """The folder in which Python finds a package, without importing it."""
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]).resolve().parent if places else None
