"""Inheritance: what an entry takes over from the defaults, each value with the place where it was written."""

from __future__ import annotations

from scheduler.config.tree import Map

_EITHER = ("schedule", "every")  # one of a kind: an entry that writes one does not inherit the other


def merge(base: Map, over: Map) -> Map:
    """`over` on top of `base`: maps merge key by key at every depth, all else replaces; an empty value for a map keeps the map.

    A map of another `kind` replaces too: its keys are not those of the first.
    """
    if not over:
        return base
    merged = Map({**base, **over}, {**base.marks, **over.marks})
    for key in base.keys() & over.keys():
        below, above = base[key], over[key]
        if isinstance(below, Map) and (above is None or (isinstance(above, Map) and _alike(below, above))):
            merged[key] = merge(below, above or Map())
    return merged


def merge_job(base: Map, over: Map) -> Map:
    """As `merge`, for jobs: a schedule of the entry's own undoes an inherited interval, and the other way round."""
    if any(key in over for key in _EITHER):
        base = Map(dict(base), base.marks)
        for key in _EITHER:
            base.pop(key, None)
    return merge(base, over)


def _alike(below: Map, above: Map) -> bool:
    return "kind" not in below or "kind" not in above or below["kind"] == above["kind"]
