"""Builds the settings of the shards: which daemon runs which agents and jobs, and where each daemon listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cron.job import Job
from heartbeat.spec import Heartbeat
from scheduler.channels.url_template import is_web_address
from scheduler.config.file.lenient_reading import SHARD_VARIABLE
from scheduler.config.keys import models
from scheduler.config.settings.config_node import ConfigNode
from scheduler.config.settings.secrets import has_reference
from scheduler.model.budget import Budget
from scheduler.model.config_changes import shorten_value
from scheduler.model.settings import Server
from scheduler.model.shards import Shard, assign_shards

LAST_PORT = 65535


def build_shard(
    part: models.ShardPart | None, environ: Mapping[str, str], database: Path | str, server: Server, node: ConfigNode
) -> Shard | None:
    """The shards, without their agents and jobs; None if one daemon runs everything. Errors are added at `node`."""
    if part is None:
        return None
    index = _find_index(part, environ, node)
    addresses = _build_addresses(part, server, node)
    if server.port and server.port + part.of - 1 > LAST_PORT:
        most = LAST_PORT + 1 - part.of
        node.add_error(
            f"the last shard would listen on port {server.port + part.of - 1}; write a port up to {most} in server.listen"
        )
    return Shard(index, part.of, addresses, database, {})


def _find_index(part: models.ShardPart, environ: Mapping[str, str], node: ConfigNode) -> int | None:
    """The number of the shard; None if it is left open. HEARTBEATD_SHARD and `--shard` take precedence over the file."""
    variable = SHARD_VARIABLE if environ.get(SHARD_VARIABLE) else part.index[2:-1] if isinstance(part.index, str) else None
    text = str(part.index) if variable is None else environ.get(variable, "")
    if text in ("", "None"):
        return None
    if not (text.isascii() and text.isdigit()) or int(text) >= part.of:
        where = "" if variable is None else f" (the value of {variable})"
        problem = f"{shorten_value(text)}{where} is not the number of a shard; write a number from 0 to {part.of - 1}"
        node.add_error(problem, "index")
        return None
    return int(text)


def _build_addresses(part: models.ShardPart, server: Server, node: ConfigNode) -> tuple[str, ...]:
    for place, address in enumerate(part.addresses):
        if not is_web_address(address) or any(sign in address for sign in "@?#"):
            node.add_error('this is not the address of a server; write "http://HOST:PORT"', "addresses", place)
    if part.addresses and len(part.addresses) != part.of:
        problem = f"there are {part.of} shards and {len(part.addresses)} addresses; write one address for each shard"
        node.add_error(problem, "addresses")
    if part.addresses:
        return tuple(address.rstrip("/") for address in part.addresses)
    near = "127.0.0.1" if server.host in ("0.0.0.0", "") else f"[{server.host}]" if ":" in server.host else server.host  # noqa: S104
    return tuple(f"http://{near}:{server.port + index}" for index in range(part.of)) if server.port else ()


def assign_entries(shard: Shard, heartbeats: Mapping[str, Heartbeat], jobs: Mapping[str, Job]) -> Shard:
    """The shards with the agents and jobs of each."""
    agents_of_job = {name: [*job.wake_heartbeat, *([job.agent] if job.agent else [])] for name, job in jobs.items()}
    return replace(shard, shard_of=assign_shards(heartbeats, agents_of_job, shard.of))


def check_shared_parts(shard: Shard, config: models.Config, budget: Budget | None, nodes: Mapping[str, ConfigNode]) -> None:
    """Report parts of the config that several daemons cannot share. `budget` is that of all agents and jobs."""
    if shard.of == 1:
        return
    if budget is not None and budget.runs_per_day is not None and budget.runs_per_day < shard.of:
        problem = f"each of {shard.of} shards may use an equal part of it, which is less than one run"
        nodes["limits"].add_error(f"{problem}; write {shard.of} or more", "budget", "runs_per_day")
    for name, channel in config.channels.items():
        if channel.buttons:
            problem = "only one daemon can receive the buttons of a bot, and there are several shards"
            nodes["channels"].add_error(f"{problem}; remove buttons", name, "buttons")
        if channel.links and config.shard is not None and not config.shard.addresses:
            problem = (
                "the links of a message must lead to the daemon of its shard; write shard.addresses, with the URL of each shard"
            )
            nodes["channels"].add_error(problem, name, "links")
    if config.deadman is not None and not has_reference(config.deadman.url):
        words = "all shards ping this URL, so nobody notices when one of them stops"
        advice = 'write url: "${NAME}", with another value for each shard'
        nodes["deadman"].add_warning(f"{words}; {advice}", "url")
