"""Plants slips (see `mutants`) one at a time, and runs the tests that execute the changed line. `make mutants` calls it.

1. Records once which lines each test executes, and its CPU time. The record is kept, until the file of the test changes.
2. Forks a process for each slip, which plants it and runs the tests until one fails, the fastest first.

It uses only fast tests in one process, and a seeded sample of the slips. mutmut 3.8 does not fit: it changes no condition in SQL,
no constant and hardly any function with a decorator, draws no sample, and selects tests by function and not by line.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import re
import resource
import signal
import subprocess
import sys
import time
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from checkout import HOME
from mutants import Mutant, NotLoaded, candidates, plant, sources

PRODUCT = ("scheduler", "heartbeat", "cron", "heartbeatd")
FOLDERS = (
    "rules",
    "store",
    "stories",
    "web",
    "config",
    "monitoring",
    "page",
    "runners",
    "extras/chat",
    "extras/importers",
    "extras/mcp",
)
OPTIONS = "-o addopts= -o tmp_path_retention_policy=none -p no:schemathesis -p no:terminal -p no:xdist"
PROGRAMS = ("heartbeat/runners/python_child.py",)  # run in processes of their own, which a planted slip does not reach
STATE = HOME / ".mutants_cache"
SLOWEST = 1.5  # seconds of CPU time; slower tests are left out
LONGEST = 15.0  # seconds of CPU time to record the tests of a file; its other tests are left out
MOST = 12.0  # seconds of CPU time of the tests of one slip
WORKERS = len(os.sched_getaffinity(0))


@dataclass
class Recorded:
    """What is known of the tests of a file: their CPU times, and the lines that they execute, as hashes of their texts."""

    hash: str
    tests: dict[str, tuple[float, array[int]]] = field(default_factory=dict)


class MutationRun:
    """A plugin of pytest that runs the collected tests in its own way."""

    def __init__(self, mutants: Sequence[Mutant], seconds: float) -> None:
        self.mutants = mutants
        self.records_until = time.monotonic() + seconds / 2
        self.ends_at = time.monotonic() + seconds
        self.texts = sources(*PRODUCT)
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self._record(items)
        self._report(dict(self._results(items)))
        return True

    def _record(self, items: dict[str, pytest.Item]) -> None:
        by_file: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items.values():
            by_file[item.nodeid.partition("::")[0]].append(item)
        hashes = {file: _hash((HOME / file).read_text("utf-8")) for file in by_file}
        state = STATE / "lines"
        known: dict[str, Recorded] = pickle.loads(zlib.decompress(state.read_bytes())) if state.exists() else {}
        self.recorded = {file: known[file] for file in by_file if file in known and known[file].hash == hashes[file]}
        missing = sorted(by_file.keys() - self.recorded.keys(), key=self._distance)
        print(f"{len(missing)} of {len(by_file)} files of tests are new or have changed, and are recorded first", flush=True)
        STATE.mkdir(exist_ok=True)
        record = lambda file: self._lines_of(by_file[file])  # noqa: E731
        for file, tests in in_children(missing, record, lambda _: LONGEST, self.records_until):
            if isinstance(tests, dict):
                self.recorded[file] = Recorded(hashes[file], tests)
                state.write_bytes(zlib.compress(pickle.dumps(known | self.recorded), 1))
        if left := by_file.keys() - self.recorded.keys():
            print(f"{len(left)} files of tests are not used, because there was no time to record them", flush=True)

    def _distance(self, file: str) -> int:
        """How rarely a file of tests names the changed modules: files that name them often are recorded first."""
        text = (HOME / file).read_text("utf-8")
        return -sum(text.count(stem) for stem in {Path(mutant.file).stem for mutant in self.mutants})

    def _lines_of(self, items: Iterable[pytest.Item]) -> dict[str, tuple[float, array[int]]]:
        coverage = Coverage(data_file=None, config_file=False, messages=False, source=[str(HOME / each) for each in PRODUCT])
        signal.signal(signal.SIGPROF, _end_slow_test)
        seconds: dict[str, float] = {}
        began = time.process_time()
        with coverage.collect():
            for item, following in _with_next(list(items)):
                if time.process_time() - began > LONGEST:
                    break
                coverage.switch_context(item.nodeid)
                before, self.failed = time.process_time(), ""
                signal.setitimer(signal.ITIMER_PROF, 2 * SLOWEST)  # ends a slow test
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if not self.failed:
                    seconds[item.nodeid] = time.process_time() - before
        signal.setitimer(signal.ITIMER_PROF, 0)
        executed: dict[str, array[int]] = {test: array("L") for test in seconds}
        data = coverage.get_data()
        for path in data.measured_files():
            file = str(Path(path).relative_to(HOME))
            keys = [_key(file, text) for text in self.texts.get(file, "").split("\n")]  # nothing of templates
            for line, tests in data.contexts_by_lineno(path).items():
                for test in executed.keys() & tests if line <= len(keys) else ():
                    executed[test].append(keys[line - 1])
        return {test: (seconds[test], executed[test]) for test in seconds}

    def _results(self, items: dict[str, pytest.Item]) -> Iterator[tuple[Mutant, str | None]]:
        """Which test notices each slip; an empty text if none does, None if there was no time for it."""
        tests = self._tests_of_mutants(items)
        state = STATE / "results.json"
        known: dict[str, str] = json.loads(state.read_text()) if state.exists() else {}
        version = _hash("".join(sorted(each.hash for each in self.recorded.values())))
        names = {mutant: _hash(f"{mutant} {mutant.number}", self.texts[mutant.file]) for mutant in self.mutants}
        open_: list[Mutant] = []
        for mutant in self.mutants:
            noticed_by = known.get(names[mutant], known.get(names[mutant] + version))
            if noticed_by is None or (noticed_by and noticed_by.partition("::")[0] not in self.recorded):
                open_.append(mutant)
            else:
                yield mutant, noticed_by
        run = lambda mutant: self._run(mutant, [items[test] for test, _ in tests[mutant]])  # noqa: E731
        expected = lambda mutant: sum(seconds for _, seconds in tests[mutant])  # noqa: E731
        for mutant, result in in_children(open_, run, expected, self.ends_at):
            if result is not None:
                known[names[mutant] + ("" if result else version)] = result
            print(".MS"[(result == "") + 2 * (result is None)], end="", flush=True)
            yield mutant, result
        print()
        STATE.mkdir(exist_ok=True)
        state.write_text(json.dumps(known))

    def _tests_of_mutants(self, items: dict[str, pytest.Item]) -> dict[Mutant, list[tuple[str, float]]]:
        """The tests that execute each slip, with their CPU times, the fastest first, up to a sum of MOST seconds."""
        keys = {mutant: self._keys(mutant) for mutant in self.mutants}
        wanted = set().union(*keys.values())
        executing: dict[int, list[tuple[float, str]]] = defaultdict(list)
        for recorded in self.recorded.values():
            for test, (seconds, lines) in recorded.tests.items():
                if test in items and seconds <= SLOWEST:
                    for key in wanted.intersection(lines):
                        executing[key].append((seconds, test))
        found: dict[Mutant, list[tuple[str, float]]] = {}
        for mutant in self.mutants:
            total, found[mutant] = 0.0, []
            for seconds, test in sorted(set().union(*(executing[key] for key in keys[mutant]))):
                total += seconds
                if total <= MOST:
                    found[mutant].append((test, seconds))
        return found

    def _keys(self, mutant: Mutant) -> set[int]:
        lines = self.texts[mutant.file].split("\n")
        if mutant.function:
            return {_key(mutant.file, text) for text in lines[mutant.line - 1 : mutant.last_line]}
        names = _constants_made_from(lines, mutant.line)
        pattern = re.compile(rf"\b({'|'.join(names)})\b")
        return {_key(file, line) for file, text in self.texts.items() for line in text.split("\n") if pattern.search(line)}

    def _run(self, mutant: Mutant, items: Sequence[pytest.Item]) -> str:
        plant(mutant)
        for item, following in _with_next(items):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return self.failed
        return ""

    def _report(self, results: dict[Mutant, str | None]) -> None:
        for mutant, noticed_by in results.items():
            if noticed_by:
                print(f"noticed   {mutant}\n            {noticed_by}")
        for mutant, noticed_by in results.items():
            if not noticed_by:
                print(f"{'SURVIVED ' if noticed_by == '' else 'no time  '} {mutant}")
        tried = [each for each in results.values() if each is not None]
        noticed = sum(map(bool, tried))
        share = 100 * noticed // max(1, len(tried))
        print(f"{noticed} of {len(tried)} slips noticed ({share} %), {len(results) - len(tried)} not tried")


def in_children(
    jobs: Iterable[Any], work: Callable[[Any], Any], expected: Callable[[Any], float], ends_at: float
) -> Iterator[tuple[Any, Any]]:
    """Each job with the result of its work in a forked process: "hangs" or "crash" if there is none, None after `ends_at`."""
    fork = get_context("fork")
    waiting, running = list(jobs), {}
    while waiting or running:
        while waiting and len(running) < WORKERS and time.monotonic() < ends_at:
            job = waiting.pop(0)
            reader, writer = fork.Pipe(duplex=False)
            process = fork.Process(target=_work, args=(work, job, writer, expected(job)))
            process.start()
            writer.close()
            running[reader] = job, process, time.monotonic() + 60 + 30 * expected(job)
        if not running:
            yield from ((job, None) for job in waiting)
            return
        ready = wait(list(running), timeout=1)
        now = time.monotonic()
        for reader in [each for each in running if each in ready or now > min(running[each][2], ends_at + 20)]:
            job, process, limit = running.pop(reader)
            try:
                result = reader.recv() if reader in ready else "hangs" if now > limit else None
                result = None if isinstance(result, NotLoaded) else result  # it could not be planted, so it was not tried
            except EOFError:
                result = "crash"
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                process.kill()
            process.join()
            yield job, result


def _work(work: Callable[[Any], Any], job: Any, writer: Connection, expected: float) -> None:
    os.setsid()
    limit = int(time.process_time() + 15 + 8 * expected)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    try:
        writer.send(work(job))
    except NotLoaded as error:
        writer.send(error)
    writer.close()
    os._exit(0)


def _end_slow_test(*_: object) -> None:
    raise TimeoutError("a slow test")


def _with_next(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items, None][1:], strict=True)


def _key(file: str, line: str) -> int:
    return zlib.crc32(f"{file}:{line.strip()}".encode())


def _hash(*texts: str) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:16]


def _constants_made_from(lines: Sequence[str], line: int) -> set[str]:
    """The name of the constant of a module at a line, and the names of the constants that are made from it."""
    names: set[str] = set()
    current = ""
    for number, text in enumerate(lines, 1):
        if found := re.match(r"(\w+)\b.* = |(\w+) = ", text):
            current = found[1] or found[2]
        elif text and not text[0].isspace() and text[0] not in "])}\"'" and re.match(r"(def|class|@|async|from|import)", text):
            current = ""
        if current and (number == line or any(re.search(rf"\b{name}\b", text) for name in names)):
            names.add(current)
    return names or {"-"}


def changed_lines() -> dict[str, set[int]]:
    """The lines of product code that differ from the merge base with main, or without a difference from the commit before."""
    for base in (_git("merge-base", "HEAD", "origin/main").strip(), "HEAD~1"):
        found: dict[str, set[int]] = {}
        file = ""
        for line in _git("diff", "--unified=0", "--no-color", base, "--", *PRODUCT).splitlines():
            if line.startswith("+++ "):
                file = line.removeprefix("+++ b/")
            elif (hunk := re.match(r"@@ .* \+(\d+)(?:,(\d+))? @@", line)) and file.endswith(".py"):
                first, count = int(hunk[1]), int(hunk[2] or 1)
                found.setdefault(file, set()).update(range(first, first + count))
        if found:
            return found
    return {}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=HOME, capture_output=True, text=True, check=False).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", help="packages or files, such as scheduler/engine")
    parser.add_argument("--changed", action="store_true", help="only the lines changed since main, or in the last commit")
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600, help="stop after this time")
    given = parser.parse_args()
    changed = changed_lines() if given.changed else {}
    texts = sources(*(changed or given.packages))
    found = [mutant for file, text in texts.items() if file not in PROGRAMS for mutant in candidates(file, text)]
    if changed:
        found = [each for each in found if changed[each.file].intersection(range(each.line, each.last_line + 1))]
    chosen = random.Random(given.seed).sample(found, min(given.sample, len(found)))
    print(f"{len(chosen)} of {len(found)} slips, seed {given.seed}", flush=True)
    files = [f"tests/{folder}" for folder in FOLDERS]
    options = [*OPTIONS.split(), "-m", "not process and not simulation"]
    sys.exit(pytest.main([*options, *files], plugins=[MutationRun(chosen, given.seconds)]))


if __name__ == "__main__":
    main()
