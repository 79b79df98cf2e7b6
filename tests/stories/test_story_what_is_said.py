"""The commands, the API and the page say the same of an alert that has not arrived, and of an agent that is quiet for a reason."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from page_user import PageUser
from test_story_explain import fact_of
from test_story_silence import MIDNIGHT, ZONE, daemon_lock, run_until_now, speaks
from web_daemon import WebDaemon
from world import Delayed, MakeWorld, World, utc

from heartbeatd.verbs import Ack, HoldLock, Mute, Pause
from scheduler.cli.main import main
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.tick_items import Request
from scheduler.insight import health, status_data
from scheduler.insight.slot_history import cause_of_run
from scheduler.model.levels import Level
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import DeliveryState, Kind
from scheduler.store.outbox import delivery_text

CONFIG = """
timezone: UTC
server: {listen: "127.0.0.1:0"}
channels: {dead: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, active_hours: "08:10-24:00", checklist: "- look\\n", deliver: dead}
"""
REFUSED = "connection refused"
RETRIED = f"accepted for dead, not delivered (4 tries, {REFUSED})"
GIVEN_UP = f"accepted for dead, not delivered (given up after 1 try, {REFUSED})"
UNCERTAIN = f"accepted for dead, it may have arrived (4 tries, {REFUSED})"
DELIVERED = "delivered to dead"
FALSE_WORDS = ("already got", "alert delivered", "delivered to dead", "reported 2026")


@contextmanager
def daemon_with(folder: Path, answer: str, state: str) -> Iterator[WebDaemon]:
    """A daemon whose agent has given the same answer four times, while its channel returned `state` for each message."""
    with WebDaemon(folder, CONFIG) as daemon:
        daemon.do(lambda: sent_with(daemon, answer, state))
        yield daemon


def sent_with(daemon: WebDaemon, answer: str, state: str) -> None:
    daemon.world.scripts["ops"] = lambda _: answer
    daemon.world.send = lambda _: DeliveryResult(state, "" if state == "delivered" else REFUSED)
    daemon.world.run(minutes=125)


def views(daemon: WebDaemon, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What each place says of the agent and of its last answer."""
    page = PageUser(daemon)
    page.log_in(daemon.token)

    def read(path: str) -> Any:
        return daemon.get(f"/api/v1/{path}", daemon.token).data

    def command(*words: str) -> str:
        capsys.readouterr()
        assert main(["-c", str(daemon.config), *words]) == 0
        return " ".join(capsys.readouterr().out.split())

    agent = read("agents/ops")
    return {
        "explain": fact_of(read("explain/ops"), "answer")["says"],
        "overview": read("explain")["entries"][0]["says"],
        "run": read("runs?limit=1")["runs"][0]["delivery"]["targets"][0]["says"],
        "status": json.dumps(agent["undelivered"]),
        "the command explain": command("explain", "ops"),
        "the command status": command("status"),
        "fleet": page.get("/?show=problems").text,
        "problems": page.get("/page/problems").text,
        "page": page.get("/page/agents/ops").text,
    }


def false_statements(daemon: WebDaemon, says: str, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, str]]:
    """The places that do not say what became of the alert, or call it delivered."""
    for place, text in views(daemon, capsys).items():
        if says not in text or any(word in text for word in FALSE_WORDS):
            yield place, text
    for problem in daemon.get("/api/v1/problems", daemon.token).data["problems"]:
        for sent in problem["notices"]:
            if problem["reported"] and (sent["delivered_at"], sent["says"]) != (None, says):
                yield "problems", str(sent)


def test_an_alert_that_has_not_arrived_is_called_undelivered_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for state, says in (("retry", RETRIED), ("dead", GIVEN_UP), ("uncertain", UNCERTAIN)):
        for answer in ("the disk is full", "[disk] full"):
            (folder := tmp_path / f"{state}-{len(answer)}").mkdir()
            with daemon_with(folder, answer, state) as daemon:
                found[state, answer] = list(false_statements(daemon, says, capsys))
    assert {case: places for case, places in found.items() if places} == {}


CAUSES = f"""
timezone: {ZONE}
server: {{listen: "127.0.0.1:0"}}
channels: {{dead: {{kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}}}
limits: {{wake_flood: 1 per 20h, wake_gap: 1m}}
defaults:
  runner: {{kind: command, argv: [agent]}}
  heartbeat: {{interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log, retries: 0}}
agents:
  paused: {{}}
  muted: {{}}
  closed: {{heartbeat: {{active_hours: "20:00-22:00"}}}}
  missing: {{heartbeat: {{checklist: HEARTBEAT.md}}}}
  failing: {{}}
  limited: {{heartbeat: {{budget: {{runs_per_day: 1}}}}}}
  held: {{}}
  undelivered: {{heartbeat: {{deliver: dead}}}}
  unaddressed: {{heartbeat: {{deliver: none}}}}
  unshown: {{heartbeat: {{show_ok: false, show_alerts: false}}}}
  disabled: {{heartbeat: {{enabled: false}}}}
  woken: {{}}
  quiet: {{}}
cron:
  backup: {{every: 30m, command: backup}}
  fails: {{every: 30m, command: fails, problems: {{after: none}}}}
  silenced: {{every: 30m, command: silenced}}
  late: {{every: 30m, command: late, timeout: 20h}}
"""
EXPECTED = {
    "paused": "paused since",
    "muted": "muted by Mary until something changes",
    "closed": "outside its active hours 20:00-22:00",
    "missing": "no checklist: agents/missing/HEARTBEAT.md",
    "failing": "runs failed: exit code 1",
    "limited": "the budget is used up",
    "held": "busy: the agent ",
    "undelivered": "accepted for dead, not delivered (given up after 1 try, connection refused)",
    "unaddressed": "alerts sent to no one: it has no `deliver`, or `deliver: none`",
    "unshown": "no answer would be sent (show_ok, show_alerts: false)",
    "disabled": "disabled in the config",
    "woken": "1 wake waits",
    "quiet": "answers not sent: nothing needs attention",
    "backup": "ran ",
    "fails": "runs failed: exit code 1",
    "silenced": "muted by Mary until unmuted",
    "late": "is still in progress",
}


def bring_about(world: World) -> None:
    """Let every cause of CAUSES happen, until now."""
    late = Delayed("", timedelta(hours=20))
    world.scripts |= {
        "failing": lambda _: 1,
        "fails": lambda _: 1,
        "undelivered": speaks,
        "unaddressed": speaks,
        "late": lambda _: late,
    }
    world.send = lambda sent: DeliveryResult("dead", REFUSED) if sent.channel.name == "dead" else DeliveryResult("delivered")
    agent, job = Kind.HEARTBEAT, Kind.CRON
    world.run(minutes=75)
    world.request(VerbRequest(Pause(), (agent, "paused"), Sender("chat")))
    world.request(VerbRequest(Mute(until_changed=True), (agent, "muted"), Sender("Mary")))
    world.request(VerbRequest(Mute(), (job, "silenced"), Sender("Mary")))
    world.request(VerbRequest(HoldLock(for_=timedelta(hours=1), id="telegram"), (agent, "held")))
    run_until_now(world)
    for text in ("first", "second"):
        world.wake("woken", text, sender="mailbot")
        world.settle()


def test_every_place_says_the_same_of_each_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> str:
        capsys.readouterr()
        assert main(["-c", str(daemon.config), *words]) == 0
        return " ".join(capsys.readouterr().out.split())

    start = f"{MIDNIGHT + timedelta(hours=12):%Y-%m-%d %H:%M}"
    with WebDaemon(tmp_path, CAUSES, start=start) as daemon, daemon_lock(daemon.world):
        daemon.do(lambda: bring_about(daemon.world))
        user = PageUser(daemon)
        user.log_in(daemon.token)
        overview = {each["name"]: each for each in daemon.get("/api/v1/explain", daemon.token).data["entries"]}
        states = {each["name"]: each for each in daemon.get("/api/v1/status", daemon.token).data["entries"]}
        assert overview.keys() == states.keys() == EXPECTED.keys()
        status, all_of_today = printed("status"), printed("explain", "--format", "json")
        for name, why in overview.items():
            says, folder = why["says"], "agents" if why["kind"] == "heartbeat" else "jobs"
            assert EXPECTED[name] in says, (name, says)
            one = daemon.get(f"/api/v1/explain/{name}", daemon.token).data
            assert (one["overview"], one["says"]) == (why, states[name]["says"])
            assert json.dumps(says) in all_of_today and says in printed("explain", name), (name, says)
            page, command = html.unescape(user.get(f"/page/{folder}/{name}").text), printed("explain", name)
            assert says in page, (name, says)
            for fact in one["facts"]:
                if fact["label"] not in ("last run", "next", "now", "daemon", "open", "more"):  # these have another form
                    assert fact["says"] in page and " ".join(fact["says"].split()) in command, (name, fact)
            if folder == "agents":
                assert says in user.get(f"/page/cards/{name}").text, (name, says)
        for kind, label, says in (
            ("paused", "agent/paused", states["paused"]["says"]),
            ("muted", "agent/muted", states["muted"]["muted"]["says"]),
            ("muted", "cron/silenced", states["silenced"]["muted"]["says"]),
            ("undelivered", "agent/undelivered", states["undelivered"]["undelivered"]["says"]),
        ):
            assert says in overview[label.partition("/")[2]]["says"]
            assert f"{kind}: {label} {says.removeprefix(f'{kind} ')}" in status


def test_a_failure_notification_that_has_not_arrived_is_not_called_reported(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts={"ops": lambda _: 1})
    world.send = lambda _: DeliveryResult("retry", REFUSED)
    world.run(minutes=125)
    (ops,) = status_data.read_entries(world.store.connection, world.clock.now)
    assert (ops.failing and ops.failing.told_at, ops.undelivered and ops.undelivered.says) == (None, f"1 notification {RETRIED}")
    world.send = lambda _: DeliveryResult("delivered")
    world.run(hours=3)
    (ops,) = status_data.read_entries(world.store.connection, world.clock.now)
    assert ops.failing is not None and ops.failing.told_at is not None and ops.undelivered is None


def test_an_alert_that_was_given_up_is_called_undelivered_although_a_later_failure_notification_has_arrived(
    make_world: MakeWorld,
) -> None:
    config = CONFIG.replace("deliver: dead}", "deliver: dead, retries: 0, problems: {after: 1}}")
    world = make_world(config, scripts={"ops": lambda _: "the disk is full" if len(world.calls) == 1 else 1})

    def send(sent: Delivery) -> DeliveryResult:
        if "disk" not in sent.message.text:
            return DeliveryResult("delivered")
        return DeliveryResult("retry" if world.clock.now < utc("2026-03-02 09:05") else "dead", REFUSED)

    world.send = send
    world.run_until("2026-03-02 09:10")
    assert [(f"{at:%H:%M}", text[:19]) for at, _, text in world.delivered if "failed" in text] == [
        ("09:00", "warning  ops failed")
    ]
    (ops,) = status_data.read_entries(world.store.connection, world.clock.now)
    given_up = f"1 message {GIVEN_UP}".replace("1 try", "4 tries")
    assert ops.undelivered is not None and ops.undelivered.says == given_up


def test_the_api_and_the_page_say_why_an_agent_is_quiet(tmp_path: Path) -> None:
    cases: tuple[tuple[Request | None, str, str], ...] = (
        (None, "[disk] full", "disk: known since 08:30, next reminder Tue 2026-03-03 08:30"),
        (VerbRequest(Ack(), 1, Sender("Mary")), "[disk] full", "disk: acknowledged by Mary"),
        (
            VerbRequest(Mute(until=utc("2026-03-02 14:00")), (Kind.HEARTBEAT, "ops"), Sender("Mary")),
            "HEARTBEAT_OK",
            "muted by Mary until 14:00",
        ),
    )
    for number, (request, answer, says) in enumerate(cases):
        (folder := tmp_path / str(number)).mkdir()
        with daemon_with(folder, answer, "delivered") as daemon:
            if request is not None:
                daemon.ask(request).result(20)
            user = PageUser(daemon)
            user.log_in(daemon.token)
            facts = daemon.get("/api/v1/explain/ops", daemon.token).data["facts"]
            assert [each["says"] for each in facts if each["label"] == "quiet"] == [says]
            assert says in daemon.get("/api/v1/explain", daemon.token).data["entries"][0]["says"]
            assert says in user.get("/").text
            assert says in user.get("/page/agents/ops").text


def test_one_dead_channel_beside_a_working_one_and_the_output_of_a_job(make_world: MakeWorld) -> None:
    config = CONFIG.replace("channels: {dead", "channels: {good: {kind: webhook, url: 'http://127.0.0.1:9/y'}, dead")
    config = config.replace("deliver: dead", "deliver: [good, dead]")
    job = "cron:\n  measure: {every: 30m, command: measure, deliver: dead}\n"
    world = make_world(config + job, scripts={"ops": lambda _: "the disk is full", "measure": lambda _: "42"})
    world.send = lambda sent: DeliveryResult(*(("dead", REFUSED) if sent.channel.name == "dead" else ("delivered",)))
    world.run(minutes=45)
    found = {each.name: each for each in status_data.read_entries(world.store.connection, world.clock.now)}
    ops, measure = found["ops"].undelivered, found["measure"].undelivered
    assert ops is not None and ops.says == f"1 message {GIVEN_UP}"
    assert measure is not None and measure.says.endswith(GIVEN_UP.removeprefix("accepted"))
    run = world.records("ops")[-1]
    assert (run["delivery"]["state"], {each["says"] for each in run["delivery"]["targets"]}) == (
        "partial",
        {"delivered to good", GIVEN_UP},
    )
    states = health.read_states([found["ops"]])
    assert [state.label for state in states] == ["undelivered"]
    output = world.records("measure")[-1]
    cause = cause_of_run("closed", output["result"], output["why"], output["delivery"]["state"])
    assert (cause.text, cause.level) == ("ran, message accepted, not delivered and given up", Level.BAD)


def test_what_became_of_a_message_is_said_in_whole_sentences() -> None:
    for state, tries, error, doubted, text in (
        (DeliveryState.DELIVERED, 2, "HTTP 500", False, "delivered to hook"),
        (DeliveryState.PENDING, 0, None, False, "accepted for hook, not delivered yet"),
        (DeliveryState.PENDING, 2, "HTTP 500", False, "accepted for hook, not delivered (2 tries, HTTP 500)"),
        (DeliveryState.PARTIAL, 1, None, False, "accepted for hook, only a part was delivered so far"),
        (DeliveryState.PARTIAL, 1, "HTTP 500", False, "accepted for hook, only a part was delivered (1 try, HTTP 500)"),
        (DeliveryState.HELD, 1, "no answer", True, "accepted for hook, it may have arrived (held after 1 try, no answer)"),
        (DeliveryState.DEAD, 3, "refused", False, "accepted for hook, not delivered (given up after 3 tries, refused)"),
        (DeliveryState.DROPPED, 0, None, False, "accepted for hook, not delivered (dropped after 0 tries)"),
    ):
        assert delivery_text("hook", state, tries, error, doubted=doubted) == text
