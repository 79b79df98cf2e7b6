"""Imports claw0: its .env file, and workspace/cron/jobs.json (in other lessons CRON.json).

The formats are those of the project shareAI-lab/claw0, from .env.example, agents/s08_heartbeat.py and docs/en/s09_cron.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, JobShape, Rule
from scheduler.extras.importers.foreign_system import STORE_DROPS, Drop, ForeignSystem, find_configs, find_jobs
from scheduler.extras.importers.source_files import Node, SourceFile

LEAST = 300  # seconds; limits.min_interval, because claw0 calls a model directly
HEARTBEAT = (
    Rule("MODEL_ID", "model"),
    Rule("HEARTBEAT_INTERVAL", "heartbeat.interval", value_converters.duration("s", least=LEAST), "limits.min_interval is 5m"),
)
JOBS = JobShape(prompt=("payload.message",))
# The text of an event is printed as it is, without an agent. docs/en/s09_cron.md does not mention events.
EVENTS = JobShape(message=("payload.text", "payload.message"))
SHORT = "limits.min_interval is 5m for an agent that calls a model; set it lower, then the interval, and then enabled: true"
HOURS = ("09:00", "22:00")

DROPS = (
    *STORE_DROPS,
    Drop("jobs.*.deleteAfterRun", "a single run stays in the config after it has run", is_loss=False),
    Drop("jobs.*.schedule.anchor", "intervals count from the first time that the daemon sees the job"),
)


def convert(draft: Draft, sources: Sequence[SourceFile]) -> None:
    configs = find_configs(sources)
    jobs = find_jobs(sources)
    for config in configs[:1]:
        base = draft.add_agent("main", *_RUNNER)
        draft.add((*base, "workspace"), "workspace", "claw0's folder; write its full path")
        if key := config.get("ANTHROPIC_API_KEY"):
            draft.secret(key, ("providers", "anthropic", "api_key"), "ANTHROPIC_API_KEY")
        if (address := config.get("ANTHROPIC_BASE_URL")) and address.text:
            _put_address(draft, address)
        draft.apply(HEARTBEAT, config, base)
        if (interval := config.get("HEARTBEAT_INTERVAL")) and interval.text.isdigit() and int(interval.text) < LEAST:
            draft.disable(base, f"it ran every {interval.text} seconds; {SHORT}")
        heart = (*base, "heartbeat")
        if not draft.has((*heart, "interval")):
            draft.add((*heart, "interval"), "30m", "claw0's default in use; its demonstration has 60 s")
        start, end = config.get("HEARTBEAT_ACTIVE_START"), config.get("HEARTBEAT_ACTIVE_END")
        if start or end:
            draft.put_hours(heart, start, end, None)
        else:
            draft.add((*heart, "active_hours"), "-".join(HOURS), "claw0's default")
            draft.add((*heart, "timezone"), draft.zone, draft.zone_reason)
    for job in jobs:
        kind = job.get("payload.kind")
        if name := draft.add_job(job, EVENTS if kind and kind.text == "system_event" else JOBS, _RUNNER):
            draft.add(("cron", name, "deliver"), "log", "claw0 prints what its jobs say")


def _put_address(draft: Draft, address: Node) -> None:
    """The base URL. heartbeatd adds /v1 itself."""
    try:
        written = value_converters.web_address(address)
    except value_converters.NotUsable as error:
        draft.receipt.drop(address, str(error))
        return
    if value_converters.holds_secret(written):
        draft.secret(address, ("providers", "anthropic", "base_url"), "ANTHROPIC_BASE_URL")
    else:
        short = written.rstrip("/").removesuffix("/v1")
        draft.put(address, ("providers", "anthropic", "base_url"), short)


_RUNNER = ({"kind": "anthropic"}, "a single turn without tools, as in claw0")

SYSTEM = ForeignSystem("claw0", "claw0", ".env, cron/jobs.json, HEARTBEAT.md", convert, DROPS, _RUNNER)
