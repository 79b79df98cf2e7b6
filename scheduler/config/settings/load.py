"""Loads config.yaml into the settings of the daemon, or reports all of its errors at once."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cron.job import Job
from heartbeat.spec import Agent, Ask, Heartbeat, ModelRunner
from heartbeat.words import format_count, list_names
from heartbeatd.state_folder import DEFAULT_STATE, config_folder, is_server, real_path, resolve_path
from scheduler.channels import registry
from scheduler.config.file.diagnostics import NO_POSITION, Diagnostic, Diagnostics
from scheduler.config.keys import models
from scheduler.config.keys.validation import check_values
from scheduler.config.settings import agents, budgets, channels, daemon_settings, jobs
from scheduler.config.settings.budgets import Budgets
from scheduler.config.settings.config_data import ConfigData, find_overrides, read_config_data
from scheduler.config.settings.config_node import ConfigContext, ConfigNode, Fault, build_spec
from scheduler.config.settings.entry_parts import names_of
from scheduler.config.settings.file_checks import find_ignored_models, find_long_prompts, find_missing_files
from scheduler.config.settings.providers import Prices, Providers
from scheduler.config.settings.runners import Runners, is_enabled
from scheduler.config.settings.secrets import SecretResolver, read_env_file
from scheduler.config.settings.time_checks import TimeCheck, find_time_errors
from scheduler.model.outcome import Kind
from scheduler.model.settings import LAST_TARGET, History, Limits, Settings, WakeRate
from scheduler.model.state_address import clear_text_host, clear_text_warning
from scheduler.system import extras


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid config, and the data that it was built from.

    `overrides` are the names of the environment variables that changed it.
    """

    settings: Settings
    warnings: tuple[Diagnostic, ...]
    overrides: tuple[str, ...]
    data: ConfigData


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


@pause_garbage_collection()
def load_config(
    path: Path,
    environ: Mapping[str, str],
    *,
    resolve_secrets: bool = True,
    for_worker: bool = False,
    content: bytes | None = None,
    time_check: TimeCheck | None = None,
    check_files: bool = False,
    find_more: Callable[[Settings], Iterable[Fault]] = lambda _: (),
    may_be_empty: bool = False,
) -> LoadedConfig:
    """Read and check a config. Raises ConfigError with all of its errors.

    `for_worker`: a secret without a value is a `MissingSecret` and no error, because a worker need not have all of them.
    Without `resolve_secrets` all secrets are empty, and neither the env_file nor referenced files are read. `content` replaces
    the content of the file, to check it before it is written. With `time_check`, times in the past are reported. With
    `check_files`, missing files, folders and programs are warnings. `find_more` returns further warnings. With `may_be_empty`, a
    config without agents and jobs is valid, because they are about to be added.
    """
    diagnostics = Diagnostics(str(path))
    source = read_config_data(path, environ, diagnostics, content, may_be_empty=may_be_empty)
    context, settings = _build_settings(path, source, environ if resolve_secrets else None, diagnostics, for_worker=for_worker)
    if not (settings.heartbeats or settings.jobs or may_be_empty):
        diagnostics.add_error(NO_POSITION, "", "there is nothing to do; declare agents: or cron:")
    diagnostics.raise_errors()  # other errors come first
    if time_check is not None:
        _report(find_time_errors(settings, time_check), context, is_error=time_check.strict)
        diagnostics.raise_errors()
    if check_files:
        found = (*find_missing_files(settings), *find_ignored_models(settings), *find_long_prompts(settings))
        _report(found, context, is_error=False)
    _report(find_more(settings), context, is_error=False)
    return LoadedConfig(settings, diagnostics.warnings, tuple(find_overrides(environ)), source)


def _build_settings(
    path: Path, source: ConfigData, environ: Mapping[str, str] | None, diagnostics: Diagnostics, *, for_worker: bool
) -> tuple[ConfigContext, Settings]:
    """The settings, and what was used to build them. Without `environ`, secrets are not resolved."""
    config = check_values(source.merged, diagnostics)
    folder = config_folder(path)
    secrets = _make_resolver(source, config, folder, environ, diagnostics, for_worker=for_worker)
    context = ConfigContext(folder, config, source, secrets, diagnostics)
    providers = Providers(config.providers, context.section("providers"))
    prices = Prices(config.prices)
    runners = Runners(providers, prices)
    shared = budgets.budget_of_days(config.limits.budget, config.timezone) if config.limits.budget else None
    allowed = Budgets(shared, prices)
    heartbeats = _build_heartbeats(context, runners, allowed)
    found_jobs, job_agents = _build_jobs(context, runners, allowed, heartbeats)
    providers.report_problems()
    for kind, names in allowed.unlimited.items():
        _warn_unlimited(kind, names, context, by_name=kind in allowed.unknown)
    beat = config.defaults.heartbeat
    deliver = names_of(beat.problems.deliver or beat.deliver)
    used = _used_channels([*heartbeats.values(), *found_jobs.values()], context) | {*deliver}
    server = daemon_settings.build_server(config.server, context.section("server"))
    state = real_path(context.resolve_path(DEFAULT_STATE if is_server(config.state) else config.state))
    host = config.host or os.uname().nodename.partition(".")[0] or "localhost"
    settings = Settings(
        path=path,
        hash=source.hash,
        zone=config.timezone,
        state=state,
        postgresql=config.state if is_server(config.state) else None,
        server=server,
        limits=build_spec(config.limits, Limits, wake_flood=WakeRate(*config.limits.wake_flood), budget=shared),
        history=build_spec(config.history, History),
        channels=channels.build_channels(config.channels, used, host, server.public_url, context.section("channels")),
        deliver=deliver,
        heartbeats=heartbeats,
        jobs=found_jobs,
        prices=prices.by_model,
        job_agents=job_agents,
        deadman=daemon_settings.build_deadman(config.deadman, context.section("deadman")),
        network=daemon_settings.build_network(config.network, context.section("network")),
        reload=config.reload,
        allowances=allowed.allowances,
        calendars=context.calendars,
        host=host,
        traces=config.telemetry.traces,
        remote=daemon_settings.build_remote_queue(config.executor, context.section("executor")),
    )
    _check_ask(settings, context)
    if settings.postgresql and (missing := extras.describe_missing("stores", "postgresql")):
        context.top.add_error(missing, "state")
    if settings.postgresql and (remote := clear_text_host(settings.postgresql)):
        context.top.add_warning(clear_text_warning(remote), "state")
    if settings.traces and (missing := extras.describe_missing("listeners", "otel")):
        context.top.add_warning(missing, "telemetry", "traces")
    return context, settings


def _used_channels(entries: Sequence[Heartbeat | Job], context: ConfigContext) -> set[str]:
    """The channels that enabled entries use."""
    used = {channel for entry in entries if entry.enabled for channel in (*entry.deliver, *entry.problems_deliver)}
    used |= {channel for entry in entries if entry.enabled and entry.ask for channel in entry.ask.to}
    return used | set(context.open_channels) if LAST_TARGET in used else used


def _check_ask(settings: Settings, context: ConfigContext) -> None:
    """Check that somebody can answer the questions of each entry, and that tools that wait for a person have one to ask."""
    asking: list[tuple[ConfigNode, Heartbeat | Job, Agent | None]] = []
    asking += [(context.entry("agents", name).below("heartbeat"), each, each) for name, each in settings.heartbeats.items()]
    asking += [(context.entry("cron", name), each, settings.job_agents.get(name)) for name, each in settings.jobs.items()]
    for node, entry, agent in asking:
        ask: Ask | None = entry.ask
        for index, name in enumerate(ask.to if ask else ()):
            channel = settings.channels.get(name)
            if channel is None or not registry.kind_of(channel).has_buttons:
                continue
            if not channel.can_be_answered:
                node.add_error(f"{name} takes no answers; write buttons: true at channels.{name}", "ask", "to", index)
            if ask and not (ask.people or channel.people):
                node.add_error(f'nobody may answer in {name}; write people: ["@NAME"]', "ask", missing="people")
        owner = settings.heartbeats.get(agent.name) if agent else None
        called = [runner for runner, _ in agent.called] if agent else []
        if not any(isinstance(runner, ModelRunner) and runner.tools and runner.tools.asks for runner in called):
            continue
        if ask is None and (owner is None or owner.ask is None):
            node.add_error("tools of its runner wait for a person (approve), and nobody is asked; write ask: CHANNEL")
        if settings.remote is not None:
            node.add_error("tools of its runner wait for a person (approve), and workers cannot wait; remove executor or approve")


def _report(found: Iterable[Fault], context: ConfigContext, *, is_error: bool) -> None:
    for section, name, inside, message in found:
        node = context.entry(section, name)
        (node.add_error if is_error else node.add_warning)(message, *inside)


def _build_heartbeats(context: ConfigContext, runners: Runners, allowed: Budgets) -> dict[str, Heartbeat]:
    found = {}
    silent = 0
    for name, agent in context.config.agents.items():
        node = context.entry("agents", name, used=is_enabled(agent))
        found[name] = agents.build_heartbeat(name, agent, node, runners)
        daemon_settings.check_routing(context.config.executor, agent.executor, node)
        if found[name].enabled:
            part, keys = agent.heartbeat.budget, node.below("heartbeat", "budget")
            allowed.add_entry(Kind.HEARTBEAT, name, found[name], found[name].zone, part, keys)
        silent += agent.heartbeat.deliver is None and len(context.channels) != 2
    if silent:
        context.top.add_warning(f"no deliver: is given for {format_count(silent, 'agent')}; messages go to the log", "agents")
    return found


def _build_jobs(
    context: ConfigContext, runners: Runners, allowed: Budgets, heartbeats: Mapping[str, Heartbeat]
) -> tuple[dict[str, Job], dict[str, Agent]]:
    """The jobs, and the agents that their prompts call, by the name of the job."""
    found, called = {}, {}
    for name, job in context.config.cron.items():
        node = context.entry("cron", name, used=job.enabled)
        agent = jobs.build_called_agent(job, node, heartbeats, runners)
        found[name] = jobs.build_job(name, job, node, heartbeats, agent)
        daemon_settings.check_routing(context.config.executor, job.executor, node)
        if agent:
            called[name] = agent
        if agent and job.enabled:
            allowed.add_entry(Kind.CRON, name, agent, found[name].zone, job.budget, node.below("budget"))
    jobs.check_chains(found, called, context)
    return found, called


def _make_resolver(
    source: ConfigData,
    config: models.Config,
    folder: Path,
    environ: Mapping[str, str] | None,
    diagnostics: Diagnostics,
    *,
    for_worker: bool,
) -> SecretResolver:
    """Resolves references from the environment merged over the env_file. Without `environ`, secrets are not resolved."""
    if environ is None or config.env_file is None:
        return SecretResolver(folder, environ, for_worker=for_worker)
    try:
        variables = {**read_env_file(resolve_path(folder, config.env_file)), **environ}
    except ValueError as error:
        report = diagnostics.add_warning if for_worker else diagnostics.add_error
        report(source.root.marks["env_file"][1], "env_file", str(error))
        # Its variables are unknown rather than unset, so they are not reported as missing.
        return SecretResolver(folder, environ, for_worker=True)
    return SecretResolver(folder, variables, for_worker=for_worker)


def _warn_unlimited(kind: Kind, names: Sequence[str], context: ConfigContext, *, by_name: bool) -> None:
    """Warn about the entries that have no budget. `by_name`: name each, as others reject a budget in `defaults`."""
    section, noun, part = ("agents", "agent", "heartbeat") if kind is Kind.HEARTBEAT else ("cron", "job", "cron")
    lacking = "calls a model and has no budget" if len(names) == 1 else "call a model and have no budget"
    line = "budget: {usd_per_day: 1.00}"
    line = f"{line} for {list_names(names, 3)}" if by_name else f"defaults: {{{part}: {{{line}}}}}"
    advice = f"write {line}, or budget: unlimited if that is intended"
    context.top.add_warning(f"{format_count(len(names), noun)} {lacking}; {advice}", section)
