"""Defines every key of config.yaml, in one line each: its type, its default, its description, and who may change it.

The checks, the JSON Schema, docs/reference.md, `check --effective`, the form of the status page, the inheritance from
`defaults`, and what a limited token may change are read from these lines. A new key of a heartbeat that is passed on as it is
needs a line here, a field of the same name in heartbeat/spec.py, and the code that uses it.

A model requires no key that `defaults` could supply. Keys that are still missing are found when the agent or job is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cron.job import FollowOn, Misfire, WakeMode, WakeOn
from heartbeat.spec import AnswerForm, DedupNormalize, Effort, OkMatch, OnMissing, ProviderKind
from scheduler.channels import registry
from scheduler.config.file.message_parts import quote_value
from scheduler.config.keys import value_types as types
from scheduler.config.keys.value_types import MapOr, OneOrList, OrShort, OrUnset
from scheduler.model.settings import DEFAULT_CLUSTER, ExecutorKind, OnUncertain, PageAccess, ReloadMode

EffortOrNone = Literal["none", Effort]

Form = Mapping[str, Any]
"""The JSON Schema of a key or of a model."""

TITLE = "heartbeatd config.yaml"  # of the JSON Schema of the whole
FAILURES_UNTIL_OPEN = "After this many failures in a row, a problem opens. With `none`, no message about failures is sent."

# The sections of the form on the page of an agent, in their order.
Section = Literal["Interval and hours", "Model", "Checklist and context", "Delivery", "Budget"]


def key(
    default: object,
    description: str,
    *,
    written: object = None,
    unset: str = "",
    example: object = None,
    section: Section | None = None,
    own: bool = False,
    file_only: bool = False,
    applies_to: str = "",
    renamed_from: tuple[str, ...] = (),
    alias: str | None = None,
) -> Any:
    """A key with its default as it is written in the file, or as a value, with its text in the file (`written`) or in words
    (`unset`).

    The example is a value that may be written in place of a wrong one, if the default is none.

    `section` is where the form of the page shows it, if its class names no section or another one. A token that is limited to
    some agents may change it only if it is `own`. No token may change it if it is `file_only`: it can run programs, read files,
    name secrets or addresses, or grant permissions, and a stolen token would be as powerful as a login on this machine.

    `applies_to` is the other key without which it has no effect, or several of which it needs one (`a or b`). In a heartbeat,
    `model` means that the runner, a fallback or `decide` calls one. `renamed_from` are earlier names, which are errors that name
    the key. `alias` is the name of the key, if the attribute cannot have it.
    """
    extra: dict[str, object] = {"x-else": unset} if unset else {"default": _as_written(default) if written is None else written}
    marks: dict[str, object] = {"x-section": section, "x-own": own, "x-file-only": file_only, "x-applies-to": applies_to}
    marks |= {"examples": example and [example], "x-renamed-from": renamed_from}
    extra |= {name: mark for name, mark in marks.items() if mark}

    def update(schema: JsonSchemaValue) -> None:
        schema.pop("default", None)
        schema.update(extra)

    return Field(default=default, alias=alias, description=description, json_schema_extra=update)


def _as_written(default: object) -> object:
    """A default as it would be written in the file."""
    if default is None:
        return "none"
    return {} if isinstance(default, ConfigPart) else [] if default == () else default


def optional_key(description: str, unset: str, **marks: Any) -> Any:
    """A key that may be left out. `unset` says in words what then applies."""
    return key(None, description, unset=unset, **marks)


def required_key(description: str, example: object) -> Any:
    """A key without a default. The example is a value that may be written if it is missing."""
    return Field(description=description, examples=[example])


class ConfigPart(BaseModel):
    """A map of the config. An empty value is a map without keys, and text is the value of the key `text_key`, if it has one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True, defer_build=True)

    text_key: ClassVar[str] = ""
    section: ClassVar[Section | None] = None  # of the keys of this class that name no other

    def __init_subclass__(cls, section: Section | None = None) -> None:
        super().__init_subclass__()
        cls.section = section

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Parse the defaults that are written as in the file."""
        for name in cls.__annotations__.keys() & cls.__pydantic_fields__.keys():
            field = cls.__pydantic_fields__[name]
            if isinstance(field.default, str | int):
                field.default = types.parse_default(field.default, field.metadata)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Itself, because it never changes. Copying defaults took a fifth of the time in which a small config is read."""
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core))
        for part in (each for each in cls.__mro__ if issubclass(each, ConfigPart) and each.section):
            for name in part.__annotations__:
                schema["properties"][name].setdefault("x-section", part.section)
        if cls.text_key:
            schema["x-text-key"] = cls.text_key
        return schema

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, written: object) -> object:
        if cls.text_key and isinstance(written, str):
            return {cls.text_key: written}
        return {} if written is None else written


class Window(ConfigPart):
    """A window of active hours. It may be written as a text such as `08:00-22:00`."""

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, written: object) -> object:
        return types.split_window(written) if isinstance(written, str) else written

    start: types.OpeningTime = required_key("Start, in local time.", "08:00")
    end: types.ClosingTime = required_key(
        "End, on the next day if it is before `start`. `24:00` and `00:00` are the midnight after `start`.", "22:00"
    )
    timezone: OrUnset[types.Zone] = optional_key("Time zone of the window.", "the zone of the heartbeat, else the top-level zone")
    days: types.Days = key((frozenset(range(7)),), "Days on which the window starts.", written="mon-sun")


class Recipient(ConfigPart):
    """Who gets messages, and at which times. It may be written as the name of a channel."""

    text_key = "to"

    to: types.Targets = required_key("Channels, or `last`.", "phone")
    hours: Annotated[tuple[Window, ...], OneOrList("`always`, window, list", "always")] = key(
        "always", "Windows in which messages are sent. Between the windows, messages wait, and are then sent as one."
    )
    critical: Literal["always", "hold"] = key("always", "Whether messages about critical problems are sent at any time.")


Recipients = Annotated[tuple[Recipient, ...], OneOrList("channel, `last`, map, list, `none`", "none")]


class Ask(ConfigPart):
    """Who answers the questions of a run. It may be written as the name of a channel."""

    text_key = "to"

    to: types.Names = required_key("Channels that get the questions.", "phone")
    people: types.People = key(
        (), "User names or IDs of people who may answer in a Telegram channel.", unset="`people` of the channel"
    )
    timeout: types.DurationUpToADay = key("30m", "How long a run waits for an answer. No answer means no.")


class McpServer(ConfigPart):
    """A server of the Model Context Protocol (MCP), at a URL or as a program."""

    name: types.ToolServer = required_key(
        "Name of the server. The model sees the tool `free` of the server `disk` as `disk__free`.", "disk"
    )
    allow: types.ToolNames = required_key("Tools that the model may use. All others are hidden from it.", ["TOOL", "TOOL"])
    url: OrUnset[types.Secret] = optional_key("A server with streamable HTTP. Private addresses are allowed.", "none")
    headers: types.Headers = key({}, "Request headers.")
    command: types.Argv = key((), "An MCP server on stdin and stdout. Each try starts it in the workspace.", unset="none")
    env: types.Environment = key({}, "Environment variables besides PATH, HOME and LANG.")
    approve: OrUnset[types.ToolNames] = optional_key(
        "Tools in `allow` whose calls need the approval of a person ([`ask`](channels.md#questions-to-people)).", "none"
    )
    read_only: bool = key(True, "With `true`, the run fails if the server does not declare each tool in `allow` as read-only.")
    timeout: types.PositiveDuration = key("30s", "Timeout of a call and of the connection.")
    max_result: Annotated[int, Field(ge=1000, le=65536)] = key(16384, "A longer result is cut to this many bytes.")


class Tools(ConfigPart):
    """The tools that a model may use."""

    mcp: Annotated[list[McpServer], Field(max_length=20)] = key([], "MCP servers, at most 20.")
    max_turns: Annotated[int, Field(ge=2, le=100)] = key(
        10, "Maximum number of requests in a try. In the last one, the model must answer."
    )


class ModelRunner(ConfigPart):
    """Calls a model directly: in one turn, or with tools in several."""

    kind: Literal["anthropic", "openai"] = required_key("Calls a [model](models.md).", "anthropic")
    provider: OrUnset[types.Text] = optional_key("Provider of the model.", "the provider with the same name as `kind`")
    tools: Annotated[Tools | None, MapOr("none")] = key(None, "Tools for the model.")


class Account(ConfigPart):
    """An account with a usage limit. It may be written as its name."""

    text_key = "name"

    name: OrUnset[types.Name] = optional_key("Name of the account.", "the name of the program", example="claude")
    max_runs: OrUnset[types.Rate] = optional_key("Maximum rate of runs with this account.", "no limit")


NameOrAccount = Annotated[Account, OrShort({"type": "string"}, "name, map")]

# The keys of both runners that start a program.
PROGRAM_ENV: Any = key({}, "Environment variables besides PATH, HOME and LANG.")
PROGRAM_ACCOUNT: Any = key(Account(), "Account with a [usage limit](runners.md#usage-limits).", unset="the name of the program")
LIMIT_PATTERN: Any = optional_key("Matches errors at the usage limit.", "errors of Claude Code, Codex and Gemini CLI")


class ClaudeCodeRunner(ConfigPart):
    """Runs Claude Code with `-p`: the prompt on stdin, the answer on stdout."""

    kind: Literal["claude-code"] = required_key("Calls [Claude Code](runners.md#claude-code).", "claude-code")
    allow: types.Rules = key((), "Tools that it may use, such as `Bash(df:*)`.", example=["Bash(df:*)"])
    program: types.Text = key("claude", "Name or path of the program.")
    env: types.Environment = PROGRAM_ENV
    account: NameOrAccount = PROGRAM_ACCOUNT
    limit_pattern: OrUnset[types.Pattern] = LIMIT_PATTERN


class CommandRunner(ConfigPart):
    """Runs a program: the prompt on stdin, the answer on stdout."""

    kind: Literal["command"] = required_key("Runs a [program](runners.md#a-program).", "command")
    argv: types.Argv = required_key("Program and arguments, without a shell.", ["program", "argument"])
    env: types.Environment = PROGRAM_ENV
    account: NameOrAccount = PROGRAM_ACCOUNT
    limit_pattern: OrUnset[types.Pattern] = LIMIT_PATTERN


class HttpRunner(ConfigPart):
    """Posts the run to a URL; the answer is in the response or comes later."""

    kind: Literal["http"] = required_key("Sends the prompt in a [POST request](runners.md#a-url).", "http")
    url: types.Secret = required_key("An http or https URL. Private addresses are allowed.", "https://...")
    headers: types.Headers = key({}, "Request headers.")


class PythonRunner(ConfigPart):
    """Calls a Python function."""

    kind: Literal["python"] = required_key("Calls a [Python function](runners.md#a-python-function).", "python")
    call: Annotated[str, types.text(types.parse_callable, "`package.module:function`")] = required_key(
        "The function. Its module is first looked up in the workspace.", "package.module:function"
    )
    in_process: bool = key(False, "With `true`, the function runs [inside the daemon](runners.md#a-python-function).")


Runner = Annotated[
    ModelRunner | ClaudeCodeRunner | CommandRunner | HttpRunner | PythonRunner,
    Field(discriminator="kind"),
    types.OrKind(("anthropic", "openai", "claude-code")),
]


class Fallback(ConfigPart):
    """What is called if the agent's own provider fails. A text in place of the map is a model."""

    text_key = "model"

    model: OrUnset[types.Text] = optional_key("Model.", "required without `runner`", example="claude-haiku-5-5")
    provider: OrUnset[types.Text] = optional_key("Provider of `model`.", "none: the agent's runner calls `model`")
    runner: OrUnset[types.Name] = optional_key("A runner of the section `runners`.", "the runner of the agent")
    effort: OrUnset[EffortOrNone] = optional_key("How much the model may think.", "chosen by the model")


Fallbacks = Annotated[tuple[Fallback, ...], Field(max_length=5), OneOrList("model, map, list, `none`", "none")]


class Decide(ConfigPart):
    """A model that decides whether there is something to do before the agent itself is called."""

    model: types.Text = required_key("The model that decides. A small one is enough.", "claude-haiku-5-5")
    provider: OrUnset[types.Text] = optional_key(
        "Provider of `decide.model`.", "the provider of the heartbeat, else of the runner, else `anthropic`", file_only=True
    )


class Unchanged(ConfigPart):
    """What to do if the output of a precheck has not changed."""

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, written: object) -> object:
        if isinstance(written, str) and written not in ("skip", "run"):
            raise ValueError(f"{quote_value(written)} is not allowed here; write skip or run")
        return {"skip": written == "skip"} if isinstance(written, str) else written

    skip: bool = key(True, "Whether to skip the run.")
    max_age: OrUnset[types.PositiveDuration] = optional_key("How long runs may be skipped in a row.", "no limit")


class Precheck(ConfigPart):
    """A command that checks whether there is anything to do before the agent is called, or what is looked at for news."""

    text_key = "command"

    command: OrUnset[types.Text] = optional_key(
        "A shell command, run in the workspace. Its output becomes part of the prompt.",
        "required without a source of news",
        example="./new-mail.sh",
    )
    imap: OrUnset[types.Text] = optional_key("A mailbox: `HOST` or `HOST:PORT`.", "none")
    user: OrUnset[types.Secret] = optional_key("User of the mailbox.", "required with `imap`", applies_to="imap")
    password: OrUnset[types.Secret] = optional_key(
        "Password, as `${NAME}` or `${file:PATH}`.", "required with `imap`", applies_to="imap"
    )
    folder: OrUnset[types.Text] = optional_key("Folder of the mailbox.", "INBOX", applies_to="imap")
    encryption: OrUnset[Literal["tls", "starttls", "none"]] = optional_key(
        "How the mailbox is reached: on port 993 with `tls`, else on port 143.", "`tls`", applies_to="imap"
    )
    http: OrUnset[types.Secret] = optional_key("The URL of a page. Private addresses are allowed.", "none")
    json_path: OrUnset[Annotated[str, types.text(types.parse_json_path, "`name.name[*]`")]] = optional_key(
        "With `http`: the part of the JSON that is compared, such as `items[*].title`.",
        "all lines of the page",
        alias="json",
        applies_to="http",
    )
    rss: OrUnset[types.Secret] = optional_key("The URL of an RSS or Atom feed.", "none")
    headers: types.Headers = key(
        {}, "Headers of the requests of `http`, `rss` and `calendar`.", applies_to="http or rss or calendar"
    )
    git: OrUnset[types.Secret] = optional_key(
        "URL or folder of a repository. In a folder, only local commits are checked.", "none"
    )
    branch: OrUnset[types.Text] = optional_key("With `git`: a branch.", "HEAD", applies_to="git")
    calendar: OrUnset[types.Secret] = optional_key("The URL or path of a calendar (ICS).", "none")
    ahead: OrUnset[types.PositiveDuration] = optional_key(
        "With `calendar`: an event is shown this long before it begins.", "24h", applies_to="calendar"
    )
    files: OrUnset[types.Text] = optional_key("A pattern of paths, such as `inbox/*.pdf`.", "none")
    disk: OrUnset[Annotated[int, types.text(types.parse_percent, "percentage")]] = optional_key(
        "How full a disk may be, such as `90%`.", "none"
    )
    path: Annotated[tuple[types.Path, ...], OneOrList("path, list")] = key(
        (), "With `disk`: folders on the disks to check.", unset="all disks", applies_to="disk"
    )
    unchanged: Annotated[Unchanged, OrShort({"enum": ["skip", "run"]}, "`skip`, `run`, map")] = key(
        Unchanged(skip=False),
        "What to do if the output has not changed since the agent's last valid answer.",
        written="run",
        applies_to="command",
    )
    confirm: Annotated[int, Field(ge=0, le=3)] = key(
        1,
        "With `unchanged: skip`: how often an [overlooked line](checklists.md#the-precheck) causes another call.",
        applies_to="command",
    )
    on_error: OrUnset[Literal["skip", "run"]] = optional_key(
        "What to do if the precheck fails.", "`run` with `command`, else `skip`"
    )
    timeout: OrUnset[types.PositiveDuration] = optional_key(
        "Timeout of the precheck.", "half the timeout of the try, at most 30s"
    )


class Postcheck(ConfigPart):
    """What shows after a run that its work was done. Otherwise the run has failed."""

    text_key = "command"

    command: OrUnset[types.Text] = optional_key(
        "A shell command that [must succeed](jobs.md#proof-that-the-work-was-done).", "required without `file`"
    )
    file: OrUnset[types.Text] = optional_key(
        "A file that must exist, relative to the workspace or `workdir`.", "required without `command`", example="report.md"
    )
    fresher_than: OrUnset[types.PositiveDuration] = optional_key("Maximum age of the file when it is checked.", "no limit")
    not_empty: bool = key(False, "With `true`, the file must have content.")
    retry: bool = key(False, "With `true`, a run whose work was not done is tried again, up to `retries` times.")
    timeout: OrUnset[types.PositiveDuration] = optional_key(
        "Timeout of the command. It is a part of the timeout of the try.", "a quarter of the timeout of the try, at most 30s"
    )

    @model_validator(mode="after")
    def _has_something_to_check(self) -> Self:
        if self.command is None and self.file is None:
            raise ValueError("nothing is checked; write command: ./report-exists.sh, or file: report.md")
        if self.file is None and (self.fresher_than is not None or self.not_empty):
            raise ValueError("fresher_than and not_empty are about a file, and none is named; write file: report.md too")
        return self


class DayBudget(ConfigPart):
    """The limits of one day, and of one month."""

    usd_per_day: OrUnset[types.PositiveUsd] = optional_key(
        "Maximum cost. Each model needs a [price](money.md#prices).", "no limit"
    )
    tokens_per_day: OrUnset[types.Tokens] = optional_key("Maximum number of tokens (input, output and cache).", "no limit")
    runs_per_day: OrUnset[Annotated[int, Field(ge=1, le=1_000_000)]] = optional_key(
        "Maximum number of runs that call an agent. Retries do not count.", "no limit"
    )
    usd_per_month: OrUnset[types.PositiveUsd] = optional_key("Maximum cost in a calendar month.", "no limit")


class Budget(DayBudget):
    """The limits of an entry in one day and one month of its time zone."""

    usd_per_try: OrUnset[types.Usd] = optional_key(
        "Maximum cost of one try. A model gets no prompt that could cost more. Claude Code stops at this cost. For"
        " other runners, write your own estimate.",
        "computed from the token limits",
        renamed_from=("usd_per_run",),
    )
    tokens_per_try: OrUnset[types.Tokens] = optional_key(
        "Maximum number of tokens in one try. A longer prompt is not sent to a model.",
        "computed from the token limits",
        renamed_from=("tokens_per_run",),
    )


class HeartbeatMisfire(ConfigPart):
    grace: OrUnset[types.Duration] = optional_key(
        "[How late](time.md#late-starts) a run may start.",
        "half the interval (or half the shortest interval of the schedule), at most 10m",
        example="5m",
    )


class Dedup(ConfigPart):
    window: types.Duration = key(
        "24h", "The same [plain alert](findings.md#how-an-agent-answers) is not sent again within this time."
    )
    normalize: DedupNormalize = key("text", "With `numbers`, alerts that differ only in numbers are the same.")


class JobProblems(ConfigPart):
    """The rules for the messages about problems of a job."""

    after: types.CountOrNone = key(1, FAILURES_UNTIL_OPEN)
    remind: types.PositiveDuration = key(
        "24h",
        "Interval of reminders. For critical problems, at most 6h. If runs fail with other errors, the first five"
        " errors are each sent at once, others with a reminder.",
        own=True,
    )
    deliver: OrUnset[Recipients] = optional_key(
        "Channels for messages about failures.",
        "`deliver` of the agent or job; if that is `none`, the only declared channel, else `log`",
    )
    clear_after: Annotated[int, Field(ge=1, le=100)] = key(
        2, "A problem is over when this many runs in a row [do not mention it](findings.md#when-a-problem-is-over).", own=True
    )
    pause_after: types.CountOrNone = key(
        "none", "After this many failures in a row, the agent or job is [paused](messages.md#paused-after-failures)."
    )


class Problems(JobProblems):
    """The rules for the messages about problems of an agent."""

    after: types.CountOrNone = key(2, FAILURES_UNTIL_OPEN)


class EntryKeys(ConfigPart):
    """The keys of an agent's heartbeat that a job has too. Only a job with a prompt may set those that apply to a prompt."""

    skip_on: types.Calendars = key("none", "No runs on the days of these calendars.", section="Interval and hours", own=True)
    only_on: types.Calendars = key("none", "Runs only on the days of these calendars.", section="Interval and hours", own=True)
    backoff_on_failure: bool = key(
        False,
        "With `true`, failed runs make the interval [longer](time.md#longer-intervals-after-failures).",
        section="Interval and hours",
        own=True,
    )
    precheck: Annotated[Precheck | None, MapOr("none", "command")] = key(
        None,
        "A command or a [source of news](checklists.md#built-in-prechecks) that decides whether to call the agent.",
        section="Checklist and context",
        file_only=True,
        applies_to="prompt",
    )
    postcheck: Annotated[Postcheck | None, MapOr("none", "command")] = key(
        None,
        "A command or a file that shows whether the work was [done](jobs.md#proof-that-the-work-was-done).",
        section="Checklist and context",
        file_only=True,
    )
    async_timeout: types.DurationUpToADay = key(
        "1h", "How long an agent that [answers later](runners.md#answering-later) may take.", section="Model", applies_to="prompt"
    )
    ask_again: OrUnset[Annotated[int, Field(ge=0, le=2)]] = optional_key(
        "How often a run asks again if the answer is [incomplete](findings.md#incomplete-answers).",
        "2 for a model whose tools change nothing, else 0",
        section="Model",
        applies_to="prompt",
    )
    strip_reasoning: bool = key(
        True, "Removes `<think>...</think>` at the beginning of an answer.", section="Model", own=True, applies_to="prompt"
    )
    ack_max_chars: types.AckLength = key(
        5,
        "An answer with HEARTBEAT_OK and at most this many other characters is not sent.",
        section="Delivery",
        own=True,
        applies_to="prompt",
    )
    ask: Annotated[Ask | None, MapOr("none", "channel")] = key(
        None, "Who answers [questions](channels.md#questions-to-people) of the runs.", section="Delivery", file_only=True
    )
    budget: Annotated[Budget | None, MapOr("unlimited")] = key(
        Budget(),
        "Limits of a day, a month and a try. With an explicit `unlimited`, `check` does not warn about a missing budget.",
        written="unlimited",
        section="Budget",
        applies_to="prompt",
    )


class HeartbeatTiming(ConfigPart, section="Interval and hours"):
    """When a heartbeat runs."""

    enabled: bool = key(True, "Whether the heartbeat runs.", own=True)
    interval: types.Interval = optional_key(
        "Time between runs. With `none`, only wakes start runs. `0m` disables the heartbeat.",
        "required without `schedule`",
        own=True,
        example="30m",
    )
    schedule: OrUnset[types.Schedule] = optional_key(
        "A cron expression. Times outside the active hours are skipped.", "required without `interval`", own=True
    )
    stagger: types.Stagger = key(
        "10%", "Each agent has a fixed delay, at most this long. With `schedule`, the default is 0.", own=True
    )
    active_hours: Annotated[tuple[Window, ...], OneOrList("`always`, window, list", "always")] = key(
        "always", "Windows in which the heartbeat runs: `08:00-22:00`, a map, or a list of both.", own=True
    )
    timezone: OrUnset[types.Zone] = optional_key(
        "Time zone of the schedule, the active hours and the time in the prompt.",
        "the zone of `active_hours` if all windows have the same, else the top-level zone",
        own=True,
    )
    misfire: HeartbeatMisfire = key(HeartbeatMisfire(), "Rules for runs that could not start in time.")


class HeartbeatCall(ConfigPart, section="Model"):
    """How the agent is called for a heartbeat."""

    model: OrUnset[types.Text] = optional_key("Model for heartbeat runs.", "the model of the agent", own=True)
    provider: OrUnset[types.Text] = optional_key(
        "Provider of `model`. It may have another `kind` than the runner.", "the provider of the runner", file_only=True
    )
    effort: OrUnset[EffortOrNone] = optional_key(
        "How much the model may think in heartbeat runs.", "the effort of the agent", own=True
    )
    fallbacks: OrUnset[Fallbacks] = optional_key(
        "Models or runners for heartbeat runs, called in order after certain failures.",
        "the fallbacks of the agent",
        file_only=True,
    )
    max_output_tokens: types.TokensUpToAMillion = key("2k", "Maximum length of a model's answer.", applies_to="model")
    max_input_tokens: types.TokensUpToAMillion = key(
        "50k", "Maximum [length of the prompt](checklists.md#the-length-of-a-prompt)."
    )
    retries: types.Retries = key(2, "Further tries after a failure.", own=True)
    timeout: types.PositiveDuration = key("5m", "Timeout of one try.", own=True)
    answer: OrUnset[AnswerForm] = optional_key(
        "Form of the [findings](findings.md#how-an-agent-answers).",
        "`structured` for a model and Claude Code, else `text`",
    )


class HeartbeatPrompt(ConfigPart, section="Checklist and context"):
    """What the agent reads for a heartbeat."""

    prompt: OrUnset[types.Text] = optional_key("Instructions in place of the built-in ones.", "built in", own=True)
    checklist: types.Checklist = key("HEARTBEAT.md", "The checklist of the agent.")
    on_missing: OnMissing = key("skip", "What to do [without a checklist](checklists.md#without-a-checklist).", own=True)
    on_empty: Literal["skip", "run"] = key("skip", "What to do if the checklist is empty.", own=True)
    memory: types.WorkspaceFiles = key(
        (), "Files for the prompt in place of a [missing or empty checklist](checklists.md#without-a-checklist).", file_only=True
    )
    light_context: bool = key(False, "With `true`, the prompt does not contain the `context` files.", own=True)
    isolated_session: bool = key(True, "With `false`, the prompt contains earlier messages of the agent.", own=True)
    session_keep: Annotated[int, Field(ge=2, le=100, multiple_of=2)] = key(
        8, "Number of earlier messages in the prompt, with `isolated_session: false`. They are deleted after `history.keep`."
    )


class HeartbeatMessages(ConfigPart, section="Delivery"):
    """Which answers are delivered, and to whom."""

    ok_match: OkMatch = key(
        "edges",
        "Where HEARTBEAT_OK must be in an [answer](runners.md#answers): at the `edges`, `anywhere`, or alone (`exact`).",
        own=True,
    )
    show_ok: bool = key(False, "With `true`, answers that report no problem are sent too.", own=True)
    show_alerts: bool = key(True, "With `false`, alerts are not sent.")
    show_resolved: bool = key(True, "With `false`, the end of a problem is not reported.", own=True)
    dedup: Dedup = key(Dedup(), "When a repeated alert without keys of findings is not sent.", own=True)
    deliver: OrUnset[Recipients] = optional_key(
        "Channels for messages. `last` is the chat in which a user [last wrote to the"
        " agent](gateways.md#activity-and-deliver-last).",
        "the only declared channel, else `log`. For a channel with `{target}`: `last`",
    )
    problems: Problems = key(
        Problems(), "When and where messages about problems are sent.", renamed_from=("on_failure", "conditions")
    )


class Heartbeat(EntryKeys, HeartbeatMessages, HeartbeatPrompt, HeartbeatCall, HeartbeatTiming):
    decide: Annotated[Decide | None, MapOr("none")] = key(
        None, "A model that [decides](models.md#decide) whether to call the agent."
    )


class Routing(ConfigPart):
    """Which workers execute the runs of an agent or a job."""

    queue: OrUnset[types.Name] = optional_key(
        "Only the workers of this [queue](scaling.md#queues) execute the runs.",
        "`default`. A job with a `prompt`: the queue of its agent",
        file_only=True,
        example="gpu",
    )


class Agent(ConfigPart):
    workspace: OrUnset[types.Path] = optional_key(
        "Folder with the checklist and the other files of the agent.",
        "`agents/NAME`",
        section="Checklist and context",
        file_only=True,
    )
    runner: Runner = key(
        ModelRunner(kind="anthropic"),
        "How the agent is called. A word is its `kind`.",
        written={"kind": "anthropic"},
        section="Model",
        file_only=True,
    )
    model: OrUnset[types.Text] = optional_key(
        "Model of the agent.", "`claude-haiku-5-5` for Anthropic, else chosen by the runner", section="Model"
    )
    effort: OrUnset[EffortOrNone] = optional_key(
        "How much the model may [think](models.md#effort) before it answers.", "chosen by the model", section="Model"
    )
    fallbacks: Fallbacks = key(
        "none",
        "[Models or runners](models.md#fallbacks), called in order after certain failures.",
        section="Model",
        file_only=True,
    )
    context: types.WorkspaceFiles = key((), "Files for the prompt.", section="Checklist and context", file_only=True)
    executor: Routing = key(Routing(), "Which workers execute the runs.", file_only=True)
    heartbeat: Heartbeat = key(Heartbeat(), "Regular runs of the agent.")


class JobMisfire(ConfigPart):
    policy: Misfire = key("latest", "`latest` runs the latest missed run. `skip` runs none.")
    grace: OrUnset[types.Duration] = optional_key(
        "[How late](time.md#late-starts) a run may start.", "half the period, at most 1h"
    )


class After(ConfigPart):
    """The job after which a job runs."""

    text_key = "job"

    job: types.Text = required_key("Name of the job.", "backup")
    on: FollowOn = key("success", "Results of `job` after which this job runs. A cancelled run of `job` starts nothing.")


class JobTiming(ConfigPart):
    """When a job runs."""

    enabled: bool = key(True, "Whether the job runs.")
    schedule: OrUnset[types.Schedule] = optional_key(
        'A cron expression, a macro like `@daily`, or `"@reboot"`.', "required without `every`, `at` and `after`"
    )
    every: OrUnset[types.PositiveDuration] = optional_key(
        "Fixed interval between runs.", "required without `schedule`, `at` and `after`"
    )
    at: OrUnset[types.Text] = optional_key(
        "Time of a single run, in local time (`2026-12-24T18:00`), or with an offset or `Z`.",
        "required without `schedule`, `every` and `after`",
    )
    after: Annotated[After | None, MapOr("none", "job")] = optional_key(
        "The job runs when [another job](jobs.md#job-after-job) has ended, and gets that job's output.",
        "required without `schedule`, `every` and `at`",
    )
    timezone: OrUnset[types.Zone] = optional_key("Time zone of `schedule`, `at` and calendars.", "the top-level zone")
    stagger: types.Stagger = key(0, "Each job has a fixed delay, at most this long.")
    misfire: JobMisfire = key(JobMisfire(), "Rules for runs that could not start in time.")
    rerun_after_crash: bool = key(False, "With `true`, a run interrupted by a stop or crash of the daemon starts again.")


class JobAction(ConfigPart):
    """What a job does: a command, or the prompt for an agent."""

    command: OrUnset[types.Command] = optional_key(
        "Command to run.", "none, if the job has a `prompt` or only wakes agents", file_only=True, example="./backup.sh"
    )
    env: types.Environment = key({}, "Environment variables besides PATH, HOME and LANG.", file_only=True, applies_to="command")
    workdir: OrUnset[types.Path] = optional_key("Working directory.", "the config's folder", file_only=True, applies_to="command")
    stdin: types.AnyText = key("", "Text for stdin.", file_only=True, applies_to="command")
    shell: types.Text = key("/bin/sh", "Shell for a `command` that is a string.", file_only=True, applies_to="command")
    prompt: OrUnset[types.Text] = optional_key(
        "Instructions for `agent`, in place of a command. The run uses the agent's runner and lock, but no earlier messages.",
        "none",
    )
    agent: OrUnset[types.Text] = optional_key("Agent that gets the prompt.", "required with `prompt`", applies_to="prompt")
    model: OrUnset[types.Text] = optional_key("Model for the prompt.", "the model of the agent", applies_to="prompt")
    effort: OrUnset[EffortOrNone] = optional_key("How much the model may think.", "the effort of the agent", applies_to="prompt")
    fallbacks: OrUnset[Fallbacks] = optional_key(
        "Models or runners, called in order after certain failures.",
        "the fallbacks of the agent",
        file_only=True,
        applies_to="prompt",
    )
    answer: AnswerForm = key(
        "text",
        "With `text`, each answer is sent as it is. With `structured`, the agent reports [findings](jobs.md#findings-of-jobs).",
        applies_to="prompt",
    )
    ok_match: Literal["none", "edges", "anywhere", "exact"] = key(
        "none",
        "As [for agents](#agentsnameheartbeat). With `none`, answers with HEARTBEAT_OK are sent, too. With `answer: structured`,"
        " `none` means `edges`.",
        applies_to="prompt",
    )
    previous: types.Outputs = key(
        False, "Jobs whose last successful output this job [gets](jobs.md#job-after-job). `true` is the job itself."
    )
    timeout: types.PositiveDuration = key("10m", "Timeout of one try.")
    retries: types.Retries = key(0, "Further tries after a failure. Set it only if the job is safe to repeat.")


class Job(EntryKeys, JobAction, JobTiming):
    executor: Routing = key(Routing(), "Which workers execute the runs.", file_only=True)
    deliver: Recipients = key("none", "Channels for the output.")
    problems: JobProblems = key(JobProblems(), "When and where messages about failures are sent.", renamed_from=("on_failure",))
    wake_heartbeat: types.AgentNames = key((), "Agents that the job wakes when it ends.")
    wake_on: WakeOn = key("always", "Results after which the job wakes agents.")
    wake_mode: WakeMode = key("now", "`now` starts a run. `next` waits for the agent's next scheduled run.")
    wake_text: OrUnset[types.Text] = optional_key(
        "Text for the woken agents. The job's result and the end of its output follow.", "none"
    )


class Token(ConfigPart):
    value: types.Secret = required_key("The token, of at least 16 bytes, as `${NAME}` or `${file:PATH}`.", "${NAME}")
    may: types.Permissions = required_key("[Permissions](api.md#all-requests).", ["read", "wake"])
    agents: OrUnset[types.AgentNames] = optional_key("Agents that the token may access.", "all")


class Server(ConfigPart):
    listen: types.Text = key(
        "127.0.0.1:7857", "Address and port. An address that other machines can reach needs tokens. Port 0 is any free port."
    )
    hosts: types.Names = key((), "Further host names that the Host header of a request may contain.")
    tokens: dict[types.Name, Token] = key(
        {}, "Tokens for the HTTP API, by name.", unset="one token with all permissions is generated"
    )
    public_url: OrUnset[Annotated[str, types.text(types.parse_nonempty_text, "URL")]] = optional_key(
        "URL at which users reach the HTTP interface. Shortened messages link to it.", "none"
    )
    page: PageAccess = key(
        "login", "With `login`, the status page asks for a token. With `open`, it [does not](page.md#without-a-login)."
    )
    metrics_entries: Annotated[int, Field(ge=0, le=1_000_000)] = key(
        1000, "Maximum number of agents and jobs with metrics of their own."
    )


class Limits(ConfigPart):
    concurrency: types.Count = key(8, "Maximum number of runs at the same time.")
    min_interval: types.Duration = key("5m", "Shortest interval of an agent or job that calls a model. `0s` means no limit.")
    wake_gap: types.Duration = key(
        "30s",
        "Minimum time between a run started by a [wake](waking.md#how-often) and the next run. A job's wake waits up to this"
        " long for the wakes of other running jobs.",
    )
    wake_flood: types.Rate = key(
        "5 per 10m", "Maximum rate at which [wakes](waking.md#how-often) from programs start runs of an agent."
    )
    wake_keep: types.PositiveDuration = key("24h", "How long a [wake](waking.md) waits for a run.")
    new_problems: types.Count = key(
        10,
        "Hourly limit of [new problems](messages.md#too-many-new-problems) sent for an agent.",
    )
    shutdown_grace: types.Duration = key("30s", "How long runs may continue when the daemon stops.")
    budget: Annotated[DayBudget | None, MapOr("unlimited")] = key(
        "unlimited", "Limits for all runs that call an agent. Days and months use the top-level time zone."
    )


class Provider(ConfigPart):
    """A provider of models."""

    kind: OrUnset[ProviderKind] = optional_key("Kind of API.", "the name of the provider, if it is `anthropic` or `openai`")
    api_key: OrUnset[types.Secret] = optional_key("API key, as `${NAME}` or `${file:PATH}`.", "none", example="${NAME}")
    base_url: OrUnset[types.Secret] = optional_key("Base URL of the API.", "the URL of Anthropic or OpenAI")


class Price(ConfigPart):
    input: types.UsdPerMillion = required_key("Input tokens.", 1.0)
    output: types.UsdPerMillion = required_key("Output tokens.", 5.0)
    cache_read: OrUnset[types.UsdPerMillion] = optional_key("Tokens read from the cache.", "the same as `input`")
    cache_write: OrUnset[types.UsdPerMillion] = optional_key(
        "Tokens written to the cache for five minutes.", "1.25 times `input`"
    )
    cache_write_1h: OrUnset[types.UsdPerMillion] = optional_key("Tokens written to the cache for an hour.", "twice `input`")


_DETECTING_REPEATS = " or ".join(f"`{kind.name}`" for kind in registry.KINDS if kind.detects_repeats)

_NAMING_SENDER = " or ".join(f"`{kind.name}`" for kind in registry.KINDS if kind.names_sender)
_WITH_BUTTONS = " or ".join(f"`{kind.name}`" for kind in registry.KINDS if kind.has_buttons)
_SIGNED = " or ".join(f"`{kind.name}`" for kind in registry.KINDS if kind.is_signed)


class Channel(ConfigPart):
    """A channel for messages. A text in place of the map is its URL."""

    text_key = "url"

    kind: OrUnset[types.ChannelKindName] = optional_key(
        "Kind of channel.",
        ", ".join(
            [f"`{kind.name}` for `{kind.schemes[0]}://`" for kind in registry.kinds_with_own_scheme()]
            + [f"`{registry.FALLBACK.name}` for all others"]
        ),
    )
    url: OrUnset[types.Secret] = optional_key(
        ", ".join(f"`{kind.url_form}`" for kind in registry.kinds_with_own_scheme())
        + ", an http or https URL for `webhook`, or an Apprise URL. With"
        " [`deliver: last`](gateways.md#activity-and-deliver-last), write `{target}` in place of the chat.",
        "required, except for `command`",
        example="tgram://TOKEN/CHAT",
    )
    argv: types.Argv = key(
        (),
        "Program and arguments. It [reads the message from stdin](channels.md#your-own-program).",
        unset="required for `command`",
    )
    base_url: OrUnset[types.Secret] = optional_key(
        "Base URL of the API of " + " or ".join(kind.name.capitalize() for kind in registry.KINDS if kind.has_base_url) + ".",
        "the public API",
    )
    allow_private: bool = key(False, "Allows addresses of this machine and of private networks. Apprise may always use them.")
    uncertain: OrUnset[OnUncertain] = optional_key(
        "What to do if it is [unknown whether a message arrived](guarantees.md#uncertain-messages). With `hold`, the message"
        " waits for your decision.",
        f"`resend`. Messages about jobs: `hold`, except for {_DETECTING_REPEATS}",
    )
    prefix: OrUnset[Annotated[str, types.text(types.parse_prefix, "template, `none`")]] = optional_key(
        "Beginning of each message. `{agent}` is the name of the agent, job or provider. `{host}` is the key `host`."
        " `{kind}` is `agent`, `job`, `provider` or `daemon`.",
        f'`"{types.DEFAULT_PREFIX}"`; `none` for {_NAMING_SENDER}, whose JSON has the fields `agent` and `host`',
    )
    secret: OrUnset[types.Secret] = optional_key(
        f"For {_SIGNED}: signs each request, so that the receiver can verify the sender.", "no signature"
    )
    signature_header: types.SignatureHeader = key("X-Heartbeatd-Signature", "Header with the signature.")

    buttons: bool = key(False, f"For {_WITH_BUTTONS}: messages have [buttons](channels.md#buttons-in-telegram).")
    people: types.People = key(
        (),
        f"For {_WITH_BUTTONS}: user names or IDs of people who may [reply to messages](channels.md#replies-in-telegram).",
        unset="none",
        file_only=True,
    )


class Deadman(ConfigPart):
    """A dead man's switch: a service elsewhere that reports when pings stop."""

    url: types.Secret = required_key("URL to [ping](monitoring.md#the-daemon-is-down).", "https://...")
    every: types.PositiveDuration = key("1m", "Time between pings.")
    allow_private: bool = key(False, "Allows addresses of this machine and of private networks.")


class Network(ConfigPart):
    """The proxy and certificates for requests to providers, gateways, channels and the dead man's switch."""

    proxy: types.Secret = key(
        "environment",
        "`environment` (HTTPS_PROXY and HTTP_PROXY), `none`, or the URL of a proxy. It does not apply to the hosts in NO_PROXY.",
    )
    ca_file: OrUnset[types.Path] = optional_key("PEM file of further trusted certificate authorities.", "none")


class Executor(ConfigPart):
    """Where runs are executed."""

    kind: ExecutorKind = key(
        "local",
        "With `local`, the daemon executes all runs. With `procrastinate`, [workers](scaling.md#workers-on-other-machines)"
        " do. For `procrastinate`, install `heartbeatd[cluster]`.",
    )
    dsn: OrUnset[types.Secret] = optional_key(
        "PostgreSQL database of the queue: `postgresql://USER:PASSWORD@HOST/DATABASE`.", "none"
    )
    queue: types.Name = key(
        DEFAULT_CLUSTER,
        "Prefix of all queue names. It must be the same for the daemon and its workers, and differ between installations in one"
        " database.",
    )
    lease: types.PositiveDuration = key(
        "1m",
        "A worker that cannot renew its lease for three quarters of this time stops its runs. After the whole time, other"
        " workers may repeat the runs.",
    )


class Telemetry(ConfigPart):
    """What the daemon sends about its runs to other programs."""

    traces: bool = key(
        False, "Sends OpenTelemetry [traces](traces.md), configured by OTEL_* variables. Traces need `heartbeatd[otel]`."
    )


class Calendar(ConfigPart):
    """Days for `skip_on` and `only_on`."""

    dates: types.Dates = key(
        (), "Dates such as `2026-12-25`, and ranges such as `2026-12-24..2026-12-31` with both ends.", example=["2026-12-25"]
    )
    days: types.Days = key((), "Days of the week.", unset="none")

    @model_validator(mode="after")
    def _names_a_day(self) -> Self:
        if not (self.dates or self.days):
            raise ValueError("no day is named; write dates: [2026-12-25], or days: sat-sun")
        return self


class History(ConfigPart):
    keep: types.PositiveDuration = key("30d", "How long run records are kept.")
    runs: Annotated[int, Field(ge=1, le=10_000_000)] = key(1000, "Number of run records kept for each agent or job.")


class Defaults(Agent):
    """What each agent inherits, and each job."""

    cron: Job = key(Job(), "For every job.")


class Config(ConfigPart):
    timezone: types.Zone = key("UTC", "Time zone of active hours and schedules without their own.")
    host: OrUnset[Annotated[str, types.text(types.parse_name, "name")]] = optional_key(
        "Name of this machine in messages. Set it in a container.", "the host name, up to its first dot", file_only=True
    )
    state: Annotated[str, types.text(types.parse_state, "path or address")] = key(
        "state/heartbeatd.db",
        "The database file. `postgresql://USER@HOST/DATABASE` keeps the data on a PostgreSQL server ([several"
        " machines](scaling.md)).",
        file_only=True,
    )
    env_file: OrUnset[types.Path] = optional_key(
        "File with mode 0600 of `NAME=value` lines, for `${NAME}` and the token of Claude Code.", "none", file_only=True
    )
    reload: ReloadMode = key(
        "watch",
        "With `watch`, a changed file is applied. With `manual`, it waits for `heartbeatd reload`, SIGHUP or `POST /-/reload`.",
        file_only=True,
    )
    server: Server = key(Server(), "The HTTP interface.", file_only=True)
    network: Network = key(Network(), "Proxy and certificates for outgoing requests.", file_only=True)
    executor: Executor = key(Executor(), "Which processes execute the runs.", file_only=True)
    telemetry: Telemetry = key(Telemetry(), "Traces of the runs.", file_only=True)
    limits: Limits = key(Limits(), "Limits for all agents and jobs.")
    providers: dict[types.Name, Provider] = key({}, "Model providers.", unset="`anthropic`, without a key", file_only=True)
    prices: dict[str, Price] = key(
        {}, "Prices of models, by MODEL or PROVIDER/MODEL. Other models have [listed prices](money.md#prices)."
    )
    channels: dict[types.ChannelName, Annotated[Channel, OrShort({"type": "string"})]] = key(
        {}, "Channels for messages. `log` is built in.", file_only=True
    )
    deadman: Annotated[Deadman | None, MapOr("none")] = key(
        None, "A URL to ping, so that a service elsewhere can report when the pings stop.", file_only=True
    )
    calendars: dict[types.CalendarName, Calendar] = key({}, "Named sets of days, for `skip_on` and `only_on`.")
    history: History = key(History(), "How long run records are kept.")
    agents: dict[types.Name, Agent] = key({}, "The agents.")
    cron: dict[types.Name, Job] = key({}, "The jobs.")
    runners: dict[types.Name, Runner] = key({}, "[Runners](runners.md) by name, for `fallbacks`.", file_only=True)
    defaults: Defaults = key(
        Defaults(),
        "Values that agents and jobs inherit. Maps are merged key by key. All other values are replaced, and so are"
        " `active_hours`, `hours` and `fallbacks`.",
    )


@cache
def config_schema() -> Form:
    """JSON Schema of config.yaml as it is written, for an editor."""
    made = Config.model_json_schema()
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = TITLE
    made["patternProperties"] = {"^x-": {}}
    return made


def keys_on_path(steps: Iterable[str], model: str = "") -> Iterator[Form]:
    """The JSON Schema of each known key on the way to a value, from the top of the config or from a model. Names of entries are
    left out: an agent may have the name of a key.
    """
    part = definition(model)
    for step in steps:
        form = part.get("properties", {}).get(step)
        if form is not None:
            yield form
        elif not (form := part.get("additionalProperties")):
            return
        part = model_of_form(form) or form


def definition(model: str) -> Form:
    """The JSON Schema of a model."""
    found: Form = config_schema()["$defs"].get(model, config_schema())
    return found


def models_of_form(form: Form) -> list[str]:
    """The models of the maps that a key may contain; none for a plain value."""
    named = form.get("additionalProperties", {})
    parts = (form, form.get("items", {}), *form.get("anyOf", ()), *form.get("oneOf", ()), named)
    parts += (*named.get("anyOf", ()), *named.get("oneOf", ()))
    return [part["$ref"].rpartition("/")[2] for part in parts if "$ref" in part]


def model_of_form(form: Form) -> Form | None:
    """The JSON Schema of the model of a key whose value is a map of one kind; None for another value."""
    found = models_of_form({key: form[key] for key in ("$ref", "anyOf") if key in form})
    return definition(found[0]) if found else None


def describe_form(form: Form) -> str:
    """What is written for a key, as the reference says it; empty for maps."""
    if "x-form" in form:
        return str(form["x-form"])
    if "const" in form or "enum" in form:
        return ", ".join(f"`{word}`" for word in form.get("enum") or [form["const"]])
    if form.get("type") == "boolean":
        return "boolean"
    if form.get("type") == "integer":
        noun = "even number" if form.get("multipleOf") == 2 else "number"
        return f"{noun}, {form['minimum']:,} to {form['maximum']:,}"
    return "list of maps" if form.get("type") == "array" else ""


def kinds_of_model(model: Form) -> list[str]:
    """The words that `kind` may be in a map; none where it has no such key."""
    kind = model["properties"].get("kind", {})
    found: list[str] = kind.get("enum") or [kind["const"]] if kind.keys() & {"enum", "const"} else []
    return found


def models_at(steps: Iterable[str | int], model: str = "") -> list[Form]:
    """The JSON Schemas of the models that the map at `steps` may have, from the top of the config or from a model."""
    found, is_name = [definition(model)], False
    for step in steps:
        form = None if is_name else found[0]["properties"].get(step)
        is_name = form is not None and "additionalProperties" in form  # an agent may have the name of a key
        if form is not None:
            found = [definition(each) for each in models_of_form(form)] or found
        else:  # a name, an index or the tag of a union
            found = [each for each in found if step in kinds_of_model(each)] or found
    return found


@cache
def text_keys() -> Mapping[str, str]:
    """The keys whose maps may be written as a text, each with the key in its map that has this text then."""
    forms = [(key, form) for part in config_schema()["$defs"].values() for key, form in part["properties"].items()]
    models = [(key, definition(each)) for key, form in forms for each in models_of_form(form)]
    return {key: model["x-text-key"] for key, model in models if "x-text-key" in model}


@cache
def present_names(model: str) -> Mapping[str, str]:
    """The present names of the keys of a model, by their earlier names."""
    properties = definition(model)["properties"]
    return {earlier: name for name, form in properties.items() for earlier in form.get("x-renamed-from", ())}


@cache
def keys_with_form(form: str) -> frozenset[str]:
    """The names of all keys whose values have this form, as the reference says it."""
    parts = (config_schema(), *config_schema()["$defs"].values())
    return frozenset(name for part in parts for name, each in part["properties"].items() if each.get("x-form") == form)
