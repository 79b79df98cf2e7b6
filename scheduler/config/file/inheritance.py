"""Inheritance: what an entry takes over from the defaults, each value with the place where it was written."""

from __future__ import annotations

from scheduler.config.file.marked_yaml import MarkedMap

# One of a kind: an entry that writes one does not inherit the other.
_JOB_SCHEDULE_KEYS = ("schedule", "every", "at")
_JOB_ACTION_KEYS = ("command", "prompt")
_HEARTBEAT_SCHEDULE_KEYS = ("schedule", "interval")
_REPLACED_WHOLE = ("active_hours",)  # its parts say one thing together: a zone or a day must not come into another's window


def merge_maps(base: MarkedMap, over: MarkedMap) -> MarkedMap:
    """`over` on top of `base`: maps merge key by key at every depth, all else replaces, and `active_hours` too; an empty value
    for a map keeps the map.

    A map of another `kind` replaces too: its keys are not those of the first.
    """
    if not over:
        return base
    merged = MarkedMap({**base, **over}, {**base.marks, **over.marks})
    for key in base.keys() & over.keys():
        below, above = base[key], over[key]
        if (
            isinstance(below, MarkedMap)
            and (key not in _REPLACED_WHOLE or above is None)
            and (above is None or (isinstance(above, MarkedMap) and _have_same_kind(below, above)))
        ):
            merged[key] = merge_maps(below, above or MarkedMap())
    return merged


def merge_job(base: MarkedMap, over: MarkedMap) -> MarkedMap:
    """As `merge`, for jobs: of what says when, and of command and prompt, one of its own undoes an inherited other."""
    for either in (_JOB_SCHEDULE_KEYS, _JOB_ACTION_KEYS):
        base = _without_alternatives(base, over, either)
    return merge_maps(base, over)


def merge_agent(base: MarkedMap, over: MarkedMap) -> MarkedMap:
    """As `merge`, for agents: a heartbeat's schedule of its own undoes an inherited interval, and the other way round."""
    below, above = base.get("heartbeat"), over.get("heartbeat")
    if isinstance(below, MarkedMap) and isinstance(above, MarkedMap):
        base = MarkedMap({**base, "heartbeat": _without_alternatives(below, above, _HEARTBEAT_SCHEDULE_KEYS)}, base.marks)
    return merge_maps(base, over)


def _without_alternatives(base: MarkedMap, over: MarkedMap, either: tuple[str, ...]) -> MarkedMap:
    if not any(key in base for key in either) or not any(key in over for key in either):
        return base
    return MarkedMap({key: value for key, value in base.items() if key not in either}, base.marks)


def _have_same_kind(below: MarkedMap, above: MarkedMap) -> bool:
    return "kind" not in below or "kind" not in above or below["kind"] == above["kind"]
