"""Lists the values in effect for one agent or job, and the origin of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from heartbeat.spec import ModelRunner
from heartbeat.words import format_duration
from heartbeatd.secret import MASK
from scheduler.config.file import inheritance, marked_yaml
from scheduler.config.file.diagnostics import Diagnostics, ExternalPosition
from scheduler.config.file.marked_yaml import MarkedMap
from scheduler.config.file.message_parts import did_you_mean
from scheduler.config.keys.models import config_schema
from scheduler.config.settings.config_data import read_config_data
from scheduler.config.settings.load import load_config
from scheduler.config.settings.runners import DEFAULT_MODEL
from scheduler.model.settings import Settings

SECTIONS = {"agent": ("agents", "Agent"), "cron": ("cron", "Job")}
ALWAYS_SECRET = ("env", "url", "headers", "value")


class EffectiveValue(NamedTuple):
    """One value: its key inside the entry, its text with secrets masked, and its origin."""

    key: str
    value: str
    origin: str


def list_effective_values(path: Path, environ: Mapping[str, str], name: str) -> list[EffectiveValue]:
    """Every value of `name` (or agent/NAME, cron/NAME). Raises ConfigError for an invalid config, and LookupError, whose text
    says what to write, for a name that does not exist or is ambiguous."""
    settings = load_config(path, environ, resolve_secrets=False).settings
    kind, name = _find_entry(name, settings)
    diagnostics = Diagnostics(str(path))
    source = read_config_data(path, environ, diagnostics)
    section, model = SECTIONS[kind]
    merge, defaults = (inheritance.merge_agent, source.agent) if kind == "agent" else (inheritance.merge_job, source.job)
    entry = merge(defaults, source.root[section][name] or MarkedMap())
    worked_out = _computed_agent_values(settings, name, entry) if kind == "agent" else _computed_job_values(settings, name)
    definitions = config_schema()["$defs"]
    origin = _Origins(path.name, diagnostics.default_paths)
    return list(_iterate_values(definitions[model], definitions, entry, "", worked_out, origin))


def _find_entry(name: str, settings: Settings) -> tuple[str, str]:
    kind, slash, bare = name.partition("/")
    known = {"agent": settings.heartbeats, "cron": settings.jobs}
    if slash and kind in known and bare in known[kind]:
        return kind, bare
    found = [kind for kind, names in known.items() if name in names]
    if len(found) == 1:
        return found[0], name
    if found:
        raise LookupError(f"{name} is both an agent and a job; write agent/{name} or cron/{name}")
    raise LookupError(f"{name} is neither an agent nor a job{did_you_mean(name, [*settings.heartbeats, *settings.jobs])}")


class _Origins:
    def __init__(self, file: str, homes: Mapping[tuple[int, int], str]) -> None:
        self._file = file
        self._homes = homes

    def describe_origin(self, node: MarkedMap, key: str) -> str:
        place = node.marks[key][0]
        if isinstance(place, ExternalPosition):
            return f"environment {place.variable}"
        home = self._homes.get((place.line, place.column))
        return f"{home} {self._file}:{place.line + 1}" if home else f"{self._file}:{place.line + 1}"


def _iterate_values(
    model: Mapping[str, Any],
    models: Mapping[str, Any],
    written: Any,
    prefix: str,
    worked_out: Mapping[str, str],
    origins: _Origins,
) -> Iterator[EffectiveValue]:
    written = written if isinstance(written, MarkedMap) else MarkedMap()
    for key, form in model["properties"].items():
        path = f"{prefix}{key}"
        if inner := nested_model(form, models, written.get(key)):
            yield from _iterate_values(inner, models, written.get(key), f"{path}.", worked_out, origins)
        elif key in written and key in ALWAYS_SECRET:
            yield EffectiveValue(path, _mask_secrets(written[key]), origins.describe_origin(written, key))
        elif key in written:
            yield EffectiveValue(path, format_value(written[key]), origins.describe_origin(written, key))
        else:
            yield EffectiveValue(path, worked_out.get(path) or format_value(form.get("default")), "built in")


def nested_model(form: Mapping[str, Any], models: Mapping[str, Any], value: Any) -> Any:
    """The model of a key whose value is a map of keys, always or in this file."""
    is_there = isinstance(value, MarkedMap) or (value is None and form.get("default") == {})
    if "x-form" in form and not is_there:
        return None
    if "discriminator" in form:
        kind = (value or form["default"])["kind"]
        return models[form["discriminator"]["mapping"][kind].rpartition("/")[2]]
    reference = form.get("$ref") or next((part["$ref"] for part in form.get("anyOf", ()) if "$ref" in part), None)
    return models[reference.rpartition("/")[2]] if reference else None


def _computed_agent_values(settings: Settings, name: str, entry: MarkedMap) -> dict[str, str]:
    """The values of an agent's keys that are not set and have computed defaults. `entry` are its keys with defaults merged."""
    beat = settings.heartbeats[name]
    provider = beat.runner.provider if isinstance(beat.runner, ModelRunner) else None
    kind = (entry.get("runner") or {"kind": "anthropic"})["kind"]
    return {
        "runner.kind": "anthropic",
        "runner.provider": kind,
        "runner.tools": "none",
        "heartbeat.provider": provider.name if provider else "none",
        "heartbeat.decide.provider": beat.decide.runner.provider.name if beat.decide else "none",
        "heartbeat.precheck.timeout": format_duration(beat.precheck.timeout) if beat.precheck else "none",
        "heartbeat.precheck.unchanged.max_age": "none",
        "heartbeat.answer": beat.answer,
        "heartbeat.conditions.remind_critical": format_duration(beat.remind_critical),
        "workspace": str(beat.workspace),
        "heartbeat.timezone": beat.zone.key,
        "heartbeat.misfire.grace": format_duration(beat.grace),
        "heartbeat.model": beat.model or "none",
        "heartbeat.active_hours.timezone": beat.zone.key,
        "heartbeat.deliver": format_value(list(beat.deliver)),
        "heartbeat.on_failure.deliver": format_value(list(beat.on_failure_deliver or beat.deliver)),
        "heartbeat.prompt": "built in",
        "heartbeat.interval": "none",
        "heartbeat.stagger": "0" if beat.schedule else "10%",
        "model": DEFAULT_MODEL if provider and provider.kind == "anthropic" else "none",
    }


def _computed_job_values(settings: Settings, name: str) -> dict[str, str]:
    """The same for a job."""
    job = settings.jobs[name]
    zone = job.schedule.zone if job.schedule else settings.zone
    agent = settings.job_agents.get(name)
    return {
        "timezone": zone.key,
        "workdir": str(job.workdir),
        "misfire.grace": format_duration(job.grace),
        "model": (agent and agent.model) or "none",
        "precheck.timeout": format_duration(agent.precheck.timeout) if agent and agent.precheck else "none",
        "precheck.unchanged.max_age": "none",
        "on_failure.deliver": format_value(list(job.on_failure_deliver or job.deliver)),
    }


def _mask_secrets(value: Any) -> str:
    return (
        f"{{{', '.join(f'{marked_yaml.printable_key(key)}: {MASK}' for key in value)}}}" if isinstance(value, MarkedMap) else MASK
    )


def format_value(value: Any) -> str:
    """A value of the config as one printable line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        shown = {key: _mask_secrets(inner) if key in ALWAYS_SECRET else format_value(inner) for key, inner in value.items()}
        return f"{{{', '.join(f'{marked_yaml.printable_key(key)}: {inner}' for key, inner in shown.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    text = str(value)
    return text if text.isprintable() and text else ascii(text)
