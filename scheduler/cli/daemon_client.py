"""Sends requests to the running daemon over HTTP, or applies them to its database when no daemon runs."""

from __future__ import annotations

import http.client
import json
import os
import random
import secrets
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, Self, cast
from urllib.parse import urlencode, urlsplit

import click

from heartbeatd.answers import Reloaded
from heartbeatd.operations import Answer, Concern, Endpoint, query_of
from heartbeatd.state_folder import MAX_DAEMON_ANSWER
from heartbeatd.verbs import VERB_ENDPOINTS, Reload, Verb
from scheduler.cli import daemon_files
from scheduler.cli.daemon_files import DaemonFiles, DaemonProcess, open_for_reading
from scheduler.cli.output import utc_now
from scheduler.config.file.diagnostics import ConfigError, Diagnostic
from scheduler.config.settings import load
from scheduler.engine import plan_sync
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.inbox import PendingRequest, Refused, Request
from scheduler.engine.tick import Tick
from scheduler.model.entry import Key
from scheduler.model.outcome import Kind
from scheduler.store import entries
from scheduler.store.database import Store, check_file, check_links
from scheduler.store.locations import open_for_writing, server_stores
from scheduler.store.transaction import Transaction
from scheduler.system.boot_clock import BootClock
from scheduler.system.orphans import RUN_ID_VARIABLE
from scheduler.system.state_lock import AlreadyRunning, StateLock, make_state_folder
from scheduler.work import plan

START_TIMEOUT = 3.0  # seconds from taking the lock to writing the address
POLL_INTERVAL = 0.05
CONNECT_TIMEOUT = 1.0  # seconds
ANSWER_TIMEOUT = 60.0  # seconds for one answer: longer than the daemon itself waits for its engine


class DaemonClient(Protocol):
    """The requests that the daemon accepts; they can be made while it is up or down."""

    def list_entries(self) -> Collection[Key]:
        """All agents and jobs."""
        ...

    def perform(self, verb: Verb[Answer], subject: Key | int | None = None) -> Answer:
        """Carry out a verb for an entry, for the run or message with a number, or for all. Raises Refused."""
        ...


def open_client(path: Path) -> DaemonClient:
    """A client of the running daemon, or of its database if the daemon is down. Only the latter needs a valid config."""
    return connect_to_daemon(daemon_files.locate_files(path)) or OfflineDaemonClient(path)


def connect_to_daemon(files: DaemonFiles, timeout: float = START_TIMEOUT) -> HttpDaemonClient | None:
    """A client of the running daemon; None if no daemon runs.

    A daemon that has just started gets `timeout` seconds to write its address. Raises ClickException if it does not.
    """
    deadline = time.monotonic() + timeout
    while up := daemon_files.find_running_daemon(files):
        found = HttpDaemonClient.connect_if_listening(files, up)
        if found or time.monotonic() >= deadline:
            return found or _raise_unreachable(files, up)
        time.sleep(POLL_INTERVAL)
    return None


def _raise_unreachable(files: DaemonFiles, up: DaemonProcess) -> HttpDaemonClient:
    who = f"pid {up.pid}" if up.pid else "another process"
    raise click.ClickException(
        f"{who} holds {files.lock_file} and cannot be reached at the address in {files.address_file};"
        " it may be starting or stopping"
    )


class HttpDaemonClient:
    """Sends requests to the daemon at one address.

    Raises Refused if the daemon rejects a request, and ClickException if it does not answer.
    """

    def __init__(self, files: DaemonFiles, host: str, port: int, token: str) -> None:
        self._files = files
        self._host, self._port, self._token = host, port, token

    @classmethod
    def connect_if_listening(cls, files: DaemonFiles, up: DaemonProcess) -> Self | None:
        """A client of this daemon; None if it does not listen yet, or no longer listens.

        An address that another process has written is ignored: a different program may use that port by now.
        """
        try:
            address = json.loads(files.address_file.read_text("utf-8"))
            url = urlsplit(address["url"])
            host, port = url.hostname or "", url.port or 80
            if address["pid"] != up.pid:
                return None
            socket.create_connection((host, port), CONNECT_TIMEOUT).close()
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return cls(files, host, port, _read_token(files))

    def list_entries(self) -> Collection[Key]:
        with open_for_reading(self._files) as db:
            return [key for key, (state, _) in entries.states_and_schedules(db).items() if state != "removed"] if db else []

    def perform(self, verb: Verb[Answer], subject: Key | int | None = None) -> Answer:
        endpoint = _endpoint_of(verb, subject)
        status, answer = self.call(endpoint, subject[1] if isinstance(subject, tuple) else subject, verb.as_json())
        return self._read_answer(verb, status, answer)

    def _read_answer(self, verb: Verb[Answer], status: int, answer: dict[str, Any]) -> Answer:
        if status >= 300:
            raise _error_from_answer(status, answer)
        try:
            return verb.read_answer(json.dumps(answer).encode())
        except ValueError:
            raise click.ClickException(
                f"the answer of the daemon at {self._host}:{self._port} is unknown; restart the daemon after an upgrade"
            ) from None

    def reload_config(self, verb: Reload, path: Path) -> Reloaded:
        """Reload the config. Raises ConfigError with the errors in the file at `path`."""
        status, answer = self.call(_endpoint_of(verb, None), None, verb.as_json())
        if status == 422 and "errors" in answer:
            notes = ([Diagnostic(**each, source=str(path)) for each in answer[word]] for word in ("errors", "warnings"))
            raise ConfigError(*notes)
        return self._read_answer(verb, status, answer)

    def with_token(self, token: str) -> HttpDaemonClient:
        """A client of the same daemon that sends another token."""
        return HttpDaemonClient(self._files, self._host, self._port, token)

    def call(self, endpoint: Endpoint, subject: str | int | None, sent: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Send a request of the API with these keys. Returns the status and the answer; empty if that is no JSON object."""
        path = endpoint.path_for(subject)
        if endpoint.method == "GET":
            path += f"?{urlencode(query_of(sent))}" if sent else ""
        status, content = self.send(endpoint.method, path, None if endpoint.method == "GET" else json.dumps(sent), {})
        return status, _parse_json_object(content)

    def send(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Send a request of the API, with a JSON body or none. Returns the status and the content of the answer."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_TIMEOUT)
        try:
            connection.request(method, path, body, {**self._request_headers(), **headers})
            response = connection.getresponse()
            content = response.read(MAX_DAEMON_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            raise click.ClickException(f"the daemon at {self._host}:{self._port} does not answer: {error}") from error
        finally:
            connection.close()
        if len(content) > MAX_DAEMON_ANSWER:
            limit = f"{MAX_DAEMON_ANSWER // 1024**2} MiB"
            raise click.ClickException(f"the answer of the daemon at {self._host}:{self._port} is larger than {limit}")
        return response.status, content

    def _request_headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json", "X-Heartbeatd-Source": "cli"}
        run = os.environ.get(RUN_ID_VARIABLE)
        return headers | {"X-Heartbeatd-Run": run} if run else headers


def _read_token(files: DaemonFiles) -> str:
    try:
        return files.token_file.read_text("utf-8").strip()
    except OSError as error:
        raise click.ClickException(
            f"cannot read {files.token_file}: {error.strerror}; are you the user that runs the daemon?"
        ) from error


def _endpoint_of(verb: Verb, subject: Key | int | None) -> Endpoint:
    """The request of the API that carries out a verb for such a subject."""
    endpoints = [each for each in VERB_ENDPOINTS.values() if each.operation is type(verb)]
    if not isinstance(subject, tuple):
        return next(each for each in endpoints if ("{id}" in each.path) == (subject is not None) and "{name}" not in each.path)
    concern = Concern.AGENT if subject[0] is Kind.HEARTBEAT else Concern.JOB
    return next(each for each in endpoints if each.concern is concern)


def _parse_json_object(text: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _error_from_answer(status: int, answer: Mapping[str, Any]) -> Exception:
    error = answer.get("error")
    if not isinstance(error, dict):
        return click.ClickException(f"the daemon answered with HTTP status {status} and without a reason")
    return Refused(str(error.get("code")), str(error.get("message")))


class OfflineDaemonClient:
    """Applies requests to the database of a valid config, or sends them to a daemon that has started in the meantime.

    Raises ConfigError, StateFolderError, StoreError, Refused, and ClickException if such a daemon does not answer.
    """

    def __init__(self, path: Path) -> None:
        self.files = daemon_files.locate_files(path)
        self._plan = plan.make_plan(
            load.load_config(path, os.environ, resolve_secrets=False).settings
        )  # secrets are not needed: nothing is sent from here

    def list_entries(self) -> Collection[Key]:
        return self._plan.entries

    def perform(self, verb: Verb[Answer], subject: Key | int | None = None) -> Answer:
        while True:
            try:
                sender = Sender(run=os.environ.get(RUN_ID_VARIABLE))
                return cast("Answer", self._apply_request(VerbRequest(verb, subject, sender)))
            except AlreadyRunning:
                daemon = connect_to_daemon(self.files)
            if daemon is not None:  # otherwise another command had the lock
                return daemon.perform(verb, subject)

    def _apply_request(self, request: Request) -> object:
        """Apply a request in one transaction.

        The rows of the entries are first brought in line with the config, because the daemon may not know the entry yet.
        """
        state, instance = self._plan.settings.state, secrets.token_hex(8)
        if self._plan.settings.postgresql is None:
            check_file(state)
            check_links(state)
        make_state_folder(state.parent)
        with ExitStack() as closing:
            lock = state.with_name(state.name + ".lock")
            closing.enter_context(StateLock.take(lock, started_at=utc_now(), instance=instance, is_command=True))
            store = open_for_writing(self._plan.settings.database)
            closing.callback(store.close)
            if self._plan.settings.postgresql:
                lease = server_stores().lead_for_a_command(self._plan.settings.postgresql, instance, BootClock())
                closing.callback(lease.stop)
                store.epoch = lease.epoch
            return self._apply_in_transaction(store, instance, request)

    def _apply_in_transaction(self, store: Store, instance: str, request: Request) -> object:
        pending, now = PendingRequest(request), utc_now()
        with store.transaction() as db:
            tick = Tick(Transaction(db, now, instance, self._plan.settings.hash), self._plan, now, random.Random())  # noqa: S311 (spreads retries, not a secret)
            plan_sync.sync_entries(tick, {})
            pending.apply(tick)
        pending.send_reply()
        return pending.future.result()
