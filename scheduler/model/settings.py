"""Defines the active config as plain values, with all defaults and references resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

from cron.job import Job
from heartbeat.hours import Calendar
from heartbeat.spec import Agent, Heartbeat
from heartbeatd.operations import Permission
from heartbeatd.secret import Secret
from scheduler.model.budget import Allowances, Budget, Price
from scheduler.model.outcome import Kind

PageAccess = Literal["login", "open"]
OnUncertain = Literal["resend", "hold"]
ReloadMode = Literal["watch", "manual"]
ExecutorKind = Literal["local", "procrastinate"]

Proxy = Literal["environment", "none"] | Secret

LOG_CHANNEL = "log"  # the built-in channel
LAST_TARGET = "last"  # in `deliver`: where the agent's user wrote from most recently

PREFIX_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")


@dataclass(frozen=True, slots=True)
class Token:
    """A client of the HTTP interface and its permissions. `agents` None means all agents."""

    name: str
    value: Secret
    may: frozenset[Permission]
    agents: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Server:
    """Where the HTTP interface listens. `hosts` are further accepted Host headers, and
    `public_url` is the URL at which users reach it, without a slash at its end. Without `tokens` one is generated.
    `page` is whether the status page asks for a token."""

    host: str
    port: int
    hosts: tuple[str, ...]
    tokens: tuple[Token, ...]
    metrics_entries: int
    public_url: str | None = None
    page: PageAccess = "login"


@dataclass(frozen=True, slots=True)
class WakeRate:
    """At most `count` runs started by wakes within `within`, per agent."""

    count: int
    within: timedelta


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the daemon as a whole."""

    concurrency: int
    wake_gap: timedelta
    wake_flood: WakeRate
    wake_keep: timedelta
    shutdown_grace: timedelta
    new_problems: int
    budget: Budget | None = None


def utf16_length(text: str) -> int:
    """The length of a text in UTF-16 units, in which services count."""
    return len(text) + sum(character > "\uffff" for character in text)


@dataclass(frozen=True, slots=True)
class Channel:
    """Where messages are sent. The channel `log` is built in.

    `url` is None for the log and for a command, and if no enabled entry uses the channel and its secret is not set. `argv` is the
    program of a command channel, started in `folder`. `base_url` replaces the service's own server. `uncertain` is what happens
    to a message that may have arrived, if the config sets it. `limit` is the longest message in UTF-16 units; None: any length.
    `needs_target`: the URL has a `{target}` placeholder; such channels can only be used through `deliver: last`. `prefix` is the
    template of what each message begins with, empty for none. `host` is the name of this machine in messages. Requests are
    signed with `signing_secret` in the header `signature_header`; None: they are not signed. With `buttons`, messages have
    buttons. Links begin with `public_url`, the address of the daemon, empty if it is not known.
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
    prefix: str = ""
    host: str = ""
    signing_secret: Secret | None = None
    signature_header: str = ""
    buttons: bool = False
    people: tuple[str, ...] = ()  # who may answer messages: user names in lower case, or numbers
    public_url: str = ""

    def prefix_for(self, kind: str, name: str, title: str) -> str:
        """The prefix of messages from this agent or job; empty if the channel has none, or if it would leave too little room.

        A message about a provider (its title is `provider NAME`) names the provider, not the agent that found the failure. One
        about the daemon itself has the title `daemon`.
        """
        noun, who = "agent" if kind == Kind.HEARTBEAT else "job", name
        if title != name:
            noun, _, who = title.partition(" ")
            who = who or noun
        values = {"agent": who, "host": self.host, "kind": noun}
        prefix = PREFIX_PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), self.prefix)
        return "" if self.limit is not None and 2 * utf16_length(prefix) > self.limit else prefix

    def limit_for(self, kind: str, name: str, title: str) -> int | None:
        """The longest text of one message from this agent or job, in UTF-16 units, without the prefix; None: any length."""
        prefix = self.prefix_for(kind, name, title)
        return self.limit if self.limit is None or not prefix else self.limit - utf16_length(prefix) - 1

    @property
    def can_be_answered(self) -> bool:
        """Whether people can press buttons below its messages, or reply to them."""
        return self.buttons or bool(self.people)

    @property
    def is_usable(self) -> bool:
        """Whether messages can be sent to it without a further target."""
        return not self.needs_target and (self.kind == LOG_CHANNEL or bool(self.argv) or self.url is not None)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a message goes: a channel, and the recipient there if the channel's URL leaves that open."""

    channel: str
    recipient: str = ""

    @property
    def label(self) -> str:
        """The channel, with the recipient if there is one."""
        return f"{self.channel}:{self.recipient}" if self.recipient else self.channel


@dataclass(frozen=True, slots=True)
class Network:
    """How requests leave the machine.

    `proxy` is the environment's, none, or a URL. The authorities in `ca_file` are trusted in addition to the system's.
    """

    proxy: Proxy = "environment"
    ca_file: Path | None = None


DEFAULT_CLUSTER = "heartbeatd"  # default of `executor.queue`, the prefix of all queue names, which names a cluster


@dataclass(frozen=True, slots=True)
class RemoteQueue:
    """The queue through which workers on other machines execute the runs: a PostgreSQL database, and a name in it.

    A worker that has not renewed its lease for the time `lease` has lost its runs.
    """

    dsn: Secret
    name: str
    lease: timedelta


@dataclass(frozen=True, slots=True)
class Deadman:
    """The dead man's switch: the URL that is pinged, and how often."""

    url: Secret
    every: timedelta
    allow_private: bool


@dataclass(frozen=True, slots=True)
class History:
    """How long closed runs are kept, per entry. Both limits apply."""

    keep: timedelta
    runs: int


@dataclass(frozen=True, slots=True)
class Settings:
    """One valid config."""

    path: Path
    hash: str  # the SHA-256 (hex) of everything that it depends on: file, overrides and the names of the secrets
    zone: ZoneInfo
    state: Path  # the database file. With `postgresql` there is none, and only the other files of the daemon are in its folder
    server: Server
    limits: Limits
    history: History
    channels: Mapping[str, Channel]
    heartbeats: Mapping[str, Heartbeat]
    jobs: Mapping[str, Job]
    prices: Mapping[str, Price] = field(default_factory=dict)  # by model, or by PROVIDER/MODEL
    job_agents: Mapping[str, Agent] = field(default_factory=dict)  # that jobs with a prompt call, by the name of the job
    deadman: Deadman | None = None
    network: Network = Network()
    reload: ReloadMode = "watch"
    allowances: Allowances = field(default_factory=dict)
    host: str = ""  # the name of this machine in messages
    calendars: Mapping[str, Calendar] = field(default_factory=dict)
    deliver: tuple[str, ...] = ()  # the channels of the defaults, which get the problems of the daemon
    traces: bool = False  # whether OpenTelemetry traces are sent
    remote: RemoteQueue | None = None  # the queue of the workers that execute the runs; None: the daemon does
    postgresql: str | None = None  # the address of a server with the database; None: it is a file

    @property
    def enabled_agents(self) -> list[Agent]:
        """The enabled heartbeats, and the agents that enabled jobs call."""
        of_jobs = [agent for name, agent in self.job_agents.items() if self.jobs[name].enabled]
        return [*(beat for beat in self.heartbeats.values() if beat.enabled), *of_jobs]

    @property
    def database(self) -> Path | str:
        """The database: a file, or the address of a server."""
        return self.postgresql or self.state
