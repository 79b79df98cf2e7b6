"""Builds the precheck of an agent or a job, and reports its keys that have no effect."""

from __future__ import annotations

from datetime import timedelta

from heartbeat.spec import Precheck
from heartbeat.words import format_duration
from scheduler.config.keys import models
from scheduler.config.settings.config_node import ConfigNode

LONGEST_PRECHECK = timedelta(seconds=30)


def build_precheck(part: models.Precheck | None, most: timedelta, node: ConfigNode, *inside: str) -> Precheck | None:
    """Build a checked precheck, whose key is below `inside`. `most` is the timeout of the whole attempt."""
    if part is None:
        return None
    default = min(most / 2, LONGEST_PRECHECK)
    timeout = part.timeout or default
    at = (*inside, "precheck")
    if timeout >= most:
        owner = "heartbeat" if inside else "job"
        wrong = f"{format_duration(timeout)} leaves the agent no time"
        node.add_error(f"{wrong}; write less than the {owner}'s timeout of {format_duration(most)}", *at, "timeout")
    _check_unused_keys(part, node, *at)
    return Precheck(
        part.command,
        "skip" if part.unchanged.skip else "run",
        part.on_error,
        timeout,
        max_age=part.unchanged.max_age if part.unchanged.skip else None,
        confirm=part.confirm,
    )


def _check_unused_keys(part: models.Precheck, node: ConfigNode, *at: str) -> None:
    """Report keys of the entry's own precheck that have no effect, because an unchanged output does not skip the run."""
    if part.unchanged.skip:
        return
    is_inherited = node.has_own_key(*at, "unchanged", "skip") and not node.has_own_key(*at, "unchanged", "max_age")
    if part.unchanged.max_age is not None and not is_inherited:
        problem = "runs are not skipped here; remove max_age, or write skip: true"
        node.add_error(problem, *at, "unchanged", "max_age")
    if node.has_own_key(*at, "confirm"):
        problem = "only runs that an unchanged output would skip are confirmed"
        node.add_error(f"{problem}; remove confirm, or write unchanged: skip too", *at, "confirm")
