"""Tests of what the report counts, and of its layout within eighty columns."""

from __future__ import annotations

import json
import os
import random
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from loops import loop_over
from test_cli_reading import add_run, live
from world import AgentCall, Delayed, MakeWorld, open_store, utc

from scheduler.cli import report_text as report
from scheduler.cli.main import main
from scheduler.cli.output import abbreviate_count, format_why
from scheduler.engine.delivery import Delivery
from scheduler.insight.report_data import Report, build_report
from scheduler.model.message import DeliveryResult
from scheduler.store import run_history
from scheduler.store.database import Store, open_read_only

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
WEEK = timedelta(days=7)
TOKENS = json.dumps({"input": 1000, "output": 50, "cache_read": 200, "cache_write": 0})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "heartbeatd.db"


@pytest.fixture
def store(state: Path) -> Iterator[Store]:
    store = open_store(state)
    yield store
    store.close()


def week_of(store: Store) -> Report:
    return build_report(store.connection, NOON - WEEK, NOON, running=True)


def report_of_week(store: Store, *, running: bool = True) -> dict[str, Any]:
    return build_report(store.connection, NOON - WEEK, NOON, running=running).as_data()


def columns(part: list[dict[str, Any]], *words: str) -> list[tuple[Any, ...]]:
    return [tuple(each[word] for word in words) for each in part]


def test_each_entry_has_totals_and_the_most_expensive_comes_first(store: Store) -> None:
    for minute, cost in enumerate((0.01, 0.03)):
        add_run(store, NOON - WEEK / 2 + timedelta(minutes=minute), "alert", name="cheap", cost_usd=cost, tokens=TOKENS)
    add_run(store, NOON - WEEK / 2, "ok", suppression="heartbeat_ok", name="dear", cost_usd=2.5, tokens=TOKENS)
    add_run(store, NOON - WEEK / 2, "failed", reason="exit", kind="cron", name="job")
    add_run(store, NOON - WEEK / 2 + timedelta(hours=1), "skipped", reason="missed", slots=7, kind="cron", name="job")
    data = report_of_week(store)
    assert columns(data["entries"], "kind", "name", "runs", "said", "failed", "skipped", "missed", "cost_usd") == [
        ("heartbeat", "dear", 1, 0, 0, 0, 0, 2.5),
        ("heartbeat", "cheap", 2, 2, 0, 0, 0, 0.04),
        ("cron", "job", 1, 0, 1, 7, 7, None),
    ]
    assert data["entries"][1]["dearest_run"] == {"id": 2, "cost_usd": 0.03}
    totals = data["totals"]
    assert [totals[word] for word in ("runs", "said", "failed", "skipped", "missed", "cost_usd")] == [4, 2, 1, 7, 7, 2.54]
    assert totals["tokens"] == {"input": 3600, "output": 150}
    assert totals["dearest_run"] == {"id": 3, "cost_usd": 2.5}


def test_the_most_expensive_entry_is_named_with_a_run_of_its_own(store: Store) -> None:
    for minute in range(3):
        add_run(store, NOON - WEEK / 2 + timedelta(minutes=minute), "ok", name="dear", cost_usd=1.0 + minute)
    add_run(store, NOON - WEEK / 2, "ok", name="once", cost_usd=4.0)
    assert "Most expensive: agent/dear ($6.00; run 3 alone $3.00)." in report.format_summary(week_of(store)).replace("\n", " ")


@pytest.mark.parametrize(
    ("ended_at", "counts"),
    [(NOON - WEEK, 1), (NOON - WEEK - timedelta(seconds=1), 0), (NOON, 0), (NOON - timedelta(seconds=1), 1)],
)
def test_only_runs_that_ended_within_the_period_count(store: Store, ended_at: datetime, counts: int) -> None:
    add_run(store, ended_at - timedelta(seconds=1))
    assert report_of_week(store)["totals"]["runs"] == counts


def test_tokens_without_a_price_are_counted_and_their_cost_is_unknown(store: Store) -> None:
    add_run(store, NOON - WEEK / 2, name="free", tokens=TOKENS)
    add_run(store, NOON - WEEK / 2, name="plain")
    assert columns(report_of_week(store)["entries"], "name", "cost_usd", "runs_without_price") == [
        ("free", None, 1),
        ("plain", None, 0),
    ]


def test_unreported_usage_is_shown_as_the_budgets_count_it(store: Store) -> None:
    add_run(store, NOON - WEEK / 2, name="silent", charged_nanos=40_000_000)
    add_run(store, NOON - WEEK / 2, name="cut", charged_nanos=50_000_000, cost_usd=0.01)
    add_run(store, NOON - WEEK / 2, name="whole", charged_nanos=30_000_000, cost_usd=0.03)
    data = report_of_week(store)
    assert columns(data["entries"], "name", "untold_usd") == [("whole", 0.0), ("cut", 0.04), ("silent", 0.04)]
    assert data["totals"]["untold_usd"] == 0.08
    assert list(report.cost_sentences(week_of(store).totals)) == [
        "Spent $0.0400 for 0 tokens in and 0 out; usage worth up to $0.0800 was not reported."
    ]


def test_a_model_is_summed_over_its_entries(store: Store) -> None:
    for name, model, cost in (("a", "big", 1.0), ("b", "big", 2.0), ("c", None, None)):
        add_run(store, NOON - WEEK / 2, "alert", name=name, model_requested=model, cost_usd=cost)
    add_run(store, NOON - WEEK / 2 + timedelta(hours=1), "skipped", name="a", reason="budget")
    assert columns(report_of_week(store)["models"], "model", "runs", "said", "cost_usd") == [
        ("big", 2, 2, 3.0),
        (None, 1, 1, None),
    ]


def test_each_reason_is_counted_by_entry(store: Store) -> None:
    hour = timedelta(hours=1)
    for name, slots in (("a", 2), ("b", 5)):
        add_run(store, NOON - WEEK / 2, "skipped", name=name, reason="active_hours", slots=slots)
    add_run(store, NOON - WEEK / 2 + hour, "alert", name="a", suppression="duplicate")
    add_run(store, NOON - WEEK / 2 + 2 * hour, "timeout", name="a", reason="timeout")
    data = report_of_week(store)
    assert columns(data["skipped"], "why", "count") == [("active_hours", 7)]
    assert columns(data["skipped"][0]["entries"], "name", "count") == [("b", 5), ("a", 2)]
    assert columns(data["suppressed"], "why", "count") == [("duplicate", 1)]
    assert columns(data["failed"], "why", "count") == [("timeout", 1)]
    assert data["totals"]["said"] == 0


def test_an_async_result_does_not_count_as_another_run(store: Store) -> None:
    add_run(store, NOON - WEEK / 2, "async")
    add_run(store, NOON - WEEK / 2, "alert", trigger="result")
    assert columns([report_of_week(store)["totals"]], "runs", "said") == [(1, 1)]


def test_downtime_is_the_time_between_boots_within_the_period(store: Store) -> None:
    start = NOON - WEEK
    live(store, "one", start - WEEK, start - timedelta(hours=1))
    live(store, "two", start + timedelta(hours=2), start + timedelta(hours=3))
    live(store, "three", start + timedelta(hours=4), NOON - timedelta(hours=1))
    downs = [("2026-11-13T12:00:00Z", "2026-11-13T14:00:00Z", True), ("2026-11-13T15:00:00Z", "2026-11-13T16:00:00Z", True)]
    assert columns(report_of_week(store)["downs"], "since", "until", "clean") == downs
    last_down = ("2026-11-20T11:00:00Z", "2026-11-20T12:00:00Z", True)
    assert columns(report_of_week(store, running=False)["downs"], "since", "until", "clean") == [*downs, last_down]
    live(store, "four", NOON + timedelta(hours=1), None)
    assert columns(report_of_week(store)["downs"], "since", "until", "clean") == [*downs, last_down]


def test_a_daemon_that_never_stopped_has_no_downtime(store: Store) -> None:
    live(store, "one", NOON - 2 * WEEK, None)
    assert report_of_week(store)["downs"] == []


def test_the_report_uses_the_indexes_of_the_history_and_the_outbox(store: Store) -> None:
    for query, times in ((run_history.RUNS, {"since": 0, "until": 1}), (run_history.EFFECTS, (0, 1))):
        plan = store.connection.execute("explain query plan " + query, times).fetchall()
        assert [row["detail"] for row in plan if "run_finished" in row["detail"]]
    messages_plan = store.connection.execute("explain query plan " + run_history.MESSAGES, (0, 1)).fetchall()
    assert [row["detail"] for row in messages_plan if "outbox_channel" in row["detail"]]
    assert not [row["detail"] for row in messages_plan if "TEMP B-TREE" in row["detail"]]


# --- the report of a month ------------------------------------------------------------------------------------------------

MONTH = """
timezone: Europe/Berlin
history: {keep: 60d, runs: 10000}
channels:
  phone: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}
  hook: {kind: webhook, url: "http://127.0.0.1:1/y", allow_private: true, uncertain: hold}
agents:
  ops:
    model: claude-haiku-5-5
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, active_hours: "08:00-22:00", checklist: "- look\\n", deliver: phone}
  research:
    model: claude-sonnet-5
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 6h, stagger: 0s, checklist: "- look\\n", deliver: hook}
cron:
  nightly-backup: {schedule: "0 3 * * *", command: backup, deliver: phone}
"""


def agent_output(text: str, tokens_in: int, price: float) -> str:
    """The output of an agent program that reports its usage and cost."""
    return json.dumps(
        {"result": text, "total_cost_usd": tokens_in * price, "usage": {"input_tokens": tokens_in, "output_tokens": 40}}
    )


def chance_of(*key: object) -> float:
    """A random number below 1 that depends only on its arguments."""
    return random.Random(repr(key)).random()


class Month:
    """Thirty days of two agents and a job, with channels that sometimes fail, and a daemon that was down twice."""

    def __init__(self, make_world: MakeWorld) -> None:
        scripts = {"ops": self._ops, "research": self._research, "nightly-backup": self._backup}
        self.world = make_world(MONTH, start="2026-10-10 00:00", scripts=scripts, send=self._send)
        self.world.run(days=12)
        self.world.downtime(hours=5)
        self.world.run(days=17, hours=18, minutes=53)
        self.world.downtime(minutes=7)
        self.world.run(hours=1)

    def _ops(self, call: AgentCall) -> str:
        news = chance_of("ops", call.at) < 0.1
        return agent_output("The disk /srv is full." if news else "HEARTBEAT_OK", 3_000, 1e-6)

    def _research(self, call: AgentCall) -> str:
        is_expensive = call.at.day == 7 and call.at.month == 11 and call.at.hour == 6
        return agent_output(f"News of {call.at}", 900_000 if is_expensive else 90_000, 3e-6)

    def _backup(self, call: AgentCall) -> Any:
        return 1 if chance_of("backup", call.at) < 0.1 else Delayed("done", timedelta(minutes=4))

    def _send(self, delivery: Delivery) -> DeliveryResult:
        drawn = chance_of(delivery.channel.name, delivery.message.key)
        if delivery.channel.name == "hook" and drawn < 0.05:
            return DeliveryResult("uncertain", "no answer within 20 s")
        return DeliveryResult("delivered") if drawn > 0.02 else DeliveryResult("dead", "127.0.0.1 answered 400 Bad Request")


MONTH_REPORT = """\
2026-10-10 00:00 to 2026-11-09 00:00, UTC (30d)

989 runs: 144 with an alert, 844 without, 1 failed. 595 planned runs skipped, 1
of them missed. Spent $37.35 for 14m tokens in and 38k out. Most expensive:
agent/research ($34.83; run 955 alone $2.70). Most alerts: agent/research (120
of 144). Undelivered messages: 11 dead (`heartbeatd outbox`). The daemon was
down 2 times, 5h7m in all.

NAME                 RUNS  ALERTS  FAILED  SKIPPED  MISSED   SPENT
agent/research        120     120       0        0       0  $34.83
agent/ops             840      24       0      594       0   $2.52
cron/nightly-backup    29       0       1        1       1       -

NAME            MODEL             CALLS  TOKENS IN  CACHED   OUT   SPENT
agent/research  claude-sonnet-5     120        12m       -  4.8k  $34.83
agent/ops       claude-haiku-5-5    840       2.5m       -   34k   $2.52

PROMPT        RUNS  TOKENS  SHARE  PER RUN  MOST IN
instructions   960    212k    86%      221  agent/ops
time           960     21k     8%       21  agent/ops
last run       960    9.6k     4%       10  agent/ops
checklist      960    5.8k     2%        6  agent/ops

SKIPPED       TIMES  ENTRIES
active_hours    594  agent/ops
missed            1  cron/nightly-backup

NOT SENT       RUNS  ENTRIES
heartbeat_ok    742  agent/ops
duplicate        74  agent/ops

FAILED         RUNS  ENTRIES
exit              1  cron/nightly-backup

CHANNEL  DELIVERED  PENDING  HELD  DEAD  DROPPED  UNCERTAIN
hook           113        0     0     9        0          9
log              2        0     0     0        0          0
phone           68        0     0     2        0          0

DOWN FROM            UNTIL                FOR  WHY
2026-10-22 00:00:00  2026-10-22 05:00:00  5h   ended unexpectedly
2026-11-08 23:53:00  2026-11-09 00:00:00  7m   ended unexpectedly"""


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host in UTC, without a terminal width in the environment."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("COLUMNS", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_month_is_reported_in_eighty_columns_and_its_most_expensive_run_is_listed_first(
    make_world: MakeWorld, in_utc: None, capsys: pytest.CaptureFixture[str]
) -> None:
    month = Month(make_world)
    of_month = build_report(month.world.store.connection, utc("2026-10-10 00:00"), utc("2026-11-09 00:00"), running=True)
    text = report.format_report(of_month, "entry")
    assert text == MONTH_REPORT
    assert max(map(len, text.splitlines())) <= 80
    month.world.stop()
    arguments = ["runs", "--sort", "cost", "--since", "2026-11-06", "--limit", "2", "--state", str(month.world.state)]
    assert main([*arguments, "--format", "json"]) == 0
    dearest, following = json.loads(capsys.readouterr().out)
    assert (dearest["name"], dearest["planned_at"], dearest["cost_usd"]) == ("research", "2026-11-07T06:00:00Z", 2.7)
    assert following["cost_usd"] == 0.27
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == "SPENT"
    assert lines[1].split()[-1] == "$2.70"


def entries_table(store: Store) -> list[list[str]]:
    """The words of the rows of the first table, without its heading."""
    tables = report.format_report(week_of(store), "entry").split("\n\n")
    return [row.split() for row in next(each for each in tables if each.startswith("NAME")).splitlines()[1:]]


def test_of_many_entries_those_with_the_highest_cost_most_alerts_and_most_failures_are_shown(store: Store) -> None:
    add_run(store, NOON - WEEK / 2, name="dear", cost_usd=9.0)
    for number in range(40):
        add_run(store, NOON - WEEK / 2, name=f"e{number:02}")
    for minute in range(7):
        add_run(store, NOON - WEEK / 2 + timedelta(minutes=minute), "alert", name="loud")
    for minute in range(3):
        add_run(store, NOON - WEEK / 2 + timedelta(minutes=minute), "failed", reason="exit", name="bad")
    rows = entries_table(store)
    assert {"agent/dear", "agent/loud", "agent/bad"} <= {name for name, *_ in rows}
    assert len(rows) <= report.MAX_ROWS + 1
    others = 43 - len(rows) + 1
    assert rows[-1] == [str(others), "others", str(others), "0", "0", "0", "0", "-"]


def test_an_incomplete_cost_is_marked(store: Store) -> None:
    add_run(store, NOON - WEEK / 2, name="a", cost_usd=1.5)
    add_run(store, NOON - WEEK / 2 + timedelta(minutes=1), name="a", tokens=TOKENS)
    add_run(store, NOON - WEEK / 2, name="b", cost_usd=0.5, charged_nanos=700_000_000)
    assert [(row[0], row[-1]) for row in entries_table(store)] == [("agent/a", "$1.50+"), ("agent/b", "$0.50+")]


def test_a_period_without_runs_and_skips_is_one_sentence(state: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--state", str(state)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["", "Nothing ran, and nothing was skipped."]


@pytest.mark.parametrize("by", ["entry", "model"])
def test_a_period_without_runs_has_one_line_and_no_empty_tables(by: Literal["entry", "model"], store: Store) -> None:
    add_run(store, NOON - WEEK / 2, "skipped", reason="active_hours", slots=2)
    text = report.format_report(week_of(store), by)
    assert "Nothing ran. 2 planned runs skipped.\n" in text
    assert not [table for table in text.split("\n\n") if table.isupper() and "\n" not in table]
    assert ("MODEL" in text, "NAME" in text) == (False, by == "entry")


def test_before_the_first_start_the_missing_database_is_reported(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--state", str(state)]) == 0
    assert capsys.readouterr().out == f"there is no database yet: {state}\n"
    assert main(["report", "--state", str(state), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) is None


def test_a_report_as_json_has_all_its_parts(state: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--for", "30d", "--by", "model", "--state", str(state), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data.keys() == {
        "since",
        "until",
        "totals",
        "saved",
        "monthly",
        "previous",
        "entries",
        "models",
        "agent_models",
        "causes",
        "prompt",
        "by_time",
        "skipped",
        "suppressed",
        "failed",
        "problems",
        "deliveries",
        "downs",
    }
    span = datetime.fromisoformat(data["until"]) - datetime.fromisoformat(data["since"])
    assert span == timedelta(days=30)


def test_a_report_writes_nothing_to_the_database(state: Path, store: Store) -> None:
    db = open_read_only(state)
    try:
        build_report(db, NOON - WEEK, NOON, running=True)
        assert db.total_changes == 0
    finally:
        db.close()


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0"), (950, "950"), (1200, "1.2k"), (310_400, "310k"), (999_960, "1.0m"), (4_100_000, "4.1m")]
)
def test_counts_are_abbreviated(count: int, expected: str) -> None:
    assert abbreviate_count(count) == expected


@pytest.mark.parametrize(
    ("why", "delivery", "expected"),
    [
        (None, "none", "-"),
        ("exit", "dead", "exit, dead"),
        ("exit", "muted", "exit, muted"),
        ("muted", "muted", "muted"),
        ("duplicate", "delivered", "duplicate"),
        ("duplicate", "dead", "duplicate, dead"),
        (None, "held", "held"),
    ],
)
def test_a_result_is_shown_with_its_reason_and_its_deliveries(why: str | None, delivery: str, expected: str) -> None:
    assert format_why(why, delivery) == expected


OPENED = json.dumps([{"key": "disk", "effect": "opened"}])


def test_the_problems_of_an_agent_and_of_a_job_with_its_name_are_counted_apart(store: Store) -> None:
    for kind, number in (("heartbeat", 2), ("cron", 1)):
        for minute in range(number):
            add_run(store, NOON - WEEK / 2 + timedelta(minutes=minute), "alert", kind=kind, name="ops", findings=OPENED)
    assert columns(report_of_week(store)["problems"], "kind", "name", "opened") == [("heartbeat", "ops", 2), ("cron", "ops", 1)]
    effects = [{"key": effect, "effect": effect} for effect in ("opened", "resolved", "cleared", "reminded", "known")]
    add_run(store, NOON - WEEK / 2, "alert", name="web", findings=json.dumps(effects))
    add_run(store, NOON - WEEK / 2 + timedelta(hours=1), "ok", suppression="duplicate", name="web")
    (web,) = (each for each in week_of(store).problems if each.name == "web")
    assert (web.opened, web.resolved, web.reminders, web.duplicates) == (1, 2, 1, 1)
    printed = "\n".join(report.format_report(week_of(store), "entry").partition("PROBLEMS")[2].splitlines()[1:3])
    assert [line.split()[:2] for line in printed.splitlines()] == [["agent/ops", "2"], ["cron/ops", "1"]]


def test_a_report_of_some_agents_equals_that_of_a_database_without_all_others(tmp_path: Path) -> None:
    stores = [open_store(tmp_path / name) for name in ("all.db", "ops.db")]
    for store in stores:
        add_run(store, NOON - WEEK, "alert", name="ops", cost_usd=0.25, tokens=TOKENS, model_used="small")
        add_run(store, NOON - WEEK / 2, "skipped", reason="busy", slots=3, name="ops")
        add_message(store, 1, "heartbeat", "ops")
        add_run(store, NOON - WEEK / 3, "alert", name="ops", findings=OPENED)
    for kind, name in (("heartbeat", "web"), ("cron", "ops")):
        add_run(stores[0], NOON - WEEK / 3, "alert", kind=kind, name=name, findings=OPENED)
    add_run(stores[0], NOON - WEEK / 2, "failed", reason="exit", name="web", cost_usd=1.5, tokens=TOKENS, model_used="large")
    add_run(stores[0], NOON - WEEK / 2, "ok", kind="cron", name="ops", cost_usd=0.5, tokens=TOKENS, model_used="large")
    add_run(stores[0], NOON - 1.5 * WEEK, name="web", cost_usd=3.0)
    for store in stores:
        add_run(store, NOON - 1.6 * WEEK, name="ops")
    add_message(stores[0], 6, "heartbeat", "web")
    add_message(stores[0], 7, "cron", "ops")
    whole, only = map(report_of_week, stores)
    assert whole["totals"]["cost_usd"] == 2.25
    assert build_report(stores[0].connection, NOON - WEEK, NOON, running=True, agents={"ops"}).as_data() == only
    assert only["deliveries"][0]["pending"] == 1
    for store in stores:
        store.close()


def add_message(store: Store, run_id: int, kind: str, name: str) -> None:
    at = round((NOON - WEEK / 2).timestamp() * 1000)
    with store.transaction() as db:
        db.execute(
            "insert into outbox (key, channel, run_id, kind, name, trigger, slot, part, parts, title, text, state, not_before,"
            " created_at) values (?, 'phone', ?, ?, ?, 'every', 1, 1, 1, 't', 't', 'pending', 1, ?)",
            (f"{kind}{name}", run_id, kind, name, at),
        )


# --- the file ---------------------------------------------------------------------------------------------------------------------


def run_report(state: Path, *arguments: str) -> int:
    return main(["report", "--state", str(state), *arguments])


@pytest.fixture
def group_may_write() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


def test_the_report_is_written_to_a_file_and_the_summary_is_printed(
    store: Store, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], group_may_write: None
) -> None:
    add_run(store, datetime.now(UTC) - timedelta(hours=1), cost_usd=0.5)
    file = tmp_path / "a report"
    assert run_report(state, "--format", "json", "--out", str(file)) == 0
    assert capsys.readouterr().out.startswith("1 run: 0 with an alert, 1 without, 0 failed. Spent $0.50")
    assert json.loads(file.read_text("utf-8"))["totals"]["cost_usd"] == 0.5
    assert stat.S_IMODE(file.stat().st_mode) == 0o664
    file.chmod(0o640)
    assert run_report(state, "--out", str(file)) == 0
    assert file.read_text("utf-8").splitlines()[2].startswith("1 run:")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [each.name for each in tmp_path.iterdir() if "report" in each.name] == ["a report"]


def test_a_link_to_the_report_stays_a_link(store: Store, state: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert run_report(state, "--out", str(tmp_path / "link")) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").exists()


@loop_over(("name", "problem"), [("none/report", "No such file or directory"), ("/dev/null", "not a regular file")])
def test_a_report_that_cannot_be_written_is_an_error_of_one_line(
    store: Store, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, problem: str
) -> None:
    assert run_report(state, "--out", str(tmp_path / name)) == 2
    assert capsys.readouterr().err.splitlines() == [f"heartbeatd: {tmp_path / name} cannot be written: {problem}"]


def test_without_a_database_no_report_is_written(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_report(state, "--out", str(tmp_path / "report")) == 0
    assert capsys.readouterr().out == f"there is no database yet: {state}\n"
    assert not (tmp_path / "report").exists()
