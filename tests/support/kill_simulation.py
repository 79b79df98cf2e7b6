"""Kills a real daemon repeatedly, at any moment or between the acceptance and the recording of a message."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from daemon_process import Daemon
from servers.scripted import Server, reply

CONFIG = """\
state: state/h.db
server: {{listen: "127.0.0.1:0"}}
channels: {{hook: {{kind: webhook, url: "{url}", allow_private: true, uncertain: {policy}}}}}
cron:
  tick: {{every: 1s, command: "date +%s.%N", deliver: hook}}
"""
DOUBT = " state=uncertain"


class Receiver:
    """A server that accepts every message and answers, or first kills the sender if set to do so."""

    def __init__(self) -> None:
        self.server = Server([self._act])
        self.victim: int | None = None
        self._lock = threading.Lock()
        self._seen: set[str] = set()

    @property
    def accepted(self) -> list[tuple[str, bytes]]:
        """The key and body of each message, in the order of arrival."""
        return [(request.headers["idempotency-key"], request.body) for request in self.server.requests]

    def _act(self, connection: socket.socket, over: threading.Event) -> None:
        with self._lock:
            keys = [key for key, _ in self.accepted]
            fresh = any(key not in self._seen for key in keys)
            self._seen.update(keys)
            if self.victim is not None and fresh:
                os.kill(self.victim, signal.SIGKILL)
                self.victim = None
                return
        reply()(connection, over)


class KilledDeliveries:
    """`KilledDeliveries(folder, policy, number).loop()`, then compare `accepted`, `uncertain` and `rows`."""

    def __init__(self, folder: Path, policy: str, number: int) -> None:
        self.folder, self.policy, self.number = folder, policy, number
        self.uncertain = 0
        self.held = 0
        self.last_life = 0  # uncertain deliveries by the log of the last boot and by its counter
        self.metric = 0.0
        self.rows: list[dict[str, Any]] = []
        self.accepted: list[tuple[str, bytes]] = []

    def loop(self) -> None:
        receiver = Receiver()
        with receiver.server:
            it = Daemon(self.folder, CONFIG.format(url=receiver.server.url, policy=self.policy))
            try:
                self._kill_again_and_again(it, receiver)
                self._settle(it)
            finally:
                if it.process.poll() is None:
                    it.kill()
            self.accepted = receiver.accepted

    def _kill_again_and_again(self, it: Daemon, receiver: Receiver) -> None:
        for _ in range(self.number):
            receiver.victim = it.process.pid
            assert it._wait() == -signal.SIGKILL
            earlier = len(it.log)
            it.start()
            self.last_life = sum(DOUBT in line for line in it.log[earlier:])

    def _settle(self, it: Daemon) -> None:
        """Stop killing, resend held and pending messages manually, and stop the job that makes messages."""
        it.run_command("pause", "tick")
        it.wait_until(lambda: not it.json("status")["queue"]["running"])
        self.held = sum(each["state"] == "held" for each in it.json("outbox", "--limit", "10000"))
        it.run_command("outbox", "retry", "--all")
        it.wait_until(lambda: it.json("outbox") == [])
        self.metric = float(re.findall(r'deliveries_total\{channel="hook",result="uncertain"\} (\S+)', it.metrics())[0])
        it.stop()
        self.uncertain = sum(DOUBT in line for line in it.log)
        self.rows = it.runs("tick")

    @property
    def bodies(self) -> dict[str, set[bytes]]:
        """The bodies sent with each key."""
        found: dict[str, set[bytes]] = {}
        for key, body in self.accepted:
            found.setdefault(key, set()).add(body)
        return found

    @property
    def repeats(self) -> Counter[str]:
        """The number of repetitions of each key."""
        return Counter({key: count - 1 for key, count in Counter(key for key, _ in self.accepted).items() if count > 1})

    @property
    def lost(self) -> list[dict[str, Any]]:
        """The runs with a message that was never delivered."""
        return [row for row in self.rows if row["delivery"]["state"] not in ("none", "delivered")]

    def check(self) -> None:
        """Check that nothing is lost, that a repetition has the same key and body, and that each uncertain delivery is counted."""
        with_delivery = [row for row in self.rows if row["delivery"]["state"] != "none"]
        assert self.lost == []
        assert len(self.bodies) == len(with_delivery) >= self.number
        assert {len(bodies) for bodies in self.bodies.values()} == {1}
        assert self.number <= self.repeats.total() <= self.uncertain
        assert self.metric == self.last_life
        if self.policy == "hold":
            assert self.held == self.uncertain
            assert set(self.repeats.values()) == {1}  # each manually


STORM = """\
state: state/h.db
server: {{listen: "127.0.0.1:0", tokens: {{{tokens}}}}}
history: {{keep: 30d, runs: 1000000}}
limits: {{wake_gap: 0s, wake_flood: 1000 per 1m}}
channels: {{hook: {{kind: webhook, url: "{url}", allow_private: true}}}}
agents:
  ops:
    runner: {{kind: command, argv: [sh, -c, "grep -o 'mark-[0-9]*;' || true"]}}
    heartbeat: {{interval: 1s, stagger: 0s, checklist: "- look\\n", deliver: hook, timeout: 10s}}
cron:
  tick: {{every: 1s, command: "date +%s.%N", deliver: hook}}
"""
SENDERS = 40  # many senders, because waiting wakes of one sender are merged
A_SECOND = 1000  # milliseconds, as in the database


class KilledDaemon:
    """A daemon with runs, jobs, wakes and deliveries every second that is killed repeatedly at random moments.

    `KilledDaemon(folder, number, chance).play()`, then `lost` and `doubled` list what was lost and repeated.
    """

    def __init__(self, folder: Path, number: int, chance: random.Random) -> None:
        self.folder, self.number, self.chance = folder, number, chance
        self.lost: list[str] = []
        self.doubled: list[str] = []
        self.counted: Counter[str] = Counter()  # the number of events of each kind
        self.repeats = 0  # messages repeated with their key
        self._accepted: list[str] = []  # the tokens of the wakes that a daemon has accepted

    def play(self) -> None:
        tokens = ", ".join(f'k{each}: {{value: "{_token(each)}", may: [wake]}}' for each in range(SENDERS))
        with Server([reply()]) as server:
            it = Daemon(self.folder, STORM.format(url=server.url, tokens=tokens))
            try:
                for _ in range(self.number):
                    self._wake_for(it, self.chance.uniform(0.1, 2.0))
                    it.kill()
                    it.start()
                self._come_to_rest(it)
                it.stop()
            finally:
                if it.process.poll() is None:
                    it.kill()
            messages = [(request.headers["idempotency-key"], request.body) for request in server.requests]
        with closing(sqlite3.connect(self.folder / "state" / "h.db")) as db:
            db.row_factory = sqlite3.Row
            self._look_at_slots(db)
            self._look_at_wakes(db)
            self._look_at_messages(db, messages)

    def _wake_for(self, it: Daemon, seconds: float) -> None:
        url = json.loads((self.folder / "state" / "daemon.json").read_text())["url"]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._wake(url)
            time.sleep(max(0.0, min(self.chance.uniform(0.2, 0.6), until - time.monotonic())))  # the daemon goes on

    def _wake(self, url: str) -> None:
        number = len(self._accepted)
        body = json.dumps({"text": f"mark-{number};"}).encode()
        headers = {"Authorization": f"Bearer {_token(number % SENDERS)}", "Content-Type": "application/json"}
        with urlopen(Request(f"{url}/api/v1/agents/ops/wake", body, headers), timeout=20):
            self._accepted.append(f"mark-{number};")

    def _come_to_rest(self, it: Daemon) -> None:
        """Stop killing and waking, until all accepted wakes and messages are delivered. A retry after a minute is not waited for."""
        it.wait_until(lambda: not any(entry["wakes_waiting"] for entry in it.json("status")["entries"]))
        it.run_command("pause", "--all")
        it.wait_until(lambda: not it.json("status")["queue"]["running"] and not it.json("status")["queue"]["retrying"])
        it.run_command("outbox", "retry", "--all")
        it.wait_until(lambda: not any(box["pending"] for box in it.json("status")["outbox"]))

    def _look_at_slots(self, db: sqlite3.Connection) -> None:
        """Check that each slot of the two entries up to their next one is in exactly one record."""
        for name, trigger, first in (("ops", "interval", 0), ("tick", "every", A_SECOND)):
            anchor, settled = db.execute("select anchor, settled_until from entry where name = ?", (name,)).fetchone()
            due = (settled - anchor - first) // A_SECOND + 1
            query = "select coalesce(sum(slots), 0) from run where name = ? and trigger = ?"
            found = db.execute(query, (name, trigger)).fetchone()[0]
            self.counted["slots"] += found
            if found < due:
                self.lost.append(f"{name}: {due - found} of {due} slots")
            if found > due:
                self.doubled.append(f"{name}: {found - due} more than {due} slots")

    def _look_at_wakes(self, db: sqlite3.Connection) -> None:
        counts = Counter(
            mark
            for (text,) in db.execute("select text from run where outcome = 'alert'")
            for mark in re.findall(r"mark-\d+;", text)
        )
        self.counted["wakes"] = len(self._accepted)
        self.lost += [f"wake {mark}" for mark in self._accepted if not counts[mark]]
        self.doubled += [f"wake {mark} in {counts[mark]} runs" for mark in self._accepted if counts[mark] > 1]

    def _look_at_messages(self, db: sqlite3.Connection, messages: list[tuple[str, bytes]]) -> None:
        bodies: dict[str, set[bytes]] = {}
        for key, body in messages:
            bodies.setdefault(key, set()).add(body)
        self.repeats = len(messages) - len(bodies)
        self.doubled += [f"message {key} with {len(each)} bodies" for key, each in bodies.items() if len(each) > 1]
        written = [row["key"] for row in db.execute("select key from outbox")]
        spoken = "select count(*) from run where ((name = 'tick' and outcome = 'ok') or outcome = 'alert')"
        without = db.execute(
            f"{spoken} and not exists (select 1 from outbox where run_id = run.id) and suppression is null"
        ).fetchone()[0]
        self.counted["messages"] = len(written)
        self.lost += [f"message {key}" for key in written if key not in bodies]
        if without:
            self.lost.append(f"{without} runs that had something to say and wrote no message")


def _token(number: int) -> str:
    return f"a-token-with-enough-bits-in-it-for-number-{number}-8f2c"
