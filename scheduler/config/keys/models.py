"""The config as it is written: every key with its form, its default and what it does.

Nothing is required by a model that a default could still supply; what an agent or a job lacks in the end is found when it is
built. `schema` and the reference in docs/ come from here.
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
from heartbeat.spec import DedupNormalize, OkMatch, OnMissing, ProviderKind
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
    NameList,
    NameListOrNone,
    OpeningTime,
    PathOrNone,
    PathText,
    PositiveDuration,
    PositiveDurationOrNone,
    SecretText,
    Stagger,
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
from scheduler.model.settings import OnUncertain, Permission


class ConfigPart(BaseModel):
    """A map of the config. One that stands empty is the map without keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_a_map(cls, written: Any) -> Any:
        return {} if written is None else written


class Window(ConfigPart):
    start: OpeningTime = required_key("When it opens; local time.")
    end: ClosingTime = required_key(
        "When it closes. Before `start`: on the next day. `24:00` and `00:00` are the coming midnight."
    )
    timezone: ZoneOrNone = optional_key(None, "The zone of both.", default_in_words="the heartbeat's, else the top-level one")
    days: Days = optional_key(frozenset(range(7)), "The days on which it opens.", written_default="mon-sun")


class ModelRunner(ConfigPart):
    """Asks a model directly, in one turn and without tools."""

    kind: Literal["anthropic", "openai"] = required_key("Asks a model directly, in one turn and without tools.")
    provider: TextOrNone = optional_key(None, "Whom the model is asked at.", default_in_words="the one named like `kind`")


class CommandRunner(ConfigPart):
    """Runs a program: the prompt goes in on stdin, the answer comes out on stdout."""

    kind: Literal["command"] = required_key(
        "Runs a program: the prompt goes in on stdin, the answer comes out on stdout, as text or as an agent's JSON report."
    )
    argv: Annotated[
        tuple[str, ...],
        ValueType(value_parsers.parse_argv, {"type": "array", "items": {"type": "string"}, "minItems": 1}, "list of texts"),
    ] = required_key("The program and its arguments; no shell sees them.")
    env: Environment = optional_key((), "Variables for it, beside PATH, HOME and LANG.", written_default={})


class HttpRunner(ConfigPart):
    """Posts the run to a URL; the answer comes back at once, or later."""

    kind: Literal["http"] = required_key("Posts the run as JSON; a 200 is the answer, after a 202 it comes later.")
    url: SecretText = required_key("Where to; http or https, private addresses too.")
    headers: Annotated[
        tuple[tuple[str, str], ...],
        ValueType(
            value_parsers.parse_headers,
            {"type": "object", "additionalProperties": {"type": "string"}},
            "map of texts, may hold `${NAME}`, `${file:PATH}`",
        ),
    ] = optional_key((), "Headers of the request.", written_default={})


class PythonRunner(ConfigPart):
    """Calls a function of Python."""

    kind: Literal["python"] = required_key("Calls a function with the run; what it returns is the answer.")
    call: Annotated[str, text_type(value_parsers.parse_callable, "`package.module:function`")] = required_key(
        "The function; the workspace is searched first."
    )
    in_process: Boolean = optional_key(
        False, "Calls it inside the daemon: starts at once, but cannot be ended when its time is over, and shares its memory."
    )


Runner = ModelRunner | CommandRunner | HttpRunner | PythonRunner


class Decide(ConfigPart):
    """A model that decides first whether there is something to do; only then is the agent itself asked."""

    model: Text = required_key("The model that decides; a small one will do.")
    provider: TextOrNone = optional_key(
        None, "Whom it is asked at.", default_in_words="the heartbeat's, else the runner's, else `anthropic`"
    )


class Precheck(ConfigPart):
    """A command that looks whether there is anything to ask about, before the agent is asked."""

    command: Text = required_key("A line for the shell, run in the workspace; what it prints goes into the prompt.")
    unchanged: Annotated[Literal["skip", "run"], choice_type(Literal["skip", "run"])] = optional_key(
        "run", "When it prints the same as at the last beat that was answered."
    )
    on_error: Annotated[Literal["skip", "run"], choice_type(Literal["skip", "run"])] = optional_key("run", "When it fails.")
    timeout: PositiveDurationOrNone = optional_key(
        None, "How long it may take.", default_in_words="half the heartbeat's timeout, at most 30s"
    )


class DayBudget(ConfigPart):
    """What may be spent in one day."""

    usd_per_day: Annotated[float | None, USD_A_DAY] = optional_key(
        None, "Money; every model asked needs its price.", default_in_words="no bound"
    )
    tokens_per_day: Annotated[int | None, TOKENS_A_DAY] = optional_key(
        None, "Tokens of all kinds together.", default_in_words="no bound"
    )
    runs_per_day: Annotated[int | None, integer_type(1, 1_000_000)] = optional_key(
        None, "Runs that ask; further attempts of one are not counted.", default_in_words="no bound"
    )


class Budget(DayBudget):
    """What an entry may spend in one day of its zone."""

    usd_per_run: Annotated[float | None, USD_A_RUN] = optional_key(
        None,
        "What one attempt may take. Where a model is asked, longer prompts are refused; of any other runner it is your word for"
        " the most that it takes.",
        default_in_words="by the bounds of tokens",
    )


class HeartbeatMisfire(ConfigPart):
    grace: DurationOrNone = optional_key(
        None,
        "How late a slot may start; waiting for a place does not count.",
        default_in_words="half the interval, or the shortest of the schedule, at most 10m",
    )


class Dedup(ConfigPart):
    window: Duration = optional_key(timedelta(hours=24), "For how long the same alert is not told again.", written_default="24h")
    normalize: Annotated[DedupNormalize, choice_type(DedupNormalize)] = optional_key(
        "text", "`numbers`: alerts that differ only in figures are the same."
    )


class OnFailure(ConfigPart):
    """Who is told that it fails, and that it works again."""

    after: Annotated[int, integer_type(1, 1000)] = optional_key(2, "After how many failures in a row.")
    remind: PositiveDuration = optional_key(
        timedelta(hours=6), "After what time it is told again while it goes on.", written_default="6h"
    )
    deliver: TargetsOrNone = optional_key(
        None, "Who is told.", default_in_words="as the entry's own; where that is `none`, the only channel declared, else `log`"
    )


class JobOnFailure(OnFailure):
    """Who is told that it fails, and that it works again."""

    after: Annotated[int, integer_type(1, 1000)] = optional_key(1, "After how many failures in a row.")


class Heartbeat(ConfigPart):
    enabled: Boolean = optional_key(True, "Whether it beats.")
    interval: Annotated[
        timedelta | Literal["missing"] | None,
        ValueType(value_parsers.parse_interval, {"type": "string", "pattern": f"^none$|{DURATION_PATTERN}"}, "duration, `none`"),
    ] = optional_key("missing", "How often. `none`: only when woken. `0m`: switched off.", default_in_words="this or `schedule`")
    schedule: TextOrNone = optional_key(
        None,
        "When, as a cron expression in its zone; firings outside the active hours are skipped.",
        default_in_words="this or `interval`",
    )
    backoff_on_failure: Boolean = optional_key(
        False, "Doubles the interval after each failed beat, to at most 8 times; the first that succeeds brings it back."
    )
    stagger: Stagger = optional_key(
        0.1,
        "How far beats are spread, by a stable hash of the agent's name; with `schedule` only if written.",
        written_default="10%",
    )
    active_hours: Annotated[list[Window], BeforeValidator(value_parsers.parse_windows)] = Field(
        default=[],
        description="When it may speak: `always`, `08:00-22:00`, a map, or a list of them.",
        json_schema_extra=lambda schema: _active_hours_schema(schema),
    )
    timezone: ZoneOrNone = optional_key(
        None,
        "Its zone: of its windows and of the time in the prompt.",
        default_in_words="its windows' one zone, else the top-level one",
    )
    skip_on: Calendars = optional_key((), "Calendars on whose days it rests.", written_default="none")
    only_on: Calendars = optional_key((), "Calendars on whose days alone it beats.", written_default="none")
    misfire: HeartbeatMisfire = optional_key(
        HeartbeatMisfire(), "What becomes of a slot that could not start in time.", written_default={}
    )
    model: TextOrNone = optional_key(None, "The model for heartbeat runs only.", default_in_words="the agent's")
    prompt: TextOrNone = optional_key(None, "What is asked, in place of the built-in instructions.", default_in_words="built in")
    checklist: Annotated[str, text_type(value_parsers.parse_checklist, "file in the workspace, or text with a line break")] = (
        optional_key("HEARTBEAT.md", "The list that is asked about.")
    )
    on_missing: Annotated[OnMissing, choice_type(OnMissing)] = optional_key("skip", "When there is no checklist.")
    on_empty: Annotated[Literal["skip", "run"], choice_type(Literal["skip", "run"])] = optional_key(
        "skip", "When nothing stands on it."
    )
    memory: Annotated[tuple[str, ...], list_type(value_parsers.parse_workspace_files, "file in the workspace, or list")] = (
        optional_key(
            (), "Files that are read where it beats without a checklist: `on_missing: run`, `on_empty: run`.", written_default=[]
        )
    )
    precheck: Annotated[Precheck | None, BeforeValidator(value_parsers.parse_precheck)] = Field(
        default=None,
        description="A command that looks first whether there is anything to ask about.",
        json_schema_extra=lambda schema: _or_none_schema(schema, {"type": "string"}),
    )
    provider: TextOrNone = optional_key(None, "Whom that model is asked at; of any kind.", default_in_words="the runner's")
    max_output_tokens: Annotated[int, TOKENS] = optional_key(2000, "How much a model may answer.", written_default="2k")
    max_input_tokens: Annotated[int, TOKENS] = optional_key(
        50_000,
        "How long the prompt may be, estimated: three ASCII characters are a token, any other is one.",
        written_default="50k",
    )
    decide: Annotated[Decide | None, BeforeValidator(value_parsers.parse_none_or_map)] = Field(
        default=None,
        description="Has a model decide first whether there is something to do, by the checklist and the facts alone.",
        json_schema_extra=lambda schema: _or_none_schema(schema),
    )
    light_context: Boolean = optional_key(False, "Leaves the context files out.")
    isolated_session: Boolean = optional_key(True, "Each beat stands alone; else the agent is reminded of what it told before.")
    session_keep: Annotated[
        int, ValueType(value_parsers.even_integer_between(2, 100), {"type": "integer", "multipleOf": 2}, "even number, 2 to 100")
    ] = optional_key(8, "How many messages it is reminded of where `isolated_session` is false.")
    retries: Annotated[int, integer_type(0, 10)] = optional_key(2, "Further attempts inside a slot.")
    timeout: PositiveDuration = optional_key(timedelta(minutes=5), "How long one attempt may take.", written_default="5m")
    async_timeout: DurationUpToADay = optional_key(
        timedelta(hours=1),
        "How long the result of an agent that answers later (`202`) may take; then the run failed.",
        written_default="1h",
    )
    ok_match: Annotated[OkMatch, choice_type(OkMatch)] = optional_key("edges", "Where HEARTBEAT_OK counts.")
    ack_max_chars: Annotated[int, integer_type(0, 10_000)] = optional_key(
        5, "Characters beside HEARTBEAT_OK that are still no message."
    )
    strip_reasoning: Boolean = optional_key(True, "Leaves a leading `<think>...</think>` out of what is judged and delivered.")
    show_ok: Boolean = optional_key(False, "Delivers answers that say that all is well.")
    show_alerts: Boolean = optional_key(True, "Delivers alerts.")
    dedup: Dedup = optional_key(Dedup(), "Alerts that repeat.", written_default={})
    deliver: TargetsOrNone = optional_key(
        None,
        "Who is told. `last`: whoever spoke with the agent last, by a channel whose URL holds `{target}`.",
        default_in_words="the only channel declared, else `log`",
    )
    on_failure: Annotated[OnFailure | None, BeforeValidator(value_parsers.parse_none_or_map)] = Field(
        default=OnFailure(),
        description="Who is told that it fails, and that it works again.",
        json_schema_extra=lambda schema: _map_or_none_schema(schema),
    )
    budget: Annotated[Budget | None, BeforeValidator(value_parsers.parse_budget)] = Field(
        default=Budget(),
        description="What its runs may spend in a day. `unlimited`: as much as they like, and no warning.",
        json_schema_extra=lambda schema: _or_unlimited_schema(schema),
    )


class Agent(ConfigPart):
    workspace: PathOrNone = optional_key(
        None, "Its folder; every file read for it lies inside.", default_in_words="`agents/NAME`"
    )
    runner: Annotated[Annotated[Runner, Field(discriminator="kind")], BeforeValidator(value_parsers.parse_runner)] = optional_key(
        ModelRunner(kind="anthropic"), "How it is asked.", written_default={"kind": "anthropic"}
    )
    model: TextOrNone = optional_key(
        None, "Its model.", default_in_words="`claude-haiku-5-5` at Anthropic; else none: the runner's own choice"
    )
    context: Annotated[tuple[str, ...], list_type(value_parsers.parse_workspace_files, "file in the workspace, or list")] = (
        optional_key((), "Files that go into the prompt.", written_default=[])
    )
    heartbeat: Heartbeat = optional_key(Heartbeat(), "Its heartbeat.", written_default={})


class JobMisfire(ConfigPart):
    policy: Annotated[Misfire, choice_type(Misfire)] = optional_key(
        "latest", "`latest`: the latest missed slot runs; `skip`: none does."
    )
    grace: DurationOrNone = optional_key(
        None, "How late a slot may start; waiting for a place does not count.", default_in_words="half the period, at most 1h"
    )


class Job(ConfigPart):
    enabled: Boolean = optional_key(True, "Whether it fires.")
    schedule: TextOrNone = optional_key(
        None, 'A cron expression, a macro like `@daily`, or `"@reboot"`.', default_in_words="this, `every` or `at`"
    )
    every: EveryOrNone = optional_key(None, "A steady interval.", default_in_words="this, `schedule` or `at`")
    at: TextOrNone = optional_key(
        None, "Once: local time, `2026-12-24T18:00`, or with an offset or `Z`.", default_in_words="this, `schedule` or `every`"
    )
    timezone: ZoneOrNone = optional_key(None, "The zone of `schedule`, `at` and calendars.", default_in_words="the top-level one")
    skip_on: Calendars = optional_key((), "Calendars on whose days it rests.", written_default="none")
    only_on: Calendars = optional_key((), "Calendars on whose days alone it fires.", written_default="none")
    command: Annotated[
        str | tuple[str, ...] | None, list_type(value_parsers.parse_command, "text for the shell, or list without one")
    ] = optional_key(None, "What it runs.", default_in_words="none: it asks by `prompt`, or only wakes")
    prompt: TextOrNone = optional_key(
        None, "What it asks `agent`, in place of a command: one run that stands alone, by the agent's runner and in its lane.",
        default_in_words="none",
    )  # fmt: skip
    agent: TextOrNone = optional_key(None, "Whom the prompt asks.", default_in_words="required with `prompt`")
    model: TextOrNone = optional_key(None, "The model that the prompt asks.", default_in_words="the agent's")
    env: Environment = optional_key((), "Variables for the command, beside PATH, HOME and LANG.", written_default={})
    workdir: PathOrNone = optional_key(None, "Where the command runs.", default_in_words="the config's folder")
    stdin: AnyText = optional_key("", "What the command reads.")
    shell: Text = optional_key("/bin/sh", "What runs a command that is text.")
    timeout: PositiveDuration = optional_key(timedelta(minutes=10), "How long one attempt may take.", written_default="10m")
    async_timeout: DurationUpToADay = optional_key(
        timedelta(hours=1),
        "How long the result of an agent that answers later may take; then the run has failed.",
        written_default="1h",
    )
    strip_reasoning: Boolean = optional_key(
        True, "Leaves a leading `<think>...</think>` out of what an answer to the prompt delivers."
    )
    retries: Annotated[int, integer_type(0, 10)] = optional_key(0, "Further attempts; a command may not be safe to repeat.")
    stagger: Stagger = optional_key(timedelta(0), "How far jobs are spread, by a stable hash of the name.", written_default=0)
    misfire: JobMisfire = optional_key(JobMisfire(), "What becomes of a slot that could not start in time.", written_default={})
    rerun_after_crash: Boolean = optional_key(False, "Runs the command again when the daemon died during it.")
    deliver: Targets = optional_key((), "Who gets the output.", written_default="none")
    on_failure: Annotated[JobOnFailure | None, BeforeValidator(value_parsers.parse_none_or_map)] = Field(
        default=JobOnFailure(),
        description="Who is told that it fails, and that it works again.",
        json_schema_extra=lambda schema: _map_or_none_schema(schema),
    )
    budget: Annotated[Budget | None, BeforeValidator(value_parsers.parse_budget)] = Field(
        default=Budget(),
        description="What a prompt's runs may spend in a day. `unlimited`: as much as they like, and no warning.",
        json_schema_extra=lambda schema: _or_unlimited_schema(schema),
    )
    wake_heartbeat: Annotated[tuple[str, ...], list_type(value_parsers.parse_names, "agent or list")] = optional_key(
        (), "Whose heartbeat it wakes.", written_default=[]
    )
    wake_on: Annotated[WakeOn, choice_type(WakeOn)] = optional_key("always", "After which end it wakes.")
    wake_mode: Annotated[WakeMode, choice_type(WakeMode)] = optional_key(
        "now", "`next`: the wake waits for the agent's next slot."
    )
    wake_text: TextOrNone = optional_key(
        None, "What the agent is told.", default_in_words="the job, its outcome and the end of its output"
    )


class Token(ConfigPart):
    value: SecretText = required_key("The token itself, 16 bytes or more; from `${NAME}` or `${file:PATH}`.")
    may: Annotated[
        tuple[Permission, ...], list_type(value_parsers.parse_token_rights, "list of `read`, `wake`, `operate`, `edit`")
    ] = required_key("What it allows.")
    agents: NameListOrNone = optional_key(None, "The agents that it is good for.", default_in_words="all")


class Server(ConfigPart):
    listen: Text = optional_key(
        "127.0.0.1:7857", "Address and port; one that others can reach needs tokens. Port 0: any free one."
    )
    hosts: NameList = optional_key((), "Further names that a request may call this host by.", written_default=[])
    tokens: dict[str, Token] = optional_key({}, "Who may do what over HTTP.", default_in_words="one that may all is made up")
    metrics_entries: Annotated[int, integer_type(0, 1_000_000)] = optional_key(
        1000, "Up to how many entries each has series of its own."
    )


class Limits(ConfigPart):
    concurrency: Annotated[int, integer_type(1, 1000)] = optional_key(8, "How many runs at a time.")
    min_interval: Duration = optional_key(
        timedelta(minutes=5), "The shortest interval where the runner calls a model; `0s`: any.", written_default="5m"
    )
    wake_gap: Duration = optional_key(
        timedelta(seconds=30),
        "The shortest time between the end of a run and one that a wake starts; a job's wake waits so long for other jobs.",
        written_default="30s",
    )
    wake_flood: Annotated[tuple[int, timedelta], text_type(value_parsers.parse_rate, "rate", pattern=r"^\d+ per \S+$")] = (
        optional_key(
            (5, timedelta(minutes=10)), "How many runs of an agent programs may start by wakes.", written_default="5 per 10m"
        )
    )
    wake_keep: PositiveDuration = optional_key(timedelta(hours=24), "How long a wake waits to be told.", written_default="24h")
    shutdown_grace: Duration = optional_key(
        timedelta(seconds=30), "How long runs may go on when the daemon stops.", written_default="30s"
    )
    budget: Annotated[DayBudget | None, BeforeValidator(value_parsers.parse_budget)] = Field(
        default=None,
        description="What all runs that ask an agent may spend together, in a day of the top-level zone.",
        json_schema_extra=lambda schema: _or_unlimited_schema(schema),
    )


class Provider(ConfigPart):
    """Whom models are asked at."""

    kind: Annotated[ProviderKind | None, choice_type(ProviderKind)] = optional_key(
        None, "What it speaks.", default_in_words="the entry's name, if it is one of these"
    )
    api_key: Annotated[str | None, SECRET] = optional_key(
        None, "The key; from `${NAME}` or `${file:PATH}`.", default_in_words="none"
    )
    base_url: Annotated[str | None, SECRET] = optional_key(
        None, "Its server; http or https.", default_in_words="that of Anthropic or OpenAI"
    )


class Price(ConfigPart):
    input: Annotated[float, PRICE] = required_key("For what is asked.")
    output: Annotated[float, PRICE] = required_key("For what is answered.")
    cache_read: Annotated[float | None, PRICE] = optional_key(
        None, "For what is read from the cache.", default_in_words="as `input`"
    )
    cache_write: Annotated[float | None, PRICE] = optional_key(
        None, "For what is written to the cache.", default_in_words="1.25 times `input`"
    )


class Channel(ConfigPart):
    """Where messages go. A channel that is a text is its URL."""

    kind: Annotated[str | None, choice_type(tuple(kind.name for kind in registry.KINDS))] = optional_key(
        None,
        "How it is spoken to.",
        default_in_words=", ".join(
            [f"`{kind.name}` for `{kind.schemes[0]}://`" for kind in registry.kinds_with_own_scheme()]
            + [f"`{registry.FALLBACK.name}` for all others"]
        ),
    )
    url: Annotated[str | None, SECRET] = optional_key(
        None,
        ", ".join(f"`{kind.url_form}`" for kind in registry.kinds_with_own_scheme())
        + ", a URL of Apprise; for `webhook` http or https. With `{target}` in the place"
        " of the chat it leads to whoever spoke with the agent last.",
        default_in_words="required, but for a command",
    )
    argv: Annotated[
        tuple[str, ...],
        ValueType(value_parsers.parse_argv, {"type": "array", "items": {"type": "string"}, "minItems": 1}, "list of texts"),
    ] = optional_key(
        (),
        "For `command`: the program and its arguments, started in the folder of this file. The text is on its standard input;"
        " exit code 0 means delivered.",
        default_in_words="required for a command",
    )
    base_url: Annotated[str | None, SECRET] = optional_key(
        None,
        " or ".join(f"{kind.name.capitalize()}'s" for kind in registry.KINDS if kind.has_base_url) + " server.",
        default_in_words="their own",
    )
    allow_private: Boolean = optional_key(
        False, "Allows addresses of this machine and of private networks; Apprise opens its own connections and may always."
    )
    uncertain: Annotated[OnUncertain | None, choice_type(OnUncertain)] = optional_key(
        None,
        "What becomes of a message when nobody knows whether it arrived. Webhooks get a key to know repeats by; others are"
        " sent it once more.",
        default_in_words="`resend`; for output of jobs on other channels than webhooks `hold`",
    )


@dataclass(frozen=True, slots=True)
class _OrText:
    """Tells an editor that a text may stand in place of the map."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


class Deadman(ConfigPart):
    """A dead man's switch: somebody elsewhere who notices when no ping comes any more."""

    url: SecretText = required_key(
        "What is pinged, as healthchecks.io has it; /start and /fail are added for a start and a failure."
    )
    every: PositiveDuration = optional_key(timedelta(minutes=1), "How often.", written_default="1m")
    allow_private: Boolean = optional_key(False, "Allows addresses of this machine and of private networks.")


class Network(ConfigPart):
    """How requests to providers, gateways, channels and the dead man's switch leave this machine."""

    proxy: SecretText = optional_key(
        "environment",
        "`environment` (HTTPS_PROXY, HTTP_PROXY), `none`, or a URL. NO_PROXY holds for a URL too.",
    )
    ca_file: PathOrNone = optional_key(
        None, "Certificates (PEM) of authorities that are trusted beside the system's.", default_in_words="none"
    )


class Calendar(ConfigPart):
    """Days that `skip_on` and `only_on` name."""

    dates: Annotated[tuple[DateRange, ...], list_type(value_parsers.parse_calendar_dates, "date, `FIRST..LAST`, list")] = (
        optional_key((), "Dates like `2026-12-25`, and ranges with both ends: `2026-12-24..2026-12-31`.", written_default=[])
    )
    days: Days = optional_key(frozenset(), "Days of the week.", default_in_words="none")

    @model_validator(mode="after")
    def _names_a_day(self) -> Self:
        if not (self.dates or self.days):
            raise ValueError("no day is named; write dates: [2026-12-25], or days: sat-sun")
        return self


class History(ConfigPart):
    keep: PositiveDuration = optional_key(timedelta(days=30), "How long rows are kept.", written_default="30d")
    runs: Annotated[int, integer_type(1, 10_000_000)] = optional_key(1000, "How many rows are kept for each entry.")


class Defaults(ConfigPart):
    agent: Agent = optional_key(Agent(), "For every agent.", written_default={})
    heartbeat: Heartbeat = optional_key(Heartbeat(), "For every heartbeat.", written_default={})
    cron: Job = optional_key(Job(), "For every job.", written_default={})


class Config(ConfigPart):
    timezone: Zone = optional_key(ZoneInfo("UTC"), "The zone of windows and schedules that name none.", written_default="UTC")
    state: PathText = optional_key("state/heartbeatd.db", "The database: a regular file, or none yet. A link is followed.")
    env_file: PathOrNone = optional_key(None, "NAME=value lines, mode 0600, for `${NAME}`.", default_in_words="none")
    server: Server = optional_key(Server(), "The HTTP interface.", written_default={})
    network: Network = optional_key(Network(), "How requests leave this machine.", written_default={})
    limits: Limits = optional_key(Limits(), "Bounds for all entries.", written_default={})
    providers: dict[str, Provider] = optional_key(
        {}, "Whom models are asked at, by name.", default_in_words="`anthropic`, without a key"
    )
    prices: dict[str, Price] = optional_key({}, "What models cost, by their name.", written_default={})
    channels: dict[str, Annotated[Channel, BeforeValidator(value_parsers.parse_channel), _OrText()]] = optional_key(
        {}, "Where messages go, by name. `log` is built in.", written_default={}
    )
    deadman: Annotated[Deadman | None, BeforeValidator(value_parsers.parse_none_or_map)] = Field(
        default=None,
        description="Pinged by the daemon as long as it can do its work, so that somebody else notices when it cannot.",
        json_schema_extra=lambda schema: _or_none_schema(schema),
    )
    calendars: dict[str, Calendar] = optional_key({}, "Days by name, for `skip_on` and `only_on`.", written_default={})
    history: History = optional_key(History(), "How long runs are remembered.", written_default={})
    agents: dict[str, Agent] = optional_key({}, "Agents by name.", written_default={})
    cron: dict[str, Job] = optional_key({}, "Jobs by name.", written_default={})
    defaults: Defaults = optional_key(
        Defaults(),
        "What entries inherit: maps merge key by key; all else is replaced, and `active_hours` as a whole.",
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


def _map_or_none_schema(schema: dict[str, Any]) -> None:
    """A map that is there unless `none` undoes it."""
    _or_none_schema(schema)
    schema["default"] = {}


def _or_unlimited_schema(schema: dict[str, Any]) -> None:
    """A map of bounds that `unlimited` undoes."""
    as_map = next(part for part in schema.pop("anyOf") if "$ref" in part)
    schema["anyOf"] = [{"const": "unlimited"}, as_map]
    schema["default"] = "unlimited"
    schema["x-form"] = "`unlimited`, map"


def _or_none_schema(schema: dict[str, Any], *short: dict[str, Any]) -> None:
    """A map that `none` undoes, and that may be written in a `short` form."""
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
