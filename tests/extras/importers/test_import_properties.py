"""Properties of every import: nothing raises, every value is in the receipt, and the new config passes check."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imported import check, convert, example_files, flatten, has_target
from loops import loop_over
from simulation import IS_LONG, size

from scheduler.extras.importers import foreign_system
from scheduler.extras.importers.config_writer import NothingToImport
from scheduler.extras.importers.foreign_system import import_sources
from scheduler.extras.importers.import_receipt import format_receipt
from scheduler.extras.importers.source_files import Node, SourceFile, read_source

pytestmark = pytest.mark.simulation

EXAMPLES = settings(
    max_examples=size(8, 300), derandomize=not IS_LONG, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.sampled_from(
        [
            *("0", "-1", "1e400", "30m", "0m", "5 parsecs", "24:00", "25:61", "0 9 * * *", "* * * * * *", "@daily", "every 2h"),
            *(
                "telegram",
                "telegram:4711",
                "last",
                "none",
                "log",
                "owner",
                "${X}",
                "${",
                "https://u:p@h/x?y",
                "http://[",
                "Mars/Base",
            ),
            *(
                "2036-01-01T00:00:00",
                "2001-01-01T00:00:00Z",
                "9999-12-31T23:59:59+14:00",
                "\ud83d",
                "\x1b[31m",
                "a\nb",
                "'\"{}[]: #",
            ),
        ]
    ),
)


def words(system: str) -> list[str]:
    """All keys of the examples of a system."""
    found: set[str] = {"id", "enabled", "schedule", "payload", "jobs"}

    def collect(node: Node) -> None:
        for key, child in node.children.items():
            if isinstance(key, str):
                found.add(key)
            collect(child)

    for source in examples(system):
        collect(source.root)
    return sorted(found)


def examples(system: str) -> list[SourceFile]:
    return [read_source(path.name, path.read_bytes()) for path in example_files(system)]


def to_data(node: Node) -> Any:
    if not node.is_container:
        return node.value
    if any(isinstance(key, int) for key in node.children):
        return [to_data(child) for child in node.children.values()]
    return {key: to_data(child) for key, child in node.children.items()}


def trees(system: str) -> st.SearchStrategy[Any]:
    keys = st.one_of(st.sampled_from(words(system)), st.text(min_size=1, max_size=8))
    return st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=6)))


@st.composite
def mutated(draw: st.DrawFn, system: str) -> Any:
    """An example of the system in which some values are replaced, removed or repeated."""
    data = to_data(draw(st.sampled_from([source for source in examples(system) if source.form != "markdown"])).root)
    for _ in range(draw(st.integers(1, 6))):
        here, path = data, []
        while isinstance(here, dict | list) and here:
            step = draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
            path.append((here, step))
            if draw(st.integers(0, 3)) == 0:
                break
            here = here[step]
        if path:
            above, step = path[-1]
            above[step] = draw(st.one_of(SCALARS, trees(system)))
    return data


def holds(system: str, data: Any) -> None:
    """Import the data as a file of the system, and check the three properties."""
    text = json.dumps(data)
    sources = [read_source("random.json", text.encode())]
    assert sources[0].problems == ()
    draft = import_sources(foreign_system.load_system(system), sources, "Europe/Riga")
    listed = sorted(entry.key for entry in draft.receipt.entries.values())
    assert listed == sorted(leaf.key for leaf in sources[0].root.leaves() if leaf.steps or not leaf.is_container)
    assert len(listed) == len(list(flatten(json.loads(text)))) or not isinstance(data, dict | list)
    assert not any(not line.isprintable() for line in format_receipt(draft.receipt))
    try:
        imported = convert(system, sources)
    except NothingToImport:
        return
    check(imported)
    kept = [entry for entry in imported.draft.receipt.entries.values() if entry.status != "dropped"]
    assert [(entry.key, target) for entry in kept for target in entry.targets if not has_target(imported.data, target)] == []


@pytest.mark.parametrize("system", foreign_system.SYSTEM_NAMES)
def test_random_trees_are_imported_as_far_as_possible(system: str) -> None:
    @EXAMPLES
    @given(st.one_of(trees(system), st.fixed_dictionaries({"jobs": st.lists(trees(system), max_size=3)})))
    def run(data: Any) -> None:
        holds(system, data)

    run()


@pytest.mark.parametrize("system", foreign_system.SYSTEM_NAMES)
def test_damaged_examples_are_imported_as_far_as_possible(system: str) -> None:
    @EXAMPLES
    @given(mutated(system))
    def run(data: Any) -> None:
        holds(system, data)

    run()


@loop_over("system", foreign_system.SYSTEM_NAMES)
def test_cut_files_are_read_without_an_error(system: str) -> None:
    """Every example is cut in many places, and bytes of it are replaced."""
    contents = [(path.name, path.read_bytes()) for path in example_files(system)]

    @EXAMPLES
    @given(st.sampled_from(contents), st.floats(0, 1), st.binary(max_size=3))
    def run(example: tuple[str, bytes], where: float, put: bytes) -> None:
        name, content = example
        at = int(where * len(content))
        for damaged in (content[:at], content[:at] + put + content[at + len(put) :]):
            source = read_source(name, damaged)
            draft = import_sources(foreign_system.load_system(system), [source], "Europe/Riga")
            assert len(draft.receipt.entries) == len(
                [leaf for leaf in source.root.leaves() if leaf.steps or not leaf.is_container]
            )

    run()


def test_a_zone_by_name_is_not_called_kept_if_its_hours_cannot_be_imported() -> None:
    hours = {"start": "25:99", "end": "22:00", "timezone": "user"}
    holds("openclaw", {"agents": {"defaults": {"heartbeat": {"every": "30m", "activeHours": hours}}}})
