"""The command `check`: validates config.yaml, and shows the effective values."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import click

from cron.job import Job
from heartbeat.runners import OfferedTool
from heartbeat.runners.call_errors import CallError
from heartbeat.spec import Heartbeat, ModelRunner, Tools, offered_name
from heartbeat.words import format_count, list_names, one_line
from scheduler.cli import options
from scheduler.cli.daemon_files import Source
from scheduler.cli.output import format_table, paint, print_answer, print_config_errors, print_warnings, shorten_to_line, utc_now
from scheduler.cli.progress import show_progress
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.settings import listed_prices, load
from scheduler.config.settings.config_node import Fault
from scheduler.config.settings.effective_values import list_effective_values
from scheduler.config.settings.load import LoadedConfig
from scheduler.config.settings.time_checks import TimeCheck
from scheduler.model.levels import Level
from scheduler.model.outcome import Kind
from scheduler.model.settings import Settings
from scheduler.store import entries

CONNECT_SECONDS = 60.0  # for the servers of one agent; each has its own timeout too
MAX_DESCRIPTION_WIDTH = 60
OLD_PRICES = 90  # days after which `check` advises to update the list of prices


def check_config(name: str | None, strict: bool, diff: bool, tools: bool, source: Source) -> int:
    """Print the errors and warnings of the config, and what else was asked for. Returns the exit code."""
    path, form = source.config, source.form
    try:
        with show_progress(f"checking {path}"):
            times = TimeCheck(utc_now(), entries.has_seen_one_time_job)
            loaded = load.load_config(path, os.environ, time_check=times, check_files=True, find_more=_find_unserved_queues)
    except ConfigError as error:
        return print_config_errors(ConfigError((*error.errors, *error.warnings), ()) if strict else error, form)
    if strict and loaded.warnings:
        return print_config_errors(ConfigError(loaded.warnings, ()), form)
    if diff:
        return _show_diff(source, loaded)
    if tools:
        return _show_tools(loaded.settings, form)
    return _print_valid(path, loaded, form) if name is None else _show_effective(path, name, loaded.settings, form)


def _listed_models(settings: Settings) -> list[str]:
    """The models with a price from the list of the library."""
    return sorted({key.partition("/")[2] for key, price in settings.prices.items() if price.listed})  # PROVIDER/MODEL


def _listed_prices(settings: Settings, now: datetime) -> str | None:
    """Which prices come from the list of the library, and how old that is; None if none does."""
    models = _listed_models(settings)
    if not models:
        return None
    version, newest = listed_prices.describe_list(now.date())
    days = (now.date() - newest).days
    text = f"prices of {list_names(models, 3)}: genai-prices {version}, its newest price is {format_count(days, 'day')} old"
    return f"{text}; update it, or write prices:" if days > OLD_PRICES else text


def _find_unserved_queues(settings: Settings) -> Iterator[Fault]:
    """The enabled agents and jobs that name a queue from which no worker takes runs now. None if the server cannot be reached."""
    agents = settings.job_agents
    # A job with the queue of its agent names none: the warning is at the agent.
    jobs = [job for name, job in settings.jobs.items() if name not in agents or agents[name].queue != job.queue]
    specs: list[Heartbeat | Job] = [*settings.heartbeats.values(), *jobs]
    named = [spec for spec in specs if spec.enabled and spec.queue is not None]
    if settings.remote is None or not named:
        return
    from scheduler.work.run_extras import remote_executors  # it imports asyncio

    unserved = remote_executors().ask_state(settings).unserved
    for spec in named:
        if spec.queue in unserved:
            section = "agents" if isinstance(spec, Heartbeat) else "cron"
            problem = f"no worker serves this queue now; start `heartbeatd worker --queue {spec.queue}`"
            yield section, spec.name, ("executor", "queue"), problem


def _show_diff(source: Source, loaded: LoadedConfig) -> int:
    from scheduler.cli import config_preview  # a comparison needs the engine, which takes 80 ms to import

    preview = config_preview.preview_file(source)
    if source.form == "text":
        print_warnings(loaded.warnings)
    else:
        preview.data["warnings"] = [each.as_json() for each in loaded.warnings]
    print_answer(preview.data, source.form, preview.lines)
    return 0


def _show_effective(path: Path, name: str, settings: Settings, form: str) -> int:
    known = [*((Kind.HEARTBEAT, each) for each in settings.heartbeats), *((Kind.CRON, each) for each in settings.jobs)]
    rows = list_effective_values(path, os.environ, options.resolve_entry(name, known))
    cells = [(row.key, row.value, row.origin) for row in rows]
    print_answer([row.as_data() for row in rows], form, [format_table(("KEY", "VALUE", "FROM"), cells)])
    return 0


def _print_valid(path: Path, loaded: LoadedConfig, form: str) -> int:
    if form == "json":
        found: dict[str, object] = {"ok": True, "errors": [], "warnings": [each.as_json() for each in loaded.warnings]}
        if models := _listed_models(loaded.settings):
            version, newest = listed_prices.describe_list(utc_now().date())
            found["listed_prices"] = {"models": models, "version": version, "newest": newest.isoformat()}
        click.echo(json.dumps(found | ({"overrides": loaded.overrides} if loaded.overrides else {})))
        return 0
    print_warnings(loaded.warnings)
    agents, jobs = len(loaded.settings.heartbeats), len(loaded.settings.jobs)
    click.echo(f"{path} is {paint('valid', Level.GOOD)}: {format_count(agents, 'agent')}, {format_count(jobs, 'job')}")
    if listed := _listed_prices(loaded.settings, utc_now()):
        click.echo(listed)
    for agent, tools in _agents_with_tools(loaded.settings):
        click.echo(f"agent/{agent} may use {_list_tools(tools)}")
    for variable in loaded.overrides:
        click.echo(f"overridden by {variable}")
    return 0


def _agents_with_tools(settings: Settings) -> Iterator[tuple[str, Tools]]:
    """Each agent with its tools, and with those of its fallbacks that differ."""
    for name, beat in settings.heartbeats.items():
        found: list[Tools] = []
        for runner, _ in beat.called:
            if isinstance(runner, ModelRunner) and runner.tools and runner.tools not in found:
                found.append(runner.tools)
                yield name, runner.tools


def _list_tools(tools: Tools) -> str:
    """The names of the tools for the model. Of some servers, the tools may change something."""
    names = [
        f"{offered_name(server.name, tool)}{'' if server.read_only else ' (may change something)'}"
        for server in tools.servers
        for tool in server.allow
    ]
    return f"{format_count(len(names), 'tool')}: {', '.join(names)}"


def _show_tools(settings: Settings, form: str) -> int:
    """Connect to the servers of all agents, and print each tool, or why an agent cannot get its tools."""
    import asyncio

    found = asyncio.run(_find_tools(settings))
    failed = [(agent, tools) for agent, tools in found if isinstance(tools, str)]
    rows = [(agent, tool) for agent, tools in found if not isinstance(tools, str) for tool in tools]
    if form == "json":
        listed = [
            {"agent": agent, "tool": tool.name, "read_only": tool.is_read_only, "description": tool.description}
            for agent, tool in rows
        ]
        errors = [{"agent": agent, "error": error} for agent, error in failed]
        click.echo(json.dumps({"tools": listed, "errors": errors}, indent=2))
        return int(bool(failed))
    if rows:
        cells = [
            (agent, tool.name, "yes" if tool.is_read_only else "no", shorten_to_line(tool.description, MAX_DESCRIPTION_WIDTH))
            for agent, tool in rows
        ]
        click.echo(format_table(("AGENT", "TOOL", "READ-ONLY", "DESCRIPTION"), cells))
    for agent, error in failed:
        click.echo(f"{paint(f'agent/{agent}', Level.BAD)}: {one_line(error)}", err=True)
    if not found:
        click.echo("no agent has tools")
    return int(bool(failed))


async def _find_tools(settings: Settings) -> list[tuple[str, Sequence[OfferedTool] | str]]:
    """The tools of each agent that has any, or the error."""
    from scheduler.net.http_client import HttpClient
    from scheduler.system.process import Children
    from scheduler.work.run_extras import ModelTools

    found: list[tuple[str, Sequence[OfferedTool] | str]] = []
    async with HttpClient(lambda: settings.network) as http:
        open_tools = ModelTools(Children("check").converse, http)
        for agent, tools in _agents_with_tools(settings):
            try:
                async with open_tools(tools, agent, settings.heartbeats[agent].workspace, CONNECT_SECONDS) as toolbox:
                    found.append((agent, toolbox.offered))
            except CallError as error:
                found.append((agent, error.answer.error))
    return found
