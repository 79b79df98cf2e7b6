"""What config.yaml says about one agent and its heartbeat, every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

from heartbeat.calendars import ALL_DAYS, AllowedDays
from heartbeat.hours import Hours

OnMissing = Literal["skip", "create", "run"]
OkMatch = Literal["edges", "anywhere", "exact"]
DedupNormalize = Literal["text", "numbers"]
ProviderKind = Literal["anthropic", "openai"]


@dataclass(frozen=True, slots=True)
class CommandRunner:
    """Ask the agent by running a program: the prompt goes in on stdin, the answer comes out on stdout.

    `env` values may be opaque secrets; only the process that is started sees them in plain text.
    """

    argv: tuple[str, ...]
    env: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Provider:
    """Whom a model is asked at.

    `api_key` may be an opaque secret, or None as for a server of one's own. Without `base_url` it is the kind's own.
    """

    name: str
    kind: ProviderKind
    api_key: object | None
    base_url: object | None


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """Ask a model directly, in one turn and without tools."""

    provider: Provider
    max_output_tokens: int


@dataclass(frozen=True, slots=True)
class HttpRunner:
    """Ask the agent behind a URL: the run as JSON in a POST, the answer in its response, or later (202).

    `headers` may hold opaque secrets. Private addresses are allowed: agents live beside the daemon.
    """

    url: object
    headers: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PythonRunner:
    """Ask a callable, named `package.module:function`; in a child process unless `in_process`."""

    call: str
    in_process: bool


Runner = CommandRunner | ModelRunner | HttpRunner | PythonRunner


@dataclass(frozen=True, slots=True)
class Decide:
    """Let a model decide first whether there is something to do; only then is the agent's own runner asked."""

    runner: ModelRunner
    model: str


@dataclass(frozen=True, slots=True)
class Precheck:
    """A line for the shell that looks whether there is anything to ask about.

    `unchanged` is what becomes of a beat when it prints the same as last time, `on_error` when it fails.
    """

    command: str
    unchanged: Literal["skip", "run"]
    on_error: Literal["skip", "run"]
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One agent's heartbeat as declared.

    `interval` None means the agent beats by `schedule`, a cron text read in `zone`, or, where that is None too, only when
    woken. `backoff_on_failure` doubles the interval after each failed beat. `checklist` is a file name inside `workspace`, or
    the text itself when it holds a line break.
    `model` is what heartbeat runs ask for: the heartbeat's own, else the agent's, else None.
    `session_keep` is how many messages of earlier beats an agent is reminded of; 0: each beat stands alone.
    After `on_failure_after` failures in a row (0: never) it is told on `on_failure_deliver`, where that is empty on `deliver`,
    and again after each `on_failure_remind`.
    `calendars` are asked for the days on which it may run.
    `memory` are the files that are read where the checklist is missing or empty and the agent beats all the same.
    An agent that answers later has `async_timeout` for its result. With `strip_reasoning` a leading `<think>` block of an
    answer is neither judged nor delivered.
    """

    name: str
    enabled: bool
    interval: timedelta | None
    stagger: timedelta
    hours: Hours
    zone: ZoneInfo
    grace: timedelta
    workspace: Path
    runner: Runner
    model: str | None
    prompt: str | None
    checklist: str
    on_missing: OnMissing
    on_empty: Literal["skip", "run"]
    context: tuple[str, ...]
    light_context: bool
    retries: int
    timeout: timedelta
    ok_match: OkMatch
    ack_max_chars: int
    show_ok: bool
    show_alerts: bool
    dedup_window: timedelta
    dedup_normalize: DedupNormalize
    deliver: tuple[str, ...]
    decide: Decide | None = None
    session_keep: int = 0
    schedule: str | None = None
    backoff_on_failure: bool = False
    precheck: Precheck | None = None
    memory: tuple[str, ...] = ()
    max_input_tokens: int = 50_000
    on_failure_after: int = 0
    on_failure_remind: timedelta = timedelta(0)
    on_failure_deliver: tuple[str, ...] = ()
    calendars: AllowedDays = ALL_DAYS
    async_timeout: timedelta = timedelta(hours=1)
    strip_reasoning: bool = True

    @property
    def reads_checklist(self) -> bool:
        """Whether the checklist is a file, and not the text itself."""
        return "\n" not in self.checklist


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent as it is asked outside of its heartbeat: without what holds for that alone, its model and its provider.

    `model` None leaves the choice to the agent; `zone` is that of the time in its prompt.
    """

    name: str
    zone: ZoneInfo
    workspace: Path
    runner: Runner
    model: str | None
    context: tuple[str, ...]
    max_input_tokens: int
