"""Makes objects from rows: a field is the column of its name, and its type says how the column is read. Also writes rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache, lru_cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from heartbeatd.answers import Time
from scheduler.model.timestamps import from_millis, to_millis
from scheduler.store.transaction import is_file

T = TypeVar("T")
TIMES = (datetime, get_args(Time)[0])  # the latter in the answers of the API
LISTS = (tuple, frozenset, list)


def insert_row(db: sqlite3.Connection, table: str, values: Mapping[str, object], rest: str = "") -> sqlite3.Cursor:
    """Insert a row with these values by column. `rest` ends the statement.

    Times are stored in milliseconds, and collections as JSON.
    """
    return db.execute(_insertion(table, tuple(values), rest), _stored(values))


def insert_new(db: sqlite3.Connection, table: str, values: Mapping[str, object], rest: str = "") -> int | None:
    """The same for a table with ids. Returns that of the new row; None if there was a row that `rest` keeps as it is."""
    if is_file(db):  # in SQLite, `returning` costs as much as all indexes of a run record
        done = insert_row(db, table, values, rest)
        return done.lastrowid if done.rowcount else None
    row = insert_row(db, table, values, f"{rest} returning id").fetchone()
    return row["id"] if row else None


def replace_row(db: sqlite3.Connection, table: str, key: Mapping[str, object], values: Mapping[str, object]) -> None:
    """Insert a row, or write these values into the row that has this key."""
    changes = ", ".join(f'"{column}" = excluded."{column}"' for column in values)
    insert_row(db, table, {**key, **values}, f"on conflict ({', '.join(key)}) do update set {changes}")


def update_row(db: sqlite3.Connection, table: str, row_id: int, **values: object) -> None:
    """Write these values into the row with this id."""
    db.execute(_change(table, tuple(values)), [*_stored(values), row_id])


def _stored(values: Mapping[str, object]) -> list[object]:
    found: list[object] = []
    for value in values.values():
        if isinstance(value, LISTS):
            items = sorted(value) if isinstance(value, frozenset) else value
            found.append(json.dumps(items, default=_item_as_json))
        else:
            found.append(to_millis(value) if isinstance(value, datetime) else value)
    return found


def _item_as_json(item: Any) -> object:
    return to_millis(item) if isinstance(item, datetime) else astuple(item)


@lru_cache(maxsize=256)  # the names of tables and columns are ours
def _insertion(table: str, columns: tuple[str, ...], rest: str) -> str:
    names = '", "'.join(columns)  # in quotes, because `window` is a word of SQL
    return f'insert into {table} ("{names}") values ({", ".join("?" * len(columns))}) {rest}'  # noqa: S608


@lru_cache(maxsize=256)
def _change(table: str, columns: tuple[str, ...]) -> str:
    return f"update {table} set {', '.join(f'{column} = ?' for column in columns)} where id = ?"  # noqa: S608


def read_row(kind: type[T], row: sqlite3.Row, **given: object) -> T:
    """An object whose fields are columns of a row. `given` has the fields without a column, and those of another form.

    Times are stored in milliseconds, truth values as 0 and 1, lists and sets as JSON. A field that is neither given nor a column
    keeps its default.
    """
    found: dict[str, Any] = {**given}
    converters = _converters(kind)  # type: ignore[arg-type]  # every class can be hashed
    for name, value in zip(row.keys(), row, strict=True):
        if name in converters and name not in given:
            convert = converters[name]
            found[name] = value if convert is None or value is None else convert(value)
    return kind(**found)


def read_part(kind: type[T], row: sqlite3.Row, prefix: str, **given: object) -> T:
    """An object whose fields are columns of a row, with this prefix before their names, unless they are `given`."""
    for name, convert in _converters(kind).items():  # type: ignore[arg-type]  # every class can be hashed
        if name not in given:
            value = row[prefix + name]
            given[name] = value if convert is None or value is None else convert(value)
    return kind(**given)


def time_places(kind: type) -> tuple[int, ...]:
    """The places of the fields that are times, for rows that are read by position because there are many of them."""
    return tuple(place for place, convert in enumerate(_converters(kind).values()) if convert is from_millis)


@cache
def _converters(kind: Any) -> dict[str, Callable[[Any], Any] | None]:
    """The fields of a dataclass, a named tuple or a model, each with what makes its value from that of the column."""
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else getattr(kind, "model_fields", None) or kind._fields
    hints = get_type_hints(kind)
    return {name: _converter(hints[name]) for name in names}


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    if get_origin(hint) in LISTS:
        return _list_reader(get_origin(hint), get_args(hint)[0])
    for kind in get_args(hint) or (hint,):  # the first of `datetime | None`
        if kind in TIMES:
            return from_millis
        if isinstance(kind, type) and issubclass(kind, Enum | bool):
            return kind
    return None


def _list_reader(kind: Callable[[Iterable[Any]], Any], item: Any) -> Callable[[str], Any]:
    """What reads a list in a column. What is damaged is left out, so that the rest can be used."""
    types = [get_type_hints(item)[each.name] for each in fields(item)] if is_dataclass(item) else []
    if types:
        return lambda text: kind(item(*each) for each in _read_list(text) if _types_of(each) == types)
    if item in TIMES:
        return lambda text: kind(from_millis(each) for each in _read_list(text) if isinstance(each, int))
    return lambda text: kind(each for each in _read_list(text) if isinstance(each, item))


def _types_of(value: object) -> list[type]:
    return [type(part) for part in value] if isinstance(value, list) else []


def _read_list(text: str) -> list[Any]:
    if text == "[]":  # most are; the comparison takes a fifteenth of the time of the JSON reader
        return []
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return found if isinstance(found, list) else []
