"""Imports OpenClaw: openclaw.json, its job store cron/jobs.json, and a HEARTBEAT.md with a `tasks:` block.

The formats are those of the project openclaw/openclaw, from its documents docs/gateway/heartbeat.md,
docs/gateway/configuration-examples.md, docs/automation/cron-jobs.md and docs/cli/agent.md, and from src/cron/types.ts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import OVERRIDDEN, Draft, JobShape, Path, Rule
from scheduler.extras.importers.foreign_system import (
    NO_COUNTERPART,
    OWN_LIMITS,
    STORE_DROPS,
    Drop,
    ForeignSystem,
    find_checklists,
    find_configs,
    find_jobs,
)
from scheduler.extras.importers.source_files import Node, SourceFile

HEARTBEAT = (
    Rule("every", "interval", value_converters.duration("m")),
    Rule("model", "model"),
    Rule("prompt", "prompt"),
    Rule("ackMaxChars", "ack_max_chars", value_converters.whole(0, 10_000)),
    Rule("lightContext", "light_context", value_converters.boolean),
    Rule("timeoutSeconds", "timeout", value_converters.positive_duration("s")),
)
VISIBILITY = (Rule("showOk", "show_ok", value_converters.boolean), Rule("showAlerts", "show_alerts", value_converters.boolean))


def _argv(node: Node) -> object:
    """The program of a command job with its arguments."""
    words = [value_converters.text(each) for _, each in node.items()]
    if not words:
        raise value_converters.NotUsable("is no program with arguments")
    return words


JOBS = JobShape(
    prompt=("payload.message",),
    event=("payload.text",),
    command=("payload.argv",),
    command_form=_argv,
    rules=(
        Rule("payload.model", "model"),
        Rule("payload.timeoutSeconds", "timeout", value_converters.positive_duration("s")),
    ),
    naive_zone="UTC",  # docs/automation/cron-jobs/schedules.md: a time without an offset is UTC
)
# The same page: jobs at the full hour are delayed by up to five minutes, unless they have staggerMs.
TOP_OF_HOUR, TOP_STAGGER = r"(?:0 )?0 \*(?:/\d+)? .*", "5m"
LOGINS = (("anthropic", "oauth"), ("anthropic", "token"))
COMMAND = (
    Rule("payload.cwd", "workdir"),
    Rule("payload.input", "stdin"),
    Rule("payload.timeoutSeconds", "timeout", value_converters.positive_duration("s")),
)
DEFAULTS: dict[str, object] = {"interval": "30m", "ack_max_chars": 300, "on_missing": "run"}
WORKSPACE = "~/.openclaw/workspace"

NO_HEADERS = "a webhook of heartbeatd sends no token in a header"
NO_SESSION = "sessions stay in OpenClaw"
STAYS = "stays in OpenClaw, which still runs the agent"
DROPS = (
    Drop("jobs.*.trigger", "the script decides whether the job runs, and only OpenClaw can run it", changes_meaning=True),
    Drop("jobs.*.payload.toolsAllow", "the command line of OpenClaw cannot restrict the tools of a run", changes_meaning=True),
    Drop("jobs.*.pacing", "the agent sets the time of the next run itself", changes_meaning=True),
    Drop("description displayName delivery.bestEffort delivery.failureDestination failureAlert", NO_COUNTERPART, "jobs.*"),
    Drop("thinking fallbacks lightContext bestEffortDeliver", NO_COUNTERPART, "jobs.*.payload"),
    Drop("payload.noOutputTimeoutSeconds payload.outputMaxBytes declarationKey", NO_COUNTERPART, "jobs.*"),
    Drop("jobs.*.wakeMode", "the answer of this job is delivered, and wakes no heartbeat"),
    Drop("jobs.*.delivery", "this job sends nothing itself"),
    Drop("jobs.*.deleteAfterRun", "a single run stays in the config after it has run", is_loss=False),
    Drop("jobs.*.sessionTarget", NO_SESSION),
    Drop("jobs.*.schedule.anchorMs", "intervals count from the first time that the daemon sees the job"),
    Drop("jobs.*.sessionKey", NO_SESSION),
    *STORE_DROPS,
    Drop("channels.*.heartbeat.useIndicator", "heartbeatd shows its runs in `heartbeatd status` and in metrics"),
    Drop("channels.*.heartbeat", "visibility is a setting of an agent in heartbeatd, and no agent sends to this channel"),
    Drop("channels", "OpenClaw still receives the messages of users"),
    Drop("cron", OWN_LIMITS),
    Drop("session", NO_SESSION),
    Drop("gateway models auth env tools skills hooks routing identity messages logging", STAYS),
    Drop("**.heartbeat.includeReasoning", "heartbeatd keeps reasoning in the run record and does not send it"),
    Drop("**.heartbeat.session", NO_SESSION),
    Drop("**.heartbeat.skipWhenBusy", "a run of heartbeatd waits for the lane of the agent"),
    Drop("includeSystemPromptSection suppressToolErrorWarnings", NO_COUNTERPART, "**.heartbeat"),
    Drop("**.heartbeat.directPolicy", "heartbeatd sends to the chat that deliver names"),
    Drop("**.heartbeat.accountId", "the bot of this account is not in the imported files", changes_meaning=True),
    Drop("agents agent", STAYS),
)


def convert(draft: Draft, sources: Sequence[SourceFile]) -> None:
    configs = find_configs(sources)
    for config in configs:
        _convert_config(draft, config)
        draft.switch_jobs(config.get("cron.enabled"))
        if (switch := config.get("cron.enabled")) and switch.value is False:
            # docs/gateway/heartbeat.md: the scheduler of the jobs also starts the heartbeats.
            for name in draft.data["agents"]:
                draft.put(switch, ("agents", name, "heartbeat", "enabled"), False)
    for job in find_jobs(sources):
        name = draft.add_job(job, JOBS, _runner("main"))
        if name:
            _put_rest(draft, job, ("cron", name), configs)
    for checklist in find_checklists(sources):
        _put_checklist(draft, checklist)


def _convert_config(draft: Draft, config: Node) -> None:
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
        if beat:
            draft.note_entry(beat, base)
        draft.apply(HEARTBEAT, beat, heart)
        if beat and (hours := beat.get("activeHours")):
            draft.put_hours(heart, hours.get("start"), hours.get("end"), _zone_of_hours(config, hours))
            _note_named_zone(draft, hours.get("timezone"), (*heart, "active_hours", "timezone"))
    _put_session(draft, base, _last_given(draft, beats, "isolatedSession"))
    if (policy := _last_given(draft, beats, "directPolicy")) and policy.text == "block":
        draft.disable(base, f"{policy.key}: heartbeatd cannot tell a direct chat from a group")
    if _uses_subscription(config) and not draft.has((*heart, "interval")):
        draft.add((*heart, "interval"), "1h", "OpenClaw's default with an Anthropic login")
    draft.add_defaults(heart, DEFAULTS)
    channel, to, account = (_last_given(draft, beats, key) for key in ("target", "to", "accountId"))
    token = _token_of(draft, config, account, (*heart, "deliver"))
    if channel or to:
        draft.put_deliver(heart, channel, to, token=token)
    _put_visibility(draft, config, heart, channel.text if channel else "last", account)
    return base


def _uses_subscription(config: Node) -> bool:
    """Whether Anthropic is used by a login (OAuth or a token), for which OpenClaw has a longer default interval."""
    profiles = (profile for _, profile in config.items("auth.profiles"))
    found = ((profile.get("provider"), profile.get("mode")) for profile in profiles)
    return any(provider and mode and (provider.text, mode.text) in LOGINS for provider, mode in found)


NAMED_ZONES = ("", "user", "local")


def _zone_of_hours(config: Node, hours: Node) -> Node | None:
    """The zone of active hours: `user` is agents.defaults.userTimezone, or else the host's zone, as `local` is."""
    zone = hours.get("timezone")
    word = zone.text.lower() if zone else ""
    if word not in NAMED_ZONES:
        return zone
    return None if word == "local" else config.get("agents.defaults.userTimezone")


def _note_named_zone(draft: Draft, zone: Node | None, path: Path) -> None:
    """Record what has become of `user` or `local`: they are kept only if the hours were imported."""
    if zone is None or zone.text.lower() not in NAMED_ZONES:
        return
    if draft.has(path):
        draft.receipt.keep(zone, ".".join(path))
    else:
        draft.receipt.drop(zone, "its active hours were not imported")


def _token_of(draft: Draft, config: Node, account: Node | None, path: Path) -> Node | None:
    """The bot token of a Telegram account; None for the bot of the channel."""
    ident = account.text if account else ""
    found = config.get(f"channels.telegram.accounts.{ident}.botToken") if ident and "." not in ident else None
    if account and found:
        draft.receipt.keep(account, ".".join(path), "the channel of its bot")
    return found


def _put_visibility(draft: Draft, config: Node, heart: Path, channel: str, account: Node | None) -> None:
    """What is shown of a heartbeat: the setting of the account counts before that of its channel, and before the defaults."""
    if channel == "last" and draft.telegram_token:
        channel = "telegram"  # the only bot that heartbeatd can use
    places = ["channels.defaults"]
    if channel.isalnum():
        named = account or config.get(f"channels.{channel}.defaultAccount")
        ident = named.text if named else "default"
        places += [f"channels.{channel}", *([f"channels.{channel}.accounts.{ident}"] if ident and "." not in ident else [])]
    for place in places:
        for key in ("heartbeat", "heartbeatVisibility"):
            draft.apply(VISIBILITY, config.get(f"{place}.{key}"), heart)


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


def _put_rest(draft: Draft, job: Node, base: Path, configs: Sequence[Node]) -> None:
    """The recipient of a job that is no event, which of its answers are delivered, and its delay at the full hour."""
    entry = draft.data["cron"][base[1]]
    tools = job.get("payload.toolsAllow")
    if tools and [node.text for _, node in tools.items()] == ["*"]:
        draft.receipt.drop(tools, "the tools of the agent, as here", is_loss=False)
    is_free = not job.first("schedule.staggerMs", "schedule.everyMs")
    if is_free and re.fullmatch(TOP_OF_HOUR, str(entry.get("schedule", ""))):
        draft.add((*base, "stagger"), TOP_STAGGER, "OpenClaw's default for times at the full hour")
    if "prompt" in entry:
        draft.add((*base, "ok_match"), "edges", "OpenClaw sends no HEARTBEAT_OK")
        beat = draft.data["agents"][entry["agent"]].get("heartbeat", {})
        draft.add((*base, "ack_max_chars"), beat.get("ack_max_chars", DEFAULTS["ack_max_chars"]), "as in OpenClaw's heartbeats")
    if "command" in entry:
        draft.apply(COMMAND, job, base)
    if "wake_heartbeat" not in entry:
        _put_delivery(draft, job, base, configs)


def _put_delivery(draft: Draft, job: Node, base: Path, configs: Sequence[Node]) -> None:
    """Where a job sends its answer or output. Without `delivery`, OpenClaw announces it to the last chat."""
    has_agent = "prompt" in draft.data["cron"][base[1]]
    delivery = job.get("delivery") or job.get("payload")
    mode = delivery.get("mode") if delivery else None
    if mode:
        draft.receipt.keep(mode, ".".join((*base, "deliver")))
    to = delivery.get("to") if delivery else None
    if mode and mode.text.lower() == "none":
        draft.add((*base, "deliver"), "none", "delivery.mode is none")
    elif mode and mode.text.lower() == "webhook" and to:
        try:
            channel = draft.webhook(to)
            draft.add((*base, "deliver"), channel, "delivery.mode is webhook")
            for config in configs:
                if (secret := config.get("cron.webhookToken")) and secret.text:
                    draft.receipt.drop(secret, NO_HEADERS)
                    draft.disable(base, f"{secret.key}: {NO_HEADERS}")
        except value_converters.NotUsable as error:
            draft.receipt.drop(to, str(error))
            draft.add((*base, "deliver"), "log", "no channel could be imported for its messages")
            draft.disable(base, f"{to.key} {error}")
    else:
        account = delivery.get("accountId") if delivery else None
        tokens = (_token_of(draft, config, account, (*base, "deliver")) for config in configs)
        token = next(filter(None, tokens), None)
        if account and account.text and not token:
            draft.disable(base, f"{account.key}: the bot of this account is not in the imported files")
        if (thread := delivery.get("threadId") if delivery else None) and thread.text:
            draft.disable(base, f"{thread.key}: write the topic into the channel, as {{chat}}:{{topic}}")
        draft.put_deliver(base, delivery.get("channel") if delivery else None, to, has_agent=has_agent, token=token)


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
