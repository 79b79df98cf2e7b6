"""Imports GoClaw: config.json, heartbeats and jobs as its API returns them.

The formats are those of the project nextlevelbuilder/goclaw, from internal/store/heartbeat_store.go (as `heartbeat.get` returns
it), its store of cron jobs, and docs/18-http-api.md for the chat completions that the runner calls. Heartbeats and jobs are in
GoClaw's database, so a file with the response of the API is imported.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, JobShape, Path, Rule
from scheduler.extras.importers.foreign_system import (
    NAMES_A_THING,
    OWN_LIMITS,
    RECORD,
    STORE_DROPS,
    Drop,
    ForeignSystem,
    find_configs,
    find_jobs,
)
from scheduler.extras.importers.source_files import Node, SourceFile

LEAST = 300  # seconds; the least that GoClaw accepts
PORT = 18790
HEARTBEAT = (
    Rule("enabled", "enabled", value_converters.boolean, decides=True),
    Rule("interval", "interval", value_converters.duration("s", least=LEAST), decides=True),  # of the action `set`
    Rule("intervalSec", "interval", value_converters.duration("s", least=LEAST), decides=True),
    Rule("prompt", "prompt"),
    Rule("isolatedSession", "isolated_session", value_converters.boolean),
    Rule("lightContext", "light_context", value_converters.boolean),
    Rule("ackMaxChars", "ack_max_chars", value_converters.whole(0, 10_000)),
    Rule("maxRetries", "retries", value_converters.whole(0, 10)),
)
DEFAULTS: dict[str, object] = {"enabled": False, "interval": "30m", "ok_match": "anywhere"}
JOBS = JobShape(prompt=("payload.message", "message"), command=("payload.command",), agent=("agentKey", "agentId"))

STAYS = "stays in GoClaw, which still runs the agent"
DROPS = (
    *STORE_DROPS,
    Drop("runCount suppressCount metadata state", RECORD, "**", is_loss=False),
    Drop("id tenantId userId agentId", NAMES_A_THING, "**", is_loss=False),
    Drop("jobs.*.payload.promptFile", "the prompt is in a file of GoClaw; write its text as prompt", changes_meaning=True),
    Drop("payload.channel payload.to deliverChannel deliverTo", "the job sends nothing", "jobs.*", is_loss=False),
    Drop("model providerId", "the gateway of GoClaw chooses the model of an agent", "jobs.*"),
    Drop("jobs.*.deleteAfterRun", "a single run stays in the config after it has run", is_loss=False),
    Drop("**.providerId", "is only an identifier; add providerName, or set provider and model of the heartbeat"),
    Drop("cron", OWN_LIMITS),
    Drop("channels", "GoClaw still receives the messages of users"),
    Drop("agents providers gateway tools sessions skills database", STAYS),
)


def convert(draft: Draft, sources: Sequence[SourceFile]) -> None:
    configs = find_configs(sources)
    for config in configs:
        draft.take_zone(config.get("cron.default_timezone"))
        draft.telegram_token = draft.telegram_token or config.first("channels.telegram.token", "channels.telegram.botToken")
    gateway = next((config for config in configs if config.get("gateway")), None)
    beats = [node for source in sources for node in _find_heartbeats(source.root)]
    for beat in beats:
        _add_heartbeat(draft, beat, gateway, configs)
    for config in configs:
        for ident, _ in config.items("agents.list"):
            _find_agent(draft, gateway, ident)
    for job in find_jobs(sources):
        if _is_heartbeat(job):
            continue
        wanted = job.first(*JOBS.agent)
        agent = _find_agent(draft, gateway, wanted.text if wanted else "")
        name = draft.add_job(job, JOBS, _runner())
        if name:
            _put_rest(draft, job, name, agent)


def _put_rest(draft: Draft, job: Node, name: str, agent: str) -> None:
    base = ("cron", name)
    has_prompt = "prompt" in draft.data["cron"][name]
    sent = job.first("deliver", "payload.deliver")
    if sent and sent.value is True:
        channel = job.first("deliverChannel", "payload.deliverChannel", "payload.channel")
        to = job.first("deliverTo", "payload.deliverTo", "payload.to")
        draft.put_deliver(base, channel, to, has_agent=has_prompt)
        draft.receipt.keep(sent, f"cron.{name}.deliver")
    elif sent:
        draft.put(sent, (*base, "deliver"), "none")
    if (wake := job.first("wakeHeartbeat", "payload.wakeHeartbeat")) and wake.value is True:
        draft.put(wake, (*base, "wake_heartbeat"), agent)
    elif wake:
        draft.receipt.drop(wake, "false, as here", is_loss=False)
    if stateless := job.get("stateless"):
        if not has_prompt:
            draft.receipt.drop(stateless, "a command has no session", is_loss=False)
        elif stateless.value is True:
            draft.receipt.keep(stateless, f"cron.{name}.prompt", "jobs have no history")
        else:
            draft.receipt.drop(stateless, "jobs have no history in heartbeatd")


def _find_heartbeats(root: Node) -> list[Node]:
    """Heartbeats as the API returns them: alone, under `heartbeat`, or as a list."""
    places = (root, root.get("heartbeat"))
    listed = [node for _, node in (*root.items("heartbeats"), *root.items())]
    found = [node for node in (*places, *listed) if node and _is_heartbeat(node)]
    return list({id(node): node for node in found}.values())


def _is_heartbeat(node: Node) -> bool:
    """Whether this is a heartbeat: as the API returns it, or as the tool of the agent sets it (`action: set`)."""
    action = node.get("action")
    return node.is_container and bool(node.get("intervalSec") or (action and action.text == "set"))


def _add_heartbeat(draft: Draft, beat: Node, gateway: Node | None, configs: Sequence[Node]) -> None:
    named = beat.first("agentKey", "agentId")
    name = _find_agent(draft, gateway, named.text if named else "main")
    base = ("agents", name, "heartbeat")
    if named:
        draft.name_entry(named, ("agents", name))
    draft.note_entry(beat, base)
    if action := beat.get("action"):
        draft.receipt.drop(action, RECORD, is_loss=False)
    draft.apply(HEARTBEAT, beat, base)
    hours, zone = beat.get("active_hours"), beat.get("timezone")
    if hours and hours.text:
        draft.put_range(base, hours, zone, default_zone="UTC")
    else:
        draft.put_hours(base, beat.get("activeHoursStart"), beat.get("activeHoursEnd"), zone, default_zone="UTC")
    draft.add_defaults(base, DEFAULTS)
    draft.add((*base, "answer"), "text", "the gateway returns text")
    channel, chat = beat.get("channel"), beat.get("chatId")
    if (channel and channel.text) or (chat and chat.text):
        draft.put_deliver(base, channel, chat)
    _put_model(draft, beat, base, configs)


def _put_model(draft: Draft, beat: Node, base: Path, configs: Sequence[Node]) -> None:
    """The model of heartbeats only. It is called directly, because the gateway has one model for each agent."""
    model, named = beat.get("model"), beat.get("providerName")
    if not model or not model.text:
        return
    name = named.text if named else ""
    listed = [node for config in configs if (node := config.get("providers")) and name in node.children]
    provider = listed[0].children[name] if listed else None
    key = provider.first("api_key") if provider else None
    address = provider.first("api_base", "base_url") if provider else None
    if not named or not provider or not (name in ("anthropic", "openai") or address):
        draft.receipt.drop(model, "its provider is not in the imported files; set provider and model of the heartbeat")
        return
    try:
        made = draft.add_provider(name, key, address)
    except value_converters.NotUsable as error:
        draft.receipt.drop(address or model, str(error))
        return
    draft.put(model, (*base, "model"), model.text, "heartbeats call this model directly, without the tools of GoClaw")
    draft.put(named, (*base, "provider"), made)
    if ident := beat.get("providerId"):
        draft.receipt.drop(ident, NAMES_A_THING, is_loss=False)


def _find_agent(draft: Draft, gateway: Node | None, ident: str) -> str:
    """The agent with this key, called through the gateway."""
    known = set(draft.data["agents"])
    name = draft.find_agent(ident, *_runner())
    if name not in known:
        _add_gateway(draft, gateway)
        draft.add(("agents", name, "model"), f"goclaw:{ident or name}", "the name of the agent for the gateway")
    return name


def _add_gateway(draft: Draft, gateway: Node | None) -> None:
    if "goclaw" in draft.data["providers"]:
        return
    base = ("providers", "goclaw")
    draft.add((*base, "kind"), "openai", "the gateway has a chat completions API")
    host, port = (gateway.get(f"gateway.{key}") if gateway else None for key in ("host", "port"))
    name = host.text if host and host.text not in ("", "0.0.0.0", "::", "[::]") else "127.0.0.1"  # noqa: S104 (any address)
    url = f"http://{name}:{port.text if port and port.text else PORT}/v1"
    draft.add((*base, "base_url"), url, "the address of the gateway")
    for node in (host, port):
        if node and node.text:
            draft.receipt.keep(node, "providers.goclaw.base_url")
    token = gateway.get("gateway.token") if gateway else None
    if token and token.text:
        draft.secret(token, (*base, "api_key"), "GOCLAW_GATEWAY_TOKEN")
    else:
        draft.add((*base, "api_key"), draft.reference(None, "GOCLAW_GATEWAY_TOKEN"), "the token of the gateway")


def _runner() -> tuple[dict[str, object], str]:
    return {"kind": "openai", "provider": "goclaw"}, "calls the agent through the gateway of GoClaw"


SYSTEM = ForeignSystem("goclaw", "GoClaw", "config.json, heartbeats and jobs as its API returns them", convert, DROPS)
