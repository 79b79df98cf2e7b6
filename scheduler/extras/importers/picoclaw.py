"""Imports PicoClaw: config.json, its job store workspace/cron/jobs.json, and PICOCLAW_ variables in a .env file.

The formats are those of the project sipeed/picoclaw, from config/config.example.json, pkg/cron/service.go, and the pages
Configuration, Environment variables, Heartbeat and the command `picoclaw agent` of its documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, JobShape, Rule
from scheduler.extras.importers.foreign_system import (
    OWN_LIMITS,
    STORE_DROPS,
    Drop,
    ForeignSystem,
    find_configs,
    find_jobs,
)
from scheduler.extras.importers.source_files import Node, SourceFile

LEAST_MINUTES = 5


def _interval(node: Node) -> object:
    """Minutes. PicoClaw takes 0 as its default of 30 minutes, and 1 to 4 as 5 minutes."""
    return value_converters.duration("m", least=LEAST_MINUTES * 60, zero="30m")(node)


HEARTBEAT = (
    Rule("heartbeat.enabled", "heartbeat.enabled", value_converters.boolean, decides=True),
    Rule("heartbeat.interval", "heartbeat.interval", _interval, decides=True),
    Rule("PICOCLAW_HEARTBEAT_ENABLED", "heartbeat.enabled", value_converters.boolean, decides=True),
    Rule("PICOCLAW_HEARTBEAT_INTERVAL", "heartbeat.interval", _interval, decides=True),
    Rule("agents.defaults.workspace", "workspace"),
    Rule("PICOCLAW_AGENTS_DEFAULTS_WORKSPACE", "workspace"),
    Rule("agents.defaults.model", "model"),
    Rule("agents.defaults.model_name", "model"),
    Rule("PICOCLAW_AGENTS_DEFAULTS_MODEL_NAME", "model"),
)
JOBS = JobShape(prompt=("payload.message",), command=("payload.command",))
# pkg/cron: a job with `deliver` sends its message as it is, and the agent sees only the messages of other jobs.
SENT = replace(JOBS, prompt=(), message=("payload.message",))

STAYS = "stays in PicoClaw, which still runs the agent"
DROPS = (
    *STORE_DROPS,
    Drop("jobs.*.payload.message", "a job with a command sends its output instead"),
    Drop("jobs.*.deleteAfterRun", "a single run stays in the config after it has run", is_loss=False),
    Drop("tools.cron", OWN_LIMITS),
    Drop("channel_list channels", "PicoClaw still receives the messages of users"),
    Drop("gateway", "the agent is called by its command line"),
    Drop("agents llm model_list providers tools devices rate_limits stt", STAYS),
)


def convert(draft: Draft, sources: Sequence[SourceFile]) -> None:
    configs = find_configs(sources)
    if configs:
        base = draft.add_agent("main", *_RUNNER)
        for config in configs:
            if beat := config.get("heartbeat"):
                draft.note_entry(beat, base)
            draft.apply(HEARTBEAT, config, base)
            draft.telegram_token = draft.telegram_token or _find_token(config)
            draft.switch_jobs(config.get("tools.cron.enabled"))
        draft.add_defaults(base, {"workspace": "~/.picoclaw/workspace"})
        draft.add_defaults((*base, "heartbeat"), {"interval": "30m", "on_missing": "create"})
        draft.put_deliver((*base, "heartbeat"), None, None)
    for job in find_jobs(sources):
        sent = job.get("payload.deliver")
        shape = SENT if sent and sent.value is True and not job.first("payload.command") else JOBS
        name = draft.add_job(job, shape, _RUNNER, ("payload.channel", "payload.to"))
        if name and sent:
            draft.receipt.keep(sent, f"cron.{name}.command" if shape is SENT else f"cron.{name}.deliver")


def _find_token(config: Node) -> Node | None:
    """The token of the Telegram bot. Version 3 of the config has it in `channel_list`, under a name that the user chooses."""
    for name, channel in config.items("channel_list"):
        kind = channel.get("type")
        if (kind.text if kind else name).lower() == "telegram" and (token := channel.first("settings.token", "token")):
            return token
    return config.first("channels.telegram.token", "PICOCLAW_CHANNELS_TELEGRAM_TOKEN")


_RUNNER = (
    {
        "kind": "command",
        "argv": ["sh", "-c", 'picoclaw agent ${HEARTBEATD_MODEL:+--model "$HEARTBEATD_MODEL"} --message "$(cat)"'],
    },
    "calls the agent by the command line of PicoClaw",
)

SYSTEM = ForeignSystem("picoclaw", "PicoClaw", "config.json, cron/jobs.json, .env, HEARTBEAT.md", convert, DROPS, _RUNNER)
