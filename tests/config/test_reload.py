"""A reload is recorded with who asked for it and what it changed. A rejected config is logged and recorded once."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from config_file import write
from metrics_page import Page
from world import MakeWorld, World, utc

from heartbeatd.answers import time_as_json
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.settings.load import LoadedConfig, load_config
from scheduler.engine.config_reload import ANSWER_TIMEOUT, Reloader, load_for_standby, plan_for_start
from scheduler.engine.tick_items import Refused, Request
from scheduler.insight import status_data
from scheduler.insight.reload_history import changes_of_entry, config_changes_between
from scheduler.model.outcome import Kind

GOOD = 'agents: {ops: {runner: {kind: command, argv: [a]}, heartbeat: {interval: 30m, checklist: "- a\\n", deliver: log}}}\n'
WRONG = GOOD.replace("30m", "soon")


class Inbox:
    """An inbox that handles requests immediately."""

    def __init__(self, world: World) -> None:
        self.world = world

    def submit(self, request: Request) -> Future[Any]:
        future = self.world.inbox.submit(request)
        self.world.settle()
        return future


class Saving:
    """Saves a config, reloads it, and returns the number of log lines that report its rejection."""

    def __init__(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        self.world, self._caplog = world, caplog
        self._reloader = Reloader(
            lambda content=None: load_config(world.config, world.environ, content=content),
            load_config(world.config, world.environ),
            lambda: world.engine.plan,
            Inbox(world),
            lambda: world.clock.now,
        )  # type: ignore[arg-type]

    def loaded_for_standby(self) -> LoadedConfig:
        """The config with which the daemon would return to standby now."""
        world = self.world
        return load_for_standby(world.engine.plan, self._reloader.loaded, world.config, world.environ, world.clock.now)[0]

    def __call__(self, yaml: str, *, watched: bool = False) -> int:
        self.world.config.write_text(yaml, "utf-8")
        self._caplog.clear()
        try:
            self.warnings = self._reloader.reload(by="file watch" if watched else "command", doubt=watched).warnings
        except ConfigError:
            assert not self._reloader.reload_state.successful
        return sum(record.message == "reload_refused" and record.levelno == logging.ERROR for record in self._caplog.records)


@pytest.fixture
def saved(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> Saving:
    caplog.set_level(logging.DEBUG)
    return Saving(make_world(GOOD), caplog)


def test_a_rejected_file_is_logged_once_for_all_kinds_of_reload(saved: Saving) -> None:
    assert saved(WRONG, watched=True) == 1
    assert saved(WRONG) == 0
    assert saved(WRONG, watched=True) == 0


def test_a_file_that_is_still_invalid_after_another_edit_is_logged_again(saved: Saving) -> None:
    assert [saved(WRONG), saved(WRONG + "# almost\n"), saved(WRONG)] == [1, 1, 1]


def test_a_file_that_becomes_invalid_again_is_logged_again(saved: Saving) -> None:
    assert [saved(WRONG), saved(GOOD), saved(WRONG)] == [1, 0, 1]


def test_the_same_file_with_a_different_error_is_logged_again(saved: Saving) -> None:
    keyed = GOOD.replace("deliver: log", "deliver: phone") + 'channels: {phone: "${URL}"}\n'
    assert saved(keyed) == 1  # URL is not set
    saved.world.environ["URL"] = "nowhere"
    assert [saved(keyed), saved(keyed)] == [1, 0]


def test_a_watched_file_that_lost_most_of_its_entries_is_not_applied_until_confirmed(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    beat = GOOD[len("agents: {ops: ") : -len("}\n")]
    many = "agents: {" + ", ".join(f"{name}: {beat}" for name in ("a", "b", "c", "d")) + "}\n"
    saved = Saving(make_world(many), caplog)
    saved.world.run(minutes=1)
    before = saved.world.engine.plan
    lost = f"agents: {{a: {beat}}}\n"
    with pytest.raises(Refused, match="removes 3 of 4 entries"):
        saved(lost, watched=True)
    ran = len(saved.world.records())
    saved.world.run(minutes=30)
    assert saved.world.engine.plan is before
    assert sorted(row["name"] for row in saved.world.records()[ran:]) == ["a", "b", "c", "d"]
    assert saved(lost) == 0  # an explicit reload confirms it
    assert set(saved.world.engine.plan.entries) == {("heartbeat", "a")}


@pytest.fixture
def reloaded(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> Saving:
    """A world whose database has a copy of its config, as after a start of the daemon."""
    caplog.set_level(logging.INFO)
    saved = Saving(make_world(GOOD), caplog)
    assert saved(GOOD) == 0
    return saved


def changes(saved: Saving, name: str = "ops") -> list[tuple[Any, ...]]:
    """What is recorded for an agent: who, what, and in words the key with its old and new value."""
    db, now = saved.world.store.connection, saved.world.clock.now
    found = changes_of_entry(db, Kind.HEARTBEAT, name, now - timedelta(days=1), now + timedelta(seconds=1))
    return [(each.by, each.what, each.says) for each in found]


def test_a_reload_is_recorded_with_who_asked_for_it_and_both_values(reloaded: Saving) -> None:
    reloaded(GOOD.replace("30m", "1h"), watched=True)
    reloaded(GOOD.replace("30m", "1h").replace("- a", "- b"))
    assert changes(reloaded) == [
        ("file watch", "changed", "heartbeat.interval 30m -> 1h"),
        ("command", "changed", "heartbeat.checklist '- a\\n' -> '- b\\n'"),
    ]
    assert status_data.read_status(reloaded.world.store.connection, reloaded.world.clock.now).as_data()["reload"] == {
        "mode": "watch",
        "last": {
            "at": time_as_json(reloaded.world.clock.now),
            "says": "config reloaded, by command",
            "result": "applied",
            "by": "command",
            "lines": ["agent/ops: heartbeat.checklist '- a\\n' -> '- b\\n'"],
            "problems": [],
        },
    }


def test_a_renamed_agent_is_recorded_as_removed_and_added(reloaded: Saving) -> None:
    reloaded(GOOD.replace("ops:", "web:"))
    assert changes(reloaded, "ops") == [("command", "removed", "removed")]
    assert changes(reloaded, "web") == [("command", "added", "added")]


def test_a_record_of_an_older_version_shows_a_rename_as_removed_and_added(reloaded: Saving) -> None:
    change = {"key": "heartbeat.retries", "old": "2", "new": "5", "entries": ["agent/ops"], "count": 1}
    diff = {"added": [], "removed": [], "renamed": [["agent/ops", "agent/web"]], "changes": [change], "more": 7}
    with reloaded.world.store.transaction() as db:
        db.execute("update config_event set diff = ?", (json.dumps(diff),))
    found = [("command", "removed", "removed"), ("command", "changed", "heartbeat.retries 2 -> 5")]
    assert (changes(reloaded, "ops"), changes(reloaded, "web")) == (found, [("command", "added", "added")])


def test_a_key_outside_the_agents_is_recorded_and_belongs_to_none_of_them(reloaded: Saving) -> None:
    reloaded(GOOD + "limits: {concurrency: 2}\n")
    assert changes(reloaded) == []
    last = status_data.read_status(reloaded.world.store.connection, reloaded.world.clock.now).as_data()["reload"]["last"]
    assert last["lines"] == ["limits.concurrency 8 -> 2"]


def test_a_change_of_the_time_zone_is_recorded_for_each_agent(reloaded: Saving) -> None:
    reloaded(GOOD + "timezone: Europe/Riga\n")
    reloaded(GOOD + "timezone: Europe/Berlin\n")
    assert changes(reloaded)[-1] == ("command", "changed", "heartbeat.timezone Europe/Riga -> Europe/Berlin")


def test_metrics_show_the_present_database_until_the_restart_that_another_one_needs(reloaded: Saving) -> None:
    page = Page(reloaded.world)
    size = page.series("db_bytes")["db_bytes{db}"]
    assert size > 0
    reloaded(GOOD + "state: other/other.db\n")
    assert page.series("db_bytes")["db_bytes{db}"] >= size


@pytest.mark.parametrize("how", ["watch", "manual"])
def test_a_daemon_that_loses_its_lease_returns_to_standby_of_the_same_database(reloaded: Saving, how: str) -> None:
    before = reloaded.world.engine.plan.settings.database
    reloaded(GOOD + f"state: other/other.db\nreload: {how}\n")
    assert reloaded.loaded_for_standby().settings.database == before


def test_a_change_that_needs_a_restart_is_reported_at_each_reload_until_it_is_undone(reloaded: Saving) -> None:
    waits = ("server.listen: changed; the change takes effect when the daemon is restarted",)
    other = GOOD + 'server: {listen: "127.0.0.1:7999"}\n'
    for saved, warnings in ((other, waits), (other.replace("30m", "1h"), waits), (GOOD, ())):
        reloaded(saved)
        assert reloaded.warnings == warnings


def test_a_rejected_file_is_recorded_once_with_its_errors(reloaded: Saving) -> None:
    reloaded(WRONG, watched=True)
    reloaded(WRONG)
    ((by, what, problem),) = changes(reloaded)
    assert (by, what) == ("file watch", "refused")
    assert "'soon' is not a duration" in problem


def test_a_reload_without_a_change_is_recorded_too(reloaded: Saving) -> None:
    assert reloaded(GOOD + "# a comment\n") == 0
    assert changes(reloaded) == []
    recorded = [
        each.as_data()
        for each in config_changes_between(reloaded.world.store.connection, utc("2000-01-01 00:00"), utc("2100-01-01 00:00"))
    ]
    assert [(each["result"], each["lines"]) for each in recorded] == [("applied", []), ("applied", [])]


def test_a_watched_file_that_is_in_force_already_is_not_applied_again(reloaded: Saving) -> None:
    before = reloaded.world.engine.plan
    reloaded(GOOD, watched=True)
    assert reloaded.world.engine.plan is before


def test_a_watched_file_that_is_valid_again_is_applied_again(reloaded: Saving) -> None:
    reloaded(WRONG, watched=True)
    reloaded(GOOD, watched=True)
    assert reloaded.world.engine.plan.settings.heartbeats["ops"].interval == timedelta(minutes=30)
    assert status_data.read_status(reloaded.world.store.connection, reloaded.world.clock.now).problems == []


def test_the_log_has_the_old_and_the_new_value(reloaded: Saving, caplog: pytest.LogCaptureFixture) -> None:
    reloaded(GOOD.replace("30m", "1h"))
    (record,) = [record for record in caplog.records if record.message == "reload"]
    assert (record.fields["change"], record.fields["by"]) == ("agent/ops: heartbeat.interval 30m -> 1h", "command")  # type: ignore[attr-defined]


def test_a_secret_of_the_environment_that_changed_is_recorded_without_its_value(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    keyed = GOOD.replace("argv: [a]", 'argv: [a], env: {KEY: "${KEY}"}')
    world = make_world(GOOD)
    world.environ["KEY"] = "first"
    saved = Saving(world, caplog)
    saved(keyed)
    world.environ["KEY"] = "second"
    saved(keyed)
    assert changes(saved)[-1] == ("command", "changed", "secrets *** -> *** (another value)")


def test_old_records_are_deleted_and_the_latest_is_kept(reloaded: Saving) -> None:
    for _ in range(3):
        reloaded(GOOD.replace("30m", "1d"))
    reloaded.world.run(hours=24 * 31)
    events = reloaded.world.store.connection.execute("select count(*) from config_event").fetchone()[0]
    assert events == 1


def test_what_changed_while_the_daemon_was_down_is_found_at_its_start(tmp_path: Path) -> None:
    first, no_change = plan_for_start(load_config(write(tmp_path, GOOD), {}), None)
    assert no_change is None
    assert first.stored_config is not None
    _, again = plan_for_start(load_config(write(tmp_path, GOOD), {}), first.stored_config)
    assert again is None
    _, event = plan_for_start(load_config(write(tmp_path, GOOD.replace("30m", "0m")), {}), first.stored_config)
    assert event is not None
    assert (event.result, event.by, event.diff.lines()) == ("started", "start", ["agent/ops: heartbeat.interval 30m -> 0m"])
    environ = {"HEARTBEATD_SET__agents__ops__heartbeat__interval": "2h"}
    _, overridden = plan_for_start(load_config(write(tmp_path, GOOD), environ), first.stored_config)
    assert overridden is not None
    assert overridden.diff.lines() == ["agent/ops: heartbeat.interval 30m -> 2h"]


class LateAnswer(Future[Any]):
    """A future whose answer does not come within the time that the caller waits."""

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            raise TimeoutError
        return super().result(timeout)


class LockedInbox:
    """An inbox of an engine that cannot write its database until `unlock`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._waiting: list[tuple[Request, LateAnswer]] = []

    def submit(self, request: Request) -> Future[Any]:
        answer = LateAnswer()
        self._waiting.append((request, answer))
        return answer

    def unlock(self) -> None:
        for request, answer in self._waiting:
            try:
                answer.set_result(self.world.request(request))
            except Refused as refusal:
                answer.set_exception(refusal)


def late_reloader(world: World, inbox: LockedInbox | StoppedEngine) -> Reloader:
    return Reloader(
        lambda content=None: load_config(world.config, world.environ, content=content),
        load_config(world.config, world.environ),
        lambda: world.engine.plan,
        inbox,
        lambda: world.clock.now,  # type: ignore[arg-type]
    )


def test_a_file_whose_check_fails_unexpectedly_is_rejected_and_the_next_one_is_applied(make_world: MakeWorld) -> None:
    world = make_world(GOOD)

    def load(content: bytes | None = None) -> Any:
        loaded = load_config(world.config, world.environ, content=content)
        assert "2h" not in world.config.read_text("utf-8")  # such as a defect that one value shows
        return loaded

    reloader = Reloader(load, load(), lambda: world.engine.plan, Inbox(world), lambda: world.clock.now)  # type: ignore[arg-type]
    world.config.write_text(GOOD.replace("30m", "2h"), "utf-8")
    with pytest.raises(Refused, match="the daemon failed to load the config; see its log"):
        reloader.reload(by="file watch", doubt=True)
    assert not reloader.reload_state.successful
    world.config.write_text(GOOD.replace("30m", "1h"), "utf-8")
    assert reloader.reload(by="file watch", doubt=True).lines == ["agent/ops: heartbeat.interval 30m -> 1h"]


def test_a_config_that_is_refused_late_is_not_reported_as_applied(make_world: MakeWorld) -> None:
    world = make_world(GOOD)
    inbox = LockedInbox(world)
    reloader = late_reloader(world, inbox)
    world.config.write_text(GOOD.replace("30m", "1h"), "utf-8")
    with pytest.raises(Refused, match="the new config is applied once it can be"):
        reloader.reload(by="command")
    with world.store.transaction() as db:
        db.execute("update entry set pace = 'rubbish', anchor = ?", (10**17,))
    inbox.unlock()
    assert not reloader.reload_state.successful
    assert reloader.reload_state.problem == "the daemon failed to do this; see its log"
    assert world.engine.plan.settings.heartbeats["ops"].interval == timedelta(minutes=30)


def test_a_config_that_is_applied_late_is_not_reported_as_rejected(make_world: MakeWorld) -> None:
    world = make_world(GOOD)
    inbox = LockedInbox(world)
    reloader = late_reloader(world, inbox)
    world.config.write_text(GOOD.replace("30m", "1h"), "utf-8")
    with pytest.raises(Refused, match="the new config is applied once it can be"):
        reloader.reload(by="command")
    assert not reloader.reload_state.successful
    inbox.unlock()
    assert reloader.reload_state.successful
    assert world.engine.plan.settings.heartbeats["ops"].interval == timedelta(hours=1)
    assert status_data.read_status(world.store.connection, world.clock.now).problems == []


class StoppedEngine:
    """An inbox that is not read any more. `stop` is called at the first request."""

    def __init__(self) -> None:
        self.stop: Callable[[], None] = lambda: None
        self.requests: list[Request] = []

    def submit(self, request: Request) -> Future[Any]:
        self.requests.append(request)
        answer = Future[Any]()
        Timer(0, self.stop).start()
        return answer


def test_a_reload_does_not_wait_for_a_daemon_that_stops(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    world, engine = make_world(GOOD), StoppedEngine()
    reloader = late_reloader(world, engine)
    engine.stop = reloader.stop
    world.config.write_text(GOOD.replace("30m", "1h"), "utf-8")
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(Refused, match="the daemon is stopping; it applies the config when it starts again"):
            reloader.reload(by="file watch")
    assert time.monotonic() - began < ANSWER_TIMEOUT / 2
    assert (len(engine.requests), reloader.reload_state.successful, caplog.text) == (1, True, "")


@pytest.mark.extras
def test_a_takeover_by_another_host_with_the_same_file_is_no_change_of_the_config(tmp_path: Path) -> None:
    text = GOOD + "\nstate: postgresql://db/beats\n"
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    first, _ = plan_for_start(load_config(write(folders[0], f"{text}host: one\n"), {}), None)
    _, event = plan_for_start(load_config(write(folders[1], f"{text}host: two\n"), {}), first.stored_config)
    assert event is None
    changed = text.replace("30m", "45m")
    _, event = plan_for_start(load_config(write(folders[1], f"{changed}host: two\n"), {}), first.stored_config)
    assert event is not None
    assert len(event.diff.lines(9)) == 1
