"""Lists the values in effect for one agent or job, and the origin of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from heartbeat.spec import Fallback, Heartbeat, ModelRunner
from heartbeat.words import format_duration
from heartbeatd.answers import ConfigValue
from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import ExternalPosition
from scheduler.config.file.marked_yaml import MarkedMap
from scheduler.config.keys.models import Form, definition
from scheduler.config.settings.config_data import map_at
from scheduler.config.settings.config_snapshot import SecretMasker, hide_placeholders
from scheduler.config.settings.load import load_config
from scheduler.config.settings.runners import DEFAULT_MODEL
from scheduler.model.outcome import Key

SECTIONS = {"agent": ("agents", "Agent"), "cron": ("cron", "Job")}


def list_effective_values(path: Path, environ: Mapping[str, str], key: Key) -> list[ConfigValue]:
    """Every value of an agent or a job, with secrets masked. Raises ConfigError, and LookupError if there is no such entry."""
    kind, name = key[0].word, key[1]
    loaded = load_config(path, environ, resolve_secrets=False)
    section, model = SECTIONS[kind]
    written = loaded.data.merged[section][name]
    masked = SecretMasker(loaded.data.root).mask_map(written, (section, name))
    beat = loaded.settings.heartbeats[name] if kind == "agent" else None
    agent = loaded.settings.job_agents.get(name)
    entries = [beat] if beat else [loaded.settings.jobs[name], agent]
    others = _values_without_field(beat, map_at(written, "runner").get("kind", "anthropic")) if beat else {}
    origins = {"timezone": TOP_LEVEL_ZONE} | (dict.fromkeys(KEYS_OF_AGENT, f"agents.{agent.name}") if agent else {})
    if beat:
        in_top_zone = beat.zone == loaded.settings.zone
        origins = {"heartbeat.timezone": TOP_LEVEL_ZONE if in_top_zone else "heartbeat.active_hours", **ORIGINS_IN_HEARTBEAT}
    return list(_Listing(path.name, loaded.data.default_paths, entries, others, origins).iterate_values(model, masked, ()))


@dataclass(frozen=True, slots=True)
class _Listing:
    """`homes` are the paths of values under `defaults`, by their position. `entries` are the agent or job as it was built, and
    `others` the values of keys for which these have no field. `origins` say where the values of keys that are not set come from.
    """

    file: str
    homes: Mapping[tuple[int, int], str]
    entries: Sequence[object]
    others: Mapping[str, str]
    origins: Mapping[str, str]

    def iterate_values(self, model: str, written: MarkedMap, above: tuple[str, ...]) -> Iterator[ConfigValue]:
        """The values of a map, whose path is `above`."""
        for key, form in definition(model)["properties"].items():
            path, value = (*above, key), written.get(key)
            if inner := nested_model(form, value):
                yield from self.iterate_values(inner, value if isinstance(value, MarkedMap) else MarkedMap(), path)
            elif key in written:
                text = hide_placeholders(format_value(value))
                yield ConfigValue(key=".".join(path), value=text, origin=self._describe_origin(written, key))
            else:
                name, value = ".".join(path), self._built_value(path, form)
                yield ConfigValue(
                    key=name, value=value, origin="built in" if value == "none" else self.origins.get(name, "built in")
                )

    def _describe_origin(self, node: MarkedMap, key: str) -> str:
        place = node.marks[key][0]
        if isinstance(place, ExternalPosition):
            return f"environment {place.variable}"
        home = self.homes.get((place.line, place.column))
        return f"{home} {self.file}:{place.line + 1}" if home else f"{self.file}:{place.line + 1}"

    def _built_value(self, path: tuple[str, ...], form: Form) -> str:
        """The value of a key that the file does not set: that of the built entry, else its default."""
        if (key := ".".join(path)) in self.others:
            return self.others[key]
        if "default" in form:
            return format_value(form["default"])
        steps = [FIELDS.get(step, step) for step in path if step != "heartbeat"]
        # A key in a map is a field of the map's value, or a field of the entry, with the name of the map or without it.
        ways = (steps, ["_".join(steps)], *([steps[-1:]] if steps[0] in UNNAMED_MAPS else []))
        found = (_field_at(entry, way) for way in ways for entry in self.entries)
        return format_value(next((value for value in found if value not in (None, (), "")), None))


FIELDS = {"timezone": "zone"}  # the fields of entries that have another name than their key
UNNAMED_MAPS = frozenset({"misfire", "problems", "executor", "active_hours", "deliver"})  # the entry itself has their keys

TOP_LEVEL_ZONE = "top-level timezone"
ORIGINS_IN_HEARTBEAT = {
    "heartbeat.model": "model",
    "heartbeat.provider": "runner.provider",
    "heartbeat.effort": "effort",
    "heartbeat.fallbacks": "fallbacks",
}
KEYS_OF_AGENT = ("model", "effort", "fallbacks", "executor.queue")  # that a job with a prompt has from its agent


def _values_without_field(beat: Heartbeat, kind: str) -> dict[str, str]:
    """The values of an agent's keys for which its heartbeat has no field, or whose text for people is another one. `kind` is that
    of its runner.
    """
    runner = beat.runner if isinstance(beat.runner, ModelRunner) else None
    return {
        "runner.kind": kind,
        "runner.provider": kind,
        "runner.account.name": getattr(beat.runner, "account", None) or "none",
        "model": DEFAULT_MODEL if runner and runner.provider.kind == "anthropic" else "none",
        "heartbeat.provider": runner.provider.name if runner else "none",
        "heartbeat.decide.provider": beat.decide.runner.provider.name if beat.decide else "none",
        "heartbeat.prompt": "built in",
        **({"heartbeat.stagger": "0"} if beat.schedule else {}),
    }


def _field_at(value: object, steps: list[str]) -> object:
    for step in steps:
        value = getattr(value, step, None)
    return value


def nested_model(form: Form, value: object) -> str | None:
    """The name of the model of a key whose value is a map of keys, always or in this file; None for any other key."""
    is_there = isinstance(value, MarkedMap) or (value is None and form.get("default") == {})
    if "x-form" in form and not is_there:
        return None
    if "discriminator" in form:
        kind = value["kind"] if isinstance(value, MarkedMap) else form["default"]["kind"]
        reference = form["discriminator"]["mapping"][kind]
    else:
        reference = form.get("$ref") or next((part["$ref"] for part in form.get("anyOf", ()) if "$ref" in part), "")
    return reference.rpartition("/")[2] or None


def format_value(value: object) -> str:
    """A value of the config as one printable line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{marked_yaml.printable_key(key)}: {format_value(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, Fallback):
        return value.name
    text = value.key if isinstance(value, ZoneInfo) else str(value)
    return text if text.isprintable() and text else ascii(text)
