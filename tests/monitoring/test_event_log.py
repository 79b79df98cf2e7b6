"""Tests that each event of the engine has a log line and a counter: an event without one would end the daemon. Also which are warnings."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from loops import loop_over

from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.result import SentPrompt
from scheduler.model.circuit import Circuit
from scheduler.model.events import (
    BreakerMoved,
    ButtonPressed,
    ChecklistRemarked,
    Event,
    LaneBusy,
    MessageMoved,
    ModelMismatched,
    MuteChanged,
    PauseChanged,
    ProblemChanged,
    QuestionMoved,
    RetryPlanned,
    RunClosed,
    RunRecovered,
    SkipsRevoked,
    StaleResultDropped,
    WakeMoved,
)
from scheduler.model.outcome import AttemptResult, DeliveryState, Failure, Kind, Outcome, Skip, Trigger, WakeResult
from scheduler.model.wake import RejectedBecause
from scheduler.system.log import quote_value
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
    further = ChecklistRemarked("ops", ("line 3 is no item", "line 9 is no item"))
    assert levels([*happened, further, further], caplog) == ["WARNING", "WARNING", "WARNING"]


AT = datetime(2026, 3, 2, 8, 30, tzinfo=UTC)
RUN = 7, Kind.HEARTBEAT, "ops"
PAID = AttemptResult(
    Outcome.FAILED,
    Failure.EXIT,
    error="no disk",
    precheck=PrecheckResult(PrecheckStatus.FAILED, error="no mail"),
    prompt=SentPrompt(left_out=("a.md", "b.md")),
    log="see df",
    truncated=True,
    findings=({"effect": "opened"}, {"effect": "opened"}, {"effect": "cleared"}),
    fallback="spare",
)
SKIPPED_BY_PRECHECK = AttemptResult(Outcome.SKIPPED, Skip.PRECHECK_FAILED, error="no mail", precheck=PAID.precheck)
OPENED = Circuit("anthropic", "small")


def in_log(value: object) -> str:
    """A value as in the log of a daemon in UTC."""
    return f"{value:%Y-%m-%dT%H:%M:%SZ}" if isinstance(value, datetime) else quote_value(value)


@loop_over(
    ("happened", "line"),
    [
        (
            RunClosed(*RUN, AT, Trigger.INTERVAL, PAID, AT + timedelta(seconds=9), 3, 2, AT + timedelta(seconds=2), "mill"),
            ("WARNING run id=7 kind=heartbeat name=ops planned_at=2026-03-02T08:30:00Z planned_runs=3 trigger=interval result=failed"
            ' why=exit tries=2 duration=7.0 worker=mill problem="no disk" truncated=true fallback=spare precheck_problem="no mail"'
            ' left_out="a.md; b.md" findings="2 opened, 1 cleared" log="see df"'),
        ),
        (
            RunClosed(*RUN, AT, Trigger.INTERVAL, AttemptResult(Outcome.SKIPPED, Skip.PAUSED), AT),
            "INFO skip id=7 kind=heartbeat name=ops planned_at=2026-03-02T08:30:00Z trigger=interval result=skipped why=paused",
        ),
        (
            RunClosed(*RUN, AT, Trigger.INTERVAL, SKIPPED_BY_PRECHECK, AT),
            ("WARNING skip id=7 kind=heartbeat name=ops planned_at=2026-03-02T08:30:00Z trigger=interval result=skipped"
            ' why=precheck_failed problem="no mail"'),
        ),
        (
            RunClosed(*RUN, AT, Trigger.INTERVAL, replace(PAID, outcome=Outcome.OK, reason=None, error=None), AT, attempt=1),
            ("WARNING run id=7 kind=heartbeat name=ops planned_at=2026-03-02T08:30:00Z trigger=interval result=ok truncated=true"
            ' fallback=spare precheck_problem="no mail" left_out="a.md; b.md" findings="2 opened, 1 cleared" log="see df"'),
        ),
        (BreakerMoved(OPENED, "auth", True, "no key"), 'WARNING breaker provider=anthropic model=small state=open why=auth problem="no key"'),
        (BreakerMoved(Circuit("anthropic"), "auth", False), "WARNING breaker provider=anthropic state=closed why=auth"),
        (
            WakeMoved("ops", "api", "token x", WakeResult.EXPIRED, problem="too old"),
            'WARNING wake name=ops source=api sender="token x" result=expired problem="too old"',
        ),
        (
            MessageMoved(5, 7, "heartbeat", "ops", "chat", DeliveryState.DEAD, error="gone"),
            "WARNING deliver id=5 channel=chat state=dead problem=gone",
        ),
        (MessageMoved(5, 7, "heartbeat", "ops", "chat", DeliveryState.DELIVERED), "DEBUG deliver id=5 channel=chat state=delivered"),
        (ButtonPressed("chat", "ack", "applied", "Mary", "ops"), "INFO button channel=chat button=ack result=applied user=Mary name=ops"),
        (RetryPlanned(*RUN, 2, "exit", AT, "no disk"), 'WARNING retry id=7 kind=heartbeat name=ops tries=2 why=exit not_before=2026-03-02T08:30:00Z problem="no disk"'),
        (LaneBusy(*RUN, AT, Trigger.INTERVAL), "INFO busy id=7 kind=heartbeat name=ops planned_at=2026-03-02T08:30:00Z trigger=interval"),
        (RunRecovered(*RUN, True), "WARNING recovered id=7 kind=heartbeat name=ops again=true"),
        (ProblemChanged("p3", "agent/ops", "disk", "closed", "Mary"), "INFO problem_changed number=p3 subject=agent/ops key=disk change=closed by=Mary"),
        (MuteChanged(*RUN[1:], True, "Mary", AT), "INFO mute kind=heartbeat name=ops muted=true by=Mary until=2026-03-02T08:30:00Z"),
        (PauseChanged(*RUN[1:], True, "Mary", AT), "INFO pause kind=heartbeat name=ops paused=true by=Mary until=2026-03-02T08:30:00Z"),
        (QuestionMoved(4, *RUN, "answered", "Mary"), "INFO question id=4 run=7 kind=heartbeat name=ops state=answered by=Mary"),
        (SkipsRevoked(*RUN[1:], "missed", 3), "INFO taken_back kind=heartbeat name=ops why=missed planned_runs=3"),
        (StaleResultDropped(*RUN), "WARNING stale_result id=7 kind=heartbeat name=ops"),
        (ModelMismatched(*RUN[1:], "small", "large"), "WARNING model_mismatch kind=heartbeat name=ops requested=small used=large"),
    ],
)  # fmt: skip
def test_a_line_has_all_that_its_event_says(happened: Event, line: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    levels([happened], caplog)
    (record,) = caplog.records
    fields = " ".join(f"{key}={in_log(value)}" for key, value in record.fields.items() if value is not None)  # type: ignore[attr-defined]
    assert f"{record.levelname} {record.getMessage()} {fields}" == line
