"""Asking the running daemon, over the HTTP interface whose address it wrote beside its database."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Self
from urllib.parse import urlsplit

import click

from scheduler.cli.reach import Place, Up, reading
from scheduler.config.file.message_parts import written
from scheduler.engine.inbox import Refused
from scheduler.model.entry import Key
from scheduler.model.outcome import Kind
from scheduler.store import entries
from scheduler.system.process import MARK

PATIENCE = 60.0  # seconds for one answer: longer than the daemon itself waits for its engine
KNOCK = 1.0  # seconds in which somebody must open the door


class Online:
    """The daemon behind one address. Raises Refused with what it said, ClickException where it cannot be talked to."""

    def __init__(self, where: Place, host: str, port: int, token: str) -> None:
        self._where = where
        self._host, self._port, self._token = host, port, token

    @classmethod
    def find(cls, where: Place, up: Up) -> Self | None:
        """The daemon that runs at this place, if it listens; None if it does not yet, or no more.

        An address that another life left is none: somebody else may listen there by now.
        """
        try:
            said = json.loads(where.address.read_text("utf-8"))
            url = urlsplit(said["url"])
            host, port = url.hostname or "", url.port or 80
            if said["pid"] != up.pid:
                return None
            socket.create_connection((host, port), KNOCK).close()
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return cls(where, host, port, _token(where))

    def knows(self, key: Key) -> bool:
        with reading(self._where) as db:
            found = entries.find(db, *key) if db else None
        return found is not None and found.state != "removed"

    def entries(self) -> Iterable[Key]:
        with reading(self._where) as db:
            return [key for key, (state, _) in entries.texts(db).items() if state != "removed"] if db else []

    def wake(self, name: str, text: str) -> int:
        return int(self._post(f"/api/v1/agents/{name}/wake", {"text": text})["wake"])

    def run_job(self, name: str) -> int:
        return int(self._post(f"/api/v1/cron/{name}/run", {})["wake"])

    def pause(self, key: Key | None, span: timedelta | None) -> None:
        self._post(_path(key, "pause"), {"for": written(span)} if span else {})

    def resume(self, key: Key | None) -> list[str]:
        return list(self._post(_path(key, "resume"), {})["resumed"])

    def send_again(self, message_id: int) -> None:
        self._post(f"/api/v1/outbox/{message_id}/retry", {})

    def drop(self, message_id: int) -> None:
        self._post(f"/api/v1/outbox/{message_id}/drop", {})

    def cancel(self, run_id: int) -> bool:
        """End a run; whether it has ended by that, and not only will."""
        return bool(self._post(f"/api/v1/runs/{run_id}/cancel", {})["ended"])

    def reload(self, *, dry: bool) -> tuple[bool, dict[str, Any]]:
        """Whether the config was taken, or would be, and what the daemon says of it."""
        status, answer = self._send("/-/reload", {"dry_run": dry})
        if status not in (200, 422) or "error" in answer:
            raise _refusal(status, answer)
        return status == 200, answer

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        status, answer = self._send(path, body)
        if status >= 300:
            raise _refusal(status, answer)
        return answer

    def _send(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=PATIENCE)
        try:
            connection.request("POST", path, json.dumps(body), self._headers())
            response = connection.getresponse()
            said = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise click.ClickException(f"the daemon at {self._host}:{self._port} does not answer: {error}") from error
        finally:
            connection.close()
        return response.status, _as_map(said)

    def _headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json", "X-Heartbeatd-Source": "cli"}
        run = os.environ.get(MARK)
        return headers | {"X-Heartbeatd-Run": run} if run else headers


def _token(where: Place) -> str:
    try:
        return where.token.read_text("utf-8").strip()
    except OSError as error:
        raise click.ClickException(
            f"cannot read {where.token}: {error.strerror}; are you the user that runs the daemon?"
        ) from error


def _path(key: Key | None, verb: str) -> str:
    if key is None:
        return f"/api/v1/{verb}"
    kind, name = key
    return f"/api/v1/{'agents' if kind is Kind.HEARTBEAT else 'cron'}/{name}/{verb}"


def _as_map(said: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(said)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _refusal(status: int, answer: Mapping[str, Any]) -> Exception:
    error = answer.get("error")
    if not isinstance(error, dict):
        return click.ClickException(f"the daemon answered with HTTP status {status}, and no reason")
    return Refused(str(error.get("code")), str(error.get("message")))
