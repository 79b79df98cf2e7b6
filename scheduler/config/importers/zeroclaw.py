"""Imports ZeroClaw: config.toml with its [[cron.jobs]], and a HEARTBEAT.md.

The format is that of the project zeroclaw-labs/zeroclaw, from docs/reference/api/config-reference.md, its page on cron jobs, and
the fields of HeartbeatConfig in the documentation of its crate. The command is `zeroclaw agent` of its README.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.config.importers import value_converters
from scheduler.config.importers.config_draft import Draft, JobShape, Rule
from scheduler.config.importers.foreign_system import Drop, ForeignSystem, find_checklists, find_configs, find_jobs
from scheduler.config.importers.source_files import Node, SourceFile

WORKSPACE = "~/.zeroclaw/workspace"
LEAST = 300  # seconds


def _without_context(node: Node) -> bool:
    if value_converters.boolean(node):
        raise value_converters.NotUsable("the command line of ZeroClaw begins a new session for each run")
    return True


HEARTBEAT = (
    Rule("heartbeat.enabled", "heartbeat.enabled", value_converters.boolean),
    Rule("heartbeat.interval_minutes", "heartbeat.interval", value_converters.duration("m", least=LEAST)),
    Rule("heartbeat.adaptive", "heartbeat.backoff_on_failure", value_converters.boolean, "failures double the interval"),
    Rule("heartbeat.load_session_context", "heartbeat.isolated_session", _without_context, "the opposite setting"),
    Rule("heartbeat.task_timeout_secs", "heartbeat.timeout", value_converters.positive_duration("s")),
    Rule("default_model", "model"),
    Rule("workspace_dir", "workspace"),
)
JOBS = JobShape(
    prompt=("prompt", "message"),
    command=("command",),
    rules=(Rule("model", "model"),),
    naive_zone="UTC",
)

STAYS = "stays in ZeroClaw, which still runs the agent"
DEADMAN = "write deadman: {url: ...} with the URL of a service that watches the daemon"
DROPS = (
    Drop("cron.jobs.*.id", "heartbeatd uses names", is_loss=False),
    Drop("cron.jobs.*.delivery", "this job sends nothing itself"),
    Drop("cron", "heartbeatd has its own store, history and limits"),
    Drop("heartbeat.two_phase", "needs a provider; write decide: {provider: NAME, model: NAME}"),
    Drop("heartbeat.message", "heartbeatd needs no text to fall back on; write it into HEARTBEAT.md"),
    Drop("heartbeat.min_interval_minutes", "heartbeatd only lengthens an interval, up to 8 times"),
    Drop("heartbeat.max_interval_minutes", "heartbeatd only lengthens an interval, up to 8 times"),
    Drop("heartbeat.deadman_timeout_minutes", DEADMAN),
    Drop("heartbeat.deadman_channel", DEADMAN),
    Drop("heartbeat.deadman_to", DEADMAN),
    Drop("heartbeat.max_run_history", "history.runs limits the records of all entries"),
    Drop("cost", "write limits.budget; it needs prices, or an estimate of a run"),
    Drop("channels_config", "ZeroClaw still receives the messages of users"),
    Drop("channels", "ZeroClaw still receives the messages of users"),
    Drop("gateway", "the agent is called by its command line"),
    Drop("reliability", "heartbeatd has its own retries and its own schedule"),
    Drop("", STAYS),
)


def convert(draft: Draft, sources: Sequence[SourceFile]) -> None:
    jobs = list(find_jobs(sources))
    for config in find_configs(sources):
        base = draft.add_agent("main", *_RUNNER)
        heart = (*base, "heartbeat")
        tokens = ("channels_config.telegram.bot_token", "channels.telegram.bot_token", "channels.telegram.default.bot_token")
        draft.telegram_token = draft.telegram_token or config.first(*tokens)
        draft.apply(HEARTBEAT, config, base)
        if not draft.has((*base, "workspace")):
            draft.add((*base, "workspace"), WORKSPACE, "ZeroClaw's default")
        if config.get("heartbeat"):
            if not draft.has((*heart, "enabled")):
                draft.add((*heart, "enabled"), False, "ZeroClaw's default")
            if not draft.has((*heart, "interval")):
                draft.add((*heart, "interval"), "30m", "ZeroClaw's default")
            draft.put_deliver(heart, config.get("heartbeat.target"), config.get("heartbeat.to"))
        jobs += [job for _, job in config.items("cron.jobs") if job.is_container and job.children]
    for job in jobs:
        name = draft.add_job(job, JOBS, _RUNNER)
        if not name:
            continue
        for key in ("jobType", "sessionTarget"):
            if node := job.get(key):
                draft.receipt.keep(node, f"cron.{name}.{'prompt' if 'prompt' in draft.data['cron'][name] else 'command'}")
        delivery = job.get("delivery")
        mode = delivery.get("mode") if delivery else None
        if delivery and mode and mode.text.lower() == "announce":
            has_agent = "prompt" in draft.data["cron"][name]
            draft.put_deliver(("cron", name), delivery.get("channel"), delivery.get("to"), has_agent=has_agent)
            draft.receipt.keep(mode, f"cron.{name}.deliver")
    for checklist in find_checklists(sources):
        draft.put_checklist(checklist, draft.find_agent("main", *_RUNNER), is_in_workspace=False)


_SCRIPT = 'zeroclaw agent ${HEARTBEATD_MODEL:+--model "$HEARTBEATD_MODEL"} --message "$(cat)"'
_RUNNER = ({"kind": "command", "argv": ["sh", "-c", _SCRIPT]}, "calls the agent by the command line of ZeroClaw")

SYSTEM = ForeignSystem("zeroclaw", "ZeroClaw", "config.toml, HEARTBEAT.md", convert, DROPS)
