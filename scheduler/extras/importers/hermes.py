"""Imports Hermes Agent: cron/jobs.json, config.yaml, and the Telegram settings of its .env file.

The formats are those of the project NousResearch/hermes-agent, from cron/jobs.py, cli-config.yaml.example and
website/docs/user-guide/features/cron.md. Hermes has jobs and no heartbeat, so its agent has no scheduled runs of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import NO_BOT, Draft, Part, Rule
from scheduler.extras.importers.foreign_system import (
    NAMES_A_THING,
    NO_COUNTERPART,
    OWN_LIMITS,
    RECORD,
    STORE_DROPS,
    Drop,
    ForeignSystem,
    command_line,
)
from scheduler.extras.importers.job_conversion import JobShape, add_job
from scheduler.extras.importers.source_files import Node

SCRIPTS = "~/.hermes/scripts"
HOME = "_HOME_CHANNEL"
OWN_OUTPUT = "self"  # in `context_from`: the last output of the job itself. Hermes stores its option `continuity` so


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
    seconds_last=True,
)
SCRIPTED = replace(JOBS, prompt=(), command=("script",), command_form=_script, rules=(Rule("workdir", "workdir"),))

STAYS = "stays in Hermes, which still runs the agent"
NO_CALL = "a job can name a model, and `hermes chat` uses its own provider"
DROPS = (
    Drop("next_run_at last_run_at last_status last_error last_delivery_error", RECORD, "jobs.*", is_loss=False),
    Drop("created_at paused_at schedule_display provider_snapshot model_snapshot run_claim", RECORD, "jobs.*", is_loss=False),
    Drop("schedule.display repeat.completed", RECORD, "jobs.*", is_loss=False),
    Drop("jobs.*.id", NAMES_A_THING, is_loss=False),
    Drop("jobs.*.origin", "the job is not sent to the chat in which it was made", is_loss=False),
    Drop("jobs.*.repeat.times", "heartbeatd repeats a job until it is removed", changes_meaning=True),
    Drop("jobs.*.context_from", "Hermes gives outputs only to prompts, not to scripts", is_loss=False),
    Drop("jobs.*.enabled_toolsets", "the command line of the runner has the tools of the profile", changes_meaning=True),
    Drop("paused_reason failure_streak last_delivery_unverified", RECORD, "jobs.*", is_loss=False),
    Drop("attach_to_session reasoning_effort", NO_COUNTERPART, "jobs.*"),
    Drop("jobs.*.profile", "the command line of the runner uses one profile", changes_meaning=True),
    Drop("skill skills", "add --skills to the command of the runner", "jobs.*"),
    Drop("jobs.*.workdir", "only commands have a working directory; the agent runs in its workspace", changes_meaning=True),
    Drop("provider base_url", NO_CALL, "jobs.*", changes_meaning=True),
    *STORE_DROPS,
    Drop("updated_at", RECORD, is_loss=False),
    Drop("_config_version", "the version of the file format", is_loss=False),
    Drop("jobs", NO_COUNTERPART),
    Drop("cron", OWN_LIMITS),
    Drop("", STAYS),
)


def convert(draft: Draft) -> None:
    for config in draft.files.configs:
        if config.get("model"):
            draft.find_agent("").apply(AGENT, config)
    jobs: list[tuple[Node, Part]] = []
    for node in draft.files.jobs:
        is_script = node.get("no_agent").value is True
        if job := add_job(draft, node, SCRIPTED if is_script else JOBS):
            _put_rest(node, job)
            jobs.append((node, job))
    names = {node.get(key).text.lower(): job.name for key in ("name", "id") for node, job in jobs}
    for node, job in jobs:
        if "prompt" in job and (named := node.get("context_from")):
            _put_outputs(named, job, names)


def _put_rest(node: Node, job: Part) -> None:
    """The state of a job, its model, the answers that it sends, and their recipients."""
    draft, state, times = job.draft, node.get("state"), node.get("repeat.times")
    job.keep(node.get("no_agent"), "prompt" if "prompt" in job else "command")
    is_off = state.text.lower() in ("paused", "completed")  # a paused or finished job stays off
    if is_off or node.get("paused_at").text:
        job.put("enabled", state if is_off else node.get("paused_at"), False)
    draft.receipt.drop(state, RECORD, is_loss=False)
    if times.text == "1" and "at" in job:
        job.keep(times, "at")
    if "prompt" in job:
        job.add("ok_match", "anywhere", "Hermes sends no answer with [SILENT]")
        model = draft.files.first("cron.model")
        if not model.text:
            model = node.get("model_snapshot")
        if model.text and "model" not in job:
            job.put("model", model, model.text, "the model of jobs without their own")
    _put_recipients(node, job)


def _put_outputs(named: Node, job: Part, names: Mapping[str, str]) -> None:
    """The jobs whose last outputs a job gets. `names` are those of all jobs, by their IDs and names in Hermes."""
    wanted = [each.text for each in named.leaves() if each.text]
    known = {**names, OWN_OUTPUT: job.name}
    if lost := [each for each in wanted if each.lower() not in known]:
        why = f"not among the imported jobs: {', '.join(lost)}"
        job.draft.receipt.drop(named, why)
        job.disable(f"{named.key}: {why}")
        return
    found = list(dict.fromkeys(known[each.lower()] for each in wanted))
    if found:
        job.put("previous", named, True if found == [job.name] else found[0] if len(found) == 1 else found, "its last outputs")


def _put_recipients(node: Node, job: Part) -> None:
    """The recipients: a list such as `origin,telegram:4711`. Without one, the chat in which the job was made, or none."""
    deliver, platform = node.get("deliver"), node.first("origin.platform")
    written = deliver.text or ("origin" if platform else "local")
    names: list[str] = []
    problems: list[str] = []
    for word in (part.strip() for part in written.split(",")):
        try:
            names += _find_channels(job.draft, node, word)
        except value_converters.NotUsable as error:
            problems.append(str(error))
    if problems:
        job.disable("; ".join(problems))
    unique = list(dict.fromkeys(names)) or ["log"]
    if len(unique) > 1:
        unique = [name for name in unique if name != "none"]
    value = unique[0] if len(unique) == 1 else unique
    if deliver.text:
        job.put("deliver", deliver, value)
    else:
        job.add("deliver", value, "Hermes' default")
    if "origin" in written:
        job.keep(platform, "deliver")


def _find_channels(draft: Draft, node: Node, word: str) -> list[str]:
    """The channels of one recipient. Raises NotUsable if heartbeatd cannot send there."""
    settings = [(key, found) for config in draft.files.configs for key, found in config.items() if found.text]
    homes = {key.removesuffix(HOME).lower(): found for key, found in settings if key.endswith(HOME)}
    platform = node.get("origin.platform").text.lower()
    if word == "origin" and platform:
        chat, thread = node.first("origin.chat_id"), node.first("origin.thread_id")
        return [_add_telegram(draft, chat, thread) if platform == "telegram" else draft.find_channel(platform, chat.text)[0]]
    if word in ("all", "origin"):  # without an origin, Hermes sends to the home channel
        if not homes:
            raise value_converters.NotUsable("the home channels are not in the imported files")
        return [name for home in homes for name in _find_channels(draft, node, home)]
    if word == "telegram":
        if word not in homes:
            raise value_converters.NotUsable("TELEGRAM_HOME_CHANNEL is not in the imported files")
        topic = draft.files.first("TELEGRAM_CRON_THREAD_ID", "TELEGRAM_HOME_CHANNEL_THREAD_ID")
        return [_add_telegram(draft, homes[word], topic)]
    kind, _, chat_id = word.partition(":")
    return [draft.find_channel(kind, chat_id)[0]]


def _add_telegram(draft: Draft, chat: Node, thread: Node) -> str:
    """The channel of a Telegram chat, and of a topic in it."""
    if not chat or not draft.telegram_token:
        raise value_converters.NotUsable(NO_BOT)
    name, _ = draft.find_channel("telegram", ":".join(node.text for node in (chat, thread) if node.text))
    for node in (chat, thread):
        draft.receipt.keep(node, f"channels.{name}.url")
    return name


SYSTEM = ForeignSystem(
    "hermes",
    "Hermes Agent",
    "cron/jobs.json, config.yaml, .env",
    convert,
    DROPS,
    command_line("Hermes", 'hermes chat -Q ${HEARTBEATD_MODEL:+-m "$HEARTBEATD_MODEL"} -q "$(cat)"'),
    zone="timezone",
    token=("TELEGRAM_BOT_TOKEN",),
)
