"""A rejected config is logged once, however often it is reloaded."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

import pytest
from world import MakeWorld, World

from scheduler.config.build.load import load_config
from scheduler.config.file.diagnostics import ConfigError
from scheduler.engine.config_reload import Reloader
from scheduler.engine.inbox import Refused, Request

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
            lambda: load_config(world.config, world.environ), lambda: world.engine.plan, Inbox(world), lambda: world.clock.now
        )  # type: ignore[arg-type]

    def __call__(self, yaml: str, *, watched: bool = False) -> int:
        self.world.config.write_text(yaml, "utf-8")
        self._caplog.clear()
        try:
            self._reloader.reload(doubt=watched)
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
