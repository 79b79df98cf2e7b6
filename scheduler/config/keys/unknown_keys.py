"""Corrects unknown keys: finds the key that was meant, or the map where the key belongs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from scheduler.config.file.diagnostics import Diagnostics, Position
from scheduler.config.file.marked_yaml import MarkedList, MarkedMap, dotted_path
from scheduler.config.file.message_parts import find_closest
from scheduler.config.file.remedies import InvalidValue, Remedy, as_yaml, join_with_or
from scheduler.config.keys import models
from scheduler.config.keys.models import ConfigPart, kinds_of_model, models_in

Steps = tuple[str, ...]
MapShape = Literal["map", "named", "list"]

# Names of our keys in other systems. Spellings that differ only in capitals, - or _ are recognized without this table.
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
_OTHER_NAMES: dict[type[ConfigPart], dict[str, str]] = {
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
        "precheck": "check only_if guard",
        "misfire": "misfires catch_up",
        "ack_max_chars": "ack_chars",
        "show_ok": "show_heartbeat_ok",
        "show_resolved": "send_resolved notify_resolved resolved report_resolved",
        "answer": "format answer_format output_format response_format answers structured_output",
        "conditions": "alert_state issues incidents",
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
    models.ModelRunner: {"kind": "type", "provider": "provider_id api", "tools": "tool mcp mcp_servers"},
    models.Tools: {"mcp": "servers mcp_servers", "max_turns": "turns max_steps max_iterations limit"},
    models.McpServer: {
        "name": "id label",
        "allow": "tools allowed allow_list allowlist allowed_tools include",
        "url": "uri endpoint address",
        "headers": "header",
        "command": "argv cmd args program exec",
        "env": "environment env_vars vars",
        "read_only": "readonly",
        "max_result": "max_bytes max_result_bytes max_size limit",
    },
    models.CommandRunner: {"kind": "type", "argv": "command cmd args program exec", "env": "environment env_vars vars"},
    models.HttpRunner: {"kind": "type", "url": "uri endpoint address webhook", "headers": "header"},
    models.PythonRunner: {"kind": "type", "call": "callable function func entrypoint entry_point"},
    models.Decide: {"model": "llm", "provider": "provider_id"},
    models.Precheck: {
        "command": "cmd run script exec",
        "on_error": "on_fail on_failure",
        "unchanged": "on_unchanged same if_unchanged",
        "confirm": "confirmations confirm_quiet recheck",
    },
    models.Unchanged: {"skip": "enabled", "max_age": "at_least_every max_skip force_after refresh"},
    models.Conditions: {
        "remind": "repeat every reminder repeat_interval remind_every repeat_every renotify renotify_interval",
        "remind_critical": "critical repeat_critical critical_remind remind_crit",
        "clear_after": "resolve_after close_after resolved_after clear resolve_timeout auto_resolve",
    },
    models.Budget: {
        "usd_per_day": "usd daily daily_usd usd_daily max_usd max_usd_per_day per_day max_cost cost dollars",
        "tokens_per_day": "tokens daily_tokens max_tokens",
        "runs_per_day": "runs max_runs daily_runs calls",
        "usd_per_run": "per_run max_usd_per_run",
        "tokens_per_run": "max_tokens_per_run",
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
_OTHER_NAMES[models.JobOnFailure] = _OTHER_NAMES[models.OnFailure]
_OTHER_NAMES[models.DayBudget] = {
    ours: words for ours, words in _OTHER_NAMES[models.Budget].items() if ours in models.DayBudget.model_fields
}
_UNIT = re.compile(r"(?P<base>.+?)_(?P<unit>seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class MapLocation:
    """A map that may contain a key: the steps to it from the top of the file, and its model."""

    steps: Steps
    model: type[ConfigPart]


def correct_unknown_keys(root: MarkedMap, diagnostics: Diagnostics) -> None:
    """Report every unknown key, and move its value to the right key. Keys without a right place are removed.

    This is done before defaults are inherited, so that each misspelt key is one error, and no key that depends on it is missed.
    """
    while unknown := list(_find_unknown_keys(root, models.Config, ())):
        for node, steps, key in unknown:
            if key in node:  # otherwise it was corrected already in a shared map
                _correct_key(root, node, steps, key, diagnostics)


def _find_unknown_keys(node: MarkedMap, model: type[ConfigPart], steps: Steps) -> Iterator[tuple[MarkedMap, Steps, str]]:
    if not node.keys() <= key_names(model):
        top = model is models.Config
        yield from ((node, steps, key) for key in node if key not in key_names(model) and not (top and key.startswith("x-")))
    for key, (form, parts) in nested_models(model).items():
        below = node.get(key)
        if form == "named" and isinstance(below, MarkedMap):
            for name, held in below.items():
                if isinstance(held, MarkedMap) and (part := choose_model(parts, held)):
                    yield from _find_unknown_keys(held, part, (*steps, key, name))
        elif isinstance(below, MarkedMap) and (part := choose_model(parts, below)):
            yield from _find_unknown_keys(below, part, (*steps, key))
        elif form == "list" and isinstance(below, MarkedList):
            for index, held in enumerate(below):
                if isinstance(held, MarkedMap):
                    yield from _find_unknown_keys(held, parts[0], (*steps, key, f"{index}"))


def _correct_key(root: MarkedMap, node: MarkedMap, steps: Steps, key: str, diagnostics: Diagnostics) -> None:
    value, marks = node[key], node.marks[key]
    wrong = _without_useless_move(explain_misplaced_key(key, value, steps, root), key, value, root)
    diagnostics.add_error(marks[0], dotted_path([*_restore_indexes(steps), key]), wrong)
    del node[key]
    remedy = wrong.remedies[0] if wrong.remedies else Remedy()
    if not remedy.is_certain:
        if not remedy.remove:
            diagnostics.unknown_keys.setdefault(steps, marks[0])
        return
    home = node if remedy.under is None else _ensure_map(root, remedy.under, marks)
    right = remedy.key or key
    if right not in home:
        home[right] = value if remedy.value is None else remedy.value
        home.marks[right] = marks
    elif can_merge(value, home[right]):
        home[right].update(value)
        home[right].marks.update(value.marks)


def _without_useless_move(wrong: InvalidValue, key: str, value: object, root: MarkedMap) -> InvalidValue:
    """The same error without the advice to move a value that is invalid at the other place: the user may mean something else."""
    remedy = wrong.remedies[0] if wrong.remedies else Remedy()
    model = model_at(remedy.under, root) if remedy.is_certain and remedy.under else None
    name = remedy.key or key
    if model is None or isinstance(value, MarkedMap) or name not in key_names(model):
        return wrong
    field = model.model_fields[name]
    if not field.metadata:  # a map of its own keys, such as `heartbeat`
        return wrong
    try:
        of_key: Any = Annotated[(field.annotation, *field.metadata)]
        TypeAdapter(of_key).validate_python(value)
    except ValidationError as error:
        found = error.errors()[0]
        why = found["ctx"]["error"] if found["type"] == "value_error" else found["msg"]
        place = dotted_path(remedy.under or ())
        return InvalidValue("unknown key", advice=f"{place} has a key {name}, but this value does not fit there: {why}")
    return wrong


def find_unknown_key(root: MarkedMap) -> tuple[Steps, InvalidValue] | None:
    """The first unknown key with a value in a config, or in a part of one: the steps to it, and its error."""
    for node, steps, key in _find_unknown_keys(root, models.Config, ()):
        if node[key] is not None:
            return (*steps, key), explain_misplaced_key(key, node[key], steps, root)
    return None


def _ensure_map(root: MarkedMap, steps: Steps, marks: tuple[Position, Position]) -> MarkedMap:
    """The map at `steps`, created if missing."""
    node, place = root, marks[0]
    for step in steps:
        if not isinstance(node.get(step), MarkedMap):
            node[step] = MarkedMap()
            node.marks.setdefault(step, (place, place))
        place = node.marks[step][0]
        node = node[step]
    return node


def _restore_indexes(steps: Steps) -> list[str | int]:
    return [
        int(step) if step.isdigit() and index and steps[index - 1] in ("active_hours", "mcp") else step
        for index, step in enumerate(steps)
    ]


@lru_cache(maxsize=256)
def nested_models(model: type[ConfigPart]) -> dict[str, tuple[MapShape, tuple[type[ConfigPart], ...]]]:
    """The keys of a model that contain maps: one map, maps by name or a list of maps, and their models."""
    found: dict[str, tuple[MapShape, tuple[type[ConfigPart], ...]]] = {}
    for key, field in model.model_fields.items():
        if parts := tuple(models_in(field.annotation)):
            found[key] = (_map_shape(field.annotation), parts)
    return found


@lru_cache(maxsize=256)
def key_names(model: type[ConfigPart]) -> frozenset[str]:
    """The keys of a model."""
    return frozenset(model.model_fields)


def choose_model(models_there: tuple[type[ConfigPart], ...], value: object) -> type[ConfigPart] | None:
    """The model of a map, chosen by its `kind`; None if that is missing or unknown."""
    if len(models_there) == 1:
        return models_there[0]
    kind = value.get("kind") if isinstance(value, MarkedMap) else None
    of = {word: part for part in models_there for word in kinds_of_model(part)}
    close = (kind,) if kind in of else find_closest(kind, of) if isinstance(kind, str) else ()
    return of[close[0]] if len(close) == 1 else None


def find_renamed_key(key: str, model: type[ConfigPart], value: object) -> Remedy | None:
    """The key of this model for a name of another system or another spelling, with its value if that changes."""
    ours = _find_our_key(key, model)
    if ours and not _fits_key(value, model, ours):
        return None
    if ours:
        return Remedy(key=ours, is_certain=True)
    if key.lower() == "disabled" and isinstance(value, bool) and "enabled" in key_names(model):
        return Remedy(key="enabled", value=not value, is_certain=True)
    found = _UNIT.fullmatch(_fold_key(key, keep="_"))
    base = _find_our_key(found["base"], model) if found else None
    if found and base and base in _duration_keys(model):
        number = value if type(value) is int and value > 0 else None
        text = as_yaml(value) if number is None else f"{number}{found['unit'][0]}"
        return Remedy(key=base, value=text if number else None, is_certain=True)
    return None


def explain_unknown_key(key: str, model: type[ConfigPart], value: object = None) -> InvalidValue:
    """The error for an unknown key in a map of this model, independent of its position in the file."""
    if remedy := find_renamed_key(key, model, value):
        return _suggest_key(remedy)
    if close := find_closest(key, key_names(model)):
        return _suggest_spelling(close)
    if homes := paths_with_key(key):
        return InvalidValue("unknown key", advice=f"{key} belongs under {join_with_or(homes)}")
    return InvalidValue("unknown key", advice=f"{list_allowed_keys(model)}")


def list_allowed_keys(model: type[ConfigPart]) -> str:
    """The advice to write one of the keys of a small map; empty for a large one."""
    known = tuple(model.model_fields)
    return f"write {join_with_or(known)}" if len(known) <= 6 else ""


def _suggest_key(remedy: Remedy) -> InvalidValue:
    value = "" if remedy.value is None else f" {as_yaml(remedy.value)}"
    return InvalidValue("unknown key", remedy, advice=f"write {remedy.key}:{value}")


def _suggest_spelling(close: tuple[str, ...]) -> InvalidValue:
    remedies = (Remedy(key=other, is_certain=len(close) == 1) for other in close)
    return InvalidValue("unknown key", *remedies, advice=f"did you mean {join_with_or(close)}?")


def explain_misplaced_key(key: str, value: object, steps: Steps, root: MarkedMap) -> InvalidValue:
    """The error for an unknown key in the map at `steps` of the file `root`."""
    model = model_at(steps, root)
    if model is None:
        return InvalidValue("unknown key")
    if remedy := find_renamed_key(key, model, value):
        if remedy.key in _map_at(root, steps):
            return _already_set(f"is written {remedy.key} here")
        return _suggest_key(remedy)
    if model is models.Precheck and key == "max_age" and isinstance(_map_at(root, steps).get("unchanged"), str):
        right = {"skip": True, "max_age": value}
        return InvalidValue("unknown key here", Remedy(key="unchanged", value=right), advice=f"write unchanged: {as_yaml(right)}")
    close = find_closest(key, key_names(model))
    if len(close) == 1 and _fits_key(value, model, close[0]):
        if close[0] in _map_at(root, steps):
            return InvalidValue("unknown key", advice=f"{close[0]} is there already")
        return _suggest_spelling(close)
    if kinds := _kinds_with_key(key, steps, root):
        return InvalidValue("unknown key here", advice=f"{key} is for kind: {join_with_or(kinds)}")
    if belongs := _suggest_location(key, value, steps, root):
        return belongs
    if close:
        return _suggest_spelling(tuple(other for other in close if other not in _map_at(root, steps)) or close)
    return explain_unknown_key(key, model, value)


def _kinds_with_key(key: str, steps: Steps, root: MarkedMap) -> tuple[str, ...]:
    """The other kinds of the map at `steps` that have this key."""
    above = model_at(steps[:-1], root) if steps else None
    _, parts = nested_models(above).get(steps[-1], ("map", ())) if above else ("map", ())
    others = [part for part in parts if len(parts) > 1 and key in key_names(part)]
    return tuple(kind for part in others for kind in kinds_of_model(part))


def can_merge(value: object, there: object) -> bool:
    """Whether a map can be merged into a map that exists already."""
    return isinstance(value, MarkedMap) and isinstance(there, MarkedMap) and not value.keys() & there.keys()


def _already_set(words: str) -> InvalidValue:
    return InvalidValue("unknown key", Remedy(remove=True), advice=f"{words}, where it is set already; remove this one")


def _fits_key(value: object, model: type[ConfigPart], key: str) -> bool:
    """Whether the value of a misspelt key suits the right key: only some keys take maps."""
    return value is None or not isinstance(value, MarkedMap) or key in nested_models(model) or key in ("env", "headers")


def _suggest_location(key: str, value: object, steps: Steps, root: MarkedMap) -> InvalidValue | None:
    """The error for a known key in the wrong map. It suggests a map inside this one, else next to or above it, else elsewhere."""
    if steps and key in nested_models(models.Config) and isinstance(value, MarkedMap):
        if key in root:
            return _already_set(f"{key} belongs at the top of the file")
        return InvalidValue("unknown key here", Remedy(under=(), is_certain=True), advice="it belongs at the top of the file")
    for up in range(len(steps), -1, -1):
        homes = [
            home
            for home in _maps_around(steps[:up], root)
            if key in key_names(home.model) and home.steps != steps and _fits_key(value, home.model, key)
        ]
        if not homes and up == len(steps) and up:
            homes = [
                home
                for home in _maps_below(steps, root)
                if (name := _find_our_key(key, home.model)) and _fits_key(value, home.model, name)
            ]
        least = min((len(home.steps) for home in homes), default=0)
        nearest = tuple(home for home in homes if len(home.steps) == least)
        if not nearest:
            continue
        paths = tuple(dotted_path(home.steps) for home in nearest)
        ours = [_find_our_key(key, home.model) or key for home in nearest]
        there = _map_at(root, nearest[0].steps)
        if len(nearest) == 1 and ours[0] in there and not can_merge(value, there[ours[0]]):
            return _already_set(f"{ours[0]} belongs under {paths[0]}")
        remedies = (
            Remedy(under=home.steps, key=None if name == key else name, is_certain=len(nearest) == 1)
            for home, name in zip(nearest, ours, strict=True)
        )
        it = f"{ours[0]}, as it is called here," if ours[0] != key else "it"
        return InvalidValue("unknown key here", *remedies, advice=f"{it} belongs under {join_with_or(paths)}")
    if not (patterns := paths_with_key(key)):
        return None
    default = _default_location(key) if len(steps) == 0 and len(patterns) == 1 else None
    if default and key not in _map_at(root, default):
        words = f"it belongs under {patterns[0]}, or under {dotted_path(default)} for all"
        return InvalidValue("unknown key here", Remedy(under=default, is_certain=True), advice=words)
    return InvalidValue("unknown key here", advice=f"it belongs under {join_with_or(patterns)}")


def _default_location(key: str) -> tuple[str, ...] | None:
    """The section of `defaults` for a key of agents, heartbeats or jobs, if there is only one."""
    of = {"heartbeat": models.Heartbeat, "agent": models.Agent, "cron": models.Job}
    found = [("defaults", section) for section, model in of.items() if key in key_names(model)]
    return found[0] if len(found) == 1 else None


def _maps_below(steps: Steps, root: MarkedMap) -> Iterator[MapLocation]:
    """The maps inside the map at `steps` that exist, or that could be added with a single key."""
    model = model_at(steps, root)
    held = _map_at(root, steps)
    if model is None:
        return
    for key, (form, parts) in nested_models(model).items():
        if model is models.Config and key == "defaults":
            continue
        part = (
            choose_model(parts, held.get(key))
            if form == "map" or (isinstance(held.get(key), MarkedMap) and form == "list")
            else None
        )
        if part is None or (not isinstance(held.get(key), MarkedMap) and (held.get(key) is not None or _has_required_keys(part))):
            continue
        yield MapLocation((*steps, key), part)
        yield from _maps_below((*steps, key), root)


def _maps_around(steps: Steps, root: MarkedMap) -> Iterator[MapLocation]:
    """The map at `steps`, and those inside it."""
    if steps and (model := model_at(steps, root)):
        yield MapLocation(steps, model)
    yield from _maps_below(steps, root)


def _has_required_keys(model: type[ConfigPart]) -> bool:
    return any(field.is_required() for field in model.model_fields.values())


@lru_cache(maxsize=256)
def paths_with_key(key: str) -> tuple[str, ...]:
    """The paths of the maps that may contain a key, the shallowest of each section."""
    found: dict[str, str] = {}
    for path, model in _all_maps():
        if key in key_names(model):
            found.setdefault(path.split(".")[0], path)
    return tuple(found.values())


@lru_cache(maxsize=1)
def _all_maps() -> tuple[tuple[str, type[ConfigPart]], ...]:
    """Every map below the top level with its path as in the documentation, the shallowest first."""
    found: list[tuple[str, type[ConfigPart]]] = []
    level: list[tuple[str, type[ConfigPart]]] = [("", models.Config)]
    while level:
        below = []
        for path, model in level:
            for key, (form, parts) in nested_models(model).items():
                if model is models.Config and key == "defaults":
                    continue
                inside = f"{path}.{key}".removeprefix(".") + (".NAME" if form == "named" else "")
                below += [(inside, part) for part in parts]
        found += below
        level = below
    return tuple(found)


def model_at(steps: Steps, root: MarkedMap) -> type[ConfigPart] | None:
    """The model of the map at `steps` in the file."""
    model: type[ConfigPart] = models.Config
    node: Any = root
    rest = list(steps)
    while rest:
        key = rest.pop(0)
        node = node.get(key) if isinstance(node, MarkedMap) else None
        if key not in nested_models(model):
            return None
        form, parts = nested_models(model)[key]
        if form == "named":
            if not rest:
                return None
            node = node.get(rest.pop(0)) if isinstance(node, MarkedMap) else None
        elif isinstance(node, list):
            node = node[int(rest.pop(0))] if rest else None
        found = choose_model(parts, node)
        if found is None:
            return None
        model = found
    return model


def _map_at(root: MarkedMap, steps: Steps) -> MarkedMap:
    node: Any = root
    for step in steps:
        node = node.get(step) if isinstance(node, MarkedMap) else node[int(step)] if isinstance(node, list) else None
    return node if isinstance(node, MarkedMap) else MarkedMap()


def _find_our_key(key: str, model: type[ConfigPart]) -> str | None:
    folded = _fold_key(key)
    if key in key_names(model):
        return key
    return _known_spellings(model).get(folded)


@lru_cache(maxsize=256)
def _known_spellings(model: type[ConfigPart]) -> dict[str, str]:
    """Our keys by their spelling without _ and -, and by their names in other systems."""
    words = {
        _fold_key(word): ours
        for ours, theirs in _OTHER_NAMES.get(model, {}).items()
        if ours in key_names(model)
        for word in theirs.split()
    }
    return words | {_fold_key(key): key for key in model.model_fields}


@lru_cache(maxsize=256)
def _duration_keys(model: type[ConfigPart]) -> frozenset[str]:
    """The keys whose values are durations."""
    forms = {key: repr(field.metadata) for key, field in model.model_fields.items()}
    return frozenset(key for key, form in forms.items() if "label='duration" in form)


def _fold_key(key: str, keep: str = "") -> str:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().replace("-", "_").replace(" ", "_")
    return snake if keep else snake.replace("_", "")


def _map_shape(annotation: Any) -> MapShape:
    if get_origin(annotation) is dict:
        return "named"
    return "list" if get_origin(annotation) is list or any(get_origin(part) is list for part in get_args(annotation)) else "map"
