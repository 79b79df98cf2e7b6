"""Lists for each value of the imported files whether it was kept, changed or dropped, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from heartbeat import words
from heartbeat.words import format_count, one_line
from scheduler.extras.importers.source_files import Node, Scalar

Status = Literal["kept", "changed", "dropped"]

NO_VALUE = "no value"
LONGEST_SHOWN = 60  # characters of a value or key in a line of text; JSON has all of them


@dataclass(slots=True)
class ReceiptEntry:
    """What happened to one value. `was` and `now` are shown only for a change, and never hold a secret.

    `targets` are the keys of the new config that hold the value. `is_loss`: a setting was dropped, not only a record or an empty
    value.
    """

    file: str
    line: int
    key: str
    status: Status = "dropped"
    targets: list[str] = field(default_factory=list)
    was: Scalar = None
    now: object = None
    why: str = ""
    is_loss: bool = True
    is_decided: bool = False

    def as_json(self) -> dict[str, object]:
        found: dict[str, object] = {"file": self.file, "line": self.line, "key": self.key, "status": self.status}
        if self.status == "dropped":
            return found | {"why": self.why, "loss": self.is_loss}
        found["as"] = self.targets
        if self.status == "changed":
            found |= {"from": self.was, "to": self.now}
        return found | ({"why": self.why} if self.why else {})


@dataclass(frozen=True, slots=True)
class Addition:
    """A key of the new config that no source has: a default of the other system that differs from ours, or a required key."""

    target: str
    value: object
    why: str


@dataclass(slots=True)
class ChangedMeaning:
    """An agent or job that could not be imported with its meaning, and is therefore disabled or left out.

    `entry` is its place in the new config, such as cron.brief, and empty if it was left out. `place` is its place in the files.
    """

    entry: str
    place: str
    reasons: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        return {"entry": self.entry or None, "from": self.place or None, "why": self.reasons}


class Receipt:
    """The entries of all values. Every value has one from the beginning, so none can be forgotten.

    `changed_meanings` are the agents and jobs that would do something else than before, and are therefore disabled or left out.
    """

    def __init__(self, roots: Iterable[Node]) -> None:
        self.entries: dict[int, ReceiptEntry] = {}
        self.leaves: list[Node] = []
        self.additions: list[Addition] = []
        self.changed_meanings: list[ChangedMeaning] = []
        self._by_name: dict[str, list[ReceiptEntry]] = {}  # by the section and name of their targets
        for root in roots:
            for leaf in root.leaves():
                if leaf.steps or not leaf.is_container:
                    self.leaves.append(leaf)
                    self.entries[id(leaf)] = ReceiptEntry(leaf.file, leaf.line, leaf.key)

    def keep(self, node: Node, target: str, why: str = "") -> None:
        """The values below a node are in the new config, unchanged."""
        for entry in self._entries_of(node):
            if entry.status == "dropped":
                entry.status, entry.why = "kept", ""
            self._decide(entry, target, why)

    def change(self, node: Node, target: str, now: object, why: str = "", *, is_secret: bool = False) -> None:
        """The values below a node are in the new config in another form. The old value of a secret is not shown."""
        for leaf in node.leaves():
            if entry := self.entries.get(id(leaf)):
                entry.why = "" if entry.status == "dropped" else entry.why
                entry.status, entry.was, entry.now = "changed", "a secret" if is_secret else leaf.value, now
                self._decide(entry, target, why)

    def drop(self, node: Node, why: str, *, is_loss: bool = True) -> None:
        """The values below a node are not in the new config, except those that were kept or changed already."""
        for entry in self._entries_of(node):
            if not entry.is_decided:
                entry.why, entry.is_loss, entry.is_decided = why, is_loss, True

    def is_decided(self, leaf: Node) -> bool:
        found = self.entries.get(id(leaf))
        return found is None or found.is_decided

    def add(self, target: str, value: object, why: str) -> None:
        """A key of the new config that comes from no source."""
        self.additions.append(Addition(target, value, why))

    def disable(self, entry: str, key: str, node: Node, why: str) -> None:
        """An agent or job of the new config is disabled by `key`, because it would do something else than before."""
        found = next((each for each in self.changed_meanings if each.entry == entry), None)
        if found is None:
            found = ChangedMeaning(entry, _place_of(node))
            self.changed_meanings.append(found)
        if why not in found.reasons:
            found.reasons.append(why)
        set_by = [each for each in self._by_name.get(entry, ()) if key in each.targets]
        for each in set_by:
            if each.was is None:
                each.was = True
            each.status, each.now, each.why = "changed", False, why
        if not set_by and key not in {each.target for each in self.additions}:
            self.add(key, False, why)

    def leave_out(self, entry: str, node: Node, why: str) -> None:
        """An agent or job is not in the new config, because it would do something else than before."""
        self.changed_meanings = [each for each in self.changed_meanings if not entry or each.entry != entry]
        self.changed_meanings.append(ChangedMeaning("", _place_of(node) or entry, [why]))

    def withdraw(self, target: str, why: str, *, is_loss: bool = True) -> None:
        """A key of the new config, and everything below it, was taken out again."""
        for entry in self._by_name.get(_section_and_name(target), ()):
            left = [each for each in entry.targets if not is_inside(each, target)]
            if len(left) == len(entry.targets):
                continue
            entry.targets = left
            if not left:
                entry.status, entry.why, entry.is_loss = "dropped", why, is_loss
        self.additions = [each for each in self.additions if not is_inside(each.target, target)]

    def rename(self, names: Mapping[str, str]) -> None:
        """Entries of the new config have other names, all at once: from cron.brief to cron.brief-2."""

        def renamed(target: str) -> str:
            entry = _section_and_name(target)
            return f"{names.get(entry, entry)}{target[len(entry) :]}"

        before, self._by_name = self._by_name, {}
        for name, found in before.items():  # an entry that was taken out may have had the new name of another
            self._by_name.setdefault(renamed(name), []).extend(found)
        for changed in self.changed_meanings:
            changed.entry = renamed(changed.entry)
        for entry in self.entries.values():
            entry.targets = [renamed(each) for each in entry.targets]
        self.additions = [replace(each, target=renamed(each.target)) for each in self.additions]

    def leave_to_config(self, entry: str) -> None:
        """An agent or job is not added, because the config has it, with values that its user has changed."""
        self.changed_meanings = [each for each in self.changed_meanings if each.entry != entry]
        self.withdraw(entry, f"the config has {entry} already, with other values", is_loss=False)

    @property
    def losses(self) -> list[ReceiptEntry]:
        """The settings that are not in the new config."""
        return [entry for entry in self.entries.values() if entry.status == "dropped" and entry.is_loss]

    def _decide(self, entry: ReceiptEntry, target: str, why: str) -> None:
        if target not in entry.targets:
            entry.targets.append(target)
            self._by_name.setdefault(_section_and_name(target), []).append(entry)
        entry.why = why or ("" if not entry.is_decided else entry.why)
        entry.is_decided = True

    def _entries_of(self, node: Node) -> Iterator[ReceiptEntry]:
        for leaf in node.leaves():
            if entry := self.entries.get(id(leaf)):
                yield entry


def _section_and_name(target: str) -> str:
    """The first two steps of a key: cron.backup. Names have no dots."""
    return ".".join(target.split(".")[:2])


def is_inside(target: str, above: str) -> bool:
    """Whether a key of the config is `above` or below it."""
    return target == above or target.startswith((f"{above}.", f"{above}["))


def format_receipt(receipt: Receipt) -> Iterator[str]:
    """The receipt as lines of text: kept and changed values one by one, dropped values by their reason."""
    entries = list(receipt.entries.values())
    for entry in entries:
        if entry.status != "dropped":
            yield f"{entry.status:<7}  {_place(entry)} -> {', '.join(entry.targets)}{_change(entry)}{_reason(entry.why)}"
    for addition in receipt.additions:
        yield f"added    {addition.target}: {shorten(addition.value)}{_reason(addition.why)}"
    for is_loss in (True, False):
        for why, found in _by_reason(entry for entry in entries if entry.status == "dropped" and entry.is_loss is is_loss):
            yield f"dropped  {one_line(why)}:"
            yield from (f"           {_place(entry)}" for entry in found)
    yield summarize(receipt)
    for changed in receipt.changed_meanings:
        what = f"disabled {changed.entry}" if changed.entry else f"left out {changed.place}"
        yield f"{what}: {one_line('; '.join(changed.reasons))}"


def summarize(receipt: Receipt) -> str:
    """The counts of the values."""
    count = {"kept": 0, "changed": 0, "dropped": 0}
    for entry in receipt.entries.values():
        count[entry.status] += 1
    harmless = count["dropped"] - len(receipt.losses)
    note = f" ({harmless} of them records or empty values)" if harmless else ""
    total = format_count(len(receipt.entries), "value")
    return f"receipt: {total}: {count['kept']} kept, {count['changed']} changed, {count['dropped']} dropped{note}"


def shorten(value: object) -> str:
    """A value as a line of the receipt shows it."""
    text = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return words.shorten(one_line(text), LONGEST_SHOWN)


def _place_of(node: Node) -> str:
    """The place of a job or agent in the files, with its name if it has one."""
    named = node.first("name", "id").text
    label = f" ({shorten(named)})" if named else ""
    return f"{one_line(node.file)}:{node.line} {shorten_key(node.key)}{label}" if node else ""


def _place(entry: ReceiptEntry) -> str:
    return f"{one_line(entry.file)}:{entry.line} {shorten_key(entry.key)}"


def shorten_key(key: str) -> str:
    """A key that fits on a line."""
    return words.shorten(key, 3 * LONGEST_SHOWN)


def _change(entry: ReceiptEntry) -> str:
    return f": {shorten(entry.was)} became {shorten(entry.now)}" if entry.status == "changed" else ""


def _reason(why: str) -> str:
    return f" ({one_line(why)})" if why else ""


def _by_reason(entries: Iterable[ReceiptEntry]) -> Sequence[tuple[str, list[ReceiptEntry]]]:
    found: dict[str, list[ReceiptEntry]] = {}
    for entry in entries:
        found.setdefault(entry.why, []).append(entry)
    return list(found.items())
