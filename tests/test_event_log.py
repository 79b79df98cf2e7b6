"""Tests of the log lines that are written for the engine's events."""

from __future__ import annotations

from dataclasses import fields

import pytest

from scheduler.telemetry.event_log import COPIED_LINES


@pytest.mark.parametrize("event_type", COPIED_LINES, ids=lambda event_type: event_type.__name__)
def test_a_log_line_copies_only_fields_that_its_event_has(event_type: type) -> None:
    _, _, keys = COPIED_LINES[event_type]
    copied = {key.partition("=")[2] or key for key in keys.split()}
    assert copied <= {field.name for field in fields(event_type)}
