"""Makes a valid config from a draft: new, or inserted into a config whose other lines stay the same.

Each version is loaded as the daemon would load it. Values that are rejected are taken out again, with the error as their reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

from scheduler.config.file.diagnostics import ConfigError, Diagnostic
from scheduler.config.file.marked_yaml import MarkedMap, value_at
from scheduler.config.file.text_editing import NewEntry, add_entries
from scheduler.config.settings import load
from scheduler.config.settings.load import LoadedConfig
from scheduler.config.settings.time_checks import PASSED, TimeCheck
from scheduler.extras.importers import config_draft
from scheduler.extras.importers.config_draft import SECTIONS, Draft

MOST_REPAIRS = 12  # rounds in which rejected values are taken out; each round handles all errors of a version

# Without one of these keys an entry would do something else than before, so the whole entry is taken out.
_NEEDED = frozenset(
    ("runner", "command", "prompt", "agent", "schedule", "every", "at", "timezone", "wake_heartbeat", "url", "kind")
)
# Without one of these keys an entry would run at other times, know less, or send to others, so it is disabled.
_DECIDING = frozenset(("enabled", "interval", "active_hours", "precheck", "previous", "deliver", "wake_mode"))
_ORDER = {
    "agents": ("workspace", "runner", "model", "heartbeat"),
    "heartbeat": ("enabled", "interval", "schedule", "active_hours"),
    "cron": ("enabled", "schedule", "every", "at", "timezone", "agent", "prompt", "command", "wake_heartbeat"),
}
# The keys by which an entry of a config is known to be that of an earlier import.
_IDENTITY = {
    "providers": ("kind", "base_url", "api_key"),
    "channels": ("url",),
    "agents": ("runner", "workspace"),
    "cron": ("schedule", "every", "at", "timezone", "agent", "prompt", "command", "wake_heartbeat", "wake_text"),
}
# The keys of agents and jobs with names of entries in a section.
_REFERRING = {
    "providers": ("provider",),
    "channels": ("deliver",),
    "agents": ("agent", "wake_heartbeat"),
    "cron": ("previous",),
}
_SAMPLE_TOKEN = "123456789:" + "A" * 35  # has the form of a Telegram token


class NothingToImport(Exception):
    """The files have no agent and no job that could be imported."""


def write_new_config(draft: Draft, heading: Iterable[str], time_check: TimeCheck) -> tuple[str, LoadedConfig]:
    """A complete config with comment lines above it, and what it loads to. Raises NothingToImport."""
    samples = {name: "https://example.org/" if "_URL" in name else _SAMPLE_TOKEN for name in draft.variables}

    def render() -> str:
        parts = [add_entries("", section, entries) for section, entries in _list_entries(draft)]
        return "".join(f"# {line}".rstrip() + "\n" for line in heading) + "\n" + "\n".join(parts)

    def check(text: str) -> LoadedConfig:
        return load.load_config(Path("config.yaml"), samples, content=text.encode(), time_check=time_check)

    return _settle(draft, render, check)


def insert_into_config(draft: Draft, path: Path, before: bytes, time_check: TimeCheck) -> tuple[str, LoadedConfig]:
    """The text of an existing config with the new entries, and what it loads to.

    Raises ConfigError for errors that the config has already, EditRefused, NothingToImport.
    """
    load.load_config(path, os.environ, resolve_secrets=False, content=before)

    def render() -> str:
        text = before.decode()
        for section, entries in _list_entries(draft):
            text = add_entries(text, section, entries)
        return text

    def check(text: str) -> LoadedConfig:
        return load.load_config(path, os.environ, resolve_secrets=False, content=text.encode(), time_check=time_check)

    return _settle(draft, render, check)


def fit_into(draft: Draft, root: object, text: str) -> int:
    """Leave out entries that a config has already, and rename those whose names it uses for others.

    `text` is the config as it is written. Its variables may hold other secrets, unless a value is known to be the same. Returns
    the number of agents and jobs that are there already.
    """
    for name, secret in list(draft.secrets.items()):
        if secret and f"${{{name}}}" in text and os.environ.get(name) != secret and not _is_known(draft.data, root, name):
            draft.rename_variable(name, _other_variable(draft, root, text, name))
    return _leave_out_known(draft, root)


def _other_variable(draft: Draft, root: object, text: str, name: str) -> str:
    """A variable for a secret, because that of the config may hold another one: a new one, or that of an earlier import."""
    number = 2
    while True:
        new = f"{name}_{number}"
        data = config_draft.replace_text(draft.data, f"${{{name}}}", f"${{{new}}}")
        if new not in draft.secrets and (f"${{{new}}}" not in text or _is_known(data, root, new)):
            return new
        number += 1


def _is_known(data: Mapping[str, Any], root: object, variable: str) -> bool:
    """Whether a config has all entries that refer to this variable."""
    return all(
        any(_is_same(section, each, entry) for each in _entries_of(root, section).values())
        for section, entries in data.items()
        for entry in entries.values()
        if f"${{{variable}}}" in str(entry)
    )


def _entries_of(root: object, section: str) -> Mapping[str, Any]:
    found = root.get(section) if isinstance(root, MarkedMap) else None
    return found if isinstance(found, MarkedMap) else {}


def _leave_out_known(draft: Draft, root: object) -> int:
    """Take out what the config has, also under other names, and give what it does not have names that are free there."""
    there = 0
    for section in SECTIONS:
        known = _entries_of(root, section)
        entries, names = draft.data[section], dict[str, str]()
        # Jobs that name others in `previous` come last, because the others may get another name.
        for name in sorted(entries, key=lambda each: "previous" in entries[each]):
            same = [each for each in known if each not in names.values() and _is_same(section, known[each], entries[name])]
            equal = [each for each in same if known[each] == _with_names(entries[name], section, {**names, name: each})]
            taken = {*known, *names.values(), *entries} - ({name} - {*known})
            free = (each for each in chain((name,), (f"{name}-{number}" for number in count(2))) if each not in taken)
            changed = [each for each in same if each == name or each not in entries]  # another's own name is left to it
            changed.sort(key=lambda each: each != name)
            names[name] = name if name in equal else next(chain(equal, changed, free))
        _rename(draft, section, names)
        for name, new in names.items():
            if new not in known:
                if new != name:
                    draft.receipt.add(f"{section}.{new}", new, f"the config has another {name} already")
                continue
            there += section in ("agents", "cron")
            if known[new] != draft.data[section].pop(new):
                draft.receipt.leave_to_config(f"{section}.{new}")
    for section in ("providers", "channels"):
        for name in [each for each in draft.data[section] if not _is_used(draft.data, section, each)]:
            draft.remove(f"{section}.{name}", "no new agent or job uses it", is_loss=False)
    return there


def _is_used(data: Mapping[str, Any], section: str, name: str) -> bool:
    """Whether an agent or job refers to this provider or channel, also as the channel of the last conversation."""
    names = {name: ""} | ({"last": ""} if "{target}" in str(data[section][name]) else {})
    return any(_with_names(entry, section, names) != entry for kind in ("agents", "cron") for entry in data[kind].values())


def _is_same(section: str, known: object, new: Mapping[str, Any]) -> bool:
    """Whether an entry of the config is this one, although its user may have changed its other keys."""
    keys = _IDENTITY[section]
    if section == "agents" and new["runner"]["kind"] != "command":
        keys = (*keys, "model")
    return isinstance(known, MarkedMap) and all(known.get(key) == new.get(key) for key in keys)


def _with_names(entry: Mapping[str, Any], section: str, names: Mapping[str, str]) -> dict[str, Any]:
    """An entry that refers to entries of a section by other names."""
    found: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            found[key] = _with_names(value, section, names)
        elif key not in _REFERRING[section]:
            found[key] = value
        else:  # one name, or a list of recipients or jobs
            found[key] = [names.get(each, each) for each in value] if isinstance(value, list) else names.get(value, value)
    return found


def _rename(draft: Draft, section: str, names: Mapping[str, str]) -> None:
    """Give entries of the draft other names, all at once, and refer to them by these."""
    draft.data[section] = {names[name]: entry for name, entry in draft.data[section].items()}
    for kind in ("agents", "cron"):
        draft.data[kind] = {name: _with_names(entry, section, names) for name, entry in draft.data[kind].items()}
    draft.receipt.rename({f"{section}.{old}": f"{section}.{new}" for old, new in names.items()})


def _settle(draft: Draft, render: Callable[[], str], check: Callable[[str], LoadedConfig]) -> tuple[str, LoadedConfig]:
    for _ in range(MOST_REPAIRS):
        if draft.is_empty:
            raise NothingToImport
        text = render()
        try:
            return text, check(text)
        except ConfigError as error:
            # An agent is changed only for jobs that stay, so the other errors of the jobs come first.
            errors = sorted(error.errors, key=lambda each: each.path.endswith(".agent"))
            if not [each for each in errors if _take_out(draft, each)]:
                raise
    raise NothingToImport


def _take_out(draft: Draft, error: Diagnostic) -> bool:
    """Take out the value that an error is about; False if it is not in the draft."""
    section, name, *inside = [*re.sub(r"\[\d+\]", "", error.path).split("."), "", ""]
    inside = [step for step in inside if step]
    entry = draft.part(f"{section}.{name}")
    keys = value_at(draft.data, (section, name))
    if keys is None:
        return False
    why = f"`heartbeatd check` rejects it: {error.message}"
    key = ".".join(["heartbeat", *inside[1:2]] if inside[:1] == ["heartbeat"] else inside[:1])
    last, has_meaning = key.rpartition(".")[2], section in ("agents", "cron")
    found = entry.get(key) if key else None
    if error.message == PASSED:
        draft.remove(entry.path, "this single run has passed", is_loss=False)
    elif section == "cron" and key == "agent" and draft.keep_callable(entry.get("agent")):
        return True
    elif found is None or last in _NEEDED or key == "heartbeat":
        if has_meaning:
            draft.leave_out(entry.path, why)
        else:
            draft.remove(entry.path, why)
    else:
        draft.remove(f"{entry.path}.{key}", why)
        if last in _DECIDING and has_meaning:
            entry.disable(why)
        if last == "deliver":
            entry.add(key, "log", why)
            return bool(found != "log")
        if key == "heartbeat.interval":
            entry.add(key, "30m", "its interval was rejected")
    return True


def _list_entries(draft: Draft) -> list[tuple[str, list[NewEntry]]]:
    """The sections that have entries, with the keys of each entry in a fixed order."""
    return [
        (section, [NewEntry(name, _sort_keys(section, keys)) for name, keys in draft.data[section].items()])
        for section in SECTIONS
        if draft.data[section]
    ]


def _sort_keys(section: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    order = _ORDER.get(section, ())
    names = sorted(keys, key=lambda key: order.index(key) if key in order else len(order))
    return {
        name: _sort_keys(name, keys[name]) if isinstance(keys[name], dict) and name == "heartbeat" else keys[name]
        for name in names
    }
