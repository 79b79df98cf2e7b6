"""Imports claw0: its .env file, and workspace/cron/jobs.json (in other lessons CRON.json).

The formats are those of the project shareAI-lab/claw0, from .env.example, agents/s08_heartbeat.py and docs/en/s09_cron.md.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, Part, Rule
from scheduler.extras.importers.foreign_system import STORE_DROPS, Drop, ForeignSystem
from scheduler.extras.importers.job_conversion import JobShape, add_job
from scheduler.extras.importers.source_files import Node

LEAST = 300  # seconds; limits.min_interval, because claw0 calls a model directly
AGENT = (
    Rule("MODEL_ID", "model"),
    Rule("HEARTBEAT_INTERVAL", "heartbeat.interval", value_converters.duration("s", least=LEAST), "limits.min_interval is 5m"),
)
JOBS = JobShape(prompt=("payload.message",), seconds_last=True)
# The text of an event is printed as it is, without an agent. docs/en/s09_cron.md does not mention events.
EVENTS = replace(JOBS, prompt=(), message=("payload.text", "payload.message"))
SHORT = "limits.min_interval is 5m for an agent that calls a model; set it lower, then the interval, and then enabled: true"

DROPS = (
    *STORE_DROPS,
    Drop("jobs.*.schedule.anchor", "intervals count from the first time that the daemon sees the job"),
)


def convert(draft: Draft) -> None:
    for config in draft.files.configs[:1]:
        _convert_config(draft, config)
    for node in draft.files.jobs:
        if job := add_job(draft, node, EVENTS if node.get("payload.kind").text == "system_event" else JOBS):
            job.add("deliver", "log", "claw0 prints what its jobs say")


def _convert_config(draft: Draft, config: Node) -> None:
    agent, provider = draft.find_agent(""), draft.part("providers.anthropic")
    beat = agent.below("heartbeat")
    agent.add("workspace", "workspace", "claw0's folder; write its full path")
    if key := config.get("ANTHROPIC_API_KEY"):
        provider.put_secret("api_key", key, "ANTHROPIC_API_KEY")
    if (address := config.get("ANTHROPIC_BASE_URL")).text:
        short = address.text.rstrip("/").removesuffix("/v1")  # heartbeatd adds /v1 itself
        try:
            provider.put_url("base_url", address, "ANTHROPIC_BASE_URL", short)
        except value_converters.NotUsable as error:
            draft.receipt.drop(address, str(error))
    if "api_key" in provider or "base_url" in provider:
        provider.add("kind", "anthropic", "the kind of its API")
    agent.apply(AGENT, config)
    interval = config.get("HEARTBEAT_INTERVAL").text
    if interval.isdigit() and int(interval) < LEAST:
        agent.disable(f"it ran every {interval} seconds; {SHORT}")
    if "interval" not in beat:
        beat.add("interval", "30m", "claw0's default in use; its demonstration has 60 s")
    start, end = config.get("HEARTBEAT_ACTIVE_START"), config.get("HEARTBEAT_ACTIVE_END")
    if start or end:
        beat.put_hours(start, end)
    else:
        beat.add("active_hours", "09:00-22:00", "claw0's default")
        beat.add("timezone", draft.zone, draft.zone_reason)


def _start_agent(agent: Part, _: str) -> None:
    agent.add("runner", {"kind": "anthropic", "provider": "anthropic"}, "a single turn without tools, as in claw0")


SYSTEM = ForeignSystem("claw0", "claw0", ".env, cron/jobs.json, HEARTBEAT.md", convert, DROPS, _start_agent)
