"""The API as openapi.json describes it: generated requests, cursors, and the form of the document.

`web_daemon` compares every answer in the tests of the API with the declared one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from web_daemon import CONFIG, TOKENS, WebDaemon

from scheduler.model.message import DeliveryResult
from scheduler.web import event_stream
from scheduler.web.perform import ENDPOINTS

CHIEF, READER, WAKER, OPSMAN = (TOKENS[name] for name in ("chief", "reader", "waker", "opsman"))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    with WebDaemon(tmp_path_factory.mktemp("openapi")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def document(daemon: WebDaemon) -> Any:
    return daemon.get("/api/v1/openapi.json", READER).data


@pytest.mark.parametrize("operation", ENDPOINTS.values(), ids=lambda each: f"{each.method} {each.path}")
def test_generated_requests_are_answered_as_declared(daemon: WebDaemon, document: Any, operation: Any) -> None:
    """Requests from the schema, valid and invalid ones, in the same order at each run."""
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        negative_data_rejection,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
        negative_data_rejection,
    ]
    schema = schemathesis.openapi.from_dict(document)
    described = schema[operation.path][operation.method]
    for mode in GenerationMode:

        @given(case=described.as_strategy(generation_mode=mode))
        @settings(
            max_examples=3,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        def send(case: Any) -> None:
            case.call_and_validate(base_url=daemon.server.url, headers={"Authorization": f"Bearer {CHIEF}"}, checks=checks)

        send()


def test_the_document_describes_every_operation(document: Any) -> None:
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(each.method, each.path) for each in ENDPOINTS.values()} | {("GET", event_stream.PATH)}
    names = [form["operationId"] for methods in document["paths"].values() for form in methods.values()]
    assert len(set(names)) == len(names)
    assert all(form["summary"] for methods in document["paths"].values() for form in methods.values())


def test_its_schemas_are_valid_and_all_references_exist(document: Any) -> None:
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    used = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert used <= set(schemas)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/status",
        "/api/v1/agents/{name}",
        "/api/v1/runs",
        "/api/v1/runs/{id}",
        "/api/v1/outbox",
        "/api/v1/plan",
        "/api/v1/explain",
        "/api/v1/explain/{name}",
        "/api/v1/problems",
    ],
)
def test_the_document_names_every_key_of_an_answer(busy: WebDaemon, document: Any, path: str) -> None:
    """A new key of an answer belongs into its model in heartbeatd/answers.py."""
    closed = json.loads(json.dumps(document))
    bodies = {each.operation.__name__ for each in ENDPOINTS.values()}
    for name, schema in closed["components"]["schemas"].items():
        if name not in bodies and "properties" in schema:
            schema["additionalProperties"] = False
    schema = closed["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    answer = busy.get(path.format(name="ops", id=1), CHIEF)
    assert answer.status == 200
    Draft202012Validator({**schema, "components": closed["components"]}).validate(answer.data)


def test_the_document_needs_a_token_that_may_read(daemon: WebDaemon) -> None:
    assert daemon.get("/api/v1/openapi.json").status == 401
    assert daemon.get("/api/v1/openapi.json", WAKER).status == 403


def pages(daemon: WebDaemon, path: str, key: str, token: str = CHIEF) -> list[list[Any]]:
    """All pages from the first to the last one, by their cursors."""
    found, cursor = [], ""
    while cursor is not None:
        page = daemon.get(f"{path}{cursor and f'&cursor={cursor}'}", token).data
        found.append(page[key])
        cursor = page["next"]
    return found


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    """A daemon with eight runs and, for a channel that is down, six messages, three of them given up."""
    channel = 'channels: {hook: {kind: webhook, url: "http://127.0.0.1:1/x", allow_private: true}}\n'
    with WebDaemon(tmp_path_factory.mktemp("busy"), channel + CONFIG.replace("deliver: log", "deliver: hook")) as daemon:
        daemon.world.scripts = {name: partial(answer_with_cost, name) for name in ("ops", "web")}
        states = iter([DeliveryResult("dead", "400")] * 3)
        daemon.world.send = lambda delivery: next(states, DeliveryResult("retry", "503"))
        for _ in range(3):
            daemon.do(lambda: daemon.world.run(minutes=30))
        daemon.do(daemon.world.settle)
        yield daemon


def answer_with_cost(name: str, call: Any) -> str:
    """Each second run has a cost, and two have the same."""
    cost = {"ops": 0.25, "web": 0.5}[name] if call.at.minute else None
    return json.dumps({"text": f"{name} at {call.at}"} | ({} if cost is None else {"cost_usd": cost}))


@pytest.mark.parametrize("sort", ["id", "cost"])
def test_cursors_lead_through_all_runs_in_order(busy: WebDaemon, sort: str) -> None:
    whole = busy.get(f"/api/v1/runs?sort={sort}&limit=100", CHIEF).data
    assert whole["next"] is None
    assert len({run["cost_usd"] for run in whole["runs"]}) == 3
    for limit in (1, 3, len(whole["runs"])):
        found = pages(busy, f"/api/v1/runs?sort={sort}&limit={limit}", "runs")
        assert [run["id"] for page in found for run in page] == [run["id"] for run in whole["runs"]]
        assert all(len(page) == limit for page in found[:-1])


def test_cursors_keep_to_the_filter_and_to_the_agents_of_the_token(busy: WebDaemon) -> None:
    found = pages(busy, "/api/v1/runs?name=ops&kind=agent&limit=2", "runs", OPSMAN)
    assert {run["name"] for page in found for run in page} == {"ops"}
    assert len(found) > 1


def test_new_runs_do_not_shift_the_following_pages(busy: WebDaemon) -> None:
    first = busy.get("/api/v1/runs?limit=2", CHIEF).data

    def following() -> list[list[int]]:
        path = f"/api/v1/runs?limit=2&cursor={first['next']}&kind=agent"
        return [[run["id"] for run in page] for page in pages(busy, path, "runs")]

    before = following()
    busy.do(lambda: busy.world.run(minutes=30))
    assert following() == before


@pytest.mark.parametrize("token", [CHIEF, OPSMAN])
def test_cursors_lead_through_all_messages_in_order(busy: WebDaemon, token: str) -> None:
    whole = busy.get("/api/v1/outbox?limit=100", token).data["outbox"]
    assert {message["state"] for message in whole} == {"pending", "dead"}
    for limit in (1, 2, len(whole)):
        found = pages(busy, f"/api/v1/outbox?limit={limit}", "outbox", token)
        assert [message["id"] for page in found for message in page] == [message["id"] for message in whole]


@pytest.mark.parametrize(
    "path", ["runs?cursor=x", "runs?sort=cost&cursor=999999", "runs?cursor=", "outbox?cursor=7", "outbox?cursor=dead-x"]
)
def test_an_invalid_cursor_is_rejected(busy: WebDaemon, path: str) -> None:
    reply = busy.get(f"/api/v1/{path}", CHIEF)
    assert (reply.status, reply.code) == (400, "bad_request")
    assert "begin without a cursor" in reply.data["error"]["message"]


REPORT = {
    "findings": [{"key": "disk", "severity": "critical", "text": "full"}],
    "model": "claude-haiku-4-5",
    "tokens": {"input": 900, "output": 20},
    "cost_usd": 0.01,
    "tool_calls": [{"name": "df", "count": 2, "duration_ms": 12}],
    "log": "looked at /srv",
}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    """A daemon with usage, a budget, findings, a failing agent, a delivered and a waiting wake, and a reload."""
    limited = CONFIG.replace("checklist:", "budget: {usd_per_day: 5, usd_per_try: 0.5, runs_per_day: 40}, checklist:")
    with WebDaemon(tmp_path_factory.mktemp("full"), limited + "limits: {budget: {runs_per_day: 90}}\n") as daemon:
        daemon.world.scripts = {"ops": lambda _: json.dumps(REPORT), "web": lambda _: json.dumps({"error": "down"})}
        assert daemon.post("/api/v1/agents/ops/wake", {"text": "the door rang"}, CHIEF).status == 200
        daemon.do(lambda: daemon.world.run(minutes=31))
        daemon.post("/api/v1/agents/ops/mute", {}, CHIEF)
        daemon.post("/api/v1/cron/measure/pause", {}, CHIEF)
        daemon.config.write_text(daemon.config.read_text().replace("interval: 30m", "interval: 20m"))
        assert daemon.post("/-/reload", {}, CHIEF).status == 200
        daemon.post("/api/v1/agents/web/pause", {}, CHIEF)
        daemon.post("/api/v1/agents/web/wake", {"text": "the door rang"}, CHIEF)
        daemon.do(lambda: daemon.world.run(minutes=1))
        yield daemon


def test_the_models_have_the_keys_of_a_run_with_a_wake_usage_and_findings(full: WebDaemon) -> None:
    """`web_daemon` compares the keys."""
    runs = full.get("/api/v1/runs", CHIEF).data["runs"]
    woken = next(run for run in runs if run["woken_by"])
    assert woken["woken_by"] == "chief"
    assert [used["model"] for used in woken["models"]] == ["claude-haiku-4-5"]
    assert woken["charged"]["usd"] == 0.01
    assert woken["findings"][0]["key"] == "disk"
    assert woken["tool_calls"][0]["name"] == "df"
    assert full.get(f"/api/v1/runs/{woken['id']}", CHIEF).data["wakes"][0]["text"] == "the door rang"


def test_the_models_have_the_keys_of_a_status_with_budgets_and_waiting_wakes(full: WebDaemon) -> None:
    status = full.get("/api/v1/status", CHIEF).data
    assert status["spend"]["cost_usd"] > 0
    assert status["budgets"][0]["shares"][0].keys() == {"kind", "name", "usd", "tokens", "runs"}
    assert status["budget"]["runs_per_day"]["of"] == 90
    assert status["wakes"][0]["waits_for"] == "paused"
    assert status["reload"]["last"]["lines"]
    assert [entry["name"] for entry in status["entries"] if entry["muted"]] == ["ops"]


def test_the_models_have_the_keys_of_explanations_with_changes_and_problems(full: WebDaemon) -> None:
    ops, web = (full.get(f"/api/v1/explain/{name}", CHIEF).data for name in ("ops", "web"))
    facts = {(entry["name"], fact["label"]): fact["code"] for entry in (ops, web) for fact in entry["facts"]}
    assert (facts["ops", "open"], facts["ops", "changed"], facts["web", "wakes"]) == ("critical", "changed", "paused")
    overview = full.get("/api/v1/explain", CHIEF).data
    assert overview["changes"][0]["lines"] == full.get("/api/v1/status", CHIEF).data["reload"]["last"]["lines"]
    causes = {entry["name"]: entry["why"] for entry in overview["entries"]}
    assert causes == {"ops": "muted", "web": "paused", "measure": "paused"}
