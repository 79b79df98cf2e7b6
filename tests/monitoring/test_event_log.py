"""Tests that each event of the engine has a log line and a counter: an event without one would end the daemon."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_args

from loops import loop_over

from scheduler.model.events import Event
from scheduler.telemetry import event_log
from scheduler.telemetry.event_log import COPIED_LINES
from scheduler.telemetry.metrics import NOT_COUNTED, Metrics


@loop_over("event_type", COPIED_LINES)
def test_a_log_line_copies_only_fields_that_its_event_has(event_type: type) -> None:
    _, _, copied = COPIED_LINES[event_type]
    assert {field for _, field in copied} <= {field.name for field in fields(event_type)}


@loop_over("event_type", get_args(Event))
def test_every_event_has_a_log_line_and_a_counter(event_type: type) -> None:
    assert event_type in NOT_COUNTED or f"case events.{event_type.__name__}(" in inspect.getsource(Metrics.count_event)
    assert event_type in COPIED_LINES or f"case events.{event_type.__name__}(" in inspect.getsource(event_log.EventLog.log_event)
