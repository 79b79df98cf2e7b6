"""Defines what a runner is given and what it returns, whichever way it reaches the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

MAX_ANSWER = 64 * 1024  # bytes


class Failure(StrEnum):
    """Why there is no answer; also the reason of the run and the `class` of a provider's errors."""

    AUTH = "auth"
    PAYMENT = "payment"
    NOT_FOUND = "not_found"
    BAD_REQUEST = "bad_request"
    TOO_LARGE = "too_large"
    RATE = "rate"
    OVERLOADED = "overloaded"
    SERVER = "server"
    CONNECT = "connect"
    DNS = "dns"
    TLS = "tls"
    TIMEOUT = "timeout"
    BAD_ANSWER = "bad_answer"
    TOOL_USE = "tool_use"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One question to one agent.

    `model` None leaves the choice to the agent; `meta` gives plain data about the run, fit for JSON, to those ways that hand
    it on. `messages` is what was said before the prompt, oldest first, as (role, text) with the roles `user` and `assistant`.
    """

    agent: str
    prompt: str
    model: str | None
    workspace: Path
    timeout: timedelta
    meta: Callable[[], Mapping[str, object]]
    messages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a model call took, by kind; `input` does not count what came from the cache or was written to it."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
        )

    def by_kind(self) -> dict[str, int]:
        """Each kind with its count."""
        return {"input": self.input, "output": self.output, "cache_read": self.cache_read, "cache_write": self.cache_write}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that an agent used, and how often; how long that took in all, where it says so."""

    name: str
    count: int = 1
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the `text`, or a `failure` with its `error` in words.

    `transient` says that asking again may help; `retry_after` how long the other side wants to be left alone; `model_used`
    which model answered and `tokens` what that took, where these are known. `later` means that the answer will come by itself.
    `tools_ignored` counts the tools that a model wanted to use beside its text: none was offered. `tool_calls` are those that
    an agent has used, and `log` is what it says for the log alone. `truncated`: the text was cut at a limit of tokens.
    `not_sent`: the request did not leave, so that nothing can have been taken. `status` is the HTTP status of a refusal, and
    `request_id` the provider's own name for the call.
    """

    text: str = ""
    failure: Failure | None = None
    error: str = ""
    transient: bool = False
    model_used: str | None = None
    retry_after: timedelta | None = None
    tokens: Tokens | None = None
    cost_usd: float | None = None
    later: bool = False
    tools_ignored: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    log: str | None = None
    truncated: bool = False
    not_sent: bool = False
    status: int | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a program ended.

    `exit_code` is negative for a signal and None if the program did not start. `output` is the kept part of its standard output,
    `size` the number of bytes that it wrote, `truncated` whether it wrote more than is kept, and `errors` the end of its standard
    error. `problem` is one line: why the program could not be started, or why it was ended for a fault of its own. `ended_by`
    names what ended it from outside: its own time limit (`timeout`), or the end of the run. None: it ended by itself.
    """

    exit_code: int | None
    output: bytes
    errors: bytes
    truncated: bool
    timed_out: bool
    problem: str | None
    ended_by: Literal["timeout", "cancelled", "shutdown"] | None
    size: int = 0


class StartProcess(Protocol):
    """Runs a program to its end, within time and size limits of its own; values of `env` may be secrets, shown to it alone."""

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes,
        env: Mapping[str, object],
        cwd: Path,
        keep: int = ...,
        keep_tail: bool = ...,
        timeout: timedelta | None = ...,
    ) -> ProcessResult: ...


@dataclass(frozen=True, slots=True)
class HttpReply:
    """One HTTP answer; the names of its `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient(Protocol):
    """Posts to other machines, within time and size limits."""

    def __hash__(self) -> int: ...

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply:
        """The answer, whatever its status. Raises `errors.CallError` if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Resources:
    """What an attempt may use of the world outside: `start` for programs, `http` for requests."""

    start: StartProcess
    http: HttpClient
