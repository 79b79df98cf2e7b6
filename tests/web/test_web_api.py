"""Tests of the HTTP API: what can be read, what can be changed, and how requests are rejected."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from brief import brief
from loops import loop_over
from prometheus_client.parser import text_string_to_metric_families
from test_story_explain import fact_of
from web_daemon import CONFIG, TEXT, TOKENS, WebDaemon
from world import Delayed

from heartbeatd.operations import FORMER_KEYS
from heartbeatd.verbs import Wake
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.model.outcome import Kind

CHIEF, READER, WAKER, OPSMAN = (TOKENS[name] for name in ("chief", "reader", "waker", "opsman"))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    with WebDaemon(tmp_path) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    """A daemon that tests only read."""
    with WebDaemon(tmp_path_factory.mktemp("still")) as daemon:
        yield daemon


def test_status_lists_every_entry(still: WebDaemon) -> None:
    status = still.get("/api/v1/status", READER).data
    assert [(entry["kind"], entry["name"], entry["state"]) for entry in status["entries"]] == [
        (Kind.HEARTBEAT, "ops", "active"),
        (Kind.HEARTBEAT, "web", "active"),
        ("cron", "measure", "active"),
    ]
    assert status["config_hash"] == still.settings.hash


def test_agents_and_jobs_are_listed_separately(still: WebDaemon) -> None:
    assert [agent["name"] for agent in still.get("/api/v1/agents", READER).data["agents"]] == ["ops", "web"]
    assert [job["name"] for job in still.get("/api/v1/cron", READER).data["cron"]] == ["measure"]


def test_one_agent_can_be_requested(still: WebDaemon) -> None:
    agent = still.get("/api/v1/agents/ops", READER).data
    assert (agent["name"], agent["last_run"]["result"]) == ("ops", "alert")


def test_the_plan_lists_the_runs_of_the_entries_that_the_caller_may_access(still: WebDaemon) -> None:
    plan = still.get("/api/v1/plan?for=12h", READER).data
    assert [(entry["name"], entry["source"], entry["total"]) for entry in plan["entries"]] == [
        ("ops", "database", 23), ("web", "database", 23), ("measure", "database", 1),
    ]  # fmt: skip
    assert plan["days"] == [{"day": "2026-03-02", "beats": 46, "runs": 1}]
    assert [entry["name"] for entry in still.get("/api/v1/plan", OPSMAN).data["entries"]] == ["ops"]
    assert still.get("/api/v1/plan?name=web", OPSMAN).status == still.get("/api/v1/plan?name=nobody", OPSMAN).status == 404
    one = still.get("/api/v1/plan?for=3h&name=ops&all=true", OPSMAN).data["entries"][0]["days"][0]
    assert one["firings"][:2] == ["2026-03-02T08:30:00Z", "2026-03-02T09:00:00Z"]


@loop_over(
    ("query", "status"),
    [
        ("for=500d", 400), ("name=nobody", 404), ("for=150d&all=true", 400), ("for=150d&all=true&name=ops", 200), ("from=9999-12-31T00:00:00Z", 400),
        ("from=0001-01-03T00:00:00Z", 400),
    ],
)  # fmt: skip
def test_an_invalid_request_for_the_plan_is_rejected(still: WebDaemon, query: str, status: int) -> None:
    assert still.get(f"/api/v1/plan?{query}", READER).status == status


def test_an_entry_is_explained_now_at_an_instant_and_over_a_day(still: WebDaemon) -> None:
    now = still.get("/api/v1/explain/ops", READER).data
    assert (fact_of(now, "planned")["code"], now["now"]["would_run"], fact_of(now, "daemon")["code"]) == ("alert", True, "up")
    at = still.get("/api/v1/explain/ops?at=2026-03-02T08:10:00Z", OPSMAN).data
    assert (fact_of(at, "planned")["at"], fact_of(at, "following")["code"]) == ("2026-03-02T08:00:00Z", "to_come")
    on = still.get("/api/v1/explain/measure?on=2026-03-02&kind=cron", READER).data
    assert (on["planned_runs"], [each["result"] for each in on["totals"]]) == (2, ["to_come"])
    now_is = f"{still.world.clock.now:%Y-%m-%dT%H:%M:%SZ}"
    assert still.get(f"/api/v1/explain/ops?since={now_is}", READER).status == 400, "no time has passed since"
    since = still.get("/api/v1/explain/ops?since=2026-03-02T07:45:00Z", READER).data
    assert (since["from"], since["day"]) == ("2026-03-02T07:45:00Z", None)


@loop_over(
    ("path", "token", "status"),
    [
        ("ops?on=someday", READER, 400),
        ("ops?on=1999-01-01", READER, 400),
        ("ops?at=08:00", READER, 400),
        ("ops?at=2026-03-02T08:00:00Z&on=2026-03-02", READER, 400),
        ("ops?since=2026-03-02T23:00:00Z", READER, 400),
        ("ops?kind=agents", READER, 400),
        ("nobody", READER, 404),
        ("ops?kind=cron", READER, 404),
        ("web", OPSMAN, 403),
        ("measure", OPSMAN, 403),
        ("ops", WAKER, 403),
    ],
)
def test_an_invalid_or_forbidden_request_for_an_explanation_is_rejected(
    still: WebDaemon, path: str, token: str, status: int
) -> None:
    assert still.get(f"/api/v1/explain/{path}", token).status == status


@pytest.mark.parametrize("day", ["someday", ""])
def test_an_invalid_day_is_rejected_with_how_to_write_one(still: WebDaemon, day: str) -> None:
    message = still.get(f"/api/v1/explain/ops?on={day}", READER).data["error"]["message"]
    assert message == f"on: {day!r} is not a day; write 2026-11-20, today, yesterday or monday"


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/agents/nobody",
        "/api/v1/agents/nobody/said",
        "/api/v1/runs/999",
        "/api/v1/runs/x",
        "/api/v1/runs/" + "9" * 5000,
        "/api/v1/wakes/7",
        "/nothing",
    ],
)
def test_an_unknown_path_or_entry_is_404(still: WebDaemon, path: str) -> None:
    reply = still.get(path, READER)
    assert (reply.status, reply.code) == (404, "not_found")


def test_runs_are_returned_newest_first(still: WebDaemon) -> None:
    runs = still.get("/api/v1/runs", READER).data["runs"]
    assert [run["id"] for run in runs] == sorted((run["id"] for run in runs), reverse=True)
    assert {run["name"] for run in runs} == {"ops", "web"}
    assert still.get(f"/api/v1/runs/{runs[0]['id']}", READER).data == runs[0]
    pages = [still.get(f"/api/v1/runs?limit={limit}", READER).data for limit in (len(runs) - 1, len(runs))]
    assert [page["next"] for page in pages] == [str(runs[-2]["id"]), None]


@loop_over(
    ("query", "names"),
    [
        ("kind=agent&name=web", ["web"]),
        ("kind=cron", []),
        ("result=alert", ["ops"]),
        ("why=missed", []),
        ("limit=1", ["web"]),
        ("since=2026-03-02T08:00:00Z&name=ops", ["ops"]),
        ("since=2026-03-02T09:00:00%2B01:00&until=2026-03-02T08:00:01Z&name=ops", ["ops"]),
        ("until=2026-03-02T08:00:00Z", []),
    ],
)
def test_runs_can_be_filtered_by_query(still: WebDaemon, query: str, names: list[str]) -> None:
    assert [run["name"] for run in still.get(f"/api/v1/runs?{query}", READER).data["runs"]] == names


def test_the_runs_of_an_unknown_name_are_not_found(still: WebDaemon) -> None:
    reply = still.get("/api/v1/runs?name=opps", READER)
    assert (reply.status, reply.data["error"]["message"]) == (404, "there is no agent or cron job 'opps'")
    assert still.get("/api/v1/runs?name=ops&kind=cron", READER).status == 404
    assert still.get("/api/v1/runs?name=ops&result=lost", READER).data["runs"] == []


def test_an_unknown_key_of_a_query_is_rejected(still: WebDaemon) -> None:
    reply = still.get("/api/v1/runs?nme=ops", READER)
    assert (reply.status, reply.code) == (400, "bad_request")


def test_a_former_key_of_a_query_names_the_new_one(still: WebDaemon) -> None:
    for former, name in FORMER_KEYS.items():
        reply = still.get(f"/api/v1/runs?{former}=ok", READER)
        assert (reply.status, reply.data["error"]["message"]) == (400, f"{former!r} is now {name!r}")


def test_metrics_need_no_token_and_contain_no_text(still: WebDaemon) -> None:
    reply = still.get("/metrics")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {family.name for family in text_string_to_metric_families(reply.body.decode())}
    assert {"heartbeatd_runs", "heartbeatd_next_due_timestamp_seconds", "heartbeatd_build_info"} <= names
    assert TEXT not in reply.body.decode()


def test_health_needs_no_token(still: WebDaemon) -> None:
    assert [still.get(path).status for path in ("/healthz", "/readyz")] == [200, 200]


def test_a_wake_can_be_followed_to_its_run(daemon: WebDaemon) -> None:
    wake = daemon.post("/api/v1/agents/web/wake", {"text": "look again"}, CHIEF).data["wake"]
    progress = daemon.get(f"/api/v1/wakes/{wake}", CHIEF).data
    assert (progress["state"], progress["source"], progress["name"], progress["run"]["result"]) == ("ended", "api", "web", "ok")
    assert "look again" in daemon.world.calls[-1].stdin


def wakes(daemon: WebDaemon) -> list[tuple[Any, ...]]:
    query = "select kind, name, source, sender, text from wake order by id"
    return daemon.do(lambda: [tuple(row) for row in daemon.world.store.connection.execute(query)])


def test_a_wake_has_the_name_of_its_token(daemon: WebDaemon) -> None:
    daemon.post("/api/v1/agents/ops/wake", {"text": "hear"}, WAKER)
    assert wakes(daemon) == [("heartbeat", "ops", "api", "waker", "hear")]


def test_the_answer_to_a_delayed_wake_names_its_obstacle(daemon: WebDaemon) -> None:
    wake = "/api/v1/agents/ops/wake"
    assert daemon.post(wake, {"text": "one"}, CHIEF).data == {"wake": 1, "says": "wake 1 for agent/ops is queued"}
    daemon.do(daemon.world.settle)
    soon = daemon.post(wake, {"text": "two"}, CHIEF).data
    gap = "waits until 2026-03-02 08:00:30: the minimum time after the last woken run (limits.wake_gap)"
    assert soon.pop("says") == f"wake 2 for agent/ops is queued; it {gap}"
    assert soon == {"wake": 2, "waits_for": "wake_gap", "until": "2026-03-02T08:00:30Z"}
    progress = daemon.get("/api/v1/wakes/2", CHIEF).data
    assert (progress["state"], progress["waits_for"], progress["until"]) == ("waiting", "wake_gap", "2026-03-02T08:00:30Z")
    assert daemon.get("/api/v1/status", CHIEF).data["wakes"] == [
        {
            "kind": "heartbeat",
            "name": "ops",
            "waiting": 1,
            "waits_for": "wake_gap",
            "until": "2026-03-02T08:00:30Z",
            "says": f"1 wake {gap.replace('2026-03-02 ', '')}",
        }
    ]
    daemon.post("/api/v1/agents/ops/pause", {}, CHIEF)
    assert daemon.post(wake, {"text": "three"}, CHIEF).data == {
        "wake": 2,
        "waits_for": "paused",
        "until": None,
        "says": "wake 2 for agent/ops is queued; it waits: the agent is paused",
    }


def test_a_wake_waits_for_the_end_of_the_gap_because_a_run_planned_in_it_is_skipped(daemon: WebDaemon) -> None:
    daemon.do(lambda: daemon.world.run_until("2026-03-02 08:29:50"))
    daemon.post("/api/v1/agents/ops/wake", {"text": "one"}, CHIEF)
    daemon.do(daemon.world.settle)
    assert daemon.post("/api/v1/agents/ops/wake", {"text": "two"}, CHIEF).data["until"] == "2026-03-02T08:30:20Z"
    daemon.do(lambda: daemon.world.run_until("2026-03-02 08:30:30"))
    ran = [(run["planned_at"], run["result"]) for run in daemon.get("/api/v1/runs?name=ops&limit=3", CHIEF).data["runs"]]
    times = [("2026-03-02T08:30:20Z", "alert"), ("2026-03-02T08:30:00Z", "skipped"), ("2026-03-02T08:29:50Z", "alert")]
    assert ran == times


def test_a_token_with_too_many_wakes_gets_429_and_others_do_not(daemon: WebDaemon) -> None:
    daemon.post("/api/v1/agents/ops/pause", {}, CHIEF)
    group = {"version": "4", "receiver": "heartbeatd", "alerts": [{"status": "firing", "labels": {"alertname": "Full"}}]}
    for number in range(1000):
        daemon.world.inbox.submit(
            VerbRequest(
                Wake(text="x" * 4000), (Kind.HEARTBEAT, "ops"), Sender(f"heartbeatd {number}", source="webhook", token="chief")
            )
        )
    daemon.do(daemon.world.settle)
    full = daemon.post("/api/v1/agents/ops/wake", group | {"groupKey": "one more"}, CHIEF)
    assert (full.status, full.code) == (429, "too_many_wakes")
    assert daemon.post("/api/v1/agents/ops/wake", {"text": "hear"}, WAKER).status == 200
    assert daemon.post("/api/v1/agents/ops/wake", {}, daemon.token, X_Heartbeatd_Source="cli").status == 200
    daemon.post("/api/v1/agents/ops/resume", {}, CHIEF)
    daemon.do(lambda: daemon.world.run(minutes=31))
    run = daemon.get("/api/v1/runs?name=ops&result=alert&limit=1", CHIEF).data["runs"][0]
    shown = daemon.get(f"/api/v1/runs/{run['id']}", CHIEF).data["wakes"]
    assert len(shown) == 1002
    assert {len(wake["text"]) for wake in shown if wake["source"] == "webhook"} == {4000}


def test_a_wake_by_the_command_line_is_manual(daemon: WebDaemon) -> None:
    daemon.post("/api/v1/agents/ops/wake", token=daemon.token, X_Heartbeatd_Source="cli")
    daemon.post("/api/v1/cron/measure/run", token=daemon.token, X_Heartbeatd_Source="cli")
    assert [wake[:4] for wake in wakes(daemon)] == [
        (Kind.HEARTBEAT, "ops", "manual", "command"),
        ("cron", "measure", "manual", "command"),
    ]


def test_no_other_token_can_claim_to_be_the_command_line(daemon: WebDaemon) -> None:
    daemon.post("/api/v1/agents/ops/wake", token=CHIEF, X_Heartbeatd_Source="cli")
    assert [wake[2:4] for wake in wakes(daemon)] == [("api", "chief")]


def test_a_token_for_some_agents_does_not_see_which_other_runs_held_the_places(tmp_path: Path) -> None:
    yaml = CONFIG.replace("deliver: log}\ncron:", "deliver: log, timeout: 2h}\ncron:") + "limits: {concurrency: 1}\n"
    with WebDaemon(tmp_path, yaml) as daemon:
        daemon.world.scripts["web"] = lambda _: Delayed("HEARTBEAT_OK", timedelta(minutes=70))
        daemon.do(lambda: daemon.world.run(minutes=125))
        (missed,) = daemon.get("/api/v1/runs?name=ops&why=missed", READER).data["runs"]
        assert missed["error"].startswith("limits.concurrency (1) was reached by agent/web")
        for path in (
            f"runs/{missed['id']}",
            "runs?name=ops",
            "status",
            "agents/ops",
            "explain",
            "explain/ops?at=2026-03-02T09:00:00Z",
        ):
            assert "web" not in daemon.get(f"/api/v1/{path}", OPSMAN).body.decode()


def test_an_agent_cannot_wake_itself_from_within_its_run(daemon: WebDaemon) -> None:
    row = (
        "insert into run (kind, name, slot, trigger, state, owner, started_at)"
        " values ('heartbeat', 'web', 1, 'api', 'running', 'x', 1)"
    )
    run = daemon.do(lambda: daemon.world.store.connection.execute(row).lastrowid)
    reply = daemon.post("/api/v1/agents/web/wake", token=CHIEF, X_Heartbeatd_Run=f"x/{run}")
    assert (reply.status, reply.code) == (409, "own_run")


def test_a_job_runs_on_request(daemon: WebDaemon) -> None:
    wake = daemon.post("/api/v1/cron/measure/run", {}, CHIEF).data["wake"]
    run = daemon.get(f"/api/v1/wakes/{wake}", CHIEF).data["run"]
    assert (run["kind"], run["trigger"], run["result"]) == ("cron", "api", "ok")


def unanswered(daemon: WebDaemon, name: str) -> int:
    """A run whose agent promised an async result."""
    now = int(daemon.now.timestamp() * 1000)
    row = (
        "insert into run (kind, name, slot, trigger, state, outcome, attempt, fence, owner, started_at, finished_at, result_due_at)"
        f" values ('heartbeat', '{name}', 7, 'interval', 'closed', 'async', 1, 1, 'x', 7, {now}, {now + 3600_000})"
    )
    run: int = daemon.do(lambda: daemon.world.store.connection.execute(row).lastrowid)
    return run


def test_a_late_result_is_accepted_once_and_delivered(daemon: WebDaemon) -> None:
    run = unanswered(daemon, "ops")
    reply = daemon.post(f"/api/v1/runs/{run}/result", {"text": "ALERT: the tape is torn"}, OPSMAN)
    assert daemon.get(f"/api/v1/runs/{reply.data['run']}", OPSMAN).data["trigger"] == "result"
    assert "ALERT: the tape is torn" in [text for _, _, text in daemon.world.delivered]
    again = daemon.post(f"/api/v1/runs/{run}/result", {"text": "again"}, OPSMAN)
    assert (again.status, again.code) == (409, "already_reported")


def test_no_result_is_accepted_for_a_run_that_has_ended(daemon: WebDaemon) -> None:
    reply = daemon.post("/api/v1/runs/1/result", {"text": "a"}, CHIEF)
    assert (reply.status, reply.code) == (404, "not_found")


@loop_over(
    ("method", "path", "body"),
    [
        ("POST", "agents/nobody/wake", {}),
        ("POST", "agents/nobody/pause", {}),
        ("POST", "agents/nobody/activity", {"queue": 1}),
        ("PUT", "agents/nobody/busy", {"id": "chat", "for": "2m"}),
        ("DELETE", "agents/nobody/busy", {"id": "chat"}),
        ("POST", "cron/nothing/run", {}),
        ("POST", "cron/nothing/resume", {}),
    ],
)
def test_an_undeclared_name_is_404(still: WebDaemon, method: str, path: str, body: dict[str, str | int]) -> None:
    reply = still.send(method, f"/api/v1/{path}", body, CHIEF)
    assert (reply.status, reply.code) == (404, "not_found")


def test_the_name_of_a_removed_agent_is_404_as_an_undeclared_one(daemon: WebDaemon) -> None:
    begin, end = CONFIG.index("  web:"), CONFIG.index("cron:")
    daemon.config.write_text(CONFIG[:begin] + CONFIG[end:])
    assert daemon.post("/-/reload", {}, CHIEF).data["removed"] == ["agent/web"]
    before = daemon.rows()
    for verb in ("wake", "pause", "mute"):
        reply = daemon.post(f"/api/v1/agents/web/{verb}", {}, CHIEF)
        assert (reply.status, reply.code) == (404, "not_found"), verb
    assert daemon.rows() == before


def state(daemon: WebDaemon, name: str) -> tuple[str, str | None]:
    entries = daemon.get("/api/v1/status", CHIEF).data["entries"]
    return next((entry["state"], entry["paused_until"]) for entry in entries if entry["name"] == name)


@pytest.mark.parametrize(
    ("body", "until"),
    [
        (None, None),
        ({}, None),
        ({"for": "2h"}, "2026-03-02T10:00:00Z"),
        ({"until": "2026-03-02T12:00:00+01:00"}, "2026-03-02T11:00:00Z"),
    ],
)
def test_an_agent_is_paused_for_a_time_or_until_resumed(daemon: WebDaemon, body: Any, until: str | None) -> None:
    assert daemon.post("/api/v1/agents/ops/pause", body, CHIEF).data["paused"] == ["agent/ops"]
    assert state(daemon, "ops") == ("paused", until)
    assert daemon.post("/api/v1/agents/ops/resume", None, CHIEF).data == {
        "resumed": ["agent/ops"],
        "says": "agent/ops is resumed",
    }
    assert state(daemon, "ops") == ("active", None)


def test_everything_is_paused_and_resumed_at_once(daemon: WebDaemon) -> None:
    everything = ["agent/ops", "agent/web", "cron/measure"]
    assert sorted(daemon.post("/api/v1/pause", {"for": "1h"}, CHIEF).data["paused"]) == everything
    assert sorted(daemon.post("/api/v1/resume", {}, CHIEF).data["resumed"]) == everything
    assert daemon.post("/api/v1/resume", {}, CHIEF).data == {"resumed": [], "says": "nothing was paused"}
    assert daemon.post("/api/v1/agents/ops/resume", {}, CHIEF).data["says"] == "agent/ops was not paused"
    for path, says in (("agents/ops", "agent/ops is resumed"), ("cron/measure", "cron/measure is resumed")):
        daemon.post(f"/api/v1/{path}/pause", {}, CHIEF)
        assert daemon.post("/api/v1/resume", {}, CHIEF).data["says"] == says


def test_a_job_is_paused_and_resumed(daemon: WebDaemon) -> None:
    assert daemon.post("/api/v1/cron/measure/pause", {}, CHIEF).data["says"] == "cron/measure is paused until resumed"
    assert daemon.post("/api/v1/cron/measure/resume", {}, CHIEF).data["resumed"] == ["cron/measure"]


@loop_over(
    ("path", "body", "message"),
    [
        ("agents/ops/wake", {"txt": "x"}, "'txt' is not allowed here"),
        ("agents/ops/wake", [], "JSON object"),
        ("agents/ops/pause", {"for": "soon"}, "for: 'soon' is not a duration; write 90s, 30m or 1h30m"),
        ("agents/ops/pause", {"until": "2026-03-02T08:00:00Z"}, "until: this time is in the past"),
        ("cron/measure/mute", {"until": "9999-12-31T23:59:59Z"}, "until: this time is more than ten years ahead; leave it out"),
    ],
)
def test_an_invalid_body_is_rejected_with_advice(still: WebDaemon, path: str, body: Any, message: str) -> None:
    reply = still.post(f"/api/v1/{path}", body, CHIEF)
    assert (reply.status, reply.code) == (400, "bad_request")
    assert message in reply.data["error"]["message"]


@pytest.mark.parametrize("body", ["{", "nul", "[" * 50_000, b"\xff\xfe{}", '{"text": "x"'])
def test_a_body_that_is_not_json_is_rejected(still: WebDaemon, body: str | bytes) -> None:
    reply = still.post("/api/v1/agents/ops/wake", body, CHIEF, Content_Type="application/json")
    assert (reply.status, reply.code) == (400, "bad_request")


def test_invalid_characters_of_a_text_are_replaced(daemon: WebDaemon) -> None:
    assert (
        daemon.post("/api/v1/agents/ops/wake", '{"text": "a\\ud800b\\u0000c"}', CHIEF, Content_Type="application/json").status
        == 200
    )
    assert [wake[4] for wake in wakes(daemon)] == ["a?b\0c"]


def test_wakes_of_one_sender_are_merged_and_counted(daemon: WebDaemon) -> None:
    daemon.post("/api/v1/agents/ops/pause", {}, CHIEF)
    before = daemon.rows()["wake"]
    for _ in range(300):
        daemon.post("/api/v1/agents/ops/wake", {"text": "again"}, CHIEF)
    assert daemon.rows()["wake"] - before <= 2


def test_a_reload_answers_with_its_changes(daemon: WebDaemon) -> None:
    daemon.config.write_text(CONFIG.replace("every: 6h", "every: 5h").replace("  web:\n", "  site:\n"))
    reply = daemon.post("/-/reload", {}, CHIEF)
    assert reply.data["added"] == ["agent/site"]
    assert reply.data["removed"] == ["agent/web"]
    assert "every" in reply.data["changed"]["cron/measure"]
    assert reply.data["unchanged"] == 1
    assert "removed agent/web" in reply.data["lines"]
    assert state(daemon, "site") == ("active", None)


def test_a_dry_run_changes_nothing(daemon: WebDaemon) -> None:
    daemon.config.write_text(CONFIG.replace("every: 6h", "every: 5h").replace("stagger: 0s", "stagger: 1m"))
    before = daemon.settings.hash
    changed = daemon.post("/-/reload", {"dry_run": True}, CHIEF).data["changed"]
    assert changed == {"agent/ops": ["heartbeat.stagger"], "agent/web": ["heartbeat.stagger"], "cron/measure": ["every"]}
    assert daemon.settings.hash == before


def test_an_invalid_config_is_rejected_with_its_errors_and_the_old_one_stays_in_force(daemon: WebDaemon) -> None:
    before = daemon.settings.hash
    daemon.config.write_text(CONFIG.replace("interval: 30m", "interval: soon", 1))
    reply = daemon.post("/-/reload", None, CHIEF)
    assert reply.status == 422
    assert reply.data["ok"] is False
    (fault,) = reply.data["errors"]
    assert fault["path"] == "agents.ops.heartbeat.interval"
    assert fault["line"] == CONFIG[: CONFIG.index("interval")].count("\n") + 1
    assert daemon.settings.hash == before
    assert "heartbeatd_config_last_reload_successful 0" in daemon.get("/metrics").body.decode()


def test_a_key_of_the_body_is_rejected_in_the_query(daemon: WebDaemon) -> None:
    """Otherwise a dry run in the query would apply the config."""
    reply = daemon.post("/-/reload?dry_run=true", {}, CHIEF)
    assert (reply.status, reply.data["error"]["message"]) == (400, "'dry_run' is not allowed here; write no key")


@loop_over(
    ("token", "method", "path"),
    [
        (WAKER, "GET", "/api/v1/status"),
        (WAKER, "POST", "/api/v1/agents/ops/pause"),
        (WAKER, "POST", "/api/v1/agents/web/wake"),
        (OPSMAN, "GET", "/api/v1/runs"),
        (OPSMAN, "GET", "/api/v1/runs?kind=cron&name=ops"),
    ],
)
def test_a_token_has_only_its_own_permissions(still: WebDaemon, token: str, method: str, path: str) -> None:
    """tests/web/test_access.py sends every request with the other kinds of tokens."""
    before = still.rows()
    reply = still.send(method, path, token=token)
    assert (reply.status, reply.code) == (403, "forbidden")
    assert still.rows() == before


def test_a_token_for_some_agents_shows_only_these(still: WebDaemon) -> None:
    assert [entry["name"] for entry in still.get("/api/v1/status", OPSMAN).data["entries"]] == ["ops"]
    assert [agent["name"] for agent in still.get("/api/v1/agents", OPSMAN).data["agents"]] == ["ops"]
    assert still.get("/api/v1/cron", OPSMAN).data["cron"] == []
    assert {run["name"] for run in still.get("/api/v1/runs?name=ops", OPSMAN).data["runs"]} == {"ops"}
    runs = still.get("/api/v1/runs", READER).data["runs"]
    seen = {run["name"]: still.get(f"/api/v1/runs/{run['id']}", OPSMAN).status for run in runs}
    assert seen == {"ops": 200, "web": 403}


def test_a_token_for_an_agent_is_not_valid_for_a_job_of_the_same_name(tmp_path: Path) -> None:
    with WebDaemon(tmp_path, CONFIG.replace("measure:", "ops:")) as daemon:
        before = daemon.rows()
        for path in ("run", "pause", "resume"):
            reply = daemon.post(f"/api/v1/cron/ops/{path}", {}, OPSMAN)
            assert (reply.status, reply.code) == (403, "forbidden")
            assert reply.data["error"]["message"] == "the token 'opsman' is only for the agents ops"
        assert daemon.rows() == before
        assert daemon.get("/api/v1/cron", OPSMAN).data["cron"] == []
        assert daemon.get("/api/v1/explain/ops", OPSMAN).data["kind"] == "heartbeat"
        assert daemon.post("/api/v1/agents/ops/pause", {}, OPSMAN).status == 200


def test_a_reload_can_revoke_a_token(daemon: WebDaemon) -> None:
    assert daemon.get("/api/v1/status", READER).status == 200
    daemon.config.write_text(CONFIG.replace(READER, "another-token-with-enough-bits-in-it"))
    daemon.post("/-/reload", {}, CHIEF)
    assert daemon.get("/api/v1/status", READER).status == 401


def test_readiness_gives_the_reason(daemon: WebDaemon) -> None:
    daemon.app_state.health.problem = "database is locked"
    reply = daemon.get("/readyz")
    assert (reply.status, reply.data["error"]["message"]) == (503, "database is locked")
    assert daemon.get("/healthz").status == 200


def test_a_frozen_main_loop_is_neither_alive_nor_ready(daemon: WebDaemon) -> None:
    daemon.world.clock.now += timedelta(seconds=90)
    assert [daemon.get(path).status for path in ("/healthz", "/readyz")] == [200, 200]
    daemon.world.clock.now += timedelta(seconds=1)
    frozen = [daemon.get(path) for path in ("/healthz", "/readyz")]
    assert [each.status for each in frozen] == [503, 503]
    assert {each.data["error"]["message"].partition(":")[0] for each in frozen} == {"the main loop is frozen"}


def test_before_its_first_tick_a_daemon_is_alive_but_not_ready(daemon: WebDaemon) -> None:
    daemon.app_state.health.ticked_at = None
    assert [daemon.get(path).status for path in ("/healthz", "/readyz")] == [200, 503]


def test_without_a_database_the_reason_is_returned_and_the_counters_remain(daemon: WebDaemon) -> None:
    daemon.world.state.rename(daemon.world.state.with_name("aside"))
    reply = daemon.get("/api/v1/status", READER)
    assert (reply.status, reply.code) == (503, "database")
    assert "heartbeatd_runs_total{" in daemon.get("/metrics").body.decode()


def test_readers_and_writers_do_not_block_each_other(daemon: WebDaemon) -> None:
    daemon.do(lambda: daemon.world.store.connection.execute("begin immediate"))
    assert daemon.get("/api/v1/status", READER).status == 200
    assert daemon.get("/metrics").status == 200
    daemon.do(lambda: daemon.world.store.connection.execute("rollback"))


def test_read_requests_cannot_write(daemon: WebDaemon) -> None:
    from scheduler.web.app_state import open_reader

    with open_reader(daemon.app_state) as db, pytest.raises(sqlite3.OperationalError):
        db.execute("delete from run")


def test_no_answer_contains_a_token(still: WebDaemon) -> None:
    paths = ("/metrics", "/readyz", "/api/v1/status", "/api/v1/agents/ops", "/api/v1/runs")
    answers = b"".join(still.get(path, still.token).body for path in paths)
    assert Kind.HEARTBEAT.encode() in answers
    assert not [token for token in (*TOKENS.values(), still.token) if token.encode() in answers]


# --- lanes held by gateways elsewhere --------------------------------------------------------------------------------------


BUSY = "/api/v1/agents/ops/busy"


def test_a_gateway_can_hold_and_extend_a_lane_and_is_shown_as_its_holder(daemon: WebDaemon) -> None:
    assert daemon.send("PUT", BUSY, {"id": "chat:1", "for": "2m"}, CHIEF).data == {
        "id": "chat:1",
        "until": "2026-03-02T08:02:00Z",
        "run": None,
        "says": "the lock of agent/ops is held by chat:1 until 2026-03-02 08:02:00 UTC",
    }
    daemon.send("PUT", BUSY, {"id": "mail", "for": "1m"}, OPSMAN)
    assert daemon.send("PUT", BUSY, {"id": "chat:1", "for": "24h"}, CHIEF).data["until"] == "2026-03-03T08:00:00Z"
    seen = [{"id": "mail", "until": "2026-03-02T08:01:00Z"}, {"id": "chat:1", "until": "2026-03-03T08:00:00Z"}]
    assert daemon.get("/api/v1/agents/ops", READER).data["busy"] == seen
    assert [entry["busy"] for entry in daemon.get("/api/v1/status", READER).data["entries"]] == [seen, [], []]


@pytest.mark.parametrize(("query", "body"), [("", {"id": "chat:1"}), ("?id=chat:1", None)])
def test_a_lane_can_be_released_repeatedly_by_body_or_query(daemon: WebDaemon, query: str, body: Any) -> None:
    daemon.send("PUT", BUSY, {"id": "chat:1", "for": "2m"}, CHIEF)
    for _ in range(2):
        assert daemon.send("DELETE", BUSY + query, body, CHIEF).data["id"] == "chat:1"
        assert daemon.get("/api/v1/agents/ops", READER).data["busy"] == []


def test_a_hold_of_more_than_a_day_is_rejected(daemon: WebDaemon) -> None:
    reply = daemon.send("PUT", BUSY, {"id": "chat", "for": "25h"}, CHIEF)
    assert (reply.status, reply.data["error"]["message"]) == (400, "for: at most 1d; send it again to prolong it")
    assert daemon.get("/api/v1/agents/ops", READER).data["busy"] == []


def test_an_agent_does_not_run_while_its_lane_is_held(daemon: WebDaemon) -> None:
    daemon.send("PUT", BUSY, {"id": "chat", "for": "2h"}, CHIEF)
    daemon.do(lambda: daemon.world.run(minutes=65))
    rows = daemon.get("/api/v1/runs?name=ops", READER).data["runs"]
    assert [(row["state"], row["why"]) for row in rows] == [("waiting", "busy"), ("closed", "busy"), ("closed", None)]


def test_a_late_result_may_have_findings(daemon: WebDaemon) -> None:
    found = [{"key": "tape", "text": "torn", "severity": "critical", "resolved": False}, {"title": "Dust"}]
    body = {"findings": found, "text": "The week."}
    reply = daemon.post(f"/api/v1/runs/{unanswered(daemon, 'ops')}/result", body, OPSMAN)
    assert reply.status == 200
    run = daemon.get(f"/api/v1/runs/{reply.data['run']}", OPSMAN).data
    (message,) = [text for _, _, text in daemon.world.delivered if "torn" in text]
    assert brief(message) == '[tape] CRITICAL: torn\n\nThe week.\n{"title": "Dust"}'
    assert (run["result"], run["text"]) == ("alert", 'The week.\n{"title": "Dust"}\n[tape!] torn')


@pytest.mark.parametrize("found", [{}, "none", 3, [None], [{}], ["\ud800"] * 3])
def test_findings_of_a_late_result_that_cannot_be_read_are_rejected(daemon: WebDaemon, found: Any) -> None:
    reply = daemon.post(f"/api/v1/runs/{unanswered(daemon, 'ops')}/result", {"findings": found}, CHIEF)
    assert reply.status == (200 if found == ["\ud800"] * 3 else 400)


def test_requests_are_counted_by_the_template_of_their_path(still: WebDaemon) -> None:
    def counted() -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(still.get("/metrics").body.decode())
        samples = [sample for family in families for sample in family.samples]
        return {
            (sample.labels.get("route", sample.name), sample.labels.get("code", "")): sample.value
            for sample in samples
            if sample.name.startswith("heartbeatd_http_")
        }

    before = counted()
    still.get("/api/v1/explain/ops", token="reader-token-with-enough-bits-in-it")
    still.get("/api/v1/explain/nobody", token="reader-token-with-enough-bits-in-it")
    still.get("/wp-login.php")
    still.get("/api/v1/explain/ops", token="a-token-that-is-not-known")
    after = counted()
    new = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
    assert new == {
        ("/metrics", "200"): 1,
        ("/api/v1/explain/{name}", "200"): 1,
        ("/api/v1/explain/{name}", "404"): 1,
        ("/api/v1/explain/{name}", "401"): 1,
        ("unknown", "404"): 1,
        ("heartbeatd_http_tokens_refused_total", ""): 1,
    }


def test_the_metrics_page_is_compressed_if_the_client_accepts_it(still: WebDaemon) -> None:
    plain = still.get("/metrics")
    packed = still.get("/metrics", **{"Accept-Encoding": "gzip, deflate"})
    refused = still.get("/metrics", **{"Accept-Encoding": "gzip;q=0.0, identity"})
    assert "content-encoding" not in plain.headers
    assert "content-encoding" not in refused.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept, Accept-Encoding"
    assert len(packed.body) < len(plain.body) / 4
    assert gzip.decompress(packed.body).startswith(plain.body[:40])


def test_prometheus_gets_openmetrics(still: WebDaemon) -> None:
    asked = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.3"
    reply = still.get("/metrics", Accept=asked)
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert reply.body.endswith(b"# EOF\n")
