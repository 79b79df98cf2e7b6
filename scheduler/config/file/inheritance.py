"""Merges the defaults into an entry. Each value keeps its source position."""

from __future__ import annotations

from scheduler.config.file.marked_yaml import MarkedMap

# Alternatives: an entry that sets one of these keys does not inherit the others.
JOB_SCHEDULE_KEYS = ("schedule", "every", "at", "after")
_JOB_ACTION_KEYS = ("command", "prompt")
HEARTBEAT_SCHEDULE_KEYS = ("schedule", "interval")
PRECHECK_KINDS = ("command", "imap", "http", "rss", "git", "calendar", "files", "disk")
# The parts of these values belong together: the zone or days of one window must not be merged into another window
_REPLACED_WHOLE = ("active_hours",)


def merge_maps(base: MarkedMap, over: MarkedMap) -> MarkedMap:
    """`over` on top of `base`. Maps are merged key by key at every depth; other values and `active_hours` are replaced. An empty
    value in place of a map keeps the inherited map.

    A map of another `kind`, or a precheck of another one, replaces the inherited map, because their keys differ.
    """
    if not over:
        return base
    merged = MarkedMap({**base, **over}, {**base.marks, **over.marks})
    for key in base.keys() & over.keys():
        below, above = base[key], over[key]
        if (
            isinstance(below, MarkedMap)
            and (key not in _REPLACED_WHOLE or above is None)
            and (above is None or (isinstance(above, MarkedMap) and _have_same_kind(key, below, above)))
        ):
            merged[key] = merge_maps(below, above or MarkedMap())
    return merged


def merge_job(base: MarkedMap, over: MarkedMap) -> MarkedMap:
    """`merge_maps` for a job: one of its own JOB_SCHEDULE_KEYS replaces an inherited one, as do `command` and `prompt`."""
    for either in (JOB_SCHEDULE_KEYS, _JOB_ACTION_KEYS):
        base = _without_alternatives(base, over, either)
    return merge_maps(base, over)


def merge_agent(base: MarkedMap, over: MarkedMap) -> MarkedMap:
    """`merge_maps` for an agent: its own `schedule` replaces an inherited `interval`, and the other way round."""
    below, above = base.get("heartbeat"), over.get("heartbeat")
    if isinstance(below, MarkedMap) and isinstance(above, MarkedMap):
        base = MarkedMap({**base, "heartbeat": _without_alternatives(below, above, HEARTBEAT_SCHEDULE_KEYS)}, base.marks)
    return merge_maps(base, over)


def _without_alternatives(base: MarkedMap, over: MarkedMap, either: tuple[str, ...]) -> MarkedMap:
    if not any(key in base for key in either) or not any(key in over for key in either):
        return base
    return MarkedMap({key: value for key, value in base.items() if key not in either}, base.marks)


def _have_same_kind(name: str, below: MarkedMap, above: MarkedMap) -> bool:
    if name == "precheck":
        kinds = [{kind for kind in PRECHECK_KINDS if kind in each} for each in (below, above)]
        return not all(kinds) or kinds[0] == kinds[1]
    return "kind" not in below or "kind" not in above or below["kind"] == above["kind"]
