"""The config in force: plain values that the daemon runs by, free of YAML, defaults and references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

from cron.job import Job
from heartbeat.spec import Agent, Heartbeat
from scheduler.model.budget import Allowances, Budget
from scheduler.model.secret import Secret

Permission = Literal["read", "wake", "operate", "edit"]
OnUncertain = Literal["resend", "hold"]

Proxy = Literal["environment", "none"] | Secret

LOG_CHANNEL = "log"  # the built-in channel
LAST_TARGET = "last"  # in `deliver`: whoever spoke with the agent last


@dataclass(frozen=True, slots=True)
class Token:
    """Who may do what over HTTP; `agents` None means all of them."""

    name: str
    value: Secret
    may: frozenset[Permission]
    agents: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Server:
    """Where the HTTP interface listens. `hosts` are further names that a Host header may hold; no `tokens`: one is made up."""

    host: str
    port: int
    hosts: tuple[str, ...]
    tokens: tuple[Token, ...]
    metrics_entries: int


@dataclass(frozen=True, slots=True)
class WakeRate:
    """At most `count` starts by wakes within `within`, per agent."""

    count: int
    within: timedelta


@dataclass(frozen=True, slots=True)
class Limits:
    concurrency: int
    min_interval: timedelta
    wake_gap: timedelta
    wake_flood: WakeRate
    wake_keep: timedelta
    shutdown_grace: timedelta
    budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class Channel:
    """Where messages go; `log` is built in. `kind` is one of `channels.registry`.

    `url` is None for the log and for a command, and if its secret is not set because nothing that is enabled uses the channel.
    `argv` is the program of a command, started in `folder`. `base_url` replaces a service's own server. `uncertain` says what
    happens to a message whose delivery is uncertain, if the config sets it. `limit` is the maximum length of one message, in
    UTF-16 units; None means no limit. `needs_target`: its URL has a {target} placeholder; such a channel can only be used
    through `deliver: last`.
    """

    name: str
    kind: str
    url: Secret | None
    allow_private: bool
    uncertain: OnUncertain | None
    base_url: Secret | None = None
    limit: int | None = None
    argv: tuple[str, ...] = ()
    folder: Path = Path()
    needs_target: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether all that it takes to send a message is there, and so whom to tell."""
        return not self.needs_target and (self.kind == LOG_CHANNEL or bool(self.argv) or self.url is not None)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a message goes: a channel, and the recipient there if the channel's URL leaves that open."""

    channel: str
    recipient: str = ""


@dataclass(frozen=True, slots=True)
class OnFailure:
    """Who is told of failures: of `after` in a row, again after each `remind`, on these channels; an `after` of 0: nobody."""

    after: int
    remind: timedelta
    deliver: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Network:
    """How requests leave.

    `proxy` is the environment's, none, or a URL. The authorities in `ca_file` are trusted beside the system's.
    """

    proxy: Proxy = "environment"
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Deadman:
    """Where somebody else notices when no ping comes any more, and how often one does."""

    url: Secret
    every: timedelta
    allow_private: bool


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs, in USD per million tokens."""

    input: float
    output: float
    cache_read: float
    cache_write: float


@dataclass(frozen=True, slots=True)
class History:
    """How long closed runs are kept, per entry: both bounds hold."""

    keep: timedelta
    runs: int


@dataclass(frozen=True, slots=True)
class Settings:
    """One valid config. `hash` is the SHA-256 (hex) of all that decided it: file, overrides and the secrets' names.

    `asked` are the agents whom jobs with a prompt ask, by the job's name.
    """

    path: Path
    hash: str
    zone: ZoneInfo
    state: Path
    server: Server
    limits: Limits
    history: History
    channels: Mapping[str, Channel]
    heartbeats: Mapping[str, Heartbeat]
    jobs: Mapping[str, Job]
    prices: Mapping[str, Price] = field(default_factory=dict)
    job_agents: Mapping[str, Agent] = field(default_factory=dict)
    deadman: Deadman | None = None
    network: Network = Network()
    allowances: Allowances = field(default_factory=dict)
