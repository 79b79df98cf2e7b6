"""Pings the dead man's switch from the main loop, so that the pings stop if the main loop hangs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from scheduler.channels.http_post import post_json, result_of_status
from scheduler.model.daemon_health import EngineHealth
from scheduler.model.message import DeliveryResult
from scheduler.model.settings import Deadman
from scheduler.net.http_client import HttpClient
from scheduler.system.log import log_event
from scheduler.work.executor import Done, Executor

SHORTEST_WAIT = 1.0  # seconds between two checks whether a ping is due
PING_TIMEOUT = 10.0  # seconds for one ping

Beat = Literal["start", "success", "fail"]
PATHS: dict[Beat, str] = {"start": "/start", "success": "", "fail": "/fail"}  # https://healthchecks.io/docs/http_api/


@dataclass(frozen=True, slots=True)
class Ping:
    """One ping, and the switch as it is declared when the ping is sent. `problem`: why the database cannot be written."""

    beat: Beat
    problem: str | None
    switch: Deadman


class Pinger:
    """Sends the pings. The engine's thread calls it after each tick, so a frozen engine sends no pings.

    `on_change` is called with an error text when pings stop arriving, and with None when they arrive again.
    """

    def __init__(
        self, pings: Executor[Ping, DeliveryResult], health: EngineHealth, on_change: Callable[[str | None], object]
    ) -> None:
        self._executor = pings
        self._health = health
        self._on_change = on_change
        self._switch: Deadman | None = None
        self._next_ping_at = 0.0
        self._has_committed = False  # whether any tick since the last ping was committed
        self._number = 0

    def ping_if_due(self, monotonic: float, switch: Deadman | None) -> float | None:
        """Send a ping if one is due. Returns the seconds until the next call; None without a switch.

        The first ping of a switch is `start`. Later ones are `success` if a tick was committed since the last ping, and
        `fail` if not.
        """
        for number, done in self._executor.results():
            self._executor.ack([number])
            self._record_result(done)
        self._has_committed = self._has_committed or self._health.why_not_working is None
        if switch != self._switch:
            self._switch, self._next_ping_at = switch, monotonic + SHORTEST_WAIT
            self._report_problem(None)
            self._start_ping("start")
        elif switch is not None and monotonic >= self._next_ping_at and not self._executor.inflight():
            self._start_ping("success" if self._has_committed else "fail")
            self._has_committed, self._next_ping_at = False, monotonic + switch.every.total_seconds()
        return None if switch is None else max(self._next_ping_at - monotonic, SHORTEST_WAIT)

    def _start_ping(self, beat: Beat) -> None:
        if self._switch is not None:
            self._number += 1
            problem = self._health.why_not_working if beat == "fail" else None
            self._executor.submit(self._number, Ping(beat, problem, self._switch))

    def _record_result(self, done: Done[Ping, DeliveryResult]) -> None:
        """Count a ping. Log the first one that fails and the first one that arrives again."""
        sent = done.result or DeliveryResult("uncertain", f"{type(done.exception).__name__} while pinging")
        problem = None if sent.state == "delivered" else sent.error
        self._health.pings["failed" if problem else "delivered"] += 1
        if done.task.switch != self._switch:
            return  # the switch was changed since
        if (problem is None) != (self._health.ping_problem is None):
            log_event(logging.WARNING, "deadman", state="failing" if problem else "pinged", problem=problem)
        self._report_problem(problem)

    def _report_problem(self, problem: str | None) -> None:
        """Report the problem (None: pings arrive) if there was none before, or the other way round."""
        if (problem is None) != (self._health.ping_problem is None):
            self._on_change(problem)
        self._health.ping_problem = problem


async def send_ping(ping: Ping, http: HttpClient) -> DeliveryResult:
    """Send one ping, within ten seconds: to the URL itself for a success, else with /start or /fail at the end of its path.

    The body is JSON: the kind of ping, and the problem if there is one. Network errors are in the result.
    """
    url, path = ping.switch.url.reveal(), PATHS[ping.beat]
    if path:
        parts = urlsplit(url)
        url = urlunsplit(parts._replace(path=parts.path.rstrip("/") + path))
    content = {"beat": ping.beat} | ({"problem": ping.problem} if ping.problem else {})
    answer = await post_json(url, content, http, allow_private=ping.switch.allow_private, seconds=PING_TIMEOUT)
    return answer if isinstance(answer, DeliveryResult) else result_of_status(answer)
