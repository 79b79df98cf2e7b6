"""Loading: config.yaml as the settings that the daemon runs by, or all that is wrong with it at once."""

from __future__ import annotations

import gc
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from cron.job import Job
from heartbeat.spec import Heartbeat
from scheduler.config import (
    agents,
    budgets,
    calendars,
    channels,
    deadman,
    fields,
    inherit,
    jobs,
    models,
    overrides,
    server,
    tree,
)
from scheduler.config.asked import Asked
from scheduler.config.budgets import Budgets
from scheduler.config.check import check
from scheduler.config.complaint import NOWHERE, Complaint, Complaints, Place
from scheduler.config.frame import Frame, Spot
from scheduler.config.models import schema
from scheduler.config.peek import LARGEST, folder_of, from_folder, open_regular, peek_state
from scheduler.config.prices import Prices
from scheduler.config.providers import Providers
from scheduler.config.runners import Runners
from scheduler.config.secrets import Vault, read_env_file
from scheduler.config.today import Today, faults
from scheduler.config.tree import Items, Map
from scheduler.settings import LAST, Flood, History, Limits, Settings
from scheduler.transports.address import SLOT

__all__ = ["Loaded", "Source", "load", "peek_state", "read", "schema"]

ONE_BY_ONE = ("agents", "cron")  # sections whose entries are checked each by itself, with what it inherits
RESERVED = ("log", "none", LAST)  # words that `deliver` has for itself


@dataclass(frozen=True, slots=True)
class Loaded:
    """A config that is right. `overrides` are the environment variables that changed it, by name."""

    settings: Settings
    warnings: tuple[Complaint, ...]
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The file as data, overrides and merges applied, before anything in it is understood."""

    root: Map
    agent: Map
    job: Map
    hash: str


def load(
    path: Path,
    environ: Mapping[str, str],
    *,
    resolve: bool = True,
    content: bytes | None = None,
    today: Today | None = None,
) -> Loaded:
    """Read and check a config wholly. Raises ConfigError with all its faults.

    Without `resolve` no secret is looked up: all are empty, and neither the env_file nor a referenced file is read. `content` is
    what to take for the file's own, to check it before it is there. Without `today` nothing is said of what has passed.
    """
    complaints = Complaints(str(path))
    with _collecting_later():
        source = read(path, environ, complaints, content)
        settings = _settings(path, source, environ if resolve else None, complaints, today)
    complaints.raise_if_any()
    return Loaded(settings, complaints.warnings, tuple(overrides.named(environ)))


def read(path: Path, environ: Mapping[str, str], complaints: Complaints, content: bytes | None = None) -> Source:
    """The file with its overrides. Raises ConfigError when it cannot be read as YAML."""
    content = _content(path, complaints) if content is None else content
    root = _root(text(content, complaints), complaints)
    if not isinstance(root, Map):
        complaints.fault(NOWHERE, "", "the file holds no keys; `heartbeatd init DIR` writes one to begin with")
        complaints.raise_if_any()
    root = overrides.apply(root, environ, complaints)
    complaints.homes = _homes(root)
    return Source(root, _agent_defaults(root), _map(root, "defaults", "cron"), _hash(content, environ))


def _settings(
    path: Path, source: Source, environ: Mapping[str, str] | None, complaints: Complaints, today: Today | None
) -> Settings:
    root = source.root
    config = _config(root, complaints)
    _check_defaults(root, complaints)
    folder = folder_of(path)
    vault = Vault(folder, _with_env_file(root, config, folder, environ, complaints))
    names = _entries(root, "agents", complaints)
    targets = ["log", *_entries(root, "channels", complaints)]
    to_last = tuple(name for name, part in config.channels.items() if SLOT in (part.url or ""))
    frame = Frame(
        folder,
        config.timezone,
        config.limits.min_interval,
        names,
        targets,
        calendars.named(config.calendars, _entries(root, "calendars", complaints)),
        vault,
        complaints,
        to_last,
        (*targets, LAST),
    )
    _entries(root, "providers", complaints)
    providers, prices = Providers(config.providers, _spot(root, frame, "providers")), Prices(config.prices)
    runners = Runners(providers, prices)
    asked = Asked(_map(root, "cron"), source.job, runners, prices)
    limits = _limits(config.limits, config.timezone)
    allowed = Budgets(limits.budget, prices, _map(root, "prices"))
    heartbeats = _heartbeats(root, source.agent, runners, asked, allowed, frame)
    providers.tell()
    beats = {name: heartbeats.get(name) for name in names}
    found_jobs = _jobs(root, source.job, asked, allowed, beats, frame)
    if allowed.unbound:
        section = "agents" if "agents" in root else "cron"
        complaints.warn(root.marks[section][0], section, _unbound(allowed.unbound))
    if not names and not _entries(root, "cron", complaints):
        complaints.fault(NOWHERE, "", "there is nothing to do; declare agents: or cron:")
    entries: list[Heartbeat | Job] = [*heartbeats.values(), *found_jobs.values()]
    used = {channel for entry in entries if entry.enabled for channel in (*entry.deliver, *entry.on_failure_deliver)}
    used |= set(to_last) if LAST in used else set()
    settings = Settings(
        path=path,
        hash=source.hash,
        zone=config.timezone,
        state=frame.path(config.state),
        server=server.server(config.server, _spot(root, frame, "server")),
        limits=limits,
        history=History(config.history.keep, config.history.runs),
        channels=channels.channels(config.channels, used, _spot(root, frame, "channels")),
        heartbeats=heartbeats,
        jobs=found_jobs,
        prices=prices.known,
        asked=asked.of_jobs,
        deadman=deadman.deadman(config.deadman, _spot(root, frame, "deadman")),
        allowances=allowed.known,
    )
    if today is not None:
        complaints.raise_if_any()  # what is wrong at any time has no place in time
        _judge(settings, today, source, frame)
    return settings


def _judge(settings: Settings, today: Today, source: Source, frame: Frame) -> None:
    """Note what time has made wrong of settings that are right."""
    for section, name, inside, message in faults(settings, today):
        spot = _entry(source.root, section, name, source.agent if section == "agents" else source.job, frame)
        say = spot.fault if today.strict else spot.warn
        say(message, *inside)


def _root(text: str, complaints: Complaints) -> Any:
    try:
        return tree.read(text, complaints)
    except tree.Unreadable:
        complaints.raise_if_any()
        raise


def _config(root: Map, complaints: Complaints) -> models.Config:
    """All but the entries. Of one with faults, what is right, so that what builds on it can be checked too."""
    plain = {key: value for key, value in root.items() if key not in (*ONE_BY_ONE, "defaults") and not key.startswith("x-")}
    if config := check(models.Config, Map(plain, root.marks), (), NOWHERE, complaints):
        return config
    parts = {key: Map({key: value}, root.marks) for key, value in plain.items()}
    sound = [key for key, part in parts.items() if check(models.Config, part, (), NOWHERE, complaints)]
    return models.Config.model_validate({key: plain[key] for key in sound})


def _limits(part: models.Limits, zone: ZoneInfo) -> Limits:
    flood = Flood(*part.wake_flood)
    budget = budgets.day_budget(part.budget, zone) if part.budget else None
    return Limits(part.concurrency, part.min_interval, part.wake_gap, flood, part.wake_keep, part.shutdown_grace, budget)


def _check_defaults(root: Map, complaints: Complaints) -> None:
    if "defaults" not in root:
        return
    check(models.Defaults, root["defaults"], ("defaults",), root.marks["defaults"][0], complaints, part=True)


def _heartbeats(root: Map, defaults: Map, runners: Runners, asked: Asked, allowed: Budgets, frame: Frame) -> dict[str, Heartbeat]:
    found = {}
    silent = 0
    for name in _entries(root, "agents", frame.complaints):
        spot = _entry(root, "agents", name, defaults, frame)
        if agent := check(models.Agent, spot.written, spot.steps, spot.place, frame.complaints):
            found[name] = agents.build(name, agent, spot, runners)
            asked.note(agent, found[name], spot)
            allowed.of_heartbeat(found[name], agent.heartbeat.budget, spot)
            silent += agents.silent_by_default(agent, frame)
    if silent:
        place = root.marks["agents"][0]
        frame.complaints.warn(place, "agents", f"no deliver: is given for {_many(silent)}; messages go to the log")
    return found


def _jobs(
    root: Map, defaults: Map, asked: Asked, allowed: Budgets, beats: Mapping[str, Heartbeat | None], frame: Frame
) -> dict[str, Job]:
    found = {}
    for name in _entries(root, "cron", frame.complaints):
        spot = _entry(root, "cron", name, defaults, frame)
        if job := check(models.Job, spot.written, spot.steps, spot.place, frame.complaints):
            agent = asked.find(name, job, spot)
            found[name] = jobs.build(name, job, spot, beats, agent)
            allowed.of_job(found[name], agent, job.budget, spot)
    return found


def _entry(root: Map, section: str, name: str, defaults: Map, frame: Frame) -> Spot:
    own = root[section][name]
    written = own
    if own is None or isinstance(own, Map):
        merge = inherit.merge_agent if section == "agents" else inherit.merge_job
        written = merge(defaults, own or Map())
    return Spot((section, name), written, root[section].marks[name][0], frame, own)


def _spot(root: Map, frame: Frame, section: str) -> Spot:
    return Spot((section,), _map(root, section), root.marks[section][0] if section in root else NOWHERE, frame)


def _entries(root: Map, section: str, complaints: Complaints) -> Map:
    """The entries of a section whose names are right."""
    entries = root.get(section)
    if not isinstance(entries, Map):
        if entries is not None and section in ONE_BY_ONE:
            complaints.fault(root.marks[section][1], section, "a map is wanted here: names, each with its keys")
        return Map()
    for name in entries:
        if problem := _name_problem(section, name):
            complaints.fault(entries.marks[name][0], tree.dotted([section, name]), problem)
    return entries


def _name_problem(section: str, name: str) -> str:
    if section == "channels" and name in RESERVED:
        return f"{name} has a meaning of its own in deliver:; use another name"
    if section == "calendars" and name == "none":
        return "none has a meaning of its own in skip_on:; use another name"
    try:
        fields.name(name)
    except ValueError as error:
        return str(error)
    return ""


def _agent_defaults(root: Map) -> Map:
    """What agents inherit: defaults.heartbeat, with the heartbeat of defaults.agent on top."""
    beat, agent = _map(root, "defaults", "heartbeat"), _map(root, "defaults", "agent")
    if not beat:
        return agent
    marks = _map(root, "defaults").marks["heartbeat"]
    return inherit.merge_agent(Map({"heartbeat": beat}, {"heartbeat": marks}), agent)


def _map(node: Any, *steps: str) -> Map:
    for step in steps:
        node = node.get(step) if isinstance(node, Map) else None
    return node if isinstance(node, Map) else Map()


def _homes(root: Map) -> dict[tuple[int, int], str]:
    """The path of every value under `defaults`, by its place."""
    homes: dict[tuple[int, int], str] = {}
    if "defaults" in root:
        _settle(root["defaults"], ["defaults"], homes)
    return homes


def _settle(node: Any, steps: list[str | int], homes: dict[tuple[int, int], str]) -> None:
    """Note the places of keys and of values that are no maps: a map begins where its first key does.

    A place that is noted already has been reached by another alias, and all within it with it.
    """
    for step, at, value in _inside(node):
        inner = [*steps, step]
        place = (at.line, at.column)
        if place in homes and isinstance(value, Map | Items):
            continue
        if isinstance(step, str) or not isinstance(value, Map):
            homes.setdefault(place, tree.dotted(inner))
        if isinstance(node, Map) and not isinstance(value, Map):
            mark = node.marks[str(step)][1]
            homes.setdefault((mark.line, mark.column), tree.dotted(inner))
        _settle(value, inner, homes)


def _inside(node: Any) -> Iterator[tuple[str | int, Place, Any]]:
    if isinstance(node, Map):
        yield from ((key, node.marks[key][0], value) for key, value in node.items())
    if isinstance(node, Items):
        yield from ((index, node.marks[index], value) for index, value in enumerate(node))


def _with_env_file(
    root: Map, config: models.Config, folder: Path, environ: Mapping[str, str] | None, complaints: Complaints
) -> Mapping[str, str] | None:
    """The environment on top of the env_file; None when secrets are not to be looked up."""
    if environ is None or config.env_file is None:
        return environ
    try:
        return {**read_env_file(from_folder(folder, config.env_file)), **environ}
    except ValueError as error:
        complaints.fault(root.marks["env_file"][1], "env_file", str(error))
    return environ


def _content(path: Path, complaints: Complaints) -> bytes:
    try:
        with open_regular(path) as file:
            check_owner(os.fstat(file.fileno()), path, complaints)
            content = file.read(LARGEST + 1)
    except OSError as error:
        complaints.fault(
            NOWHERE, "", f"cannot be read: {error.strerror or error}; `heartbeatd init DIR` writes a config to begin with"
        )
        content = b""
    if len(content) > LARGEST:
        complaints.fault(NOWHERE, "", f"is larger than {LARGEST // 1024**2} MiB")
    complaints.raise_if_any()
    return content


def check_owner(found: os.stat_result, path: Path, complaints: Complaints) -> None:
    """A config is code, as a crontab is: who may write it runs commands."""
    if found.st_mode & stat.S_IWOTH:
        complaints.fault(NOWHERE, "", f"everybody may write this file, and with it run commands; do: chmod o-w {path}")
    elif found.st_mode & stat.S_IWGRP:
        complaints.warn(NOWHERE, "", f"its group may write this file, and with it run commands; do: chmod g-w {path}")
    if found.st_uid not in (0, os.geteuid()):
        complaints.warn(NOWHERE, "", f"this file belongs to another user (id {found.st_uid}), who can run commands with it")


def text(content: bytes, complaints: Complaints) -> str:
    """The content as text; raises ConfigError for what is no UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        place = _Byte(before.count("\n"), len(before) - before.rfind("\n") - 1)
        complaints.fault(place, "", f"the byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8")
        complaints.raise_if_any()
        raise


@dataclass(frozen=True, slots=True)
class _Byte:
    line: int
    column: int


def _hash(content: bytes, environ: Mapping[str, str]) -> str:
    """SHA-256 (hex) of the file and of the overrides."""
    digest = sha256(content)
    for variable, text in overrides.named(environ).items():
        digest.update(f"\0{variable}\0{text}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _unbound(number: int) -> str:
    who = f"{_many(number)} that {'asks' if number == 1 else 'ask'} a model"
    line = "defaults: {heartbeat: {budget: {usd_per_day: 1.00}}}"
    return f"nothing bounds what is spent by {who}; write {line}, or budget: unlimited if you mean it"


def _many(number: int) -> str:
    return "one agent" if number == 1 else f"{number:,} agents"


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Reading makes hundreds of thousands of objects and no cycles; looking for those meanwhile would take half the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
