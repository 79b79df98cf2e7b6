"""Imports MisterMorph: config.yaml, and a HEARTBEAT.md.

The format is that of the project quailyquaily/mister_morph, from assets/config/config.example.yaml. Its comments name the
environment variable MISTER_MORPH_LLM_MODEL, which the runner sets, and the targets of heartbeats.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, JobShape, Path, Rule
from scheduler.extras.importers.foreign_system import OWN_LIMITS, Drop, ForeignSystem, find_configs
from scheduler.extras.importers.source_files import Node, SourceFile

HEARTBEAT = (
    Rule("heartbeat.enabled", "heartbeat.enabled", value_converters.boolean, decides=True),
    Rule("heartbeat.interval", "heartbeat.interval", value_converters.duration("m"), decides=True),
    Rule("file_state_dir", "workspace", why="the folder of HEARTBEAT.md"),
    Rule("timeout", "heartbeat.timeout", value_converters.positive_duration("s")),
    Rule("llm.model", "model"),
)
DEFAULTS: dict[str, object] = {
    "interval": "30m",
    "on_missing": "run",
    "on_empty": "run",
    "ok_match": "exact",
    "ack_max_chars": 0,
}

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


def convert(draft: Draft, sources: Sequence[SourceFile]) -> None:
    configs = [config for config in find_configs(sources) if not _list_tasks(config)]
    for config in configs:
        draft.switch_jobs(config.get("cron.enabled"))
        base = draft.add_agent("main", *_RUNNER)
        heart = (*base, "heartbeat")
        if beat := config.get("heartbeat"):
            draft.note_entry(beat, base)
        draft.apply(HEARTBEAT, config, base)
        _put_model(draft, config, heart)
        draft.add_defaults(heart, DEFAULTS)
        _put_checklist_path(draft, config, base)
        _put_chats(draft, config, heart)
    for source in sources:
        for task in _list_tasks(source.root):
            _add_task(draft, task, configs)


def _list_tasks(root: Node) -> list[Node]:
    """The tasks of a cron.yaml; `tasks` of a config.yaml is a map."""
    tasks = root.get("tasks")
    return [task for step, task in tasks.children.items() if isinstance(step, int)] if tasks else []


def _add_task(draft: Draft, task: Node, configs: Sequence[Node]) -> None:
    """A task of cron.yaml. Its chat is the recipient of what the agent says; without one, the agent chooses recipients itself."""
    name = draft.add_job(task, TASKS, _RUNNER)
    if not name:
        return
    base, chat = ("cron", name), task.get("chat_id")
    if chat and chat.text.startswith("tg:"):
        draft.put_deliver(base, chat.with_text("telegram"), chat.with_text(chat.text.removeprefix("tg:")))
        draft.receipt.change(chat, ".".join((*base, "deliver")), draft.data["cron"][name]["deliver"])
    else:
        draft.add((*base, "deliver"), "log", "no channel could be imported for its messages")
        if chat:
            draft.receipt.drop(chat, "heartbeatd cannot use this chat")
        known = f"{chat.key}: heartbeatd cannot use this chat" if chat and chat.text else "the agent chose the recipients itself"
        draft.disable(base, known)
    profile = task.get("llm_profile")
    model = _model_of(configs, profile.text) if profile else None
    if profile and model and model.text:
        draft.put(model, (*base, "model"), model.text)
        draft.receipt.change(profile, ".".join((*base, "model")), model.text, "the model of this profile")


def _model_of(configs: Sequence[Node], profile: str) -> Node | None:
    listed = (config.get("llm.profiles") for config in configs)
    return next((found.children[profile].get("model") for found in listed if found and profile in found.children), None)


def _put_checklist_path(draft: Draft, config: Node, base: Path) -> None:
    """The file of the checklist: inside the folder of the state, or in a folder of its own, which becomes the workspace."""
    path = config.get("heartbeat.checklist_path")
    if not path or not path.text:
        return
    folder = str(draft.data["agents"][base[1]].get("workspace", "")).rstrip("/")
    if folder and path.text.startswith(f"{folder}/"):
        draft.put(path, (*base, "heartbeat", "checklist"), path.text.removeprefix(f"{folder}/"))
        return
    parent, _, name = path.text.rpartition("/")
    draft.put(path, (*base, "heartbeat", "checklist"), name)
    if parent:
        draft.put(path, (*base, "workspace"), parent, "the folder of the checklist")


def _put_model(draft: Draft, config: Node, heart: Path) -> None:
    """The model of heartbeats: `llm.routes.heartbeat` names a profile, or has it under `profile`."""
    route = config.get("llm.routes.heartbeat")
    named = (route.get("profile") if route.is_container else route) if route else None
    if not named or not named.text:
        return
    if named.text == "default":
        draft.receipt.keep(named, ".".join(heart[:-1]), "the agent's own model")
        return
    profile = config.get("llm.profiles")
    model = profile.children[named.text].get("model") if profile and named.text in profile.children else None
    if model and model.text:
        draft.put(model, (*heart, "model"), model.text)
        draft.receipt.change(named, ".".join((*heart, "model")), model.text, "the model of this profile")


def _put_chats(draft: Draft, config: Node, heart: Path) -> None:
    """Heartbeats of MisterMorph go to all chats in `telegram.allowed_chat_ids`."""
    chats = [node for _, node in config.items("telegram.allowed_chat_ids") if node.text]
    token = config.get("telegram.bot_token")
    draft.telegram_token = token if token and token.text else None
    names = []
    for chat in chats:
        try:
            name = draft.telegram(chat.text)
        except value_converters.NotUsable as error:
            draft.receipt.drop(chat, str(error))
            continue
        draft.receipt.change(chat, f"channels.{name}.url", draft.data["channels"][name]["url"])
        names.append(name)
    if names:
        unique = list(dict.fromkeys(names))
        draft.add((*heart, "deliver"), unique if len(unique) > 1 else unique[0], "the chats of telegram.allowed_chat_ids")


_SCRIPT = 'MISTER_MORPH_LLM_MODEL="${HEARTBEATD_MODEL:-$MISTER_MORPH_LLM_MODEL}" mistermorph run --task "$(cat)"'
_RUNNER = ({"kind": "command", "argv": ["sh", "-c", _SCRIPT]}, "calls the agent by the command line of MisterMorph")

SYSTEM = ForeignSystem("mistermorph", "MisterMorph", "config.yaml, HEARTBEAT.md", convert, DROPS, _RUNNER)
