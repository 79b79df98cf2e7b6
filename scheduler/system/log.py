"""Writes the log: one line per event, as `key=value` with the IDs first, or as JSON."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from typing import Literal, TextIO

LogFormat = Literal["text", "json"]

LOGGER_NAME = "heartbeatd"
MAX_VALUE_LENGTH = 2000  # code points of one value

_NEEDS_QUOTES = re.compile('[ "=]')  # with these a value would look like several

_log = logging.getLogger(LOGGER_NAME)
_zone: tzinfo = UTC  # of the times in the text format


def set_up_log(stream: TextIO, *, form: LogFormat = "text", level: int = logging.INFO) -> None:
    """Log every event from `level` on to `stream`. Libraries may log warnings only, since they log URLs and bodies below that.

    Times are in UTC until `set_log_zone`.
    """
    set_log_zone(UTC)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    handler.addFilter(_is_worth_a_line)
    logging.getLogger().handlers = [handler]
    _log.setLevel(level)


def set_log_zone(zone: tzinfo) -> None:
    """Write the times of the text format in this zone from now on. JSON always has UTC."""
    global _zone
    _zone = zone


def log_event(level: int, word: str, /, *, error: BaseException | None = None, **fields: object) -> None:
    """Log one event: `event(logging.INFO, "run", id=12, agent="host", result="ok")`.

    The order of `fields` is kept, those that are None are left out, and `error` becomes one field with its traceback.
    Times are written in the zone of the config, in JSON in UTC. Durations are in seconds.
    """
    if _log.isEnabledFor(level):
        _log.log(level, word, exc_info=error, extra={"fields": fields})


def quote_value(value: object) -> str:
    """A value as one safe word: escaped (control, ANSI and bidi characters), quoted if it has blanks, cut at 2,000 characters."""
    known = _as_json(value, _zone)
    text = _escape_text(known if isinstance(known, str) else json.dumps(known))
    if text and not _NEEDS_QUOTES.search(text):
        return text
    return '"' + text.replace('"', '\\"') + '"'


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        words = " ".join(f"{key}={quote_value(value)}" for key, value in _event_fields(record).items())
        return f"{_record_time(record, _zone)} {record.levelname} {quote_value(_event_name(record))} {words}".rstrip()


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _record_time(record, UTC), "level": record.levelname, "event": _event_name(record)}
        fields = {key: _as_json(value) for key, value in _event_fields(record).items()}
        return json.dumps(head | fields | head)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    return record.name == LOGGER_NAME or record.levelno >= logging.WARNING


def _event_name(record: logging.LogRecord) -> str:
    return record.getMessage() if record.name == LOGGER_NAME else "library"


def _event_fields(record: logging.LogRecord) -> Mapping[str, object]:
    given: Mapping[str, object] = getattr(record, "fields", {})
    fields = {key: value for key, value in given.items() if value is not None}
    if record.name != LOGGER_NAME:
        fields |= {"logger": record.name, "message": record.getMessage()}
    if record.exc_info and record.exc_info[0]:
        fields["traceback"] = _TextCutInFront("".join(traceback.format_exception(*record.exc_info)).rstrip())
    return fields


class _TextCutInFront(str):
    """A text of which the end is kept if it is too long."""

    __slots__ = ()


def _record_time(record: logging.LogRecord, zone: tzinfo) -> str:
    return _format_time(datetime.fromtimestamp(int(record.created), UTC), zone)


def _format_time(moment: datetime, zone: tzinfo) -> str:
    """The time with its offset, so that it can be read in any zone. An offset of zero is Z."""
    return moment.astimezone(zone).isoformat().replace("+00:00", "Z")


def _as_json(value: object, zone: tzinfo = UTC) -> str | int | float | bool:
    if isinstance(value, Enum):
        return _as_json(value.value, zone)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime):
        return _format_time(value, zone)
    if isinstance(value, timedelta):
        return value.total_seconds()
    text = value if isinstance(value, str) else str(value)
    over = len(text) - MAX_VALUE_LENGTH
    if over <= 0:
        return text
    is_end_kept = isinstance(text, _TextCutInFront)
    return f"({over} more)...{text[over:]}" if is_end_kept else f"{text[:MAX_VALUE_LENGTH]}...({over} more)"


# structlog's logfmt leaves carriage returns, ANSI codes, U+2028, direction marks and lone surrogates as they are, so an answer
# could forge a line or control a terminal. It would also double the backslashes of values that are escaped before it gets them.
def _escape_text(text: str) -> str:
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(
        sign if sign.isprintable() and sign != "\\" else _ESCAPES.get(sign) or _escape_character(sign) for sign in text
    )


_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def _escape_character(sign: str) -> str:
    point = ord(sign)
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
