"""Tests that each change of config.yaml is reported once, when it is complete."""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from loops import loop_over
from patience import PATIENCE

from scheduler.system.file_watch import ChangeDetector, FileWatch

OFTEN = 0.05  # seconds between looks
GONE = "gone"


@loop_over(
    ("readings", "ripe"),
    [
        ([(0.0, "old"), (9.0, "old")], []),
        ([(0.0, "new")], []),
        ([(0.0, "new"), (0.29, "new")], []),
        ([(0.0, "new"), (0.3, "new")], [0.3]),
        ([(0.0, "new"), (0.3, "new"), (0.6, "new"), (9.0, "new")], [0.3]),
        ([(0.0, "ne"), (0.2, "new"), (0.4, "new"), (0.5, "new")], [0.5]),
        ([(0.0, "new"), (0.2, "old"), (0.4, "new"), (0.6, "new"), (0.8, "new")], [0.8]),
        ([(0.0, "new"), (0.2, None), (0.4, "new"), (0.5, "new"), (0.8, "new")], [0.8]),
        ([(0.0, None), (0.2, None), (0.3, None), (9.0, None)], [0.3]),
        ([(0.0, None), (0.2, "old"), (0.5, "old")], []),
        ([(0.0, None), (0.3, None), (9.0, "old"), (9.3, "old")], [0.3, 9.3]),
        ([(0.0, "a"), (0.3, "a"), (1.0, "b"), (1.3, "b")], [0.3, 1.3]),
        ([(0.0, "a"), (0.3, "a"), (1.0, "old"), (1.3, "old")], [0.3, 1.3]),
    ],
)
def test_a_change_is_complete_when_two_readings_300_ms_apart_agree(
    readings: list[tuple[float, str | None]], ripe: list[float]
) -> None:
    settled = ChangeDetector("old")
    assert [at for at, content in readings if settled.add_reading(at, content)] == ripe


def test_an_incomplete_change_is_read_again() -> None:
    settled = ChangeDetector("old")
    waits = []
    for at, content in [(0.0, "old"), (0.1, "new"), (0.4, "new"), (0.5, None)]:
        settled.add_reading(at, content)
        waits.append(settled.is_settling)
    assert waits == [False, True, False, True]


class Watched:
    """A watched file. `next` waits for a reported change and returns the content of the file, or GONE if it is missing."""

    def __init__(self, path: Path, every: float = OFTEN) -> None:
        self._changes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.watch = FileWatch(path, lambda: self._changes.put(path.read_text() if path.is_file() else GONE), every)
        self.watch.start()

    def next(self) -> str:
        return self._changes.get(timeout=PATIENCE)

    def stop(self) -> list[str]:
        """Stop the watch, and return the reported changes that were not read yet."""
        self.watch.stop()
        return [self._changes.get() for _ in range(self._changes.qsize())]


Watching = Callable[[Path], Watched]
Limit = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def watching() -> Iterator[Watching]:
    made: list[Watched] = []

    def make(path: Path) -> Watched:
        made.append(Watched(path))
        return made[-1]

    yield make
    for one in made:
        one.watch.stop()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("old")
    return path


def test_a_file_that_is_moved_into_place_is_reported(config: Path, watching: Watching) -> None:
    watched = watching(config)
    (config.parent / ".config.yaml.swp").write_text("new")
    (config.parent / ".config.yaml.swp").rename(config)
    assert watched.next() == "new"


def test_every_change_is_reported(config: Path, watching: Watching) -> None:
    watched = watching(config)
    for text in ("one", "two", "one"):
        config.write_text(text)
        assert watched.next() == text


def test_a_replaced_link_as_in_kubernetes_is_reported(tmp_path: Path, watching: Watching) -> None:
    volume = tmp_path / "volume"
    for name, text in (("..1", "old"), ("..2", "new"), ("..3", "newer")):
        (volume / name).mkdir(parents=True)
        (volume / name / "config.yaml").write_text(text)
    (volume / "..data").symlink_to("..1")
    (volume / "config.yaml").symlink_to("..data/config.yaml")
    (tmp_path / "config.yaml").symlink_to(volume / "config.yaml")
    watched = watching(tmp_path / "config.yaml")
    for name, text in (("..2", "new"), ("..3", "newer")):
        (volume / "..data_tmp").symlink_to(name)
        (volume / "..data_tmp").rename(volume / "..data")
        assert watched.next() == text


def test_a_write_through_a_link_is_reported_wherever_the_link_leads(tmp_path: Path, config: Path, watching: Watching) -> None:
    (tmp_path / "etc").mkdir()
    link = tmp_path / "etc" / "config.yaml"
    link.symlink_to(config)
    watched = watching(link)
    config.write_text("new")
    assert watched.next() == "new"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("newer")
    (tmp_path / "etc" / "tmp").symlink_to("../other/config.yaml")
    (tmp_path / "etc" / "tmp").rename(link)
    assert watched.next() == "newer"
    (tmp_path / "other" / "config.yaml").write_text("newest")
    assert watched.next() == "newest"


def test_a_touched_file_and_changes_beside_it_are_not_reported(config: Path, watching: Watching) -> None:
    watched = watching(config)
    os.utime(config)
    (config.parent / "heartbeatd.db").write_text("x")
    config.write_text("old")
    config.write_text("new")
    assert watched.next() == "new"
    assert watched.stop() == []


def test_a_change_before_the_start_of_the_watch_is_reported(config: Path) -> None:
    changes: queue.SimpleQueue[bool] = queue.SimpleQueue()
    watch = FileWatch(config, lambda: changes.put(True), OFTEN)
    config.write_text("new")
    watch.start()
    assert changes.get(timeout=PATIENCE)
    watch.stop()


def test_the_watch_stops_quickly_and_for_good(config: Path, watching: Watching) -> None:
    watched = watching(config)
    began = time.monotonic()
    assert watched.stop() == []
    assert time.monotonic() - began < PATIENCE
    config.write_text("new")
    assert watched.stop() == []


def test_a_fifo_in_place_of_the_file_does_not_block_the_watch(config: Path, watching: Watching) -> None:
    watched = watching(config)
    config.unlink()
    os.mkfifo(config)
    config.unlink()
    config.write_text("new")
    assert watched.next() == "new"


def test_a_file_that_is_removed_or_moved_away_is_reported_and_so_is_its_return(config: Path, watching: Watching) -> None:
    watched = watching(config)
    config.rename(config.with_name("away"))
    assert watched.next() == GONE
    config.with_name("away").rename(config)
    assert watched.next() == "old"
    config.unlink()
    assert watched.next() == GONE
    config.write_text("new")
    assert watched.next() == "new"
    assert watched.stop() == []


def test_a_file_that_could_not_be_opened_is_read_again_even_without_a_change(config: Path, no_open_files: Limit) -> None:
    changes: queue.SimpleQueue[bool] = queue.SimpleQueue()
    watch = FileWatch(config, lambda: changes.put(True), OFTEN)
    config.write_text("new")
    with no_open_files():
        watch.start()
        assert changes.get(timeout=PATIENCE)
    assert changes.get(timeout=PATIENCE)
    watch.stop()
    assert changes.empty()


def test_a_dangling_link_counts_as_a_removed_file(config: Path, tmp_path: Path, watching: Watching) -> None:
    (link := tmp_path / "link.yaml").symlink_to(config)
    watched = watching(link)
    config.rename(tmp_path / "away")
    assert watched.next() == GONE
    (tmp_path / "away").rename(config)
    assert watched.next() == "old"


def test_a_change_that_keeps_length_and_time_is_reported(config: Path, watching: Watching) -> None:
    watched = watching(config)
    before = config.stat()
    config.write_text("odl")
    os.utime(config, ns=(before.st_atime_ns, before.st_mtime_ns))  # of the same length and time; its ctime has changed
    assert watched.next() == "odl"


def test_a_file_is_not_read_while_watching_is_not_wanted_and_its_change_is_reported_later(config: Path) -> None:
    changes: queue.SimpleQueue[bool] = queue.SimpleQueue()
    wanted, asked = threading.Event(), threading.Semaphore(0)

    def is_wanted() -> bool:
        asked.release()
        return wanted.is_set()

    watch = FileWatch(config, lambda: changes.put(True), OFTEN, is_wanted=is_wanted)
    watch.start()
    config.write_text("new")
    for _ in range(20):
        assert asked.acquire(timeout=PATIENCE)
    assert changes.empty()
    wanted.set()
    assert changes.get(timeout=PATIENCE)
    watch.stop()
