"""Imports Hermes Agent: cron/jobs.json, config.yaml, and the Telegram settings of its .env file.

The formats are those of the project NousResearch/hermes-agent, from cron/jobs.py, cli-config.yaml.example and
website/docs/user-guide/features/cron.md. Hermes has jobs and no heartbeat, so its agent has no scheduled runs of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scheduler.config.importers import value_converters
from scheduler.config.importers.config_draft import Draft, JobShape, Rule
from scheduler.config.importers.foreign_system import (
    NAMES_A_THING,
    RECORD,
    STORE_DROPS,
    Drop,
    ForeignSystem,
    find_checklists,
    find_configs,
    find_jobs,
)
from scheduler.config.importers.source_files import Node, SourceFile

SCRIPTS = "~/.hermes/scripts"


def _script(node: Node) -> str:
    """A script in the folder of scripts, with the interpreter that Hermes uses."""
    written = value_converters.text(node)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", written) or ".." in written:
        raise value_converters.NotUsable("is no path of a script in ~/.hermes/scripts")
    return f"{'python3' if written.endswith('.py') else 'bash'} {SCRIPTS}/{written}"


AGENT = (Rule("model.default", "model"), Rule("model.model", "model"))
JOBS = JobShape(prompt=("prompt",), agent=(), rules=(Rule("model", "model"),))
SCRIPTED = JobShape(command=("script",), command_form=_script, agent=(), rules=(Rule("workdir", "workdir"),))

STAYS = "stays in Hermes, which still runs the agent"
DROPS = (
    *(
        Drop(f"jobs.*.{key}", RECORD, is_loss=False)
        for key in (
            "next_run_at",
            "last_run_at",
            "last_status",
            "last_error",
            "last_delivery_error",
            "created_at",
            "paused_at",
            "schedule_display",
            "provider_snapshot",
            "model_snapshot",
            "run_claim",
        )
    ),
    Drop("jobs.*.schedule.display", RECORD, is_loss=False),
    Drop("jobs.*.repeat.completed", RECORD, is_loss=False),
    Drop("jobs.*.id", NAMES_A_THING, is_loss=False),
    Drop("jobs.*.origin", "the job is not sent to the chat in which it was made"),
    Drop("jobs.*.repeat.times", "heartbeatd repeats a job until it is removed; `at` runs once"),
    Drop("jobs.*.skill", "add --skills to the command of the runner"),
    Drop("jobs.*.skills", "add --skills to the command of the runner"),
    Drop("jobs.*.script", "a precheck of an agent can put the output of a script into its prompt; a job cannot"),
    Drop("jobs.*.workdir", "only commands have a working directory; the agent runs in its workspace"),
    Drop("jobs.*.provider", STAYS),
    Drop("jobs.*.base_url", STAYS),
    *STORE_DROPS,
    Drop("updated_at", RECORD, is_loss=False),
    Drop("_config_version", "the version of the file format", is_loss=False),
    Drop("jobs", "heartbeatd has no such setting"),
    Drop("cron", "heartbeatd has its own store, history and limits"),
    Drop("", STAYS),
)


def convert(draft: Draft, sources: Sequence[SourceFile]) -> None:
    home: Node | None = None
    for config in find_configs(sources):
        draft.take_zone(config.get("timezone"))
        token = config.first("TELEGRAM_BOT_TOKEN")
        draft.telegram_token = draft.telegram_token or (token if token and token.text else None)
        home = home or config.get("TELEGRAM_HOME_CHANNEL")
        if config.get("model"):
            draft.apply(AGENT, config, ("agents", draft.find_agent("main", *_RUNNER)))
    for job in find_jobs(sources):
        _add_job(draft, job, home)
    for checklist in find_checklists(sources):
        draft.put_checklist(checklist, draft.find_agent("main", *_RUNNER), is_in_workspace=False)


def _add_job(draft: Draft, job: Node, home: Node | None) -> None:
    plain = job.get("no_agent")
    is_plain = bool(plain and plain.value is True)
    name = draft.add_job(job, SCRIPTED if is_plain else JOBS, _RUNNER)
    if not name:
        return
    base = ("cron", name)
    if plain:
        draft.receipt.keep(plain, ".".join((*base, "command" if is_plain else "prompt")))
    _put_state(draft, job, name)
    deliver, to = job.get("deliver"), None
    word = deliver.text.lower() if deliver else ""
    platform = job.get("origin.platform")
    if word in ("", "origin") and platform and platform.text.lower() == "telegram":
        to = job.first("origin.chat_id")
        draft.receipt.keep(platform, ".".join((*base, "deliver")))
    elif word == "telegram":
        to = home
    if deliver or to:
        draft.put_deliver(base, deliver, to, has_agent=not is_plain)


def _put_state(draft: Draft, job: Node, name: str) -> None:
    """A paused or finished job stays off."""
    state = job.get("state")
    if state and state.text.lower() in ("paused", "completed"):
        draft.put(state, ("cron", name, "enabled"), False)
    elif state:
        draft.receipt.drop(state, RECORD, is_loss=False)


_SCRIPT_LINE = 'hermes chat -Q ${HEARTBEATD_MODEL:+-m "$HEARTBEATD_MODEL"} -q "$(cat)"'
_RUNNER = ({"kind": "command", "argv": ["sh", "-c", _SCRIPT_LINE]}, "calls the agent by the command line of Hermes")

SYSTEM = ForeignSystem("hermes", "Hermes Agent", "cron/jobs.json, config.yaml, .env", convert, DROPS)
