"""Imports nanobot: config.json, its job store cron/jobs.json, and a HEARTBEAT.md.

The formats are those of the project HKUDS/nanobot, from nanobot/config/schema.py and nanobot/cron/types.py. Keys may be written
in camelCase or snake_case. The command is `nanobot agent -m` of its README.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, Part, Rule
from scheduler.extras.importers.foreign_system import CALLED, STORE_DROPS, Drop, ForeignSystem, command_line
from scheduler.extras.importers.job_conversion import JobShape, add_job
from scheduler.extras.importers.source_files import Node

AGENT = (
    Rule("gateway.heartbeat.enabled", "heartbeat.enabled", value_converters.boolean, decides=True),
    Rule("gateway.heartbeat.intervalS", "heartbeat.interval", value_converters.duration("s"), decides=True),
    Rule("agents.defaults.workspace", "workspace"),
)
DEFAULTS = {"workspace": "~/.nanobot/workspace", "heartbeat.interval": "30m"}
JOBS = JobShape(prompt=("payload.message",), seconds_last=True)
EVENTS = replace(JOBS, prompt=(), event=("payload.message",))

STAYS = "stays in nanobot, which still runs the agent"
DROPS = (
    *STORE_DROPS,
    Drop(
        "channelMeta sessionKey originMetadata originChannel originChatId channel to deliver",
        "the session and origin of a message stay in nanobot",
        "jobs.*.payload",
    ),
    Drop("channels", "nanobot still receives the messages of users"),
    Drop("providers", "nanobot calls this provider itself"),
    Drop("gateway.heartbeat.keepRecentMessages", "nanobot keeps the session"),
    Drop("gateway", CALLED),
    Drop("agents tools audio", STAYS),
)


def convert(draft: Draft) -> None:
    for config in draft.files.configs:
        agent = draft.convert_agent(config, AGENT, "gateway.heartbeat")
        agent.add_defaults(DEFAULTS)
        agent.below("heartbeat").put_deliver()
        _put_decision(config, agent.below("heartbeat"))
    for node in draft.files.jobs:
        is_event = node.get("payload.kind").text.lower() == "system_event"
        if is_event and not node.get("payload.message").text:
            draft.receipt.drop(node, "nanobot's own job; its heartbeat is in config.json", is_loss=False)
        elif (job := add_job(draft, node, EVENTS if is_event else JOBS)) and not is_event:
            _put_delivery(node.get("payload"), job)


def _put_delivery(payload: Node, job: Part) -> None:
    """The session to which a job is bound gets its answer. Older jobs name a recipient, and `deliver` says whether it is used."""
    sent, channel, session = payload.get("deliver"), payload.first("originChannel"), payload.get("sessionKey")
    if channel.text:
        job.put_deliver(channel, payload.first("originChatId"))
    elif sent.value is True:
        job.put_deliver(payload.get("channel"), payload.get("to"))
    elif session.text:
        word, _, chat = session.text.partition(":")
        job.put_deliver(session.with_text(word), session.with_text(chat))
        job.change(session, "deliver")
    else:
        job.add("deliver", "none", "it names no session and no recipient")
    job.keep(sent, "deliver")


def _put_decision(config: Node, beat: Part) -> None:
    """nanobot asks its model first whether there is anything to do. It can be kept if the model's provider is known."""
    model, chosen = config.get("agents.defaults.model"), config.get("agents.defaults.provider")
    prefix, _, short = model.text.partition("/")
    name = chosen.text if chosen.text not in ("", "auto") else prefix
    provider = config.get(f"providers.{name if name.replace('_', '').isalnum() else '?'}")
    key, address, is_known = provider.get("apiKey"), provider.get("apiBase"), name in ("anthropic", "openai")
    if not model.text or not key.text or not (is_known or address.text):
        return
    try:
        made = beat.draft.add_provider(name, key, address)
    except value_converters.NotUsable as error:
        beat.draft.receipt.drop(address, str(error))
        made = beat.draft.add_provider(name, key)
    plain = short if is_known and short else model.text
    beat.put("decide.model", model, plain, "the model that decides whether the agent is called")
    if chosen.text == made:
        beat.put("decide.provider", chosen, made)
    else:
        beat.add("decide.provider", made, "the provider of the model")


SYSTEM = ForeignSystem(
    "nanobot",
    "nanobot",
    "config.json, cron/jobs.json, HEARTBEAT.md",
    convert,
    DROPS,
    command_line("nanobot", 'nanobot agent --message "$(cat)"'),
    zone="agents.defaults.timezone",
    default_zone="UTC",  # docs/configuration.md, Timezone
    token=("channels.telegram.token",),
)
