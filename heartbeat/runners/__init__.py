"""The types that all runners share: what a runner receives and what it returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol
from zoneinfo import ZoneInfo

from heartbeat.findings import ReminderWish, Report
from heartbeat.spec import Effort, ModelRunner, PromptLimit, Source, Tools

MAX_ANSWER = 64 * 1024  # bytes
MAX_REPORT = 1024 * 1024  # bytes of a program's output that are kept; a report may be larger than its answer
LONGEST_RETRY_AFTER = timedelta(minutes=15)  # a longer Retry-After is not waited for: it opens the breaker for so long


class Failure(StrEnum):
    """Why there is no answer. The value is also the reason of the run and the `class` label of a provider's errors."""

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
    LIMITED = "limited"


# Classes of failures of a provider: another request to it would most likely fail in the same way.
PROVIDER_FAILURES = frozenset({
    Failure.RATE, Failure.OVERLOADED, Failure.SERVER, Failure.CONNECT, Failure.DNS, Failure.TLS, Failure.TIMEOUT,
})  # fmt: skip

# After one of these failures, a fallback is called. A program fails with `exit`.
FALLBACK_FAILURES = PROVIDER_FAILURES | {Failure.AUTH, Failure.PAYMENT, Failure.NOT_FOUND, Failure.EXIT, Failure.LIMITED}

# A provider that answers with one of these failures has not processed the request, and does not charge for it.
UNCHARGED_FAILURES = frozenset({
    Failure.AUTH, Failure.PAYMENT, Failure.NOT_FOUND, Failure.BAD_REQUEST, Failure.TOO_LARGE, Failure.RATE, Failure.OVERLOADED,
    Failure.LIMITED,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TurnBudget:
    """What all requests to a model in one attempt may use together, None without a limit. The prices are the highest that may
    apply, in USD per million tokens.
    """

    usd: float | None
    tokens: int | None
    input_price: float
    output_price: float

    def cost_of(self, used: Tokens) -> float:
        """The most that these tokens cost, in USD."""
        return ((used.total - used.output) * self.input_price + used.output * self.output_price) / 1_000_000

    def without(self, usd: float, tokens: int) -> TurnBudget:
        """The limits that are left after so much usage."""
        left_usd = None if self.usd is None else self.usd - usd
        return replace(self, usd=left_usd, tokens=None if self.tokens is None else self.tokens - tokens)


NO_BUDGET = TurnBudget(None, None, 0.0, 0.0)


CacheTtl = Literal["5m", "1h"]
"""How long a provider keeps a part of a prompt, counted from its last use."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Which parts of the prompt a provider is asked to keep.

    `ttl` is for the part that is the same in each run; None: it is not kept. `write_ratio` is the price of writing it, as a
    multiple of the price that a budget has reserved for input. `turns` is how many turns of a model with tools are expected: as
    long as another one is, the conversation is kept for it.
    """

    ttl: CacheTtl | None = None
    write_ratio: float = 1.0
    turns: int = 1


NO_CACHE = CachePlan()


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One call of an agent.

    `model` is None if the agent chooses its own model. `meta` returns JSON data about the run, for runners that pass it on.
    `messages` are the earlier messages of the session, oldest first, as (role, text) with the roles `user` and `assistant`.
    `form` is how a model must answer: with a text, or with the tool of `findings` or of `decision`. Other agents choose the form
    of their answer themselves.
    `traceparent` names the span of this call in the notation of W3C Trace Context, so that the agent can continue the trace. None
    without traces. `conversation` is the limit of a conversation with tools, None without tools, and `budget` is that of its
    requests. `effort` is None if the config sets none.
    `static` is the beginning of the prompt that is the same in each run, and `cache` says whether a provider keeps it.
    `fallback` is the name of the fallback that is called, None for the agent itself. `ends_itself`: a program must be ended after
    `timeout`, because another call may follow. Otherwise the attempt ends then. `clock` tells the time in the zone of the agent.
    `usd_per_try` is the cost at which Claude Code stops, None without a limit.
    """

    agent: str
    prompt: str
    model: str | None
    workspace: Path
    timeout: timedelta
    meta: Callable[[], Mapping[str, object]]
    messages: tuple[tuple[str, str], ...] = ()
    form: Literal["text", "findings", "decision"] = "text"
    traceparent: str | None = None
    conversation: PromptLimit | None = None
    budget: TurnBudget = NO_BUDGET
    effort: Effort | None = None
    static: str = ""
    cache: CachePlan = NO_CACHE
    fallback: str | None = None
    ends_itself: bool = False
    clock: Callable[[], datetime] | None = None
    usd_per_try: float | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The token usage of a model call, by kind. `input` excludes the tokens that were read from or written to the cache.

    `cache_write_1h` is the part of `cache_write` that is kept for an hour, and costs more.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.cache_write_1h + other.cache_write_1h,
        )

    def by_kind(self) -> dict[str, int]:
        """The count of each kind by its name."""
        return {"input": self.input, "output": self.output, "cache_read": self.cache_read, "cache_write": self.cache_write}


def credible_usage(reported: Tokens | None) -> Tokens | None:
    """The usage of a call as it was reported. A report of no tokens at all is not believed."""
    return reported if reported is not None and reported.total else None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that an agent used, how often, and the total duration if the agent reports it.

    Of a tool that the daemon itself called for a model, each call is recorded: with its `arguments` as JSON, cut and redacted,
    and with the size of its result in bytes, or with the `error`.
    """

    name: str
    count: int = 1
    duration_ms: int | None = None
    arguments: str | None = None
    result_bytes: int | None = None
    error: str | None = None

    @property
    def is_our_own(self) -> bool:
        """Whether the daemon itself called the tool for a model."""
        return self.arguments is not None

    def as_data(self) -> dict[str, object]:
        """What is known about it, as JSON data. The parts of a recorded call are only there if they are known."""
        first = {"name": self.name, "count": self.count, "duration_ms": self.duration_ms}
        more = {"arguments": self.arguments, "result_bytes": self.result_bytes, "error": self.error}
        return first | {key: value for key, value in more.items() if value is not None}


class Action(StrEnum):
    SKIP = "skip"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a model has decided before a run: with `run` the agent gets `tasks`."""

    action: Action
    tasks: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a model: its provider (None: none of the config), the requested model, and the result.

    `tokens` and `cost_usd` are None if they were not reported. `tools_ignored` counts the tools that a model wanted to use.
    `not_sent`: the request did not leave the machine. `status` is the HTTP status of an error. `took` is the time from the
    request to the complete answer, None if it was not measured. `most` is the most that a turn with tools, or a call before that
    of a fallback, can have used. `error` is the text of the failure. `account` is that
    of a program.
    """

    provider: str | None
    model: str | None
    model_used: str | None = None
    tokens: Tokens | None = None
    cost_usd: float | None = None
    failure: Failure | None = None
    retry_after: timedelta | None = None
    tools_ignored: int = 0
    not_sent: bool = False
    status: int | None = None
    took: timedelta | None = None
    most: Tokens | None = None
    error: str = ""
    account: str | None = None

    @property
    def is_free(self) -> bool:
        """Whether it cannot have cost anything, although it reported no usage."""
        return self.not_sent or self.failure in UNCHARGED_FAILURES


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call: the `text`, or a `failure` with its `error` message.

    `transient` means that a retry may help, and `retry_after` is the delay that the server asks for. `model_used`, `tokens` and
    `cost_usd` are None if they are unknown. `later` means that the agent will send the answer in a separate request.
    `tools_ignored` counts the tools that a model tried to use although none was offered. `tool_calls` are the tools that the
    agent has used, and `has_changed` means that one of them may have changed something. `log` is text for the log only.
    `truncated` means that the text was cut at a token limit. `not_sent` means that the request was never sent and cannot have
    cost anything. `status` is the HTTP status of a failed request, `request_id` the provider's ID of the call. `report` has the
    findings of a structured answer, and `text` is then the same as plain text; None: the answer is a text, which may still have
    findings. `decision` is set if one was requested and made. `turns` are the calls of a model with tools, and the usage is
    theirs; None: there was one call. `reminders` are those beside the `report`.
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
    has_changed: bool = False
    log: str | None = None
    truncated: bool = False
    not_sent: bool = False
    status: int | None = None
    request_id: str | None = None
    report: Report | None = None
    decision: Decision | None = None
    turns: tuple[Call, ...] | None = None
    reminders: tuple[ReminderWish, ...] = ()

    def as_call(
        self, provider: str | None, model: str | None, took: timedelta, most: Tokens | None = None, account: str | None = None
    ) -> Call:
        """The call of a model that led to this answer. The parameters are the fields of `Call` that an answer does not have."""
        return Call(
            provider,
            model,
            self.model_used,
            self.tokens,
            self.cost_usd,
            self.failure,
            self.retry_after,
            self.tools_ignored,
            self.not_sent,
            self.status,
            took,
            most,
            self.error if self.failure is not None else "",
            account,
        )


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a program ended.

    `exit_code` is negative for a signal and None if the program did not start. `output` is the kept part of its standard output,
    `size` the number of bytes that it wrote, and `truncated` whether it wrote more than is kept. `end` has its last bytes if so,
    and is empty otherwise. `errors` is the end of its standard error. `problem` is one line: why the program could not be
    started, or why it was ended for a fault of its own. `ended_by` names what ended it from outside: its own time limit
    (`timeout`), or the end of the run. None: it ended by itself.
    """

    exit_code: int | None
    output: bytes = b""
    errors: bytes = b""
    truncated: bool = False
    end: bytes = b""
    problem: str | None = None
    ended_by: Literal["timeout", "cancelled", "shutdown"] | None = None
    size: int = 0

    @property
    def timed_out(self) -> bool:
        """Whether its own time limit ended it."""
        return self.ended_by == "timeout"

    @property
    def output_text(self) -> str:
        """The kept output as text, without NUL characters, which SQLite and JSON readers do not accept everywhere."""
        return self.output.decode(errors="replace").replace("\0", "")

    @property
    def last_line(self) -> str:
        """The last line of the whole output, without blanks around it. The beginning of a long line may be missing."""
        written = self.end if self.truncated else self.output
        return written.decode(errors="replace").strip().rpartition("\n")[2].strip()

    @property
    def error_text(self) -> str:
        """The end of the standard error as text, without NUL characters."""
        return self.errors.decode(errors="replace").replace("\0", "")


class StartProcess(Protocol):
    """Runs a program to its end, within limits of time and size. Values of `env` may be secrets."""

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
    """An HTTP response. The names in `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient(Protocol):
    """Sends POST requests, within limits of time and size."""

    def __hash__(self) -> int: ...

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply:
        """Return the response, whatever its status. Raises `errors.CallError` if there is none."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that a model may or must call: its name for the model, its description, and the JSON schema of its arguments.

    `is_read_only`: the server of the tool says that it changes nothing.
    """

    name: str
    description: str
    schema: Mapping[str, object]
    is_read_only: bool = True


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool returned: a text without secrets, cut to its limit, and its `size` in bytes before that.

    With `error`, one line, there is no result, and `text` says so to the model.
    """

    text: str
    size: int = 0
    error: str | None = None


class Toolbox(Protocol):
    """The tools of connected servers."""

    @property
    def offered(self) -> Sequence[OfferedTool]:
        """All tools, in the order of the config."""

    async def call_tool(self, name: str, arguments: Mapping[str, object], seconds: float) -> ToolResult:
        """Call a tool that is offered. Takes `seconds` at most. Whatever goes wrong is an error in the result."""

    def redact(self, text: str) -> str:
        """The text without the secrets of the servers."""


class OpenTools(Protocol):
    """Connects to the servers of the tools, for the duration of the context."""

    def __call__(self, tools: Tools, agent: str, workspace: Path, seconds: float) -> AbstractAsyncContextManager[Toolbox]:
        """Takes `seconds` at most until the context begins. Raises `errors.CallError` if one of the tools cannot be offered."""


class ToolCallTrace(Protocol):
    """The span of one call of a tool."""

    def set_error(self, kind: str) -> None:
        """Mark the call as failed."""


class ModelCallTrace(Protocol):
    """The span of one call of a model."""

    @property
    def traceparent(self) -> str | None:
        """Names this span to the provider, in the notation of W3C Trace Context."""

    def set_result(self, answer: Answer) -> None:
        """Record how the call ended."""

    def tool_call(self, name: str, call_id: str, /) -> AbstractContextManager[ToolCallTrace]:
        """The span of a tool that the model called in its response, for the duration of the context."""


class Trace(Protocol):
    """The span of an attempt. The spans of its calls are below it."""

    @property
    def traceparent(self) -> str | None:
        """Names this span to the agent, in the notation of W3C Trace Context."""

    def model_call(self, runner: ModelRunner, model: str | None, /) -> AbstractContextManager[ModelCallTrace]:
        """The span of one call of this model, for the duration of the context."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look at a source has found: a text, whether it is news, and the state for the next look once it has been seen.

    `events` are the names of the events that its lines are about (`evidence.Event`); none if they are about states.
    """

    text: str
    state: str
    has_news: bool
    events: tuple[str, ...] = ()


class LookAtSource(Protocol):
    """Looks at the source of a precheck, within limits of time and size."""

    async def __call__(
        self, source: Source, state: str | None, *, workspace: Path, now: datetime, zone: ZoneInfo, timeout: timedelta
    ) -> Sight:
        """What is new since `state`; None: since ever. `zone` is that of times in texts.

        Raises `errors.CallError`, in words without secrets, if the source cannot be read within the timeout.
        """


class _NoTrace:
    """Stands for every span while there are no traces."""

    traceparent = None

    def model_call(self, _runner: ModelRunner, _model: str | None) -> AbstractContextManager[_NoTrace]:
        return nullcontext(self)

    def tool_call(self, _name: str, _call_id: str) -> AbstractContextManager[_NoTrace]:
        return nullcontext(self)

    def set_result(self, answer: Answer) -> None: ...

    def set_error(self, kind: str) -> None: ...


NO_TRACE = _NoTrace()


AskApproval = Callable[[str], Awaitable[str | None]]
"""Asks a person whether something may be done, and waits for the answer. Returns why it must not be done; None: it may be."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What an attempt may use of the system: `start` for programs, `http` for requests, `open_tools` for the tools of models,
    `look` for the source of a precheck, and `approve` to ask a person.

    With `own_agent` nothing else is used, and nothing is waited for. This package itself starts no programs and opens no sockets.
    `may_block`: nothing else waits for the thread of this attempt, so a call that may block needs no thread of its own.
    """

    start: StartProcess
    http: HttpClient
    trace: Trace = NO_TRACE
    open_tools: OpenTools | None = None
    approve: AskApproval | None = None
    look: LookAtSource | None = None
    own_agent: Callable[[AgentRequest], Answer] | None = None  # an agent within this program, called in place of every runner
    may_block: bool = False
