"""Writes attempts and their results as JSON, for a queue between machines, and reads them back.

A payload names the agent or job and its secrets, and never contains a secret: the worker has its own copy of the config. Both
sides accept payloads of the neighbouring schemas. Unknown fields are ignored, and missing ones have their defaults.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from datetime import date, timedelta
from enum import Enum
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from pydantic import TypeAdapter, ValidationError

from cron.job import Job
from cron.job_schedules import CronSchedule
from heartbeat.spec import Agent
from heartbeatd.secret import MissingSecret, Secret
from scheduler import __version__
from scheduler.extras.cluster.job_queue import NewAttempt
from scheduler.model.entry import Claim, Entry, Facts, OpenRun
from scheduler.model.outcome import AttemptResult, Key, Kind
from scheduler.work.executor import Done, Interrupted, NeverBegun, NotTaken

T = TypeVar("T")

SCHEMA = 5  # of payloads; the neighbouring schemas are accepted too
FINGERPRINTS_KEPT = 10_000
LARGEST_NUMBER = 10**15  # above each id and count of a payload; sums of many fit into a column


class InvalidPayload(Exception):
    """A payload cannot be read. The message is one line that gives the reason and what to do."""


# A payload that no heartbeatd has written raises one of these.
UNREADABLE = (InvalidPayload, LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


class AttemptRefused(Exception):
    """This worker must not execute an attempt. The message is one line that gives the reason and what to do.

    `may_change`: another version of the config file would permit it.
    """

    def __init__(self, message: str, *, may_change: bool) -> None:
        super().__init__(message)
        self.may_change = may_change


@dataclass(frozen=True, slots=True)
class _End:
    """How a task has ended."""

    result: AttemptResult | None = None
    interrupted: str | None = None
    in_order: bool = False  # the worker was stopped
    never_begun: bool = False
    not_taken: str | None = None
    error: str | None = None
    errno: int | None = None


@dataclass(frozen=True, slots=True)
class _ClaimValues:
    """A claim without its entry, which the worker has in its own config."""

    run: OpenRun
    facts: Facts = field(default_factory=Facts)


class ClaimCodec:
    """Reads and writes attempts and their results.

    `entries` returns the agents and jobs of this process's config, and `folder` is that of the config.
    """

    def __init__(self, entries: Callable[[], Mapping[Key, Entry]], folder: Path, host: str) -> None:
        self._entries = entries
        self._folder = folder
        self._host = host
        self._fingerprints: dict[int, tuple[Entry, str]] = {}

    def new_attempt(self, key: str, owner: str, task: Claim, server: str | None) -> NewAttempt:
        """A task as the queue takes it: its timeout includes the time in the queue."""
        entry = task.entry
        lock = lock_of_lane(entry.lane) if entry.lane is not None else entry.label
        return NewAttempt(key, owner, lock, self.write_task(task), entry.spec.timeout.total_seconds(), server, entry.queue)

    def write_task(self, task: Claim) -> str:
        """The payload of a task."""
        entry = task.entry
        claim = _write(_ClaimValues(replace(task.run, text=None, error=None), task.facts))
        return _dump({"kind": entry.kind.value, "name": entry.name, "settings": self._fingerprint(entry), "claim": claim})

    def read_task(self, payload: str) -> Claim:
        """The task in a payload. Raises AttemptRefused, or InvalidPayload if its schema differs by more than one."""
        data = _load(payload, "scheduler")
        kind, name = Kind(str(data["kind"])), str(data["name"])
        entry = self._entries().get((kind, name))
        label = kind.label_of(name)
        if entry is None:
            raise AttemptRefused(f"the config of {self._host} has no {label}; copy config.yaml there", may_change=True)
        if data.get("settings") != self._fingerprint(entry):
            raise AttemptRefused(
                f"the config of {self._host} has other settings for {label}; copy config.yaml there", may_change=True
            )
        if problem := missing_secret(entry):
            raise AttemptRefused(f"{self._host} cannot run {label}: {problem}", may_change=False)
        return _claim_from_json(data, entry)

    def read_leftover(self, payload: str) -> Claim | None:
        """The task that an earlier process submitted, with the entry as it is now. None if it cannot be made any more."""
        try:
            data = _load(payload, "scheduler")
            entry = self._entries().get((Kind(str(data["kind"])), str(data["name"])))
            return None if entry is None else _claim_from_json(data, entry)
        except UNREADABLE:
            return None

    def write_done(self, done: Done[Claim | None, AttemptResult]) -> str:
        """The payload of a task that has ended."""
        error, number = done.exception, getattr(done.exception, "errno", None)
        if error is None:
            end = _End(done.result)
        elif isinstance(error, Interrupted):
            end = _End(interrupted=str(error), in_order=error.was_stopped)
        elif isinstance(error, NeverBegun):
            end = _End(never_begun=True, not_taken=str(error) if isinstance(error, NotTaken) else None)
        else:
            text = str(error) if isinstance(error, RuntimeError | OSError) else f"{type(error).__name__}: {error}"
            end = _End(error=text, errno=number if isinstance(number, int) else None)
        return _dump({"result": None, **_write(end)})  # the last version needs it

    def read_done(self, task: Claim, payload: str) -> Done[Claim, AttemptResult]:
        """How a task has ended. A payload that cannot be read is its error."""
        try:
            return Done(task, *_read_end(payload))
        except UNREADABLE as error:
            return Done(task, None, RuntimeError(f"the result of a worker cannot be read: {error}"))

    def _fingerprint(self, entry: Entry) -> str:
        if id(entry) not in self._fingerprints:
            if len(self._fingerprints) >= FINGERPRINTS_KEPT:
                self._fingerprints.clear()
            self._fingerprints[id(entry)] = (entry, settings_fingerprint(entry, self._folder))  # no other entry gets its id
        return self._fingerprints[id(entry)][1]


def _read_end(payload: str) -> tuple[AttemptResult | None, Exception | None]:
    """The result of a task, or the exception with which it has ended. Raises one of UNREADABLE."""
    end = _read(_End, _load(payload, "worker"))
    if end.interrupted is not None:
        return None, Interrupted(end.interrupted, was_stopped=end.in_order)
    if end.never_begun:
        return None, NotTaken(end.not_taken) if end.not_taken else NeverBegun()
    if end.error is not None:
        return None, OSError(end.errno, end.error) if end.errno else RuntimeError(end.error)
    if (result := end.result) is None:
        return None, None
    counts = [tokens for call in result.calls for tokens in (call.tokens, call.most) if tokens is not None]
    used = [number for tokens in counts for number in tokens.by_kind().values()]
    if any(number < 0 for number in (*used, *(call.cost_usd or 0 for call in result.calls))):
        raise ValueError("the usage of a call is negative")
    return replace(result, findings=()), None  # the scheduler decides what happens to each


def _claim_from_json(data: Mapping[str, object], entry: Entry) -> Claim:
    values = _read(_ClaimValues, data["claim"])
    return Claim(entry, values.run, values.facts)


def lock_of_lane(name: str) -> str:
    """The lock in the queue of all runs of this agent."""
    return f"agent/{name}"


def attempt_key(owner: str, run_id: int, fence: int) -> str:
    """The key of one attempt of a run."""
    return f"{owner}/{run_id}/{fence}"


def settings_fingerprint(entry: Entry, folder: Path) -> str:
    """A hash of all settings of an agent or a job, the same on all machines: without secrets, with paths relative to `folder`."""
    text = json.dumps(_canonical(entry, folder), sort_keys=True)
    return sha256(text.encode()).hexdigest()[:16]


def missing_secret(value: object) -> str | None:
    """Why a secret in these settings has no value on this machine; None if all have one."""
    if isinstance(value, MissingSecret):
        return value.problem
    parts: Iterable[object] = value if isinstance(value, tuple) else value.values() if isinstance(value, Mapping) else ()
    if is_dataclass(value):
        parts = [getattr(value, each.name) for each in fields(value)]
    return next((problem for part in parts if (problem := missing_secret(part))), None)


def _canonical(value: object, folder: Path) -> object:
    match value:
        case None | bool() | int() | float() | str():
            return value.value if isinstance(value, Enum) else value
        case Secret():
            return "secret"
        case Path():
            return str(value.relative_to(folder)) if value.is_relative_to(folder) else str(value)
        case ZoneInfo():
            return value.key
        case CronSchedule():
            return [value.text, value.zone.key]
        case timedelta():
            return value.total_seconds()
        case date():
            return value.isoformat()
        case Mapping():
            return {str(key): _canonical(each, folder) for key, each in value.items()}
        case Set():
            return sorted(str(_canonical(each, folder)) for each in value)
        case Sequence():
            return [_canonical(each, folder) for each in value]
    if is_dataclass(value):
        shown = {each.name: getattr(value, each.name) for each in fields(value) if each.compare}
        defaults = _defaults_of(type(value))  # type: ignore[arg-type]  # classes can be hashed
        if type(value) is Agent:  # of a job: workers of the version of 29 November have these two fields, without defaults
            del shown["max_input_tokens"]
            shown |= {"prompt_limit": value.prompt_limit, "context": list(value.context)}
        if type(value) is Job and value.previous == (value.name,):
            shown["previous"] = True  # as that version says it, which knows no other jobs here
        # A default is left out: another version may not have the key yet.
        return {name: _canonical(each, folder) for name, each in shown.items() if name not in defaults or each != defaults[name]}
    raise TypeError(f"settings of type {type(value).__name__} have no canonical form")


@cache
def _defaults_of(kind: Any) -> dict[str, object]:
    """The fields of a dataclass that have a default, with that."""
    plain = {each.name: each.default for each in fields(kind) if each.default is not MISSING}
    return plain | {each.name: each.default_factory() for each in fields(kind) if each.default_factory is not MISSING}


def _dump(data: Mapping[str, object]) -> str:
    # ASCII only: PostgreSQL stores neither NUL nor lone surrogates.
    return json.dumps({"schema": SCHEMA, "version": __version__, **data}, separators=(",", ":"))


def _load(payload: str, other: str) -> Mapping[str, object]:
    try:
        read_float = _read_number(float)
        data = json.loads(payload, parse_int=_read_number(int), parse_float=read_float, parse_constant=read_float)
        schema = int(data["schema"])
    except UNREADABLE:
        raise InvalidPayload(f"it is not a payload of a {other} of heartbeatd") from None
    if abs(schema - SCHEMA) > 1:
        older = f"heartbeatd {__version__}" if schema > SCHEMA else f"the {other}, heartbeatd {data.get('version', '?')},"
        raise InvalidPayload(f"the {other} writes schema {schema}, and this is schema {SCHEMA}; update {older} first")
    return typing.cast("Mapping[str, object]", data)


def _read_number(kind: type[int | float]) -> Callable[[str], int | float]:
    def read(text: str) -> int | float:
        number = kind(text)
        if not -LARGEST_NUMBER <= number <= LARGEST_NUMBER:  # nor is a NaN within any limits
            raise ValueError("a number is too large")
        return number

    return read


def _write(value: object) -> Mapping[str, object]:
    """The value as JSON, without the fields that have their default value."""
    kind: Any = type(value)
    return typing.cast("Mapping[str, object]", _adapter(kind).dump_python(value, mode="json", exclude_defaults=True))


def _read(kind: type[T], data: object) -> T:
    """The value of this type. Raises one of UNREADABLE."""
    text = json.dumps(data, ensure_ascii=False).encode(errors="replace")  # lone surrogates cannot be stored
    try:
        return typing.cast("T", _adapter(kind).validate_json(text, strict=True))  # type: ignore[arg-type]  # classes can be hashed
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidPayload(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
