"""The checks before a heartbeat run, and the first reason to skip it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from heartbeat_specs import AGENT
from loops import loop_over

from heartbeat import due_items
from heartbeat.calendars import AllowedDays, Calendar
from heartbeat.checks import Situation, Skip, first_obstacle, late_obstacle, load_checklist
from heartbeat.hours import EVERY_DAY, Hours, window
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.spec import Precheck

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
NIGHT = datetime(2026, 11, 20, 3, tzinfo=UTC)
OPS = replace(AGENT, hours=Hours((window(480, 1320, EVERY_DAY, ZoneInfo("UTC")),)))
PRECHECK = Precheck("./look", "skip", "skip", timedelta(seconds=30))
REST = AllowedDays(skip=Calendar(weekdays=frozenset(range(7))))
FREE = Situation(OPS, NOON, woken=False, paused=False, checklist="- look")

ASKED = dict.fromkeys(due_items.select_due_items("- [every 6h] look", NOON, {}).recurring_items, NOON - timedelta(hours=5))


def given(heartbeat: dict[str, Any] | None = None, **changes: Any) -> Situation:
    return replace(FREE, heartbeat=replace(OPS, **(heartbeat or {})), **changes)


def test_no_check_blocks_a_normal_run() -> None:
    assert first_obstacle(FREE) is None


@loop_over(
    ("situation", "obstacle"),
    [
        (given({"enabled": False}), Skip.DISABLED),
        (given(paused=True), Skip.PAUSED),
        (given({"calendars": REST}), Skip.CALENDAR),
        (given({"calendars": REST}, paused=True), Skip.PAUSED),
        (given({"calendars": REST}, now=NIGHT), Skip.CALENDAR),
        (given(now=NIGHT), Skip.ACTIVE_HOURS),
        (given(checklist=Skip.CHECKLIST_MISSING), Skip.CHECKLIST_MISSING),
        (given({"on_missing": "create"}, checklist=Skip.CHECKLIST_MISSING), Skip.CHECKLIST_MISSING),
        (given({"on_missing": "run"}, checklist=Skip.CHECKLIST_MISSING), None),
        (given(checklist="# Nothing\n- [ ]"), Skip.CHECKLIST_EMPTY),
        (given(checklist=""), Skip.CHECKLIST_EMPTY),
        (given({"on_empty": "run"}, checklist=""), None),
        (given({"on_missing": "run"}, checklist=""), Skip.CHECKLIST_EMPTY),
        (given(checklist=Skip.CHECKLIST_UNREADABLE), Skip.CHECKLIST_UNREADABLE),
        (given({"on_missing": "run", "on_empty": "run"}, checklist=Skip.CHECKLIST_UNREADABLE), Skip.CHECKLIST_UNREADABLE),
        (given(checklist=Skip.CHECKLIST_TOO_LARGE), Skip.CHECKLIST_TOO_LARGE),
        (given({"show_alerts": False}), Skip.NOT_SHOWN),
        (given({"show_alerts": False, "show_ok": True}), None),
        (given(checklist="- [every 6h] look"), None),
        (given(checklist="- [every 6h] look", last_prompted=ASKED), Skip.NOTHING_DUE),
        (given(checklist="- [paused] look"), Skip.NOTHING_DUE),
        (given({"on_empty": "run"}, checklist="- [paused] look"), Skip.NOTHING_DUE),
        (given(breaker_open=True), Skip.BREAKER_OPEN),
        (given(precheck=PrecheckResult(PrecheckStatus.WORK)), None),
        (given(precheck=PrecheckResult(PrecheckStatus.NOTHING)), Skip.PRECHECK),
        (given({"precheck": PRECHECK}, precheck=PrecheckResult(PrecheckStatus.UNCHANGED)), Skip.PRECHECK_UNCHANGED),
        (given({"precheck": replace(PRECHECK, unchanged="run")}, precheck=PrecheckResult(PrecheckStatus.UNCHANGED)), None),
        (given({"precheck": PRECHECK}, precheck=PrecheckResult(PrecheckStatus.FAILED)), Skip.PRECHECK_FAILED),
        (given({"precheck": replace(PRECHECK, on_error="run")}, precheck=PrecheckResult(PrecheckStatus.FAILED)), None),
        (given(prompt_tokens=50_000), None),
        (given(prompt_tokens=50_001), Skip.PROMPT_TOO_LARGE),
    ],
)
def test_each_obstacle_has_its_reason(situation: Situation, obstacle: Skip | None) -> None:
    assert first_obstacle(situation) is obstacle


@loop_over(
    ("situation", "obstacle"),
    [
        (given(woken=True, checklist=Skip.CHECKLIST_MISSING), None),
        (given({"on_missing": "create"}, woken=True, checklist=Skip.CHECKLIST_MISSING), None),
        (given(woken=True, checklist=""), None),
        (given({"enabled": False}, woken=True), Skip.DISABLED),
        (given(woken=True, paused=True), Skip.PAUSED),
        (given({"calendars": REST}, woken=True), Skip.CALENDAR),
        (given(woken=True, now=NIGHT), Skip.ACTIVE_HOURS),
        (given(woken=True, checklist=Skip.CHECKLIST_UNREADABLE), Skip.CHECKLIST_UNREADABLE),
        (given(woken=True, checklist=Skip.CHECKLIST_TOO_LARGE), Skip.CHECKLIST_TOO_LARGE),
        (given({"show_alerts": False}, woken=True), Skip.NOT_SHOWN),
        (given(woken=True, checklist="- [every 6h] look", last_prompted=ASKED), None),
        (given(woken=True, checklist="- [paused] look"), None),
        (given(woken=True, breaker_open=True), Skip.BREAKER_OPEN),
        (given({"precheck": PRECHECK}, woken=True, precheck=PrecheckResult(PrecheckStatus.NOTHING)), None),
        (given({"precheck": PRECHECK}, woken=True, precheck=PrecheckResult(PrecheckStatus.UNCHANGED)), None),
        (given({"precheck": PRECHECK}, woken=True, precheck=PrecheckResult(PrecheckStatus.FAILED)), Skip.PRECHECK_FAILED),
        (given(woken=True, prompt_tokens=50_001), Skip.PROMPT_TOO_LARGE),
    ],
)
def test_a_wake_overrides_only_the_checks_for_missing_work(situation: Situation, obstacle: Skip | None) -> None:
    assert first_obstacle(situation) is obstacle


def test_the_first_failing_check_gives_the_reason() -> None:
    everything = {"enabled": False, "show_alerts": False}
    assert first_obstacle(given(everything, paused=True, now=NIGHT, checklist="")) is Skip.DISABLED
    assert first_obstacle(given({"show_alerts": False}, paused=True, now=NIGHT, checklist="")) is Skip.PAUSED
    assert first_obstacle(given({"show_alerts": False}, now=NIGHT, checklist="")) is Skip.ACTIVE_HOURS
    assert first_obstacle(given({"show_alerts": False}, checklist="")) is Skip.CHECKLIST_EMPTY


def test_the_precheck_and_the_prompt_length_are_checked_last() -> None:
    late = {"precheck": PrecheckResult(PrecheckStatus.NOTHING), "prompt_tokens": 50_001}
    assert first_obstacle(given({"show_alerts": False}, checklist="- [paused] look", **late)) is Skip.NOTHING_DUE
    assert first_obstacle(given({"show_alerts": False}, **late)) is Skip.NOT_SHOWN
    assert first_obstacle(given(breaker_open=True, **late)) is Skip.BREAKER_OPEN
    assert first_obstacle(given(**late)) is Skip.PRECHECK
    assert late_obstacle(given(paused=True, **late)) is Skip.PRECHECK


def test_later_results_are_added_to_a_copy_of_the_situation() -> None:
    before = given(checklist="- [every 6h] look", last_prompted=ASKED)
    selection, checked = before.selection, PrecheckResult(PrecheckStatus.WORK)
    checked_too = before.with_results(precheck=checked)
    measured = checked_too.with_results(tokens=7)
    assert measured == replace(before, precheck=checked, prompt_tokens=7)
    assert (checked_too.prompt_tokens, before.precheck, before.prompt_tokens) == (None, None, None)
    assert measured.selection is selection
    assert measured.with_results(precheck=PrecheckResult(PrecheckStatus.NOTHING)).prompt_tokens == 7


def test_the_skip_reasons_are_in_the_order_of_the_checks() -> None:
    assert " ".join(Skip) == (
        "disabled paused removed calendar active_hours already_running busy checklist_missing checklist_empty "
        "checklist_unreadable checklist_too_large nothing_due not_shown budget breaker_open precheck precheck_unchanged "
        "precheck_failed prompt_too_large missed superseded"
    )


def test_the_checklist_is_a_file_of_the_workspace_or_the_text_itself(tmp_path: Path) -> None:
    here = replace(OPS, workspace=tmp_path)
    assert load_checklist(here) is Skip.CHECKLIST_MISSING
    (tmp_path / "HEARTBEAT.md").write_text("- look")
    assert load_checklist(here) == "- look"
    (tmp_path / "HEARTBEAT.md").write_text("x" * 70_000)
    assert load_checklist(here) is Skip.CHECKLIST_TOO_LARGE
    (tmp_path / "HEARTBEAT.md").unlink()
    (tmp_path / "HEARTBEAT.md").mkdir()
    assert load_checklist(here) is Skip.CHECKLIST_UNREADABLE
    assert load_checklist(replace(here, checklist="- look\n- twice")) == "- look\n- twice"
