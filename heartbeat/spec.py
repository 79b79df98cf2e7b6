"""The settings of one agent and its heartbeat, with all defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

from heartbeat.hours import ALL_DAYS, AllowedDays, Hours

OnMissing = Literal["skip", "create", "run"]
OkMatch = Literal["edges", "anywhere", "exact"]
DedupNormalize = Literal["text", "numbers"]
ProviderKind = Literal["anthropic", "openai"]
AnswerForm = Literal["structured", "text"]
Effort = Literal["low", "medium", "high", "xhigh", "max"]  # as the SDK of Anthropic names it


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The longest prompt in tokens: `own` by the config, and `reserved` by a budget, None if no budget depends on it."""

    own: int
    reserved: int | None = None

    @property
    def tokens(self) -> int:
        return self.own if self.reserved is None else self.reserved

    def count(self, *texts: str) -> int:
        """The tokens of these texts: an estimate, or an upper bound if a budget depends on it."""
        return estimate_tokens(*texts) if self.reserved is None else max_tokens(*texts)

    def __str__(self) -> str:
        if self.reserved is not None and self.reserved < self.own:
            return f"its budget allows {self.reserved:,}"
        return f"max_input_tokens is {self.own:,}"

    def describe(self, size: int, *, by_provider: bool = False) -> str:
        """The size of a prompt and its limit. `by_provider`: the size is not from `count`, but from the provider."""
        if by_provider:
            return f"{size:,} tokens as its provider counts them, and {self}"
        if self.reserved is None:
            return f"about {size:,} tokens, and {self}"
        return f"{size:,} bytes, counted as tokens because a budget applies, and {self}"


def estimate_tokens(*texts: str) -> int:
    """An estimate of the tokens in these texts that is rarely too low: three ASCII characters are one token, any
    other character is one.

    Plain English needs fewer, about one per four characters, so a prompt that passes this limit is not rejected for its length.
    """
    text = "".join(texts)
    plain = len(text.encode("ascii", errors="ignore"))
    return -(-plain // 3) + len(text) - plain


def max_tokens(*texts: str) -> int:
    """An upper limit for the number of tokens in these texts: one per byte, which no byte-level tokenizer exceeds."""
    return len("".join(texts).encode(errors="replace"))


@dataclass(frozen=True, slots=True)
class ClaudeCode:
    """How Claude Code is called. `allow` names the tools that it may use, `login` is its token in the daemon's own environment.

    The token is not compared: another machine may have another one, or none.
    """

    allow: tuple[str, ...] = ()
    login: Mapping[str, object] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class CommandRunner:
    """Calls the agent by running a program: the prompt on standard input, the answer on standard output.

    `env` values may be opaque secrets. Only the started process sees them in plain text. All programs with the same `account`
    have the same usage limit. `max_runs` is how many runs may begin in a time, to stay below it. `limit_pattern` is an expression
    for the text of an error that says that the limit is reached. With `claude`, the program is Claude Code, whose other arguments
    are added at each call.
    """

    argv: tuple[str, ...]
    env: Mapping[str, object]
    account: str | None = None
    limit_pattern: str | None = None
    max_runs: tuple[int, timedelta] | None = None
    claude: ClaudeCode | None = None

    @property
    def variables(self) -> Mapping[str, object]:
        """The variables that it gets in addition to those of all programs."""
        return {**self.claude.login, **self.env} if self.claude else self.env


@dataclass(frozen=True, slots=True)
class Provider:
    """The provider of a model.

    `api_key` may be an opaque secret, or None for a server without keys. Without `base_url` the kind's default address is used.
    """

    name: str
    kind: ProviderKind
    api_key: object | None
    base_url: object | None


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server of the Model Context Protocol: a URL with `headers`, or a program (`command`) with `env`.

    `allow` names the tools that a model may use, and `approve` those of them of which each call waits for a person. With
    `read_only`, each of them must say of itself that it changes nothing. A call may take `timeout`, and its result is cut to
    `max_result` bytes. `url` and the values of `headers` and `env` may be secrets.
    """

    name: str
    url: object | None
    headers: Mapping[str, object]
    command: tuple[str, ...]
    env: Mapping[str, object]
    allow: tuple[str, ...]
    read_only: bool
    timeout: timedelta
    max_result: int
    approve: tuple[str, ...] = ()


def offered_name(server: str, tool: str) -> str:
    """The name of a server's tool for a model. Models accept only letters, digits, `_` and `-`."""
    return f"{server}__{tool}".replace(".", "_").replace("/", "_")


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that a model may use in a run, and how many requests to the model a run may take with them."""

    servers: tuple[McpServer, ...]
    max_turns: int

    @property
    def asks(self) -> bool:
        """Whether a call may wait for a person."""
        return any(server.approve for server in self.servers)

    def needs_approval(self, name: str) -> bool:
        """Whether a call of the tool that the model knows by this name waits for a person."""
        return any(name == offered_name(server.name, tool) for server in self.servers for tool in server.approve)

    @property
    def may_change_things(self) -> bool:
        """Whether a call may have side effects, as far as the config says."""
        return any(not server.read_only for server in self.servers)


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """Calls a model directly: in one turn, or with `tools` in several."""

    provider: Provider
    max_output_tokens: int
    tools: Tools | None = None

    @property
    def max_turns(self) -> int:
        """The most requests to the model in one attempt."""
        return self.tools.max_turns if self.tools else 1


@dataclass(frozen=True, slots=True)
class HttpRunner:
    """Calls the agent at a URL: the request is JSON in a POST, the answer is in the response, or comes later (202).

    `headers` may contain opaque secrets. Private addresses are allowed, because agents often run next to the daemon.
    """

    url: object
    headers: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PythonRunner:
    """Calls a Python callable, named `package.module:function`, in a child process unless `in_process`."""

    call: str
    in_process: bool


Runner = CommandRunner | ModelRunner | HttpRunner | PythonRunner


def may_be_asked_again(runner: Runner) -> bool:
    """Whether a run may call this runner again after an incomplete answer.

    A program that is no model would give the same answer, and tools that change something would change it twice.
    """
    return isinstance(runner, ModelRunner) and not (runner.tools and runner.tools.may_change_things)


Called = tuple[Runner, str | None]
"""What a run calls, and its model; None: it chooses the model itself."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """What is called in place of an agent's own runner and model if that fails. Records and messages have its `name`."""

    name: str
    runner: Runner
    model: str | None
    effort: Effort | None = None


@dataclass(frozen=True, slots=True)
class Decide:
    """Settings for the decision by a model before a run. Only if it decides to run is the agent called."""

    runner: ModelRunner
    model: str


SourceKind = Literal["imap", "http", "rss", "git", "calendar", "files", "disk"]


@dataclass(frozen=True, slots=True)
class Source:
    """What a precheck without a command looks at for news.

    `place` is the server, URL, path or pattern. `title` names it in texts, without secrets. `identity` is a digest of what the
    config says about it: with another one, the state of earlier looks is void. The other fields are keys of single kinds.
    """

    kind: SourceKind
    title: str
    identity: str
    place: object  # may be a secret, as may `user`, `password` and the values of `headers`
    user: object = None
    password: object = None
    folder: str = "INBOX"
    encryption: Literal["tls", "starttls", "none"] = "tls"
    json_path: str | None = None
    headers: Mapping[str, object] = field(default_factory=dict, hash=False)
    branch: str | None = None
    ahead: timedelta = timedelta(days=1)
    limit: int = 0  # percent of a disk
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Precheck:
    """What finds out whether there is any work: a shell command that prints it, or a source that is looked at for news.

    `unchanged` says what to do if the output of the command is the same as last time, `on_error` if the precheck fails. With
    `max_age` the agent is called at least that often, even if the output stays the same. `confirm` is how often the agent is
    called again with the same output, if a new line of a changed output belongs to no problem after its answer.
    """

    command: str
    unchanged: Literal["skip", "run"]
    on_error: Literal["skip", "run"]
    timeout: timedelta
    max_age: timedelta | None = None
    confirm: int = 1
    source: Source | None = None  # in place of the command, which is then empty

    @property
    def identity(self) -> str:
        """A text that changes if something else is looked at."""
        return self.source.identity if self.source else self.command


@dataclass(frozen=True, slots=True)
class Postcheck:
    """What shows that the work of a run was done: a shell command that succeeds, or a file, or both.

    The file must have been changed within `fresher_than`, and with `not_empty` it has content. With `retry` a run without proof
    has a further attempt, as `retries` says.
    """

    command: str | None
    file: str | None
    fresher_than: timedelta | None
    not_empty: bool
    timeout: timedelta
    retry: bool


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent as a run calls it: in its heartbeat, or with the prompt of a job.

    A field with the name of a key of the config has the value of this key. `zone` is the time zone of the time in its prompt.
    With a `structured` answer, the agent reports findings, also in a job.
    """

    name: str
    queue: str | None = None  # of the workers that execute its runs; None: the default one
    zone: ZoneInfo
    workspace: Path
    runner: Runner
    model: str | None  # of the heartbeat or the job, else the agent's; None: the agent chooses it
    effort: Effort | None = None  # how much a model may think; None: the model's own default
    fallbacks: tuple[Fallback, ...] = ()  # called in this order if the provider fails
    context: tuple[str, ...] = ()
    max_input_tokens: int = 50_000
    usd_per_try: float | None = None  # at which Claude Code stops; None: it is not called, or has no limit
    answer: AnswerForm = "text"
    ask_again: int = 0  # further calls of a run at most, if its answer is incomplete
    strip_reasoning: bool = True
    precheck: Precheck | None = None  # decides whether the agent is called
    decide: Decide | None = None
    ok_match: OkMatch | None = None  # which answers are not delivered; None: all are, apart from empty ones
    ack_max_chars: int = 0
    show_ok: bool = False
    show_alerts: bool = True
    show_resolved: bool = True
    clear_after: int = 2  # answers in a row that do not mention a problem, and end it
    problems_remind: timedelta = timedelta(hours=24)  # after this time, an open problem is sent again

    @property
    def prompt_limit(self) -> PromptLimit:
        """The limit of its prompt without a budget."""
        return PromptLimit(self.max_input_tokens)

    @cached_property
    def called(self) -> tuple[Called, ...]:
        """What a run calls: the runner that decides, if there is one, the agent's, and its fallbacks."""
        return tuple(each for calls in self.alternatives for each in calls)

    @cached_property
    def alternatives(self) -> tuple[tuple[Called, ...], ...]:
        """What a run calls without a fallback, and with each of them. A fallback is called without a decision."""
        agent = (self.runner, self.model)
        own = ((self.decide.runner, self.decide.model), agent) if self.decide else (agent,)
        return (own, *(((each.runner, each.model),) for each in self.fallbacks))


@dataclass(frozen=True, kw_only=True)
class _Timing:
    """When a heartbeat runs."""

    enabled: bool
    interval: timedelta | None  # None: it runs by `schedule`, or, without one, only when it is woken
    schedule: str | None = None  # a cron expression in `zone`
    backoff_on_failure: bool = False
    stagger: timedelta  # the delay of each run after its planned time
    hours: Hours
    calendars: AllowedDays = ALL_DAYS  # the days on which it may run
    grace: timedelta  # how late a planned time may start


@dataclass(frozen=True, kw_only=True)
class _Attempts:
    """How often and how long it is tried, and what shows that its work was done."""

    retries: int
    timeout: timedelta
    async_timeout: timedelta = timedelta(hours=1)  # how long the result of a run that answers later is awaited
    postcheck: Postcheck | None = None


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """What the agent reads."""

    prompt: str | None = None
    checklist: str  # a file name inside `workspace`, or the text itself if it contains a line break
    on_missing: OnMissing = "skip"
    on_empty: Literal["skip", "run"] = "skip"
    light_context: bool = False
    memory: tuple[str, ...] = ()
    session_keep: int = 0  # messages of earlier runs in the prompt; 0: each run is independent

    @property
    def reads_checklist(self) -> bool:
        """Whether the checklist is a file, and not the text itself."""
        return "\n" not in self.checklist


@dataclass(frozen=True, slots=True)
class DeliverHours:
    """The hours in which a channel gets messages. `critical_always`: those about critical problems are sent at any time."""

    channel: str
    hours: Hours
    critical_always: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """Whom the questions of a run are sent to, and how long an answer is awaited.

    `people` may answer in chats: user names in lower case, or numbers. Empty: the `people` of the channel.
    """

    to: tuple[str, ...]
    people: tuple[str, ...]
    timeout: timedelta


@dataclass(frozen=True, kw_only=True)
class _Messages:
    """Which answers, problems and failures are delivered, and to whom."""

    dedup_window: timedelta = timedelta(hours=24)
    dedup_normalize: DedupNormalize = "text"
    deliver: tuple[str, ...] = ()
    deliver_hours: tuple[DeliverHours, ...] = ()  # of the channels that do not get messages at any time
    problems_after: int = 0  # failures in a row before a message about them; 0: never
    problems_deliver: tuple[str, ...] = ()  # of messages about failures; empty: `deliver`
    problems_hours: tuple[DeliverHours, ...] = ()  # likewise, for messages about failures
    pause_after: int = 0  # failures in a row that pause it; 0: never
    ask: Ask | None = None


@dataclass(frozen=True, kw_only=True)
class Heartbeat(Agent, _Timing, _Attempts, _Inputs, _Messages):
    """The settings of one agent's heartbeat."""

    ok_match: OkMatch = "edges"
    ack_max_chars: int = 5

    @property
    def context_files(self) -> tuple[str, ...]:
        """The files of `context` that its prompt contains."""
        return () if self.light_context else self.context
