"""Sends requests to the running daemon over HTTP, or applies them to its database when no daemon runs."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import click

from heartbeatd.answers import Reloaded, ResponseBody
from heartbeatd.client import Client, find_url
from heartbeatd.errors import HeartbeatdError
from heartbeatd.operations import Answer, Concern, Endpoint
from heartbeatd.state_folder import RUN_ID_VARIABLE
from heartbeatd.verbs import VERB_ENDPOINTS, Reload, Verb
from scheduler.cli import daemon_files
from scheduler.cli.daemon_files import DaemonFiles, open_for_reading
from scheduler.cli.output import utc_now
from scheduler.config.file.diagnostics import ConfigError, Diagnostic
from scheduler.config.settings import load
from scheduler.engine import plan_sync
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.tick_items import PendingRequest, Refused, Request, Tick
from scheduler.model.outcome import Key, Kind
from scheduler.store import entries
from scheduler.store.database import Store, check_file, check_links
from scheduler.store.locations import open_for_writing, server_stores
from scheduler.store.transaction import Transaction
from scheduler.system.boot_clock import BootClock
from scheduler.system.state_lock import AlreadyRunning, StateLock, make_state_folder
from scheduler.work import plan

START_TIMEOUT = 3.0  # seconds from taking the lock to writing the address
POLL_INTERVAL = 0.05
CONNECT_TIMEOUT = 1.0  # seconds


def open_client(path: Path) -> HttpDaemonClient | OfflineDaemonClient:
    """A client of the running daemon, or of its database if the daemon is down. Only the latter needs a valid config."""
    return connect_to_daemon(daemon_files.locate_files(path)) or OfflineDaemonClient(path)


def connect_to_daemon(files: DaemonFiles, timeout: float = START_TIMEOUT, token: str | None = None) -> HttpDaemonClient | None:
    """A client of the running daemon, with its own token or another `token`; None if no daemon runs.

    A daemon that has just started gets `timeout` seconds to write its address. Raises ClickException if it does not.
    """
    deadline = time.monotonic() + timeout
    while up := daemon_files.find_running_daemon(files):
        if (url := _listening_at(files)) is not None:
            return HttpDaemonClient(files, url, token or _read_token(files))
        if time.monotonic() >= deadline:
            who = f"pid {up.pid}" if up.pid else "another process"
            raise click.ClickException(
                f"{who} holds {files.lock_file} and cannot be reached at the address in {files.address_file};"
                " it may be starting or stopping"
            )
        time.sleep(POLL_INTERVAL)
    return None


def _listening_at(files: DaemonFiles) -> str | None:
    """The URL at which the running daemon listens; None if it does not listen yet, or no longer."""
    try:
        found = find_url(files.database)
        address = urlsplit(found)
        socket.create_connection((address.hostname, address.port or 80), CONNECT_TIMEOUT).close()
    except (HeartbeatdError, OSError):
        return None
    return found


def _read_token(files: DaemonFiles) -> str:
    try:
        return files.token_file.read_text("utf-8").strip()
    except OSError as error:
        raise click.ClickException(
            f"cannot read {files.token_file}: {error.strerror}; are you the user that runs the daemon?"
        ) from error


class HttpDaemonClient:
    """Sends requests to the daemon at one address.

    Raises Refused if the daemon rejects a request, and ClickException if it does not answer.
    """

    def __init__(self, files: DaemonFiles, url: str, token: str) -> None:
        self._files = files
        self._client = Client(url, token, headers={"X-Heartbeatd-Source": "cli"})  # making one takes 20 ms

    def list_entries(self) -> Collection[Key]:
        """All agents and jobs."""
        with open_for_reading(self._files) as db:
            return [key for key, (state, _) in entries.states_and_schedules(db).items() if state != "removed"]

    def perform(self, verb: Verb[Answer], subject: Key | int | None = None) -> Answer:
        """Carry out a verb for an entry, for the run or message with a number, or for all."""
        named = subject[1] if isinstance(subject, tuple) else subject
        return cast("Answer", self.call(_endpoint_of(verb, subject), named, verb.as_json()))

    def call(self, endpoint: Endpoint, subject: str | int | None, keys: Mapping[str, object]) -> ResponseBody:
        """Send a request of the API with these keys. Raises HeartbeatdError with the errors of a config that is rejected."""
        try:
            answer: ResponseBody = getattr(self._client, endpoint.name)(*([] if subject is None else [subject]), **keys)
            return answer
        except HeartbeatdError as error:
            if error.problems:
                raise
            raise (click.ClickException(error.message) if error.status is None else Refused(error.code, error.message)) from None

    def reload_config(self, verb: Reload, path: Path) -> Reloaded:
        """Reload the config. Raises ConfigError with the errors in the file at `path`."""
        try:
            return self.perform(verb)
        except HeartbeatdError as error:
            errors, warnings = (
                [Diagnostic(**each.as_data(), source=str(path)) for each in found] for found in (error.problems, error.warnings)
            )
            raise ConfigError(errors, warnings) from None


def _endpoint_of(verb: Verb, subject: Key | int | None) -> Endpoint:
    """The request of the API that carries out a verb for such a subject."""
    endpoints = [each for each in VERB_ENDPOINTS.values() if each.operation is type(verb)]
    if not isinstance(subject, tuple):
        return next(each for each in endpoints if ("{id}" in each.path) == (subject is not None) and "{name}" not in each.path)
    concern = Concern.AGENT if subject[0] is Kind.HEARTBEAT else Concern.JOB
    return next(each for each in endpoints if each.concern is concern)


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
