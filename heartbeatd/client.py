"""The client for asyncio, and the client for ordinary programs, which runs the first one in a thread.

Their methods are listed beside the operations, in verbs.py and questions.py. At the end of the file: from where a reader of
events resumes, and where a client finds the address and the token of a daemon.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import re
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar, cast

import httpx2
from pydantic import BaseModel, ConfigDict

from heartbeatd.answers import MessageList, QueuedMessage, ResponseBody, RunList, RunRecord
from heartbeatd.errors import HeartbeatdError, error_from_answer, error_from_transport, unexpected_answer
from heartbeatd.operations import Endpoint, query_of
from heartbeatd.questions import QuestionMethods
from heartbeatd.secret import Secret
from heartbeatd.state_folder import (
    DEFAULT_STATE,
    MAX_DAEMON_ANSWER,
    RUN_ID_VARIABLE,
    address_file,
    is_locked,
    read_state_path,
    real_path,
)
from heartbeatd.verbs import VerbMethods

ANSWER_SECONDS = 90.0  # longer than the daemon waits for an answer to a question, and for its engine, whose error arrives
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 5.0  # that `close` waits; without a limit, it could wait for ever while the program ends
IDLE_SECONDS = 3.0  # a kept connection is not used after that; the daemon closes it after 5
PAGE_SIZE = 100  # items that an iterator reads with one request

P = ParamSpec("P")
Item = TypeVar("Item")
Page = TypeVar("Page", RunList, MessageList)


class AsyncClient(VerbMethods, QuestionMethods):
    """Requests to one daemon. `async with AsyncClient() as daemon: await daemon.get_status()`.

    Each method sends one request, and has the name that openapi.json gives the operation. The answer is a model of
    `heartbeatd.answers`. Every method raises HeartbeatdError. No request is repeated, since it may have been carried out.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        config: str | Path | None = None,
        state: str | Path | None = None,
        timeout: float = ANSWER_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Without arguments, the client finds the daemon as the commands do.

        The address is `url`, else `$HEARTBEATD_URL`, else that of the daemon that runs with the database `state` (a file or its
        folder) or with the database of the config file (`config`, by default config.yaml). The token is `token`, else
        `$HEARTBEATD_TOKEN`, else the one in the state folder. `timeout` is in seconds. `headers` are sent with each request, for
        a proxy that needs them.
        """
        self._source = AddressSource(
            url,
            None if token is None else Secret(token),
            None if config is None else Path(config),
            None if state is None else Path(state),
            os.environ,
        )
        self._timeout = timeout
        self._headers = dict(headers or {})
        self._open_connections()

    def _open_connections(self) -> None:
        self._http = httpx2.AsyncClient(
            timeout=timeouts(self._timeout), limits=httpx2.Limits(keepalive_expiry=IDLE_SECONDS), trust_env=False
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def iterate_runs(self, /, **keys: object) -> AsyncIterator[RunRecord]:
        """All runs in the order of `list_runs`, which has the same parameters. Each request reads `limit` of them."""
        async for page in self._pages(self.list_runs, keys):
            for run in page.runs:
                yield run

    async def iterate_undelivered(self, /, **keys: object) -> AsyncIterator[QueuedMessage]:
        """All messages that are not delivered. Each request reads `limit` of them, when they are needed."""
        async for page in self._pages(self.list_undelivered, keys):
            for message in page.outbox:
                yield message

    async def _pages(self, read: Callable[..., Awaitable[Page]], keys: Mapping[str, object]) -> AsyncIterator[Page]:
        page = await read(**{"limit": PAGE_SIZE, **keys})
        yield page
        while page.next is not None:
            page = await read(**{"limit": PAGE_SIZE, **keys, "cursor": page.next})
            yield page

    async def stream_events(self, /, last_event_id: str | None = None) -> AsyncIterator[Event]:
        """The events from now on, or after the event with this ID. It does not end by itself.

        If the connection is interrupted, or a reload ends the stream, the client connects again and resumes. It raises
        HeartbeatdError if the first connection fails, or if the daemon rejects the token.
        """
        position = StreamPosition(last_event_id)
        while True:
            failed: HeartbeatdError | None = None
            try:
                address = self._source.find_address()
                async with self._http.sse(
                    f"{address.url}/api/v1/events",
                    headers=request_headers(address, self._headers | position.headers()),
                    timeout=timeouts(self._timeout, READ_SECONDS),
                ) as stream:
                    if stream.response.status_code != 200:
                        raise error_from_answer(await _read_response(stream.response))
                    async for sent in stream:
                        event = position.receive(sent)
                        if event is not None:
                            yield event
            except (httpx2.TransportError, httpx2.InvalidURL) as error:
                failed = error_from_transport(error)
            except HeartbeatdError as error:
                failed = error
            await asyncio.sleep(position.next_pause(failed))

    async def _perform(self, endpoint: Endpoint, subject: str | int | None, keys: Mapping[str, object]) -> ResponseBody:
        """The answer to a request with these keys, but for those that are None."""
        try:
            operation = endpoint.operation.of(**keys)
            path = endpoint.path_for(subject)
        except ValueError as error:
            raise HeartbeatdError("bad_request", str(error)) from None
        response = await self._request(endpoint.method, path, operation.as_json())
        if response.status_code != 200:
            raise error_from_answer(response)
        try:
            return operation.read_answer(response.content)
        except ValueError:
            raise unexpected_answer(response) from None

    async def _request(self, method: str, path: str, sent: Mapping[str, object]) -> httpx2.Response:
        is_question = method == "GET"
        address = self._source.find_address()
        try:
            async with self._http.stream(
                method,
                address.url + path,
                params=query_of(sent) if is_question else None,
                json=None if is_question else sent,
                headers=request_headers(address, self._headers),
            ) as response:
                return await _read_response(response)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise error_from_transport(error) from None


def _blocking_iterator(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[Item]],
) -> Callable[Concatenate[Client, P], Iterator[Item]]:
    """The method of the client for ordinary programs that iterates over the same."""

    def iterate(self: Client, /, *args: P.args, **keys: P.kwargs) -> Iterator[Item]:
        items = cast("AsyncGenerator[Item]", method(self._client, *args, **keys))
        while (item := self._run(anext(items, _END))) is not _END:
            try:
                yield cast("Item", item)
            except BaseException:
                self._close_later(items)
                raise

    iterate.__name__, iterate.__doc__ = method.__name__, method.__doc__
    iterate.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return iterate


_END = object()


class Client(VerbMethods, QuestionMethods):
    """Requests to one daemon. `with Client() as daemon: daemon.get_status()`. It has the methods of `AsyncClient`.

    A thread with an event loop sends the requests. It starts with the first request, and ends with `close` or when the
    client is no longer used.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        config: str | Path | None = None,
        state: str | Path | None = None,
        timeout: float = ANSWER_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """The parameters are those of `AsyncClient`."""
        self._client = AsyncClient(url, token, config=config, state=state, timeout=timeout, headers=headers)
        self._start = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()

    def close(self) -> None:
        """Close the connections, and end the thread."""
        if self._loop is not None and self._process == os.getpid():
            self._stop()
            self._thread.join(CLOSE_SECONDS)
        self._loop = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    iterate_runs = _blocking_iterator(AsyncClient.iterate_runs)
    iterate_undelivered = _blocking_iterator(AsyncClient.iterate_undelivered)
    stream_events = _blocking_iterator(AsyncClient.stream_events)

    def _perform_and_wait(self, endpoint: Endpoint, subject: str | int | None, keys: Mapping[str, object]) -> ResponseBody:
        return self._run(self._client._perform(endpoint, subject, keys))

    def _run(self, awaitable: Awaitable[Item]) -> Item:
        """Wait for this in the thread of the loop."""
        future = asyncio.run_coroutine_threadsafe(_wait_for(awaitable), self._started_loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()  # after Ctrl-C, the request is given up
            raise

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the thread. A process that was forked has no such thread, and must not use the connections of the first."""
        with self._start:
            if self._loop is None or self._process != os.getpid():
                if self._loop is not None:
                    self._client._open_connections()
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                self._stop = weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
                self._stop.atexit = False
                arguments = (self._loop, self._client)
                self._thread = threading.Thread(target=_run_loop, args=arguments, name="heartbeatd client", daemon=True)
                self._thread.start()
            return self._loop

    def _close_later(self, items: AsyncGenerator[object]) -> None:
        """Close an iterator without waiting: Python may ask for this in any thread, or while the program ends."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(_wait_for(items.aclose()), self._loop)


async def _wait_for(awaitable: Awaitable[Item]) -> Item:
    return await awaitable


def _run_loop(loop: asyncio.AbstractEventLoop, client: AsyncClient) -> None:
    """Runs until the loop is stopped. It does not refer to the `Client`, so that the thread ends with it."""
    with asyncio.Runner(loop_factory=lambda: loop):
        loop.run_forever()
        loop.run_until_complete(client.close())


def timeouts(seconds: float, read: float | None = None) -> httpx2.Timeout:
    """The timeouts of a request: `seconds` for each step, CONNECT_SECONDS at most for the connection, `read` for an answer."""
    return httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS), read=read or seconds)


def request_headers(address: Address, more: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request. A wake that a run sends names the run."""
    headers = {"Authorization": f"Bearer {address.token.reveal()}", **more}
    if run := os.environ.get(RUN_ID_VARIABLE):
        headers["X-Heartbeatd-Run"] = run
    return headers


async def _read_response(response: httpx2.Response) -> httpx2.Response:
    """The response with its whole content. Raises HeartbeatdError for a larger one than a daemon sends."""
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > MAX_DAEMON_ANSWER:
            raise unexpected_answer(response)
    return httpx2.Response(response.status_code, content=bytes(content), request=response.request)


READ_SECONDS = 45.0  # the daemon sends something every 15 seconds
FIRST_PAUSE = 2.0  # seconds before the next connection, unless the daemon names another time
MAX_PAUSE = 30.0  # seconds

# A reader that was connected waits and connects again after these errors.
TEMPORARY_CODES = frozenset({"unreachable", "interrupted", "timeout", "not_running", "too_many_readers"})
TEMPORARY_STATUSES = frozenset({502, 503, 504})


class Event(BaseModel):
    """One event. `type` is `started`, `ended`, `said`, `skipped`, `delivered`, `question`, `reloaded` or `gap`.

    At a `gap`, events are missing. The other fields are those that the type has, and None otherwise. `id` is where a later reader
    resumes.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str
    type: str
    run: int | None = None
    kind: str | None = None
    name: str | None = None
    planned_at: datetime | None = None
    trigger: str | None = None
    tries: int | None = None
    result: str | None = None
    why: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    planned_runs: int | None = None
    message: int | None = None
    channel: str | None = None
    question: int | None = None
    state: str | None = None
    config_hash: str | None = None


class StreamPosition:
    """The last event that a reader has received, and how long it waits before it connects again."""

    def __init__(self, last_event_id: str | None) -> None:
        self.last_event_id = last_event_id
        self._was_connected = False
        self._first_pause = FIRST_PAUSE
        self._pause = FIRST_PAUSE

    def headers(self) -> dict[str, str]:
        """The headers of the request that opens or resumes the stream. Raises HeartbeatdError."""
        if not (self.last_event_id or "").isascii():
            raise HeartbeatdError("bad_request", f"last_event_id: {self.last_event_id!r} is no ID of an event")
        return {} if self.last_event_id is None else {"Last-Event-ID": self.last_event_id}

    def receive(self, sent: httpx2.ServerSentEvent) -> Event | None:
        """The event in a message of the stream, None if the message only names a position. Raises HeartbeatdError."""
        self._was_connected = True
        self.last_event_id = sent.id or self.last_event_id
        if sent.retry is not None:
            self._first_pause = min(sent.retry / 1000, MAX_PAUSE)
        self._pause = self._first_pause
        if not sent.data:
            return None
        try:
            return Event.model_validate({**json.loads(sent.data), "id": sent.id, "type": sent.event})
        except (ValueError, TypeError):
            raise HeartbeatdError(
                "unexpected_answer", "an event cannot be read; check the address, and install the version of the daemon"
            ) from None

    def next_pause(self, error: HeartbeatdError | None = None) -> float:
        """How many seconds to wait before the next connection. Raises the error if waiting would not help.

        Many readers of one daemon must not connect at the same moment, so that the time varies. It doubles with each failure.
        """
        if error is not None and not (self._was_connected and _is_temporary(error)):
            raise error
        pause = self._pause
        self._pause = min(2 * pause, MAX_PAUSE)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 (nothing secret)


def _is_temporary(error: HeartbeatdError) -> bool:
    return error.code in TEMPORARY_CODES or error.status in TEMPORARY_STATUSES


URL_VARIABLE = "HEARTBEATD_URL"
TOKEN_VARIABLE = "HEARTBEATD_TOKEN"  # noqa: S105 (the name of a variable)

_TOKEN_PATTERN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon listens, without a slash at the end, and the token to send there."""

    url: str
    token: Secret


@dataclass(frozen=True, slots=True)
class AddressSource:
    """Where the address comes from. Each value is None if the caller has not named it."""

    url: str | None
    token: Secret | None
    config: Path | None
    state: Path | None
    environ: Mapping[str, str]

    def find_address(self) -> Address:
        """The address at this moment: a daemon of this machine may have been started again on another port.

        Raises HeartbeatdError.
        """
        named = self.config is not None or self.state is not None
        url = self.url or (None if named else self.environ.get(URL_VARIABLE)) or None
        text = self.environ.get(TOKEN_VARIABLE)
        token = self.token or (Secret(text) if text else None)
        if url is None:
            database = self._database()
            return Address(find_url(database), token or read_token(database))
        if token is None:
            raise HeartbeatdError("no_token", f"there is no token for {url}; pass token= or set {TOKEN_VARIABLE}")
        return Address(url.rstrip("/"), _checked(token))

    def _database(self) -> Path:
        """The path of the database, as the commands find it."""
        if self.state is None:
            return read_state_path(self.config or Path("config.yaml"), self.environ)
        return real_path(self.state / Path(DEFAULT_STATE).name if self.state.is_dir() else self.state)


def find_url(database: Path) -> str:
    """The URL of the running daemon of a database.

    An address that another process has written is not used: a different program may listen there by now, and would receive the
    token. Raises HeartbeatdError.
    """
    lock_file = database.with_name(f"{database.name}.lock")
    try:
        is_running = is_locked(lock_file)
    except OSError as error:
        raise HeartbeatdError(
            "not_running",
            f"cannot read {lock_file}: {error.strerror}; run this as the user of the daemon, or pass url= and token=",
        ) from None
    if not is_running:
        raise HeartbeatdError(
            "not_running", f"no daemon runs with the database {database}; start it with `heartbeatd run`, or pass url= and token="
        )
    try:
        address = json.loads(address_file(database).read_text("utf-8"))
        if address["pid"] == json.loads(lock_file.read_text("utf-8"))["pid"]:
            return str(address["url"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise HeartbeatdError("not_running", f"the daemon of {database} does not listen yet or no longer; try again in some seconds")


def read_token(database: Path) -> Secret:
    """The token of the daemon's own user. Raises HeartbeatdError."""
    path = database.with_name("token")
    try:
        return _checked(Secret(path.read_text("utf-8").strip()))
    except (OSError, UnicodeDecodeError) as error:
        raise HeartbeatdError(
            "no_token",
            f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not text'}; run this as the user of the daemon, or"
            f" pass token= or set {TOKEN_VARIABLE}",
        ) from None


def _checked(token: Secret) -> Secret:
    """The token, if a header can hold it."""
    if not _TOKEN_PATTERN.fullmatch(token.reveal()):
        raise HeartbeatdError(
            "bad_token", "the token is empty, or has blanks or characters beyond ASCII; check where it comes from"
        )
    return token
