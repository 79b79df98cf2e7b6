"""Tests that each event of the engine has a log line and a counter: an event without one would end the daemon. Also which are warnings."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from dataclasses import fields
from typing import get_args

import pytest
from loops import loop_over

from scheduler.model.events import ButtonPressed, ChecklistRemarked, Event, WakeMoved
from scheduler.model.outcome import WakeResult
from scheduler.model.wake import RejectedBecause
from scheduler.telemetry import event_log
from scheduler.telemetry.event_log import COPIED_LINES, EventLog
from scheduler.telemetry.metrics import NOT_COUNTED, Metrics


@loop_over("event_type", COPIED_LINES)
def test_a_log_line_copies_only_fields_that_its_event_has(event_type: type) -> None:
    _, _, copied = COPIED_LINES[event_type]
    assert {field for _, field in copied} <= {field.name for field in fields(event_type)}


@loop_over("event_type", get_args(Event))
def test_every_event_has_a_log_line_and_a_counter(event_type: type) -> None:
    assert event_type in NOT_COUNTED or f"case events.{event_type.__name__}(" in inspect.getsource(Metrics.count_event)
    assert event_type in COPIED_LINES or f"case events.{event_type.__name__}(" in inspect.getsource(event_log.EventLog.log_event)


def levels(happened: Iterable[Event], caplog: pytest.LogCaptureFixture) -> list[str]:
    """The level of each line that these events cause."""
    log = EventLog()
    with caplog.at_level(logging.DEBUG, "heartbeatd"):  # another test may have raised its level
        for each in happened:
            log.log_event(each)
    return [record.levelname for record in caplog.records]


def test_the_first_wake_that_a_full_queue_rejects_is_a_warning_for_each_agent(caplog: pytest.LogCaptureFixture) -> None:
    def wake(name: str, *, is_kept: bool = False) -> WakeMoved:
        problem = None if is_kept else RejectedBecause.TOO_MANY
        return WakeMoved(name, "api", "", WakeResult.DEFERRED if is_kept else WakeResult.REJECTED, problem=problem)

    happened = wake("ops"), wake("ops"), wake("web"), wake("ops", is_kept=True), wake("web"), wake("ops")
    assert levels(happened, caplog) == ["WARNING", "DEBUG", "WARNING", "DEBUG", "DEBUG", "WARNING"]


def test_the_first_press_that_is_refused_for_a_reason_is_a_warning_for_each_channel(caplog: pytest.LogCaptureFixture) -> None:
    pressed = (("chat", "forged"), ("chat", "forged"), ("room", "forged"), ("chat", "expired"), ("room", "applied"))
    happened = [ButtonPressed(channel, "ack", result, "Mary", None) for channel, result in pressed]
    assert levels(happened, caplog) == ["WARNING", "DEBUG", "WARNING", "WARNING", "INFO"]


def test_a_remark_about_a_checklist_is_logged_once_whatever_is_said_of_another(caplog: pytest.LogCaptureFixture) -> None:
    happened = [ChecklistRemarked(name, ("line 3 is no item",)) for name in ("ops", "web", "ops", "web")]
    assert levels(happened, caplog) == ["WARNING", "WARNING"]
