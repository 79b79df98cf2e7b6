"""The checks before a heartbeat run, and the first reason to skip it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from heartbeat_specs import AGENT
from loops import loop_over

from heartbeat.checklist import parse_checklist
from heartbeat.checks import Situation, Skip, check_results, first_obstacle, load_checklist, precheck_obstacle
from heartbeat.hours import EVERY_DAY, AllowedDays, Calendar, Hours, window
from heartbeat.precheck import PrecheckResult, PrecheckStatus
from heartbeat.spec import Precheck

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
NIGHT = datetime(2026, 11, 20, 3, tzinfo=UTC)
OPS = replace(AGENT, hours=Hours((window(480, 1320, EVERY_DAY, ZoneInfo("UTC")),)))
PRECHECK = Precheck("./look", "skip", "skip", timedelta(seconds=30))
REST = AllowedDays(skip=Calendar(weekdays=frozenset(range(7))))
FREE = Situation(OPS, NOON, woken=False, checklist="- look")

PAUSED = {Skip.PAUSED: None}
BREAKER_OPEN = {Skip.BREAKER_OPEN: "the key was refused"}

ASKED = dict.fromkeys(parse_checklist("- [every 6h] look").select_due_items(NOON, {}).recurring_items, NOON - timedelta(hours=5))


def given(heartbeat: dict[str, Any] | None = None, **changes: Any) -> Situation:
    return replace(FREE, heartbeat=replace(OPS, **(heartbeat or {})), **changes)


def test_no_check_blocks_a_normal_run() -> None:
    assert first_obstacle(FREE) is None


@loop_over(
    ("situation", "obstacle"),
    [
        (given({"enabled": False}), Skip.DISABLED),
        (given(blocked=PAUSED), Skip.PAUSED),
        (given({"calendars": REST}), Skip.CALENDAR),
        (given({"calendars": REST}, blocked=PAUSED), Skip.PAUSED),
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
        (given(blocked=BREAKER_OPEN), Skip.BREAKER_OPEN),
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
        (given(woken=True, blocked=PAUSED), Skip.PAUSED),
        (given({"calendars": REST}, woken=True), Skip.CALENDAR),
        (given(woken=True, now=NIGHT), Skip.ACTIVE_HOURS),
        (given(woken=True, checklist=Skip.CHECKLIST_UNREADABLE), Skip.CHECKLIST_UNREADABLE),
        (given(woken=True, checklist=Skip.CHECKLIST_TOO_LARGE), Skip.CHECKLIST_TOO_LARGE),
        (given({"show_alerts": False}, woken=True), Skip.NOT_SHOWN),
        (given(woken=True, checklist="- [every 6h] look", last_prompted=ASKED), None),
        (given(woken=True, checklist="- [paused] look"), None),
        (given(woken=True, blocked=BREAKER_OPEN), Skip.BREAKER_OPEN),
    ],
)
def test_a_wake_overrides_only_the_checks_for_missing_work(situation: Situation, obstacle: Skip | None) -> None:
    assert first_obstacle(situation) is obstacle


def test_the_first_failing_check_gives_the_reason() -> None:
    everything = {"enabled": False, "show_alerts": False}
    assert first_obstacle(given(everything, blocked=PAUSED, now=NIGHT, checklist="")) is Skip.DISABLED
    assert first_obstacle(given({"show_alerts": False}, blocked=PAUSED, now=NIGHT, checklist="")) is Skip.PAUSED
    assert first_obstacle(given({"show_alerts": False}, now=NIGHT, checklist="")) is Skip.ACTIVE_HOURS
    assert first_obstacle(given({"show_alerts": False}, checklist="")) is Skip.CHECKLIST_EMPTY


def test_the_checks_of_the_checklist_come_before_those_of_the_budget_and_the_circuit_breaker() -> None:
    blocked = {Skip.BUDGET: "2 of 2 USD", **BREAKER_OPEN}
    assert first_obstacle(given({"show_alerts": False}, checklist="- [paused] look", blocked=blocked)) is Skip.NOTHING_DUE
    assert first_obstacle(given({"show_alerts": False}, blocked=blocked)) is Skip.NOT_SHOWN
    assert first_obstacle(given(blocked=blocked)) is Skip.BUDGET
    assert first_obstacle(given(blocked=BREAKER_OPEN)) is Skip.BREAKER_OPEN


@loop_over(
    ("check", "status", "woken", "obstacle"),
    [
        (PRECHECK, PrecheckStatus.WORK, False, None),
        (PRECHECK, PrecheckStatus.NOTHING, False, Skip.PRECHECK),
        (PRECHECK, PrecheckStatus.NOTHING, True, None),
        (PRECHECK, PrecheckStatus.UNCHANGED, False, Skip.PRECHECK_UNCHANGED),
        (PRECHECK, PrecheckStatus.UNCHANGED, True, None),
        (replace(PRECHECK, unchanged="run"), PrecheckStatus.UNCHANGED, False, None),
        (PRECHECK, PrecheckStatus.FAILED, False, Skip.PRECHECK_FAILED),
        (PRECHECK, PrecheckStatus.FAILED, True, Skip.PRECHECK_FAILED),
        (replace(PRECHECK, on_error="run"), PrecheckStatus.FAILED, False, None),
    ],
)
def test_each_result_of_a_precheck_has_its_reason(
    check: Precheck, status: PrecheckStatus, woken: bool, obstacle: Skip | None
) -> None:
    assert precheck_obstacle(check, PrecheckResult(status), woken=woken) is obstacle


def test_the_checks_that_need_a_run_are_listed_without_a_result() -> None:
    late = [Skip.PRECHECK, Skip.PRECHECK_UNCHANGED, Skip.PRECHECK_FAILED, Skip.PROMPT_TOO_LARGE]
    assert [reason for reason, blocks in check_results(given({"precheck": PRECHECK})) if blocks is None] == late
    assert [reason for reason, blocks in check_results(FREE) if blocks is None] == [Skip.PROMPT_TOO_LARGE]


def test_the_skip_reasons_are_in_the_order_of_the_checks() -> None:
    assert " ".join(Skip) == (
        "disabled paused removed calendar active_hours already_running busy checklist_missing checklist_empty "
        "checklist_unreadable checklist_too_large nothing_due not_shown budget breaker_open precheck precheck_unchanged "
        "precheck_failed prompt_too_large missed superseded predecessor cancelled"
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
