"""Imports Hermes Agent: cron/jobs.json, config.yaml, and the Telegram settings of its .env file.

The formats are those of the project NousResearch/hermes-agent, from cron/jobs.py, cli-config.yaml.example and
website/docs/user-guide/features/cron.md. Hermes has jobs and no heartbeat, so its agent has no scheduled runs of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, JobShape, Path, Rule
from scheduler.extras.importers.foreign_system import (
    NAMES_A_THING,
    NO_COUNTERPART,
    OWN_LIMITS,
    RECORD,
    STORE_DROPS,
    Drop,
    ForeignSystem,
    find_configs,
    find_jobs,
)
from scheduler.extras.importers.source_files import Node, SourceFile

SCRIPTS = "~/.hermes/scripts"


def _script(node: Node) -> str:
    """A script in the folder of scripts, with the interpreter that Hermes uses."""
    written = value_converters.text(node)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", written) or ".." in written:
        raise value_converters.NotUsable("is no path of a script in ~/.hermes/scripts")
    return f"{'python3' if written.endswith('.py') else 'bash'} {SCRIPTS}/{written}"


def _gate(node: Node) -> object:
    """A script before the agent: its output goes into the prompt, and `wakeAgent` false on its last line skips the run."""
    return {"command": _script(node), "timeout": "4m"}


AGENT = (Rule("model.default", "model"), Rule("model.model", "model"))
JOBS = JobShape(
    prompt=("prompt",),
    agent=(),
    rules=(Rule("model", "model"), Rule("script", "precheck", _gate, "its timeout is 4m", decides=True)),
)
SCRIPTED = JobShape(command=("script",), command_form=_script, agent=(), rules=(Rule("workdir", "workdir"),))

STAYS = "stays in Hermes, which still runs the agent"
NO_CALL = "a job can name a model, and `hermes chat` uses its own provider"
DROPS = (
    Drop("next_run_at last_run_at last_status last_error last_delivery_error", RECORD, "jobs.*", is_loss=False),
    Drop("created_at paused_at schedule_display provider_snapshot model_snapshot run_claim", RECORD, "jobs.*", is_loss=False),
    Drop("schedule.display repeat.completed", RECORD, "jobs.*", is_loss=False),
    Drop("jobs.*.id", NAMES_A_THING, is_loss=False),
    Drop("jobs.*.origin", "the job is not sent to the chat in which it was made", is_loss=False),
    Drop("jobs.*.repeat.times", "heartbeatd repeats a job until it is removed", changes_meaning=True),
    Drop("jobs.*.context_from", "a job of heartbeatd does not see the output of another job", changes_meaning=True),
    Drop("jobs.*.enabled_toolsets", "the command line of the runner has the tools of the profile", changes_meaning=True),
    Drop("paused_reason failure_streak last_delivery_unverified", RECORD, "jobs.*", is_loss=False),
    Drop("attach_to_session reasoning_effort profile", NO_COUNTERPART, "jobs.*"),
    Drop("skill skills", "add --skills to the command of the runner", "jobs.*"),
    Drop("jobs.*.workdir", "only commands have a working directory; the agent runs in its workspace"),
    Drop("provider base_url", NO_CALL, "jobs.*"),
    *STORE_DROPS,
    Drop("updated_at", RECORD, is_loss=False),
    Drop("_config_version", "the version of the file format", is_loss=False),
    Drop("jobs", NO_COUNTERPART),
    Drop("cron", OWN_LIMITS),
    Drop("", STAYS),
)


def convert(draft: Draft, sources: Sequence[SourceFile]) -> None:
    home: list[Node] = []
    model: Node | None = None
    for config in find_configs(sources):
        draft.take_zone(config.get("timezone"))
        token = config.first("TELEGRAM_BOT_TOKEN")
        draft.telegram_token = draft.telegram_token or (token if token and token.text else None)
        home += [node for key, node in config.items() if key.endswith("_HOME_CHANNEL") and node.text]
        thread = config.first("TELEGRAM_CRON_THREAD_ID", "TELEGRAM_HOME_CHANNEL_THREAD_ID")
        home += [thread] if thread and thread.text else []
        model = model or config.get("cron.model")
        if config.get("model"):
            draft.apply(AGENT, config, ("agents", draft.find_agent("main", *_RUNNER)))
    for job in find_jobs(sources):
        _add_job(draft, job, home, model)


def _add_job(draft: Draft, job: Node, home: Sequence[Node], model: Node | None) -> None:
    """A job. `home` are the home channels and the Telegram topic for jobs, `model` is that of all jobs without their own."""
    plain = job.get("no_agent")
    is_plain = bool(plain and plain.value is True)
    name = draft.add_job(job, SCRIPTED if is_plain else JOBS, _RUNNER)
    if not name:
        return
    base = ("cron", name)
    if plain:
        draft.receipt.keep(plain, ".".join((*base, "command" if is_plain else "prompt")))
    _put_state(draft, job, name)
    if (times := job.get("repeat.times")) and times.text == "1" and "at" in draft.data["cron"][name]:
        draft.receipt.keep(times, ".".join((*base, "at")))
    if not is_plain:
        draft.add((*base, "ok_match"), "anywhere", "Hermes sends no answer with [SILENT]")
        used = next((node for node in (model, job.get("model_snapshot")) if node and node.text), None)
        if used and not draft.has((*base, "model")):
            draft.put(used, (*base, "model"), used.text, "the model of jobs without their own")
    _put_recipients(draft, job, base, home)


def _put_recipients(draft: Draft, job: Node, base: Path, home: Sequence[Node]) -> None:
    """The recipients: a list such as `origin,telegram:4711`. Without one, the chat in which the job was made, or none."""
    deliver, platform = job.get("deliver"), job.first("origin.platform")
    written = deliver.text if deliver and deliver.text else "origin" if platform else "local"
    names: list[str] = []
    problems: list[str] = []
    for word in (part.strip() for part in written.split(",")):
        try:
            names += _find_channels(draft, job, word, home)
        except value_converters.NotUsable as error:
            problems.append(str(error))
    names = list(dict.fromkeys(names))
    if problems:
        draft.disable(base, "; ".join(problems))
    if not names and problems:
        names = ["log"]
    if len(names) > 1:
        names = [name for name in names if name != "none"]
    value: object = names[0] if len(names) == 1 else names
    if deliver and deliver.text:
        draft.put(deliver, (*base, "deliver"), value)
    else:
        draft.add((*base, "deliver"), value, "Hermes' default")
    if platform and "origin" in written:
        draft.receipt.keep(platform, ".".join((*base, "deliver")))


def _find_channels(draft: Draft, job: Node, word: str, home: Sequence[Node]) -> list[str]:
    """The channels of one recipient. Raises NotUsable if heartbeatd cannot send there."""
    origin = job.get("origin")
    platform = origin.get("platform") if origin else None
    if word == "origin" and origin and platform and platform.text:
        chat, thread = origin.first("chat_id"), origin.first("thread_id")
        if platform.text.lower() != "telegram":
            return [draft.find_channel(platform.text.lower(), chat.text if chat else "")[0]]
        return [_telegram(draft, chat=chat, thread=thread)]
    homes = [node for node in home if str(node.steps[-1]).endswith("_HOME_CHANNEL")]
    topic = next((node for node in home if node not in homes), None)
    if word in ("all", "origin"):  # without an origin, Hermes sends to the home channel
        if not homes:
            raise value_converters.NotUsable("the home channels are not in the imported files")
        return [name for node in homes for name in _find_channels(draft, job, _platform(node), home)]
    if word == "telegram":
        found = next((node for node in homes if _platform(node) == "telegram"), None)
        if found is None:
            raise value_converters.NotUsable("TELEGRAM_HOME_CHANNEL is not in the imported files")
        return [_telegram(draft, chat=found, thread=topic)]
    kind, _, chat_id = word.partition(":")
    return [draft.find_channel(kind, chat_id)[0]]


def _platform(node: Node) -> str:
    return str(node.steps[-1]).removesuffix("_HOME_CHANNEL").lower()


def _telegram(draft: Draft, chat: Node | None, thread: Node | None) -> str:
    """The channel of a Telegram chat, and of a topic in it."""
    if chat is None or draft.telegram_token is None:
        raise value_converters.NotUsable("there is no Telegram bot to send with; declare a channel, and set deliver")
    parts = [node for node in (chat, thread) if node and node.text]
    name, _ = draft.find_channel("telegram", ":".join(node.text for node in parts))
    for node in parts:
        draft.receipt.keep(node, f"channels.{name}.url")
    return name


def _put_state(draft: Draft, job: Node, name: str) -> None:
    """A paused or finished job stays off."""
    state = job.get("state")
    if state and state.text.lower() in ("paused", "completed"):
        draft.put(state, ("cron", name, "enabled"), False)
    elif state:
        draft.receipt.drop(state, RECORD, is_loss=False)


_SCRIPT_LINE = 'hermes chat -Q ${HEARTBEATD_MODEL:+-m "$HEARTBEATD_MODEL"} -q "$(cat)"'
_RUNNER = ({"kind": "command", "argv": ["sh", "-c", _SCRIPT_LINE]}, "calls the agent by the command line of Hermes")

SYSTEM = ForeignSystem("hermes", "Hermes Agent", "cron/jobs.json, config.yaml, .env", convert, DROPS, _RUNNER)
