"""Writes attempts and their results as JSON, for a queue between machines, and reads them back.

A payload names the agent or job and its secrets, and never contains a secret: the worker has its own copy of the config. Both
sides accept payloads of the neighbouring schemas. Unknown fields are ignored, and missing ones have their defaults.
"""

from __future__ import annotations

import json
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from datetime import date, datetime, timedelta
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar
from zoneinfo import ZoneInfo

from cron.job_schedules import CronSchedule
from heartbeatd.secret import MissingSecret, Secret
from scheduler import __version__
from scheduler.model.entry import Claim, Entry, Key
from scheduler.model.outcome import SUCCESSES, UNSENT_CALL, AttemptResult, Failure, Kind, Outcome, Skip
from scheduler.work.executor import Done, Interrupted, NeverBegun, NotTaken

T = TypeVar("T")
R = TypeVar("R")

SCHEMA = 3  # of payloads; the neighbouring schemas are accepted too
FINGERPRINTS_KEPT = 10_000
LARGEST_NUMBER = 10**15  # above each id, count and time (in microseconds) of a payload; sums of many fit into a column


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


class Codec(ABC, Generic[T, R]):
    """Reads and writes the tasks of one kind of executor, and their results."""

    @abstractmethod
    def key(self, number: int, task: T) -> str:
        """A text that is unique for this attempt, among all schedulers."""

    @abstractmethod
    def lock(self, task: T) -> str:
        """Of all tasks with the same lock, only one is executed at a time."""

    @abstractmethod
    def seconds(self, task: T) -> float:
        """How long the task may take, including the time in the queue."""

    @abstractmethod
    def task_to_json(self, task: T) -> Mapping[str, object]: ...

    @abstractmethod
    def task_from_json(self, data: Mapping[str, object]) -> T:
        """The task. Raises AttemptRefused, or InvalidPayload."""

    @abstractmethod
    def result_to_json(self, result: R) -> object: ...

    @abstractmethod
    def result_from_json(self, data: object) -> R: ...

    @abstractmethod
    def is_success(self, result: R) -> bool:
        """Whether a result is complete, so that it counts even if its task was interrupted in the meantime."""

    @abstractmethod
    def block_task(self, task: T, held_by: str) -> T:
        """The task, which must not begin because its lane is locked. `held_by` says by which program."""

    @abstractmethod
    def refusal(self, problem: str) -> R:
        """The result of a task that a worker has refused."""

    def write_task(self, task: T) -> str:
        """The payload of a task."""
        return _dump({"schema": SCHEMA, "version": __version__, **self.task_to_json(task)})

    def read_task(self, payload: str) -> T:
        """The task in a payload. Raises AttemptRefused, or InvalidPayload if its schema differs by more than one."""
        return self.task_from_json(_load(payload, "scheduler"))

    def write_done(self, done: Done[T | None, R]) -> str:
        """The payload of a task that has ended."""
        if isinstance(done.exception, Interrupted):
            ended: Mapping[str, object] = {"interrupted": str(done.exception), "in_order": done.exception.was_stopped}
        elif isinstance(done.exception, NeverBegun):
            ended = {"never_begun": True, "not_taken": str(done.exception) if isinstance(done.exception, NotTaken) else None}
        elif done.exception is not None:
            error, number = done.exception, getattr(done.exception, "errno", None)
            text = str(error) if isinstance(error, RuntimeError | OSError) else f"{type(error).__name__}: {error}"
            ended = {"error": text, "errno": number if isinstance(number, int) else None}
        else:
            ended = {"result": None if done.result is None else self.result_to_json(done.result)}
        return _dump({"schema": SCHEMA, "version": __version__, **ended})

    def read_done(self, task: T, payload: str) -> Done[T, R]:
        """How a task has ended. A payload that cannot be read is its error."""
        try:
            data = _load(payload, "worker")
            if "interrupted" in data:
                return Done(task, None, Interrupted(_read_text(data["interrupted"]), was_stopped=bool(data.get("in_order"))))
            if data.get("never_begun"):
                return Done(task, None, NotTaken(_read_text(data["not_taken"])) if data.get("not_taken") else NeverBegun())
            if "error" in data:
                number, text = _from_json(int | None, data.get("errno")), _read_text(data["error"])
                return Done(task, None, OSError(number, text) if number else RuntimeError(text))
            return Done(task, None if data["result"] is None else self.result_from_json(data["result"]))
        except UNREADABLE as error:
            return Done(task, None, RuntimeError(f"the result of a worker cannot be read: {error}"))


class ClaimCodec(Codec[Claim, AttemptResult]):
    """Reads and writes claims. `entries` returns the agents and jobs of this process's config, `folder` is that of the config.

    `begin_trace` returns the `traceparent` for a claim that is submitted, and `end_trace` gets its result. A claim may be written
    several times.
    """

    def __init__(
        self,
        entries: Callable[[], Mapping[Key, Entry]],
        folder: Path,
        host: str,
        begin_trace: Callable[[Claim], str | None] = lambda _: None,
        end_trace: Callable[[Done[Claim, AttemptResult]], None] = lambda _: None,
    ) -> None:
        self._entries = entries
        self._folder = folder
        self._host = host
        self._begin_trace = begin_trace
        self._end_trace = end_trace
        self._fingerprints: dict[int, tuple[Entry, str]] = {}

    def key(self, number: int, task: Claim) -> str:
        return attempt_key(task.run.owner, task.run.id, task.run.fence)

    def lock(self, task: Claim) -> str:
        entry = task.entry
        return lock_of_lane(entry.lane) if entry.lane is not None else entry.kind.label_of(entry.name)

    def seconds(self, task: Claim) -> float:
        return task.entry.timeout.total_seconds()

    def task_to_json(self, task: Claim) -> Mapping[str, object]:
        entry = task.entry
        run, facts = replace(task.run, text=None, error=None), replace(task.facts, traceparent=self._begin_trace(task))
        claim = _to_json(replace(task, run=run, facts=facts), {"entry"})
        return {"kind": entry.kind.value, "name": entry.name, "settings": self._fingerprint(entry), "claim": claim}

    def task_from_json(self, data: Mapping[str, object]) -> Claim:
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

    def read_done(self, task: Claim, payload: str) -> Done[Claim, AttemptResult]:
        done = super().read_done(task, payload)
        self._end_trace(done)
        return done

    def claim_of_leftover(self, payload: str) -> Claim | None:
        """The claim that an earlier process submitted, with the entry as it is now. None if it cannot be made any more."""
        try:
            data = _load(payload, "scheduler")
            entry = self._entries().get((Kind(str(data["kind"])), str(data["name"])))
            return None if entry is None else _claim_from_json(data, entry)
        except UNREADABLE:
            return None

    def result_to_json(self, result: AttemptResult) -> object:
        return _to_json(result)

    def result_from_json(self, data: object) -> AttemptResult:
        result = typing.cast("AttemptResult", _from_json(AttemptResult, data))
        counts = [tokens for call in result.calls for tokens in (call.tokens, call.most) if tokens is not None]
        used = [number for tokens in counts for number in tokens.by_kind().values()]
        if any(number < 0 for number in (*used, *(call.cost_usd or 0 for call in result.calls))):
            raise ValueError("the usage of a call is negative")
        return replace(result, findings=())  # the scheduler decides what happens to each

    def is_success(self, result: AttemptResult) -> bool:
        return result.outcome in SUCCESSES

    def block_task(self, task: Claim, held_by: str) -> Claim:
        return task if task.entry.lane is None or Skip.BUSY in task.facts.blocked else task.blocked_by(Skip.BUSY, held_by)

    def refusal(self, problem: str) -> AttemptResult:
        return AttemptResult(Outcome.FAILED, Failure.EXIT, error=problem, transient=True, calls=(UNSENT_CALL,))

    def _fingerprint(self, entry: Entry) -> str:
        known = self._fingerprints.get(id(entry))
        if known is not None and known[0] is entry:
            return known[1]
        if len(self._fingerprints) >= FINGERPRINTS_KEPT:
            self._fingerprints.clear()
        made = settings_fingerprint(entry, self._folder)
        self._fingerprints[id(entry)] = (entry, made)
        return made


def _claim_from_json(data: Mapping[str, object], entry: Entry) -> Claim:
    return typing.cast("Claim", _from_json(Claim, data["claim"], {"entry": entry}))


def lock_of_lane(name: str) -> str:
    """The lock in the queue of all runs in the lane of this agent."""
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
    if is_dataclass(value):
        parts: Sequence[object] = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, tuple):
        parts = value
    else:
        return None
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
        shown = {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
        return {name: _canonical(each, folder) for name, each in shown.items()}
    raise TypeError(f"settings of type {type(value).__name__} have no canonical form")


def _dump(data: Mapping[str, object]) -> str:
    return json.dumps(data, separators=(",", ":"))  # ASCII only: PostgreSQL stores neither NUL nor lone surrogates


def _load(payload: str, other: str) -> Mapping[str, object]:
    try:
        data = json.loads(payload)
        schema = int(data["schema"])
    except UNREADABLE:
        raise InvalidPayload(f"it is not a payload of a {other} of heartbeatd") from None
    if abs(schema - SCHEMA) > 1:
        version = data.get("version", "?")
        older = f"heartbeatd {__version__}" if schema > SCHEMA else f"the {other}, heartbeatd {version},"
        raise InvalidPayload(f"the {other} writes schema {schema}, and this is schema {SCHEMA}; update {older} first")
    return typing.cast("Mapping[str, object]", data)


def _to_json(value: object, without: Set[str] = frozenset()) -> object:
    """The value as JSON. Fields with their default value are left out."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, timedelta):
        return value / timedelta(microseconds=1)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _to_json(each) for key, each in value.items()}
    if isinstance(value, Sequence | Set):
        return [_to_json(each) for each in value]
    assert is_dataclass(value)
    return {
        field.name: _to_json(own)
        for field in fields(value)
        if field.name not in without and not _is_default(field, own := getattr(value, field.name))
    }


def _is_default(field: Field[object], value: object) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return default is not MISSING and bool(value == default) and type(value) is type(default)


@lru_cache(maxsize=256)
def _fields_of(kind: type) -> Mapping[str, object]:
    return typing.get_type_hints(kind)


def _read_text(data: object) -> str:
    """A text that can be stored: lone surrogates, which no encoding can represent, become question marks."""
    return _expect(data, str).encode(errors="replace").decode()


def _expect(data: object, *kinds: type[T]) -> T:
    """The data, if it is of one of these types. Raises TypeError."""
    if type(data) not in kinds:
        raise TypeError(f"{type(data).__name__} in place of {kinds[0].__name__}")
    return typing.cast("T", data)


def _read_number(kind: type[int | float], data: object) -> int | float:
    number: int | float = _expect(data, int) if kind is int else _expect(data, float, int)
    if not -LARGEST_NUMBER <= number <= LARGEST_NUMBER:  # nor is a NaN within any limits
        raise ValueError("a number is too large")
    return number


def _from_json(kind: Any, data: object, given: Mapping[str, object] = types.MappingProxyType({})) -> Any:
    """The value of this type. Raises one of UNREADABLE."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _from_union(arguments, data)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_from_json(arguments[0], each) for each in _expect(data, list))
        return tuple(_from_json(each, part) for each, part in zip(arguments, _expect(data, list), strict=True))
    if origin is frozenset:
        return frozenset(_from_json(arguments[0], each) for each in _expect(data, list))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {_read_text(key): _from_json(arguments[1], each) for key, each in _expect(data, dict).items()}
    if kind is timedelta:
        return timedelta(microseconds=_read_number(float, data))
    if kind in (datetime, date):
        return kind.fromisoformat(data)
    if kind is str:
        return _read_text(data)
    if kind in (int, float):
        return _read_number(kind, data)
    if kind is bool:
        return _expect(data, bool)
    if not isinstance(kind, type) or kind is object:
        return data
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*(_from_json(each, part) for each, part in zip(_fields_of(kind).values(), _expect(data, list), strict=True)))
    if is_dataclass(kind):
        known = _fields_of(kind)
        read = {
            name: _from_json(known[name], each)
            for name, each in _expect(data, dict).items()
            if name in known and name not in given
        }
        return kind(**{**read, **given})
    return kind(data)


def _from_union(kinds: Sequence[object], data: object) -> object:
    if data is None:
        return None
    problem: Exception | None = None
    for kind in kinds:
        if kind is not type(None):
            try:
                return _from_json(kind, data)
            except (ValueError, LookupError, TypeError) as error:
                problem = error
    raise problem or TypeError("there is no such value")
