"""The config as it is written: every key with its form, its default and what it does.

Nothing is required by a model that a default could still supply; what an agent or a job lacks in the end is found when it is
built. `schema` and the reference in docs/ come from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from cron.job import Misfire, WakeMode, WakeOn
from heartbeat.calendars import DateRange
from heartbeat.spec import DedupNormalize, OkMatch, OnMissing, ProviderKind
from scheduler.config.keys import value_parsers
from scheduler.config.keys.value_types import (
    PRICE,
    SECRET,
    SPAN,
    TOKENS,
    TOKENS_A_DAY,
    USD_A_DAY,
    USD_A_RUN,
    AnyText,
    Calendars,
    Closing,
    Days,
    Duration,
    DurationOrNone,
    Environment,
    EveryOrNone,
    Form,
    Opening,
    PathOrNone,
    PathText,
    SecretText,
    SomeDuration,
    SomeDurationOrNone,
    Stagger,
    Targets,
    TargetsOrNone,
    Text,
    TextOrNone,
    Truth,
    UpToADay,
    Words,
    WordsOrNone,
    Zone,
    ZoneOrNone,
    choice,
    key,
    needed,
    several,
    text,
    whole,
)
from scheduler.model.settings import May, Transport, Uncertain


class Part(BaseModel):
    """A map of the config. One that stands empty is the map without keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_a_map(cls, written: Any) -> Any:
        return {} if written is None else written


class Window(Part):
    start: Opening = needed("When it opens; local time.")
    end: Closing = needed("When it closes. Before `start`: on the next day. `24:00` and `00:00` are the coming midnight.")
    timezone: ZoneOrNone = key(None, "The zone of both.", else_="the heartbeat's, else the top-level one")
    days: Days = key(frozenset(range(7)), "The days on which it opens.", written="mon-sun")


class ModelRunner(Part):
    """Asks a model directly, in one turn and without tools."""

    kind: Literal["anthropic", "openai"] = needed("Asks a model directly, in one turn and without tools.")
    provider: TextOrNone = key(None, "Whom the model is asked at.", else_="the one named like `kind`")


class CommandRunner(Part):
    """Runs a program: the prompt goes in on stdin, the answer comes out on stdout."""

    kind: Literal["command"] = needed(
        "Runs a program: the prompt goes in on stdin, the answer comes out on stdout, as text or as an agent's JSON report."
    )
    argv: Annotated[
        tuple[str, ...],
        Form(value_parsers.argv, {"type": "array", "items": {"type": "string"}, "minItems": 1}, "list of texts"),
    ] = needed("The program and its arguments; no shell sees them.")
    env: Environment = key((), "Variables for it, beside PATH, HOME and LANG.", written={})


class HttpRunner(Part):
    """Posts the run to a URL; the answer comes back at once, or later."""

    kind: Literal["http"] = needed("Posts the run as JSON; a 200 is the answer, after a 202 it comes later.")
    url: SecretText = needed("Where to; http or https, private addresses too.")
    headers: Annotated[
        tuple[tuple[str, str], ...],
        Form(
            value_parsers.headers,
            {"type": "object", "additionalProperties": {"type": "string"}},
            "map of texts, may hold `${NAME}`, `${file:PATH}`",
        ),
    ] = key((), "Headers of the request.", written={})


class PythonRunner(Part):
    """Calls a function of Python."""

    kind: Literal["python"] = needed("Calls a function with the run; what it returns is the answer.")
    call: Annotated[str, text(value_parsers.call, "`package.module:function`")] = needed(
        "The function; the workspace is searched first."
    )
    in_process: Truth = key(
        False, "Calls it inside the daemon: starts at once, but cannot be ended when its time is over, and shares its memory."
    )


Runner = ModelRunner | CommandRunner | HttpRunner | PythonRunner


class Decide(Part):
    """A model that decides first whether there is something to do; only then is the agent itself asked."""

    model: Text = needed("The model that decides; a small one will do.")
    provider: TextOrNone = key(None, "Whom it is asked at.", else_="the heartbeat's, else the runner's, else `anthropic`")


class Precheck(Part):
    """A command that looks whether there is anything to ask about, before the agent is asked."""

    command: Text = needed("A line for the shell, run in the workspace; what it prints goes into the prompt.")
    unchanged: Annotated[Literal["skip", "run"], choice(Literal["skip", "run"])] = key(
        "run", "When it prints the same as at the last beat that was answered."
    )
    on_error: Annotated[Literal["skip", "run"], choice(Literal["skip", "run"])] = key("run", "When it fails.")
    timeout: SomeDurationOrNone = key(None, "How long it may take.", else_="half the heartbeat's timeout, at most 30s")


class DayBudget(Part):
    """What may be spent in one day."""

    usd_per_day: Annotated[float | None, USD_A_DAY] = key(None, "Money; every model asked needs its price.", else_="no bound")
    tokens_per_day: Annotated[int | None, TOKENS_A_DAY] = key(None, "Tokens of all kinds together.", else_="no bound")
    runs_per_day: Annotated[int | None, whole(1, 1_000_000)] = key(
        None, "Runs that ask; further attempts of one are not counted.", else_="no bound"
    )


class Budget(DayBudget):
    """What an entry may spend in one day of its zone."""

    usd_per_run: Annotated[float | None, USD_A_RUN] = key(
        None,
        "What one attempt may take. Where a model is asked, longer prompts are refused; of any other runner it is your word for"
        " the most that it takes.",
        else_="by the bounds of tokens",
    )


class HeartbeatMisfire(Part):
    grace: DurationOrNone = key(
        None,
        "How late a slot may start; waiting for a place does not count.",
        else_="half the interval, or the shortest of the schedule, at most 10m",
    )


class Dedup(Part):
    window: Duration = key(timedelta(hours=24), "For how long the same alert is not told again.", written="24h")
    normalize: Annotated[DedupNormalize, choice(DedupNormalize)] = key(
        "text", "`numbers`: alerts that differ only in figures are the same."
    )


class OnFailure(Part):
    """Who is told that it fails, and that it works again."""

    after: Annotated[int, whole(1, 1000)] = key(2, "After how many failures in a row.")
    remind: SomeDuration = key(timedelta(hours=6), "After what time it is told again while it goes on.", written="6h")
    deliver: TargetsOrNone = key(
        None, "Who is told.", else_="as the entry's own; where that is `none`, the only channel declared, else `log`"
    )


class JobOnFailure(OnFailure):
    """Who is told that it fails, and that it works again."""

    after: Annotated[int, whole(1, 1000)] = key(1, "After how many failures in a row.")


class Heartbeat(Part):
    enabled: Truth = key(True, "Whether it beats.")
    interval: Annotated[
        timedelta | Literal["missing"] | None,
        Form(value_parsers.interval, {"type": "string", "pattern": f"^none$|{SPAN}"}, "duration, `none`"),
    ] = key("missing", "How often. `none`: only when woken. `0m`: switched off.", else_="this or `schedule`")
    schedule: TextOrNone = key(
        None, "When, as a cron expression in its zone; firings outside the active hours are skipped.", else_="this or `interval`"
    )
    backoff_on_failure: Truth = key(
        False, "Doubles the interval after each failed beat, to at most 8 times; the first that succeeds brings it back."
    )
    stagger: Stagger = key(
        0.1, "How far beats are spread, by a stable hash of the agent's name; with `schedule` only if written.", written="10%"
    )
    active_hours: Annotated[list[Window], BeforeValidator(value_parsers.windows)] = Field(
        default=[],
        description="When it may speak: `always`, `08:00-22:00`, a map, or a list of them.",
        json_schema_extra=lambda schema: _active_hours(schema),
    )
    timezone: ZoneOrNone = key(
        None, "Its zone: of its windows and of the time in the prompt.", else_="its windows' one zone, else the top-level one"
    )
    skip_on: Calendars = key((), "Calendars on whose days it rests.", written="none")
    only_on: Calendars = key((), "Calendars on whose days alone it beats.", written="none")
    misfire: HeartbeatMisfire = key(HeartbeatMisfire(), "What becomes of a slot that could not start in time.", written={})
    model: TextOrNone = key(None, "The model for heartbeat runs only.", else_="the agent's")
    prompt: TextOrNone = key(None, "What is asked, in place of the built-in instructions.", else_="built in")
    checklist: Annotated[str, text(value_parsers.checklist, "file in the workspace, or text with a line break")] = key(
        "HEARTBEAT.md", "The list that is asked about."
    )
    on_missing: Annotated[OnMissing, choice(OnMissing)] = key("skip", "When there is no checklist.")
    on_empty: Annotated[Literal["skip", "run"], choice(Literal["skip", "run"])] = key("skip", "When nothing stands on it.")
    memory: Annotated[tuple[str, ...], several(value_parsers.files, "file in the workspace, or list")] = key(
        (), "Files that are read where it beats without a checklist: `on_missing: run`, `on_empty: run`.", written=[]
    )
    precheck: Annotated[Precheck | None, BeforeValidator(value_parsers.precheck)] = Field(
        default=None,
        description="A command that looks first whether there is anything to ask about.",
        json_schema_extra=lambda schema: _or_none(schema, {"type": "string"}),
    )
    provider: TextOrNone = key(None, "Whom that model is asked at; of any kind.", else_="the runner's")
    max_output_tokens: Annotated[int, TOKENS] = key(2000, "How much a model may answer.", written="2k")
    max_input_tokens: Annotated[int, TOKENS] = key(
        50_000, "How long the prompt may be, estimated: three ASCII characters are a token, any other is one.", written="50k"
    )
    decide: Annotated[Decide | None, BeforeValidator(value_parsers.no_or_map)] = Field(
        default=None,
        description="Has a model decide first whether there is something to do, by the checklist and the facts alone.",
        json_schema_extra=lambda schema: _or_none(schema),
    )
    light_context: Truth = key(False, "Leaves the context files out.")
    isolated_session: Truth = key(True, "Each beat stands alone; else the agent is reminded of what it told before.")
    session_keep: Annotated[
        int, Form(value_parsers.even(2, 100), {"type": "integer", "multipleOf": 2}, "even number, 2 to 100")
    ] = key(8, "How many messages it is reminded of where `isolated_session` is false.")
    retries: Annotated[int, whole(0, 10)] = key(2, "Further attempts inside a slot.")
    timeout: SomeDuration = key(timedelta(minutes=5), "How long one attempt may take.", written="5m")
    async_timeout: UpToADay = key(
        timedelta(hours=1),
        "How long the result of an agent that answers later (`202`) may take; then the run failed.",
        written="1h",
    )
    ok_match: Annotated[OkMatch, choice(OkMatch)] = key("edges", "Where HEARTBEAT_OK counts.")
    ack_max_chars: Annotated[int, whole(0, 10_000)] = key(5, "Characters beside HEARTBEAT_OK that are still no message.")
    strip_reasoning: Truth = key(True, "Leaves a leading `<think>...</think>` out of what is judged and delivered.")
    show_ok: Truth = key(False, "Delivers answers that say that all is well.")
    show_alerts: Truth = key(True, "Delivers alerts.")
    dedup: Dedup = key(Dedup(), "Alerts that repeat.", written={})
    deliver: TargetsOrNone = key(
        None,
        "Who is told. `last`: whoever spoke with the agent last, by a channel whose URL holds `{target}`.",
        else_="the only channel declared, else `log`",
    )
    on_failure: Annotated[OnFailure | None, BeforeValidator(value_parsers.no_or_map)] = Field(
        default=OnFailure(),
        description="Who is told that it fails, and that it works again.",
        json_schema_extra=lambda schema: _map_or_none(schema),
    )
    budget: Annotated[Budget | None, BeforeValidator(value_parsers.budget)] = Field(
        default=Budget(),
        description="What its runs may spend in a day. `unlimited`: as much as they like, and no warning.",
        json_schema_extra=lambda schema: _or_unlimited(schema),
    )


class Agent(Part):
    workspace: PathOrNone = key(None, "Its folder; every file read for it lies inside.", else_="`agents/NAME`")
    runner: Annotated[Annotated[Runner, Field(discriminator="kind")], BeforeValidator(value_parsers.runner)] = key(
        ModelRunner(kind="anthropic"), "How it is asked.", written={"kind": "anthropic"}
    )
    model: TextOrNone = key(None, "Its model.", else_="`claude-haiku-5-5` at Anthropic; else none: the runner's own choice")
    context: Annotated[tuple[str, ...], several(value_parsers.files, "file in the workspace, or list")] = key(
        (), "Files that go into the prompt.", written=[]
    )
    heartbeat: Heartbeat = key(Heartbeat(), "Its heartbeat.", written={})


class JobMisfire(Part):
    policy: Annotated[Misfire, choice(Misfire)] = key("latest", "`latest`: the latest missed slot runs; `skip`: none does.")
    grace: DurationOrNone = key(
        None, "How late a slot may start; waiting for a place does not count.", else_="half the period, at most 1h"
    )


class Job(Part):
    enabled: Truth = key(True, "Whether it fires.")
    schedule: TextOrNone = key(None, 'A cron expression, a macro like `@daily`, or `"@reboot"`.', else_="this, `every` or `at`")
    every: EveryOrNone = key(None, "A steady interval.", else_="this, `schedule` or `at`")
    at: TextOrNone = key(
        None, "Once: local time, `2026-12-24T18:00`, or with an offset or `Z`.", else_="this, `schedule` or `every`"
    )
    timezone: ZoneOrNone = key(None, "The zone of `schedule`, `at` and calendars.", else_="the top-level one")
    skip_on: Calendars = key((), "Calendars on whose days it rests.", written="none")
    only_on: Calendars = key((), "Calendars on whose days alone it fires.", written="none")
    command: Annotated[
        str | tuple[str, ...] | None, several(value_parsers.command, "text for the shell, or list without one")
    ] = key(None, "What it runs.", else_="none: it asks by `prompt`, or only wakes")
    prompt: TextOrNone = key(
        None, "What it asks `agent`, in place of a command: one run that stands alone, by the agent's runner and in its lane.",
        else_="none",
    )  # fmt: skip
    agent: TextOrNone = key(None, "Whom the prompt asks.", else_="required with `prompt`")
    model: TextOrNone = key(None, "The model that the prompt asks.", else_="the agent's")
    env: Environment = key((), "Variables for the command, beside PATH, HOME and LANG.", written={})
    workdir: PathOrNone = key(None, "Where the command runs.", else_="the config's folder")
    stdin: AnyText = key("", "What the command reads.")
    shell: Text = key("/bin/sh", "What runs a command that is text.")
    timeout: SomeDuration = key(timedelta(minutes=10), "How long one attempt may take.", written="10m")
    async_timeout: UpToADay = key(
        timedelta(hours=1), "How long the result of an agent that answers later may take; then the run has failed.", written="1h"
    )
    strip_reasoning: Truth = key(True, "Leaves a leading `<think>...</think>` out of what an answer to the prompt delivers.")
    retries: Annotated[int, whole(0, 10)] = key(0, "Further attempts; a command may not be safe to repeat.")
    stagger: Stagger = key(timedelta(0), "How far jobs are spread, by a stable hash of the name.", written=0)
    misfire: JobMisfire = key(JobMisfire(), "What becomes of a slot that could not start in time.", written={})
    rerun_after_crash: Truth = key(False, "Runs the command again when the daemon died during it.")
    deliver: Targets = key((), "Who gets the output.", written="none")
    on_failure: Annotated[JobOnFailure | None, BeforeValidator(value_parsers.no_or_map)] = Field(
        default=JobOnFailure(),
        description="Who is told that it fails, and that it works again.",
        json_schema_extra=lambda schema: _map_or_none(schema),
    )
    budget: Annotated[Budget | None, BeforeValidator(value_parsers.budget)] = Field(
        default=Budget(),
        description="What a prompt's runs may spend in a day. `unlimited`: as much as they like, and no warning.",
        json_schema_extra=lambda schema: _or_unlimited(schema),
    )
    wake_heartbeat: Annotated[tuple[str, ...], several(value_parsers.names, "agent or list")] = key(
        (), "Whose heartbeat it wakes.", written=[]
    )
    wake_on: Annotated[WakeOn, choice(WakeOn)] = key("always", "After which end it wakes.")
    wake_mode: Annotated[WakeMode, choice(WakeMode)] = key("now", "`next`: the wake waits for the agent's next slot.")
    wake_text: TextOrNone = key(None, "What the agent is told.", else_="the job, its outcome and the end of its output")


class Token(Part):
    value: SecretText = needed("The token itself, 16 bytes or more; from `${NAME}` or `${file:PATH}`.")
    may: Annotated[tuple[May, ...], several(value_parsers.rights, "list of `read`, `wake`, `operate`, `edit`")] = needed(
        "What it allows."
    )
    agents: WordsOrNone = key(None, "The agents that it is good for.", else_="all")


class Server(Part):
    listen: Text = key("127.0.0.1:7857", "Address and port; one that others can reach needs tokens. Port 0: any free one.")
    hosts: Words = key((), "Further names that a request may call this host by.", written=[])
    tokens: dict[str, Token] = key({}, "Who may do what over HTTP.", else_="one that may all is made up")
    metrics_entries: Annotated[int, whole(0, 1_000_000)] = key(1000, "Up to how many entries each has series of its own.")


class Limits(Part):
    concurrency: Annotated[int, whole(1, 1000)] = key(8, "How many runs at a time.")
    min_interval: Duration = key(
        timedelta(minutes=5), "The shortest interval where the runner calls a model; `0s`: any.", written="5m"
    )
    wake_gap: Duration = key(
        timedelta(seconds=30),
        "The shortest time between the end of a run and one that a wake starts; a job's wake waits so long for other jobs.",
        written="30s",
    )
    wake_flood: Annotated[tuple[int, timedelta], text(value_parsers.rate, "rate", pattern=r"^\d+ per \S+$")] = key(
        (5, timedelta(minutes=10)), "How many runs of an agent programs may start by wakes.", written="5 per 10m"
    )
    wake_keep: SomeDuration = key(timedelta(hours=24), "How long a wake waits to be told.", written="24h")
    shutdown_grace: Duration = key(timedelta(seconds=30), "How long runs may go on when the daemon stops.", written="30s")
    budget: Annotated[DayBudget | None, BeforeValidator(value_parsers.budget)] = Field(
        default=None,
        description="What all runs that ask an agent may spend together, in a day of the top-level zone.",
        json_schema_extra=lambda schema: _or_unlimited(schema),
    )


class Provider(Part):
    """Whom models are asked at."""

    kind: Annotated[ProviderKind | None, choice(ProviderKind)] = key(
        None, "What it speaks.", else_="the entry's name, if it is one of these"
    )
    api_key: Annotated[str | None, SECRET] = key(None, "The key; from `${NAME}` or `${file:PATH}`.", else_="none")
    base_url: Annotated[str | None, SECRET] = key(None, "Its server; http or https.", else_="that of Anthropic or OpenAI")


class Price(Part):
    input: Annotated[float, PRICE] = needed("For what is asked.")
    output: Annotated[float, PRICE] = needed("For what is answered.")
    cache_read: Annotated[float | None, PRICE] = key(None, "For what is read from the cache.", else_="as `input`")
    cache_write: Annotated[float | None, PRICE] = key(None, "For what is written to the cache.", else_="1.25 times `input`")


class Channel(Part):
    """Where messages go. A channel that is a text is its URL."""

    kind: Annotated[Transport | None, choice(Transport)] = key(
        None, "How it is spoken to.", else_="`telegram` for `tgram://`, `discord` for `discord://`, `apprise` for all others"
    )
    url: Annotated[str | None, SECRET] = key(
        None,
        "`tgram://TOKEN/CHAT`, `discord://ID/TOKEN`, a URL of Apprise; for `webhook` http or https. With `{target}` in the place"
        " of the chat it leads to whoever spoke with the agent last.",
        else_="required, but for a command",
    )
    argv: Annotated[
        tuple[str, ...],
        Form(value_parsers.argv, {"type": "array", "items": {"type": "string"}, "minItems": 1}, "list of texts"),
    ] = key(
        (),
        "For `command`: the program and its arguments, started in the folder of this file. The text is on its standard input;"
        " exit code 0 means delivered.",
        else_="required for a command",
    )
    base_url: Annotated[str | None, SECRET] = key(None, "Telegram's or Discord's server.", else_="their own")
    allow_private: Truth = key(
        False, "Allows addresses of this machine and of private networks; Apprise opens its own connections and may always."
    )
    uncertain: Annotated[Uncertain | None, choice(Uncertain)] = key(
        None,
        "What becomes of a message when nobody knows whether it arrived. Webhooks get a key to know repeats by; others are"
        " sent it once more.",
        else_="`resend`; for output of jobs on other channels than webhooks `hold`",
    )


@dataclass(frozen=True, slots=True)
class _OrText:
    """Tells an editor that a text may stand in place of the map."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


class Deadman(Part):
    """A dead man's switch: somebody elsewhere who notices when no ping comes any more."""

    url: SecretText = needed("What is pinged, as healthchecks.io has it; /start and /fail are added for a start and a failure.")
    every: SomeDuration = key(timedelta(minutes=1), "How often.", written="1m")
    allow_private: Truth = key(False, "Allows addresses of this machine and of private networks.")


class Network(Part):
    """How requests to providers, gateways, channels and the dead man's switch leave this machine."""

    proxy: SecretText = key(
        "environment",
        "`environment` (HTTPS_PROXY, HTTP_PROXY), `none`, or a URL. NO_PROXY holds for a URL too.",
    )
    ca_file: PathOrNone = key(None, "Certificates (PEM) of authorities that are trusted beside the system's.", else_="none")


class Calendar(Part):
    """Days that `skip_on` and `only_on` name."""

    dates: Annotated[tuple[DateRange, ...], several(value_parsers.dates, "date, `FIRST..LAST`, list")] = key(
        (), "Dates like `2026-12-25`, and ranges with both ends: `2026-12-24..2026-12-31`.", written=[]
    )
    days: Days = key(frozenset(), "Days of the week.", else_="none")

    @model_validator(mode="after")
    def _names_a_day(self) -> Self:
        if not (self.dates or self.days):
            raise ValueError("no day is named; write dates: [2026-12-25], or days: sat-sun")
        return self


class History(Part):
    keep: SomeDuration = key(timedelta(days=30), "How long rows are kept.", written="30d")
    runs: Annotated[int, whole(1, 10_000_000)] = key(1000, "How many rows are kept for each entry.")


class Defaults(Part):
    agent: Agent = key(Agent(), "For every agent.", written={})
    heartbeat: Heartbeat = key(Heartbeat(), "For every heartbeat.", written={})
    cron: Job = key(Job(), "For every job.", written={})


class Config(Part):
    timezone: Zone = key(ZoneInfo("UTC"), "The zone of windows and schedules that name none.", written="UTC")
    state: PathText = key("state/heartbeatd.db", "The database: a regular file, or none yet. A link is followed.")
    env_file: PathOrNone = key(None, "NAME=value lines, mode 0600, for `${NAME}`.", else_="none")
    server: Server = key(Server(), "The HTTP interface.", written={})
    network: Network = key(Network(), "How requests leave this machine.", written={})
    limits: Limits = key(Limits(), "Bounds for all entries.", written={})
    providers: dict[str, Provider] = key({}, "Whom models are asked at, by name.", else_="`anthropic`, without a key")
    prices: dict[str, Price] = key({}, "What models cost, by their name.", written={})
    channels: dict[str, Annotated[Channel, BeforeValidator(value_parsers.channel), _OrText()]] = key(
        {}, "Where messages go, by name. `log` is built in.", written={}
    )
    deadman: Annotated[Deadman | None, BeforeValidator(value_parsers.no_or_map)] = Field(
        default=None,
        description="Pinged by the daemon as long as it can do its work, so that somebody else notices when it cannot.",
        json_schema_extra=lambda schema: _or_none(schema),
    )
    calendars: dict[str, Calendar] = key({}, "Days by name, for `skip_on` and `only_on`.", written={})
    history: History = key(History(), "How long runs are remembered.", written={})
    agents: dict[str, Agent] = key({}, "Agents by name.", written={})
    cron: dict[str, Job] = key({}, "Jobs by name.", written={})
    defaults: Defaults = key(
        Defaults(),
        "What entries inherit: maps merge key by key; all else is replaced, and `active_hours` as a whole.",
        written={},
    )


def schema() -> dict[str, Any]:
    """JSON Schema of config.yaml as it is written, for an editor."""
    made = Config.model_json_schema()
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = "heartbeatd config.yaml"
    made["patternProperties"] = {"^x-": {}}
    return made


def _active_hours(schema: dict[str, Any]) -> None:
    window = schema.pop("items")
    schema.pop("type", None)
    schema.pop("default", None)
    one = [{"type": "string"}, window]
    schema["anyOf"] = [*one, {"type": "array", "items": {"anyOf": one}}]
    schema["default"] = "always"
    schema["x-form"] = "`always`, window, list"


def _map_or_none(schema: dict[str, Any]) -> None:
    """A map that is there unless `none` undoes it."""
    _or_none(schema)
    schema["default"] = {}


def _or_unlimited(schema: dict[str, Any]) -> None:
    """A map of bounds that `unlimited` undoes."""
    as_map = next(part for part in schema.pop("anyOf") if "$ref" in part)
    schema["anyOf"] = [{"const": "unlimited"}, as_map]
    schema["default"] = "unlimited"
    schema["x-form"] = "`unlimited`, map"


def _or_none(schema: dict[str, Any], *short: dict[str, Any]) -> None:
    """A map that `none` undoes, and that may be written in a `short` form."""
    as_map = next(part for part in schema.pop("anyOf") if "$ref" in part)
    schema["anyOf"] = [*(short or [{"const": "none"}]), as_map]
    schema["default"] = "none"
    schema["x-form"] = "`none`, command, map" if short else "`none`, map"
