"""Loading: config.yaml as the settings that the daemon runs by, or all that is wrong with it at once."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from zoneinfo import ZoneInfo

from cron.job import Job
from heartbeat.spec import Heartbeat
from scheduler.channels.address import SLOT
from scheduler.config.build import agents, budgets, calendar_days, channels, http_settings, jobs, network
from scheduler.config.build.budgets import Budgets
from scheduler.config.build.config_data import Source, map_at, read
from scheduler.config.build.config_node import UNKNOWN, Frame, Spot
from scheduler.config.build.missing_files import lacking
from scheduler.config.build.prices import Prices
from scheduler.config.build.prompt_agents import Asked
from scheduler.config.build.providers import Providers
from scheduler.config.build.runners import Runners
from scheduler.config.build.secrets import Vault, read_env_file
from scheduler.config.build.time_checks import Today, faults
from scheduler.config.file import inheritance, marked_yaml, overrides
from scheduler.config.file.diagnostics import NOWHERE, Complaint, Complaints, Place
from scheduler.config.file.lenient_reading import folder_of, from_folder, peek_state, real_path
from scheduler.config.file.marked_yaml import Map
from scheduler.config.file.message_parts import counted
from scheduler.config.keys import models, value_parsers
from scheduler.config.keys.models import schema
from scheduler.config.keys.validation import Checked, PartT, check
from scheduler.model.outcome import Kind
from scheduler.model.settings import LAST, Flood, History, Limits, Settings

__all__ = ["Loaded", "load", "peek_state", "schema"]

ONE_BY_ONE = ("agents", "cron")  # sections whose entries are checked each by itself, with what it inherits
RESERVED = ("log", "none", LAST)  # words that `deliver` has for itself


@dataclass(frozen=True, slots=True)
class Loaded:
    """A config that is right. `overrides` are the environment variables that changed it, by name."""

    settings: Settings
    warnings: tuple[Complaint, ...]
    overrides: tuple[str, ...]


def load(
    path: Path,
    environ: Mapping[str, str],
    *,
    resolve: bool = True,
    content: bytes | None = None,
    root: Map | None = None,
    today: Today | None = None,
    look: bool = False,
) -> Loaded:
    """Read and check a config wholly. Raises ConfigError with all its faults.

    Without `resolve` no secret is looked up: all are empty, and neither the env_file nor a referenced file is read. `content` is
    what to take for the file's own, to check it before it is there, and `root` what that holds, if it has been read already.
    Without `today` nothing is said of what has passed; with `look`, files, folders and programs that are not there are warned
    about.
    """
    complaints = Complaints(str(path))
    with collecting_later():
        source = read(path, environ, complaints, content, root)
        settings = _settings(path, source, environ if resolve else None, complaints, today, look=look)
    complaints.raise_if_any()
    return Loaded(settings, complaints.warnings, tuple(overrides.named(environ)))


def _settings(
    path: Path, source: Source, environ: Mapping[str, str] | None, complaints: Complaints, today: Today | None, *, look: bool
) -> Settings:
    root = source.root
    checked = _config(root, complaints)
    config = checked.model
    _check_defaults(root, complaints)
    folder = folder_of(path)
    vault = Vault(folder, _with_env_file(root, config, folder, environ, complaints))
    frame = _frame(root, config, folder, vault, complaints)
    _entries(root, "providers", complaints)
    spots = {
        section: _spot(root, checked, frame, section) for section in ("providers", "server", "channels", "deadman", "network")
    }
    providers = Providers(config.providers, spots["providers"])
    prices = Prices(config.prices, map_at(root, "prices"))
    runners = Runners(providers, prices)
    asked = Asked(map_at(root, "cron"), source.job, runners, prices)
    limits = _limits(config.limits, config.timezone)
    allowed = Budgets(limits.budget, prices)
    heartbeats = _heartbeats(root, source.agent, runners, asked, allowed, frame)
    providers.tell()
    beats = {name: heartbeats.get(name) for name in frame.agents}
    found_jobs = _jobs(root, source.job, asked, allowed, beats, frame)
    for kind, number in allowed.unbound.items():
        section, told = _unbound(kind, number)
        if number:
            complaints.warn(root.marks[section][0], section, told)
    if not frame.agents and not _entries(root, "cron", complaints) and not _might_hold_entries(root, complaints):
        complaints.fault(NOWHERE, "", "there is nothing to do; declare agents: or cron:")
    used = _used([*heartbeats.values(), *found_jobs.values()], frame)
    settings = Settings(
        path=path,
        hash=source.hash,
        zone=config.timezone,
        state=real_path(frame.path(config.state)),
        server=http_settings.server(config.server, spots["server"]),
        limits=limits,
        history=History(config.history.keep, config.history.runs),
        channels=channels.channels(config.channels, used, spots["channels"]),
        heartbeats=heartbeats,
        jobs=found_jobs,
        prices=prices.known,
        asked=asked.of_jobs,
        deadman=network.deadman(config.deadman, spots["deadman"]),
        network=network.network(config.network, spots["network"]),
        allowances=allowed.known,
    )
    if today is not None:
        complaints.raise_if_any()  # what is wrong at any time has no place in time
        _judge(settings, today, source, frame)
    if look:
        complaints.raise_if_any()
        _look(settings, source, frame)
    return settings


def _frame(root: Map, config: models.Config, folder: Path, vault: Vault, complaints: Complaints) -> Frame:
    names = _entries(root, "agents", complaints)
    targets = ["log", *_entries(root, "channels", complaints)]
    to_last = tuple(name for name, part in config.channels.items() if SLOT in (part.url or ""))
    return Frame(
        folder,
        config.timezone,
        config.limits.min_interval,
        names,
        targets,
        calendar_days.named(config.calendars, _entries(root, "calendars", complaints)),
        vault,
        complaints,
        to_last,
        (*targets, LAST),
    )


def _used(entries: Iterable[Heartbeat | Job], frame: Frame) -> set[str]:
    """The channels that what is enabled tells."""
    used = {channel for entry in entries if entry.enabled for channel in (*entry.deliver, *entry.on_failure_deliver)}
    return used | set(frame.open) if LAST in used else used


def _look(settings: Settings, source: Source, frame: Frame) -> None:
    """Warn about what the settings name and what is not there."""
    for section, name, inside, message in lacking(settings):
        if section == "channels":
            Spot((section,), map_at(source.root, section), NOWHERE, frame).warn(message, name, *inside)
        else:
            defaults = source.agent if section == "agents" else source.job
            _entry(source.root, section, name, defaults, frame).warn(message, *inside)


def _judge(settings: Settings, today: Today, source: Source, frame: Frame) -> None:
    """Note what time has made wrong of settings that are right."""
    for section, name, inside, message in faults(settings, today):
        spot = _entry(source.root, section, name, source.agent if section == "agents" else source.job, frame)
        say = spot.fault if today.strict else spot.warn
        say(message, *inside)


def _config(root: Map, complaints: Complaints) -> Checked[models.Config]:
    """All but the entries."""
    plain = {key: value for key, value in root.items() if key not in (*ONE_BY_ONE, "defaults") and not key.startswith("x-")}
    return check(models.Config, Map(plain, root.marks), (), NOWHERE, complaints)


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
        spot, agent = _checked(models.Agent, _entry(root, "agents", name, defaults, frame))
        found[name] = agents.build(name, agent, spot, runners)
        asked.note(agent, found[name], spot)
        if not spot.lost:
            allowed.of_heartbeat(found[name], agent.heartbeat.budget, spot)
        silent += agents.silent_by_default(agent, frame)
    if silent:
        place = root.marks["agents"][0]
        frame.complaints.warn(place, "agents", f"no deliver: is given for {counted(silent, 'agent')}; messages go to the log")
    return found


def _jobs(
    root: Map, defaults: Map, asked: Asked, allowed: Budgets, beats: Mapping[str, Heartbeat | None], frame: Frame
) -> dict[str, Job]:
    found = {}
    for name in _entries(root, "cron", frame.complaints):
        spot, job = _checked(models.Job, _entry(root, "cron", name, defaults, frame))
        agent = asked.find(name, job, spot)
        found[name] = jobs.build(name, job, spot, beats, agent)
        if not spot.lost:
            allowed.of_job(found[name], agent, job.budget, spot)
    return found


def _checked(model: type[PartT], spot: Spot) -> tuple[Spot, PartT]:
    """An entry as its model, and its spot with what was put right in it and what was lost."""
    complaints = spot.frame.complaints
    checked = check(model, spot.written, spot.steps, spot.place, complaints)
    lost = checked.lost | _unknown(spot.steps, complaints) if complaints.refused else checked.lost
    if checked.node is spot.written and not lost:
        return spot, checked.model
    return replace(spot, written=checked.node, lost=lost), checked.model


def _unknown(steps: Sequence[str], complaints: Complaints) -> dict[tuple[str | int, ...], Place]:
    """The keys that nobody could understand, of an entry and of what it inherits."""
    homes: dict[tuple[str, ...], tuple[str, ...]] = {tuple(steps): ()}
    if steps[0] == "cron":
        homes[("defaults", "cron")] = ()
    else:
        homes |= {("defaults", "agent"): (), ("defaults", "heartbeat"): ("heartbeat",)}
    return {
        (*inside, *where[len(home) :], UNKNOWN): place
        for where, place in complaints.unknown.items()
        for home, inside in homes.items()
        if where[: len(home)] == home
    }


def _entry(root: Map, section: str, name: str, defaults: Map, frame: Frame) -> Spot:
    own = root[section][name]
    written = own
    if own is None or isinstance(own, Map):
        merge = inheritance.merge_agent if section == "agents" else inheritance.merge_job
        written = merge(defaults, own or Map())
    return Spot((section, name), written, root[section].marks[name][0], frame, own)


def _spot(root: Map, checked: Checked[models.Config], frame: Frame, section: str) -> Spot:
    """A section of its own; parts with faults are there too, as they are written."""
    own, right = map_at(root, section), map_at(checked.node, section)
    place = root.marks[section][0] if section in root else NOWHERE
    lost = {steps[1:]: at for steps, at in checked.lost.items() if steps[:1] == (section,)}
    return Spot((section,), Map({**own, **right}, {**own.marks, **right.marks}), place, frame, None, lost)


def _entries(root: Map, section: str, complaints: Complaints) -> Map:
    """The entries of a section whose names are right."""
    entries = root.get(section)
    if not isinstance(entries, Map):
        if entries is not None and section in ONE_BY_ONE:
            complaints.fault(root.marks[section][1], section, "a map is wanted here: names, each with its keys")
        return Map()
    for name in entries:
        if problem := _name_problem(section, name):
            complaints.fault(entries.marks[name][0], marked_yaml.dotted([section, name]), problem)
    return entries


def _might_hold_entries(root: Map, complaints: Complaints) -> bool:
    """Whether agents or jobs are perhaps there, in a form or under a name with faults."""
    return complaints.partial or () in complaints.unknown or any(root.get(section) for section in ONE_BY_ONE)


def _name_problem(section: str, name: str) -> str:
    if section == "channels" and name in RESERVED:
        return f"{name} has a meaning of its own in deliver:; use another name"
    if section == "calendars" and name == "none":
        return "none has a meaning of its own in skip_on:; use another name"
    try:
        value_parsers.name(name)
    except ValueError as error:
        return str(error)
    return ""


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


def _unbound(kind: Kind, number: int) -> tuple[str, str]:
    """The section of entries of one kind whose spending nothing bounds, and what is to be told of them."""
    section, what, part = ("agents", "agent", "heartbeat") if kind is Kind.HEARTBEAT else ("cron", "job", "cron")
    who = f"{counted(number, what)} that {'asks' if number == 1 else 'ask'} a model"
    line = f"defaults: {{{part}: {{budget: {{usd_per_day: 1.00}}}}}}"
    return section, f"nothing bounds what is spent by {who}; write {line}, or budget: unlimited if you mean it"


@contextmanager
def collecting_later() -> Iterator[None]:
    """Reading makes hundreds of thousands of objects and no cycles; looking for those meanwhile would take half the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
