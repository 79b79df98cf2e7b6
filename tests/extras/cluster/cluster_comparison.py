"""Compares the rows of a cluster with what its agents and receivers saw: each slot, run, beat and message, one by one."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

SLACK = 1.0  # seconds between what a process does and the time that is noted for it, on a busy machine
LAST_COMMIT = 2.0  # seconds before a fault; an interrupted run ends, by its record, with the last commit before the fault
ENDED_BY_DAEMON = re.compile("the daemon stopped|no time was left for another try")
TAKEOVER = 10.0  # seconds
OWN_TRIGGERS = ("interval", "every")
ANSWERED = ("ok", "alert")
LOST_LEASE = re.compile(r"^(\S+) ERROR leadership_lost problem=(.*)$", re.MULTILINE)

Row = Mapping[str, Any]


def _without_sender(body: bytes) -> bytes:
    """The body of a message without the host that has sent it."""
    return re.sub(rb', "host": "\w+"', b"", body)


@dataclass
class Beat:
    """What an agent did for a run, in seconds since 1970. `ended` None: it did not end by itself. `serial` is in its answer.

    `stopped` is when the caller closed the connection, if the agent could see that.
    """

    agent: str
    run: int
    serial: str
    host: str
    begun: float
    ended: float | None = None
    stopped: float | None = None


@dataclass(frozen=True)
class Message:
    """A message as a receiver got it."""

    key: str
    body: bytes
    host: str
    at: float


@dataclass
class Fault:
    """A fault from `begin` to `end`, in seconds since 1970. `host` None: it concerns all hosts."""

    begin: float
    end: float
    kind: str
    host: str | None

    def overlaps(self, begin: float, end: float, hosts: Iterable[str]) -> bool:
        """Whether it concerns one of these hosts within this time."""
        return (self.host is None or self.host in hosts) and self.begin <= end + SLACK and self.end >= begin - SLACK


def lease_losses_without_a_fault(log: str, host: str, faults: Iterable[Fault]) -> list[Fault]:
    """The losses of the lease in the log of a scheduler that none of these faults has caused: the machine was too slow for it.

    Each is a fault itself. What it interrupts is recorded, as after any takeover, and is neither lost nor doubled.
    """
    losses = [(datetime.fromisoformat(at).timestamp(), problem) for at, problem in LOST_LEASE.findall(log)]
    return [
        Fault(at - TAKEOVER, at + TAKEOVER, f"loss of the lease without a fault: {problem}", host)
        for at, problem in losses
        if not any(fault.overlaps(at - TAKEOVER, at, (host,)) for fault in faults)
    ]


# Appends a line when a beat begins and when it ends, and one if another beat of the agent is in progress.
PROGRAM = """\
use Time::HiRes qw(time sleep);
use Fcntl qw(:flock O_WRONLY O_APPEND O_CREAT);
my $name = shift;
sysopen(my $log, "{marks}", O_WRONLY | O_APPEND | O_CREAT);
sub note {{
  my @where = (readlink("/proc/self/ns/net"), readlink("/proc/self/cwd"));
  syswrite($log, join(" ", $_[0], $name, $ENV{{HEARTBEATD_RUN}}, $$, time(), @where) . "\\n");
}}
open(my $lock, ">", "{folder}/$name.lock");
note("overlap") unless flock($lock, LOCK_EX | LOCK_NB);
note("begin");
sleep({work});
note("end");
print "ALERT $name run $ENV{{HEARTBEATD_RUN}} beat $$\\n";
"""


class BeatProgram:
    """A program for agents and jobs that records its beats in a file, and says in its answer which beat it was."""

    def __init__(self, folder: Path) -> None:
        self.marks = folder / "marks"
        self._folder = folder

    def write(self, work: float) -> Path:
        """Write the program, whose beats take `work` seconds. Its arguments are `perl PATH NAME`."""
        path = self._folder / "beat.pl"
        path.write_text(PROGRAM.format(marks=self.marks, folder=self._folder, work=work), "utf-8")
        return path

    def read(self, host_of: Callable[[str, str], str]) -> tuple[list[Beat], list[str]]:
        """The beats, and those that overlapped another one. `host_of` names the host of a network namespace and a folder."""
        begun: dict[str, Beat] = {}
        overlaps = []
        for line in self.marks.read_text("utf-8").splitlines():
            word, name, run, pid, at, namespace, cwd = line.split(" ", 6)
            if word == "overlap":
                overlaps.append(line)
            elif word == "begin":
                begun[f"{run}/{pid}"] = Beat(name, int(run.rpartition("/")[2]), pid, host_of(namespace, cwd), float(at))
            else:
                begun[f"{run}/{pid}"].ended = float(at)
        return list(begun.values()), overlaps


@dataclass
class Comparison:
    """`lost` and `doubled` list what is wrong, and `counted` has the numbers of what was compared.

    What docs/guarantees.md allows after a fault, such as a repeated heartbeat, is counted, if there was such a fault at that time.
    """

    entries: Sequence[Row]
    runs: Sequence[Row]
    outbox: Sequence[Row]
    beats: Sequence[Beat]
    messages: Sequence[Message]
    faults: Sequence[Fault]
    every: Mapping[str, float]  # seconds between the slots of each agent and job
    boots: Sequence[Row] = ()
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    takeover_times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    waits: list[float] = field(default_factory=list)  # seconds from a fault to the next beat of an agent, less its interval

    def __post_init__(self) -> None:
        self._names = {row["id"]: str(row["name"]) for row in self.runs}
        self._beats_of: dict[int, list[Beat]] = defaultdict(list)
        for beat in sorted(self.beats, key=lambda beat: beat.begun):
            self._beats_of[beat.run].append(beat)
        self._compare_slots()
        for row in self.runs:
            if row["outcome"] != "skipped":
                self._compare_run(row)
        self.lost += [f"run {run} began and has no record" for run in self._beats_of if run not in self._names]
        self._compare_messages()

    def check_takeovers(self, takeovers: Sequence[tuple[str, float, float, str]], stops: Sequence[float]) -> None:
        """Each agent beats again within one interval and 10 s of a takeover, given by its kind, the fault's begin, time and host.

        `stops` are the times at which all agents were paused, or all daemons stopped.
        """
        begun: dict[str, list[float]] = defaultdict(list)
        for beat in self.beats:
            begun[beat.agent].append(beat.begun)
        for kind, begin, at, _ in takeovers:
            self.takeover_times[kind].append(at - begin)
            if at - begin > TAKEOVER:
                self.late.append(f"takeover after {at - begin:.1f} s ({kind})")
            for agent in (row["name"] for row in self.entries if row["kind"] == "heartbeat"):
                first = min((each for each in begun[agent] if each >= at), default=float("inf"))
                latest = at + self.every[agent] + TAKEOVER
                if any(at < each < latest for each in stops) or any(
                    at < each.begin < min(first, latest) and each.begin > begin for each in self.faults
                ):
                    self.counted["beats after a takeover that another fault or the end has delayed"] += first > latest
                    continue
                if first > latest:
                    self.late.append(f"{agent} beats {first - at:.1f} s after the takeover of {kind} at {at:.0f}")
                self.waits.append(first - begin - self.every[agent])

    def summary(self) -> str:
        """The figures in one line."""
        counted = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counted.items(), key=lambda each: each[0]))
        times = [each for kind in self.takeover_times.values() for each in kind]
        takeover = (
            f"; {len(times)} takeovers after {statistics.median(times):.1f} s (median), {max(times):.1f} s (longest), each"
            f" agent beat again at most {max(self.waits, default=0.0):.1f} s and its interval after the cut"
            if times
            else ""
        )
        return f"{counted}{takeover}; {len(self.lost)} lost, {len(self.doubled)} doubled, {len(self.late)} late"

    def _compare_slots(self) -> None:
        """Each slot of each entry, up to its next one, is in exactly one record."""
        for entry in self.entries:
            every = round(1000 * self.every[entry["name"]])
            first = entry["anchor"] + (0 if entry["kind"] == "heartbeat" else every)
            due = (entry["settled_until"] - first) // every + 1
            covered: Counter[int] = Counter()
            for row in self.runs:
                if (row["kind"], row["name"]) == (entry["kind"], entry["name"]) and row["trigger"] in OWN_TRIGGERS:
                    number, rest = divmod(row["slot"] - first, every)
                    if rest:
                        self.doubled.append(f"{entry['name']}: run {row['id']} of no slot, {rest} ms after one")
                    covered.update(range(number, number + row["slots"]))
                    if row["outcome"] == "skipped":
                        self.counted[f"slots skipped: {row['reason']}"] += row["slots"]
                        if not row["reason"]:
                            self.lost.append(f"{entry['name']}: slots without a reason")
            self.counted["slots"] += sum(covered.values())
            self.lost += [f"{entry['name']}: slot {number} of {due}" for number in range(due) if number not in covered]
            self.doubled += [
                f"{entry['name']}: slot {number} is in {count} records" for number, count in covered.items() if count > 1
            ]
            self.doubled += [f"{entry['name']}: slot {number} of {due}" for number in covered if not 0 <= number < due]

    def _compare_run(self, row: Row) -> None:
        """A run has one beat, and its answer. Another beat, or none, has a fault at that time as its cause."""
        run, beats, what = row["id"], self._beats_of[row["id"]], f"run {row['id']} of {row['name']}"
        begin = row["started_at"] / 1000
        end = (row["finished_at"] or row["started_at"]) / 1000 + LAST_COMMIT
        if ENDED_BY_DAEMON.search(row["error"] or ""):  # on a busy machine, its last commit was long before the fault
            end = min((each["started_at"] / 1000 for each in self.boots if each["started_at"] / 1000 > end), default=end)
        hosts = {beat.host for beat in beats}
        self.counted["runs"] += 1
        self.counted[" ".join(("runs", row["outcome"] or row["state"], row["reason"] or "")).strip()] += 1
        self.counted["beats"] += len(beats)
        if row["state"] != "closed":
            self.lost.append(f"{what} is {row['state']}")
        for one, other in pairwise(beats):
            cause = self._cause(one.begun, other.begun, {one.host})
            if row["kind"] != "heartbeat":
                self.doubled.append(f"{what}: {len(beats)} commands, on {one.host} and {other.host}")
            elif cause is None:
                self.doubled.append(
                    f"{what}: beats on {one.host} and {other.host}, {other.begun - one.begun:.2f} s apart, no fault"
                )
            else:
                self.counted["beats repeated after a fault"] += 1
                if one.ended is not None:
                    self.counted["of these, the first had ended and its result could not be written"] += 1
            if one.ended is not None and one.ended > other.begun:
                self.doubled.append(f"{what}: two beats at the same time, on {one.host} and {other.host}")
        if row["outcome"] in ANSWERED:
            text = row["text"] or ""
            if not any(
                beat.ended and text.endswith(f"ALERT {row['name']} run {run} beat {beat.serial}") for beat in beats
            ) and not any(beat.ended and f"beat {beat.serial}" in text and f"{run} beat" in text for beat in beats):
                self.lost.append(f"{what} is {row['outcome']} without its own answer: {text!r} of {len(beats)} beats")
        elif row["outcome"] is not None and self._cause(begin, end, hosts or None) is None:
            self.lost.append(f"{what} is {row['outcome']} {row['reason']} without a fault: {row['error']}")

    def _cause(self, begin: float, end: float, hosts: set[str] | None) -> Fault | None:
        for fault in self.faults:
            if fault.overlaps(begin, end, hosts if hosts is not None else {fault.host or ""}):
                return fault
        return None

    def _compare_messages(self) -> None:
        """Each answer has one message, which arrived once. One that arrived again has the same key and body, and a fault."""
        found: dict[str, list[Message]] = defaultdict(list)
        for message in self.messages:
            found[message.key].append(message)
        keys = {row["key"] for row in self.outbox}
        answers: Counter[int] = Counter(row["run_id"] for row in self.outbox if row["notice"] is None)
        self.counted["messages"] = len(self.outbox)
        for row in self.outbox:
            arrived = found.get(row["key"], [])
            if not arrived:
                self.lost.append(f"message {row['key']} of run {row['run_id']}, {row['state']}")
            if row["state"] != "delivered":
                self.lost.append(f"message {row['key']} is {row['state']}")
            if len({_without_sender(each.body) for each in arrived}) > 1:
                self.doubled.append(f"message {row['key']} with several bodies")
            for one, other in pairwise(arrived):
                if self._cause(one.at, other.at, {one.host}) is None:
                    self.doubled.append(f"message {row['key']} after {other.at - one.at:.2f} s, without a fault")
                else:
                    self.counted["messages repeated with their key after a fault"] += 1
        self.doubled += [f"message {key} has no row" for key in found if key not in keys]
        for row in self.runs:
            wanted = 1 if row["outcome"] == "alert" else 0
            if row["outcome"] in ANSWERED and row["kind"] == "cron":
                wanted = 1
            if answers[row["id"]] < wanted:
                self.lost.append(f"run {row['id']} of {row['name']}: no message of its answer")
            if answers[row["id"]] > max(wanted, 1):
                self.doubled.append(f"run {row['id']} of {row['name']}: {answers[row['id']]} messages")
