"""Lets a daemon stand by until it leads. With a database file, it always leads: the lock beside the file sees to that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from scheduler.engine.tick import Engine
from scheduler.model.settings import Settings
from scheduler.store.database import Store
from scheduler.system import extras
from scheduler.system.boot_clock import BootClock
from scheduler.system.process import StartPermit


@dataclass(frozen=True, slots=True)
class DaemonParts:
    """What an extra uses of the daemon to let one of several lead."""

    settings: Settings
    instance: str
    clock: BootClock  # of the lease
    now: Callable[[], datetime]
    store: Store
    engine: Engine
    adopt_last_config: Callable[[], None]  # reads the config that the last leader had in force. Raises DatabaseUnavailable
    report_standby: Callable[[str, bool], None]  # tells the service manager what it waits for, and whether that is new
    wait: Callable[[float], None]  # so many seconds, or until a signal
    end_runs: Callable[[], None]  # at once, because another daemon may start them soon. Called from any thread


class Standby(StartPermit):
    """Whether this daemon leads. `lost_because` says why it must stop, because another one leads or may lead soon.

    Starts are allowed while no other daemon can lead. If one does, the runs of this one are cancelled while they wait.
    """

    lost_because: str | None = None
    is_possible = False  # whether another daemon can lead

    @property
    def must_yield(self) -> bool:
        """Whether another daemon leads, or may lead soon."""
        return False

    def wait_to_lead(self, is_over: Callable[[bool], bool]) -> bool:
        """Stand by until no other daemon leads. False if this daemon is to stop before.

        `is_over` is asked again and again, with whether the lease of the last leader has expired.
        """
        return True

    def lose(self, problem: str) -> None:
        """Stop leading, and end all runs."""

    def stop(self, *, release: bool) -> None:
        """Stop renewing the lease. With `release` another daemon may lead at once."""


def make_standby(parts: DaemonParts) -> Standby:
    """For a database file, or for one on a server, for which an extra is loaded. Raises UnusableExtra."""
    if parts.settings.postgresql is None:
        return Standby()
    made: Standby = extras.load("stores", "postgresql").make_standby(parts)
    return made
