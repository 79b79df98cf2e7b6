"""The log: one line per event, `key=value` with the ids first, or JSON."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Literal, TextIO

Form = Literal["text", "json"]

NAME = "heartbeatd"
LONGEST = 2000  # code points of one value

_PARTING = re.compile('[ "=]')  # what would make several words of one

_log = logging.getLogger(NAME)


def set_up(stream: TextIO, *, form: Form = "text", level: int = logging.INFO) -> None:
    """Send every event from `level` on to `stream`; of other libraries only warnings, since they print URLs and bodies below."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if form == "json" else _Text())
    handler.addFilter(_is_worth_a_line)
    logging.getLogger().handlers = [handler]
    _log.setLevel(level)


def event(level: int, word: str, /, *, error: BaseException | None = None, **fields: object) -> None:
    """Log one event: `event(logging.INFO, "run", id=12, agent="host", outcome="ok")`.

    The order of `fields` is kept, those that are None are left out, and `error` becomes one field with its traceback.
    Times are written in UTC, durations in seconds.
    """
    if _log.isEnabledFor(level):
        _log.log(level, word, exc_info=error, extra={"fields": fields})


def plain(value: object) -> str:
    """One value as one harmless word: control, ANSI and bidi characters escaped, quoted if it holds blanks, cut at 2,000."""
    text = _escaped(_as_text(value))
    if text and not _PARTING.search(text):
        return text
    return '"' + text.replace('"', '\\"') + '"'


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        words = " ".join(f"{key}={plain(value)}" for key, value in _fields(record).items())
        return f"{_when(record)} {record.levelname} {plain(_word(record))} {words}".rstrip()


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _when(record), "level": record.levelname, "event": _word(record)}
        fields = {key: _as_json(value) for key, value in _fields(record).items()}
        return json.dumps(head | fields | head)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    return record.name == NAME or record.levelno >= logging.WARNING


def _word(record: logging.LogRecord) -> str:
    return record.getMessage() if record.name == NAME else "library"


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    given: Mapping[str, object] = getattr(record, "fields", {})
    fields = {key: value for key, value in given.items() if value is not None}
    if record.name != NAME:
        fields |= {"logger": record.name, "message": record.getMessage()}
    if record.exc_info and record.exc_info[0]:
        fields["traceback"] = _Tail("".join(traceback.format_exception(*record.exc_info)).rstrip())
    return fields


class _Tail(str):
    """A text whose end says more than its beginning."""

    __slots__ = ()


def _when(record: logging.LogRecord) -> str:
    return _instant(datetime.fromtimestamp(int(record.created), UTC))


def _instant(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _as_text(value: object) -> str:
    known = _as_json(value)
    return known if isinstance(known, str) else json.dumps(known)


def _as_json(value: object) -> str | int | float | bool:
    if isinstance(value, Enum):
        return _as_json(value.value)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime):
        return _instant(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _shortened(value if isinstance(value, str) else str(value))


def _shortened(text: str) -> str:
    over = len(text) - LONGEST
    if over <= 0:
        return text
    if isinstance(text, _Tail):
        return f"({over} more)..." + text[over:]
    return text[:LONGEST] + f"...({over} more)"


def _escaped(text: str) -> str:
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(sign if sign.isprintable() and sign != "\\" else _ESCAPES.get(sign) or _code(sign) for sign in text)


_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def _code(sign: str) -> str:
    point = ord(sign)
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
