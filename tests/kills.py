"""A daemon that is killed between the moment a channel accepts a message and the moment it could note that, again and again."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from servers.scripted import Server, reply
from test_daemon import Daemon

CONFIG = """\
state: state/h.db
server: {{listen: "127.0.0.1:0"}}
channels: {{hook: {{kind: webhook, url: "{url}", allow_private: true, uncertain: {policy}}}}}
cron:
  tick: {{every: 1s, command: "date +%s.%N", deliver: hook}}
"""
DOUBT = " state=uncertain"


class Receiver:
    """Accepts every message and answers, until it is told to kill its sender first."""

    def __init__(self) -> None:
        self.server = Server([self._act])
        self.victim: int | None = None
        self._lock = threading.Lock()
        self._seen: set[str] = set()

    @property
    def accepted(self) -> list[tuple[str, bytes]]:
        """The key and the body of each message, as they came."""
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


class Kills:
    """`Kills(folder, policy, number).loop()`; then look at `accepted`, `uncertain` and `rows`."""

    def __init__(self, folder: Path, policy: str, number: int) -> None:
        self.folder, self.policy, self.number = folder, policy, number
        self.uncertain = 0
        self.held = 0
        self.last_life = 0  # doubts by the log of the last life, and by its counter
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
        """Nobody kills any more: what is held or waits is sent by hand, and the job makes no more messages."""
        it.do("pause", "tick")
        it.until(lambda: not it.json("status")["queue"]["running"])
        self.held = sum(each["state"] == "held" for each in it.json("outbox", "--limit", "10000"))
        it.do("outbox", "retry", "--all")
        it.until(lambda: it.json("outbox") == [])
        self.metric = float(re.findall(r'deliveries_total\{channel="hook",result="uncertain"\} (\S+)', it.metrics())[0])
        it.stop()
        self.uncertain = sum(DOUBT in line for line in it.log)
        self.rows = it.runs("tick")

    @property
    def bodies(self) -> dict[str, set[bytes]]:
        """What was sent under each key."""
        found: dict[str, set[bytes]] = {}
        for key, body in self.accepted:
            found.setdefault(key, set()).add(body)
        return found

    @property
    def repeats(self) -> Counter[str]:
        """How often each key came once more."""
        return Counter({key: count - 1 for key, count in Counter(key for key, _ in self.accepted).items() if count > 1})

    @property
    def lost(self) -> list[dict[str, Any]]:
        """Runs that had something to say which never arrived."""
        return [row for row in self.rows if row["delivery"]["state"] not in ("none", "delivered")]

    def check(self) -> None:
        """The promise: nothing is lost, a repeat is the same message under the same key, and each doubt is counted."""
        told = [row for row in self.rows if row["delivery"]["state"] != "none"]
        assert self.lost == []
        assert len(self.bodies) == len(told) >= self.number
        assert {len(bodies) for bodies in self.bodies.values()} == {1}
        assert self.number <= self.repeats.total() <= self.uncertain
        assert self.metric == self.last_life
        if self.policy == "hold":
            assert self.held == self.uncertain
            assert set(self.repeats.values()) == {1}  # each by hand
