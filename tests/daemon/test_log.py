"""Tests the log: each event is one line, whatever its values contain."""

import io
import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum

import pytest

from heartbeatd.secret import Secret
from scheduler.system.log import log_event, quote_value, set_up_log


class Outcome(StrEnum):
    OK = "ok"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers, logging.getLogger("heartbeatd").level
    yield io.StringIO()
    root.handlers = before
    logging.getLogger("heartbeatd").setLevel(level)


def line(log: io.StringIO) -> str:
    """The only line, without the time it begins with."""
    (only,) = log.getvalue().splitlines()
    moment, _, rest = only.partition(" ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", moment)
    return rest


def test_an_event_is_one_line_with_its_fields_in_order(log: io.StringIO) -> None:
    set_up_log(log)
    log_event(logging.INFO, "run", id=12, agent="host", planned_at=datetime(2026, 11, 20, 16, 30, tzinfo=UTC), result=Outcome.OK)
    assert line(log) == "INFO run id=12 agent=host planned_at=2026-11-20T16:30:00Z result=ok"


def test_a_field_without_a_value_is_left_out(log: io.StringIO) -> None:
    set_up_log(log)
    log_event(logging.WARNING, "run", id=12, why=None)
    assert line(log) == "WARNING run id=12"


def test_an_event_may_have_fields_named_like_the_parameters(log: io.StringIO) -> None:
    set_up_log(log)
    log_event(logging.INFO, "run", level=3, word="x", name="ops", msg="m")
    assert line(log) == "INFO run level=3 word=x name=ops msg=m"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("ops", "ops"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "hi"', r'"say \"hi\""'),
        (r"C:\new", r"C:\\new"),
        ("Grüße từ 東京", '"Grüße từ 東京"'),
        ("ok\n2026-11-20T16:30:00Z ERROR fake", r'"ok\n2026-11-20T16:30:00Z ERROR fake"'),
        ("a\r\nb", r"a\r\nb"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\u2028b\u0085c", r"a\u2028b\x85c"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2066x\u2069", r"\u2066x\u2069"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("\udcff", r"\udcff"),
        ("\U000e0041", r"\U000e0041"),
        (True, "true"),
        (1.5, "1.5"),
        (timedelta(minutes=1), "60.0"),
        (datetime(2026, 11, 20, 23, 30, tzinfo=timezone(timedelta(hours=7))), "2026-11-20T16:30:00Z"),
        (Secret("canary"), "***"),
        (("a", "b"), "\"('a', 'b')\""),
    ],
)
def test_a_value_is_one_safe_word(value: object, shown: str) -> None:
    assert quote_value(value) == shown


def test_a_long_value_is_cut_with_the_number_of_missing_characters() -> None:
    assert quote_value("x" * 2000) == "x" * 2000
    assert quote_value("x" * 2005) == '"' + "x" * 2000 + '...(5 more)"'


def test_json_has_one_object_per_line(log: io.StringIO) -> None:
    set_up_log(log, form="json")
    log_event(
        logging.INFO, "run", id=12, text='"a"\n\x1b\u202eb', took=timedelta(seconds=1.5), ok=True, level="mine", key=Secret("x")
    )
    (only,) = log.getvalue().splitlines()
    assert only.isascii()
    logged = json.loads(only)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", logged.pop("time"))
    fields = {"id": 12, "text": '"a"\n\x1b\u202eb', "took": 1.5, "ok": True, "key": "***"}
    assert logged == {"level": "INFO", "event": "run"} | fields


def test_an_error_is_one_field_with_its_traceback(log: io.StringIO) -> None:
    set_up_log(log)
    try:
        raise RuntimeError("no\nway")
    except RuntimeError as error:
        log_event(logging.ERROR, "crash", id=3, error=error)
    assert line(log).startswith('ERROR crash id=3 traceback="Traceback (most recent call last):\\n  File')
    assert line(log).endswith('RuntimeError: no\\nway"')


def test_the_end_of_a_long_traceback_is_kept(log: io.StringIO) -> None:
    set_up_log(log)
    log_event(logging.ERROR, "crash", error=RuntimeError("x" * 5000 + "the point"))
    assert line(log).endswith('the point"')
    assert len(line(log)) < 2100


def test_events_below_the_level_are_not_written(log: io.StringIO) -> None:
    set_up_log(log, level=logging.WARNING)
    log_event(logging.INFO, "run", id=12)
    assert log.getvalue() == ""


@pytest.mark.parametrize("library", ["httpx", "httpcore", "httpcore2.connection", "httpx2", "anthropic", "uvicorn.error"])
def test_libraries_that_log_urls_can_only_log_warnings_even_if_they_lower_their_level(log: io.StringIO, library: str) -> None:
    set_up_log(log, level=logging.DEBUG)
    logger = logging.getLogger(library)
    logger.setLevel(logging.DEBUG)  # as ANTHROPIC_LOG=debug does
    logger.debug("POST https://example.com/bot123:canary/send")
    logger.info("POST https://example.com/bot123:canary/send")
    logger.setLevel(logging.NOTSET)
    assert log.getvalue() == ""


def test_a_warning_of_a_library_has_the_form_of_an_event(log: io.StringIO) -> None:
    set_up_log(log)
    logging.getLogger("a_library").warning("queue\noverflowed at %s", "/x")
    assert line(log) == r'WARNING library logger=a_library message="queue\noverflowed at /x"'


def test_after_two_set_ups_each_event_is_written_once(log: io.StringIO) -> None:
    set_up_log(log)
    set_up_log(log)
    log_event(logging.INFO, "run", id=1)
    assert line(log) == "INFO run id=1"
