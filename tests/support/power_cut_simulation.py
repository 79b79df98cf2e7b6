"""Simulates power cuts: traces every write of a daemon and derives the files that a cut at any point may leave.

Synced data survives. Of the data written since the last sync, any subset of 512-byte sectors may survive, as after a cut in the
middle of it (the model of SQLite's own crash tests, sqlite.org/testing.html, section 3.2).
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512  # bytes
TOLD = "told"
CALL = re.compile(r"^(?:\d+ +)?(pwrite64|write|ftruncate|fsync|fdatasync)\((\d+)<([^>]*)>(?:, (.*))?\) += (\d+)")
RENAME = re.compile(r'^(?:\d+ +)?rename\("([^"]*)", "([^"]*)"\) += 0')
WRITTEN = re.compile(r'"((?:\\x[0-9a-f]{2})*)", \d+(?:, (\d+))?')
STRACE = ("strace", "-y", "-xx", "-s", "1000000", "-e", "trace=pwrite64,write,ftruncate,fsync,fdatasync,rename")

YAML = """
agents:
""" + "".join(
    f'  a{number}: {{runner: {{kind: command, argv: [x]}}, heartbeat: {{interval: 5m, checklist: "- look\\n", deliver: log}}}}\n'
    for number in range(12)
)


@dataclass(frozen=True)
class Step:
    """One call: a write, a truncation (`data` None) or a sync (`at` None) of a file, its rename, or the report of finished runs."""

    file: str
    at: int | None = None
    data: bytes | None = None
    new_name: str | None = None


@dataclass
class Disk:
    """The synced content of each file and the calls since its last sync."""

    synced: dict[str, bytearray] = field(default_factory=dict)
    since: dict[str, list[Step]] = field(default_factory=dict)

    def take(self, step: Step) -> None:
        if step.new_name is not None:  # which survives, although the content need not
            self.synced[step.new_name] = self.synced.pop(step.file, bytearray())
            self.since[step.new_name] = self.since.pop(step.file, [])
            return
        if step.at is not None:
            self.since.setdefault(step.file, []).append(step)
            return
        for earlier in self.since.pop(step.file, []):
            _apply(self.synced.setdefault(step.file, bytearray()), earlier, lambda: True)

    def after_a_cut(self, chance: random.Random) -> dict[str, bytes]:
        """The files as a cut may leave them: all, none or some sectors of each unsynced call."""
        found = {name: bytearray(content) for name, content in self.synced.items()}
        for name, steps in self.since.items():
            for step in steps:
                fate = chance.choice(("kept", "lost", "torn"))
                keeps = {"kept": lambda: True, "lost": lambda: False, "torn": lambda: chance.random() < 0.5}[fate]
                _apply(found.setdefault(name, bytearray()), step, keeps)
        return {name: bytes(content) for name, content in found.items()}


def watched(folder: Path, synchronous: str, minutes: int) -> list[Step]:
    """All writes of a daemon in these minutes from its start, in order."""
    trace = folder / "trace"
    command = [*STRACE, "-o", str(trace), sys.executable, __file__, str(folder), synchronous, str(minutes)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL, env=environ)
    with trace.open(encoding="ascii", errors="replace") as lines:
        return [step for line in lines for step in _steps(line)]


def cuts(steps: list[Step], number: int, chance: random.Random) -> Iterator[tuple[dict[str, bytes], set[int]]]:
    """The files after this many cuts, each with the runs reported as done by then. A fourth is before the first report."""
    disk, reported = Disk(), set[int]()
    begun = next(place for place, step in enumerate(steps) if step.file == TOLD)
    ended = max(place for place, step in enumerate(steps) if step.file == TOLD)
    early = min(number // 4, begun)
    wanted = {*chance.sample(range(begun), early), *chance.sample(range(begun, ended), number - early)}
    for place, step in enumerate(steps[:ended]):
        if step.file == TOLD:
            reported |= {int(word) for word in (step.data or b"").split()}
        else:
            disk.take(step)
        if place in wanted:
            yield disk.after_a_cut(chance), set(reported)


def _steps(line: str) -> Iterator[Step]:
    if renamed := RENAME.match(line):
        old, new = (Path(_plain(path).decode()).name for path in renamed.groups())
        yield Step(old, new_name=new)
        return
    call = CALL.match(line)
    if call is None:
        return
    name, descriptor, file, given, _ = call.groups()
    if descriptor == "1":
        written = WRITTEN.match(given)
        assert written
        yield Step(TOLD, 0, _plain(written[1]))
        return
    path = Path(_plain(file).decode())
    if path.name.startswith("heartbeatd.db") and not path.name.endswith("-shm"):  # recreated at each start
        yield from _of_file(name, path.name, given)


def _of_file(name: str, file: str, given: str | None) -> Iterator[Step]:
    if name == "pwrite64":
        written = WRITTEN.match(given or "")
        assert written, given
        yield Step(file, int(written[2]), _plain(written[1]))
    elif name == "ftruncate":
        yield Step(file, int(given or 0), None)
    else:
        yield Step(file)


def _plain(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _apply(content: bytearray, step: Step, keeps) -> None:
    assert step.at is not None
    if step.data is None:
        if keeps():
            del content[step.at :]
            content.extend(bytes(step.at - len(content)))
        return
    for offset in range(0, len(step.data), SECTOR):
        if keeps():
            begin, piece = step.at + offset, step.data[offset : offset + SECTOR]
            content.extend(bytes(max(begin + len(piece) - len(content), 0)))
            content[begin : begin + len(piece)] = piece


def _write(folder: Path, synchronous: str, minutes: int) -> None:
    """Create a database, simulate a daemon and report the recorded runs after each tick."""
    from world import World

    from scheduler.store.database import Store

    state = folder / "state" / "heartbeatd.db"
    state.parent.mkdir(mode=0o700)
    Store.open(state).close()
    world = World(folder, YAML, scripts={"a1": lambda call: f"ALERT at {call.at}"})
    world.store.connection.execute(f"pragma synchronous = {synchronous}")
    reported: set[int] = set()
    for _ in range(minutes):
        world.run(minutes=1)
        rows = world.store.connection.execute("select id from run where state = 'closed' order by id").fetchall()
        fresh = [row[0] for row in rows if row[0] not in reported]
        reported.update(fresh)
        os.write(1, (" ".join(map(str, fresh)) + "\n").encode())


if __name__ == "__main__":
    _write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
