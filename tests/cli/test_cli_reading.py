"""`status`, `runs`, `show` and `outbox` read only the database, with the daemon down or with an invalid config."""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from config_file import write
from patience import PATIENCE
from rich.cells import cell_len
from world import add_entry_row, open_store

from scheduler.cli.main import main
from scheduler.cli.output import (
    format_elapsed,
    format_short_time,
    format_table,
    host_zone_name,
    wrap_text,
    zone_name,
)
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import to_millis
from scheduler.store import boots
from scheduler.store.boots import Boot
from scheduler.store.database import Store
from scheduler.store.transaction import Transaction
from scheduler.system.state_lock import StateLock

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
KOLKATA = ZoneInfo("Asia/Kolkata")  # 5 h 30 min before UTC all year


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "heartbeatd.db"


@pytest.fixture
def in_kolkata(tmp_path: Path) -> str:
    """The option that names a config with its own zone, so that the zone of the test host does not matter."""
    config = tmp_path / "kolkata.yaml"
    config.write_text("timezone: Asia/Kolkata\n")
    return f"--config={config}"


@pytest.fixture
def store(state: Path) -> Iterator[Store]:
    """A database with an agent `ops`, and a job and an agent `both`."""
    store = open_store(state)
    with store.transaction() as db:
        tx = _transaction(db, NOON)
        for kind, name in ((Kind.HEARTBEAT, "ops"), (Kind.HEARTBEAT, "both"), (Kind.CRON, "both")):
            add_entry_row(tx, kind, name)
    yield store
    store.close()


def _transaction(db: Any, now: datetime, owner: str = "me") -> Transaction:
    return Transaction(db, now, owner, "c0ffee")


def add_run(
    store: Store, slot: datetime, outcome: str = "ok", *, kind: str = "heartbeat", name: str = "ops", **columns: Any
) -> int:
    """Add a closed run that took one second."""
    row = {
        "kind": kind, "name": name, "slot": to_millis(slot), "trigger": "interval", "state": "closed", "outcome": outcome,
        "started_at": to_millis(slot), "finished_at": to_millis(slot) + 1000, "config_hash": "c0ffee", **columns,
    }  # fmt: skip
    marks = ", ".join(f":{column}" for column in row)
    with store.transaction() as db:
        return int(db.execute(f"insert into run ({', '.join(row)}) values ({marks}) returning id", row).fetchone()[0])


def listed(capsys: pytest.CaptureFixture[str], state: Path, *arguments: str) -> Any:
    assert main([*arguments, "--state", str(state), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def printed(capsys: pytest.CaptureFixture[str], state: Path, *arguments: str) -> list[str]:
    assert main([*arguments, "--state", str(state)]) == 0
    return capsys.readouterr().out.splitlines()


def test_runs_are_listed_newest_first(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for minute in range(3):
        add_run(store, NOON + minute * MINUTE)
    assert [run["id"] for run in listed(capsys, state, "runs")] == [3, 2, 1]
    assert [run["planned_at"] for run in listed(capsys, state, "runs", "--limit", "1")] == ["2026-11-20T12:02:00Z"]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["ops"], [3, 2, 1]),
        (["agent/ops"], [3, 2, 1]),
        (["cron/both"], [4]),
        (["agent/both"], []),
        (["--result", "failed"], [4, 2]),
        (["--why", "active_hours"], [3]),
        (["--since", "2026-11-20T12:01:00Z"], [4, 3, 2]),
        (["--since", "2026-11-20T12:01:00Z", "--until", "2026-11-20T12:02:00Z"], [2]),
        (["ops", "--result", "failed"], [2]),
    ],
)
def test_runs_can_be_filtered(
    arguments: list[str], found: list[int], store: Store, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(store, NOON)
    add_run(store, NOON + MINUTE, "failed", reason="exit")
    add_run(store, NOON + 2 * MINUTE, "skipped", reason="active_hours", slots=12)
    add_run(store, NOON + 3 * MINUTE, "failed", kind="cron", name="both")
    assert [run["id"] for run in listed(capsys, state, "runs", *arguments)] == found


def test_a_failed_run_that_is_muted_shows_both(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(store, NOON, "failed", reason="postcheck", suppression="muted")
    assert [run["why"] for run in listed(capsys, state, "runs", "--why", "postcheck")] == ["postcheck"]
    assert listed(capsys, state, "runs", "--why", "muted") == []
    assert "failed  postcheck, muted" in " ".join(printed(capsys, state, "runs"))
    shown = [" ".join(line.split()) for line in printed(capsys, state, "show", "1")]
    assert {"result failed", "why postcheck", "delivery muted"} <= {*shown}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("both", "'both' is the name of an agent and of a cron job; write agent/both or cron/both"),
        ("nobody", "no agent or cron job 'nobody'; `heartbeatd status` lists them"),
        ("opps", "no agent or cron job 'opps'; did you mean ops?"),
        ("agent/opps", "no agent 'opps'; did you mean ops?"),
        ("cron/ops", "no cron job 'ops'; `heartbeatd status` lists them"),
        ("job/ops", "'job/ops' is neither agent/NAME nor cron/NAME"),
    ],
)
def test_a_name_must_belong_to_exactly_one_entry(
    name: str, error: str, store: Store, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", name, "--state", str(state)]) == 2
    assert capsys.readouterr().err == f"heartbeatd: {error}\n"


@pytest.mark.parametrize(
    ("why", "error"), [("active_hour", "'active_hour'; did you mean active_hours?; see"), ("foo", "'foo'; see")]
)
def test_an_unknown_reason_is_rejected(
    why: str, error: str, store: Store, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--why", why, "--state", str(state)]) == 2
    assert f"unknown word {error} `heartbeatd runs --help`" in capsys.readouterr().err


def test_since_yesterday_means_since_the_beginning_of_that_day(
    store: Store, state: Path, in_kolkata: str, capsys: pytest.CaptureFixture[str]
) -> None:
    today = datetime.now(KOLKATA).replace(hour=0, minute=0, second=0, microsecond=0)
    add_run(store, (today - timedelta(days=2)).astimezone(UTC))
    add_run(store, (today - timedelta(hours=3)).astimezone(UTC))
    add_run(store, today.astimezone(UTC))
    assert [run["id"] for run in listed(capsys, state, "runs", in_kolkata, "--since", "yesterday")] == [3, 2]
    until_today = listed(capsys, state, "runs", in_kolkata, "--since", "yesterday", "--until", "today")
    assert [run["id"] for run in until_today] == [2]


def test_a_table_of_runs_fits_into_eighty_columns(
    store: Store, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(state.parent)  # where there is no config
    add_run(store, NOON, "skipped", name="a" * 63, reason="checklist_unreadable", slots=12)
    lines = printed(capsys, state, "runs")
    assert lines[0].split() == ["RUN", "NAME", "PLANNED", "STARTED", "BY", "RESULT", "WHY", "TOOK"]
    assert "skipped x12" in lines[1]
    assert max(map(len, lines)) <= 80
    assert lines[-1] == f"times in {zone_name()}"


def test_an_empty_history_is_not_an_error(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, state, "runs") == ["nothing has run yet"]
    assert printed(capsys, state, "runs", "ops", "--since", "2h") == ["no run matches"]


def test_a_missing_database_is_an_empty_history(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, state, "runs") == []
    assert not state.exists()


COMMANDS = [["status"], ["problems"], ["logs"], ["runs"], ["report"], ["outbox"], ["show", "1"], ["cancel", "1"], ["reload"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_config_without_a_database_is_an_error_of_one_line(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    assert main([*command, "-c", str(config)]) == 2
    says = (
        f"heartbeatd: there is no {config} and no database; change to the config's folder, use -c, or run `heartbeatd init DIR`\n"
    )
    assert capsys.readouterr() == ("", says)
    config.write_text("cron: {look: {every: 1h, command: look}}\n")
    main([*command, "-c", str(config)])
    assert "and no database" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "runs"])
def test_a_missing_config_beside_a_database_is_reported_in_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, missing = tmp_path / "state" / "heartbeatd.db", tmp_path / "nope.yaml"
    state.parent.mkdir()
    open_store(state).close()
    assert main([command, "-c", str(missing)]) == 0
    says = f"heartbeatd: there is no {missing}; {state} is used; change to the config's folder or use -c\n"
    assert capsys.readouterr().err == says


def test_a_database_of_another_program_is_reported_with_exit_code_1(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state.write_bytes(b"something else" * 100)
    assert main(["runs", "--state", str(state)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"heartbeatd: {state} is damaged or not a database")
    assert "If it is another file, correct `state` or --state. Otherwise, move it to another path" in err


def test_an_invalid_config_still_names_the_database(
    store: Store, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(store, NOON)
    (tmp_path / "config.yaml").write_text("state: heartbeatd.db\nagents: [[[\n")
    assert main(["runs", "-c", str(tmp_path / "config.yaml"), "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1


def test_a_run_is_shown_in_full_without_control_characters(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(store, NOON, "alert", text="disk full\n\x1b]0;owned\x07", prompt_parts='{"checklist": 12}', error="a\nb", exit_code=0)
    lines = printed(capsys, state, "show", "1")
    assert "name       agent/ops" in lines
    assert "result     alert" in lines
    assert "prompt     checklist 12 tokens" in lines
    assert "error      a b" in lines
    assert lines[-2:] == ["disk full", "\\x1b]0;owned\\x07"]


def test_findings_in_json_are_shown_as_lines(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As some programs answer. The output of a command stays as it is, and so do the data of `show --format json`."""
    answer = 'All else is fine.\n```json\n{"findings": [{"key": "disk:/var", "text": "92 %", "severity": "critical"}]}\n```'
    add_run(store, NOON, "alert", text=answer)
    add_run(store, NOON, "ok", kind="cron", name="scan", text=answer)
    assert printed(capsys, state, "show", "1")[-3:] == ["answer:", "All else is fine.", "[disk:/var!] 92 %"]
    assert printed(capsys, state, "show", "2")[-5:] == ["output:", *answer.splitlines()]
    assert listed(capsys, state, "show", "1")["text"] == answer


def test_a_run_shows_its_tool_calls_and_its_text_for_the_log(
    store: Store, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = [{"name": "ssh", "count": 1, "duration_ms": 1250}, {"name": "df\x1b[2J", "count": 3, "duration_ms": None}]
    add_run(store, NOON, "alert", text="Disk full", log="looked\nat 3 hosts", tool_calls=json.dumps(tools))
    shown = printed(capsys, state, "show", "1")
    assert "tools      ssh 1.2s, df [2J x3" in shown
    assert shown[-6:] == ["for the log:", "looked", "at 3 hosts", "", "answer:", "Disk full"]


def test_a_run_shows_a_truncated_answer_and_the_deadline_of_a_late_result(
    store: Store, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(store, NOON, "alert", text="The disk is", truncated=1)
    add_run(store, NOON + MINUTE, "async", result_due_at=to_millis(NOON + timedelta(hours=1)))
    assert "answer     truncated at the token limit" in printed(capsys, state, "show", "1")
    waits = next(line for line in printed(capsys, state, "show", "2") if line.startswith("answer"))
    assert waits.startswith("answer     expected until 2026-11-2")
    assert listed(capsys, state, "show", "1")["truncated"] is True
    assert listed(capsys, state, "show", "2")["result_due_at"] == "2026-11-20T13:00:00Z"


def test_a_run_shows_why_its_precheck_failed(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(store, NOON, precheck_exit=7, precheck_output="", precheck_error="exit code 7: no such host", text="HEARTBEAT_OK")
    shown = printed(capsys, state, "show", "1")
    assert "precheck failed, exit code 7: no such host" in shown
    assert listed(capsys, state, "show", "1")["precheck"]["error"] == "exit code 7: no such host"


def test_a_run_shows_the_output_of_its_precheck(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(store, NOON, "ok", text="HEARTBEAT_OK", precheck_exit=0, precheck_output="2 mails\n\x1b[2J")
    add_run(store, NOON + timedelta(hours=1), "skipped", precheck_output="")
    shown = ["precheck, exit code 0:", "2 mails", "\\x1b[2J", "", "answer:", "HEARTBEAT_OK"]
    assert printed(capsys, state, "show", "1")[-6:] == shown
    assert printed(capsys, state, "show", "2")[-2:] == ["precheck, did not end by itself:", "(no output)"]


def test_runs_have_a_column_with_their_workers_if_there_are_any(
    store: Store, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(store, NOON)
    assert "WORKER" not in printed(capsys, state, "runs")[0]
    add_run(store, NOON + MINUTE, worker="gpu-1\x1b[2J")
    head, with_worker, without, _ = printed(capsys, state, "runs")
    assert head.endswith("  WORKER")
    assert with_worker.endswith("  gpu-1 [2J")
    assert "gpu" not in without
    assert [line for line in printed(capsys, state, "show", "2") if line.startswith("worker ")] == ["worker     gpu-1 [2J"]


def test_a_run_as_json_has_the_documented_keys(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(store, NOON)
    documented = {
        "id", "kind", "name", "planned_at", "planned_runs", "trigger", "result", "why", "tries", "started_at",
        "finished_at", "model_requested", "model_used", "tokens", "cost_usd", "prompt_parts", "text", "error", "delivery",
        "config_hash", "worker",
    }  # fmt: skip
    assert documented <= listed(capsys, state, "show", "1").keys()


def test_an_unknown_run_is_reported(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "7", "--state", str(state)]) == 2
    assert capsys.readouterr().err == "heartbeatd: no run 7; `heartbeatd runs` lists them\n"


@pytest.mark.parametrize("number", ["seven", "0", "-1", "9" * 23])
def test_an_invalid_run_number_is_reported(store: Store, state: Path, capsys: pytest.CaptureFixture[str], number: str) -> None:
    assert main(["show", "--state", str(state), "--", number]) == 2
    wanted = f"heartbeatd: Invalid value for 'RUN': '{number}' is not a number such as 12"
    assert capsys.readouterr().err == f"{wanted}; see `heartbeatd show --help`\n"


def live(store: Store, instance: str, begin: datetime, end: datetime | None) -> None:
    """Add a daemon process to the history. `end` None means that it was killed."""
    with store.transaction() as db:
        boots.record_boot(_transaction(db, begin, instance), Boot(instance, 4711, "0.1.0", "2026.1"))
        if end:
            boots.record_clean_end(_transaction(db, end, instance))


def test_status_shows_when_the_daemon_was_down(
    store: Store, state: Path, in_kolkata: str, capsys: pytest.CaptureFixture[str]
) -> None:
    live(store, "one", NOON, NOON + 10 * MINUTE)
    live(store, "two", NOON + 15 * MINUTE, None)
    live(store, "three", NOON + 20 * MINUTE, NOON + 30 * MINUTE)
    lines = printed(capsys, state, "status", in_kolkata)
    assert lines[0].startswith("daemon: down since 2026-11-20 18:00:00 (")
    assert lines[0].endswith("), shut down")
    assert lines[1] == "now: the daemon is down; nothing has run yet"
    assert lines[2:4] == [
        "  was down 2026-11-20 17:45:00 to 2026-11-20 17:50:00 (5m), ended unexpectedly",
        "  was down 2026-11-20 17:40:00 to 2026-11-20 17:45:00 (5m), shut down",
    ]


def test_the_length_of_a_downtime_agrees_with_its_printed_times(
    store: Store, state: Path, in_kolkata: str, capsys: pytest.CaptureFixture[str]
) -> None:
    live(store, "one", NOON, NOON + timedelta(seconds=59.9))
    live(store, "two", NOON + timedelta(seconds=62.1), NOON + 10 * MINUTE)
    lines = printed(capsys, state, "status", in_kolkata)
    assert "  was down 2026-11-20 17:30:59 to 2026-11-20 17:31:02 (3s), shut down" in lines


def test_status_shows_the_daemon_as_running_while_it_holds_its_lock(
    store: Store, state: Path, in_kolkata: str, capsys: pytest.CaptureFixture[str]
) -> None:
    live(store, "one", NOON, None)  # another process, which has crashed
    lock = state.with_name("heartbeatd.db.lock")
    with StateLock.take(lock, started_at=NOON + MINUTE, instance="two") as held:
        assert printed(capsys, state, "status", in_kolkata)[0].startswith("daemon: running since 2026-11-20 17:31:00 (")
        held.release()
        assert printed(capsys, state, "status", in_kolkata)[0].startswith("daemon: down since")
    assert StateLock.take(lock, started_at=NOON, instance="two")


def test_the_start_of_the_daemon_agrees_with_the_end_of_its_downtime(
    store: Store, state: Path, in_kolkata: str, capsys: pytest.CaptureFixture[str]
) -> None:
    live(store, "one", NOON, NOON + MINUTE)
    with store.transaction() as db:
        boots.record_boot(_transaction(db, NOON + 2 * MINUTE, "two"), Boot("two", os.getpid(), "0.1.0", "2026.1"))
    lock = state.with_name("heartbeatd.db.lock")
    with StateLock.take(lock, started_at=NOON + 2 * MINUTE - timedelta(seconds=4), instance="two"):
        lines = printed(capsys, state, "status", in_kolkata)
    assert lines[0].startswith("daemon: running since 2026-11-20 17:32:00 (")
    assert "  was down 2026-11-20 17:31:00 to 2026-11-20 17:32:00 (1m), shut down" in lines


def test_status_as_json_shows_whether_the_daemon_runs(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live(store, "one", NOON, NOON + MINUTE)
    status = listed(capsys, state, "status")
    assert status["daemon"]["running"] is False
    assert status["daemon"]["ended_at"] == "2026-11-20T12:01:00Z"
    assert [entry["name"] for entry in status["entries"]] == ["both", "ops", "both"]


def test_status_lists_each_entry_with_its_last_run(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(store, NOON, "skipped", reason="checklist_empty")
    rows = [line.split() for line in printed(capsys, state, "status")]
    assert next(row for row in rows if row[:1] == ["agent/ops"])[1:5] == ["active", "-", "skipped", "checklist_empty"]


def test_status_shows_the_holder_of_a_locked_lane(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with store.transaction() as db:
        db.execute("insert into hold (name, holder, until_at) values ('ops', 'chat:4711', 7999999999000), ('ops', 'mail', 1)")
    assert [line[:41] for line in printed(capsys, state, "status") if line.startswith("busy")] == [
        "busy: chat:4711 holds agent/ops until 222"
    ]


def test_status_before_the_first_start_shows_that_the_daemon_has_never_run(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert " ".join(map(str.strip, printed(capsys, state, "status"))) == (
        f"daemon: has never run on {state}; `heartbeatd run` starts it"
    )
    assert listed(capsys, state, "status")["daemon"] == {"running": False, "pid": None, "standby": None, "leader": None}


def test_a_table_is_aligned_and_its_widest_column_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("1", "short"), ("22", "x" * 60)]
    assert format_table(("N", "WHAT"), rows).splitlines() == ["N   WHAT", "1   short", "22  " + "x" * 35 + "…"]


def test_wide_characters_keep_a_table_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("東京の天気", "1"), ("ops", "12"), ("日本" * 20, "3")]
    lines = format_table(("NAME", "RUNS"), rows, numbers=[1]).splitlines()
    assert lines[:3] == ["NAME" + " " * 32 + "RUNS", "東京の天気" + " " * 29 + "1", "ops" + " " * 35 + "12"]
    assert lines[3].startswith("日本日本")
    assert [cell_len(line) for line in lines] == [40] * 4
    assert format_table(("NAME", "RUNS"), rows[:2]).splitlines()[:2] == ["NAME" + " " * 8 + "RUNS", "東京の天気  1"]


def test_a_line_of_wide_characters_is_wrapped_by_columns() -> None:
    lines = wrap_text(" ".join(["東京"] * 40), 2)
    assert max(map(cell_len, lines)) <= 80
    assert " ".join(lines).split() == ["東京"] * 40


def test_a_table_in_a_pipe_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", "from scheduler.cli.output import format_table; print(format_table(('A',), [('x' * 300,)]))"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout.splitlines() == ["A", "x" * 300]


def test_a_table_has_one_line_for_each_row() -> None:
    assert format_table(("A",), [("one\ntwo\x1b",)]).splitlines() == ["A", "one two"]


def test_times_of_today_have_no_date() -> None:
    here = NOON.astimezone()
    assert format_short_time(NOON, NOON) == f"{here:%H:%M:%S}"
    assert format_short_time(NOON - timedelta(days=2), NOON) == f"{here - timedelta(days=2):%m-%d %H:%M}"
    assert format_short_time(None, NOON) == "-"


def test_a_run_that_has_not_ended_has_no_duration() -> None:
    assert format_elapsed(NOON, None) == "-"
    assert format_elapsed(NOON, NOON + timedelta(seconds=1.5)) == "1.5s"


def test_the_zone_of_the_host_is_shown_by_its_iana_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    link = tmp_path / "localtime"
    link.symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    assert host_zone_name(link) == "Europe/Berlin"
    monkeypatch.setenv("TZ", ":Asia/Tokyo")
    assert host_zone_name(link) == "Asia/Tokyo"


def add_message(store: Store, **columns: Any) -> int:
    """Add a dead letter."""
    row = {
        "key": str(random.random()), "channel": "phone", "run_id": 1, "kind": "heartbeat", "name": "ops", "trigger": "interval",
        "slot": 1, "part": 1, "parts": 1, "title": "ops", "text": "The disk is full.", "state": "dead", "attempts": 3,
        "not_before": to_millis(NOON), "created_at": to_millis(NOON), "error": "503 Service Unavailable", **columns,
    }  # fmt: skip
    marks = ", ".join(f":{column}" for column in row)
    with store.transaction() as db:
        return int(db.execute(f"insert into outbox ({', '.join(row)}) values ({marks}) returning id", row).fetchone()[0])


def test_the_delivery_state_is_shown_beside_the_outcome(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(store, NOON, "alert")
    add_run(store, NOON, "failed", reason="exit", kind="cron", name="both")
    add_message(store, run_id=1, state="delivered", error=None)
    add_message(store, run_id=2, kind="cron", name="both")
    rows = [re.split(" {2,}", line) for line in printed(capsys, state, "runs")]
    assert [row[4:6] for row in rows[1:3]] == [["failed", "exit, dead"], ["alert", "delivered"]]
    shown = " ".join(" ".join(printed(capsys, state, "show", "2")).split())
    assert "delivery accepted for phone, not delivered (given up after 3 tries, 503 Service Unavailable)" in shown
    rows = {line.split()[0]: line.split()[3:] for line in printed(capsys, state, "status") if line.startswith(("agent", "cron"))}
    assert rows["cron/both"][:3] == ["failed", "exit,", "dead"]
    assert rows["agent/ops"][:2] == ["alert", "delivered"]
    assert [run["delivery"]["state"] for run in listed(capsys, state, "runs")] == ["dead", "delivered"]
    last = {each["name"]: each["last_run"] for each in listed(capsys, state, "status")["entries"] if each["last_run"]}
    assert {name: run["delivery"] for name, run in last.items()} == {"ops": "delivered", "both": "dead"}


def test_a_run_shows_its_tokens_and_cost(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_run(store, NOON, tokens='{"input": 12000, "output": 40, "cache_read": 0, "cache_write": 0}', cost_usd=0.0123)
    assert {"tokens     input 12,000, output 40", "spent      $0.0123"} <= set(printed(capsys, state, "show", "1"))


def test_the_outbox_shows_the_last_error_of_each_message(
    store: Store, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    add_message(store, text="The disk is full.\n\x1b[2J" + "x" * 300)
    add_message(store, name="a" * 63, state="pending", part=2, parts=3, error=None, attempts=0)
    add_message(store, state="delivered")
    lines = printed(capsys, state, "outbox")
    assert lines[0].split() == ["ID", "AGE", "NAME", "CHANNEL", "STATE", "TRIES", "NEXT", "TRY", "RUN"]
    assert lines[1].split()[:2] == ["2", "2/3"]
    assert lines[2] == "    “The disk is full.”"
    assert lines[3].split()[:1] == ["1"]
    assert {"dead", "phone", "agent/ops"} <= set(lines[3].split())
    assert lines[4] == "    503 Service Unavailable"
    assert lines[5].startswith("    “The disk is full.  [2Jxxx")
    assert max(map(len, lines)) <= 80
    assert printed(capsys, state, "outbox", "--limit", "1")[-1].endswith("; 1 more with --limit")
    assert [each["id"] for each in listed(capsys, state, "outbox")] == [2, 1]


def test_the_outbox_says_why_a_message_is_delayed_and_the_log_how_many_runs_were_skipped(
    store: Store, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_message(store, state="pending", error=None, awaits='["ops", "web"]')
    assert "    delayed, because agents ops, web are to report it" in printed(capsys, state, "outbox")
    add_run(store, NOON, "skipped", reason="active_hours", slots=3)
    add_run(store, NOON + MINUTE, "skipped", reason="paused")
    texts = [line[21:] for line in printed(capsys, state, "logs")]
    assert {"agent/ops  skipped active_hours (3 times, run 1)", "agent/ops  skipped paused (run 2)"} <= set(texts)


def test_an_empty_outbox_is_reported_in_one_line(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_message(store, state="delivered")
    add_message(store, state="dropped")
    assert printed(capsys, state, "outbox") == ["there are no undelivered messages"]
    assert listed(capsys, state.with_name("none.db"), "outbox") == []


@pytest.mark.parametrize(
    ("config", "zone", "slot"),
    [
        ("timezone: Asia/Kathmandu # Nepal\n", "Asia/Kathmandu", "17:45:00"),
        ("timezone: 'Asia/Kathmandu'\nagents: [broken\n", "Asia/Kathmandu", "17:45:00"),
        ("agents: {}\n", "UTC", "12:00:00"),
        ("timezone: Nowhere\n", "America/New_York", "07:00:00"),
        (None, "America/New_York", "07:00:00"),
    ],
)
def test_times_are_in_the_configs_zone_or_without_a_readable_config_in_the_hosts(
    config: str | None, zone: str, slot: str, tmp_path: Path, store: Store, state: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    path = tmp_path / "config.yaml"
    if config is not None:
        path.write_text(config, "utf-8")
    add_run(store, NOON)
    add_run(store, NOON - MINUTE)
    output = printed(capsys, state, "runs", "-c", str(path), "--since", f"2026-11-20T{slot}")
    shown = printed(capsys, state, "show", "1", "-c", str(path))
    monkeypatch.undo()
    time.tzset()
    assert output[-1] == f"times in {zone}"
    assert [line.split()[0] for line in output[1:-1]] == ["1"]
    assert f"planned    2026-11-20 {slot} {zone}" in shown


def test_no_command_prints_the_password_of_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config, the option and the environment may contain such an address, although `check` refuses it."""
    addresses = ("postgresql://bot:secretpass@db.invalid/x", "postgres://bot@db.invalid/x?sslpassword=secretpass")
    reading = [
        ["database", "backup", str(tmp_path / "copy.db")],
        ["status"],
        ["runs"],
        ["explain"],
        ["doctor"],
        ["outbox"],
        ["report"],
    ]
    by_config = [
        *reading,
        ["check"],
        ["reload"],
        ["wake", "ops", "-m", "x"],
        ["cancel", "1"],
        ["config", "set", "agents.ops.model", "x"],
    ]
    for address in addresses:
        path = write(tmp_path, f'state: "{address}"\nagents: {{}}\n')
        calls = [[*words, "-c", str(path)] for words in by_config]
        calls += [[*words, "-c", str(path), "--state", address] for words in reading]
        calls += [
            ["database", "migrate", address, str(tmp_path / "new.db")],
            ["database", "migrate", str(tmp_path / "old.db"), address],
        ]
        for words in calls:
            code, (out, err) = main(words), capsys.readouterr()
            assert (code != 0, "secretpass" in out + err) == (True, False), (words, out, err)
    assert main(["database", "backup", str(tmp_path / "copy.db"), "-c", str(path)]) == 2
    assert "a password must not be in the address" in capsys.readouterr().err
    path = write(tmp_path, "agents: {}\n")
    monkeypatch.setenv("HEARTBEATD__state", addresses[0])
    for words in by_config:
        main([*words, "-c", str(path)])
        assert "secretpass" not in "".join(capsys.readouterr()), words


def test_everything_that_is_recorded_of_a_run_is_shown(store: Store, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that waits for another try, and one that repeats the messages of two runs."""
    calls = [{"name": "df", "count": 2, "duration_ms": 50, "arguments": "{}", "result_bytes": 1200}]
    add_run(
        store, NOON, "failed", reason="exit", slots=3, attempt=1, state="waiting", not_before=to_millis(NOON + MINUTE),
        worker="mill", model_requested="small", model_used="large", fallback="spare", fallback_why="rate_limit", request_id="req-1",
        tokens='{"input": 1200, "output": 40, "cache_read": 0, "cache_write": 0}', cost_usd=0.01, charged_nanos=30_000_000,
        charged_tokens=1240, prompt_parts='{"checklist": 12}', left_out='["a.md", "b.md"]', truncated=1, exit_code=0,
        tool_calls=json.dumps(calls), error="no disk", result_due_at=to_millis(NOON + 2 * MINUTE),
    )  # fmt: skip
    add_run(store, NOON + MINUTE, "alert", suppression="duplicate", attempt=2, repeats="[1, 2]", trigger="manual")
    add_message(store, run_id=1, state="delivered", error=None)
    add_message(store, run_id=2, state="delivered", error=None)
    first, second = ([" ".join(line.split()) for line in printed(capsys, state, "show", number)] for number in "12")
    day = f"{NOON.astimezone():%Y-%m-%d}"
    assert [line for line in first if day not in line] == [
        "run 1", "name agent/ops", "in all 3 planned runs", "started by interval", "result waiting", "why exit", "tries 1", "took 1.0s",
        "worker mill", "model small, answered by large", "fallback spare: rate_limit", "request req-1", "tokens input 1,200, output 40",
        "spent $0.0100", "in budgets 0.030000 USD, 1,240 tokens (0.02 of it is reserved for runs of", "unknown cost)", "prompt checklist 12 tokens",
        "left out a.md", "left out b.md", "answer truncated at the token limit", "tool df x2 0.1s {}: 1,200 bytes", "exit code 0",
        "error no disk", "delivery delivered to phone", "config c0ffee",
    ]  # fmt: skip
    assert [line.partition(day)[0] for line in first if day in line] == [
        "planned ",
        "next try ",
        "started ",
        "finished ",
        "answer expected until ",
    ]
    assert [line for line in second if line.startswith(("in all", "tries", "delivery", "why"))] == [
        "why duplicate",
        "tries 2",
        "delivery delivered to phone (by run 1, run 2)",
    ]
