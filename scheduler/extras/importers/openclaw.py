"""Imports OpenClaw: openclaw.json, its job store cron/jobs.json, and a HEARTBEAT.md with a `tasks:` block.

The formats are those of the project openclaw/openclaw, from its documents docs/gateway/heartbeat.md,
docs/gateway/configuration-examples.md, docs/automation/cron-jobs.md and docs/cli/agent.md, and from src/cron/types.ts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args

from heartbeat.spec import Effort
from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import OVERRIDDEN, Draft, Part, Rule
from scheduler.extras.importers.foreign_system import NO_COUNTERPART, OWN_LIMITS, STORE_DROPS, Drop, ForeignSystem
from scheduler.extras.importers.job_conversion import JobShape, add_job
from scheduler.extras.importers.source_files import MISSING, Node

MOST_FALLBACKS = 5
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


def _effort(node: Node) -> object:
    """A level of thinking that heartbeatd has too."""
    written = value_converters.text(node)
    if written not in get_args(Effort):
        raise value_converters.NotUsable(f"is none of the levels {', '.join(get_args(Effort))}")
    return written


def _models(node: Node) -> object:
    """Models that are called in this order if the first one fails."""
    names = [value_converters.text(each) for _, each in node.items()]
    if not 0 < len(names) <= MOST_FALLBACKS:
        raise value_converters.NotUsable(f"is no list of one to {MOST_FALLBACKS} models")
    return names


JOBS = JobShape(
    prompt=("payload.message",),
    event=("payload.text",),
    command=("payload.argv",),
    command_form=_argv,
    rules=(
        Rule("payload.model", "model"),
        Rule("payload.thinking", "effort", _effort),
        Rule("payload.fallbacks", "fallbacks", _models),
        Rule("payload.timeoutSeconds", "timeout", value_converters.positive_duration("s")),
    ),
    naive_zone="UTC",  # docs/automation/cron-jobs/schedules.md: a time without an offset is UTC
)
# The same page: jobs at the full hour are delayed by up to five minutes, unless they have staggerMs.
FAILURES_TO_STOP = 10  # in a row, since August 2026
TOP_OF_HOUR, TOP_STAGGER = r"(?:0 )?0 \*(?:/\d+)? .*", "5m"
LOGINS = (("anthropic", "oauth"), ("anthropic", "token"))
COMMAND = (
    Rule("payload.cwd", "workdir"),
    Rule("payload.input", "stdin"),
    Rule("payload.timeoutSeconds", "timeout", value_converters.positive_duration("s")),
)
DEFAULTS = {"interval": "30m", "ack_max_chars": 300, "on_missing": "run"}
WORKSPACE = "~/.openclaw/workspace"
NAMED_ZONES = ("", "user", "local")

NO_SCRIPT = (  # of a trigger: it calls tools of OpenClaw
    "only OpenClaw can run the script, which decides whether the job runs; for a prompt, write a shell command as precheck"
)
NO_HEADERS = "a webhook of heartbeatd sends no token in a header"
NO_SESSION = "sessions stay in OpenClaw"
NO_ACCOUNT = "the bot of this account is not in the imported files"
STAYS = "stays in OpenClaw, which still runs the agent"
DROPS = (
    Drop("jobs.*.trigger", NO_SCRIPT, changes_meaning=True),
    Drop("jobs.*.payload.toolsAllow", "the command line of OpenClaw cannot restrict the tools of a run", changes_meaning=True),
    Drop("jobs.*.pacing", "the agent sets the time of the next run itself", changes_meaning=True),
    Drop("description displayName delivery.bestEffort delivery.failureDestination failureAlert", NO_COUNTERPART, "jobs.*"),
    Drop("lightContext bestEffortDeliver", NO_COUNTERPART, "jobs.*.payload"),
    Drop("payload.noOutputTimeoutSeconds payload.outputMaxBytes declarationKey", NO_COUNTERPART, "jobs.*"),
    Drop("jobs.*.wakeMode", "the answer of this job is delivered, and wakes no heartbeat"),
    Drop("jobs.*.delivery", "this job sends nothing itself"),
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
    Drop("**.heartbeat.skipWhenBusy", "a run of heartbeatd waits for the lock of the agent"),
    Drop("includeSystemPromptSection suppressToolErrorWarnings", NO_COUNTERPART, "**.heartbeat"),
    Drop("**.heartbeat.directPolicy", "heartbeatd sends to the chat that deliver names"),
    Drop("**.heartbeat.accountId", NO_ACCOUNT, changes_meaning=True),
    Drop("agents agent", STAYS),
)


def convert(draft: Draft) -> None:
    for config in draft.files.configs:
        _convert_config(draft, config)
    if draft.jobs_off:
        # docs/gateway/heartbeat.md: the scheduler of the jobs also starts the heartbeats.
        for name in draft.data["agents"]:
            draft.part(f"agents.{name}").put("heartbeat.enabled", draft.jobs_off, False)
    for node in draft.files.jobs:
        if job := add_job(draft, node, JOBS):
            _put_rest(node, job)


def _convert_config(draft: Draft, config: Node) -> None:
    shared = config.get("agents.defaults.heartbeat")
    found = (*config.items("agents.list"), *config.items("agents.entries"))
    agents = [node for _, node in found if node.is_container]
    own = any(node.get("heartbeat") for node in agents)
    flagged = next((node for node in agents if node.get("default").value is True), MISSING)
    for node in agents:
        ident, is_default = node.get("id"), node is (flagged or agents[0])
        beats = bool(node.get("heartbeat")) if own else is_default
        is_listed = bool(ident) and isinstance(node.steps[-1], int)
        name = ident.text or "main" if is_listed else str(node.steps[-1])
        layers = [shared, node.get("heartbeat")] if beats else []
        agent = _add_agent(draft, config, name, node, layers, is_default=is_default)
        if is_listed:
            agent.put_name(ident)
        if node is flagged:
            draft.default_agent = agent.name
            draft.receipt.keep(node.get("default"), agent.path, "jobs that name no agent are for this one")
    if not agents:
        _add_agent(draft, config, "main", config.get("agent"), [shared, config.get("agent.heartbeat")], is_default=True)


def _add_agent(draft: Draft, config: Node, ident: str, node: Node, beats: Sequence[Node], *, is_default: bool) -> Part:
    """An agent of OpenClaw. `beats` are its heartbeat settings, the more special last; none if it has no heartbeat.

    The workspace in the defaults is that of the default agent. Each other one has its own, which ends in its name.
    """
    agent = draft.add_agent(ident)
    workspace = node.first("workspace") or (config.get("agents.defaults.workspace") if is_default else MISSING)
    if workspace.text:
        agent.put("workspace", workspace, workspace.text)
    agent.add_defaults({"workspace": WORKSPACE if is_default else f"{WORKSPACE}-{ident.lower()}"})
    if beats:
        _put_heartbeat(config, agent, beats)
    return agent


def _put_heartbeat(config: Node, agent: Part, layers: Sequence[Node]) -> None:
    beat = agent.below("heartbeat")
    for layer in layers:
        agent.draft.note_entry(layer, agent)
        beat.apply(HEARTBEAT, layer)
        if hours := layer.get("activeHours"):
            beat.put_hours(hours.get("start"), hours.get("end"), _zone_of_hours(config, hours))
            _note_named_zone(beat, hours.get("timezone"))
    _put_session(agent, _last_given(agent.draft, layers, "isolatedSession"))
    if (policy := _last_given(beat.draft, layers, "directPolicy")).text == "block":
        beat.disable(f"{policy.key}: heartbeatd cannot tell a direct chat from a group")
    if _uses_subscription(config) and "interval" not in beat:
        beat.add("interval", "1h", "OpenClaw's default with an Anthropic login")
    beat.add_defaults(DEFAULTS)
    channel, to, account = (_last_given(beat.draft, layers, key) for key in ("target", "to", "accountId"))
    token = _find_token(beat, account)
    if channel or to:
        beat.put_deliver(channel, to, token)
    _put_visibility(config, beat, channel.text or "last", account)


def _uses_subscription(config: Node) -> bool:
    """Whether Anthropic is used by a login (OAuth or a token), for which OpenClaw has a longer default interval."""
    profiles = (profile for _, profile in config.items("auth.profiles"))
    return any((profile.get("provider").text, profile.get("mode").text) in LOGINS for profile in profiles)


def _zone_of_hours(config: Node, hours: Node) -> Node:
    """The zone of active hours: `user` is agents.defaults.userTimezone, or else the host's zone, as `local` is."""
    zone = hours.get("timezone")
    word = zone.text.lower()
    if word not in NAMED_ZONES:
        return zone
    return MISSING if word == "local" else config.get("agents.defaults.userTimezone")


def _note_named_zone(beat: Part, zone: Node) -> None:
    """Record what has become of `user` or `local`: they are kept only if the hours were imported."""
    if zone.text.lower() not in NAMED_ZONES:
        return
    if "active_hours.timezone" in beat:
        beat.keep(zone, "active_hours.timezone")
    beat.draft.receipt.drop(zone, "its active hours were not imported")


def _find_token(part: Part, account: Node) -> Node:
    """The bot token of a Telegram account; missing for the bot of the channel."""
    is_named = account.text and "." not in account.text
    token = part.draft.files.first(f"channels.telegram.accounts.{account.text}.botToken") if is_named else MISSING
    if token:
        part.keep(account, "deliver", "the channel of its bot")
    return token


def _put_visibility(config: Node, beat: Part, channel: str, account: Node) -> None:
    """What is shown of a heartbeat: the setting of the account counts before that of its channel, and before the defaults."""
    if channel == "last" and beat.draft.telegram_token:
        channel = "telegram"  # the only bot that heartbeatd can use
    places = ["channels.defaults"]
    if channel.isalnum():
        named = account or config.get(f"channels.{channel}.defaultAccount")
        ident = named.text if named else "default"
        places += [f"channels.{channel}", *([f"channels.{channel}.accounts.{ident}"] if ident and "." not in ident else [])]
    for place in places:
        for key in ("heartbeat", "heartbeatVisibility"):
            beat.apply(VISIBILITY, config.get(f"{place}.{key}"))


def _put_session(agent: Part, isolated: Node) -> None:
    """OpenClaw keeps the session: the agent's main session, or a new one for each run."""
    try:
        is_isolated = bool(isolated) and value_converters.boolean(isolated)
    except value_converters.NotUsable as error:
        agent.draft.receipt.drop(isolated, str(error))
        return
    if is_isolated:
        agent.put("heartbeat.isolated_session", isolated, True, "the runner starts a new session for each run")
        argv = agent.get("runner.argv")
        argv[2] = argv[2].replace('"$0"', '"$0" --session-key "agent:$0:heartbeat-$HEARTBEATD_RUN"')
    else:
        agent.keep(isolated, "runner", "the agent's main session is used")


def _last_given(draft: Draft, layers: Sequence[Node], key: str) -> Node:
    """The most special value of a key; the others have no effect."""
    found = [node for layer in layers if (node := layer.get(key)).text]
    for node in found[:-1]:
        draft.receipt.drop(node, OVERRIDDEN, is_loss=False)
    return found[-1] if found else MISSING


def _put_rest(node: Node, job: Part) -> None:
    """The recipient of a job that is no event, which of its answers are delivered, and its delay at the full hour."""
    tools = node.get("payload.toolsAllow")
    if [word.text for _, word in tools.items()] == ["*"]:
        job.draft.receipt.drop(tools, "the tools of the agent, as here", is_loss=False)
    is_free = not node.first("schedule.staggerMs", "schedule.everyMs")
    if is_free and re.fullmatch(TOP_OF_HOUR, str(job.get("schedule"))):
        job.add("stagger", TOP_STAGGER, "OpenClaw's default for times at the full hour")
    if "at" not in job:
        job.add("problems.pause_after", FAILURES_TO_STOP, "OpenClaw stops a recurring job after so many failures")
    if "prompt" in job:
        job.add("ok_match", "edges", "OpenClaw sends no HEARTBEAT_OK")
        shared = job.draft.part(f"agents.{job.get('agent')}").get("heartbeat.ack_max_chars")
        job.add("ack_max_chars", DEFAULTS["ack_max_chars"] if shared is None else shared, "as in OpenClaw's heartbeats")
    if "command" in job:
        job.apply(COMMAND, node)
    if "wake_heartbeat" not in job:
        _put_delivery(node.get("delivery") or node.get("payload"), job)


def _put_delivery(delivery: Node, job: Part) -> None:
    """Where a job sends its answer or output: by default to the last chat. Older jobs say so in their payload."""
    mode, to, account, thread, sent = (delivery.get(key) for key in ("mode", "to", "accountId", "threadId", "deliver"))
    job.keep(mode, "deliver")
    job.keep(sent, "deliver")
    if mode.text.lower() == "none" or sent.value is False:
        job.add("deliver", "none", "deliver is false" if sent.value is False else "delivery.mode is none")
    elif mode.text.lower() == "webhook" and to:
        _put_webhook(to, job)
    else:
        token = _find_token(job, account)
        if account.text and not token:
            job.disable(f"{account.key}: {NO_ACCOUNT}")
        if thread.text:
            job.disable(f"{thread.key}: write the topic into the channel, as {{chat}}:{{topic}}")
        job.put_deliver(delivery.get("channel"), to, token)


def _put_webhook(to: Node, job: Part) -> None:
    try:
        job.add("deliver", job.draft.add_webhook(to), "delivery.mode is webhook")
    except value_converters.NotUsable as error:
        job.draft.receipt.drop(to, str(error))
        job.deliver_to_log(f"{to.key} {error}")
        return
    if secret := job.draft.files.first("cron.webhookToken"):
        job.draft.receipt.drop(secret, NO_HEADERS)
        job.disable(f"{secret.key}: {NO_HEADERS}")


def _start_agent(agent: Part, ident: str) -> None:
    """The command line of OpenClaw, which hands one turn to the gateway. The prompt is on standard input."""
    script = (
        'openclaw agent --agent "$0" ${HEARTBEATD_MODEL:+--model "$HEARTBEATD_MODEL"}'
        ' ${HEARTBEATD_EFFORT:+--thinking "$HEARTBEATD_EFFORT"} --message "$(cat)"'
    )
    runner = {"kind": "command", "argv": ["sh", "-c", script, ident or "main"]}
    agent.add("runner", runner, "calls the agent through the gateway of OpenClaw")


SYSTEM = ForeignSystem(
    "openclaw",
    "OpenClaw",
    "openclaw.json, cron/jobs.json, HEARTBEAT.md",
    convert,
    DROPS,
    _start_agent,
    switch="cron.enabled",
)
