"""Reports readiness, watchdog pings, reloads and the stop to systemd, if the service has `Type=notify`.

The package sdnotify blocks while systemd hangs, and reports no error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from socket import AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, socket

from heartbeat.words import squeeze
from scheduler.system.log import log_event

SEND_TIMEOUT = 1.0  # seconds that a message waits for room; systemd reads at once unless it hangs
MAX_STATUS = 1000  # characters


class ServiceManager:
    """The service manager that started this process, by the protocol of sd_notify(3).

    `environ` has NOTIFY_SOCKET if messages are expected, WATCHDOG_USEC if pings are, and WATCHDOG_PID if they must come from one
    process. Without NOTIFY_SOCKET every call does nothing. A message that cannot be sent is logged once and is not an error.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _socket_address(environ.get("NOTIFY_SOCKET", ""))
        # It is opened once and kept: if open files run out, the pings must not stop.
        self._socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC) if self._address else None
        if self._socket:
            self._socket.settimeout(SEND_TIMEOUT)
        self._ping_every = _watchdog_seconds(environ) / 2 if self._address else 0.0
        self._next_ping = 0.0
        self._status = ""
        self._is_ready = False
        self._has_failed = False

    def report_ready(self) -> None:
        """The daemon has started, or waits for something outside. Further calls change nothing."""
        if not self._is_ready:
            self._is_ready = True
            self._send_message("READY=1")

    def report_stopping(self, takes: float) -> None:
        """The daemon is stopping. This may take `takes` seconds, even if the unit's TimeoutStopSec= is shorter."""
        self._send_message(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={takes * 1e6:.0f}")

    @contextmanager
    def report_reload(self, monotonic: float) -> Iterator[None]:
        """A reload is in progress within the context. `monotonic` is the monotonic clock, in seconds."""
        self._send_message(f"RELOADING=1\nMONOTONIC_USEC={monotonic * 1e6:.0f}")
        try:
            yield
        finally:
            self._send_message("READY=1")

    def report_status(self, text: str) -> None:
        """One line for `systemctl status`; sent when it has changed."""
        line = squeeze(text, MAX_STATUS)
        if line != self._status:
            self._status = line
            self._send_message(f"STATUS={line}")

    def ping_watchdog(self, monotonic: float) -> float | None:
        """Report that the caller's thread is alive, if that is due. Returns the seconds until the next ping, None if never.

        A ping is due after half of the time after which systemd would restart the daemon.
        """
        if not self._ping_every:
            return None
        if monotonic >= self._next_ping:
            self._next_ping = monotonic + self._ping_every
            self._send_message("WATCHDOG=1")
        return self._next_ping - monotonic

    def close(self) -> None:
        """Close the socket. Later calls send nothing."""
        if self._socket:
            self._socket.close()
            self._socket = None

    def _send_message(self, message: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError as error:
            if not self._has_failed:
                log_event(logging.WARNING, "systemd_unreachable", problem=str(error))
            self._has_failed = True


def _socket_address(text: str) -> str:
    """A path, or with '@' a name in the abstract namespace; empty for other kinds of sockets, which are not supported."""
    return text.replace("@", "\0", 1) if text.startswith("@") else text if text.startswith("/") else ""


def _watchdog_seconds(environ: Mapping[str, str]) -> float:
    """After how many seconds without a ping systemd restarts the daemon; 0 if it does not watch this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    limit = environ.get("WATCHDOG_USEC", "")
    return int(limit) / 1e6 if limit.isdecimal() else 0.0
