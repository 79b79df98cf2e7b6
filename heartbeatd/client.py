"""The client for asyncio, and the client for ordinary programs, which runs the first one in a thread.

Each request of the API is one line in each of them. Its parameters, its answer and their types are those of the operation.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx2

import heartbeatd.questions as questions
import heartbeatd.verbs as verbs
from heartbeatd.answers import QueuedMessage, RunRecord
from heartbeatd.daemon_address import Address, AddressSource
from heartbeatd.errors import HeartbeatdError, error_from_answer, error_from_transport, unexpected_answer
from heartbeatd.events import READ_SECONDS, Event, StreamPosition
from heartbeatd.operations import Answer, Endpoint, Operation, query_of
from heartbeatd.secret import Secret
from heartbeatd.state_folder import MAX_DAEMON_ANSWER

ANSWER_SECONDS = 60.0  # longer than the daemon waits for its engine, so that its own error arrives
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 5.0  # that `close` waits; without a limit, it could wait for ever while the program ends
IDLE_SECONDS = 3.0  # a kept connection is not used after that; the daemon closes it after 5
PAGE_SIZE = 100  # items that an iterator reads with one request
RUN_ID_VARIABLE = "HEARTBEATD_RUN"  # set in programs that a run starts

ENDPOINTS = questions.QUESTION_ENDPOINTS | verbs.VERB_ENDPOINTS
P = ParamSpec("P")
Item = TypeVar("Item")


def _of_name(
    operation: Callable[P, Operation[Answer]], endpoint: str
) -> Callable[Concatenate[AsyncClient, str, P], Coroutine[Any, Any, Answer]]:
    """The method for a request whose path names an agent or a job."""
    method: Callable[..., Coroutine[Any, Any, Answer]] = _method_of(operation, endpoint, "name")
    return method


def _of_number(
    operation: Callable[P, Operation[Answer]], endpoint: str
) -> Callable[Concatenate[AsyncClient, int, P], Coroutine[Any, Any, Answer]]:
    """The method for a request whose path has the number of a run, a wake or a message."""
    method: Callable[..., Coroutine[Any, Any, Answer]] = _method_of(operation, endpoint, "id")
    return method


def _of_all(
    operation: Callable[P, Operation[Answer]], endpoint: str
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, Answer]]:
    """The method for a request whose path names nothing."""
    method: Callable[..., Coroutine[Any, Any, Answer]] = _method_of(operation, endpoint, None)
    return method


def _method_of(operation: Any, endpoint: str, subject: str | None) -> Any:
    """Sends the request. The parameters are the subject of the path, and the fields of the operation by their names."""

    async def method(self: AsyncClient, /, *named: str | int, **keys: Any) -> Any:
        if len(named) != (subject is not None):
            raise TypeError(f"{endpoint}() takes {f'{subject} and then' if subject else 'only'} parameters with their names")
        return await self._perform(ENDPOINTS[endpoint], named[0] if named else None, keys)

    first = ["self"] if subject is None else ["self", subject]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in first]
    parameters += [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.is_required() else field.default,
            annotation=field.annotation,
        )
        for name, field in operation.model_fields.items()
    ]
    method.__name__, method.__doc__ = endpoint, operation.__doc__
    method.__signature__ = inspect.Signature(parameters, return_annotation=operation.answer_type())  # type: ignore[attr-defined]
    return method


class AsyncClient:
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

    get_status = _of_all(questions.GetStatus, "get_status")
    list_agents = _of_all(questions.ListAgents, "list_agents")
    get_agent = _of_name(questions.GetAgent, "get_agent")
    list_jobs = _of_all(questions.ListJobs, "list_jobs")
    list_runs = _of_all(questions.ListRuns, "list_runs")
    get_run = _of_number(questions.GetRun, "get_run")
    get_wake = _of_number(questions.GetWake, "get_wake")
    get_plan = _of_all(questions.GetPlan, "get_plan")
    get_overview = _of_all(questions.ExplainAll, "get_overview")
    get_explanation = _of_name(questions.Explain, "get_explanation")
    list_undelivered = _of_all(questions.ListMessages, "list_undelivered")
    list_conditions = _of_all(questions.ListConditions, "list_conditions")
    get_caller = _of_all(questions.WhoAmI, "get_caller")
    get_config = _of_all(questions.GetConfig, "get_config")
    get_agent_config = _of_name(questions.GetEntryConfig, "get_agent_config")
    get_job_config = _of_name(questions.GetEntryConfig, "get_job_config")
    get_checklist = _of_name(questions.GetChecklist, "get_checklist")
    wake_agent = _of_name(verbs.Wake, "wake_agent")
    run_job = _of_name(verbs.RunJob, "run_job")
    report_result = _of_number(verbs.ReportResult, "report_result")
    cancel_run = _of_number(verbs.Cancel, "cancel_run")
    hold_lane = _of_name(verbs.HoldLane, "hold_lane")
    release_lane = _of_name(verbs.ReleaseLane, "release_lane")
    record_activity = _of_name(verbs.NoteActivity, "record_activity")
    pause_agent = _of_name(verbs.Pause, "pause_agent")
    pause_job = _of_name(verbs.Pause, "pause_job")
    pause_all = _of_all(verbs.Pause, "pause_all")
    resume_agent = _of_name(verbs.Resume, "resume_agent")
    resume_job = _of_name(verbs.Resume, "resume_job")
    resume_all = _of_all(verbs.Resume, "resume_all")
    mute_agent = _of_name(verbs.Mute, "mute_agent")
    mute_job = _of_name(verbs.Mute, "mute_job")
    unmute_agent = _of_name(verbs.Unmute, "unmute_agent")
    unmute_job = _of_name(verbs.Unmute, "unmute_job")
    retry_message = _of_number(verbs.Retry, "retry_message")
    drop_message = _of_number(verbs.Drop, "drop_message")
    close_condition = _of_all(verbs.CloseProblem, "close_condition")
    acknowledge_conditions = _of_all(verbs.Ack, "acknowledge_conditions")
    unacknowledge_conditions = _of_all(verbs.Unack, "unacknowledge_conditions")
    ping_channels = _of_all(verbs.Ping, "ping_channels")
    reload_config = _of_all(verbs.Reload, "reload_config")
    patch_agent_config = _of_name(verbs.SetConfig, "patch_agent_config")
    patch_job_config = _of_name(verbs.SetConfig, "patch_job_config")
    patch_config = _of_all(verbs.SetConfig, "patch_config")
    put_checklist = _of_name(verbs.SetChecklist, "put_checklist")

    async def iterate_runs(self, /, **keys: Any) -> AsyncIterator[RunRecord]:
        """All runs in the order of `list_runs`, which has the same parameters. Each request reads `limit` of them."""
        async for page in self._pages(self.list_runs, keys):
            for run in page.runs:
                yield run

    async def iterate_undelivered(self, /, **keys: Any) -> AsyncIterator[QueuedMessage]:
        """All messages that are not delivered. Each request reads `limit` of them, when they are needed."""
        async for page in self._pages(self.list_undelivered, keys):
            for message in page.outbox:
                yield message

    async def _pages(self, read: Callable[..., Coroutine[Any, Any, Any]], keys: Mapping[str, Any]) -> AsyncIterator[Any]:
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

    async def _perform(self, endpoint: Endpoint, subject: str | int | None, keys: Mapping[str, Any]) -> Any:
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

    async def _request(self, method: str, path: str, sent: Mapping[str, Any]) -> httpx2.Response:
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


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, Answer]],
) -> Callable[Concatenate[Client, P], Answer]:
    """The method of the client for ordinary programs that waits for this one."""

    def call(self: Client, /, *args: P.args, **keys: P.kwargs) -> Answer:
        answer: Answer = self._run(method(self._client, *args, **keys))
        return answer

    return _named_as(method, call)


def _blocking_iterator(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[Item]],
) -> Callable[Concatenate[Client, P], Iterator[Item]]:
    """The same for a method that returns an iterator."""

    def iterate(self: Client, /, *args: P.args, **keys: P.kwargs) -> Iterator[Item]:
        items: Any = method(self._client, *args, **keys)
        while (item := self._run(anext(items, _END))) is not _END:
            try:
                yield item
            except BaseException:
                self._close_later(items)
                raise

    return _named_as(method, iterate)


_END: Any = object()


def _named_as(method: Callable[..., Any], wrapper: Callable[P, Answer]) -> Callable[P, Answer]:
    wrapper.__name__, wrapper.__doc__ = method.__name__, method.__doc__
    wrapper.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return wrapper


class Client:
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

    get_status = _blocking(AsyncClient.get_status)
    list_agents = _blocking(AsyncClient.list_agents)
    get_agent = _blocking(AsyncClient.get_agent)
    list_jobs = _blocking(AsyncClient.list_jobs)
    list_runs = _blocking(AsyncClient.list_runs)
    get_run = _blocking(AsyncClient.get_run)
    get_wake = _blocking(AsyncClient.get_wake)
    get_plan = _blocking(AsyncClient.get_plan)
    get_overview = _blocking(AsyncClient.get_overview)
    get_explanation = _blocking(AsyncClient.get_explanation)
    list_undelivered = _blocking(AsyncClient.list_undelivered)
    list_conditions = _blocking(AsyncClient.list_conditions)
    get_caller = _blocking(AsyncClient.get_caller)
    get_config = _blocking(AsyncClient.get_config)
    get_agent_config = _blocking(AsyncClient.get_agent_config)
    get_job_config = _blocking(AsyncClient.get_job_config)
    get_checklist = _blocking(AsyncClient.get_checklist)
    wake_agent = _blocking(AsyncClient.wake_agent)
    run_job = _blocking(AsyncClient.run_job)
    report_result = _blocking(AsyncClient.report_result)
    cancel_run = _blocking(AsyncClient.cancel_run)
    hold_lane = _blocking(AsyncClient.hold_lane)
    release_lane = _blocking(AsyncClient.release_lane)
    record_activity = _blocking(AsyncClient.record_activity)
    pause_agent = _blocking(AsyncClient.pause_agent)
    pause_job = _blocking(AsyncClient.pause_job)
    pause_all = _blocking(AsyncClient.pause_all)
    resume_agent = _blocking(AsyncClient.resume_agent)
    resume_job = _blocking(AsyncClient.resume_job)
    resume_all = _blocking(AsyncClient.resume_all)
    mute_agent = _blocking(AsyncClient.mute_agent)
    mute_job = _blocking(AsyncClient.mute_job)
    unmute_agent = _blocking(AsyncClient.unmute_agent)
    unmute_job = _blocking(AsyncClient.unmute_job)
    retry_message = _blocking(AsyncClient.retry_message)
    drop_message = _blocking(AsyncClient.drop_message)
    close_condition = _blocking(AsyncClient.close_condition)
    acknowledge_conditions = _blocking(AsyncClient.acknowledge_conditions)
    unacknowledge_conditions = _blocking(AsyncClient.unacknowledge_conditions)
    ping_channels = _blocking(AsyncClient.ping_channels)
    reload_config = _blocking(AsyncClient.reload_config)
    patch_agent_config = _blocking(AsyncClient.patch_agent_config)
    patch_job_config = _blocking(AsyncClient.patch_job_config)
    patch_config = _blocking(AsyncClient.patch_config)
    put_checklist = _blocking(AsyncClient.put_checklist)
    iterate_runs = _blocking_iterator(AsyncClient.iterate_runs)
    iterate_undelivered = _blocking_iterator(AsyncClient.iterate_undelivered)
    stream_events = _blocking_iterator(AsyncClient.stream_events)

    def _run(self, awaitable: Any) -> Any:
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

    def _close_later(self, items: AsyncGenerator[Any]) -> None:
        """Close an iterator without waiting: Python may ask for this in any thread, or while the program ends."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(_wait_for(items.aclose()), self._loop)


async def _wait_for(awaitable: Any) -> Any:
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
