"""Imports GoClaw: config.json, heartbeats and jobs as its API returns them.

The formats are those of the project nextlevelbuilder/goclaw, from internal/store/heartbeat_store.go (as `heartbeat.get` returns
it), its store of cron jobs, and docs/18-http-api.md for the chat completions that the runner calls. Heartbeats and jobs are in
GoClaw's database, so a file with the response of the API is imported.
"""

from __future__ import annotations

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, Part, Rule
from scheduler.extras.importers.foreign_system import NAMES_A_THING, OWN_LIMITS, RECORD, STORE_DROPS, Drop, ForeignSystem
from scheduler.extras.importers.job_conversion import JobShape, add_job
from scheduler.extras.importers.source_files import MISSING, Node

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
DEFAULTS = {"enabled": False, "interval": "30m", "ok_match": "anywhere"}
JOBS = JobShape(
    prompt=("payload.message", "message"), command=("payload.command",), agent=("agentKey", "agentId"), both_days=True
)

STAYS = "stays in GoClaw, which still runs the agent"
NO_PROVIDER = "its provider is not in the imported files; set provider and model of the heartbeat"
DROPS = (
    *STORE_DROPS,
    Drop("runCount suppressCount metadata state", RECORD, "**", is_loss=False),
    Drop("id tenantId userId agentId", NAMES_A_THING, "**", is_loss=False),
    Drop("jobs.*.payload.promptFile", "the prompt is in a file of GoClaw; write its text as prompt", changes_meaning=True),
    Drop("payload.channel payload.to deliverChannel deliverTo", "the job sends nothing", "jobs.*", is_loss=False),
    Drop("model providerId", "the gateway of GoClaw chooses the model of an agent", "jobs.*"),
    Drop("**.providerId", "is only an identifier; add providerName, or set provider and model of the heartbeat"),
    Drop("cron", OWN_LIMITS),
    Drop("channels", "GoClaw still receives the messages of users"),
    Drop("agents providers gateway tools sessions skills database", STAYS),
)


def convert(draft: Draft) -> None:
    files = draft.files
    jobs = [job for job in files.jobs if not _is_heartbeat(job)]
    for beat in (beat for root in files.roots for beat in _find_heartbeats(root)):
        _add_heartbeat(draft, beat)
    for ident in (ident for config in files.configs for ident, _ in config.items("agents.list")):
        draft.find_agent(ident)
    for node in jobs:
        agent = draft.find_agent(node.first(*JOBS.agent).text)
        if job := add_job(draft, node, JOBS):
            _put_rest(node, job, agent.name)


def _put_rest(node: Node, job: Part, agent: str) -> None:
    """Where a job sends its answer, and what it does besides."""
    sent, wake, stateless = (node.first(key, f"payload.{key}") for key in ("deliver", "wakeHeartbeat", "stateless"))
    if sent.value is True:
        job.put_deliver(
            node.first("deliverChannel", "payload.deliverChannel", "payload.channel"),
            node.first("deliverTo", "payload.deliverTo", "payload.to"),
        )
        job.keep(sent, "deliver")
    elif sent:
        job.put("deliver", sent, "none")
    if wake.value is True:
        job.put("wake_heartbeat", wake, agent)
    job.draft.receipt.drop(wake, "false, as here", is_loss=False)
    if "prompt" not in job:
        job.draft.receipt.drop(stateless, "a command has no session", is_loss=False)
    elif stateless.value is True:
        job.keep(stateless, "prompt", "jobs have no history")
    else:
        job.draft.receipt.drop(stateless, "jobs have no history in heartbeatd")


def _find_heartbeats(root: Node) -> list[Node]:
    """Heartbeats as the API returns them: alone, under `heartbeat`, or as a list."""
    listed = [node for _, node in (*root.items("heartbeats"), *root.items())]
    return list(dict.fromkeys(node for node in (root, root.get("heartbeat"), *listed) if _is_heartbeat(node)))


def _is_heartbeat(node: Node) -> bool:
    return bool(node.get("intervalSec")) or node.get("action").text == "set"


def _add_heartbeat(draft: Draft, node: Node) -> None:
    named = node.first("agentKey", "agentId")
    agent = draft.find_agent(named.text or "main")
    beat = agent.below("heartbeat")
    if named:
        agent.put_name(named)
    draft.note_agent_id(node.get("agentId"), agent)
    draft.note_entry(node, agent)
    draft.receipt.drop(node.get("action"), RECORD, is_loss=False)
    beat.apply(HEARTBEAT, node)
    hours, zone = node.get("active_hours"), node.get("timezone")
    if hours.text:
        beat.put_range(hours, zone, default_zone="UTC")
    else:
        beat.put_hours(node.get("activeHoursStart"), node.get("activeHoursEnd"), zone, default_zone="UTC")
    beat.add_defaults(DEFAULTS)
    beat.add("answer", "text", "the gateway returns text")
    channel, chat = node.get("channel"), node.get("chatId")
    if channel.text or chat.text:
        beat.put_deliver(channel, chat)
    if node.get("model").text:
        _put_model(node, beat)


def _put_model(node: Node, beat: Part) -> None:
    """The model of heartbeats only. It is called directly, because the gateway has one model for each agent."""
    draft, model, named = beat.draft, node.get("model"), node.get("providerName")
    providers = (config.get("providers").children for config in draft.files.configs)
    provider = next((found[named.text] for found in providers if named.text in found), MISSING)
    key, address = provider.first("api_key"), provider.first("api_base", "base_url")
    if not provider or not (named.text in ("anthropic", "openai") or address):
        draft.receipt.drop(model, NO_PROVIDER)
        if named.text:
            draft.receipt.drop(named, NO_PROVIDER)
            beat.disable(f"{named.key}: {NO_PROVIDER}")
        return
    try:
        made = draft.add_provider(named.text, key, address)
    except value_converters.NotUsable as error:
        draft.receipt.drop(address or model, str(error))
        return
    beat.put("model", model, model.text, "heartbeats call this model directly, without the tools of GoClaw")
    beat.put("provider", named, made)
    draft.receipt.drop(node.get("providerId"), NAMES_A_THING, is_loss=False)


def _start_agent(agent: Part, ident: str) -> None:
    """An agent is called through the gateway."""
    runner = {"kind": "openai", "provider": "goclaw"}
    agent.add("runner", runner, "calls the agent through the gateway of GoClaw")
    if "goclaw" not in agent.draft.data["providers"]:
        _add_gateway(agent.draft.part("providers.goclaw"))
    agent.add("model", f"goclaw:{ident or agent.name}", "the name of the agent for the gateway")


def _add_gateway(provider: Part) -> None:
    provider.add("kind", "openai", "the gateway has a chat completions API")
    host, port, token = (provider.draft.files.first(f"gateway.{key}") for key in ("host", "port", "token"))
    name = host.text if host.text not in ("", "0.0.0.0", "::", "[::]") else "127.0.0.1"  # noqa: S104 (any address)
    provider.add("base_url", f"http://{name}:{port.text or PORT}/v1", "the address of the gateway")
    for node in (host, port):
        provider.keep(node, "base_url")
    if token:
        provider.put_secret("api_key", token, "GOCLAW_GATEWAY_TOKEN")
    else:
        reference = provider.draft.make_reference(MISSING, "GOCLAW_GATEWAY_TOKEN")
        provider.add("api_key", reference, "the token of the gateway")


SYSTEM = ForeignSystem(
    "goclaw",
    "GoClaw",
    "config.json, heartbeats and jobs as its API returns them",
    convert,
    DROPS,
    _start_agent,
    zone="cron.default_timezone",
)
