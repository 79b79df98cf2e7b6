"""Imports ZeroClaw: config.toml with its [[cron.jobs]], and a HEARTBEAT.md.

The format is that of the project zeroclaw-labs/zeroclaw, from docs/reference/api/config-reference.md, its page on cron jobs, and
the fields of HeartbeatConfig in the documentation of its crate. The command is `zeroclaw agent` of its README.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, JobShape, Path, Rule
from scheduler.extras.importers.foreign_system import (
    NO_COUNTERPART,
    OWN_LIMITS,
    RECORD,
    Drop,
    ForeignSystem,
    find_configs,
    find_jobs,
)
from scheduler.extras.importers.source_files import Node, SourceFile

WORKSPACE = "~/.zeroclaw/workspace"
LEAST = 300  # seconds


def _without_context(node: Node) -> bool:
    if value_converters.boolean(node):
        raise value_converters.NotUsable("the command line of ZeroClaw begins a new session for each run")
    return True


HEARTBEAT = (
    Rule("heartbeat.enabled", "heartbeat.enabled", value_converters.boolean, decides=True),
    Rule("heartbeat.interval_minutes", "heartbeat.interval", value_converters.duration("m", least=LEAST), decides=True),
    Rule("heartbeat.adaptive", "heartbeat.backoff_on_failure", value_converters.boolean, "failures double the interval"),
    Rule("heartbeat.load_session_context", "heartbeat.isolated_session", _without_context, "the opposite setting"),
    Rule("heartbeat.task_timeout_secs", "heartbeat.timeout", value_converters.positive_duration("s")),
    Rule("default_model", "model"),
    Rule("workspace_dir", "workspace"),
)
JOBS = JobShape(
    prompt=("prompt", "message"),
    command=("command",),
    agent=("agent", "agent_alias"),
    rules=(Rule("model", "model"),),
    naive_zone="UTC",
)

STAYS = "stays in ZeroClaw, which still runs the agent"
DEADMAN = "write deadman: {url: ...} with the URL of a service that watches the daemon"
NO_TOOLS = "the command line of ZeroClaw cannot restrict the tools of a run"
JOB_DROPS = (
    Drop("id", "heartbeatd uses names", is_loss=False),
    Drop("allowed_tools", NO_TOOLS, changes_meaning=True),
    Drop("delivery.channel delivery.to delivery.recipient", "this job sends nothing"),
    Drop("delivery.thread_id", "write the topic into the recipient, as chat:topic", changes_meaning=True),
    Drop("delivery.best_effort uses_memory", NO_COUNTERPART),
    Drop("shell_output_format", "the output is sent as it is"),
    Drop("delete_after_run", "a single run stays in the config after it has run", is_loss=False),
    Drop("source created_at next_run last_run last_status", RECORD, is_loss=False),
)
DROPS = (
    *(replace(drop, below=f"{jobs}.*") for jobs in ("cron.jobs", "cron", "jobs") for drop in JOB_DROPS),
    Drop("cron", OWN_LIMITS),
    Drop("heartbeat.two_phase", "needs a provider; write decide: {provider: NAME, model: NAME}"),
    Drop("heartbeat.message", "heartbeatd needs no text to fall back on; write it into HEARTBEAT.md"),
    Drop("min_interval_minutes max_interval_minutes", "heartbeatd only lengthens an interval, up to 8 times", "heartbeat"),
    Drop("deadman_timeout_minutes deadman_channel deadman_to", DEADMAN, "heartbeat"),
    Drop("heartbeat.max_run_history", "history.runs limits the records of all entries"),
    Drop("cost", "write limits.budget; it needs prices, or an estimate of a run"),
    Drop("channels_config channels", "ZeroClaw still receives the messages of users"),
    Drop("gateway", "the agent is called by its command line"),
    Drop("reliability", "heartbeatd has its own retries and its own schedule"),
    Drop("", STAYS),
)


def convert(draft: Draft, sources: Sequence[SourceFile]) -> None:
    jobs = list(find_jobs(sources))
    configs = find_configs(sources)
    for config in configs:
        owner = config.first("heartbeat.agent", "heartbeat.agent_alias")
        base = draft.add_agent(owner.text if owner and owner.text else "main", *_runner(owner))
        if owner and owner.text:
            draft.name_entry(owner, base)
        heart = (*base, "heartbeat")
        draft.telegram_token = draft.telegram_token or _find_token(config, "")
        draft.switch_jobs(config.get("cron.enabled"))
        draft.apply(HEARTBEAT, config, base)
        if not draft.has((*base, "workspace")):
            draft.add((*base, "workspace"), WORKSPACE, "ZeroClaw's default")
        if beat := config.get("heartbeat"):
            draft.note_entry(beat, base)
            if not draft.has((*heart, "enabled")):
                draft.add((*heart, "enabled"), False, "ZeroClaw's default")
            if not draft.has((*heart, "interval")):
                draft.add((*heart, "interval"), "30m", "ZeroClaw's default")
            channel, to = beat.get("target"), beat.first("to", "recipient")
            if not channel and not to:
                _put_first_user(draft, config, heart)
            else:
                _put_deliver(draft, configs, heart, channel, to, has_agent=True)
        # Version 3 of the config has jobs by name, each claimed by an agent, and no list.
        listed = [node for key, node in config.items("cron") if key != "jobs" and node.get("schedule")]
        jobs += [job for job in (*(node for _, node in config.items("cron.jobs")), *listed) if job.is_container and job.children]
    for job in jobs:
        _add_job(draft, job, configs)


def _add_job(draft: Draft, job: Node, configs: Sequence[Node]) -> None:
    wanted = job.first("agent", "agent_alias") or _find_claim(configs, job)
    owner = draft.find_agent(wanted.text, *_runner(wanted)) if wanted and wanted.text and job.first("prompt", "message") else ""
    by_name = "" if job.first("name", "id") else str(job.steps[-1])
    name = draft.add_job(job, replace(JOBS, fallback_name=by_name), _RUNNER)
    if not name:
        return
    entry, base = draft.data["cron"][name], ("cron", name)
    has_agent = "prompt" in entry
    if owner and has_agent:
        entry["agent"] = owner
        if wanted:
            draft.receipt.keep(wanted, f"cron.{name}.agent")
    _check_expression(draft, job, base)
    for key in ("jobType", "sessionTarget"):
        if node := job.get(key):
            draft.receipt.keep(node, f"cron.{name}.{'prompt' if has_agent else 'command'}")
    mode = job.get("delivery.mode")
    if mode and mode.text.lower() == "announce":
        _put_deliver(
            draft, configs, base, job.get("delivery.channel"), job.first("delivery.to", "delivery.recipient"), has_agent=has_agent
        )
        draft.receipt.keep(mode, f"cron.{name}.deliver")
    elif mode:
        draft.receipt.drop(mode, "nothing is sent, as here", is_loss=False)


def _check_expression(draft: Draft, job: Node, base: Path) -> None:
    """ZeroClaw runs on days that match both the day of the month and the weekday, and cron, as heartbeatd, on either.

    With six fields, its weekdays begin with 1 for Sunday.
    """
    found = job.first("schedule.expr")
    fields = found.text.split() if found else []
    if len(fields) == 5 and not fields[2].startswith(("*", "?")) and not fields[4].startswith(("*", "?")):
        draft.disable(base, f"{fields[2]} and {fields[4]} both restrict the day; in ZeroClaw both must match, here one is enough")
    elif len(fields) == 6 and re.search(r"\d", fields[5]):
        draft.disable(base, f"the weekday {fields[5]} of an expression with six fields counts from Sunday as 1")


def _find_claim(configs: Sequence[Node], job: Node) -> Node | None:
    """The name of the agent that lists the job in its `cron_jobs`."""
    for config in configs:
        for _, agent in config.items("agents"):
            for _, claimed in agent.items("cron_jobs"):
                if claimed.text == str(job.steps[-1]):
                    return agent.with_text(str(agent.steps[-1]))
    return None


def _find_token(config: Node, alias: str) -> Node | None:
    """The token of a Telegram bot: of the one with this alias, or of the first."""
    bots = dict(config.items("channels.telegram"))
    if alias:
        return bots[alias].get("bot_token") if alias in bots else None
    own = config.first("channels_config.telegram.bot_token", "channels.telegram.bot_token", "channels.telegram.default.bot_token")
    return own or next((token for bot in bots.values() if (token := bot.get("bot_token"))), None)


def _put_deliver(
    draft: Draft, configs: Sequence[Node], base: Path, channel: Node | None, to: Node | None, *, has_agent: bool
) -> None:
    """A recipient. A channel of version 3 names its bot: telegram.ops."""
    kind, _, alias = channel.text.partition(".") if channel else ("", "", "")
    token = next(filter(None, (_find_token(config, alias) for config in configs)), None) if alias else None
    if not channel or not alias or kind != "telegram" or not token:
        draft.put_deliver(base, channel, to, has_agent=has_agent)
        return
    draft.put_deliver(base, channel.with_text(kind), to, has_agent=has_agent, token=token)
    draft.receipt.change(channel, ".".join((*base, "deliver")), _value(draft, base))


def _value(draft: Draft, base: Path) -> object:
    found: Any = draft.data
    for step in (*base, "deliver"):
        found = found[step]
    return found


def _put_first_user(draft: Draft, config: Node, heart: Path) -> None:
    """Without a target, ZeroClaw takes the first user of its Telegram bot, and else sends nothing."""
    users = [
        node
        for _, node in (*config.items("channels_config.telegram.allowed_users"), *config.items("channels.telegram.allowed_users"))
    ]
    users += [node for _, group in config.items("peer_groups") for _, node in group.items("external_peers")]
    if draft.telegram_token and users and users[0].text not in ("", "*"):
        draft.put_deliver(heart, None, users[0])
    else:
        draft.add((*heart, "deliver"), "log", "ZeroClaw has no chat to send to")


_SCRIPT = 'zeroclaw agent ${HEARTBEATD_MODEL:+--model "$HEARTBEATD_MODEL"} --message "$(cat)"'
_RUNNER = ({"kind": "command", "argv": ["sh", "-c", _SCRIPT]}, "calls the agent by the command line of ZeroClaw")


def _runner(agent: Node | None) -> tuple[Mapping[str, object], str]:
    """The command line; version 3 of the config has several agents, and the command names one."""
    if not agent or not agent.text:
        return _RUNNER
    argv = ["sh", "-c", _SCRIPT.replace("zeroclaw agent", 'zeroclaw agent --agent "$0"'), agent.text]
    return {"kind": "command", "argv": argv}, "calls the agent by the command line of ZeroClaw"


SYSTEM = ForeignSystem("zeroclaw", "ZeroClaw", "config.toml, HEARTBEAT.md", convert, DROPS, _RUNNER)
