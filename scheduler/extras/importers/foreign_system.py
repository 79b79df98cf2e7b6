"""Lists the systems that `heartbeatd config import` knows, and converts their files to a draft with a receipt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from scheduler.extras.importers.config_draft import Draft
from scheduler.extras.importers.import_receipt import NO_VALUE, Receipt
from scheduler.extras.importers.source_files import Node, PathStep, SourceFile

# In the order of the help text. Each name is a module in this folder with a constant SYSTEM.
SYSTEM_NAMES = ("openclaw", "goclaw", "picoclaw", "mistermorph", "nanobot", "claw0", "zeroclaw", "hermes")

HOST_ZONE = "the time zone of this host; --timezone sets another"
OPTION_ZONE = "set with --timezone"
NO_COUNTERPART = "heartbeatd has no such setting"
RECORD = "a record of the other scheduler; heartbeatd keeps its own"
OWN_LIMITS = "heartbeatd has its own store, history, retries and limits"
NAMES_A_THING = "an identifier of the other system; heartbeatd uses names"


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
        for each in self.keys.split() or ("",):
            key = f"{self.below}.{each}" if self.below else each
            wanted = key.split(".") if key else []
            starts = range(len(steps)) if wanted[:1] == ["**"] else (0,)
            if any(_begins_with(steps[start:], wanted[1:] if wanted[:1] == ["**"] else wanted) for start in starts):
                return key
        return None


# The keys of stored jobs that OpenClaw, GoClaw, PicoClaw, nanobot and claw0 share; their stores descend from the same format.
STORE_DROPS = (
    Drop("jobs.*.state *.state", RECORD, is_loss=False),
    Drop("createdAtMs updatedAtMs createdAt updatedAt lastRunAt nextRunAt lastStatus lastError", RECORD, "**", is_loss=False),
    Drop("id jobId", NAMES_A_THING, "jobs.*", is_loss=False),
    Drop("version", "the version of the file format", is_loss=False),
)


@dataclass(frozen=True, slots=True)
class ForeignSystem:
    """A system to import from. `files` names the files that it reads, for the help text.

    `convert` moves the values of the sources into the draft. Values that it leaves are dropped, with the reason of the first of
    `drops` that matches. Checklists are for the agent `main` with this `runner`; None: `convert` moves them too.
    """

    name: str
    title: str
    files: str
    convert: Callable[[Draft, Sequence[SourceFile]], None]
    drops: Sequence[Drop] = ()
    runner: tuple[Mapping[str, object], str] | None = None


def load_system(name: str) -> ForeignSystem:
    """The system of this name, which is one of SYSTEM_NAMES. Only its module is imported."""
    system: ForeignSystem = import_module(f"scheduler.extras.importers.{name}").SYSTEM
    return system


def import_sources(system: ForeignSystem, sources: Sequence[SourceFile], zone: str, zone_reason: str = HOST_ZONE) -> Draft:
    """The config and the receipt of all files together. `zone` is the time zone of times that name none.

    `zone_reason` says in the receipt where the zone comes from.
    """
    receipt = Receipt(source.root for source in sources)
    draft = Draft(receipt, zone, system.title, zone_reason)
    system.convert(draft, sources)
    if system.runner is not None:
        for checklist in find_checklists(sources):
            draft.put_checklist(checklist, draft.find_agent("main", *system.runner), is_in_workspace=False)
    draft.finish()
    for leaf in receipt.leaves:
        if not receipt.is_decided(leaf):
            _drop(draft, leaf, system.drops)
    return draft


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


def find_configs(sources: Sequence[SourceFile]) -> list[Node]:
    """The roots of the sources that are configs: neither job stores nor checklists."""
    return [source.root for source in sources if source.form != "markdown" and not _is_store(source.root)]


def find_jobs(sources: Sequence[SourceFile]) -> list[Node]:
    """The jobs of all job stores: the items of `jobs`, or of a file that is a list."""
    found: list[Node] = []
    for source in sources:
        if source.form != "markdown" and _is_store(source.root):
            found += [job for _, job in source.root.items("jobs") or source.root.items() if job.is_container and job.children]
    return found


def find_checklists(sources: Sequence[SourceFile]) -> list[SourceFile]:
    return [source for source in sources if source.form == "markdown"]


def _is_store(root: Node) -> bool:
    jobs = root.get("jobs")
    return bool(jobs and jobs.is_container) or any(isinstance(step, int) for step in root.children)


def _begins_with(steps: Sequence[PathStep], wanted: Sequence[str]) -> bool:
    return len(steps) >= len(wanted) and all(
        want == "*" or _fold(str(step)) == _fold(want) for step, want in zip(steps, wanted, strict=False)
    )


def _fold(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()
