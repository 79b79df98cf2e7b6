"""Defines every key of config.yaml: its type, its default and its description.

A model requires no key that `defaults` could supply. Keys that are still missing are found when the agent or job is built.
The JSON Schema and docs/reference.md are generated from these models. A new key of a heartbeat also needs a field in
heartbeat/spec.py, a line in scheduler/config/settings/agents.py, the code that uses it, and for the form of the status page
SECTIONS in scheduler/web/page/agent_config.py and OWN_HEARTBEAT_KEYS in scheduler/web/config_editing.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, Self, get_args, get_origin
from zoneinfo import ZoneInfo

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from cron.job import Misfire, WakeMode, WakeOn
from heartbeat.calendars import DateRange
from heartbeat.spec import AnswerForm, DedupNormalize, OkMatch, OnMissing, ProviderKind
from scheduler.channels import registry
from scheduler.config.keys import value_parsers
from scheduler.config.keys.value_types import (
    DURATION_PATTERN,
    PRICE,
    SECRET,
    TOKENS,
    TOKENS_A_DAY,
    USD_A_DAY,
    USD_A_RUN,
    AnyText,
    Boolean,
    Calendars,
    ClosingTime,
    Days,
    Duration,
    DurationOrNone,
    DurationUpToADay,
    Environment,
    EveryOrNone,
    Headers,
    NameList,
    NameListOrNone,
    OpeningTime,
    PathOrNone,
    PositiveDuration,
    PositiveDurationOrNone,
    SecretText,
    Stagger,
    StateText,
    Targets,
    TargetsOrNone,
    Text,
    TextOrNone,
    ValueType,
    Zone,
    ZoneOrNone,
    choice_type,
    integer_type,
    list_type,
    optional_key,
    required_key,
    text_type,
)
from scheduler.model.settings import ExecutorKind, OnUncertain, PageAccess, Permission, ReloadMode
from scheduler.model.state_address import MAX_SHARDS


class ConfigPart(BaseModel):
    """A map of the config. An empty value is a map without keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_a_map(cls, written: Any) -> Any:
        return {} if written is None else written


class Window(ConfigPart):
    start: OpeningTime = required_key("Start of the window, local time.")
    end: ClosingTime = required_key(
        "End of the window. An end before `start` is on the next day. `24:00` and `00:00` mean the midnight after `start`."
    )
    timezone: ZoneOrNone = optional_key(
        None, "The time zone of `start` and `end`.", default_in_words="the zone of the heartbeat, else the top-level zone"
    )
    days: Days = optional_key(frozenset(range(7)), "The days on which the window starts.", written_default="mon-sun")


class McpServer(ConfigPart):
    """A server of the Model Context Protocol (MCP), at a URL or as a program."""

    name: Annotated[str, text_type(value_parsers.parse_tool_server, "1 to 32 letters, digits, `_`, `-`")] = required_key(
        "The name of the server. The model sees the tool `free` of the server `disk` as `disk__free`."
    )
    allow: Annotated[tuple[str, ...], list_type(value_parsers.parse_tool_names, "tool or list")] = required_key(
        "The only tools of the server that the model may use."
    )
    url: Annotated[str | None, SECRET] = optional_key(
        None, "The URL of a server with streamable HTTP. Private addresses are allowed.", default_in_words="none"
    )
    headers: Headers = optional_key((), "Headers of the requests to `url`.", written_default={})
    command: Annotated[
        tuple[str, ...],
        ValueType(value_parsers.parse_argv, {"type": "array", "items": {"type": "string"}, "minItems": 1}, "list of strings"),
    ] = optional_key(
        (),
        "A program with its arguments. The program is an MCP server on stdin and stdout. It is started for each attempt, in the"
        " workspace. No shell is used.",
        default_in_words="none",
    )
    env: Environment = optional_key(
        (), "Environment variables for `command`, in addition to PATH, HOME and LANG.", written_default={}
    )
    read_only: Boolean = optional_key(
        True, "With `true`, each tool in `allow` must be declared as read-only by the server. Otherwise the run fails."
    )
    timeout: PositiveDuration = optional_key(
        timedelta(seconds=30), "How long one call of a tool, or connecting to the server, may take.", written_default="30s"
    )
    max_result: Annotated[int, integer_type(1000, 65536)] = optional_key(
        16384, "How many bytes of the result of a call the model gets. The rest is cut."
    )


class Tools(ConfigPart):
    """The tools that a model may use."""

    mcp: list[McpServer] = Field(
        default=[],
        description="The MCP servers with the tools, at most 20.",
        json_schema_extra=lambda schema: _mcp_schema(schema),
    )
    max_turns: Annotated[int, integer_type(2, 100)] = optional_key(
        10, "How many requests to the model one attempt may take. In the last request, the model must answer."
    )


class ModelRunner(ConfigPart):
    """Calls a model directly: in one turn, or with tools in several."""

    kind: Literal["anthropic", "openai"] = required_key("Calls a model directly: in one turn, or with `tools` in several.")
    provider: TextOrNone = optional_key(
        None, "The provider of the model.", default_in_words="the provider with the same name as `kind`"
    )
    tools: Annotated[Tools | None, BeforeValidator(value_parsers.parse_none_or_map)] = Field(
        default=None,
        description="Tools that the model may use before it answers. Without them, the model is called once per attempt.",
        json_schema_extra=lambda schema: _or_none_schema(schema),
    )


class CommandRunner(ConfigPart):
    """Runs a program: the prompt on stdin, the answer on stdout."""

    kind: Literal["command"] = required_key(
        "Runs a program. It gets the prompt on stdin and prints the answer on stdout, as text or as a JSON report."
    )
    argv: Annotated[
        tuple[str, ...],
        ValueType(value_parsers.parse_argv, {"type": "array", "items": {"type": "string"}, "minItems": 1}, "list of strings"),
    ] = required_key("The program and its arguments. No shell is used.")
    env: Environment = optional_key(
        (), "Environment variables for the program, in addition to PATH, HOME and LANG.", written_default={}
    )


class HttpRunner(ConfigPart):
    """Posts the run to a URL; the answer is in the response or comes later."""

    kind: Literal["http"] = required_key(
        "Sends a POST request with the prompt as JSON. A 200 response contains the answer. After a 202 response, the agent"
        " sends the answer later."
    )
    url: SecretText = required_key("The URL (http or https). Private addresses are allowed.")
    headers: Headers = optional_key((), "Request headers.", written_default={})


class PythonRunner(ConfigPart):
    """Calls a Python function."""

    kind: Literal["python"] = required_key("Calls a Python function. Its return value is the answer.")
    call: Annotated[str, text_type(value_parsers.parse_callable, "`package.module:function`")] = required_key(
        "The function. Its module is looked up in the workspace first."
    )
    in_process: Boolean = optional_key(
        False,
        "With `true`, the function runs inside the daemon. It starts faster, but cannot be stopped at its timeout.",
    )


Runner = ModelRunner | CommandRunner | HttpRunner | PythonRunner


class Decide(ConfigPart):
    """A model that decides whether there is something to do before the agent itself is called."""

    model: Text = required_key("The model that decides. A small model is enough.")
    provider: TextOrNone = optional_key(
        None, "The provider of `model`.", default_in_words="the provider of the heartbeat, else of the runner, else `anthropic`"
    )


class Unchanged(ConfigPart):
    """What to do if the output of a precheck has not changed."""

    skip: Boolean = optional_key(True, "Whether the run is skipped.")
    max_age: PositiveDurationOrNone = optional_key(
        None,
        "How long runs may be skipped in a row. If the last answer is older, the agent is called although the output is the"
        " same.",
        default_in_words="no limit",
    )


class Precheck(ConfigPart):
    """A command that checks whether there is anything to do before the agent is called."""

    command: Text = required_key("A shell command, run in the workspace. Its output is put into the prompt.")
    unchanged: Annotated[Unchanged, BeforeValidator(value_parsers.parse_unchanged)] = Field(
        default=Unchanged(skip=False),
        description="What to do if the output has not changed since the agent's last valid answer. In a"
        " map, `max_age` can also be set.",
        json_schema_extra=lambda schema: _unchanged_schema(schema),
    )
    confirm: Annotated[int, integer_type(0, 3)] = optional_key(
        1,
        "The maximum number of further calls after an incomplete first answer to a changed output (with `unchanged: skip`). An"
        " answer is incomplete if it reports nothing, or has fewer new findings than the output has new lines. After a"
        " truncated answer, the maximum is 3.",
    )
    on_error: Annotated[Literal["skip", "run"], choice_type(Literal["skip", "run"])] = optional_key(
        "run", "What to do if the command fails."
    )
    timeout: PositiveDurationOrNone = optional_key(
        None, "The timeout of the command.", default_in_words="half the timeout of the attempt, at most 30s"
    )


class DayBudget(ConfigPart):
    """The limits of one day."""

    usd_per_day: Annotated[float | None, USD_A_DAY] = optional_key(
        None, "The maximum cost. Every model that is called needs an entry in `prices`.", default_in_words="no limit"
    )
    tokens_per_day: Annotated[int | None, TOKENS_A_DAY] = optional_key(
        None, "The maximum number of tokens of all kinds (input, output and cache).", default_in_words="no limit"
    )
    runs_per_day: Annotated[int | None, integer_type(1, 1_000_000)] = optional_key(
        None, "The maximum number of runs that call an agent. Retries are not counted.", default_in_words="no limit"
    )


class Budget(DayBudget):
    """The limits of an entry in one day of its time zone."""

    usd_per_run: Annotated[float | None, USD_A_RUN] = optional_key(
        None,
        "The maximum cost of one attempt. Each retry is another attempt. A prompt that could cost more is not sent to a model."
        " For other runners, write your own estimate of the cost of one attempt.",
        default_in_words="computed from the token limits",
    )
    tokens_per_run: Annotated[int | None, TOKENS_A_DAY] = optional_key(
        None,
        "The maximum number of tokens of all kinds in one attempt. A longer prompt is not sent to a model.",
        default_in_words="computed from the token limits",
    )


class HeartbeatMisfire(ConfigPart):
    grace: DurationOrNone = optional_key(
        None,
        "How late a scheduled run may start. Time spent waiting for `limits.concurrency` does not count.",
        default_in_words="half the interval (or half the shortest interval of the schedule), at most 10m",
    )


class Dedup(ConfigPart):
    window: Duration = optional_key(
        timedelta(hours=24), "How long the same alert is suppressed after it was sent.", written_default="24h"
    )
    normalize: Annotated[DedupNormalize, choice_type(DedupNormalize)] = optional_key(
        "text", "With `numbers`, alerts that differ only in numbers count as the same alert."
    )


class Conditions(ConfigPart):
    """The rules for the conditions that an agent reports under a key."""

    remind: PositiveDuration = optional_key(
        timedelta(hours=24), "The interval of reminders while a condition is open.", written_default="24h"
    )
    remind_critical: PositiveDurationOrNone = optional_key(
        None, "The interval of reminders while a critical condition is open.", default_in_words="`remind`, at most 6h"
    )
    clear_after: Annotated[int, integer_type(1, 100)] = optional_key(
        2, "A condition is closed when this many answers in a row do not mention it."
    )


class OnFailure(ConfigPart):
    """When and where failures and recovery are reported."""

    after: Annotated[int, integer_type(1, 1000)] = optional_key(
        2, "The number of failures in a row after which a notification is sent."
    )
    remind: PositiveDuration = optional_key(
        timedelta(hours=6), "The interval of reminders while the failures continue.", written_default="6h"
    )
    deliver: TargetsOrNone = optional_key(
        None,
        "The channels of the notifications.",
        default_in_words="`deliver` of the agent or job; if that is `none`, the only declared channel, else `log`",
    )


class JobOnFailure(OnFailure):
    """When and where failures and recovery are reported."""

    after: Annotated[int, integer_type(1, 1000)] = optional_key(
        1, "The number of failures in a row after which a notification is sent."
    )


class Heartbeat(ConfigPart):
    enabled: Boolean = optional_key(True, "Whether the heartbeat runs.")
    interval: Annotated[
        timedelta | Literal["missing"] | None,
        ValueType(value_parsers.parse_interval, {"type": "string", "pattern": f"^none$|{DURATION_PATTERN}"}, "duration, `none`"),
    ] = optional_key(
        "missing",
        "The time between runs. With `none`, the agent runs only when it is woken. `0m` disables the heartbeat.",
        default_in_words="required without `schedule`",
    )
    schedule: TextOrNone = optional_key(
        None,
        "The times of the runs, as a cron expression in the heartbeat's time zone. Times outside the active hours are skipped.",
        default_in_words="required without `interval`",
    )
    backoff_on_failure: Boolean = optional_key(
        False, "With `true`, each failed run doubles the interval, up to 8 times its length. The first successful run resets it."
    )
    stagger: Stagger = optional_key(
        0.1,
        "The maximum delay of the runs. The delay is fixed for each agent and computed from its name. With `schedule`, the"
        " default is 0.",
        written_default="10%",
    )
    active_hours: Annotated[list[Window], BeforeValidator(value_parsers.parse_windows)] = Field(
        default=[],
        description="When the heartbeat may run: `always`, a window such as `08:00-22:00`, a map, or a list of windows and maps.",
        json_schema_extra=lambda schema: _active_hours_schema(schema),
    )
    timezone: ZoneOrNone = optional_key(
        None,
        "The time zone of the schedule, of the active hours, and of the time in the prompt.",
        default_in_words="the time zone of the active hours if all of them have the same zone, else the top-level zone",
    )
    skip_on: Calendars = optional_key((), "The heartbeat does not run on the days of these calendars.", written_default="none")
    only_on: Calendars = optional_key((), "The heartbeat runs only on the days of these calendars.", written_default="none")
    misfire: HeartbeatMisfire = optional_key(
        HeartbeatMisfire(), "What happens to a scheduled run that could not start in time.", written_default={}
    )
    model: TextOrNone = optional_key(None, "The model for heartbeat runs.", default_in_words="the model of the agent")
    prompt: TextOrNone = optional_key(None, "Instructions that replace the built-in ones.", default_in_words="built in")
    checklist: Annotated[str, text_type(value_parsers.parse_checklist, "file in the workspace, or text with a line break")] = (
        optional_key("HEARTBEAT.md", "The checklist of the agent.")
    )
    on_missing: Annotated[OnMissing, choice_type(OnMissing)] = optional_key("skip", "What to do if there is no checklist.")
    on_empty: Annotated[Literal["skip", "run"], choice_type(Literal["skip", "run"])] = optional_key(
        "skip", "What to do if the checklist is empty."
    )
    memory: Annotated[tuple[str, ...], list_type(value_parsers.parse_workspace_files, "file in the workspace, or list")] = (
        optional_key(
            (),
            "Files that are put into the prompt if there is no checklist or it is empty (with `on_missing: run`, `on_empty:"
            " run`).",
            written_default=[],
        )
    )
    precheck: Annotated[Precheck | None, BeforeValidator(value_parsers.parse_precheck)] = Field(
        default=None,
        description="A command that checks whether there is anything to do, before the agent is called.",
        json_schema_extra=lambda schema: _or_none_schema(schema, {"type": "string"}),
    )
    provider: TextOrNone = optional_key(
        None, "The provider of `model`. It may be of another kind than the runner.", default_in_words="the provider of the runner"
    )
    max_output_tokens: Annotated[int, TOKENS] = optional_key(
        2000, "The maximum length of an answer from a model.", written_default="2k"
    )
    max_input_tokens: Annotated[int, TOKENS] = optional_key(
        50_000,
        "The maximum length of the prompt, estimated: three ASCII characters, or one other character, count as one token.",
        written_default="50k",
    )
    decide: Annotated[Decide | None, BeforeValidator(value_parsers.parse_none_or_map)] = Field(
        default=None,
        description="A model that decides whether there is anything to do, before the agent is called. It gets the checklist"
        " and the metadata of the run.",
        json_schema_extra=lambda schema: _or_none_schema(schema),
    )
    light_context: Boolean = optional_key(False, "With `true`, the `context` files are not put into the prompt.")
    isolated_session: Boolean = optional_key(
        True, "With `true`, each run starts without history. With `false`, earlier messages of the agent are put into the prompt."
    )
    session_keep: Annotated[
        int, ValueType(value_parsers.even_integer_between(2, 100), {"type": "integer", "multipleOf": 2}, "even number, 2 to 100")
    ] = optional_key(8, "The number of earlier messages in the prompt if `isolated_session` is false.")
    retries: Annotated[int, integer_type(0, 10)] = optional_key(2, "The number of further attempts after a failed attempt.")
    timeout: PositiveDuration = optional_key(timedelta(minutes=5), "The timeout of one attempt.", written_default="5m")
    async_timeout: DurationUpToADay = optional_key(
        timedelta(hours=1),
        "How long to wait for the result of an agent that answers later (status 202). If no result arrives in this time, the"
        " run fails.",
        written_default="1h",
    )
    answer: Annotated[
        AnswerForm | None,
        ValueType(value_parsers.parse_answer_form, {"enum": [*get_args(AnswerForm)]}, "`structured` \\| `text`"),
    ] = optional_key(
        None,
        "The form of the answer. With `structured`, a model must report its findings by a tool with a schema, and any other"
        " runner is asked for JSON. With `text`, a line of the answer may begin with the key of a finding: `[disk:/var]`.",
        default_in_words="`structured` if the runner calls a model, else `text`",
    )
    ok_match: Annotated[OkMatch, choice_type(OkMatch)] = optional_key("edges", "Where in the answer HEARTBEAT_OK is recognised.")
    ack_max_chars: Annotated[int, integer_type(0, 10_000)] = optional_key(
        5, "An answer with HEARTBEAT_OK may contain up to this many other characters and is still suppressed."
    )
    strip_reasoning: Boolean = optional_key(
        True, "Removes a leading `<think>...</think>` from the answer before it is classified and delivered."
    )
    show_ok: Boolean = optional_key(False, "With `true`, answers that report no problem are delivered too.")
    show_alerts: Boolean = optional_key(True, "With `false`, alerts are not delivered.")
    show_resolved: Boolean = optional_key(True, "With `false`, the end of a condition is not reported.")
    conditions: Conditions = optional_key(
        Conditions(), "When an open condition is reported again, and when it is closed.", written_default={}
    )
    dedup: Dedup = optional_key(
        Dedup(), "When a repeated alert is suppressed. This applies to texts without keys of findings.", written_default={}
    )
    deliver: TargetsOrNone = optional_key(
        None,
        "The channels for messages of the agent. `last` is the chat in which a user last wrote to the agent. It needs a"
        " channel with `{target}` in its URL.",
        default_in_words="the only declared channel (`last`, if its URL contains `{target}`), else `log`",
    )
    on_failure: Annotated[OnFailure | None, BeforeValidator(value_parsers.parse_none_or_map)] = Field(
        default=OnFailure(),
        description="When and where failures and recovery are reported.",
        json_schema_extra=lambda schema: _map_or_none_schema(schema),
    )
    budget: Annotated[Budget | None, BeforeValidator(value_parsers.parse_budget)] = Field(
        default=Budget(),
        description="Daily limits for the runs of the agent. `unlimited` means no limit, and no warning about a missing budget.",
        json_schema_extra=lambda schema: _or_unlimited_schema(schema),
    )


class Agent(ConfigPart):
    workspace: PathOrNone = optional_key(
        None,
        "The folder of the agent. It contains the checklist and all other files that are read for the agent.",
        default_in_words="`agents/NAME`",
    )
    runner: Annotated[Annotated[Runner, Field(discriminator="kind")], BeforeValidator(value_parsers.parse_runner)] = optional_key(
        ModelRunner(kind="anthropic"), "How the agent is called.", written_default={"kind": "anthropic"}
    )
    model: TextOrNone = optional_key(
        None, "The model of the agent.", default_in_words="`claude-haiku-5-5` for Anthropic, else chosen by the runner"
    )
    context: Annotated[tuple[str, ...], list_type(value_parsers.parse_workspace_files, "file in the workspace, or list")] = (
        optional_key((), "Files that are put into the prompt.", written_default=[])
    )
    heartbeat: Heartbeat = optional_key(Heartbeat(), "The heartbeat of the agent.", written_default={})


class JobMisfire(ConfigPart):
    policy: Annotated[Misfire, choice_type(Misfire)] = optional_key(
        "latest", "`latest` runs the latest of the missed runs. `skip` runs none of them."
    )
    grace: DurationOrNone = optional_key(
        None,
        "How late a scheduled run may start. Time spent waiting for `limits.concurrency` does not count.",
        default_in_words="half the period, at most 1h",
    )


JobOkMatch = Literal["none", "edges", "anywhere", "exact"]


class Job(ConfigPart):
    enabled: Boolean = optional_key(True, "Whether the job runs.")
    schedule: TextOrNone = optional_key(
        None, 'A cron expression, a macro like `@daily`, or `"@reboot"`.', default_in_words="required without `every` and `at`"
    )
    every: EveryOrNone = optional_key(
        None, "The fixed interval between runs.", default_in_words="required without `schedule` and `at`"
    )
    at: TextOrNone = optional_key(
        None,
        "The time of a single run: `2026-12-24T18:00` in local time, or a time with an offset or `Z`.",
        default_in_words="required without `schedule` and `every`",
    )
    timezone: ZoneOrNone = optional_key(
        None, "The time zone of `schedule`, `at` and calendars.", default_in_words="the top-level zone"
    )
    skip_on: Calendars = optional_key((), "The job does not run on the days of these calendars.", written_default="none")
    only_on: Calendars = optional_key((), "The job runs only on the days of these calendars.", written_default="none")
    command: Annotated[str | tuple[str, ...] | None, list_type(value_parsers.parse_command, "shell command, or list")] = (
        optional_key(None, "The command to run.", default_in_words="none, if the job has a `prompt` or only wakes agents")
    )
    prompt: TextOrNone = optional_key(
        None, "Instructions for `agent`, in place of a command. The run has no history, and uses the agent's runner and lock.",
        default_in_words="none",
    )  # fmt: skip
    agent: TextOrNone = optional_key(None, "The agent that gets the prompt.", default_in_words="required with `prompt`")
    model: TextOrNone = optional_key(None, "The model for the prompt.", default_in_words="the model of the agent")
    env: Environment = optional_key(
        (), "Environment variables for the command, in addition to PATH, HOME and LANG.", written_default={}
    )
    workdir: PathOrNone = optional_key(None, "The working directory of the command.", default_in_words="the config's folder")
    stdin: AnyText = optional_key("", "Text for the command's stdin.")
    shell: Text = optional_key("/bin/sh", "The shell that runs a `command` written as a string.")
    timeout: PositiveDuration = optional_key(timedelta(minutes=10), "The timeout of one attempt.", written_default="10m")
    async_timeout: DurationUpToADay = optional_key(
        timedelta(hours=1),
        "How long to wait for the result of an agent that answers later. If no result arrives in this time, the run fails.",
        written_default="1h",
    )
    strip_reasoning: Boolean = optional_key(
        True, "Removes a leading `<think>...</think>` from the answer before it is delivered."
    )
    ok_match: Annotated[JobOkMatch, choice_type(JobOkMatch)] = optional_key(
        "none",
        "Where in the answer to the prompt HEARTBEAT_OK is recognised. Such an answer is not delivered. With `none`, every answer"
        " is delivered.",
    )
    ack_max_chars: Annotated[int, integer_type(0, 10_000)] = optional_key(
        5, "An answer with HEARTBEAT_OK may contain up to this many other characters and is still not delivered."
    )
    precheck: Annotated[Precheck | None, BeforeValidator(value_parsers.parse_precheck)] = Field(
        default=None,
        description="A command that checks whether there is anything to do, before the agent of the prompt is called.",
        json_schema_extra=lambda schema: _or_none_schema(schema, {"type": "string"}),
    )
    retries: Annotated[int, integer_type(0, 10)] = optional_key(
        0, "The number of further attempts after a failed attempt. Set this only for a command that is safe to repeat."
    )
    stagger: Stagger = optional_key(
        timedelta(0),
        "The maximum delay of the runs. The delay is fixed for each job and computed from its name.",
        written_default=0,
    )
    misfire: JobMisfire = optional_key(
        JobMisfire(), "What happens to a scheduled run that could not start in time.", written_default={}
    )
    rerun_after_crash: Boolean = optional_key(
        False, "With `true`, the command runs again if the daemon stopped or crashed during the run."
    )
    deliver: Targets = optional_key((), "The channels for the output.", written_default="none")
    on_failure: Annotated[JobOnFailure | None, BeforeValidator(value_parsers.parse_none_or_map)] = Field(
        default=JobOnFailure(),
        description="When and where failures and recovery are reported.",
        json_schema_extra=lambda schema: _map_or_none_schema(schema),
    )
    budget: Annotated[Budget | None, BeforeValidator(value_parsers.parse_budget)] = Field(
        default=Budget(),
        description="Daily limits for the runs of a job with a `prompt`. `unlimited` means no limit, and no warning about a"
        " missing budget.",
        json_schema_extra=lambda schema: _or_unlimited_schema(schema),
    )
    wake_heartbeat: Annotated[tuple[str, ...], list_type(value_parsers.parse_names, "agent or list")] = optional_key(
        (), "The agents that are woken when the job ends.", written_default=[]
    )
    wake_on: Annotated[WakeOn, choice_type(WakeOn)] = optional_key("always", "The outcomes after which the agents are woken.")
    wake_mode: Annotated[WakeMode, choice_type(WakeMode)] = optional_key(
        "now", "`now` starts a run. `next` waits for the agent's next scheduled run."
    )
    wake_text: TextOrNone = optional_key(
        None,
        "Text that is put into the agent's prompt, before the outcome of the job and the end of its output.",
        default_in_words="none",
    )


class Token(ConfigPart):
    value: SecretText = required_key("The token, written as `${NAME}` or `${file:PATH}`. It has at least 16 bytes.")
    may: Annotated[
        tuple[Permission, ...], list_type(value_parsers.parse_token_rights, "list of `read`, `wake`, `operate`, `edit`")
    ] = required_key("The permissions of the token.")
    agents: NameListOrNone = optional_key(None, "The only agents that the token may access.", default_in_words="all")


class Server(ConfigPart):
    listen: Text = optional_key(
        "127.0.0.1:7857",
        "The address and the port. An address that other machines can reach needs tokens. Port 0 means any free port.",
    )
    hosts: NameList = optional_key((), "Further host names that are allowed in the Host header of a request.", written_default=[])
    tokens: dict[str, Token] = optional_key(
        {}, "Tokens for the HTTP API, by name.", default_in_words="one token with all permissions is generated"
    )
    public_url: Annotated[str | None, text_type(value_parsers.parse_nonempty_text, "URL")] = optional_key(
        None,
        "The URL at which users reach the HTTP interface, for example through a proxy. It is needed for `links` of channels."
        " Shortened messages link to it.",
        default_in_words="none",
    )
    page: Annotated[PageAccess, choice_type(PageAccess)] = optional_key(
        "login",
        "The status page at `/`: with `login`, it asks for a token. With `open`, every user of this machine can use it without a"
        " token, including its buttons and forms. `open` needs a `listen` address that only this machine can reach.",
    )
    metrics_entries: Annotated[int, integer_type(0, 1_000_000)] = optional_key(
        1000, "The maximum number of agents and jobs with metric series of their own."
    )


class Limits(ConfigPart):
    concurrency: Annotated[int, integer_type(1, 1000)] = optional_key(8, "The maximum number of runs at the same time.")
    min_interval: Duration = optional_key(
        timedelta(minutes=5),
        "The shortest interval allowed for agents and jobs that call a model. `0s` means no limit.",
        written_default="5m",
    )
    wake_gap: Duration = optional_key(
        timedelta(seconds=30),
        "The shortest time between the end of a run that a wake started and the next run. A wake from a job also waits at"
        " most this long for other jobs that wake the same agent.",
        written_default="30s",
    )
    wake_flood: Annotated[tuple[int, timedelta], text_type(value_parsers.parse_rate, "rate", pattern=r"^\d+ per \S+$")] = (
        optional_key(
            (5, timedelta(minutes=10)),
            "The maximum rate of runs of one agent that are started by wakes from programs.",
            written_default="5 per 10m",
        )
    )
    wake_keep: PositiveDuration = optional_key(
        timedelta(hours=24), "How long a wake waits for a run. After this time it expires.", written_default="24h"
    )
    shutdown_grace: Duration = optional_key(
        timedelta(seconds=30), "How long runs in progress may continue when the daemon stops.", written_default="30s"
    )
    budget: Annotated[DayBudget | None, BeforeValidator(value_parsers.parse_budget)] = Field(
        default=None,
        description="Daily limits for the sum of all runs that call an agent. Days are counted in the top-level time zone.",
        json_schema_extra=lambda schema: _or_unlimited_schema(schema),
    )


class Provider(ConfigPart):
    """A provider of models."""

    kind: Annotated[ProviderKind | None, choice_type(ProviderKind)] = optional_key(
        None, "The kind of API.", default_in_words="the name of the provider, if it is `anthropic` or `openai`"
    )
    api_key: Annotated[str | None, SECRET] = optional_key(
        None, "The API key, written as `${NAME}` or `${file:PATH}`.", default_in_words="none"
    )
    base_url: Annotated[str | None, SECRET] = optional_key(
        None, "The base URL of the API (http or https).", default_in_words="the URL of Anthropic or OpenAI"
    )


class Price(ConfigPart):
    input: Annotated[float, PRICE] = required_key("The price of input tokens.")
    output: Annotated[float, PRICE] = required_key("The price of output tokens.")
    cache_read: Annotated[float | None, PRICE] = optional_key(
        None, "The price of tokens read from the cache.", default_in_words="the same as `input`"
    )
    cache_write: Annotated[float | None, PRICE] = optional_key(
        None, "The price of tokens written to the cache.", default_in_words="1.25 times `input`"
    )


_DETECTING_REPEATS = " or ".join(f"`{kind.name}`" for kind in registry.KINDS if kind.detects_repeats)

_NAMING_SENDER = " or ".join(f"`{kind.name}`" for kind in registry.KINDS if kind.names_sender)
_WITH_BUTTONS = " or ".join(f"`{kind.name}`" for kind in registry.KINDS if kind.has_buttons)
_WITH_LINKS = " or ".join(f"`{kind.name}`" for kind in registry.KINDS if kind.has_links)
_SIGNED = " or ".join(f"`{kind.name}`" for kind in registry.KINDS if kind.is_signed)


class Channel(ConfigPart):
    """A channel for messages. A text in place of the map is its URL."""

    kind: Annotated[str | None, choice_type(tuple(kind.name for kind in registry.KINDS))] = optional_key(
        None,
        "The kind of channel.",
        default_in_words=", ".join(
            [f"`{kind.name}` for `{kind.schemes[0]}://`" for kind in registry.kinds_with_own_scheme()]
            + [f"`{registry.FALLBACK.name}` for all others"]
        ),
    )
    url: Annotated[str | None, SECRET] = optional_key(
        None,
        ", ".join(f"`{kind.url_form}`" for kind in registry.kinds_with_own_scheme())
        + ", an http or https URL for `webhook`, or an Apprise URL. If the URL contains `{target}` instead of"
        " a chat, messages go to the chat in which a user last wrote to the agent.",
        default_in_words="required, except for `command`",
    )
    argv: Annotated[
        tuple[str, ...],
        ValueType(value_parsers.parse_argv, {"type": "array", "items": {"type": "string"}, "minItems": 1}, "list of strings"),
    ] = optional_key(
        (),
        "For `command`: the program and its arguments. The program starts in the folder of config.yaml and gets the message"
        " on stdin. Exit code 0 means that the message was delivered.",
        default_in_words="required for `command`",
    )
    base_url: Annotated[str | None, SECRET] = optional_key(
        None,
        "The base URL of the API of " + " or ".join(kind.name.capitalize() for kind in registry.KINDS if kind.has_base_url) + ".",
        default_in_words="the public API",
    )
    allow_private: Boolean = optional_key(
        False,
        "With `true`, addresses of this machine and of private networks are allowed. Apprise channels may always use such"
        " addresses.",
    )
    uncertain: Annotated[OnUncertain | None, choice_type(OnUncertain)] = optional_key(
        None,
        "What happens to a message if it is unknown whether it arrived. With `hold`, it waits for your decision. With `resend`,"
        f" it is sent again, and may arrive twice. On {_DETECTING_REPEATS} channels, the receiver can recognise the repeated"
        " message by its key. On other channels, the message is sent again only once, and then waits for your decision.",
        default_in_words=f"`hold` for the output of jobs on channels other than {_DETECTING_REPEATS}, else `resend`",
    )
    prefix: Annotated[str | None, text_type(value_parsers.parse_prefix, "template, `none`")] = optional_key(
        None,
        "The beginning of each message. `{agent}` is the name of the agent, job or provider, `{host}` the name of this machine,"
        " and `{kind}` is `agent`, `job` or `provider`. Apprise services with titles show it as the title,"
        " and Discord as the sender.",
        default_in_words=f'`"{value_parsers.DEFAULT_PREFIX}"`; `none` for {_NAMING_SENDER}, whose JSON has the fields `agent`'
        " and `host`",
    )
    secret: Annotated[str | None, SECRET] = optional_key(
        None,
        f"For {_SIGNED}: each request is signed with this secret, so that the receiver can verify the sender.",
        default_in_words="no signature",
    )
    signature_header: Annotated[str, text_type(value_parsers.parse_header_name, "name of a header")] = optional_key(
        "X-Heartbeatd-Signature", "The header with the signature."
    )

    buttons: Boolean = optional_key(
        False,
        f"For {_WITH_BUTTONS}: with `true`, messages have buttons to mute the agent for two hours, to acknowledge its conditions,"
        " and to run it again. The bot must not be used by another program.",
    )
    links: Boolean = optional_key(
        False,
        f"For {_WITH_LINKS}: with `true`, the JSON has links with which a person can do the same as with `buttons`. This needs"
        " `secret` and `server.public_url`.",
    )


@dataclass(frozen=True, slots=True)
class _OrText:
    """Adds to the JSON Schema that a text may be written in place of the map."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


class Deadman(ConfigPart):
    """A dead man's switch: a service elsewhere that reports when pings stop."""

    url: SecretText = required_key(
        "The URL to ping, for example from healthchecks.io. `/start` is added after a start, and `/fail` while the database"
        " cannot be written, a part of the daemon is suspended, or the queue of the workers cannot be used."
    )
    every: PositiveDuration = optional_key(timedelta(minutes=1), "The time between pings.", written_default="1m")
    allow_private: Boolean = optional_key(False, "With `true`, addresses of this machine and of private networks are allowed.")


class Network(ConfigPart):
    """The proxy and certificates for requests to providers, gateways, channels and the dead man's switch."""

    proxy: SecretText = optional_key(
        "environment",
        "`environment` (HTTPS_PROXY and HTTP_PROXY), `none`, or the URL of a proxy. The hosts in NO_PROXY are always reached"
        " directly.",
    )
    ca_file: PathOrNone = optional_key(
        None,
        "A PEM file with certificates of authorities that are trusted in addition to those of the system.",
        default_in_words="none",
    )


class Executor(ConfigPart):
    """Where runs are executed."""

    kind: Annotated[ExecutorKind, choice_type(ExecutorKind)] = optional_key(
        "local",
        "With `local`, the daemon executes all runs itself. With `procrastinate`, workers on any machine execute them. A worker"
        " is a process `heartbeatd worker` with the same config and access to the same PostgreSQL server. This needs"
        " `heartbeatd[cluster]`.",
    )
    dsn: Annotated[str | None, SECRET] = optional_key(
        None,
        "The PostgreSQL database between the daemon and the workers, as `postgresql://USER:PASSWORD@HOST/DATABASE`. Required with"
        " `procrastinate`.",
        default_in_words="none",
    )
    queue: Text = optional_key("heartbeatd", "The name of the queue. Daemons and workers with the same name belong together.")
    lease: PositiveDuration = optional_key(
        timedelta(seconds=60),
        "Each worker renews a lease in PostgreSQL every few seconds. If it cannot do so for three quarters of this time, it stops"
        " its runs. After the whole time, other workers may repeat them.",
        written_default="60s",
    )


class ShardPart(ConfigPart):
    """Several daemons that share one config. Each runs its part of the agents and jobs."""

    of: Annotated[int, integer_type(1, MAX_SHARDS)] = required_key("The number of shards.")
    index: Annotated[
        int | str | None,
        ValueType(
            value_parsers.parse_shard_index,
            {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$"}]},
            "number from 0, or a variable such as `${POD}`",
        ),
    ] = optional_key(
        None,
        "The number of the shard that a daemon with this config runs. The option `--shard` and the environment variable"
        " `HEARTBEATD_SHARD` take precedence.",
        default_in_words="the variable `HEARTBEATD_SHARD`",
    )
    addresses: Annotated[tuple[str, ...], list_type(value_parsers.parse_names, "URL or list")] = optional_key(
        (),
        "The URL of the HTTP interface of each shard, in their order. For example, the status page of one shard has links to the"
        " others.",
        default_in_words="the address in `server.listen`, with the port plus the number of the shard",
    )


class Telemetry(ConfigPart):
    """What the daemon sends about its runs to other programs."""

    traces: Boolean = optional_key(
        False,
        "With `true`, OpenTelemetry traces are sent, as configured by the OTEL_* environment variables. This needs"
        " `heartbeatd[otel]`.",
    )


class Calendar(ConfigPart):
    """Days for `skip_on` and `only_on`."""

    dates: Annotated[tuple[DateRange, ...], list_type(value_parsers.parse_calendar_dates, "date, `FIRST..LAST`, list")] = (
        optional_key(
            (),
            "Dates such as `2026-12-25`, and ranges such as `2026-12-24..2026-12-31`, which include both ends.",
            written_default=[],
        )
    )
    days: Days = optional_key(frozenset(), "Days of the week.", default_in_words="none")

    @model_validator(mode="after")
    def _names_a_day(self) -> Self:
        if not (self.dates or self.days):
            raise ValueError("no day is named; write dates: [2026-12-25], or days: sat-sun")
        return self


class History(ConfigPart):
    keep: PositiveDuration = optional_key(timedelta(days=30), "How long run records are kept.", written_default="30d")
    runs: Annotated[int, integer_type(1, 10_000_000)] = optional_key(
        1000, "The number of run records that are kept for each agent or job."
    )


class Defaults(ConfigPart):
    agent: Agent = optional_key(Agent(), "Default values for every agent.", written_default={})
    heartbeat: Heartbeat = optional_key(Heartbeat(), "Default values for every heartbeat.", written_default={})
    cron: Job = optional_key(Job(), "Default values for every job.", written_default={})


class Config(ConfigPart):
    timezone: Zone = optional_key(
        ZoneInfo("UTC"), "The time zone of active hours and schedules without a time zone of their own.", written_default="UTC"
    )
    host: Annotated[str | None, text_type(value_parsers.parse_host, "name")] = optional_key(
        None,
        "The name of this machine in messages. Set it in a container, where the host name has no meaning.",
        default_in_words="the host name, up to its first dot",
    )
    state: StateText = optional_key(
        "state/heartbeatd.db",
        "The database file. It is created if it does not exist. A symbolic link is followed."
        " `postgresql://USER@HOST/DATABASE` keeps the data on a PostgreSQL server instead ([several machines](scaling.md)).",
    )
    env_file: PathOrNone = optional_key(
        None,
        "A file of `NAME=value` lines with the values for `${NAME}`. Only its owner may have access (mode 0600).",
        default_in_words="none",
    )
    reload: Annotated[ReloadMode, choice_type(ReloadMode)] = optional_key(
        "watch",
        "With `watch`, the daemon applies the file when it changes. With `manual`, it applies the file only after"
        " `heartbeatd reload`, SIGHUP or `POST /-/reload`.",
    )
    server: Server = optional_key(Server(), "The HTTP interface.", written_default={})
    network: Network = optional_key(Network(), "The proxy and the certificates for outgoing requests.", written_default={})
    executor: Executor = optional_key(
        Executor(), "Where runs are executed: here, or by workers on other machines.", written_default={}
    )
    shard: Annotated[ShardPart | None, BeforeValidator(value_parsers.parse_none_or_map)] = Field(
        default=None,
        description="Several daemons that share this config, each with its part of the agents and jobs"
        " ([shards](scaling.md#shards)).",
        json_schema_extra=lambda schema: _or_none_schema(schema),
    )
    telemetry: Telemetry = optional_key(Telemetry(), "Traces of the runs, for OpenTelemetry.", written_default={})
    limits: Limits = optional_key(Limits(), "Limits for all agents and jobs.", written_default={})
    providers: dict[str, Provider] = optional_key({}, "Model providers by name.", default_in_words="`anthropic`, without a key")
    prices: dict[str, Price] = optional_key({}, "Prices of models, by model name.", written_default={})
    channels: dict[str, Annotated[Channel, BeforeValidator(value_parsers.parse_channel), _OrText()]] = optional_key(
        {}, "Channels for messages, by name. `log` is built in.", written_default={}
    )
    deadman: Annotated[Deadman | None, BeforeValidator(value_parsers.parse_none_or_map)] = Field(
        default=None,
        description="A URL that the daemon pings regularly, so that a service elsewhere can report when the pings stop.",
        json_schema_extra=lambda schema: _or_none_schema(schema),
    )
    calendars: dict[str, Calendar] = optional_key({}, "Named sets of days, for `skip_on` and `only_on`.", written_default={})
    history: History = optional_key(History(), "How long run records are kept.", written_default={})
    agents: dict[str, Agent] = optional_key({}, "Agents by name.", written_default={})
    cron: dict[str, Job] = optional_key({}, "Jobs by name.", written_default={})
    defaults: Defaults = optional_key(
        Defaults(),
        "Default values for agents and jobs. Maps are merged key by key. Other values, and `active_hours`, are replaced as a"
        " whole.",
        written_default={},
    )


def config_schema() -> dict[str, Any]:
    """JSON Schema of config.yaml as it is written, for an editor."""
    made = Config.model_json_schema()
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = "heartbeatd config.yaml"
    made["patternProperties"] = {"^x-": {}}
    return made


def _active_hours_schema(schema: dict[str, Any]) -> None:
    window = schema.pop("items")
    schema.pop("type", None)
    schema.pop("default", None)
    one = [{"type": "string"}, window]
    schema["anyOf"] = [*one, {"type": "array", "items": {"anyOf": one}}]
    schema["default"] = "always"
    schema["x-form"] = "`always`, window, list"


def _mcp_schema(schema: dict[str, Any]) -> None:
    """The JSON Schema of a list of maps."""
    schema["maxItems"] = 20
    schema["x-form"] = "list of maps"


def _unchanged_schema(schema: dict[str, Any]) -> None:
    """The JSON Schema of `unchanged`, which may be written as one word."""
    as_map = {"$ref": schema.pop("$ref")}
    schema["anyOf"] = [{"enum": ["skip", "run"]}, as_map]
    schema["default"] = "run"
    schema["x-form"] = "`skip`, `run`, map"


def _map_or_none_schema(schema: dict[str, Any]) -> None:
    """The JSON Schema of a map that is there by default and that `none` disables."""
    _or_none_schema(schema)
    schema["default"] = {}


def _or_unlimited_schema(schema: dict[str, Any]) -> None:
    """The JSON Schema of a map of limits, or `unlimited`."""
    as_map = next(part for part in schema.pop("anyOf") if "$ref" in part)
    schema["anyOf"] = [{"const": "unlimited"}, as_map]
    schema["default"] = "unlimited"
    schema["x-form"] = "`unlimited`, map"


def _or_none_schema(schema: dict[str, Any], *short: dict[str, Any]) -> None:
    """The JSON Schema of a map, or `none`; `short` are other forms in which it may be written."""
    as_map = next(part for part in schema.pop("anyOf") if "$ref" in part)
    schema["anyOf"] = [*(short or [{"const": "none"}]), as_map]
    schema["default"] = "none"
    schema["x-form"] = "`none`, command, map" if short else "`none`, map"


def models_in(annotation: Any) -> list[type[ConfigPart]]:
    """The models inside the annotation of a key; none for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, ConfigPart):
        return [annotation]
    return [model for inside in get_args(annotation) for model in models_in(inside)]


def kinds_of_model(model: type[ConfigPart]) -> tuple[str, ...]:
    """The words that `kind` may be in a model of a union; none where the model has no such key."""
    kind = model.model_fields.get("kind")
    return get_args(kind.annotation) if kind and get_origin(kind.annotation) is Literal else ()
