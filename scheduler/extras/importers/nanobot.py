"""Imports nanobot: config.json, its job store cron/jobs.json, and a HEARTBEAT.md.

The formats are those of the project HKUDS/nanobot, from nanobot/config/schema.py and nanobot/cron/types.py. Keys may be written
in camelCase or snake_case. The command is `nanobot agent -m` of its README.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, JobShape, Path, Rule
from scheduler.extras.importers.foreign_system import (
    OPTION_ZONE,
    STORE_DROPS,
    Drop,
    ForeignSystem,
    find_configs,
    find_jobs,
)
from scheduler.extras.importers.source_files import Node, SourceFile

HEARTBEAT = (
    Rule("gateway.heartbeat.enabled", "heartbeat.enabled", value_converters.boolean, decides=True),
    Rule("gateway.heartbeat.intervalS", "heartbeat.interval", value_converters.duration("s"), decides=True),
    Rule("agents.defaults.workspace", "workspace"),
)
JOBS = JobShape(prompt=("payload.message",))
EVENTS = replace(JOBS, prompt=(), event=("payload.message",))

STAYS = "stays in nanobot, which still runs the agent"
DROPS = (
    *STORE_DROPS,
    Drop("jobs.*.deleteAfterRun", "a single run stays in the config after it has run", is_loss=False),
    Drop(
        "channelMeta sessionKey originMetadata originChannel originChatId channel to deliver",
        "the session and origin of a message stay in nanobot",
        "jobs.*.payload",
    ),
    Drop("channels", "nanobot still receives the messages of users"),
    Drop("providers", "nanobot calls this provider itself"),
    Drop("gateway.heartbeat.keepRecentMessages", "nanobot keeps the session"),
    Drop("gateway", "the agent is called by its command line"),
    Drop("agents tools audio", STAYS),
)


def convert(draft: Draft, sources: Sequence[SourceFile]) -> None:
    configs = find_configs(sources)
    for config in configs:
        if zone := config.get("agents.defaults.timezone"):
            draft.take_zone(zone)
        elif draft.zone_reason != OPTION_ZONE:
            draft.zone, draft.zone_reason = "UTC", "nanobot's default"  # docs/configuration.md, Timezone
        base = draft.add_agent("main", *_RUNNER)
        draft.telegram_token = draft.telegram_token or config.get("channels.telegram.token")
        if beat := config.get("gateway.heartbeat"):
            draft.note_entry(beat, base)
        draft.apply(HEARTBEAT, config, base)
        draft.add_defaults(base, {"workspace": "~/.nanobot/workspace"})
        draft.add_defaults((*base, "heartbeat"), {"interval": "30m"})
        draft.put_deliver((*base, "heartbeat"), None, None)
        _put_decision(draft, config, base)
    for job in find_jobs(sources):
        kind, message = job.get("payload.kind"), job.get("payload.message")
        shape = EVENTS if kind and kind.text.lower() == "system_event" else JOBS
        if shape is EVENTS and not (message and message.text):
            draft.receipt.drop(job, "nanobot's own job; its heartbeat is in config.json", is_loss=False)
            continue
        name = draft.add_job(job, shape, _RUNNER)
        if name and shape is JOBS:
            _put_delivery(draft, job, ("cron", name))


def _put_delivery(draft: Draft, job: Node, base: Path) -> None:
    """The session to which a job is bound gets its answer. Older jobs name a recipient, and `deliver` says whether it is used."""
    sent = job.get("payload.deliver")
    channel, to = job.first("payload.originChannel"), job.first("payload.originChatId")
    if channel and channel.text:
        draft.put_deliver(base, channel, to)
    elif sent and sent.value is True:
        draft.put_deliver(base, job.get("payload.channel"), job.get("payload.to"))
    elif (session := job.get("payload.sessionKey")) and session.text:
        word, _, chat = session.text.partition(":")
        draft.put_deliver(base, session.with_text(word), session.with_text(chat))
        draft.receipt.change(session, ".".join((*base, "deliver")), draft.data["cron"][base[1]]["deliver"])
    else:
        draft.add((*base, "deliver"), "none", "it names no session and no recipient")
    if sent:
        draft.receipt.keep(sent, ".".join((*base, "deliver")))


def _put_decision(draft: Draft, config: Node, base: Path) -> None:
    """nanobot asks its model first whether there is anything to do. It can be kept if the model's provider is known."""
    model, chosen = config.get("agents.defaults.model"), config.get("agents.defaults.provider")
    if not model or not model.text:
        return
    prefix, _, short = model.text.partition("/")
    name = chosen.text if chosen and chosen.text not in ("", "auto") else prefix
    provider = config.get(f"providers.{name}") if name.replace("_", "").isalnum() else None
    key = provider.get("apiKey") if provider else None
    address = provider.get("apiBase") if provider else None
    if not key or not key.text or not (name in ("anthropic", "openai") or (address and address.text)):
        return
    try:
        made = draft.add_provider(name, key, address)
    except value_converters.NotUsable as error:
        draft.receipt.drop(address or key, str(error))
        made = draft.add_provider(name, key, None)
    decide = (*base, "heartbeat", "decide")
    plain = short if name in ("anthropic", "openai") and short else model.text
    draft.put(model, (*decide, "model"), plain, "the model that decides whether the agent is called")
    if chosen and chosen.text == made:
        draft.put(chosen, (*decide, "provider"), made)
    else:
        draft.add((*decide, "provider"), made, "the provider of the model")


_RUNNER = (
    {"kind": "command", "argv": ["sh", "-c", 'nanobot agent --message "$(cat)"']},
    "calls the agent by the command line of nanobot",
)

SYSTEM = ForeignSystem("nanobot", "nanobot", "config.json, cron/jobs.json, HEARTBEAT.md", convert, DROPS, _RUNNER)
