"""Sends requests to the running daemon over HTTP, or applies them to its database when no daemon runs."""

from __future__ import annotations

import http.client
import json
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar
from urllib.parse import urlsplit

import click

from heartbeat.words import format_duration
from scheduler.cli import daemon_files
from scheduler.cli.daemon_files import DaemonFiles, DaemonProcess, open_for_reading
from scheduler.cli.output import utc_now
from scheduler.config.settings import load
from scheduler.engine import plan_sync
from scheduler.engine.inbox import PendingRequest, Refused, Request
from scheduler.engine.requests import (
    AcknowledgeConditions,
    CloseCondition,
    DropMessage,
    MuteEntry,
    PauseEntries,
    ResendMessage,
    ResumeEntries,
    RunJob,
    UnacknowledgeConditions,
    UnmuteEntry,
    WakeAgent,
)
from scheduler.engine.tick import Tick
from scheduler.model.entry import Key
from scheduler.model.outcome import Kind, Trigger
from scheduler.model.state_address import MAX_DAEMON_ANSWER
from scheduler.model.wake import Wake
from scheduler.store import entries
from scheduler.store.database import Store, check_file, check_links
from scheduler.store.locations import open_for_writing
from scheduler.store.transaction import Transaction
from scheduler.system.orphans import RUN_ID_VARIABLE
from scheduler.system.state_lock import AlreadyRunning, StateLock, make_state_folder
from scheduler.work import plan

START_TIMEOUT = 3.0  # seconds from taking the lock to writing the address
POLL_INTERVAL = 0.05
CONNECT_TIMEOUT = 1.0  # seconds
P = ParamSpec("P")
T = TypeVar("T")
ANSWER_TIMEOUT = 60.0  # seconds for one answer: longer than the daemon itself waits for its engine


class DaemonClient(Protocol):
    """The requests that the daemon accepts; they can be made while it is up or down."""

    def has_entry(self, key: Key) -> bool:
        """Whether the config has this agent or job."""
        ...

    def list_entries(self) -> Iterable[Key]:
        """All agents and jobs."""
        ...

    def wake_agent(self, name: str, text: str) -> int:
        """Wake an agent, and return the ID of the wake."""
        ...

    def run_job(self, name: str) -> int:
        """Run a job now, and return the ID of the wake that starts the run."""
        ...

    def pause_entries(self, key: Key | None, span: timedelta | None) -> None:
        """Pause one entry, or all entries if `key` is None, for a time or until they are resumed."""
        ...

    def resume_entries(self, key: Key | None) -> list[str]:
        """Resume one entry, or all entries if `key` is None, and return the names of those that were paused."""
        ...

    def retry_message(self, message_id: int) -> None:
        """Send a message of the outbox again as soon as possible."""
        ...

    def drop_message(self, message_id: int) -> None:
        """Drop a message of the outbox permanently."""
        ...

    def close_condition(self, name: str, key: str) -> str:
        """Close an open condition of an agent, and return its key as the agent wrote it."""
        ...

    def mute_entry(self, key: Key, span: timedelta | None, *, until_changed: bool) -> None:
        """Suppress the messages of an entry, for a time or until it is unmuted, or until something changes."""
        ...

    def unmute_entry(self, key: Key) -> int | None:
        """Stop suppressing the messages of an entry. Returns how many runs were affected; None if it was not muted."""
        ...

    def acknowledge(self, name: str, key: str | None, run_id: int | None) -> list[str]:
        """Acknowledge an open condition of an agent, or those of a run, and return their keys as the agent wrote them."""
        ...

    def unacknowledge(self, name: str, key: str | None, run_id: int | None) -> list[str]:
        """Remove the acknowledgement of conditions. Returns the keys of the conditions that were acknowledged."""
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

    def has_entry(self, key: Key) -> bool:
        with open_for_reading(self._files) as db:
            found = entries.find_entry(db, *key) if db else None
        return found is not None and found.state != "removed"

    def list_entries(self) -> Iterable[Key]:
        with open_for_reading(self._files) as db:
            return [key for key, (state, _) in entries.states_and_schedules(db).items() if state != "removed"] if db else []

    def wake_agent(self, name: str, text: str) -> int:
        return int(self._post_or_raise(f"/api/v1/agents/{name}/wake", {"text": text})["wake"])

    def run_job(self, name: str) -> int:
        return int(self._post_or_raise(f"/api/v1/cron/{name}/run", {})["wake"])

    def pause_entries(self, key: Key | None, span: timedelta | None) -> None:
        self._post_or_raise(_entry_path(key, "pause"), {"for": format_duration(span)} if span else {})

    def resume_entries(self, key: Key | None) -> list[str]:
        return list(self._post_or_raise(_entry_path(key, "resume"), {})["resumed"])

    def retry_message(self, message_id: int) -> None:
        self._post_or_raise(f"/api/v1/outbox/{message_id}/retry", {})

    def drop_message(self, message_id: int) -> None:
        self._post_or_raise(f"/api/v1/outbox/{message_id}/drop", {})

    def close_condition(self, name: str, key: str) -> str:
        return str(self._post_or_raise("/api/v1/conditions/close", {"agent": name, "key": key})["key"])

    def mute_entry(self, key: Key, span: timedelta | None, *, until_changed: bool) -> None:
        span_body = {"for": format_duration(span)} if span else {}
        self._post_or_raise(_entry_path(key, "mute"), span_body | {"until_changed": until_changed})

    def unmute_entry(self, key: Key) -> int | None:
        answer = self._post_or_raise(_entry_path(key, "unmute"), {})
        return int(answer["held"]) if answer["was_muted"] else None

    def acknowledge(self, name: str, key: str | None, run_id: int | None) -> list[str]:
        return list(self._post_or_raise("/api/v1/conditions/ack", _condition_body(name, key, run_id))["keys"])

    def unacknowledge(self, name: str, key: str | None, run_id: int | None) -> list[str]:
        return list(self._post_or_raise("/api/v1/conditions/unack", _condition_body(name, key, run_id))["keys"])

    def cancel_run(self, run_id: int) -> bool:
        """Cancel a run. Returns whether it has ended already."""
        return bool(self._post_or_raise(f"/api/v1/runs/{run_id}/cancel", {})["ended"])

    def reload_config(self, *, dry: bool) -> tuple[bool, dict[str, Any]]:
        """Reload the config. Returns whether the config is valid, and the daemon's answer."""
        status, answer = self._post_json("/-/reload", {"dry_run": dry})
        if status not in (200, 422) or "error" in answer:
            raise _error_from_answer(status, answer)
        return status == 200, answer

    def _post_or_raise(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        status, answer = self._post_json(path, body)
        if status >= 300:
            raise _error_from_answer(status, answer)
        return answer

    def with_token(self, token: str) -> HttpDaemonClient:
        """A client of the same daemon that sends another token."""
        return HttpDaemonClient(self._files, self._host, self._port, token)

    def _post_json(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        status, content = self.send("POST", path, json.dumps(body), {})
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


def _condition_body(name: str, key: str | None, run_id: int | None) -> dict[str, Any]:
    return {"run": run_id} if key is None else {"agent": name, "key": key}


def _entry_path(key: Key | None, verb: str) -> str:
    if key is None:
        return f"/api/v1/{verb}"
    kind, name = key
    return f"/api/v1/{'agents' if kind is Kind.HEARTBEAT else 'cron'}/{name}/{verb}"


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


def _or_by_daemon(apply: Callable[Concatenate[OfflineDaemonClient, P], T]) -> Callable[Concatenate[OfflineDaemonClient, P], T]:
    """The method, or that of a daemon which has started since the command looked for one."""

    @wraps(apply)
    def apply_here_or_there(self: OfflineDaemonClient, /, *args: P.args, **named: P.kwargs) -> T:
        while True:
            try:
                return apply(self, *args, **named)
            except AlreadyRunning:
                daemon = connect_to_daemon(self.files)
            if daemon is not None:  # otherwise another command had the lock
                answer: T = getattr(daemon, apply.__name__)(*args, **named)
                return answer

    return apply_here_or_there


class OfflineDaemonClient:
    """Applies requests to the database of a valid config, or sends them to a daemon that has started in the meantime.

    Raises ConfigError, StateFolderError, StoreError, Refused, and ClickException if such a daemon does not answer.
    """

    def __init__(self, path: Path) -> None:
        self.files = daemon_files.locate_files(path)
        self._plan = plan.make_plan(
            load.load_config(path, os.environ, resolve_secrets=False).settings
        )  # secrets are not needed: nothing is sent from here

    def has_entry(self, key: Key) -> bool:
        return key in self._plan.entries

    def list_entries(self) -> Iterable[Key]:
        return self._plan.entries

    @_or_by_daemon
    def wake_agent(self, name: str, text: str) -> int:
        wake = Wake(name, source=Trigger.MANUAL, sender="cli", text=text)
        return int(self._apply_request(WakeAgent(wake, cause=os.environ.get(RUN_ID_VARIABLE))))

    @_or_by_daemon
    def run_job(self, name: str) -> int:
        return int(self._apply_request(RunJob(name, Trigger.MANUAL)))

    @_or_by_daemon
    def pause_entries(self, key: Key | None, span: timedelta | None) -> None:
        self._apply_request(PauseEntries(key, None if span is None else utc_now() + span, "command"))

    @_or_by_daemon
    def resume_entries(self, key: Key | None) -> list[str]:
        return list(self._apply_request(ResumeEntries(key, "command")))

    @_or_by_daemon
    def retry_message(self, message_id: int) -> None:
        self._apply_request(ResendMessage(message_id))

    @_or_by_daemon
    def drop_message(self, message_id: int) -> None:
        self._apply_request(DropMessage(message_id))

    @_or_by_daemon
    def close_condition(self, name: str, key: str) -> str:
        return str(self._apply_request(CloseCondition(name, key)))

    @_or_by_daemon
    def mute_entry(self, key: Key, span: timedelta | None, *, until_changed: bool) -> None:
        until = None if span is None else utc_now() + span
        self._apply_request(MuteEntry(key, until, "cli", until_changed=until_changed))

    @_or_by_daemon
    def unmute_entry(self, key: Key) -> int | None:
        held: int | None = self._apply_request(UnmuteEntry(key, "cli"))
        return held

    @_or_by_daemon
    def acknowledge(self, name: str, key: str | None, run_id: int | None) -> list[str]:
        return list(self._apply_request(AcknowledgeConditions(name, "cli", key, run_id)))

    @_or_by_daemon
    def unacknowledge(self, name: str, key: str | None, run_id: int | None) -> list[str]:
        return list(self._apply_request(UnacknowledgeConditions(name, "cli", key, run_id)))

    def _apply_request(self, request: Request) -> Any:
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
                from scheduler.store.leadership import lead_for_a_command

                lease = lead_for_a_command(self._plan.settings.postgresql, instance)
                closing.callback(lease.stop)
                store.epoch = lease.epoch
            return self._apply_in_transaction(store, instance, request)

    def _apply_in_transaction(self, store: Store, instance: str, request: Request) -> Any:
        pending, now = PendingRequest(request), utc_now()
        with store.transaction() as db:
            tick = Tick(Transaction(db, now, instance, self._plan.settings.hash), self._plan, now, random.Random())  # noqa: S311 (spreads retries, not a secret)
            plan_sync.sync_entries(tick, {})
            entries.save_changed_entries(tick.tx)
            pending.apply(tick)
            entries.save_changed_entries(tick.tx)
        pending.send_reply()
        return pending.future.result()
