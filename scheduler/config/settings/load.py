"""Loads config.yaml into the settings of the daemon, or reports all of its errors at once."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from zoneinfo import ZoneInfo

from cron.job import Job
from heartbeat.spec import Heartbeat
from heartbeat.words import format_count
from scheduler.channels.url_template import PLACEHOLDER
from scheduler.config.file import inheritance, marked_yaml
from scheduler.config.file.diagnostics import NO_POSITION, Diagnostic, Diagnostics, Position
from scheduler.config.file.lenient_reading import DEFAULT_STATE, config_folder, read_state_path, real_path, resolve_path
from scheduler.config.file.marked_yaml import MarkedMap
from scheduler.config.keys import models, value_parsers
from scheduler.config.keys.models import config_schema
from scheduler.config.keys.validation import UNKNOWN_KEY, CheckedPart, PartT, check_part
from scheduler.config.settings import (
    agents,
    budgets,
    channels,
    entry_timing,
    executor_settings,
    http_settings,
    jobs,
    shard_settings,
)
from scheduler.config.settings.budgets import Budgets
from scheduler.config.settings.config_data import ConfigData, find_overrides, map_at, read_config_data
from scheduler.config.settings.config_node import ConfigContext, ConfigNode
from scheduler.config.settings.jobs import PromptAgents
from scheduler.config.settings.missing_files import find_missing_files
from scheduler.config.settings.prompt_sizes import find_long_prompts
from scheduler.config.settings.providers import Prices, Providers
from scheduler.config.settings.runners import Runners
from scheduler.config.settings.secrets import SecretResolver, read_env_file
from scheduler.config.settings.time_checks import TimeCheck, find_time_errors
from scheduler.model.outcome import Kind
from scheduler.model.settings import LAST_TARGET, History, Limits, Settings, WakeRate
from scheduler.model.state_address import is_server

__all__ = ["LoadedConfig", "config_schema", "load_config", "read_state_path"]

ENTRY_SECTIONS = ("agents", "cron")  # sections whose entries are checked one by one, merged with their defaults
TRACES_PACKAGE = "opentelemetry-exporter-otlp-proto-http"  # of the extra heartbeatd[otel]; it brings the SDK
RESERVED_CHANNELS = ("log", "none", LAST_TARGET)  # words with a meaning of their own in `deliver`


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid config, and the data that it was built from.

    `overrides` are the names of the environment variables that changed it.
    """

    settings: Settings
    warnings: tuple[Diagnostic, ...]
    overrides: tuple[str, ...]
    data: ConfigData


def load_config(
    path: Path,
    environ: Mapping[str, str],
    *,
    resolve_secrets: bool = True,
    for_worker: bool = False,
    content: bytes | None = None,
    root: MarkedMap | None = None,
    time_check: TimeCheck | None = None,
    check_files: bool = False,
    may_be_empty: bool = False,
) -> LoadedConfig:
    """Read and check a config. Raises ConfigError with all of its errors.

    `for_worker`: a secret without a value is a `MissingSecret` and no error, because a worker need not have all of them.
    Without `resolve_secrets` all secrets are empty, and neither the env_file nor referenced files are read. `content` replaces
    the content of the file, to check it before it is written; `root` is its data, if it was parsed already. With `time_check`,
    times in the past are reported. With `check_files`, missing files, folders and programs are warnings. With `may_be_empty`, a
    config without agents and jobs is valid, because they are about to be added.
    """
    diagnostics = Diagnostics(str(path))
    with pause_garbage_collection():
        source = read_config_data(path, environ, diagnostics, content, root, may_be_empty=may_be_empty)
        settings = _build_settings(
            path,
            source,
            environ,
            diagnostics,
            time_check,
            look=check_files,
            for_worker=for_worker,
            resolve_secrets=resolve_secrets,
            may_be_empty=may_be_empty,
        )
    diagnostics.raise_errors()
    return LoadedConfig(settings, diagnostics.warnings, tuple(find_overrides(environ)), source)


def _build_settings(
    path: Path,
    source: ConfigData,
    environ: Mapping[str, str],
    diagnostics: Diagnostics,
    today: TimeCheck | None,
    *,
    look: bool,
    for_worker: bool,
    resolve_secrets: bool,
    may_be_empty: bool,
) -> Settings:
    root = source.root
    checked = _check_top_level(root, diagnostics)
    config = checked.model
    _check_defaults(root, diagnostics)
    folder = config_folder(path)
    of_secrets = environ if resolve_secrets else None
    variables = _with_env_file(root, config, folder, of_secrets, diagnostics, is_required=not for_worker)
    vault = SecretResolver(folder, variables, for_worker=for_worker)
    context = _build_context(root, config, folder, vault, diagnostics)
    _named_entries(root, "providers", diagnostics)
    nodes = {
        section: _section_node(root, checked, context, section)
        for section in ("providers", "server", "channels", "deadman", "network", "executor", "shard", "limits")
    }
    providers = Providers(config.providers, nodes["providers"])
    prices = Prices(config.prices, map_at(root, "prices"))
    runners = Runners(providers, prices)
    prompt_agents = PromptAgents(map_at(root, "cron"), source.job, runners, prices)
    limits = _build_limits(config.limits, config.timezone)
    shards = config.shard.of if config.shard else 1
    allowed = Budgets(limits.budget and limits.budget.divide(shards), prices, shards)
    heartbeats = _build_heartbeats(root, source.agent, runners, prompt_agents, allowed, context)
    providers.report_problems()
    beats = {name: heartbeats.get(name) for name in context.agents}
    found_jobs = _build_jobs(root, source.job, prompt_agents, allowed, beats, context)
    for kind, number in allowed.unlimited.items():
        section, warning = _warn_unlimited(kind, number)
        if number:
            diagnostics.add_warning(root.marks[section][0], section, warning)
    has_entries = context.agents or _named_entries(root, "cron", diagnostics) or _might_hold_entries(root, diagnostics)
    if not has_entries and not may_be_empty:
        diagnostics.add_error(NO_POSITION, "", "there is nothing to do; declare agents: or cron:")
    used = _used_channels([*heartbeats.values(), *found_jobs.values()], context)
    server = http_settings.build_server(config.server, nodes["server"])
    state = real_path(context.resolve_path(DEFAULT_STATE if is_server(config.state) else config.state))
    database = config.state if is_server(config.state) else state
    shard = shard_settings.build_shard(config.shard, environ, database, server, nodes["shard"])
    if shard is not None:
        shard = shard_settings.assign_entries(shard, heartbeats, found_jobs)
        shard_settings.check_shared_parts(shard, config, limits.budget, nodes)
    host = config.host or _short_host_name()
    settings = Settings(
        path=path,
        hash=source.hash,
        zone=config.timezone,
        state=state,
        postgresql=database if isinstance(database, str) else None,
        server=server,
        limits=limits,
        history=History(config.history.keep, config.history.runs),
        channels=channels.build_channels(config.channels, used, host, server.public_url, nodes["channels"]),
        heartbeats=heartbeats,
        jobs=found_jobs,
        prices=prices.by_model,
        job_agents=prompt_agents.by_job,
        deadman=http_settings.build_deadman(config.deadman, nodes["deadman"]),
        network=http_settings.build_network(config.network, nodes["network"]),
        reload=config.reload,
        allowances=allowed.allowances,
        calendars={name: each for name, each in context.calendars.items() if each is not None},
        host=host,
        traces=config.telemetry.traces,
        remote=executor_settings.build_remote_queue(config.executor, nodes["executor"]),
        shard=shard,
    )
    if settings.traces and not executor_settings.is_installed(TRACES_PACKAGE):
        place = map_at(root, "telemetry").marks["traces"][0] if "telemetry" in root else NO_POSITION
        diagnostics.add_warning(place, "telemetry.traces", f"{TRACES_PACKAGE} is not installed; install heartbeatd[otel]")
    if today is not None:
        diagnostics.raise_errors()  # other errors come first
        _check_times(settings, today, source, context)
    if look:
        diagnostics.raise_errors()
        _check_files(settings, source, context)
    return settings


def _build_context(
    root: MarkedMap, config: models.Config, folder: Path, vault: SecretResolver, diagnostics: Diagnostics
) -> ConfigContext:
    names = _named_entries(root, "agents", diagnostics)
    targets = ["log", *_named_entries(root, "channels", diagnostics)]
    to_last = tuple(name for name, part in config.channels.items() if PLACEHOLDER in (part.url or ""))
    return ConfigContext(
        folder,
        config.timezone,
        config.limits.min_interval,
        names,
        targets,
        entry_timing.build_calendars(config.calendars, _named_entries(root, "calendars", diagnostics)),
        vault,
        diagnostics,
        to_last,
        (*targets, LAST_TARGET),
    )


def _used_channels(entries: Iterable[Heartbeat | Job], context: ConfigContext) -> set[str]:
    """The channels that enabled entries use."""
    used = {channel for entry in entries if entry.enabled for channel in (*entry.deliver, *entry.on_failure_deliver)}
    return used | set(context.open_channels) if LAST_TARGET in used else used


def _short_host_name() -> str:
    """The name of this machine up to its first dot."""
    return os.uname().nodename.partition(".")[0] or "localhost"


def _check_files(settings: Settings, source: ConfigData, context: ConfigContext) -> None:
    """Warn about missing files, folders and programs, and about files that nearly fill a prompt."""
    for section, name, inside, message in (*find_missing_files(settings), *find_long_prompts(settings)):
        if section == "channels":
            ConfigNode((section,), map_at(source.root, section), NO_POSITION, context).add_warning(message, name, *inside)
        else:
            defaults = source.agent if section == "agents" else source.job
            _entry_node(source.root, section, name, defaults, context).add_warning(message, *inside)


def _check_times(settings: Settings, today: TimeCheck, source: ConfigData, context: ConfigContext) -> None:
    """Report values that are valid but in the past, or that leave no day to run on."""
    for section, name, inside, message in find_time_errors(settings, today):
        node = _entry_node(source.root, section, name, source.agent if section == "agents" else source.job, context)
        say = node.add_error if today.strict else node.add_warning
        say(message, *inside)


def _check_top_level(root: MarkedMap, diagnostics: Diagnostics) -> CheckedPart[models.Config]:
    """Check everything except agents, jobs and defaults."""
    plain = {key: value for key, value in root.items() if key not in (*ENTRY_SECTIONS, "defaults") and not key.startswith("x-")}
    return check_part(models.Config, MarkedMap(plain, root.marks), (), NO_POSITION, diagnostics)


def _build_limits(part: models.Limits, zone: ZoneInfo) -> Limits:
    flood = WakeRate(*part.wake_flood)
    budget = budgets.day_budget(part.budget, zone) if part.budget else None
    return Limits(part.concurrency, part.min_interval, part.wake_gap, flood, part.wake_keep, part.shutdown_grace, budget)


def _check_defaults(root: MarkedMap, diagnostics: Diagnostics) -> None:
    if "defaults" not in root:
        return
    check_part(models.Defaults, root["defaults"], ("defaults",), root.marks["defaults"][0], diagnostics, is_partial=True)


def _build_heartbeats(
    root: MarkedMap, defaults: MarkedMap, runners: Runners, prompt_agents: PromptAgents, allowed: Budgets, context: ConfigContext
) -> dict[str, Heartbeat]:
    found = {}
    silent = 0
    for name in _named_entries(root, "agents", context.diagnostics):
        node, agent = _check_entry(models.Agent, _entry_node(root, "agents", name, defaults, context))
        found[name] = agents.build_heartbeat(name, agent, node, runners)
        prompt_agents.add_agent(agent, found[name], node)
        if not node.unreadable:
            allowed.add_heartbeat(found[name], agent.heartbeat.budget, node)
        silent += agents.logs_by_default(agent, context)
    if silent:
        place = root.marks["agents"][0]
        context.diagnostics.add_warning(
            place, "agents", f"no deliver: is given for {format_count(silent, 'agent')}; messages go to the log"
        )
    return found


def _build_jobs(
    root: MarkedMap,
    defaults: MarkedMap,
    prompt_agents: PromptAgents,
    allowed: Budgets,
    beats: Mapping[str, Heartbeat | None],
    context: ConfigContext,
) -> dict[str, Job]:
    found = {}
    for name in _named_entries(root, "cron", context.diagnostics):
        node, job = _check_entry(models.Job, _entry_node(root, "cron", name, defaults, context))
        agent = prompt_agents.find_agent(name, job, node)
        found[name] = jobs.build_job(name, job, node, beats, agent)
        if not node.unreadable:
            allowed.add_job(found[name], agent, job.budget, node)
    return found


def _check_entry(model: type[PartT], node: ConfigNode) -> tuple[ConfigNode, PartT]:
    """Check an entry: its node with corrected and unreadable values, and its model."""
    diagnostics = node.context.diagnostics
    checked = check_part(model, node.merged, node.steps, node.position, diagnostics)
    lost = checked.unreadable | _unknown_key_positions(node.steps, diagnostics) if diagnostics.has_errors else checked.unreadable
    if checked.node is node.merged and not lost:
        return node, checked.model
    return replace(node, merged=checked.node, unreadable=lost), checked.model


def _unknown_key_positions(steps: Sequence[str], diagnostics: Diagnostics) -> dict[tuple[str | int, ...], Position]:
    """The positions of keys that could not be understood, in the entry and in its defaults."""
    homes: dict[tuple[str, ...], tuple[str, ...]] = {tuple(steps): ()}
    if steps[0] == "cron":
        homes[("defaults", "cron")] = ()
    else:
        homes |= {("defaults", "agent"): (), ("defaults", "heartbeat"): ("heartbeat",)}
    return {
        (*inside, *where[len(home) :], UNKNOWN_KEY): place
        for where, place in diagnostics.unknown_keys.items()
        for home, inside in homes.items()
        if where[: len(home)] == home
    }


def _entry_node(root: MarkedMap, section: str, name: str, defaults: MarkedMap, context: ConfigContext) -> ConfigNode:
    own = root[section][name]
    written = own
    if own is None or isinstance(own, MarkedMap):
        merge = inheritance.merge_agent if section == "agents" else inheritance.merge_job
        written = merge(defaults, own or MarkedMap())
    return ConfigNode((section, name), written, root[section].marks[name][0], context, own)


def _section_node(root: MarkedMap, checked: CheckedPart[models.Config], context: ConfigContext, section: str) -> ConfigNode:
    """The node of a top-level section, including the parts with errors as they are written."""
    own, right = map_at(root, section), map_at(checked.node, section)
    place = root.marks[section][0] if section in root else NO_POSITION
    lost = {steps[1:]: at for steps, at in checked.unreadable.items() if steps[:1] == (section,)}
    return ConfigNode((section,), MarkedMap({**own, **right}, {**own.marks, **right.marks}), place, context, None, lost)


def _named_entries(root: MarkedMap, section: str, diagnostics: Diagnostics) -> MarkedMap:
    """The entries of a section; invalid names are reported."""
    entries = root.get(section)
    if not isinstance(entries, MarkedMap):
        if entries is not None and section in ENTRY_SECTIONS:
            diagnostics.add_error(root.marks[section][1], section, "this must be a map: names, each with its keys")
        return MarkedMap()
    for name in entries:
        if problem := _name_problem(section, name):
            diagnostics.add_error(entries.marks[name][0], marked_yaml.dotted_path([section, name]), problem)
    return entries


def _might_hold_entries(root: MarkedMap, diagnostics: Diagnostics) -> bool:
    """Whether there may be agents or jobs that could not be understood."""
    return () in diagnostics.unknown_keys or any(root.get(section) for section in ENTRY_SECTIONS)


def _name_problem(section: str, name: str) -> str:
    if section == "channels" and name in RESERVED_CHANNELS:
        return f"{name} is reserved in deliver:; use another name"
    if section == "calendars" and name == "none":
        return "none is reserved in skip_on:; use another name"
    try:
        value_parsers.parse_name(name)
    except ValueError as error:
        return str(error)
    return ""


def _with_env_file(
    root: MarkedMap,
    config: models.Config,
    folder: Path,
    environ: Mapping[str, str] | None,
    diagnostics: Diagnostics,
    *,
    is_required: bool,
) -> Mapping[str, str] | None:
    """The environment merged over the env_file; None if secrets are not resolved."""
    if environ is None or config.env_file is None:
        return environ
    try:
        return {**read_env_file(resolve_path(folder, config.env_file)), **environ}
    except ValueError as error:
        report = diagnostics.add_error if is_required else diagnostics.add_warning
        report(root.marks["env_file"][1], "env_file", str(error))
    return environ


def _warn_unlimited(kind: Kind, number: int) -> tuple[str, str]:
    """The section of the entries that have no budget, and the warning about them."""
    section, noun, part = ("agents", "agent", "heartbeat") if kind is Kind.HEARTBEAT else ("cron", "job", "cron")
    lacking = "calls a model and has no budget" if number == 1 else "call a model and have no budget"
    line = f"defaults: {{{part}: {{budget: {{usd_per_day: 1.00}}}}}}"
    return section, f"{format_count(number, noun)} {lacking}; write {line}, or budget: unlimited if that is intended"


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Switch the garbage collector off: loading makes many objects and no cycles, and collecting would take half the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
