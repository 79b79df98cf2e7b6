"""Tests of what the report says about costs: by model, by cause, by part of the prompt, from the cache, and the trend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from test_cli_reading import add_run
from test_report_data import NOON, WEEK, columns, week_of
from world import open_store

from scheduler.cli import output
from scheduler.cli import report_text as report
from scheduler.insight.report_data import build_report
from scheduler.store import cost_history
from scheduler.store.database import Store

DAY = timedelta(days=1)
MIDDLE = NOON - WEEK / 2


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path / "heartbeatd.db")
    yield store
    store.close()


def tokens(**counts: int) -> str:
    return json.dumps({"input": 0, "output": 0, "cache_read": 0, "cache_write": 0} | counts)


def usage(**models: float | None) -> str:
    """The usage of a run by model: each was called once, with 100 tokens in and 10 out, at this cost."""
    one = {"calls": 1, "input": 100, "output": 10, "cache_read": 0, "cache_write": 0}
    return json.dumps({model: one | {"usd": usd} for model, usd in models.items()})


def report_of_week(store: Store, zone: str = "UTC", span: timedelta = WEEK) -> dict[str, Any]:
    data = build_report(store.connection, NOON - span, NOON, running=True, zone=ZoneInfo(zone)).as_data()
    assert json.loads(json.dumps(data)) == data
    return data


def text_of(store: Store) -> str:
    """The report of the week as text, with the summary on one line."""
    period, summary, *tables = report.format_report(week_of(store), "entry").split("\n\n")
    return "\n\n".join([period, " ".join(summary.split()), *tables])


def add_entry(store: Store, name: str, first_seen_days_ago: int) -> None:
    at = int((NOON - first_seen_days_ago * DAY).timestamp() * 1000)
    store.connection.execute(
        "insert into entry (kind, name, state, pace, first_seen_at, anchor, settled_until) values ('heartbeat', ?, 'active', '{}',"
        " ?, 1, 1)",
        (name, at),
    )


def test_a_run_that_called_two_models_counts_for_both(store: Store) -> None:
    both = usage(small=0.01, big=0.5)
    add_run(store, MIDDLE, model_requested="big", tokens=tokens(input=200, output=20), cost_usd=0.51, model_usage=both)
    add_run(store, MIDDLE, name="lab", model_requested="big", tokens=tokens(input=100), cost_usd=0.2, model_usage=usage(big=0.2))
    data = report_of_week(store)
    assert columns(data["agent_models"], "name", "model", "calls", "cost_usd") == [
        ("ops", "big", 1, 0.5),
        ("lab", "big", 1, 0.2),
        ("ops", "small", 1, 0.01),
    ]
    assert columns(data["models"], "model", "runs", "calls", "cost_usd") == [("big", 2, 2, 0.7), ("small", 0, 1, 0.01)]
    assert "agent/ops  small      1        100       -   10  $0.0100" in text_of(store)


def test_a_run_of_an_earlier_version_counts_for_the_model_that_was_requested(store: Store) -> None:
    add_run(store, MIDDLE, model_requested="big", tokens=tokens(input=200, output=20, cache_read=50), cost_usd=0.51)
    (row,) = report_of_week(store)["agent_models"]
    assert (row["model"], row["calls"], row["tokens"], row["cost_usd"]) == ("big", 1, {"input": 250, "output": 20}, 0.51)


def test_a_model_without_a_price_has_no_cost_and_the_others_keep_theirs(store: Store) -> None:
    add_run(store, MIDDLE, tokens=tokens(input=200), model_usage=usage(free=None, big=0.5))
    assert columns(report_of_week(store)["agent_models"], "model", "cost_usd", "runs_without_price") == [
        ("big", 0.5, 0),
        ("free", None, 1),
    ]


def test_the_report_names_the_job_or_sender_that_woke_the_agents_and_their_cost(store: Store) -> None:
    add_run(store, MIDDLE, cost_usd=0.1, tokens=tokens(input=5))
    for minute in (1, 2):
        at = MIDDLE + timedelta(minutes=minute)
        add_run(store, at, trigger="cron", woken_by="nightly", name=f"lab{minute}", cost_usd=1.5, tokens=tokens(input=5))
    add_run(store, MIDDLE, trigger="api", woken_by="pager", cost_usd=0.2, tokens=tokens(input=5))
    add_run(store, MIDDLE, trigger="api", woken_by="pager", outcome="skipped", name="lab1", reason="budget")
    add_run(store, MIDDLE, kind="cron", name="nightly", trigger="schedule", exit_code=0)  # a command calls no agent
    data = report_of_week(store)
    assert columns(data["causes"], "source", "sender", "runs", "cost_usd") == [
        ("cron", "nightly", 2, 3.0),
        ("api", "pager", 1, 0.2),
        ("schedule", None, 1, 0.1),
    ]
    rows = [line.split() for line in text_of(store).splitlines()]
    assert ["cron/nightly", "2", "$3.00", "agent/lab1", "1,", "agent/lab2", "1"] in rows
    assert ["api", "pager", "1", "$0.20", "agent/ops"] in rows


def test_a_run_of_an_earlier_version_names_the_sender_of_the_wake_that_started_it(store: Store) -> None:
    run = add_run(store, MIDDLE, trigger="cron", cost_usd=1.5)
    for sender, started in (("joined", 0), ("nightly", 1)):
        store.connection.execute(
            "insert into wake (kind, name, source, sender, text, created_at, updated_at, state, run_id, started)"
            " values ('heartbeat', 'ops', 'cron', ?, '', 1, 1, 'ended', ?, ?)",
            (sender, run, started),
        )
    assert columns(report_of_week(store)["causes"], "source", "sender") == [("cron", "nightly")]


def test_a_check_saves_what_the_runs_of_its_own_agent_cost(store: Store) -> None:
    for name, cost, by_cache in (("cheap", 0.01, 0.005), ("dear", 1.0, 0.0)):
        add_run(store, MIDDLE, name=name, cost_usd=cost, cache_saved_usd=by_cache, tokens=tokens(input=5))
    for hour, why in enumerate(("precheck", "precheck_unchanged", "checklist_empty", "nothing_due", "active_hours"), 1):
        add_run(store, MIDDLE + timedelta(hours=hour), "skipped", name="cheap", reason=why, slots=10)
    saved = report_of_week(store)["saved"]
    assert (saved["checked_runs"], saved["checks_usd"]) == (40, 0.6), "of active hours nothing is saved"


def test_without_wakes_the_report_has_no_table_of_causes(store: Store) -> None:
    add_run(store, MIDDLE, cost_usd=0.1)
    assert "STARTED BY" not in text_of(store)


def test_the_report_shows_what_fills_the_prompts_and_of_whom(store: Store) -> None:
    add_run(store, MIDDLE, prompt_parts=json.dumps({"checklist": 100, "context:SOUL.md": 2900}))
    add_run(store, MIDDLE, name="lab", prompt_parts=json.dumps({"checklist": 1000}))
    add_run(store, MIDDLE, "skipped", name="big", reason="prompt_too_large", prompt_parts=json.dumps({"checklist": 10**6}))
    data = report_of_week(store)
    assert columns(data["prompt"], "part", "runs", "tokens", "share") == [
        ("context:SOUL.md", 1, 2900, 0.725),
        ("checklist", 2, 1100, 0.275),
    ]
    assert columns(data["prompt"][1]["entries"], "name", "tokens") == [("lab", 1000), ("ops", 100)]
    assert "checklist           2    1.1k    28%      550  agent/lab" in text_of(store)


def test_the_report_shows_the_share_of_the_cache(store: Store) -> None:
    add_run(store, MIDDLE, tokens=tokens(input=250, cache_read=700, cache_write=50), model_requested="big")
    data = report_of_week(store)
    assert data["totals"]["cache"] == {"read": 700, "write": 50}
    assert "70% of the input tokens were read from the cache, and 5% were written to it." in text_of(store)
    assert "big        1       1.0k     70%" in text_of(store)


@pytest.mark.parametrize(
    ("before", "now", "sentence", "change"),
    [
        (2.0, 1.5, "The 7d before: 1 run, $2.00. The cost fell by 25%.", "-25%"),
        (2.0, 4.5, "The 7d before: 1 run, $2.00. The cost rose by 125%.", "+125%"),
        (2.0, 2.0, "The 7d before: 1 run, $2.00. The cost is the same.", "the same"),
        (2.0, None, "The 7d before: 1 run, $2.00.", "-"),
        (0.0, 2.0, "The 7d before: 1 run, $0.00.", "new"),
    ],
)
def test_the_report_compares_the_cost_with_the_period_before(
    store: Store, before: float, now: float | None, sentence: str, change: str
) -> None:
    add_run(store, NOON - 3 * WEEK)
    add_run(store, MIDDLE - WEEK, cost_usd=before)
    add_run(store, MIDDLE, cost_usd=now)
    data = report_of_week(store)
    assert data["previous"]["totals"]["cost_usd"] == before
    assert f"{sentence} " in text_of(store) or f"{sentence}\n" in text_of(store)
    assert text_of(store).split("CHANGE\n")[1].split("\n")[0].endswith(change)


def test_a_history_that_begins_in_the_period_before_is_not_compared(store: Store) -> None:
    add_run(store, MIDDLE - WEEK, cost_usd=0.1)
    add_run(store, MIDDLE, cost_usd=2.0)
    text = text_of(store)
    first = output.format_time(MIDDLE - WEEK)[:16]
    assert f"The 7d before: 1 run, $0.10. The first run record is of {first}." in text
    assert "CHANGE" not in text
    assert "rose" not in text


def test_an_entry_whose_old_records_were_deleted_is_not_compared(store: Store) -> None:
    add_run(store, NOON - 3 * WEEK, name="lab")
    add_run(store, MIDDLE - WEEK, cost_usd=0.1)
    add_run(store, MIDDLE, cost_usd=2.0)
    add_entry(store, "ops", first_seen_days_ago=90)
    add_entry(store, "lab", first_seen_days_ago=90)
    data = report_of_week(store)
    assert data["previous"]["incomplete"] == [{"kind": "heartbeat", "name": "ops"}]
    assert "Some run records of that time were deleted, so it cannot be compared." in text_of(store)


def test_without_an_earlier_period_there_is_no_trend(store: Store) -> None:
    add_run(store, MIDDLE, cost_usd=2.0)
    assert "before" not in text_of(store)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns", "Asia/Kathmandu"])
def test_the_costs_by_day_and_by_hour_are_those_of_local_days_and_hours(store: Store, zone: str) -> None:
    local = ZoneInfo(zone)
    for day in (15, 16):
        midnight = NOON.astimezone(local).replace(day=day, hour=0, minute=0)
        add_run(store, midnight - timedelta(seconds=2), name="late", cost_usd=1.0)
        add_run(store, midnight, name="early", cost_usd=0.25)
    days = report_of_week(store, zone)["by_time"]
    assert len(days) == 8
    assert (days[0]["since"], days[-1]["until"]) == ("2026-11-13T12:00:00Z", "2026-11-20T12:00:00Z")
    assert [each["cost_usd"] for each in days if each["runs"]] == [1.0, 1.25, 0.25]
    *hours, _ = report_of_week(store, zone, timedelta(hours=2))["by_time"]
    assert {datetime.fromisoformat(each["until"]).astimezone(local).minute for each in hours} == {0}


@pytest.mark.parametrize(("span", "steps"), [(3 * timedelta(hours=1), 3), (2 * DAY, 48), (30 * DAY, 31), (365 * DAY, 53)])
def test_a_longer_period_is_divided_into_longer_steps_without_gaps(store: Store, span: timedelta, steps: int) -> None:
    add_run(store, NOON - timedelta(minutes=5), "alert", cost_usd=1.0)
    data = report_of_week(store, span=span)["by_time"]
    assert len(data) == steps
    assert [each["until"] for each in data[:-1]] == [each["since"] for each in data[1:]]
    assert columns(data[-1:], "runs", "alerts", "failed", "cost_usd") == [(1, 1, 0, 1.0)]


def test_the_queries_of_costs_use_the_index_of_the_history(store: Store) -> None:
    for query in (cost_history.MODELS, cost_history.CAUSES, cost_history.PROMPTS, cost_history.QUARTERS):
        plan = store.connection.execute(
            "explain query plan " + query, {"since": 0, "until": 1} if ":since" in query else (0, 1)
        ).fetchall()
        assert [row["detail"] for row in plan if "run_finished" in row["detail"]]
