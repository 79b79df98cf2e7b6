"""Imports ZeroClaw: config.toml with its [[cron.jobs]], and a HEARTBEAT.md.

The format is that of the project zeroclaw-labs/zeroclaw, from docs/reference/api/config-reference.md, its page on cron jobs, and
the fields of HeartbeatConfig in the documentation of its crate. The command is `zeroclaw agent` of its README.
"""

from __future__ import annotations

import re
from dataclasses import replace

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, Part, Rule
from scheduler.extras.importers.foreign_system import CALLED, NO_COUNTERPART, OWN_LIMITS, RECORD, RUNS_ONCE, Drop, ForeignSystem
from scheduler.extras.importers.job_conversion import SCHEDULE_KEYS, JobShape, add_job
from scheduler.extras.importers.source_files import MISSING, Node

LEAST = 300  # seconds


def _without_context(node: Node) -> bool:
    if value_converters.boolean(node):
        raise value_converters.NotUsable("the command line of ZeroClaw begins a new session for each run")
    return True


AGENT = (
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
    both_days=True,
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
    Drop("delete_after_run", RUNS_ONCE, is_loss=False),
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
    Drop("gateway", CALLED),
    Drop("reliability", "heartbeatd has its own retries and its own schedule"),
    Drop("", STAYS),
)


def convert(draft: Draft) -> None:
    configs = draft.files.configs
    draft.telegram_token = next(filter(None, (_find_token(config, "") for config in configs)), MISSING)
    for config in configs:
        _convert_config(draft, config)
    # Version 3 of the config has jobs by name, each claimed by an agent, and no list.
    named = [node for config in configs for key, node in config.items("cron") if key != "jobs" and node.get("schedule")]
    listed = [node for config in configs for _, node in config.items("cron.jobs")]
    for node in (*draft.files.jobs, *listed, *named):
        if node.is_container and node.children:
            _convert_job(draft, node)


def _convert_config(draft: Draft, config: Node) -> None:
    owner, beat = config.first("heartbeat.agent", "heartbeat.agent_alias"), config.get("heartbeat")
    agent = draft.convert_agent(config, AGENT, ident=owner.text)
    if owner.text:
        agent.put_name(owner)
    agent.add_defaults({"workspace": "~/.zeroclaw/workspace"})
    if not beat:
        return
    agent.add_defaults({"heartbeat.enabled": False, "heartbeat.interval": "30m"})
    channel, to = beat.get("target"), beat.first("to", "recipient")
    if channel or to:
        _put_deliver(agent.below("heartbeat"), channel, to)
    else:
        _put_first_user(config, agent.below("heartbeat"))


def _convert_job(draft: Draft, node: Node) -> None:
    wanted = node.first("agent", "agent_alias") or _find_claim(draft, node)
    owner = draft.find_agent(wanted.text).name if wanted.text and node.first("prompt", "message") else ""
    by_name = "" if node.first("name", "id") else str(node.steps[-1])
    job = add_job(draft, node, replace(JOBS, fallback_name=by_name))
    if not job:
        return
    if owner and "prompt" in job:
        draft.set_value(f"{job.path}.agent", owner)
        job.keep(wanted, "agent")
    written = node.first(*(f"schedule.{key}" for key in SCHEDULE_KEYS["schedule"]), "schedule", "cron")
    if len(fields := written.text.split()) == 6 and re.search(r"\d", fields[5]):
        job.disable(f"the weekday {fields[5]} of an expression with six fields counts from Sunday as 1")
    for kind in (node.get("jobType"), node.get("sessionTarget")):
        job.keep(kind, "prompt" if "prompt" in job else "command")
    mode, delivery = node.get("delivery.mode"), node.get("delivery")
    if mode.text.lower() == "announce":
        _put_deliver(job, delivery.get("channel"), delivery.first("to", "recipient"))
        job.keep(mode, "deliver")
    draft.receipt.drop(mode, "nothing is sent, as here", is_loss=False)


def _find_claim(draft: Draft, job: Node) -> Node:
    """The name of the agent that lists the job in its `cron_jobs`."""
    for agent in (agent for config in draft.files.configs for _, agent in config.items("agents")):
        if any(claimed.text == str(job.steps[-1]) for _, claimed in agent.items("cron_jobs")):
            return agent.with_text(str(agent.steps[-1]))
    return MISSING


def _find_token(config: Node, alias: str) -> Node:
    """The token of a Telegram bot: of the one with this alias, or of the first."""
    bots = dict(config.items("channels.telegram"))
    if alias:
        return bots.get(alias, MISSING).get("bot_token")
    own = config.first("channels_config.telegram.bot_token", "channels.telegram.bot_token", "channels.telegram.default.bot_token")
    return own or next(filter(None, (bot.get("bot_token") for bot in bots.values())), MISSING)


def _put_deliver(part: Part, channel: Node, to: Node) -> None:
    """A recipient. A channel of version 3 names its bot: telegram.ops."""
    kind, _, alias = channel.text.partition(".")
    tokens = (_find_token(config, alias) for config in part.draft.files.configs)
    token = next(filter(None, tokens), MISSING) if kind == "telegram" and alias else MISSING
    part.put_deliver(channel.with_text(kind) if token else channel, to, token)
    if token:
        part.change(channel, "deliver")


def _put_first_user(config: Node, beat: Part) -> None:
    """Without a target, ZeroClaw takes the first user of its Telegram bot, and else sends nothing."""
    users = [node for key in ("channels_config", "channels") for _, node in config.items(f"{key}.telegram.allowed_users")]
    users += [node for _, group in config.items("peer_groups") for _, node in group.items("external_peers")]
    if beat.draft.telegram_token and users and users[0].text not in ("", "*"):
        beat.put_deliver(to=users[0])
    else:
        beat.add("deliver", "log", "ZeroClaw has no chat to send to")


def _start_agent(agent: Part, ident: str) -> None:
    """The command line; version 3 of the config has several agents, and the command names one."""
    script = 'zeroclaw agent{} ${{HEARTBEATD_MODEL:+--model "$HEARTBEATD_MODEL"}} --message "$(cat)"'
    argv = ["sh", "-c", script.format(' --agent "$0"'), ident] if ident else ["sh", "-c", script.format("")]
    agent.add("runner", {"kind": "command", "argv": argv}, "calls the agent by the command line of ZeroClaw")


SYSTEM = ForeignSystem("zeroclaw", "ZeroClaw", "config.toml, HEARTBEAT.md", convert, DROPS, _start_agent, switch="cron.enabled")
