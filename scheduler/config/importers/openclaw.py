"""Imports OpenClaw: openclaw.json, its job store cron/jobs.json, and a HEARTBEAT.md with a `tasks:` block.

The formats are those of the project openclaw/openclaw, from its documents docs/gateway/heartbeat.md,
docs/gateway/configuration-examples.md, docs/automation/cron-jobs.md and docs/cli/agent.md, and from src/cron/types.ts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from scheduler.config.importers import value_converters
from scheduler.config.importers.config_draft import OVERRIDDEN, Draft, JobShape, Path, Rule
from scheduler.config.importers.foreign_system import STORE_DROPS, Drop, ForeignSystem, find_checklists, find_configs, find_jobs
from scheduler.config.importers.source_files import Node, SourceFile

HEARTBEAT = (
    Rule("every", "interval", value_converters.duration("m")),
    Rule("model", "model"),
    Rule("prompt", "prompt"),
    Rule("ackMaxChars", "ack_max_chars", value_converters.whole(0, 10_000)),
    Rule("lightContext", "light_context", value_converters.boolean),
    Rule("timeoutSeconds", "timeout", value_converters.positive_duration("s")),
)
VISIBILITY = (Rule("showOk", "show_ok", value_converters.boolean), Rule("showAlerts", "show_alerts", value_converters.boolean))
JOBS = JobShape(
    prompt=("payload.message",),
    event=("payload.text",),
    rules=(
        Rule("payload.model", "model"),
        Rule("payload.timeoutSeconds", "timeout", value_converters.positive_duration("s")),
    ),
    naive_zone="UTC",  # docs/automation/cron-jobs.md: a time without an offset is UTC
)
DEFAULTS = {"interval": "30m", "ack_max_chars": 300, "on_missing": "run"}
WORKSPACE = "~/.openclaw/workspace"

STAYS = "stays in OpenClaw, which still runs the agent"
DROPS = (
    Drop("jobs.*.trigger", "the script decides whether the job runs, and only OpenClaw can run it", changes_meaning=True),
    Drop("jobs.*.pacing", "the agent sets the time of the next run itself", changes_meaning=True),
    *(
        Drop(f"jobs.*.{key}", "heartbeatd has no such setting")
        for key in (
            *("description", "displayName", "payload.thinking", "payload.fallbacks", "payload.lightContext"),
            *("payload.bestEffortDeliver", "delivery.bestEffort", "delivery.failureDestination", "failureAlert"),
        )
    ),
    Drop("jobs.*.wakeMode", "the answer of this job is delivered, and wakes no heartbeat"),
    Drop("jobs.*.delivery", "this job sends nothing itself"),
    Drop("jobs.*.deleteAfterRun", "a single run stays in the config after it has run", is_loss=False),
    Drop("jobs.*.schedule.anchorMs", "intervals count from the first time that the daemon sees the job"),
    Drop("jobs.*.sessionKey", NO_SESSION := "sessions stay in OpenClaw"),
    *STORE_DROPS,
    Drop("channels.*.heartbeat.useIndicator", "heartbeatd shows its runs in `heartbeatd status` and in metrics"),
    Drop("channels.*.heartbeat", "visibility is a setting of an agent in heartbeatd, and no agent sends to this channel"),
    Drop("channels", "OpenClaw still receives the messages of users"),
    Drop("cron", "heartbeatd has its own store, history and limits"),
    Drop("session", NO_SESSION),
    *(
        Drop(key, STAYS)
        for key in ("gateway", "models", "auth", "env", "tools", "skills", "hooks", "routing", "identity", "messages", "logging")
    ),
    Drop("agents.*.heartbeat.includeReasoning", "heartbeatd keeps reasoning in the run record and does not send it"),
    Drop("**.heartbeat.session", NO_SESSION),
    Drop("**.heartbeat.directPolicy", "heartbeatd sends to the chat that deliver names"),
    Drop("**.heartbeat.accountId", "the channel has one bot token"),
    Drop("agents", STAYS),
    Drop("agent", STAYS),
)


def convert(draft: Draft, sources: Sequence[SourceFile]) -> None:
    for config in find_configs(sources):
        _convert_config(draft, config)
    for job in find_jobs(sources):
        name = draft.add_job(job, JOBS, _runner("main"))
        if name and "prompt" in draft.data["cron"][name]:
            _put_delivery(draft, job, ("cron", name))
    for checklist in find_checklists(sources):
        _put_checklist(draft, checklist)


def _convert_config(draft: Draft, config: Node) -> None:
    draft.take_zone(config.get("agents.defaults.userTimezone"))
    draft.telegram_token = config.first("channels.telegram.botToken", "channels.telegram.token")
    shared = config.get("agents.defaults.heartbeat")
    listed = [(node.get("id"), node) for _, node in config.items("agents.list")]
    entries = [(None, node) for _, node in config.items("agents.entries")]
    agents = [(ident, node) for ident, node in (*listed, *entries) if node.is_container]
    own = any(node.get("heartbeat") for _, node in agents)
    for ident, node in agents:
        name = ident.text if ident else str(node.steps[-1])
        beats = bool(node.get("heartbeat")) if own else _is_default(node) or len(agents) == 1
        base = _add_agent(draft, config, name or "main", node, [shared, node.get("heartbeat")] if beats else None)
        if ident:
            draft.name_entry(ident, base)
        if (default := node.get("default")) and default.value is True:
            draft.default_agent = base[1]
            draft.receipt.keep(default, ".".join(base), "jobs that name no agent are for this one")
    if not agents:
        _add_agent(draft, config, "main", config.get("agent"), [shared, config.get("agent.heartbeat")])


def _is_default(node: Node) -> bool:
    default = node.get("default")
    return bool(default and default.value is True)


def _add_agent(draft: Draft, config: Node, ident: str, node: Node | None, beats: Sequence[Node | None] | None) -> Path:
    """An agent of OpenClaw. `beats` are its heartbeat settings, the more special last; None if it has no heartbeat."""
    base = draft.add_agent(ident, *_runner(ident))
    heart = (*base, "heartbeat")
    workspace = (node.get("workspace") if node else None) or config.get("agents.defaults.workspace")
    if workspace and workspace.text:
        draft.put(workspace, (*base, "workspace"), workspace.text)
    else:
        draft.add((*base, "workspace"), WORKSPACE, "OpenClaw's default")
    if beats is None:
        return base
    for beat in beats:
        draft.apply(HEARTBEAT, beat, heart)
        if beat and (hours := beat.get("activeHours")):
            host = ("user", "local")
            draft.put_hours(heart, hours.get("start"), hours.get("end"), hours.get("timezone"), words_for_host=host)
    _put_session(draft, base, _last_given(draft, beats, "isolatedSession"))
    for key, value in DEFAULTS.items():
        if not draft.has((*heart, key)):
            draft.add((*heart, key), value, "OpenClaw's default")
    channel, to = (_last_given(draft, beats, key) for key in ("target", "to"))
    if channel or to:
        draft.put_deliver(heart, channel, to)
    word = channel.text if channel else "last"
    for place in ("channels.defaults", f"channels.{word}") if word.isalnum() else ("channels.defaults",):
        for key in ("heartbeat", "heartbeatVisibility"):
            draft.apply(VISIBILITY, config.get(f"{place}.{key}"), heart)
    return base


def _put_session(draft: Draft, base: Path, isolated: Node | None) -> None:
    """OpenClaw keeps the session: the agent's main session, or a new one for each run."""
    if isolated is None:
        return
    try:
        is_isolated = value_converters.boolean(isolated)
    except value_converters.NotUsable as error:
        draft.receipt.drop(isolated, str(error))
        return
    if is_isolated:
        draft.put(isolated, (*base, "heartbeat", "isolated_session"), True, "the runner starts a new session for each run")
        argv = draft.data["agents"][base[1]]["runner"]["argv"]
        argv[2] = argv[2].replace('"$0"', '"$0" --session-key "agent:$0:heartbeat-$HEARTBEATD_RUN"')
    else:
        draft.receipt.keep(isolated, ".".join((*base, "runner")), "the agent's main session is used")


def _last_given(draft: Draft, beats: Sequence[Node | None], key: str) -> Node | None:
    """The most special value of a key; the others have no effect."""
    found = [node for beat in beats if beat and (node := beat.get(key)) and node.text]
    for node in found[:-1]:
        draft.receipt.drop(node, OVERRIDDEN, is_loss=False)
    return found[-1] if found else None


def _put_delivery(draft: Draft, job: Node, base: Path) -> None:
    """Where a job with a prompt sends its answer. Without `delivery`, OpenClaw announces it to the last chat."""
    delivery = job.get("delivery") or job.get("payload")
    mode = delivery.get("mode") if delivery else None
    if mode:
        draft.receipt.keep(mode, ".".join((*base, "deliver")))
    to = delivery.get("to") if delivery else None
    if mode and mode.text.lower() == "none":
        draft.add((*base, "deliver"), "none", "delivery.mode is none")
    elif mode and mode.text.lower() == "webhook" and to:
        try:
            draft.add((*base, "deliver"), draft.webhook(to), "delivery.mode is webhook")
        except value_converters.NotUsable as error:
            draft.receipt.drop(to, str(error))
            draft.add((*base, "deliver"), "log", "no channel could be imported for its messages")
    else:
        draft.put_deliver(base, delivery.get("channel") if delivery else None, to)


def _put_checklist(draft: Draft, checklist: SourceFile) -> None:
    """A checklist belongs to the agent whose workspace is its folder, else to the default agent."""
    folder = PurePath(checklist.name).parent.name
    owners = [
        name
        for name, agent in draft.data["agents"].items()
        if folder and PurePath(str(agent.get("workspace", ""))).name == folder
    ]
    agent = owners[0] if owners else draft.find_agent("", *_runner("main"))
    draft.put_checklist(checklist, agent, is_in_workspace=bool(owners))


def _runner(ident: str) -> tuple[dict[str, object], str]:
    """The command line of OpenClaw, which hands one turn to the gateway. The prompt is on standard input."""
    script = 'openclaw agent --agent "$0" ${HEARTBEATD_MODEL:+--model "$HEARTBEATD_MODEL"} --message "$(cat)"'
    return {"kind": "command", "argv": ["sh", "-c", script, ident]}, "calls the agent through the gateway of OpenClaw"


SYSTEM = ForeignSystem("openclaw", "OpenClaw", "openclaw.json, cron/jobs.json, HEARTBEAT.md", convert, DROPS)
