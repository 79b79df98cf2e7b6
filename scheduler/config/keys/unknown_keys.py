"""Keys that a map may not hold: which key was meant, or in which map this one belongs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

from scheduler.config.file.marked_yaml import Map, shown_key
from scheduler.config.file.message_parts import closest
from scheduler.config.file.remedies import Remedy, Wrong, as_yaml, either
from scheduler.config.keys import models
from scheduler.config.keys.models import Part

Form = Literal["map", "named", "list"]

# Words of other systems, by ours. Those that differ from ours in capitals, - or _ alone need not be here.
_SHARED = {"timezone": "tz zone timezone_name", "enabled": "enable"}
_BOTH = {
    **_SHARED,
    "deliver": "target targets notify notify_to to channel channels delivery deliver_to send_to notifications output alert_to",
    "timeout": "time_limit max_time max_runtime deadline timeout_duration",
    "retries": "retry max_retries max_attempts retry_count attempts",
    "stagger": "jitter splay spread random_delay randomized_delay_sec",
    "on_failure": "on_fail failure failure_notice alerts onerror",
    "skip_on": "except exclude skip holidays not_on blackout",
    "only_on": "only on_days",
    "budget": "cost max_cost spend max_spend spending cost_limit",
}
_WORDS: dict[type[Part], dict[str, str]] = {
    models.Config: {
        "timezone": "tz zone",
        "state": "db database state_file data storage sqlite",
        "env_file": "env dotenv environment",
        "server": "http api web webserver",
        "providers": "llm llms models apis",
        "channels": "notifications notifiers targets notify alerts destinations transports",
        "deadman": "healthcheck healthchecks watchdog ping heartbeat_url",
        "calendars": "calendar holidays",
        "history": "retention logs runs",
        "agents": "heartbeats bots assistants",
        "cron": "jobs tasks crons crontab schedules cronjobs cron_jobs scheduled",
        "defaults": "default_settings global globals common",
        "prices": "pricing costs",
    },
    models.Defaults: {"heartbeat": "heartbeats beat", "agent": "agents", "cron": "job jobs"},
    models.Agent: {
        "workspace": "cwd dir directory folder path workdir working_directory working_dir root home",
        "model": "llm model_name model_id",
        "context": "files context_files memory_files include",
        "runner": "type backend driver engine executor",
        "heartbeat": "beat hb",
    },
    models.Heartbeat: {
        **_BOTH,
        "interval": "every period frequency freq cadence each repeat",
        "schedule": "cron cron_expression expression expr crontab at when cron_schedule",
        "active_hours": "hours window windows active active_window working_hours business_hours time_window",
        "checklist": "file checklist_file heartbeat_file todo tasks list path",
        "prompt": "message instructions text system_prompt question",
        "light_context": "light lightweight",
        "isolated_session": "isolated isolate",
        "model": "llm model_name model_id",
        "provider": "provider_id",
        "max_output_tokens": "max_tokens output_tokens",
        "max_input_tokens": "max_prompt_tokens input_tokens max_context_tokens",
        "backoff_on_failure": "backoff adaptive exponential_backoff",
        "dedup": "dedupe deduplicate deduplication",
        "decide": "decision gate",
        "precheck": "check condition only_if guard",
        "misfire": "misfires catch_up",
        "ack_max_chars": "ack_chars",
        "show_ok": "show_heartbeat_ok",
    },
    models.Window: {
        "start": "from open opens begin begins starts after start_time since",
        "end": "to until till close closes ends before end_time stop",
        "timezone": "tz zone",
        "days": "day weekdays dow days_of_week weekday on",
    },
    models.Job: {
        **_BOTH,
        "every": "interval period frequency freq each repeat",
        "schedule": "cron cron_expression expression expr crontab when cron_schedule spec",
        "at": "once run_at date datetime time on_date",
        "command": "cmd run script exec shell_command program execute",
        "workdir": "cwd dir directory folder working_directory working_dir chdir workspace path",
        "env": "environment env_vars vars variables environ",
        "prompt": "message question task instructions ask",
        "wake_heartbeat": "wake wakes heartbeat wake_agent wake_up",
        "wake_text": "wake_message",
        "stdin": "input",
        "misfire": "misfires catch_up catchup",
        "model": "llm",
        "rerun_after_crash": "rerun restart_after_crash",
    },
    models.JobMisfire: {"grace": "grace_time grace_period misfire_grace_time max_delay", "policy": "catch_up strategy mode"},
    models.HeartbeatMisfire: {"grace": "grace_time grace_period misfire_grace_time max_delay"},
    models.ModelRunner: {"kind": "type", "provider": "provider_id api"},
    models.CommandRunner: {"kind": "type", "argv": "command cmd args program exec", "env": "environment env_vars vars"},
    models.HttpRunner: {"kind": "type", "url": "uri endpoint address webhook", "headers": "header"},
    models.PythonRunner: {"kind": "type", "call": "callable function func entrypoint entry_point"},
    models.Decide: {"model": "llm", "provider": "provider_id"},
    models.Precheck: {"command": "cmd run script exec", "on_error": "on_fail on_failure", "unchanged": "on_unchanged same"},
    models.Budget: {
        "usd_per_day": "usd daily daily_usd usd_daily max_usd max_usd_per_day per_day max_cost cost dollars",
        "tokens_per_day": "tokens daily_tokens max_tokens",
        "runs_per_day": "runs max_runs daily_runs calls",
        "usd_per_run": "per_run max_usd_per_run",
    },
    models.OnFailure: {
        "after": "threshold count failures consecutive",
        "remind": "repeat every reminder repeat_interval remind_every",
        "deliver": "notify target targets to channel channels",
    },
    models.Dedup: {"window": "ttl period for hours", "normalize": "normalise mode"},
    models.Server: {"listen": "bind address addr host", "hosts": "allowed_hosts host_names", "tokens": "token auth keys"},
    models.Token: {"value": "token secret key", "may": "scopes scope permissions rights allow can", "agents": "agent only"},
    models.Limits: {
        "concurrency": "max_concurrency workers parallel max_parallel parallelism threads",
        "min_interval": "minimum_interval",
        "shutdown_grace": "shutdown_timeout grace",
        "budget": "limit cost spend",
    },
    models.Provider: {
        "api_key": "key token secret",
        "base_url": "url endpoint api_base api_url host address",
        "kind": "type api",
    },
    models.Price: {"input": "prompt in", "output": "completion out", "cache_read": "cached", "cache_write": "cache"},
    models.Channel: {"kind": "type", "url": "uri address webhook webhook_url endpoint", "argv": "command cmd args"},
    models.Deadman: {"url": "ping_url endpoint", "every": "interval period"},
    models.Calendar: {"dates": "date", "days": "weekdays weekday day"},
    models.History: {"keep": "days retention max_age age keep_for", "runs": "max rows max_runs max_rows count limit entries"},
}  # fmt: skip
_WORDS[models.JobOnFailure] = _WORDS[models.OnFailure]
_WORDS[models.DayBudget] = {ours: words for ours, words in _WORDS[models.Budget].items() if ours in models.DayBudget.model_fields}
_UNIT = re.compile(r"(?P<base>.+?)_(?P<unit>seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class Home:
    """A map that may hold a key: the steps to it from the top of the file, and its model."""

    steps: tuple[str, ...]
    model: type[Part]


@lru_cache(maxsize=256)
def inner(model: type[Part]) -> dict[str, tuple[Form, tuple[type[Part], ...]]]:
    """The keys of a model that hold maps of keys: whether one, several by name or a list, and of which models."""
    found: dict[str, tuple[Form, tuple[type[Part], ...]]] = {}
    for key, field in model.model_fields.items():
        if parts := tuple(_parts(field.annotation)):
            found[key] = (_form(field.annotation), parts)
    return found


@lru_cache(maxsize=256)
def names(model: type[Part]) -> frozenset[str]:
    """The keys of a model."""
    return frozenset(model.model_fields)


def chosen(models_there: tuple[type[Part], ...], value: object) -> type[Part] | None:
    """Which of several models a map is of, by its `kind`; None where that does not say it."""
    if len(models_there) == 1:
        return models_there[0]
    kind = value.get("kind") if isinstance(value, Map) else None
    of = {word: part for part in models_there for word in get_args(part.model_fields["kind"].annotation)}
    close = (kind,) if kind in of else closest(kind, of) if isinstance(kind, str) else ()
    return of[close[0]] if len(close) == 1 else None


def renamed(key: str, model: type[Part], value: object) -> Remedy | None:
    """The key of this model that another system's word, or another spelling, stands for; with its value where that changes."""
    ours = _ours(key, model)
    if ours and not _fits(value, model, ours):
        return None
    if ours:
        return Remedy(key=ours, means=True)
    if key.lower() == "disabled" and isinstance(value, bool) and "enabled" in names(model):
        return Remedy(key="enabled", value=not value, means=True)
    found = _UNIT.fullmatch(_folded(key, keep="_"))
    base = _ours(found["base"], model) if found else None
    if found and base and base in _spans(model):
        number = value if type(value) is int and value > 0 else None
        text = as_yaml(value) if number is None else f"{number}{found['unit'][0]}"
        return Remedy(key=base, value=text if number else None, means=True)
    return None


def unknown_key(key: str, model: type[Part], value: object = None) -> Wrong:
    """What is said of a key that a map of this model may not hold, wherever the map is."""
    if remedy := renamed(key, model, value):
        return _write(remedy)
    if close := closest(key, names(model)):
        return _did_you_mean(close)
    if homes := anywhere(key):
        return Wrong("unknown key", words=f"{key} belongs under {either(homes)}")
    return Wrong("unknown key", words=f"{listed(model)}")


def listed(model: type[Part]) -> str:
    """The keys that a small map may hold."""
    known = tuple(model.model_fields)
    return f"write {either(known)}" if len(known) <= 6 else ""


def _write(remedy: Remedy) -> Wrong:
    value = "" if remedy.value is None else f" {as_yaml(remedy.value)}"
    return Wrong("unknown key", remedy, words=f"write {remedy.key}:{value}")


def _did_you_mean(close: tuple[str, ...]) -> Wrong:
    remedies = (Remedy(key=other, means=len(close) == 1) for other in close)
    return Wrong("unknown key", *remedies, words=f"did you mean {either(close)}?")


def misplaced(key: str, value: object, steps: tuple[str, ...], root: Map) -> Wrong:
    """What is said of a key that the map at `steps` may not hold; the map is in the file at `root`."""
    model = model_at(steps, root)
    if model is None:
        return Wrong("unknown key")
    if remedy := renamed(key, model, value):
        if remedy.key in _map_at(root, steps):
            return _there_already(f"is written {remedy.key} here")
        return _write(remedy)
    close = closest(key, names(model))
    if len(close) == 1 and _fits(value, model, close[0]):
        if close[0] in _map_at(root, steps):
            return Wrong("unknown key", words=f"{close[0]} is there already")
        return _did_you_mean(close)
    if kinds := _kinds_with(key, steps, root):
        return Wrong("unknown key here", words=f"{key} is for kind: {either(kinds)}")
    if belongs := _belongs(key, value, steps, root):
        return belongs
    if close:
        return _did_you_mean(tuple(other for other in close if other not in _map_at(root, steps)) or close)
    return unknown_key(key, model, value)


def _kinds_with(key: str, steps: tuple[str, ...], root: Map) -> tuple[str, ...]:
    """The other kinds of the map at `steps` that have this key."""
    above = model_at(steps[:-1], root) if steps else None
    _, parts = inner(above).get(steps[-1], ("map", ())) if above else ("map", ())
    others = [part for part in parts if len(parts) > 1 and key in names(part)]
    return tuple(kind for part in others for kind in get_args(part.model_fields["kind"].annotation))


def can_join(value: object, there: object) -> bool:
    """Whether a map can be put into one that is there already."""
    return isinstance(value, Map) and isinstance(there, Map) and not value.keys() & there.keys()


def _there_already(words: str) -> Wrong:
    return Wrong("unknown key", Remedy(remove=True), words=f"{words}, where it is set already; remove this one")


def _fits(value: object, model: type[Part], key: str) -> bool:
    """Whether a misspelt key has a value of the sort that the right one has: a map or none."""
    return value is None or not isinstance(value, Map) or key in inner(model) or key in ("env", "headers")


def _belongs(key: str, value: object, steps: tuple[str, ...], root: Map) -> Wrong | None:
    """The map that a known key belongs in: below the one where it is, else beside or above that, else elsewhere in the file."""
    if steps and key in inner(models.Config) and isinstance(value, Map):
        if key in root:
            return _there_already(f"{key} belongs at the top of the file")
        return Wrong("unknown key here", Remedy(under=(), means=True), words="it belongs at the top of the file")
    for up in range(len(steps), -1, -1):
        homes = [
            home
            for home in _around(steps[:up], root)
            if key in names(home.model) and home.steps != steps and _fits(value, home.model, key)
        ]
        if not homes and up == len(steps) and up:
            homes = [home for home in _below(steps, root) if (name := _ours(key, home.model)) and _fits(value, home.model, name)]
        least = min((len(home.steps) for home in homes), default=0)
        nearest = tuple(home for home in homes if len(home.steps) == least)
        if not nearest:
            continue
        paths = tuple(dotted(home.steps) for home in nearest)
        ours = [_ours(key, home.model) or key for home in nearest]
        there = _map_at(root, nearest[0].steps)
        if len(nearest) == 1 and ours[0] in there and not can_join(value, there[ours[0]]):
            return _there_already(f"{ours[0]} belongs under {paths[0]}")
        remedies = (
            Remedy(under=home.steps, key=None if name == key else name, means=len(nearest) == 1)
            for home, name in zip(nearest, ours, strict=True)
        )
        it = f"{ours[0]}, as it is called here," if ours[0] != key else "it"
        return Wrong("unknown key here", *remedies, words=f"{it} belongs under {either(paths)}")
    if not (patterns := anywhere(key)):
        return None
    default = _default_home(key) if len(steps) == 0 and len(patterns) == 1 else None
    if default and key not in _map_at(root, default):
        words = f"it belongs under {patterns[0]}, or under {dotted(default)} for all"
        return Wrong("unknown key here", Remedy(under=default, means=True), words=words)
    return Wrong("unknown key here", words=f"it belongs under {either(patterns)}")


def _default_home(key: str) -> tuple[str, ...] | None:
    """Where `defaults` takes a key that agents, heartbeats or jobs have."""
    of = {"heartbeat": models.Heartbeat, "agent": models.Agent, "cron": models.Job}
    found = [("defaults", section) for section, model in of.items() if key in names(model)]
    return found[0] if len(found) == 1 else None


def _below(steps: tuple[str, ...], root: Map) -> Iterator[Home]:
    """The maps inside the one at `steps` that a key could be put in: those that are there, or may be left out."""
    model = model_at(steps, root)
    held = _map_at(root, steps)
    if model is None:
        return
    for key, (form, parts) in inner(model).items():
        if model is models.Config and key == "defaults":
            continue
        part = chosen(parts, held.get(key)) if form == "map" or (isinstance(held.get(key), Map) and form == "list") else None
        if part is None or (not isinstance(held.get(key), Map) and (held.get(key) is not None or _needs(part))):
            continue
        yield Home((*steps, key), part)
        yield from _below((*steps, key), root)


def _around(steps: tuple[str, ...], root: Map) -> Iterator[Home]:
    """The map at `steps`, and those inside it."""
    if steps and (model := model_at(steps, root)):
        yield Home(steps, model)
    yield from _below(steps, root)


def _needs(model: type[Part]) -> bool:
    return any(field.is_required() for field in model.model_fields.values())


@lru_cache(maxsize=256)
def anywhere(key: str) -> tuple[str, ...]:
    """The paths of the maps that may hold a key, the least deep of each section."""
    found: dict[str, str] = {}
    for path, model in _all_maps():
        if key in names(model):
            found.setdefault(path.split(".")[0], path)
    return tuple(found.values())


@lru_cache(maxsize=1)
def _all_maps() -> tuple[tuple[str, type[Part]], ...]:
    """Every map of keys below the top, by its path as documentation writes it, the least deep first."""
    found: list[tuple[str, type[Part]]] = []
    level: list[tuple[str, type[Part]]] = [("", models.Config)]
    while level:
        below = []
        for path, model in level:
            for key, (form, parts) in inner(model).items():
                if model is models.Config and key == "defaults":
                    continue
                inside = f"{path}.{key}".removeprefix(".") + (".NAME" if form == "named" else "")
                below += [(inside, part) for part in parts]
        found += below
        level = below
    return tuple(found)


def model_at(steps: tuple[str, ...], root: Map) -> type[Part] | None:
    """The model of the map at `steps` in the file."""
    model: type[Part] = models.Config
    node: Any = root
    rest = list(steps)
    while rest:
        key = rest.pop(0)
        node = node.get(key) if isinstance(node, Map) else None
        if key not in inner(model):
            return None
        form, parts = inner(model)[key]
        if form == "named":
            if not rest:
                return None
            node = node.get(rest.pop(0)) if isinstance(node, Map) else None
        elif isinstance(node, list):
            node = node[int(rest.pop(0))] if rest else None
        found = chosen(parts, node)
        if found is None:
            return None
        model = found
    return model


def _map_at(root: Map, steps: tuple[str, ...]) -> Map:
    node: Any = root
    for step in steps:
        node = node.get(step) if isinstance(node, Map) else node[int(step)] if isinstance(node, list) else None
    return node if isinstance(node, Map) else Map()


def dotted(steps: tuple[str, ...]) -> str:
    return ".".join(map(shown_key, steps))


def _ours(key: str, model: type[Part]) -> str | None:
    folded = _folded(key)
    if key in names(model):
        return key
    return _words(model).get(folded)


@lru_cache(maxsize=256)
def _words(model: type[Part]) -> dict[str, str]:
    """Our keys by their spelling without _ and -, and by the words of others."""
    words = {
        _folded(word): ours for ours, theirs in _WORDS.get(model, {}).items() if ours in names(model) for word in theirs.split()
    }
    return words | {_folded(key): key for key in model.model_fields}


@lru_cache(maxsize=256)
def _spans(model: type[Part]) -> frozenset[str]:
    """The keys whose values are lengths of time."""
    forms = {key: repr(field.metadata) for key, field in model.model_fields.items()}
    return frozenset(key for key, form in forms.items() if "called='duration" in form)


def _folded(key: str, keep: str = "") -> str:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().replace("-", "_").replace(" ", "_")
    return snake if keep else snake.replace("_", "")


def _form(annotation: Any) -> Form:
    if get_origin(annotation) is dict:
        return "named"
    return "list" if get_origin(annotation) is list or any(get_origin(part) is list for part in get_args(annotation)) else "map"


def _parts(annotation: Any) -> list[type[Part]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return [annotation]
    return [part for inside in get_args(annotation) for part in _parts(inside)]
