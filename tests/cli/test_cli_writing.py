"""The commands that change something, with the daemon down (they write the database) and up (they send a request)."""

import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from config_file import write
from servers.scripted import Act, Imitation, Request, reply
from world import Delayed, MakeWorld

from heartbeatd.verbs import Cancel, Mute, Wake
from scheduler.cli import daemon_client
from scheduler.cli.daemon_client import OfflineDaemonClient
from scheduler.cli.daemon_files import DaemonFiles
from scheduler.cli.main import main
from scheduler.cli.output import format_time
from scheduler.cli.verb_work import find_obstacle
from scheduler.config.settings.load import load_config
from scheduler.engine import startup
from scheduler.engine.effects import VerbRequest
from scheduler.insight.wake_waits import add_wait
from scheduler.model.outcome import Kind
from scheduler.store import entries
from scheduler.store.database import Store, open_read_only
from scheduler.system.state_lock import AlreadyRunning, StateLock

START = datetime(2026, 11, 20, 16, 30, tzinfo=UTC)
CONFIG = """\
state: state/heartbeatd.db
agents:
  ops:
    runner: {kind: command, argv: [cat]}
    heartbeat: {interval: 30m, deliver: log}
  both:
    runner: {kind: command, argv: [cat]}
    heartbeat: {interval: 30m, deliver: log}
cron:
  both: {every: 1h, command: "true"}
  tick: {every: 1h, command: "true"}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write(tmp_path, CONFIG)


@pytest.fixture
def place(config: Path) -> DaemonFiles:
    return DaemonFiles(config.parent / "state" / "heartbeatd.db")


def call(config: Path, *arguments: str) -> int:
    return main(["-c", str(config), *arguments])


def read(place: DaemonFiles, query: str) -> list[dict[str, Any]]:
    db = open_read_only(place.database)
    try:
        return [dict(row) for row in db.execute(query)]
    finally:
        db.close()


def entry_row(place: DaemonFiles, kind: Kind, name: str) -> entries.EntryRow:
    db = open_read_only(place.database)
    try:
        found = entries.find_entry(db, kind, name)
    finally:
        db.close()
    assert found is not None
    return found


def test_a_wake_waits_in_the_database_for_a_daemon(config: Path, place: DaemonFiles, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(config, "wake", "ops", "--text", "look here") == 0
    assert capsys.readouterr().out == "wake 1 for agent/ops is queued\n"
    waiting = read(place, "select name, source, sender, text, state from wake")
    assert waiting == [{"name": "ops", "source": "manual", "sender": "command", "text": "look here", "state": "waiting"}]


def test_a_reminder_is_set_and_cancelled_by_its_number(
    config: Path, place: DaemonFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(config, "wake", "ops", "--in", "30m", "--text", "look here") == 0
    assert "wake 1 for agent/ops is planned; it waits until" in capsys.readouterr().out
    assert call(config, "forget", "1") == 0
    assert capsys.readouterr().out == "wake 1 for agent/ops is cancelled\n"
    assert read(place, "select state from wake") == [{"state": "ended"}]
    assert call(config, "forget", "1") == 1


def test_a_delayed_wake_prints_at_once_what_it_waits_for(
    config: Path, place: DaemonFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(config, "pause", "ops") == 0
    capsys.readouterr()
    assert call(config, "wake", "ops") == 0
    assert capsys.readouterr().out == "wake 1 for agent/ops is queued; it waits: the agent is paused\n"
    assert call(config, "status") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "wakes: agent/ops: 1 wake waits: the agent is paused" in output
    assert call(config, "explain", "ops") == 0
    assert "1 wake waits: the agent is paused\n" in capsys.readouterr().out


def test_a_wake_outside_the_active_hours_prints_until_when_it_waits(make_world: MakeWorld) -> None:
    hours = CONFIG.replace("interval: 30m", 'interval: 30m, stagger: 0s, active_hours: "08:00-22:00"', 1)
    world = make_world(hours, start="2026-03-02 23:00")
    number = world.wake("ops", "look")
    with click.Context(click.Command("wake")) as context:  # times are printed in the zone of its config
        context.params["path"] = world.config
        obstacle = find_obstacle(world.config, number)
        assert add_wait("queued", obstacle, format_time) == "queued; it waits until 2026-03-03 08:00:00: outside active hours"


def test_a_wake_accepts_the_prefix_agent(config: Path, place: DaemonFiles) -> None:
    assert call(config, "wake", "agent/both") == 0
    assert read(place, "select kind, name from wake") == [{"kind": "heartbeat", "name": "both"}]


def test_a_wake_of_an_unknown_agent_is_rejected(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(config, "wake", "nobody") == 2
    assert capsys.readouterr().err == "heartbeatd: no agent 'nobody' in config.yaml; `heartbeatd status` lists them\n"


@pytest.mark.parametrize("command", ["wake opps", "pause opps", "resume agent/opps", "busy opps -- true"])
def test_a_similar_name_is_suggested_for_a_misspelt_one(command: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command.split()[0], "-c", str(config), *command.split()[1:]]) == 2
    assert capsys.readouterr().err.endswith("; did you mean ops?\n")


def test_waiting_for_a_wake_ends_at_once_if_the_daemon_is_down(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(config, "wake", "ops", "--wait") == 1
    assert capsys.readouterr().err == "heartbeatd: the daemon is not running; wake 1 is kept for its next start\n"


def test_waiting_for_a_wake_outside_the_active_hours_ends_in_the_same_way_if_the_daemon_is_down(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command without a daemon starts no run. The first wake is recorded as a skipped run."""
    tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%a}".lower()
    config.write_text(
        config.read_text("utf-8").replace("30m", f"30m, active_hours: {{start: '00:00', end: '24:00', days: {tomorrow}}}", 1)
    )
    for _ in range(2):
        assert call(config, "wake", "ops", "--wait") == 1
        printed = capsys.readouterr()
        assert (printed.out, printed.err) == ("", "heartbeatd: the daemon is not running; wake 1 is kept for its next start\n")


def test_a_job_can_be_requested_while_the_daemon_is_down(config: Path, place: DaemonFiles) -> None:
    assert call(config, "cron", "run", "tick") == 0
    assert read(place, "select kind, name, source, sender from wake") == [
        {"kind": "cron", "name": "tick", "source": "manual", "sender": "command"}
    ]


def test_a_pause_lasts_for_the_given_time(config: Path, place: DaemonFiles, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(config, "pause", "ops", "--for", "2h") == 0
    assert capsys.readouterr().out.startswith("agent/ops is paused until 2")
    ends = entry_row(place, Kind.HEARTBEAT, "ops").pause_ends
    assert ends is not None
    assert abs(ends - datetime.now(UTC) - timedelta(hours=2)) < timedelta(minutes=1)
    assert call(config, "resume", "ops") == 0
    assert not entry_row(place, Kind.HEARTBEAT, "ops").paused


def test_an_empty_name_does_not_stand_for_all_entries(
    config: Path, place: DaemonFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a script writes it with a variable that is not set: `heartbeatd pause "$NAME"`."""
    assert call(config, "pause", "tick") == 0
    for command in ("pause", "resume", "mute", "unmute"):
        assert call(config, command, "") == 2
        assert "no agent or cron job ''" in capsys.readouterr().err
    assert read(place, "select name from entry where paused_until is not null") == [{"name": "tick"}]


def test_all_entries_can_be_paused_and_resumed(config: Path, place: DaemonFiles) -> None:
    assert call(config, "pause", "--all") == 0
    assert read(place, "select count(*) as number from entry where paused_until is not null") == [{"number": 4}]
    assert call(config, "resume", "--all") == 0
    assert read(place, "select count(*) as number from entry where paused_until is not null") == [{"number": 0}]


def test_resume_lists_the_resumed_entries_and_those_that_were_not_paused(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def resume(who: str) -> list[str]:
        assert call(config, "resume", who) == 0
        return capsys.readouterr().out.splitlines()

    assert (resume("ops"), resume("--all")) == (["agent/ops was not paused"], ["nothing was paused"])
    for name in ("ops", "tick"):
        assert call(config, "pause", name) == 0
    capsys.readouterr()
    assert (resume("ops"), resume("--all")) == (["agent/ops is resumed"], ["cron/tick is resumed"])


def test_a_name_of_an_agent_and_a_job_needs_a_prefix(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(config, "pause", "both") == 2
    assert "write agent/both or cron/both" in capsys.readouterr().err
    assert call(config, "pause", "cron/both") == 0


def test_an_invalid_config_is_reported_before_anything_is_written(
    config: Path, place: DaemonFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("agents: {ops: {heartbeat: {interval: soon}}}")
    assert call(config, "wake", "ops") == 2
    assert f"{config}:1:38: agents.ops.heartbeat.interval: 'soon' is not a duration" in capsys.readouterr().err
    assert not place.database.exists()


def test_a_reload_needs_a_daemon(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(config, "reload") == 1
    assert capsys.readouterr().err.startswith("heartbeatd: the daemon is not running")


def undelivered(config: Path, place: DaemonFiles, *states: str) -> None:
    """Add a message of the agent `ops` for each of these states."""
    assert call(config, "resume", "--all") == 0
    store = Store.open(place.database)
    with store.transaction() as db:
        for number, state in enumerate(states, 1):
            db.execute(
                "insert into outbox (key, channel, run_id, kind, name, trigger, slot, part, parts, title, text, state, not_before,"
                " created_at) values (?, 'log', 1, 'heartbeat', 'ops', 'interval', 1, 1, 1, 't', 'disk full', ?, 7, 7)",
                (f"k{number}", state),
            )
    store.close()


def message_states(place: DaemonFiles) -> list[str]:
    return [row["state"] for row in read(place, "select state from outbox order by id")]


def test_messages_can_be_retried_while_the_daemon_is_down(
    config: Path, place: DaemonFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    undelivered(config, place, "dead", "held", "dead")
    capsys.readouterr()
    assert call(config, "outbox", "retry", "1", "2") == 0
    assert capsys.readouterr().out == "message 1 will be sent again\nmessage 2 will be sent again\n"
    assert message_states(place) == ["pending", "pending", "dead"]


def test_drop_all_drops_every_message_that_can_be_dropped(
    config: Path, place: DaemonFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    undelivered(config, place, "dead", "pending", "sending", "delivered", "held")
    assert call(config, "outbox", "drop", "--all") == 0
    assert message_states(place) == ["dropped", "dropped", "sending", "delivered", "dropped"]
    capsys.readouterr()
    assert call(config, "outbox", "drop", "--all") == 0
    assert capsys.readouterr().out == "there is nothing to do\n"


def test_an_error_with_one_message_does_not_stop_the_others(
    config: Path, place: DaemonFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    undelivered(config, place, "delivered", "dead")
    assert call(config, "outbox", "retry", "1", "9", "2") == 1
    assert capsys.readouterr().err.splitlines() == [
        "heartbeatd: message 1 has been delivered",
        "heartbeatd: no message 9; `heartbeatd outbox` lists them",
    ]
    assert message_states(place) == ["delivered", "pending"]


@pytest.mark.parametrize("arguments", [[], ["1", "--all"]])
def test_retry_and_drop_need_ids_or_all(arguments: list[str], config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(config, "outbox", "drop", *arguments) == 2
    assert "name messages by their ID, or use --all" in capsys.readouterr().err


@pytest.mark.parametrize("move", ["retry", "drop"])
def test_an_invalid_message_number_is_reported(
    move: str, config: Path, place: DaemonFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    undelivered(config, place, "dead")
    assert call(config, "outbox", move, "9" * 23) == 2
    assert f"'{'9' * 23}' is not a number such as 12" in capsys.readouterr().err


def test_a_config_option_before_a_subcommand_applies_to_it(config: Path, place: DaemonFiles) -> None:
    undelivered(config, place, "dead")
    assert main(["outbox", "-c", str(config), "drop", "1"]) == 0
    assert message_states(place) == ["dropped"]


def test_cancelling_needs_a_daemon(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(config, "cancel", "3") == 1
    assert capsys.readouterr().err.startswith("heartbeatd: the daemon is not running, so no run is in progress")


def test_a_command_waits_for_a_daemon_that_starts_beside_it(config: Path, place: DaemonFiles) -> None:
    """When the command looks, no daemon runs. When it wants to write, one has the lock."""
    call(config, "resume", "--all")
    client = OfflineDaemonClient(config)
    daemon = Daemon(place)
    daemon.write_address()
    try:
        assert client.perform(Wake(text="look"), (Kind.HEARTBEAT, "ops")).wake == 7
        client.perform(Mute(until_changed=True), (Kind.HEARTBEAT, "ops"))
    finally:
        daemon.close()
    assert [path for path, _ in daemon.asked] == ["/api/v1/agents/ops/wake", "/api/v1/agents/ops/mute"]


def test_a_starting_daemon_waits_for_a_command_and_not_for_a_daemon(config: Path, place: DaemonFiles) -> None:
    call(config, "resume", "--all")
    settings = load_config(config, {}).settings
    looks: list[datetime] = []

    def look() -> datetime:
        looks.append(datetime.now(UTC))
        if len(looks) == 3:
            held.release()
        return looks[-1]

    with StateLock.take(place.lock_file, started_at=START, instance="command", is_command=True) as held:
        startup.take_lock(settings, "daemon", look).release()
    assert len(looks) == 3
    looks.clear()
    with StateLock.take(place.lock_file, started_at=START, instance="other"), pytest.raises(AlreadyRunning):
        startup.take_lock(settings, "daemon", lambda: START)


# Has the keys of every answer, because the command reads only those that it knows.
ANSWER = {
    "wake": 7,
    "paused": [],
    "resumed": ["cron/both"],
    "muted_until": None,
    "until_changed": False,
    "was_muted": True,
    "held": 3,
    "message": 1,
    "channel": "hook",
    "run": 3,
    "ended": True,
    "says": "it is done",
}


class Daemon(Imitation):
    """A fake daemon: it holds the lock, writes its address, records the requests, and returns a prepared answer."""

    def __init__(self, place: DaemonFiles) -> None:
        super().__init__()
        self.place = place
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, tuple[int, object]] = {}
        self._held = StateLock.take(place.lock_file, started_at=START, instance="other")
        self.__enter__()

    def write_address(self, pid: int | None = None) -> None:
        self.place.address_file.write_text(json.dumps({"url": self.url, "pid": os.getpid() if pid is None else pid}))
        self.place.token_file.write_text("s3cret\n")

    def close(self) -> None:
        self.__exit__(None)
        self._held.release()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, object]:
        self.asked.append((path, body))
        return self.answers.get(path, (200, ANSWER))

    def _answer(self, request: Request) -> Act:
        status, answer = self.answer(request.path, request.json)
        return reply(answer, status)


@pytest.fixture
def daemon(config: Path, place: DaemonFiles) -> Iterator[Daemon]:
    call(config, "resume", "--all")
    daemon = Daemon(place)
    daemon.write_address()
    yield daemon
    daemon.close()


@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [
        (["pause", "ops", "--for", "1h30m"], "/api/v1/agents/ops/pause", {"for": "5400s"}),
        (["pause", "tick"], "/api/v1/cron/tick/pause", {}),
        (["pause", "--all", "--for", "2h"], "/api/v1/pause", {"for": "7200s"}),
        (["mute", "ops", "--for", "2h"], "/api/v1/agents/ops/mute", {"for": "7200s"}),
        (["mute", "tick", "--until-changed"], "/api/v1/cron/tick/mute", {"until_changed": True}),
        (["unmute", "cron/both"], "/api/v1/cron/both/unmute", {}),
        (["resume", "cron/both"], "/api/v1/cron/both/resume", {}),
        (["resume", "--all"], "/api/v1/resume", {}),
    ],
)
def test_pause_resume_mute_and_unmute_are_sent_to_a_running_daemon(
    arguments: list[str],
    path: str,
    body: dict[str, Any],
    config: Path,
    daemon: Daemon,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    assert call(config, *arguments) == 0
    assert daemon.asked == [(path, body)]
    assert capsys.readouterr().out == "it is done\n"


def test_an_entry_is_muted_in_the_database_of_a_stopped_daemon(config: Path, place: DaemonFiles, capsys: Any) -> None:
    assert call(config, "mute", "ops", "--for", "2h", "--until-changed") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("agent/ops is muted until ")
    assert printed.endswith(" or until something changes\n")
    assert entry_row(place, Kind.HEARTBEAT, "ops").is_muted(datetime.now(UTC))
    assert call(config, "status") == 0
    assert "muted: agent/ops by" in capsys.readouterr().out
    assert call(config, "unmute", "ops") == 0
    assert call(config, "unmute", "ops") == 0
    assert capsys.readouterr().out == "agent/ops is unmuted; messages of 0 runs were suppressed\nagent/ops was not muted\n"


def test_a_wake_is_sent_to_a_running_daemon(
    config: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEARTBEATD_RUN", "abc/7")
    daemon.answers["/api/v1/agents/ops/wake"] = (200, {"wake": 41, "says": "wake 41 is queued"})
    assert call(config, "wake", "ops", "--text", "hi") == 0
    assert capsys.readouterr().out == "wake 41 is queued\n"
    assert daemon.asked == [("/api/v1/agents/ops/wake", {"text": "hi"})]
    sent = {"authorization": "Bearer s3cret", "x-heartbeatd-source": "cli", "x-heartbeatd-run": "abc/7"}
    assert daemon.requests[0].headers.items() >= (sent | {"content-type": "application/json"}).items()


def test_a_job_request_is_sent_to_a_running_daemon(config: Path, daemon: Daemon) -> None:
    daemon.answers["/api/v1/cron/tick/run"] = (200, {"wake": 41, "says": "cron/tick is queued"})
    assert call(config, "cron", "run", "cron/tick") == 0
    assert daemon.asked == [("/api/v1/cron/tick/run", {})]


@pytest.mark.parametrize(
    ("status", "answer", "code", "error"),
    [
        (404, {"error": {"code": "not_found", "message": "no agent 'ops'"}}, 2, "heartbeatd: no agent 'ops'\n"),
        (409, {"error": {"code": "own_run", "message": "cannot wake itself"}}, 1, "heartbeatd: cannot wake itself\n"),
        (
            500,
            b"oops",
            1,
            "heartbeatd: the answer of URL (HTTP status 500) is not one of this version of heartbeatd; check the address, and install the version of the daemon\n",
        ),
    ],
)
def test_a_request_that_the_daemon_rejects_is_reported_in_one_line(
    status: int, answer: object, code: int, error: str, config: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    daemon.answers["/api/v1/agents/ops/wake"] = (status, answer)
    assert call(config, "wake", "ops") == code
    assert re.sub("http://[^ ]+", "URL", capsys.readouterr().err) == error


def test_an_entry_that_a_reload_has_removed_is_unknown(
    config: Path, daemon: Daemon, place: DaemonFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(place.database)) as db, db:
        db.execute("update entry set state = 'removed' where name = 'tick'")
    assert (call(config, "pause", "tick"), daemon.asked) == (2, [])
    assert "'tick'" in capsys.readouterr().err


def test_with_the_daemon_up_the_config_may_be_invalid(config: Path, daemon: Daemon) -> None:
    config.write_text("state: state/heartbeatd.db\nagents: [")
    assert call(config, "pause", "ops") == 0


def test_a_reload_prints_its_changes(config: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    lines = ["added agent/new", "agent/ops: heartbeat.interval 30m -> 1h"]
    other_keys = {"says": "active", "added": [], "removed": [], "changed": {}, "unchanged": 1}
    daemon.answers["/-/reload"] = (200, {"lines": lines, "warnings": ["state: changed"], **other_keys})
    assert call(config, "reload") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["active", *lines]
    assert err == "warning: state: changed\n"
    assert daemon.asked == [("/-/reload", {})]


def test_a_rejected_reload_prints_the_errors_as_check_does(
    config: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    fault = {"line": 3, "column": 5, "path": "agents.ops", "message": "is missing"}
    daemon.answers["/-/reload"] = (422, {"ok": False, "errors": [fault], "warnings": [fault]})
    monkeypatch.chdir(config.parent)
    assert main(["reload"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "warning: config.yaml:3:5: agents.ops: is missing",
        "config.yaml:3:5: agents.ops: is missing",
    ]
    assert daemon.asked == [("/-/reload", {})]


def test_a_running_daemon_is_found_under_every_path_of_its_database(config: Path, daemon: Daemon) -> None:
    (config.parent / "link.db").symlink_to("state/heartbeatd.db")
    (config.parent / "elsewhere").symlink_to("state")
    for number, named in enumerate(("link.db", "elsewhere/heartbeatd.db"), 1):
        other = config.with_name("other.yaml")
        other.write_text(config.read_text("utf-8").replace("state/heartbeatd.db", named), "utf-8")
        assert call(other, "pause", "ops") == 0
        assert len(daemon.asked) == number
    assert sorted(path.name for path in config.parent.iterdir() if path.name.startswith("link.db")) == ["link.db"]


@pytest.mark.parametrize("command", [("pause", "ops"), ("status",), ("runs",), ("busy", "ops", "--", "true")])
def test_no_command_works_on_a_hard_link_to_a_database(
    command: tuple[str, ...], config: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    link = config.parent / "other" / "link.db"
    link.parent.mkdir(mode=0o700)
    link.hardlink_to(daemon.place.database)
    other = config.with_name("other.yaml")
    other.write_text(config.read_text("utf-8").replace("state/heartbeatd.db", "other/link.db"), "utf-8")
    capsys.readouterr()
    assert call(other, *command) == 1
    assert "link.db has 2 hard links" in capsys.readouterr().err
    assert list(link.parent.iterdir()) == [link]
    assert call(config, "status") == 0  # the path that the daemon uses works


def test_a_state_path_that_is_not_a_file_is_rejected_before_anything_is_created(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (config.parent / "state").mkdir()
    os.mkfifo(pipe := config.parent / "state" / "heartbeatd.db")
    for command in (("pause", "ops"), ("status",)):
        assert call(config, *command) == 1
        assert "heartbeatd.db is a pipe, not a database" in capsys.readouterr().err
    assert list(pipe.parent.iterdir()) == [pipe]


def test_the_address_of_an_earlier_process_is_not_used(daemon: Daemon) -> None:
    daemon.write_address(pid=1)
    with pytest.raises(click.ClickException, match="cannot be reached"):
        daemon_client.connect_to_daemon(daemon.place, timeout=0)
    assert daemon.asked == []


def test_a_daemon_that_does_not_listen_yet_is_reported(daemon: Daemon) -> None:
    daemon.place.address_file.unlink()
    with pytest.raises(click.ClickException, match=f"pid {os.getpid()} holds"):
        daemon_client.connect_to_daemon(daemon.place, timeout=0)


def test_an_unreadable_token_is_reported(config: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    daemon.place.token_file.unlink()
    assert call(config, "wake", "ops") == 1
    assert "are you the user that runs the daemon?" in capsys.readouterr().err


class Waking(Daemon):
    """A fake daemon that runs each wake at once, with a prepared outcome."""

    outcome = ("ok", None, "all is well")

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, object]:
        outcome, reason, text = self.outcome
        store = Store.open(self.place.database)
        try:
            with store.transaction() as db:
                run = db.execute(
                    "insert into run (kind, name, slot, trigger, state, outcome, reason, text)"
                    " values ('heartbeat', 'ops', 1, 'manual', 'closed', ?, ?, ?)"
                    " returning id",
                    (outcome, reason, text),
                ).fetchone()[0]
                db.execute(
                    "insert into wake (name, kind, source, sender, text, created_at, updated_at, state, run_id)"
                    " values ('ops', 'heartbeat', 'manual', 'cli', '', 1, 1, 'ended', ?)",
                    (run,),
                )
                wake = db.execute("select max(id) from wake").fetchone()[0]
        finally:
            store.close()
        return 200, {"wake": wake, "says": "it is queued"}


@pytest.fixture
def waking(config: Path, place: DaemonFiles) -> Iterator[Waking]:
    call(config, "resume", "--all")
    daemon = Waking(place)
    daemon.write_address()
    yield daemon
    daemon.close()


@pytest.mark.parametrize(
    ("outcome", "code", "output"),
    [
        (("ok", None, "all is well"), 0, "run 1: ok\nall is well\n"),
        (("alert", None, "disk \x1bfull"), 0, "run 1: alert\ndisk \\x1bfull\n"),
        (("ok", None, '{"findings": []}'), 0, "run 1: ok\nno findings\n"),
        (("failed", "exit", None), 1, "run 1: failed (exit)\n"),
        (("skipped", "active_hours", None), 1, "run 1: skipped (active_hours)\n"),
    ],
)
def test_waiting_for_a_wake_prints_the_result_of_its_run(
    outcome: tuple[str, str | None, str | None],
    code: int,
    output: str,
    config: Path,
    waking: Waking,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    waking.outcome = outcome
    assert call(config, "wake", "ops", "--wait") == code
    assert capsys.readouterr().out == output


def test_retry_and_drop_are_sent_to_a_running_daemon(config: Path, daemon: Daemon) -> None:
    assert call(config, "outbox", "retry", "3", "4") == 0
    assert call(config, "outbox", "drop", "5") == 0
    assert daemon.asked == [("/api/v1/outbox/3/retry", {}), ("/api/v1/outbox/4/retry", {}), ("/api/v1/outbox/5/drop", {})]


def test_a_cancel_request_is_sent_to_a_running_daemon(config: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    daemon.answers["/api/v1/runs/3/cancel"] = (200, {"run": 3, "ended": True, "says": "run 3 is cancelled"})
    assert call(config, "cancel", "3") == 0
    assert capsys.readouterr().out == "run 3 is cancelled\n"
    daemon.answers["/api/v1/runs/3/cancel"] = (409, {"error": {"code": "closed", "message": "run 3 has already ended: ok"}})
    assert call(config, "cancel", "3") == 1
    assert capsys.readouterr().err == "heartbeatd: run 3 has already ended: ok\n"


@pytest.mark.parametrize(
    ("interval", "output"),
    [
        ("none", "1 wake waits: no run is planned; another wake starts one"),
        ("30m", "1 wake waits until {}: its run was cancelled"),
    ],
)
def test_cancel_prints_when_the_wakes_of_the_run_will_be_delivered(
    interval: str, output: str, config: Path, daemon: Daemon, make_world: MakeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(
        CONFIG.replace("30m", interval, 1), scripts={"ops": lambda call: Delayed("HEARTBEAT_OK", timedelta(minutes=9))}
    )
    world.write("ops/HEARTBEAT.md", "- look\n")
    world.wake("ops", "the disk is full")
    world.run(seconds=1)
    world.request(VerbRequest(Cancel(), 1))
    world.run(seconds=1)
    daemon.answers["/api/v1/runs/1/cancel"] = (200, {"run": 1, "ended": True, "says": "run 1 is cancelled"})
    capsys.readouterr()
    assert call(config, "cancel", "1") == 0
    assert capsys.readouterr().out == f"run 1 is cancelled\nagent/ops: {output.format('2026-03-02 08:01:59')}\n"
    assert main(["status", "-c", str(config)]) == 0
    assert f"wakes: agent/ops: {output.format('Mon 2026-03-02 08:01:59')}" in " ".join(capsys.readouterr().out.split())
