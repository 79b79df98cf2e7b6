"""Imports MisterMorph: config.yaml, and a HEARTBEAT.md.

The format is that of the project quailyquaily/mister_morph, from assets/config/config.example.yaml. Its comments name the
environment variable MISTER_MORPH_LLM_MODEL, which the runner sets, and the targets of heartbeats.
"""

from __future__ import annotations

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, Part, Rule
from scheduler.extras.importers.foreign_system import OWN_LIMITS, Drop, ForeignSystem, command_line
from scheduler.extras.importers.job_conversion import JobShape, add_job
from scheduler.extras.importers.source_files import MISSING, Node

AGENT = (
    Rule("heartbeat.enabled", "heartbeat.enabled", value_converters.boolean, decides=True),
    Rule("heartbeat.interval", "heartbeat.interval", value_converters.duration("m"), decides=True),
    Rule("file_state_dir", "workspace", why="the folder of HEARTBEAT.md"),
    Rule("timeout", "heartbeat.timeout", value_converters.positive_duration("s")),
    Rule("llm.model", "model"),
)
DEFAULTS = {"interval": "30m", "on_missing": "run", "on_empty": "run", "ok_match": "exact", "ack_max_chars": 0}
TASKS = JobShape(prompt=("content",), agent=(), name=("id", "name"))

STAYS = "stays in MisterMorph, which still runs the agent"
DROPS = (
    Drop("tasks.*.bash_env", "only commands have their own environment variables", changes_meaning=True),
    Drop("tasks.*.llm_profile", "the profile is not in the imported files"),
    Drop("tasks.targets", "the topic of MisterMorph's own heartbeats"),
    Drop("cron", OWN_LIMITS),
    Drop("version", "the version of the file format", is_loss=False),
    Drop("console server", "heartbeatd has its own HTTP interface"),
    Drop("telegram slack line lark", "MisterMorph still receives the messages of users"),
    Drop("", STAYS),
)


def convert(draft: Draft) -> None:
    for config in draft.files.configs:
        if not _list_tasks(config):
            _convert_config(draft, config)
    for config in draft.files.configs:
        for task in _list_tasks(config):
            _add_task(draft, task)


def _list_tasks(config: Node) -> list[Node]:
    """The tasks of a cron.yaml; `tasks` of a config.yaml is a map."""
    return [task for step, task in config.get("tasks").children.items() if isinstance(step, int)]


def _convert_config(draft: Draft, config: Node) -> None:
    agent = draft.convert_agent(config, AGENT)
    beat = agent.below("heartbeat")
    _put_model(draft, config, beat)
    beat.add_defaults(DEFAULTS)
    _put_checklist_path(config.get("heartbeat.checklist_path"), agent)
    _put_chats(draft, config, beat)


def _add_task(draft: Draft, task: Node) -> None:
    """A task of cron.yaml. Its chat is the recipient of what the agent says; without one, the agent chooses recipients itself."""
    job = add_job(draft, task, TASKS)
    if not job:
        return
    chat, profile = task.get("chat_id"), task.get("llm_profile")
    if chat.text.startswith("tg:"):
        job.put_deliver(chat.with_text("telegram"), chat.with_text(chat.text.removeprefix("tg:")))
        job.change(chat, "deliver")
    else:
        draft.receipt.drop(chat, "heartbeatd cannot use this chat")
        known = f"{chat.key}: heartbeatd cannot use this chat" if chat.text else "the agent chose the recipients itself"
        job.deliver_to_log(known)
    _put_profile(draft, profile, job)


def _put_profile(draft: Draft, named: Node, part: Part) -> None:
    """The model of a profile."""
    profiles = (config.get("llm.profiles").children for config in draft.files.configs)
    profile = next((found[named.text] for found in profiles if named.text in found), MISSING)
    if (model := profile.get("model")).text:
        part.put("model", model, model.text)
        part.change(named, "model", "the model of this profile")


def _put_model(draft: Draft, config: Node, beat: Part) -> None:
    """The model of heartbeats: `llm.routes.heartbeat` names a profile, or has it under `profile`."""
    route = config.get("llm.routes.heartbeat")
    named = route.get("profile") if route.is_container else route
    if named.text == "default":
        draft.receipt.keep(named, beat.path.removesuffix(".heartbeat"), "the agent's own model")
    else:
        _put_profile(draft, named, beat)


def _put_checklist_path(path: Node, agent: Part) -> None:
    """The file of the checklist: inside the folder of the state, or in a folder of its own, which becomes the workspace."""
    folder = str(agent.get("workspace") or "").rstrip("/")
    if not path.text:
        return
    if folder and path.text.startswith(f"{folder}/"):
        agent.put("heartbeat.checklist", path, path.text.removeprefix(f"{folder}/"))
        return
    parent, _, name = path.text.rpartition("/")
    agent.put("heartbeat.checklist", path, name)
    if parent:
        agent.put("workspace", path, parent, "the folder of the checklist")


def _put_chats(draft: Draft, config: Node, beat: Part) -> None:
    """Heartbeats of MisterMorph go to all chats in `telegram.allowed_chat_ids`."""
    names = []
    for chat in (node for _, node in config.items("telegram.allowed_chat_ids") if node.text):
        try:
            names.append(draft.add_telegram(chat.text))
            draft.part(f"channels.{names[-1]}").change(chat, "url")
        except value_converters.NotUsable as error:
            draft.receipt.drop(chat, str(error))
    if names:
        unique = list(dict.fromkeys(names))
        beat.add("deliver", unique if len(unique) > 1 else unique[0], "the chats of telegram.allowed_chat_ids")


_SCRIPT = 'MISTER_MORPH_LLM_MODEL="${HEARTBEATD_MODEL:-$MISTER_MORPH_LLM_MODEL}" mistermorph run --task "$(cat)"'

SYSTEM = ForeignSystem(
    "mistermorph",
    "MisterMorph",
    "config.yaml, HEARTBEAT.md",
    convert,
    DROPS,
    command_line("MisterMorph", _SCRIPT),
    switch="cron.enabled",
    token=("telegram.bot_token",),
)
