"""Tests with a real daemon process: start, reload, wake, pause, stop, kill and restart."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from calendar import timegm
from collections import Counter
from pathlib import Path

import pytest
from checkout import HOME
from daemon_process import GATEWAY, Begin, Daemon, config, run_command
from patience import PATIENCE
from servers import gateway
from servers.scripted import Server, silent_until_closed
from simulation import size

pytestmark = pytest.mark.process


def test_a_saved_config_is_applied_and_affects_only_changed_entries(daemon: Begin) -> None:
    it = daemon(config(job="'true'"))
    it.config.write_text(config(interval="2h", job="'true'"))
    assert 'change="agent/ops: heartbeat.interval 1h -> 2h" by="file watch"' in it.expect("reload ")
    assert "heartbeatd_config_last_reload_successful 1" in it.metrics()


def test_a_broken_config_is_rejected_with_its_position_reported_once_and_runs_continue(daemon: Begin) -> None:
    it = daemon(config(job="'true'"))
    it.config.write_text(config(interval="soon", job="'true'"))
    line = it.expect("reload_refused")
    assert "config.yaml:6:27: agents.ops.heartbeat.interval: 'soon' is not a duration; write 90s, 30m or 1h30m" in line
    assert "heartbeatd_config_last_reload_successful 0" in it.metrics()
    assert "CRITICAL daemon config: " in it.expect("said kind=daemon")
    before = len(it.runs("tick"))
    it.wait_until(lambda: len(it.runs("tick")) > before)
    it.config.write_text(config(interval="often", job="'true'"))
    it.expect("'often' is not a duration")
    it.config.write_text(config(interval="3h", job="'true'"))
    assert "over     daemon config: after " in it.expect("said kind=daemon")
    it.wait_until(lambda: "heartbeatd_config_last_reload_successful 1" in it.metrics())


@pytest.mark.parametrize("home", [None, "edited"], ids=["as it was", "edited"])
def test_a_missing_config_is_reported_until_it_is_back_and_runs_continue(daemon: Begin, home: str | None) -> None:
    it = daemon(config(job="'true'"))
    it.config.rename(away := it.config.with_name("away.yaml"))
    assert f"{it.config}: cannot be read: No such file" in it.expect("reload_refused")
    assert "heartbeatd_config_last_reload_successful 0" in it.metrics()
    it.wait_until(lambda: "critical: daemon config:" in it.run_command("status", "--state", "state/h.db").stdout)
    before = len(it.runs("tick", "--state", "state/h.db"))
    it.wait_until(lambda: len(it.runs("tick", "--state", "state/h.db")) > before)
    if home:
        away.write_text(config(interval="3h", job="'true'"))
    away.rename(it.config)
    it.expect("reload change=")
    assert "heartbeatd_config_last_reload_successful 1" in it.metrics()
    assert "cannot be read" not in it.run_command("status", "--state", "state/h.db").stdout
    assert sum(" reload_refused " in line for line in it.log) == 1


class Starting(Daemon):
    """A daemon that has opened its port. It may not have created its database yet."""

    def expect(self, pattern: str) -> str:
        self.wait_until((self.folder / "state" / "daemon.json").exists)
        return ""


def test_the_first_metrics_after_readiness_have_the_series_of_the_database(tmp_path: Path) -> None:
    agent = "{runner: {kind: command, argv: [cat]}, heartbeat: {interval: none, deliver: log}}"
    agents = "".join(f"  a{number}: {agent}\n" for number in range(990))
    it = Starting(tmp_path, config(interval="none") + agents)
    try:
        it.wait_until(lambda: it.readiness()[0] == 200)
        page = it.metrics()
    finally:
        it.kill()
    assert "heartbeatd_db_bytes{" in page
    assert page.count('heartbeatd_entry_state{kind="heartbeat",name="a') == 990


def test_sighup_the_reload_command_and_a_saved_file_reload_alike(daemon: Begin) -> None:
    it = daemon(config())
    it.process.send_signal(signal.SIGHUP)
    assert "nothing changed" in it.expect("reload change=")
    assert "nothing changed" in it.run_command("reload").stdout
    it.config.write_text(config() + "cron: {")
    it.expect("reload_refused")
    refused = it.run_command("reload")
    assert refused.returncode == 2
    assert re.search(r"config\.yaml:\d+:\d+:", refused.stderr)


def test_the_wake_command_follows_its_run_to_the_end(daemon: Begin) -> None:
    it = daemon(config(script="grep -q 'the mail queue' && echo 'ALERT: mail is stuck' || echo HEARTBEAT_OK"))
    it.expect("run id=")
    woken = it.run_command("wake", "ops", "--text", "look at the mail queue", "--wait")
    assert woken.returncode == 0, woken.stderr
    assert "ALERT: mail is stuck" in woken.stdout
    assert it.runs("ops")[0]["trigger"] == "manual"
    it.expect("said .*ALERT: mail is stuck")


def test_a_lane_can_be_locked_before_the_first_run(daemon: Begin) -> None:
    it = daemon(config(interval="none"))
    taken = subprocess.run(["flock", "state/lanes/ops.lock", "true"], cwd=it.folder, timeout=PATIENCE, check=False)
    assert taken.returncode == 0


def test_a_second_daemon_is_refused_with_the_pid_of_the_first(daemon: Begin) -> None:
    it = daemon(config())
    second = it.run_command("run", "--for", "1s")
    assert second.returncode == 1
    assert f"pid {it.process.pid}" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_second_daemon_is_refused_through_a_link_to_the_database(daemon: Begin, tmp_path: Path) -> None:
    it = daemon(config(script="touch ../../begun; exec sleep 600"))
    it.wait_until((tmp_path / "begun").exists)
    other = tmp_path / "other"
    other.mkdir()
    for make, name, error in (
        (Path.symlink_to, "soft.db", f"pid {it.process.pid}"),
        (Path.hardlink_to, "hard.db", "hard.db has 2 hard links"),
    ):
        make(other / name, tmp_path / "state" / "h.db")
        (other / "config.yaml").write_text(config().replace("state/h.db", name))
        second = run_command(other / "config.yaml", "run", "--for", "1s")
        assert (second.returncode, error in second.stderr) == (1, True), second.stderr
    assert sorted(path.name for path in other.iterdir()) == ["config.yaml", "hard.db", "soft.db"]
    assert it.runs("ops") == it.runs("ops", "--result", "running") != []


@pytest.mark.parametrize("file", ["h.db-wal", "h.db-shm"])
def test_a_removed_write_ahead_log_is_detected_and_a_restart_has_every_record(daemon: Begin, file: str) -> None:
    it = daemon(config(job="'true'"))
    it.wait_until(lambda: len(it.runs("tick", "--result", "ok")) > 1)
    (it.folder / "state" / file).unlink()
    assert f"{file} was removed while the daemon ran" in it.expect(" database_unavailable ")
    assert it.stop() == 0
    it.start()
    it.wait_until(lambda: len(it.runs("tick", "--result", "ok")) > 3)
    it.stop()
    rows = it.runs("tick")
    slots = [timegm(time.strptime(row["planned_at"], "%Y-%m-%dT%H:%M:%SZ")) for row in rows]
    assert sum(row["planned_runs"] for row in rows) == max(slots) - min(slots) + 1


def test_a_state_path_that_is_not_a_file_is_refused_and_not_changed(tmp_path: Path) -> None:
    path, pipe = tmp_path / "config.yaml", tmp_path / "state" / "h.db"
    path.write_text(config() + 'cron:\n  x: {at: "2040-01-01T00:00", command: "true"}\n')  # read at load
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    before = pipe.lstat()
    run = run_command(path, "run", "--for", "1s")
    assert run.returncode == 1
    assert "h.db is a pipe, not a database" in run.stderr
    assert pipe.lstat() == before
    assert list(pipe.parent.iterdir()) == [pipe]


@pytest.mark.simulation
def test_repeated_kills_lose_nothing_and_run_nothing_twice(daemon: Begin) -> None:
    """The job appends to a file, which is compared with the run records."""
    it = daemon(config(job="'echo $HEARTBEATD_RUN >> done.txt'"))
    for _ in range(size(1, 20)):
        it.wait_until(lambda: len(it.runs("tick", "--result", "ok")) % 3 == 2)
        it.kill()
        it.start()
    it.wait_until(lambda: len(it.runs("tick", "--result", "ok")) % 3 == 2)
    it.stop()
    rows = it.runs("tick")
    slots = [(row["trigger"], row["planned_at"]) for row in rows]
    assert len(slots) == len(set(slots))
    seconds = [timegm(time.strptime(row["planned_at"], "%Y-%m-%dT%H:%M:%SZ")) for row in rows]
    assert sum(row["planned_runs"] for row in rows) >= max(seconds) - min(seconds) + 1
    did = Counter((it.folder / "done.txt").read_text().split())
    assert set(did.values()) == {1}
    assert len(did) >= len([row for row in rows if row["result"] == "ok"])
    assert "down" in it.run_command("status").stdout


def test_a_command_that_outlives_a_killed_daemon_is_killed_at_the_next_start(daemon: Begin) -> None:
    it = daemon(config(job="'echo $$ >> pids.txt; exec sleep 600'"))
    pids = it.folder / "pids.txt"
    it.wait_until(pids.exists)
    it.kill()
    child = int(pids.read_text().split()[0])
    assert Path(f"/proc/{child}").exists()
    it.start()
    assert not _lives(child)
    row = it.wait_until(lambda: it.runs("tick", "--result", "abandoned"))[0]
    assert row["why"] == "exit"


def test_background_processes_of_a_finished_run_survive_a_crash_and_killed_orphans_are_logged(daemon: Begin) -> None:
    """The service runs in the background after its job has ended. The interrupted job and the interrupted program of its channel are killed."""
    jobs = (
        'cron:\n  service: {schedule: "@reboot", command: "sleep 600 >/dev/null 2>&1 & echo $! >> service.txt"}\n'
        "  tick: {every: 1s, command: 'echo $$ >> tick.txt; exec sleep 600'}\n"
        "  report: {every: 1s, command: date, deliver: note}\n"
        "channels:\n  note: {kind: command, argv: [sh, -c, 'echo $$ >> note.txt; exec sleep 601']}\n"
    )
    it = daemon(config(interval="none") + jobs)
    it.wait_until(
        lambda: (
            it.runs("service", "--result", "ok")
            and all((it.folder / name).exists() and (it.folder / name).read_text() for name in ("tick.txt", "note.txt"))
        )
    )
    it.kill()
    service, tick, descendant = (
        int((it.folder / name).read_text().split()[0]) for name in ("service.txt", "tick.txt", "note.txt")
    )
    (run,) = it.runs("tick", "--result", "running")
    it.start()
    try:
        assert _lives(service)
        assert not _lives(tick)
        assert not _lives(descendant)
        ended = [line for line in it.log if " orphan_ended " in line]
        assert any(f"run={run['id']} kind=cron name=tick pid={tick} program=sleep" in line for line in ended)
        assert any(f"channel=note pid={descendant} program=sleep" in line for line in ended)
        assert not any("name=service" in line for line in ended)
    finally:
        it.wait_until(lambda: len((it.folder / "service.txt").read_text().split()) > 1)
        for pid in (it.folder / "service.txt").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_stop_waits_for_runs_in_progress_and_exits_cleanly(daemon: Begin) -> None:
    it = daemon(config(job="'touch begun; read line < gate; echo done'"))
    os.mkfifo(it.folder / "gate")
    it.wait_until((it.folder / "begun").exists)
    it.process.send_signal(signal.SIGTERM)
    line = it.expect(" stopping ")
    assert re.search(
        r'waits_for="cron/tick \(run \d+, \d+s\)" seconds_at_most=\d+ advice="Ctrl-C or SIGTERM again ends them now"', line
    )
    (it.folder / "gate").write_text("go\n")
    assert it._wait() == 0
    assert [row["result"] for row in it.runs("tick") if row["result"] != "skipped"] == ["ok"]  # its next slots may have come
    assert not (it.folder / "state" / "daemon.json").exists()


def test_a_second_signal_stops_at_once(daemon: Begin) -> None:
    it = daemon(config(job="'touch begun; exec sleep 600'"))
    it.wait_until((it.folder / "begun").exists)
    it.process.send_signal(signal.SIGINT)
    it.expect(" stopping ")
    it.process.send_signal(signal.SIGTERM)
    assert 'ends="cron/tick (run ' in it.expect(' stopping_now .* by="a second signal"')
    assert it._wait() == 0
    assert len(it.runs("tick", "--result", "abandoned")) == 1


def test_run_once_runs_due_entries_and_reports_the_result_by_its_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for yaml, name, code in ((config(), "ops", 0), (config(job="'exit 3'"), "tick", 1)):
        path.write_text(yaml)
        once = run_command(path, "run", "--once")
        assert once.returncode == code, once.stderr
        assert f"name={name}" in once.stderr
        assert "nothing_to_run" not in once.stderr
    path.write_text("timezone: Asia/Kathmandu\n" + config())
    again = run_command(path, "run", "--once")
    assert again.returncode == 0, again.stderr
    assert re.search(r"INFO nothing_to_run next=20\d\d-\d\d-\d\dT\S+\+05:45", again.stderr), again.stderr


def test_a_damaged_database_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config())
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "h.db").write_bytes(b"this was a shopping list" * 1000)
    run = run_command(path, "run", "--for", "1s")
    assert run.returncode == 1
    assert "h.db is damaged or not a database" in run.stderr
    assert "Traceback" not in run.stderr
    assert (tmp_path / "state" / "h.db").read_bytes() == b"this was a shopping list" * 1000


def test_commands_write_to_the_database_while_the_daemon_is_down(daemon: Begin) -> None:
    it = daemon(config(script="grep -q 'left a note' && echo 'ALERT: read' || echo HEARTBEAT_OK"))
    it.expect("run id=")
    it.stop()
    assert it.run_command("wake", "ops", "--text", "left a note").returncode == 0
    assert it.run_command("pause", "ops").returncode == 0
    assert it.run_command("resume", "ops").returncode == 0
    it.start()
    it.expect("said .*ALERT: read")


def test_a_cancelled_run_ends_with_all_its_processes(daemon: Begin) -> None:
    it = daemon(config(job="'echo $$ >> pids.txt; sleep 600 & echo $! >> pids.txt; wait'"))
    pids = it.folder / "pids.txt"
    it.wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    (run,) = it.runs("tick", "--result", "running")
    cancelled = it.run_command("cancel", str(run["id"]))
    assert (cancelled.returncode, cancelled.stdout) == (0, f"run {run['id']} is being cancelled\nrun {run['id']} has ended\n")
    assert not [pid for pid in pids.read_text().split()[:2] if _lives(int(pid))]
    (row,) = it.runs("tick", "--why", "cancelled")
    assert (row["id"], row["result"]) == (run["id"], "abandoned")
    again = it.run_command("cancel", str(run["id"]))
    assert (again.returncode, again.stderr) == (1, f"heartbeatd: run {run['id']} has already ended: abandoned\n")
    assert it.run_command("cancel", "9999").returncode == 2


def test_a_cancelled_model_call_ends_at_once_and_releases_its_lane(daemon: Begin) -> None:
    closed = threading.Event()
    with Server([silent_until_closed(closed), gateway.text_answer("HEARTBEAT_OK")]) as server:
        it = daemon(GATEWAY.format(url=server.url))
        (run,) = it.wait_until(lambda: it.runs("ops", "--result", "running"))
        assert it.run_command("cancel", str(run["id"])).returncode == 0
        assert closed.wait(20)
        (row,) = it.wait_until(lambda: it.runs("ops", "--why", "cancelled"))
        assert (row["result"], row["error"]) == ("abandoned", "was cancelled")
        it.run_command("wake", "ops")
        assert it.wait_until(lambda: it.runs("ops", "--result", "ok"))


def test_a_job_can_deliver_the_report(daemon: Begin) -> None:
    """The example of docs/money.md with another program name and code path."""
    root = HOME
    report = f"{shlex.quote(sys.executable)} -m scheduler report --for 7d"
    job = f'cron:\n  weekly: {{schedule: "0 8 * * 1", command: "{report}", deliver: log, env: {{PYTHONPATH: "{root}"}}}}\n'
    it = daemon(config() + job)
    it.expect("run id=")
    ran = it.run_command("cron", "run", "weekly", "--wait")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 run: 0 with an alert, 1 without, 0 failed." in ran.stdout
    it.expect("said kind=cron name=weekly .*agent/ops")
