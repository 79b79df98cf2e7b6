"""Open files: a run in progress keeps some, and a process may have 1,024 of them on most systems unless it asks for more."""

from __future__ import annotations

import logging
import resource

from scheduler.logs import event

MOST_RUNS = 1000  # that limits.concurrency allows, which a reload may change
OF_A_RUN = 8  # its lane, and a socket, or the pipes of a child and what watches them
OF_ITS_OWN = 200  # the database, the interface, deliveries

_ANY = 1 << 30


def see_to(concurrency: int) -> None:
    """Ask for what the most runs need that a config may allow, and warn where that is too little for this one's `concurrency`."""
    wanted, allowed = needed(concurrency), allow(needed(MOST_RUNS))
    if allowed < wanted:
        problem = f"concurrency: {concurrency} runs at a time may need {wanted} open files, and {allowed} are allowed"
        remedy = "write a smaller number, or allow more (ulimit -n, LimitNOFILE= of systemd)"
        event(logging.WARNING, "limits", problem=f"{problem}; {remedy}")


def needed(runs: int) -> int:
    """How many files so many runs at a time may have open, with all that the daemon itself has."""
    return OF_ITS_OWN + OF_A_RUN * runs


def allow(wanted: int) -> int:
    """Ask the system for so many open files; gives how many this process may have now. Its children inherit that."""
    soft, hard = (_ANY if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    if soft >= wanted:
        return soft
    allowed = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard if hard != _ANY else resource.RLIM_INFINITY))
    return allowed
