"""Imports PicoClaw: config.json, its job store workspace/cron/jobs.json, and PICOCLAW_ variables in a .env file.

The formats are those of the project sipeed/picoclaw, from config/config.example.json, pkg/cron/service.go, and the pages
Configuration, Environment variables, Heartbeat and the command `picoclaw agent` of its documentation.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, Rule
from scheduler.extras.importers.foreign_system import CALLED, OWN_LIMITS, STORE_DROPS, Drop, ForeignSystem, command_line
from scheduler.extras.importers.job_conversion import JobShape, add_job
from scheduler.extras.importers.source_files import MISSING, Node

# Minutes. PicoClaw takes 0 as its default of 30 minutes, and 1 to 4 as 5 minutes.
INTERVAL = value_converters.duration("m", least=5 * 60, zero="30m")
AGENT = (
    Rule("heartbeat.enabled", "heartbeat.enabled", value_converters.boolean, decides=True),
    Rule("heartbeat.interval", "heartbeat.interval", INTERVAL, decides=True),
    Rule("PICOCLAW_HEARTBEAT_ENABLED", "heartbeat.enabled", value_converters.boolean, decides=True),
    Rule("PICOCLAW_HEARTBEAT_INTERVAL", "heartbeat.interval", INTERVAL, decides=True),
    Rule("agents.defaults.workspace", "workspace"),
    Rule("PICOCLAW_AGENTS_DEFAULTS_WORKSPACE", "workspace"),
    Rule("agents.defaults.model", "model"),
    Rule("agents.defaults.model_name", "model"),
    Rule("PICOCLAW_AGENTS_DEFAULTS_MODEL_NAME", "model"),
)
DEFAULTS = {"workspace": "~/.picoclaw/workspace", "heartbeat.interval": "30m", "heartbeat.on_missing": "create"}
JOBS = JobShape(prompt=("payload.message",), command=("payload.command",), both_days=True)
# pkg/cron: a job with `deliver` sends its message as it is, and the agent sees only the messages of other jobs.
SENT = replace(JOBS, prompt=(), message=("payload.message",))

STAYS = "stays in PicoClaw, which still runs the agent"
DROPS = (
    *STORE_DROPS,
    Drop("jobs.*.payload.message", "a job with a command sends its output instead"),
    Drop("tools.cron", OWN_LIMITS),
    Drop("channel_list channels", "PicoClaw still receives the messages of users"),
    Drop("gateway", CALLED),
    Drop("agents llm model_list providers tools devices rate_limits stt", STAYS),
)


def convert(draft: Draft) -> None:
    configs = draft.files.configs
    draft.telegram_token = next(filter(None, map(_find_token, configs)), MISSING)
    for config in configs:
        draft.convert_agent(config, AGENT)
    if configs:
        agent = draft.find_agent("")
        agent.add_defaults(DEFAULTS)
        agent.below("heartbeat").put_deliver()
    for node in draft.files.jobs:
        sent = node.get("payload.deliver")
        is_sent = sent.value is True and not node.first("payload.command")
        if job := add_job(draft, node, SENT if is_sent else JOBS):
            job.put_deliver(node.get("payload.channel"), node.get("payload.to"))
            job.keep(sent, "command" if is_sent else "deliver")


def _find_token(config: Node) -> Node:
    """The token of the Telegram bot. Version 3 of the config has it in `channel_list`, under a name that the user chooses."""
    for name, channel in config.items("channel_list"):
        kind = channel.get("type").text or name
        if kind.lower() == "telegram" and (token := channel.first("settings.token", "token")):
            return token
    return config.first("channels.telegram.token", "PICOCLAW_CHANNELS_TELEGRAM_TOKEN")


SYSTEM = ForeignSystem(
    "picoclaw",
    "PicoClaw",
    "config.json, cron/jobs.json, .env, HEARTBEAT.md",
    convert,
    DROPS,
    command_line("PicoClaw", 'picoclaw agent ${HEARTBEATD_MODEL:+--model "$HEARTBEATD_MODEL"} --message "$(cat)"'),
    switch="tools.cron.enabled",
)
