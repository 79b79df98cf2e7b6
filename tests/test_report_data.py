"""Tests of what the report counts, and of its layout within eighty columns."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from test_cli_reading import add_run, live
from world import AgentCall, Delayed, MakeWorld, utc

from scheduler.channels.message import DeliveryResult
from scheduler.cli import report
from scheduler.cli.main import main
from scheduler.cli.output import abbreviate_count, format_reason, format_usd
from scheduler.engine.delivery import Delivery
from scheduler.insight.report_data import build_report as summed_up
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
    store = Store.open(state)
    yield store
    store.close()


def summed(store: Store, *, running: bool = True) -> dict[str, Any]:
    told = summed_up(store.connection, NOON - WEEK, NOON, running=running)
    assert json.loads(json.dumps(told)) == told
    return told


def only(part: list[dict[str, Any]], *words: str) -> list[tuple[Any, ...]]:
    return [tuple(each[word] for word in words) for each in part]


def test_each_entry_is_summed_and_the_dearest_comes_first(store: Store) -> None:
    for minute, cost in enumerate((0.01, 0.03)):
        add_run(store, NOON - WEEK / 2 + timedelta(minutes=minute), "alert", name="cheap", cost_usd=cost, tokens=TOKENS)
    add_run(store, NOON - WEEK / 2, "ok", suppression="heartbeat_ok", name="dear", cost_usd=2.5, tokens=TOKENS)
    add_run(store, NOON - WEEK / 2, "failed", reason="exit", kind="cron", name="job")
    add_run(store, NOON - WEEK / 2 + timedelta(hours=1), "skipped", reason="missed", slots=7, kind="cron", name="job")
    told = summed(store)
    assert only(told["entries"], "kind", "name", "runs", "said", "failed", "skipped", "missed", "cost_usd") == [
        ("heartbeat", "dear", 1, 0, 0, 0, 0, 2.5),
        ("heartbeat", "cheap", 2, 2, 0, 0, 0, 0.04),
        ("cron", "job", 1, 0, 1, 7, 7, None),
    ]
    assert told["entries"][1]["dearest_run"] == {"id": 2, "cost_usd": 0.03}
    totals = told["totals"]
    assert [totals[word] for word in ("runs", "said", "failed", "skipped", "missed", "cost_usd")] == [4, 2, 1, 7, 7, 2.54]
    assert totals["tokens"] == {"input": 3600, "output": 150}
    assert totals["dearest_run"] == {"id": 3, "cost_usd": 2.5}


@pytest.mark.parametrize(
    ("ended", "counts"), [(NOON - WEEK, 1), (NOON - WEEK - timedelta(seconds=1), 0), (NOON, 0), (NOON - timedelta(seconds=1), 1)]
)
def test_what_ended_within_the_stretch_counts(store: Store, ended: datetime, counts: int) -> None:
    add_run(store, ended - timedelta(seconds=1))
    assert summed(store)["totals"]["runs"] == counts


def test_tokens_without_a_price_are_counted_and_their_cost_is_unknown(store: Store) -> None:
    add_run(store, NOON - WEEK / 2, name="free", tokens=TOKENS)
    add_run(store, NOON - WEEK / 2, name="plain")
    assert only(summed(store)["entries"], "name", "cost_usd", "runs_without_price") == [("free", None, 1), ("plain", None, 0)]


def test_unreported_usage_is_shown_as_the_budgets_count_it(store: Store) -> None:
    add_run(store, NOON - WEEK / 2, name="silent", charged_nanos=40_000_000)
    add_run(store, NOON - WEEK / 2, name="cut", charged_nanos=50_000_000, cost_usd=0.01)
    add_run(store, NOON - WEEK / 2, name="whole", charged_nanos=30_000_000, cost_usd=0.03)
    told = summed(store)
    assert only(told["entries"], "name", "untold_usd") == [("whole", 0.0), ("cut", 0.04), ("silent", 0.04)]
    assert told["totals"]["untold_usd"] == 0.08
    assert list(report._cost_sentences(told["totals"])) == [
        "Cost $0.0400 for 0 tokens in and 0 out; usage worth up to $0.0800 was not reported."
    ]


def test_a_model_is_summed_over_its_entries(store: Store) -> None:
    for name, model, cost in (("a", "big", 1.0), ("b", "big", 2.0), ("c", None, None)):
        add_run(store, NOON - WEEK / 2, "alert", name=name, model_requested=model, cost_usd=cost)
    add_run(store, NOON - WEEK / 2 + timedelta(hours=1), "skipped", name="a", reason="budget")
    assert only(summed(store)["models"], "model", "runs", "said", "cost_usd") == [("big", 2, 2, 3.0), (None, 1, 1, None)]


def test_reasons_say_how_much_of_them_is_whose(store: Store) -> None:
    hour = timedelta(hours=1)
    for name, slots in (("a", 2), ("b", 5)):
        add_run(store, NOON - WEEK / 2, "skipped", name=name, reason="active_hours", slots=slots)
    add_run(store, NOON - WEEK / 2 + hour, "alert", name="a", suppression="duplicate")
    add_run(store, NOON - WEEK / 2 + 2 * hour, "timeout", name="a", reason="timeout")
    told = summed(store)
    assert only(told["skipped"], "reason", "count") == [("active_hours", 7)]
    assert only(told["skipped"][0]["entries"], "name", "count") == [("b", 5), ("a", 2)]
    assert only(told["suppressed"], "suppression", "count") == [("duplicate", 1)]
    assert only(told["failed"], "reason", "count") == [("timeout", 1)]
    assert told["totals"]["said"] == 0


def test_a_result_that_came_later_belongs_to_a_run_before_it(store: Store) -> None:
    add_run(store, NOON - WEEK / 2, "async")
    add_run(store, NOON - WEEK / 2, "alert", trigger="result")
    assert only([summed(store)["totals"]], "runs", "said") == [(1, 1)]


def test_down_time_is_what_lies_between_lives_within_the_stretch(store: Store) -> None:
    start = NOON - WEEK
    live(store, "one", start - WEEK, start - timedelta(hours=1))
    live(store, "two", start + timedelta(hours=2), start + timedelta(hours=3))
    live(store, "three", start + timedelta(hours=4), NOON - timedelta(hours=1))
    told = [("2026-11-13T12:00:00Z", "2026-11-13T14:00:00Z", True), ("2026-11-13T15:00:00Z", "2026-11-13T16:00:00Z", True)]
    assert only(summed(store)["downs"], "since", "until", "clean") == told
    still = ("2026-11-20T11:00:00Z", "2026-11-20T12:00:00Z", True)
    assert only(summed(store, running=False)["downs"], "since", "until", "clean") == [*told, still]


def test_a_daemon_that_never_stopped_was_never_down(store: Store) -> None:
    live(store, "one", NOON - 2 * WEEK, None)
    assert summed(store)["downs"] == []


def test_the_history_is_read_by_its_index(store: Store) -> None:
    plan = store.connection.execute("explain query plan " + run_history.RUNS, (0, 1)).fetchall()
    assert [row["detail"] for row in plan if "run_finished" in row["detail"]]
    letters = store.connection.execute("explain query plan " + run_history.MESSAGES, (0, 1)).fetchall()
    assert [row["detail"] for row in letters if "outbox_channel" in row["detail"]]
    assert not [row["detail"] for row in letters if "TEMP B-TREE" in row["detail"]]


# --- a month as it is read -------------------------------------------------------------------------------------------------

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


def reported(text: str, tokens_in: int, price: float) -> str:
    """What a program prints that says what it took."""
    return json.dumps(
        {"result": text, "total_cost_usd": tokens_in * price, "usage": {"input_tokens": tokens_in, "output_tokens": 40}}
    )


def lot(*what: object) -> float:
    """Chance that is the same for the same thing, whatever else happens."""
    return random.Random(repr(what)).random()


class Month:
    """Thirty days of two agents and a job, with a channel that has its moods, and a daemon that was down twice."""

    def __init__(self, make_world: MakeWorld) -> None:
        scripts = {"ops": self._ops, "research": self._research, "nightly-backup": self._backup}
        self.world = make_world(MONTH, start="2026-10-10 00:00", scripts=scripts, send=self._send)
        self.world.run(days=12)
        self.world.downtime(hours=5)
        self.world.run(days=17, hours=18, minutes=53)
        self.world.downtime(minutes=7)
        self.world.run(hours=1)

    def _ops(self, call: AgentCall) -> str:
        news = lot("ops", call.at) < 0.1
        return reported("The disk /srv is full." if news else "HEARTBEAT_OK", 3_000, 1e-6)

    def _research(self, call: AgentCall) -> str:
        is_dear = call.at.day == 7 and call.at.month == 11 and call.at.hour == 6
        return reported(f"News of {call.at}", 900_000 if is_dear else 90_000, 3e-6)

    def _backup(self, call: AgentCall) -> Any:
        return 1 if lot("backup", call.at) < 0.1 else Delayed("done", timedelta(minutes=4))

    def _send(self, delivery: Delivery) -> DeliveryResult:
        drawn = lot(delivery.channel.name, delivery.message.key)
        if delivery.channel.name == "hook" and drawn < 0.05:
            return DeliveryResult("uncertain", "no answer within 20 s")
        return DeliveryResult("delivered") if drawn > 0.02 else DeliveryResult("dead", "127.0.0.1 answered 400 Bad Request")


AS_IT_READS = """\
2026-10-10 00:00 to 2026-11-09 00:00, UTC (30d)

989 runs: 144 with an alert, 844 without, 1 failed. 595 slots skipped, 1 of them
missed. Cost $37.35 for 14m tokens in and 38k out. Most expensive:
agent/research ($34.83; run 955 alone $2.70). Most alerts: agent/research (120
of 144). Undelivered messages: 10 dead (`heartbeatd outbox`). The daemon was
down 2 times, 5h7m in all.

NAME                 RUNS  ALERTS  FAILED  SKIPPED  MISSED    COST
agent/research        120     120       0        0       0  $34.83
agent/ops             840      24       0      594       0   $2.52
cron/nightly-backup    29       0       1        1       1       -

SKIPPED       SLOTS  ENTRIES
active_hours    594  agent/ops
missed            1  cron/nightly-backup

SUPPRESSED     RUNS  ENTRIES
heartbeat_ok    742  agent/ops
duplicate        74  agent/ops

FAILED         RUNS  ENTRIES
exit              1  cron/nightly-backup

CHANNEL  DELIVERED  PENDING  HELD  DEAD  DROPPED  UNCERTAIN
hook           113        0     0     8        0          8
log              1        0     0     0        0          0
phone           60        0     0     2        0          0

DOWN FROM            UNTIL                FOR  CAUSE
2026-10-22 00:00:00  2026-10-22 05:00:00  5h   ended unexpectedly
2026-11-08 23:53:00  2026-11-09 00:00:00  7m   ended unexpectedly"""


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host in UTC whose terminal says nothing of its width."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("COLUMNS", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_month_reads_well_within_eighty_columns(make_world: MakeWorld, in_utc: None) -> None:
    month = Month(make_world)
    told = summed_up(month.world.store.connection, utc("2026-10-10 00:00"), utc("2026-11-09 00:00"), running=True)
    text = report.format_report(told, "entry")
    assert text == AS_IT_READS
    assert max(map(len, text.splitlines())) <= 80


def test_the_dear_run_of_a_month_is_found(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    month = Month(make_world)
    month.world.stop()
    arguments = ["runs", "--sort", "cost", "--since", "2026-11-06", "--limit", "2", "--state", str(month.world.state)]
    assert main([*arguments, "--format", "json"]) == 0
    dearest, following = json.loads(capsys.readouterr().out)
    assert (dearest["name"], dearest["slot"], dearest["cost_usd"]) == ("research", "2026-11-07T06:00:00Z", 2.7)
    assert following["cost_usd"] == 0.27
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == "COST"
    assert lines[1].split()[-1] == "$2.70"


def an_entry(name: str, **numbers: Any) -> dict[str, Any]:
    return {
        "kind": "heartbeat", "name": name, "runs": 1, "said": 0, "failed": 0, "skipped": 0, "missed": 0, "cost_usd": None,
        "runs_without_price": 0, "untold_usd": 0.0, "tokens": {"input": 0, "output": 0}, "dearest_run": None, **numbers,
    }  # fmt: skip


def test_of_many_entries_the_dearest_the_noisiest_and_the_worst_are_shown() -> None:
    entries = [
        an_entry("dear", cost_usd=9.0),
        *(an_entry(f"e{number:02}") for number in range(40)),
        an_entry("loud", said=7),
        an_entry("bad", failed=3),
    ]
    rows = report._entries_table(entries).splitlines()
    names = [row.split()[0] for row in rows[1:]]
    assert {"agent/dear", "agent/loud", "agent/bad"} <= set(names)
    assert len(names) <= report.MAX_ENTRIES + 1
    assert rows[-1].split()[1:] == ["others", str(43 - len(names) + 1), "0", "0", "0", "0", "-"]


def test_an_incomplete_cost_is_marked() -> None:
    rows = report._entries_table([an_entry("a", cost_usd=1.5, runs_without_price=2)]).splitlines()
    assert rows[1].split()[-1] == "$1.50+"
    rows = report._entries_table([an_entry("a", cost_usd=1.5, untold_usd=0.2)]).splitlines()
    assert rows[1].split()[-1] == "$1.50+"


def test_nothing_at_all_is_one_sentence(state: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--state", str(state)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["", "Nothing ran, and nothing was skipped."]


@pytest.mark.parametrize("by", ["entry", "model"])
def test_a_period_without_runs_has_one_line_and_no_empty_tables(by: str, store: Store) -> None:
    add_run(store, NOON - WEEK / 2, "skipped", reason="active_hours", slots=2)
    text = report.format_report(summed(store), by)
    assert "Nothing ran. 2 slots skipped.\n" in text
    assert not [table for table in text.split("\n\n") if table.isupper() and "\n" not in table]
    assert ("MODEL" in text, "NAME" in text) == (False, by == "entry")


def test_before_the_first_start_nothing_is_known(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--state", str(state)]) == 0
    assert capsys.readouterr().out == f"there is no database yet: {state}\n"
    assert main(["report", "--state", str(state), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) is None


def test_a_report_for_programs_has_all_its_parts(state: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--for", "30d", "--by", "model", "--state", str(state), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == {
        "since",
        "until",
        "totals",
        "entries",
        "models",
        "skipped",
        "suppressed",
        "failed",
        "deliveries",
        "downs",
    }
    span = datetime.fromisoformat(told["until"]) - datetime.fromisoformat(told["since"])
    assert span == timedelta(days=30)


def test_reading_a_report_changes_nothing(state: Path, store: Store) -> None:
    db = open_read_only(state)
    try:
        summed_up(db, NOON - WEEK, NOON, running=True)
        assert db.total_changes == 0
    finally:
        db.close()


@pytest.mark.parametrize(
    ("cost", "said"),
    [(None, "-"), (0.0, "$0.00"), (0.00003, "<$0.0001"), (0.0123, "$0.0123"), (0.4, "$0.40"), (1234.5, "$1,234.50")],
)
def test_money_is_as_exact_as_it_is_small(cost: float | None, said: str) -> None:
    assert format_usd(cost) == said


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0"), (950, "950"), (1200, "1.2k"), (310_400, "310k"), (999_960, "1.0m"), (4_100_000, "4.1m")]
)
def test_amounts_are_short(count: int, said: str) -> None:
    assert abbreviate_count(count) == said


@pytest.mark.parametrize(
    ("reason", "suppression", "delivery", "said"),
    [
        (None, None, "none", "-"),
        ("exit", None, "dead", "exit, dead"),
        (None, "duplicate", "none", "duplicate"),
        (None, None, "held", "held"),
    ],
)
def test_an_outcome_is_shown_with_its_reason_and_its_deliveries(
    reason: str | None, suppression: str | None, delivery: str, said: str
) -> None:
    assert format_reason(reason, suppression, delivery) == said
