"""Inheritance: what an entry takes over from the defaults, each value with the place where it was written."""

from __future__ import annotations

from scheduler.config.file.marked_yaml import Map

# One of a kind: an entry that writes one does not inherit the other.
_OF_A_JOB = ("schedule", "every", "at")
_WHAT_IT_DOES = ("command", "prompt")
_OF_A_BEAT = ("schedule", "interval")
_WHOLE = ("active_hours",)  # its parts say one thing together: a zone or a day must not come into another's window


def merge(base: Map, over: Map) -> Map:
    """`over` on top of `base`: maps merge key by key at every depth, all else replaces, and `active_hours` too; an empty value
    for a map keeps the map.

    A map of another `kind` replaces too: its keys are not those of the first.
    """
    if not over:
        return base
    merged = Map({**base, **over}, {**base.marks, **over.marks})
    for key in base.keys() & over.keys():
        below, above = base[key], over[key]
        if (
            isinstance(below, Map)
            and (key not in _WHOLE or above is None)
            and (above is None or (isinstance(above, Map) and _alike(below, above)))
        ):
            merged[key] = merge(below, above or Map())
    return merged


def merge_job(base: Map, over: Map) -> Map:
    """As `merge`, for jobs: of what says when, and of command and prompt, one of its own undoes an inherited other."""
    for either in (_OF_A_JOB, _WHAT_IT_DOES):
        base = _without_rivals(base, over, either)
    return merge(base, over)


def merge_agent(base: Map, over: Map) -> Map:
    """As `merge`, for agents: a heartbeat's schedule of its own undoes an inherited interval, and the other way round."""
    below, above = base.get("heartbeat"), over.get("heartbeat")
    if isinstance(below, Map) and isinstance(above, Map):
        base = Map({**base, "heartbeat": _without_rivals(below, above, _OF_A_BEAT)}, base.marks)
    return merge(base, over)


def _without_rivals(base: Map, over: Map, either: tuple[str, ...]) -> Map:
    if not any(key in base for key in either) or not any(key in over for key in either):
        return base
    return Map({key: value for key, value in base.items() if key not in either}, base.marks)


def _alike(below: Map, above: Map) -> bool:
    return "kind" not in below or "kind" not in above or below["kind"] == above["kind"]
