"""Lists the systems that `heartbeatd config import` knows, and converts their files to a draft with a receipt."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import PurePath

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, Part
from scheduler.extras.importers.import_receipt import NO_VALUE, Receipt
from scheduler.extras.importers.source_files import LONGEST_LINE, Node, PathStep, SourceFile, fold_key, sort_files

# In the order of the help text. Each name is a module in this folder with a constant SYSTEM.
SYSTEM_NAMES = ("openclaw", "goclaw", "picoclaw", "mistermorph", "nanobot", "claw0", "zeroclaw", "hermes")

HOST_ZONE = "the time zone of this host; --timezone sets another"
OPTION_ZONE = "set with --timezone"
NO_COUNTERPART = "heartbeatd has no such setting"
RECORD = "a record of the other scheduler; heartbeatd keeps its own"
OWN_LIMITS = "heartbeatd has its own store, history, retries and limits"
NAMES_A_THING = "an identifier of the other system; heartbeatd uses names"
RUNS_ONCE = "a single run stays in the config after it has run"
CALLED = "the agent is called by its command line"
CHECKLIST = "heartbeat.checklist"
_MARKS = re.compile(r"^(?:\s*(?:#{1,6}|[-*+]|\d+[.)])\s+|\s*\[[ xX]?\]\s+)+")


@dataclass(frozen=True, slots=True)
class Drop:
    """Why the values below some keys are left out. `keys` are dotted, with blanks between them, each `below` a dotted path.

    A `*` in a key stands for any one step, `**` in front for any steps, and an empty text for all values. `changes_meaning`:
    without the value, the job or agent to which it belongs would do something else than before.
    """

    keys: str
    why: str
    below: str = ""
    is_loss: bool = True
    changes_meaning: bool = False

    def find_key(self, steps: Sequence[PathStep]) -> str | None:
        """The key that is about a value; None if none is."""
        folded = [fold_key(str(step)) for step in steps]
        for key, wanted, is_anywhere in _split_keys(self.keys, self.below):
            starts = len(folded) - len(wanted) + 1
            if any(all(map(_fits, wanted, folded[start:])) for start in range(starts if is_anywhere else min(starts, 1))):
                return key
        return None


@cache
def _split_keys(keys: str, below: str) -> list[tuple[str, list[str], bool]]:
    """Each key of a Drop, its steps, and whether they may begin anywhere. Cached, as all values are compared with all keys."""
    whole = [f"{below}.{each}" if below else each for each in keys.split() or ("",)]
    return [(key, [fold_key(each) for each in key.removeprefix("**.").split(".") if each], key.startswith("**")) for key in whole]


def _fits(wanted: str, step: str) -> bool:
    return wanted in ("*", step)


# The keys of stored jobs that OpenClaw, GoClaw, PicoClaw, nanobot and claw0 share; their stores descend from the same format.
STORE_DROPS = (
    Drop("jobs.*.state *.state", RECORD, is_loss=False),
    Drop("createdAtMs updatedAtMs createdAt updatedAt lastRunAt nextRunAt lastStatus lastError", RECORD, "**", is_loss=False),
    Drop("id jobId", NAMES_A_THING, "jobs.*", is_loss=False),
    Drop("jobs.*.deleteAfterRun", RUNS_ONCE, is_loss=False),
    Drop("version", "the version of the file format", is_loss=False),
)


@dataclass(frozen=True, slots=True)
class ForeignSystem:
    """A system to import from. `files` names the files that it reads, for the help text.

    `convert` moves the values of the files into the draft. Values that it leaves are dropped, with the reason of the first of
    `drops` that matches. `start_agent` sets the runner of a new agent, from its name in the other system.

    The other fields are keys of its configs: the time zone of jobs, and its default; the switch of all jobs; the token of the
    Telegram bot.
    """

    name: str
    title: str
    files: str
    convert: Callable[[Draft], None]
    drops: Sequence[Drop]
    start_agent: Callable[[Part, str], None]
    zone: str = ""
    default_zone: str = ""
    switch: str = ""
    token: Sequence[str] = ("channels.telegram.botToken", "channels.telegram.token")


def command_line(title: str, script: str) -> Callable[[Part, str], None]:
    """The runner of the agents of a system: a shell command, which gets the prompt on standard input."""

    def start_agent(agent: Part, _: str) -> None:
        agent.add("runner", {"kind": "command", "argv": ["sh", "-c", script]}, f"calls the agent by the command line of {title}")

    return start_agent


def load_system(name: str) -> ForeignSystem:
    """The system of this name, which is one of SYSTEM_NAMES. Only its module is imported."""
    system: ForeignSystem = import_module(f"scheduler.extras.importers.{name}").SYSTEM
    return system


def import_sources(system: ForeignSystem, sources: Sequence[SourceFile], zone: str, zone_reason: str = HOST_ZONE) -> Draft:
    """The config and the receipt of all files together. `zone` is the time zone of times that name none.

    `zone_reason` says in the receipt where the zone comes from.
    """
    receipt = Receipt(source.root for source in sources)
    draft = Draft(receipt, system.title, sort_files(sources), zone, zone_reason, system.start_agent)
    _read_shared_settings(draft, system)
    system.convert(draft)
    for checklist in draft.files.checklists:
        _put_checklist(draft, checklist)
    draft.finish()
    for leaf in receipt.leaves:
        if not receipt.is_decided(leaf):
            _drop(draft, leaf, system.drops)
    return draft


def _read_shared_settings(draft: Draft, system: ForeignSystem) -> None:
    """The settings of a config that are for all agents and jobs."""
    draft.telegram_token = draft.files.first(*system.token)
    zones = [zone for config in draft.files.configs if system.zone and (zone := config.get(system.zone))]
    for zone in zones:
        draft.take_zone(zone)
    if system.default_zone and draft.files.configs and not zones and draft.zone_reason != OPTION_ZONE:
        draft.zone, draft.zone_reason = system.default_zone, f"{system.title}'s default"
    for switch in (config.get(system.switch) for config in draft.files.configs if system.switch):
        if switch and switch.value is False:
            draft.jobs_off = switch
        else:
            draft.receipt.drop(switch, "true, as here", is_loss=False)


def _put_checklist(draft: Draft, checklist: SourceFile) -> None:
    """A HEARTBEAT.md belongs to the agent whose workspace is its folder, else to the default agent.

    A `tasks:` block becomes items with `[every ...]` in the config. Any other file is left where it is.
    """
    folder = PurePath(checklist.name).parent.name
    workspaces = {PurePath(str(agent.get("workspace", ""))).name: name for name, agent in reversed(draft.data["agents"].items())}
    owner = workspaces.get(folder) if folder else None
    agent = draft.part(f"agents.{owner}") if owner else draft.find_agent("")
    tasks = checklist.root.get("tasks")
    if not tasks:
        why = "heartbeatd reads the file itself" if owner else "copy the file into the workspace of the agent"
        agent.keep(checklist.root, "workspace", why)
        return
    items = [_convert_task(task, agent) for task in tasks.children.values()]
    for line in checklist.root.get("lines").children.values():
        items.append(_MARKS.sub("", line.text) if len(line.text) <= LONGEST_LINE else line.text)
        if items[-1] == line.text:
            agent.keep(line, CHECKLIST)
        else:
            why = "plain text outside the items, so that it makes no item due"
            draft.receipt.change(line, f"{agent.path}.{CHECKLIST}", items[-1], why)
    draft.set_value(f"{agent.path}.{CHECKLIST}", "\n".join(items) + "\n")


def _convert_task(task: Node, agent: Part) -> str:
    every, label, prompt = task.get("interval"), task.get("name"), task.get("prompt")
    receipt, mark = agent.draft.receipt, ""
    try:
        mark = f"[every {value_converters.positive_duration('m')(every)}] " if every else ""
        receipt.change(every, f"{agent.path}.{CHECKLIST}", mark.strip())
    except value_converters.NotUsable as error:
        receipt.drop(every, f"{error}; the item is due at every run")
    for node in (label, prompt):
        agent.keep(node, CHECKLIST)
    return f"- {mark}{': '.join(node.text for node in (label, prompt) if node.text)}"


def _drop(draft: Draft, leaf: Node, drops: Sequence[Drop]) -> None:
    """Record a value that the system did not convert.

    A key that is in none of the lists may be a condition of a newer version, so its job or agent is disabled.
    """
    found = next(((each, key) for each in drops if (key := each.find_key(leaf.steps)) is not None), None)
    drop, key = found or (None, "")
    if drop and not drop.is_loss:
        draft.receipt.drop(leaf, drop.why, is_loss=False)
    elif leaf.value is None or leaf.value == "":
        draft.receipt.drop(leaf, NO_VALUE, is_loss=False)
    else:
        entry, depth = draft.find_entry(leaf)
        if entry and not key.startswith("**") and key.count(".") < depth:  # it is about all of the file there, not about this key
            drop = None
        why = drop.why if drop else NO_COUNTERPART
        draft.receipt.drop(leaf, why)
        if entry and leaf.value and (drop is None or drop.changes_meaning):
            draft.disable(entry, f"{leaf.key}: {why}")
