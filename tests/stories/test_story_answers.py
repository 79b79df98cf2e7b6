"""Answers end to end: truncated by a token limit, preceded by reasoning, or promised for later."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from brief import brief
from metrics_page import Page
from servers import gateway
from servers.completions import completion
from servers.completions import tool as function
from servers.messages import message, text, tool
from servers.scripted import Server, reply
from test_story_slots import agent
from world import MakeWorld, World

from heartbeat.verdict import CUT_NOTE
from heartbeatd.verbs import Cancel, ReportResult
from scheduler.engine.effects import VerbRequest
from scheduler.engine.tick_items import Refused

KEY = "sk-test-0123456789"


def http_agent(url: str, beat: str = "", more: str = "") -> str:
    """An agent behind a URL with an interval of three hours."""
    words = f'interval: 3h, stagger: 0s, checklist: "- look\\n", deliver: log{beat}'
    return f'agents:\n  ops:\n    runner: {{kind: http, url: "{url}"}}\n    heartbeat: {{{words}}}\n{more}'


def model_agent(url: str, kind: str) -> str:
    return f"""
providers: {{p: {{kind: {kind}, api_key: "${{KEY}}", base_url: "{url}"}}}}
prices: {{m: {{input: 1.0, output: 5.0}}}}
agents:
  ops:
    runner: {{kind: {kind}, provider: p}}
    model: m
    heartbeat: {{interval: 3h, stagger: 0s, checklist: "- look\\n", deliver: log, ask_again: 0}}
"""


def delivered_texts(world: World) -> list[str]:
    return [brief(text) for _, _, text in world.delivered]


def column_values(world: World, column: str) -> Any:
    return world.store.connection.execute(f"select {column} from entry").fetchone()[0]


# --- truncated by a token limit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        ("anthropic", reply(message(text("Two things: the disk"), stop_reason="max_tokens"))),
        ("anthropic", reply(message(text("Two things: the disk"), stop_reason="model_context_window_exceeded"))),
        ("openai", reply(completion("Two things: the disk", finish="length"))),
    ],
)
def test_a_truncated_answer_of_a_model_says_so_in_its_last_line(make_world: MakeWorld, kind: str, act: Any) -> None:
    with Server([act]) as server:
        world = make_world(model_agent(server.url, kind), environ={"KEY": KEY})
        page = Page(world)
        world.run(minutes=1)
    assert delivered_texts(world) == [f"Two things: the disk\n\n{CUT_NOTE}"]
    row = world.records()[0]
    assert (row["result"], row["truncated"], row["text"]) == ("alert", True, "Two things: the disk")
    assert page.series("truncated_total") == {"truncated_total{heartbeat,ops}": 1}


def test_an_empty_answer_of_a_model_is_a_failure_and_that_of_a_gateway_is_not(make_world: MakeWorld, tmp_path: Path) -> None:
    job = "cron:\n  write: {every: 1d, prompt: Write., agent: ops, deliver: log}\n"
    reasoning = "<think>The disk is fine.</think>\n"
    cases = (
        ("anthropic", reply(message())),
        ("anthropic", reply(message(text(reasoning)))),
        ("openai", reply(completion(""))),
        ("openai", reply(completion(None))),
        ("openai", reply(completion(f" {reasoning}"))),
    )
    for number, (kind, act) in enumerate(cases):
        for config, name in ((model_agent("URL", kind), "ops"), (model_agent("URL", kind).replace("3h", "30d") + job, "write")):
            (folder := tmp_path / f"{number}-{name}").mkdir()
            with Server([act] * 6) as server:
                world = make_world(config.replace("URL", server.url), folder, environ={"KEY": KEY})
                if name == "write":
                    world.run_job("write")
                world.run(minutes=5)
            row = world.records(name)[-1]
            result = row["result"], row["why"], row["error"]
            assert result == ("failed", "bad_answer", "the model answered without any text"), (kind, act, name)
            assert name == "write" or len(server.requests) == 3, "an agent has two retries"
    with Server([gateway.text_answer("")]) as server:
        world = make_world(http_agent(server.url))
        world.run(minutes=1)
    assert [(row["result"], row["why"]) for row in world.records()] == [("ok", "empty")]


def test_a_complete_answer_is_not_called_truncated(make_world: MakeWorld) -> None:
    with Server([reply(message(text("All of it.")))]) as server:
        world = make_world(model_agent(server.url, "anthropic"), environ={"KEY": KEY})
        page = Page(world)
        world.run(minutes=1)
    assert delivered_texts(world) == ["All of it."]
    assert world.records()[0]["truncated"] is False
    assert page.series("truncated_total") == {}  # the series begins with the first truncated answer


def test_an_http_agent_can_report_that_its_text_was_truncated(make_world: MakeWorld) -> None:
    with Server([gateway.text_answer("The disk is", truncated=True)]) as server:
        world = make_world(http_agent(server.url))
        world.run(minutes=1)
    assert delivered_texts(world) == [f"The disk is\n\n{CUT_NOTE}"]


@pytest.mark.parametrize("more", ['"truncated": true', '"stop_reason": "max_tokens"', '"finish_reason": "length"'])
def test_a_program_can_report_that_its_text_was_truncated(make_world: MakeWorld, more: str) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: f'{{"result": "The disk is", {more}}}'
    world.run(minutes=1)
    assert delivered_texts(world) == [f"The disk is\n\n{CUT_NOTE}"]


def test_a_truncated_answer_that_begins_with_heartbeat_ok_is_not_suppressed(make_world: MakeWorld) -> None:
    with Server([gateway.text_answer("HEARTBEAT_OK but", truncated=True)]) as server:
        world = make_world(http_agent(server.url))
        world.run(minutes=1)
    assert delivered_texts(world) == [f"but\n\n{CUT_NOTE}"]


def test_a_later_result_can_be_truncated_too(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url))
        world.run(minutes=1)
        world.request(VerbRequest(ReportResult(text="The disk is", truncated=True), world.records()[0]["id"]))
        world.run(minutes=1)
    assert delivered_texts(world) == [f"The disk is\n\n{CUT_NOTE}"]
    assert [row["truncated"] for row in world.records()] == [False, True]


def test_the_wake_text_of_a_job_says_that_its_answer_was_truncated(make_world: MakeWorld) -> None:
    job = 'cron:\n  ask: {at: "2026-03-02T09:00", prompt: "What now?", agent: ops, wake_heartbeat: ops}\n'
    with Server(
        [gateway.text_answer("HEARTBEAT_OK"), gateway.text_answer("<think>hm</think>Half of", truncated=True)] * 2
    ) as server:
        world = make_world(http_agent(server.url, more=job))
        world.run(hours=2)
        asked = server.requests[2].json["prompt"]
    assert CUT_NOTE in asked
    assert "Half of" in asked
    assert "hm" not in asked.partition("Half of")[0].rpartition("\n")[2]


def test_the_session_of_an_agent_contains_its_truncated_alert(make_world: MakeWorld) -> None:
    cut = gateway.text_answer("<think>hm</think>Half of", truncated=True)
    with Server([cut, gateway.text_answer("HEARTBEAT_OK")]) as server:
        world = make_world(http_agent(server.url, beat=", isolated_session: false, retries: 0"))
        world.run(hours=4)
        messages = server.requests[1].json["messages"]
    assert messages[1] == {"role": "assistant", "content": f"Half of\n\n{CUT_NOTE}"}


def test_the_alert_of_another_agent_removes_nothing_from_a_session(make_world: MakeWorld) -> None:
    alert, well = gateway.text_answer("The disk is full."), gateway.text_answer("HEARTBEAT_OK")
    with Server([alert, well]) as server, Server([gateway.text_answer("The mail stands still.")]) as other:
        keys = ", isolated_session: false, session_keep: 2, retries: 0"
        web = http_agent(other.url, beat=keys).replace("agents:\n", "").replace("ops:", "web:")
        world = make_world(http_agent(server.url, beat=keys) + web)
        world.run(hours=4)
        messages = server.requests[1].json["messages"]
    assert [each["content"] for each in messages][1:2] == ["The disk is full."]


# --- reasoning --------------------------------------------------------------------------------------------------------


def test_reasoning_is_neither_classified_nor_sent_but_recorded(make_world: MakeWorld) -> None:
    world = make_world(agent(interval="30m"))
    answers = iter(["<think>\nFAILED? No.\n</think>\n\nHEARTBEAT_OK", "<think>hm</think>The disk is full."])
    world.scripts["ops"] = lambda call: next(answers)
    world.run(minutes=31)
    assert delivered_texts(world) == ["The disk is full."]
    assert [(row["why"], row["text"].partition("</think>")[1]) for row in world.records()] == [
        ("heartbeat_ok", "</think>"),
        (None, "</think>"),
    ]


def test_reasoning_is_sent_if_the_config_says_so(make_world: MakeWorld) -> None:
    world = make_world(agent(strip_reasoning="false"))
    world.scripts["ops"] = lambda call: "<think>hm</think>HEARTBEAT_OK and the disk is full"
    world.run(minutes=1)
    assert delivered_texts(world) == ["<think>hm</think>HEARTBEAT_OK and the disk is full"]


def test_an_answer_with_only_reasoning_is_empty_and_one_truncated_within_it_fails(make_world: MakeWorld) -> None:
    with Server(
        [gateway.text_answer("<think>hm</think>\n"), gateway.text_answer("<think>hm, the disk", truncated=True)]
    ) as server:
        world = make_world(http_agent(server.url))
        page = Page(world)
        world.run(hours=4)
    assert world.history() == ["03-02 08:00 interval ok empty", "03-02 11:00 interval failed bad_answer"]
    assert world.records()[1]["text"] == "<think>hm, the disk"
    assert page.series("truncated_total") == {"truncated_total{heartbeat,ops}": 1}


def test_a_jobs_answer_is_delivered_without_its_reasoning(make_world: MakeWorld) -> None:
    job = 'cron:\n  ask: {at: "2026-03-02T09:00", prompt: "What now?", agent: ops, deliver: log}\n'
    with Server([gateway.text_answer("HEARTBEAT_OK"), gateway.text_answer("<think>hm</think>\nNothing.")]) as server:
        world = make_world(http_agent(server.url, more=job))
        world.run(hours=2)
    assert delivered_texts(world) == ["Nothing."]


# --- results that come later or never ---------------------------------------------------------------------------------


def test_a_result_that_does_not_come_in_time_is_a_failed_run(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url))
        world.run(minutes=59)
        assert world.history() == ["03-02 08:00 interval async"]
        assert (column_values(world, "failures"), column_values(world, "last_success_at")) == (0, None)
        world.run(minutes=2)
    assert world.history() == ["03-02 08:00 interval async", "03-02 08:00 result failed no_result"]
    failed = world.records()[1]
    assert failed["finished_at"] == "2026-03-02T09:00:00Z"
    assert "09:00:00 UTC" in failed["error"]
    assert (column_values(world, "failures"), column_values(world, "last_success_at")) == (1, None)


def test_a_result_in_time_ends_the_run(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url))
        world.run(minutes=50)
        world.request(VerbRequest(ReportResult(text="HEARTBEAT_OK"), world.records()[0]["id"]))
        world.run(minutes=100)
    assert world.history() == ["03-02 08:00 interval async", "03-02 08:00 result ok heartbeat_ok"]
    assert column_values(world, "failures") == 0


def test_a_result_after_the_deadline_is_refused_with_the_reason(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url, beat=", async_timeout: 10m"))
        world.run(minutes=11)
        with pytest.raises(Refused, match="has failed: no result was reported within its async_timeout") as refused:
            world.request(VerbRequest(ReportResult(text="ALERT: late"), world.records()[0]["id"]))
        assert refused.value.code == "too_late"
        with pytest.raises(Refused, match="has already ended"):
            world.request(VerbRequest(Cancel(), world.records()[0]["id"]))
    assert delivered_texts(world) == []


def test_an_agent_that_never_reports_causes_a_notification_after_two_runs(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()] * 3) as server:
        world = make_world(http_agent(server.url))
        world.run(hours=5)
    [notice] = delivered_texts(world)
    assert notice.startswith("warning  ops no-answer: no_result: no result was reported for run 3")
    assert "no_result" in notice


def test_a_job_without_a_result_wakes_its_agent_with_a_failure(make_world: MakeWorld) -> None:
    job = 'cron:\n  ask: {at: "2026-03-02T08:30", prompt: "What now?", agent: ops, async_timeout: 10m, wake_heartbeat: ops, wake_on: failure}\n'
    with Server([gateway.text_answer("HEARTBEAT_OK"), gateway.async_answer(), gateway.text_answer("HEARTBEAT_OK")]) as server:
        world = make_world(http_agent(server.url, more=job))
        world.run(hours=1)
    assert world.history()[1:] == [
        "03-02 08:30 at async",
        "03-02 08:30 result failed no_result",
        "03-02 08:40 cron ok heartbeat_ok",
    ]


def test_a_pending_result_is_given_up_even_if_its_agent_was_removed(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url))
        world.run(minutes=1)
        world.reload("agents: {other: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: none, deliver: log}}}\n")
        world.run(hours=2)
    assert world.history("ops")[1:] == ["03-02 08:00 result failed no_result"]


def test_after_a_stop_a_result_is_accepted_for_five_more_minutes(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()] * 2) as server:
        world = make_world(http_agent(server.url))
        world.run(minutes=1)
        world.downtime(hours=2)
        world.run(minutes=4)
        assert world.history("ops") == ["03-02 08:00 interval async"]
        world.request(VerbRequest(ReportResult(text="The disk is full."), world.records()[0]["id"]))
        world.run(minutes=3)
    assert world.history() == ["03-02 08:00 interval async", "03-02 08:00 result alert"]


def test_a_run_with_a_pending_result_is_not_deleted_from_the_history(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer(), gateway.text_answer("HEARTBEAT_OK")]) as server:
        beat = http_agent(server.url, beat=", async_timeout: 24h").replace("interval: 3h", "interval: 5m")
        world = make_world(beat + "history: {runs: 1, keep: 1h}\n")
        world.run(hours=3)
        world.request(VerbRequest(ReportResult(text="The disk is full."), server.requests[0].json["run"]))
        world.run(minutes=1)
    assert delivered_texts(world) == ["The disk is full."]


def test_setting_the_clock_back_does_not_prolong_the_wait_for_a_result(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url).replace("interval: 3h", "interval: 5d"))
        world.run(minutes=1)
        world.clock.now -= timedelta(days=100)
        world.run(hours=25)
    assert [row["why"] for row in world.records() if row["trigger"] == "result"] == ["no_result"]


def test_a_cancelled_result_does_not_time_out_later(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url))
        world.run(minutes=1)
        world.request(VerbRequest(Cancel(), world.records()[0]["id"]))
        world.run(hours=2)
    assert [row["why"] for row in world.records()] == [None, "cancelled"]


# --- findings ---------------------------------------------------------------------------------------------------------

DISK = {"key": "disk:/var", "text": "92 % full", "severity": "warning", "resolved": False}


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_a_model_reports_a_problem_once_by_the_forced_tool(make_world: MakeWorld, kind: str) -> None:
    answers = [[DISK], [DISK | {"text": "93 % full"}], [DISK | {"severity": "critical"}], [DISK | {"resolved": True}], []]
    replies = {
        "anthropic": [reply(message(tool("report_findings", {"findings": found}))) for found in answers],
        "openai": [reply(completion(None, calls=[function("report_findings", {"findings": found})])) for found in answers],
    }
    with Server(replies[kind]) as server:
        world = make_world(model_agent(server.url, kind), environ={"KEY": KEY})
        world.run(hours=14)
    assert delivered_texts(world) == [
        "[disk:/var] 92 % full",
        "[disk:/var] CRITICAL, was warning: 92 % full",
        "[disk:/var] over after 9h: 92 % full",
    ]
    assert [row["text"] for row in world.records()][-1] == "HEARTBEAT_OK"
    first, second = (json.dumps(request.json) for request in server.requests[:2])
    assert all('"tool_choice"' in request.body.decode() for request in server.requests)
    assert "report_findings once" in first
    assert "[disk:/var] warning, since 2026-03-02 08:00, reported 2026-03-02 08:00: 92 % full" in second


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_a_server_that_ignores_the_tool_is_read_as_text(make_world: MakeWorld, kind: str) -> None:
    said = ["[disk:/var] 92 % full", f'```json\n{{"findings": [{json.dumps(DISK)}]}}\n```', "`heartbeat ok`"]
    replies = {"anthropic": [reply(message(text(each))) for each in said], "openai": [reply(completion(each)) for each in said]}
    with Server(replies[kind]) as server:
        world = make_world(model_agent(server.url, kind), environ={"KEY": KEY})
        world.run(hours=7)
    assert delivered_texts(world) == ["[disk:/var] 92 % full"]
    assert [row["result"] for row in world.records()] == ["alert", "alert", "ok"]


def test_arguments_that_cannot_be_read_are_asked_for_again_in_the_same_slot(make_world: MakeWorld) -> None:
    with Server([reply(message(tool("report_findings", each))) for each in ({}, {"findings": [DISK]})]) as server:
        world = make_world(model_agent(server.url, "anthropic"), environ={"KEY": KEY})
        world.run(minutes=1)
    assert delivered_texts(world) == ["[disk:/var] 92 % full"]
    (row,) = world.records()
    assert (row["tries"], row["result"]) == (2, "alert")


def test_the_complete_findings_of_an_answer_that_was_cut_are_sent_with_a_note(make_world: MakeWorld) -> None:
    arguments = {"findings": [DISK, {"key": "swap:/d"}]}
    with Server([reply(message(tool("report_findings", arguments), stop_reason="max_tokens"))]) as server:
        world = make_world(model_agent(server.url, "anthropic"), environ={"KEY": KEY})
        world.run(minutes=1)
    assert delivered_texts(world) == [f"[disk:/var] 92 % full\n\n{CUT_NOTE}"]


def test_findings_count_although_the_reasoning_beside_them_was_cut(make_world: MakeWorld) -> None:
    content = [text("<think>Hm."), tool("report_findings", {"findings": [DISK]})]
    with Server([reply(message(*content, stop_reason="max_tokens"))]) as server:
        world = make_world(model_agent(server.url, "anthropic"), environ={"KEY": KEY})
        world.run(minutes=1)
    assert delivered_texts(world) == [f"[disk:/var] 92 % full\n\n{CUT_NOTE}"]


@pytest.mark.parametrize("strip", [True, False])
def test_reasoning_beside_the_tool_is_not_delivered(make_world: MakeWorld, strip: bool) -> None:
    calls = [function("report_findings", {"findings": [DISK]})]
    with Server([reply(completion("<think>Hm.</think>\nI looked.", calls=calls))]) as server:
        yaml = model_agent(server.url, "openai").replace("interval: 3h", f"strip_reasoning: {str(strip).lower()}, interval: 3h")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=1)
    reasoning = "" if strip else "<think>Hm.</think>\n"
    assert delivered_texts(world) == [f"{reasoning}I looked.\n[disk:/var] 92 % full"]


def test_with_answer_text_no_tool_is_sent(make_world: MakeWorld) -> None:
    with Server([reply(message(text("HEARTBEAT_OK")))]) as server:
        yaml = model_agent(server.url, "anthropic").replace("interval: 3h", "answer: text, interval: 3h")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=1)
    assert [name for name in server.requests[0].json if name.startswith("tool")] == []


@pytest.mark.parametrize(
    "printed",
    [
        json.dumps({"findings": [DISK]}),
        json.dumps({"result": f'Here:\n```json\n{{"findings": [{json.dumps(DISK)}]}}\n```'}),
        f"```\n[{json.dumps(DISK)}]\n```",
        "[disk:/var] 92 % full",
    ],
)
def test_a_program_prints_findings_in_any_of_these_forms(make_world: MakeWorld, printed: str) -> None:
    world = make_world(agent())
    world.scripts["ops"] = lambda call: printed
    world.run(hours=2)
    assert [text.removeprefix("Here:\n") for text in delivered_texts(world)] == ["[disk:/var] 92 % full"]


def test_a_job_delivers_findings_as_text_and_an_empty_list_as_nothing(make_world: MakeWorld) -> None:
    job = 'cron:\n  report: {every: 1h, agent: ops, prompt: "Report.", deliver: log}\n'
    with Server([reply({"findings": [DISK]}), reply({"findings": []})]) as server:
        world = make_world(http_agent(server.url, "", job).replace("interval: 3h, stagger: 0s", "interval: none"))
        world.run(hours=3)
    assert delivered_texts(world) == ["[disk:/var] 92 % full"]
