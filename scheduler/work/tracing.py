"""Passes the attempts of a daemon or a worker to the extra that traces them, if the config asks for traces."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from heartbeat.attempt import Elapsed
from heartbeat.runners import Resources
from scheduler.model.entry import Claim
from scheduler.model.outcome import AttemptResult
from scheduler.model.settings import Settings
from scheduler.system import extras
from scheduler.system.extras import MissingExtra
from scheduler.system.log import log_event
from scheduler.work.attempt import attempt
from scheduler.work.executor import Done

NAME = "otel"  # of the entry point in `heartbeatd.listeners`


class Tracer(Protocol):
    """What the entry point gives when it is called with the settings in force, and with the name of this worker or None."""

    async def run_attempt(
        self, claim: Claim, resources: Resources, carry_out: Callable[[Resources], Awaitable[AttemptResult]]
    ) -> AttemptResult:
        """Carry out an attempt with these resources, or with changed ones."""

    def begin_queueing(self, claim: Claim) -> str | None:
        """A worker will execute this attempt. Returns the trace that the worker continues, as a `traceparent`."""

    def end_queueing(self, done: Done[Claim, AttemptResult]) -> None:
        """The result of such an attempt has come."""

    def close(self) -> None:
        """The process ends."""


class Tracing:
    """Traces attempts while `telemetry.traces` is true. `worker` is the name of this worker; None: this is the daemon."""

    def __init__(self, settings: Callable[[], Settings], worker: str | None = None) -> None:
        self._settings = settings
        self._worker = worker
        self._lock = threading.Lock()
        self._tracer: Tracer | None = None

    def prepare(self, settings: Settings) -> None:
        """Load the extra if these settings need it, before they are in force. Takes up to a second of CPU once."""
        with self._lock:
            if settings.traces and self._tracer is None:
                try:
                    self._tracer = extras.load("listeners", NAME)(self._settings, self._worker)
                except MissingExtra as error:
                    log_event(logging.WARNING, "traces", problem=f"off: {error}")

    async def run_attempt(self, claim: Claim, resources: Resources, elapsed: Elapsed) -> AttemptResult:
        """Carry out an attempt."""
        if self._tracer is None or not self._settings().traces:
            return await attempt(claim, resources, elapsed)
        return await self._tracer.run_attempt(claim, resources, lambda used: attempt(claim, used, elapsed))

    def begin_queueing(self, claim: Claim) -> str | None:
        """A worker will execute this attempt. Returns the `traceparent` that it continues; None if traces are off."""
        return self._tracer.begin_queueing(claim) if self._tracer else None

    def end_queueing(self, done: Done[Claim, AttemptResult]) -> None:
        """The result of such an attempt has come."""
        if self._tracer:
            self._tracer.end_queueing(done)

    def close(self) -> None:
        """Send what is left."""
        if self._tracer:
            self._tracer.close()


def describe(environ: Mapping[str, str]) -> tuple[str, str]:
    """What `doctor` says about traces that are on: "ok" or "warn", and a sentence."""
    try:
        level, text = extras.load("listeners", NAME).describe(environ)
    except MissingExtra as error:
        return "warn", str(error)
    return level, text
