"""Connects to servers of the Model Context Protocol (MCP), and calls their tools for a model.

The official SDK speaks the protocol. Requests go through our HTTP client, and programs are started as those of other runners, so
that the same limits apply to both.

A server is not trusted. Its answers are limited in size and time, and what it says is data. The checks of the SDK against the
schema of a result are not used: a regular expression in it could block the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult, Implementation, Tool, jsonrpc_message_adapter

from heartbeat.runners import Failure, HttpReply, OfferedTool, ToolResult
from heartbeat.runners.agent_json import clean_data, clean_text
from heartbeat.runners.call_errors import MAX_STDERR, CallError, error_from_reply, redacted_line
from heartbeat.runners.redaction import Redactor, is_secret, reveal_secret, secret_parts
from heartbeat.spec import McpServer, Tools, offered_name
from heartbeat.threads import finish_despite_cancellation
from scheduler import __version__
from scheduler.net.http_client import HttpClient
from scheduler.system.process import Conversation, NotStarted
from scheduler.work.run_extras import ModelTools

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

MAX_LISTED = 1000  # tools of a server; it is not asked for more
MAX_PAGES = 20  # of its list of tools
MAX_DESCRIPTION = 1024  # characters of a tool's description that the model gets
MAX_SCHEMA = 16 * 1024  # bytes of a tool's schema
MAX_MESSAGES = 10_000  # of a program in one run
MAX_STRAY_LINES = 100  # of a program that are not messages
MAX_BLOCKS = 1000  # parts of a result that are read
MAX_NAMED = 10  # tools that an error names
CLOSE_TIME = 5.0  # seconds until a server is disconnected whether or not it has answered

for each in ("mcp.client", "mcp.shared", "client", "httpx2"):  # what servers write does not belong into the log
    logging.getLogger(each).setLevel(logging.CRITICAL)

NO_STREAM = HttpReply(405, {}, b"")  # to a request for a stream of messages that belong to no call


class McpTools:
    """Opens the tools of a model with the means of one run."""

    def __init__(self, means: ModelTools) -> None:
        self._means = means

    @asynccontextmanager
    async def __call__(self, tools: Tools, agent: str, workspace: Path, seconds: float) -> AsyncIterator[Toolbox]:
        """Connect to all servers at the same time. Raises CallError if a server or one of the allowed tools is not usable."""
        servers = [self._connection(server, agent, workspace) for server in tools.servers]
        try:
            await asyncio.gather(*(server.open(seconds) for server in servers))
            yield Toolbox(servers)
        finally:
            closing = asyncio.gather(*(server.close() for server in servers))
            await finish_despite_cancellation(closing)

    def _connection(self, server: McpServer, agent: str, workspace: Path) -> _Connection:
        if server.url is not None:
            return _Connection(server, _HttpTransport(server, self._means.http))
        return _Connection(server, _ProgramTransport(server, agent, workspace, self._means))


class Toolbox:
    """The tools of connected servers."""

    def __init__(self, servers: Sequence[_Connection]) -> None:
        self._servers = {tool.name: server for server in servers for tool in server.tools}
        self.offered = tuple(tool for server in servers for tool in server.tools)
        self._redactor = Redactor([secret for server in servers for secret in server.transport.secrets])

    async def call_tool(self, name: str, arguments: Mapping[str, object], seconds: float) -> ToolResult:
        return await self._servers[name].call_tool(name, arguments, seconds)

    def redact(self, text: str) -> str:
        return self._redactor.redact(text)


class _Connection:
    """A connection to one server. A task of its own holds it, so that whatever breaks in it ends only this task."""

    def __init__(self, server: McpServer, transport: _Wire) -> None:
        self.server = server
        self.transport = transport
        self.tools: tuple[OfferedTool, ...] = ()
        self._redactor = Redactor(transport.secrets)
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()

    async def open(self, seconds: float) -> None:
        """Connect and list the tools, within the server's timeout and `seconds`. Raises CallError."""
        allowed = min(self.server.timeout.total_seconds(), seconds)
        self._task = asyncio.create_task(self._hold())
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait([self._task, ready], timeout=allowed, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._ready.is_set():
            return
        if not self._task.done():
            raise self._error(Failure.TIMEOUT, f"no list of its tools came within {allowed:g} s", transient=True)
        error = None if self._task.cancelled() else _first_error(self._task.exception())
        if isinstance(error, CallError):
            raise error
        if error is not None and _invalid_part(error):
            raise self._error(Failure.BAD_ANSWER, self._why_ended(error))
        raise self._error(Failure.CONNECT, self._why_ended(error), transient=True)

    async def close(self) -> None:
        """Disconnect. A server that does not answer is left after CLOSE_TIME."""
        self._closing.set()
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=CLOSE_TIME if self._ready.is_set() else 0)
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_TIME)
        if not self._task.cancelled():
            self._task.exception()  # it has been reported, or comes too late

    async def call_tool(self, name: str, arguments: Mapping[str, object], seconds: float) -> ToolResult:
        """Call a tool by its name for the model. Everything that goes wrong is an error in the result."""
        tool = next(tool for tool in self.server.allow if offered_name(self.server.name, tool) == name)
        allowed = min(self.server.timeout.total_seconds(), seconds)
        assert self._task is not None and self._client is not None
        if self._task.done():
            return self._failed(f"the server has ended: {self._why_ended(None)}")
        call = asyncio.create_task(_send_call(self._client, tool, clean_data(dict(arguments))))
        try:
            await asyncio.wait([self._task, call], timeout=allowed, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                dead = self._task.done()
                return self._failed(
                    f"the server has ended: {self._why_ended(None)}" if dead else f"no result came within {allowed:g} s"
                )
            if (error := call.exception()) is not None:
                return self._failed(self._why_ended(_first_error(error)))
            return self._read_result(call.result())
        finally:
            call.cancel()

    async def _hold(self) -> None:
        info = Implementation(name="heartbeatd", version=__version__)
        async with Client(self.transport.connect(), client_info=info, cache=None) as client:
            self._client = client
            listed = await self._list_tools(client)
            self.tools = tuple(self._check_tool(name, listed) for name in self.server.allow)
            self._ready.set()
            ended = asyncio.create_task(self.transport.ended.wait())
            closing = asyncio.create_task(self._closing.wait())
            try:
                await asyncio.wait([ended, closing], return_when=asyncio.FIRST_COMPLETED)
            finally:
                ended.cancel()
                closing.cancel()

    async def _list_tools(self, client: Client) -> dict[str, Tool | None]:
        """The server's tools by name, as far as they are allowed, and None for the others."""
        listed: dict[str, Tool | None] = {}
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in islice(page.tools, MAX_LISTED - len(listed)):
                listed[tool.name] = tool if tool.name in self.server.allow else None
            cursor = page.next_cursor
            if cursor is None or len(listed) >= MAX_LISTED:
                break
        return listed

    def _check_tool(self, name: str, listed: Mapping[str, Tool | None]) -> OfferedTool:
        tool = listed.get(name)
        if tool is None:
            known = ", ".join(islice((other[:64] for other in listed), MAX_NAMED)) or "none"
            more = " and others" if len(listed) > MAX_NAMED else ""
            raise self._error(Failure.BAD_REQUEST, f"it has no tool {name}; its tools are: {known}{more}")
        is_read_only = tool.annotations is not None and tool.annotations.read_only_hint is True
        if self.server.read_only and not is_read_only:
            problem = f"its tool {name} is not declared as read-only"
            raise self._error(
                Failure.BAD_REQUEST, f"{problem}; remove it from allow, or write read_only: false if it may change something"
            )
        if (wrong := _schema_problem(tool.input_schema)) is not None:
            raise self._error(Failure.BAD_REQUEST, f"the schema of its tool {name} {wrong}")
        description = clean_text(tool.description or "")[:MAX_DESCRIPTION]
        return OfferedTool(offered_name(self.server.name, name), description, tool.input_schema, is_read_only)

    def _read_result(self, result: CallToolResult) -> ToolResult:
        text, size = _result_text(result)
        kept = _cut(clean_text(self._redactor.redact(text)), self.server.max_result)
        if result.is_error:
            return self._failed(kept or "the tool failed without a message")
        return ToolResult(kept, size)

    def _failed(self, why: str) -> ToolResult:
        return ToolResult(self._redactor.redact(why), error=redacted_line(why, self._redactor))

    def _why_ended(self, error: BaseException | None) -> str:
        """Why the connection or a call failed: what the transport knows is clearer than the error of the SDK."""
        known = self.transport.describe_problem()
        if known is not None or error is None:
            return known or "it closed the connection"
        return _invalid_part(error) or str(error) or type(error).__name__

    def _error(self, failure: Failure, problem: str, *, transient: bool = False) -> CallError:
        error = f"server {self.server.name} of the tools: {redacted_line(problem, self._redactor)}"
        return CallError(failure, error, transient=transient, not_sent=True)


class _Wire(Protocol):
    """How messages get to a server. `ended` is set when no more can get there."""

    secrets: list[str]
    ended: asyncio.Event

    def connect(self) -> AbstractAsyncContextManager[Streams]: ...

    def describe_problem(self) -> str | None: ...


class _HttpTransport:
    """Sends each message in a request of its own (streamable HTTP). The answer is read as a whole, at most 1 MiB of it."""

    def __init__(self, server: McpServer, http: HttpClient) -> None:
        self._url = reveal_secret(server.url)
        self._headers = {name: reveal_secret(value) for name, value in server.headers.items()}
        self._seconds = server.timeout.total_seconds()
        self._http = http
        self._problem: str | None = None
        self.secrets = [*_header_secrets(self._headers.values()), *secret_parts(self._url, whole_url=True)]
        self._redactor = Redactor(self.secrets)
        self.ended = asyncio.Event()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Streams]:
        client = httpx2.AsyncClient(transport=_Transport(self._exchange), headers=self._headers, trust_env=False)
        without_login = str(httpx2.URL(self._url).copy_with(userinfo=b""))  # our client sends the login itself
        async with client, streamable_http_client(without_login, http_client=client) as streams:
            yield streams

    def describe_problem(self) -> str | None:
        return self._problem

    async def _exchange(self, method: str, headers: Mapping[str, str], body: bytes) -> HttpReply:
        """The reply. Instead of an exception, which would end the connection, a reply with status 502."""
        if method == "GET":
            return NO_STREAM
        try:
            if method == "DELETE":
                return await self._http.delete(self._url, headers, min(self._seconds, CLOSE_TIME))
            reply = await self._http.post(self._url, headers, body, self._seconds)
            if not 200 <= reply.status < 300:
                raise error_from_reply(reply, self._redactor)
        except CallError as error:
            self._problem = error.answer.error
            status = error.answer.status
            return HttpReply(status if status and status >= 400 else 502, {"content-type": "text/plain"}, b"")
        self._problem = None
        return reply


class _ProgramTransport:
    """Exchanges lines with a program on its standard input and output."""

    def __init__(self, server: McpServer, agent: str, workspace: Path, means: ModelTools) -> None:
        self._server = server
        self._env = {**server.env, "HEARTBEATD_AGENT": agent}
        self._workspace = workspace
        self._means = means
        self._problem: str | None = None
        self._program: Conversation | None = None
        self.secrets = [reveal_secret(value) for value in server.env.values() if is_secret(value)]
        self.ended = asyncio.Event()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Streams]:
        await self._means.wait()
        try:
            async with self._means.converse(self._server.command, env=self._env, cwd=self._workspace) as program:
                self._program = program
                to_session, from_program = anyio.create_memory_object_stream[SessionMessage | Exception](0)
                to_program, from_session = anyio.create_memory_object_stream[SessionMessage](0)
                tasks = [
                    asyncio.create_task(self._read_lines(program, to_session)),
                    asyncio.create_task(self._write_lines(program, from_session)),
                ]
                try:
                    yield from_program, to_program
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
                    for stream in (to_session, from_program, to_program, from_session):
                        stream.close()
        except NotStarted as error:
            self._problem = str(error)
            raise

    async def _read_lines(self, program: Conversation, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        stray = 0
        try:
            for _ in range(MAX_MESSAGES):
                line = await program.read_line()
                if line is None:
                    return
                try:
                    message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
                except ValueError:  # programs also print other text
                    stray += 1
                    if stray > MAX_STRAY_LINES:
                        break
                    continue
                await to_session.send(message)
            self._problem = "it wrote too many lines"
        finally:
            to_session.close()
            self.ended.set()

    async def _write_lines(self, program: Conversation, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async for message in from_session:
            try:
                await self._means.wait()
            except CallError as error:
                self._problem = str(error)
                self.ended.set()
                return
            program.write_line(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    def describe_problem(self) -> str | None:
        program = self._program
        if self._problem is not None or program is None:
            return self._problem
        if program.problem is not None:
            return f"it {program.problem}"
        printed = program.error_text.strip()
        return f"it has ended: {printed[-MAX_STDERR:]}" if self.ended.is_set() and printed else None


async def _send_call(client: Client, tool: str, arguments: dict[str, object]) -> CallToolResult:
    """Call a tool; the result as it came, apart from its form."""
    request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
    return await client.session.send_request(request, CallToolResult)


class _Transport(httpx2.AsyncBaseTransport):
    """Sends the requests of the SDK through our HTTP client."""

    def __init__(self, exchange: Callable[[str, Mapping[str, str], bytes], Awaitable[HttpReply]]) -> None:
        self._exchange = exchange

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = await self._exchange(request.method, dict(request.headers), await request.aread())
        return httpx2.Response(reply.status, headers=dict(reply.headers), content=reply.body, request=request)


def _header_secrets(values: Iterable[str]) -> list[str]:
    """The values of headers, and the token in them: a server may repeat it without the word before it."""
    return [part for value in values for part in (value, value.rpartition(" ")[2])]


def _first_error(error: BaseException | None) -> BaseException | None:
    """The error inside groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _invalid_part(error: BaseException) -> str | None:
    """What is wrong with an answer that does not have the form of the protocol. None for another error."""
    list_errors = getattr(error, "errors", None)  # of a ValidationError of pydantic
    if not callable(list_errors):
        return None
    first = list_errors(include_url=False, include_input=False, include_context=False)[0]
    return f"its answer is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}"


def _schema_problem(schema: object) -> str | None:
    """Why a model cannot be offered a tool with this schema; None if it can."""
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        return 'is not one of an object; it needs "type": "object"'
    try:
        if len(json.dumps(schema)) > MAX_SCHEMA:
            return f"is larger than {MAX_SCHEMA // 1024} KiB"
        Draft202012Validator.check_schema(schema)
    except (ValueError, RecursionError):
        return "cannot be read"
    except SchemaError as error:
        return f"is not valid: {error.message}"
    return None


@dataclass(slots=True)
class _Text:
    """The text of a result, and the size of all its parts in bytes."""

    parts: list[str]
    size: int = 0

    def add(self, text: str) -> None:
        self.parts.append(text)
        self.size += len(text.encode(errors="replace"))

    def leave_out(self, what: str, mime_type: str | None, data: str) -> None:
        """Name a part that is not text."""
        size = len(data) * 3 // 4
        with suppress(binascii.Error, ValueError):
            size = len(base64.b64decode(data))
        self.size += size
        self.parts.append(f"[{what} ({mime_type or 'unknown type'}, {size:,} bytes) was left out]")


def _result_text(result: CallToolResult) -> tuple[str, int]:
    """The text of a result and its size. Images and other parts without text are only named."""
    text = _Text([])
    for block in result.content[:MAX_BLOCKS]:
        match block.type:
            case "text":
                text.add(block.text)
            case "resource" if hasattr(block.resource, "text"):
                text.add(block.resource.text)
            case "resource":
                text.leave_out("a file", block.resource.mime_type, block.resource.blob)
            case "resource_link":
                text.add(f"[link to {block.uri}]")
            case _:
                text.leave_out(f"an {block.type}", block.mime_type, block.data)
    if len(result.content) > MAX_BLOCKS:
        text.add(f"[{len(result.content) - MAX_BLOCKS:,} more parts were left out]")
    if not text.parts and result.structured_content is not None:
        text.add(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(text.parts), text.size


def _cut(text: str, max_bytes: int) -> str:
    """The text, or its beginning with a note if it has more than `max_bytes`."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    note = f"\n[cut: {len(data):,} bytes]"
    return data[: max_bytes - len(note)].decode(errors="ignore") + note
