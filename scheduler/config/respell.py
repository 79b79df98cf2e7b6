"""Misspelt sections: read as the ones that they are meant to be, so that what stands in them is not missed elsewhere."""

from __future__ import annotations

from scheduler.config import tree
from scheduler.config.complaint import Complaints
from scheduler.config.models import Config
from scheduler.config.tree import Map
from scheduler.config.wording import closest, unknown_key


def respelt(root: Map, complaints: Complaints) -> Map:
    """The file with each section under its right name; every name that was not is noted as a fault."""
    found = Map({}, dict(root.marks))
    for key, value in root.items():
        meant = None if key in Config.model_fields or key.startswith("x-") else closest(key, Config.model_fields)
        if meant is None or meant in root or meant in found:
            found[key] = value
            continue
        complaints.fault(root.marks[key][0], tree.dotted([key]), unknown_key(key, Config.model_fields))
        found[meant] = value
        found.marks[meant] = root.marks[key]
    return found
