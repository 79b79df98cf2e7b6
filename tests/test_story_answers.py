"""Stories of answers: cut by a limit of tokens, with reasoning before them, or promised for later and never given."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from servers import gateway
from servers.completions import completion
from servers.messages import message, text
from servers.scripted import Server, reply
from test_metrics import Page
from test_story_slots import agent
from world import World

from heartbeat.verdict import CUT_NOTE
from scheduler.engine.inbox import Refused
from scheduler.engine.pending_runs import CancelRun, ReportResult

Play = Callable[..., World]

KEY = "sk-test-0123456789"


def http(url: str, beat: str = "", more: str = "") -> str:
    """An agent behind a URL that beats every three hours."""
    words = f'interval: 3h, stagger: 0s, checklist: "- look\\n", deliver: log{beat}'
    return f'agents:\n  ops:\n    runner: {{kind: http, url: "{url}"}}\n    heartbeat: {{{words}}}\n{more}'


def modelled(url: str, kind: str) -> str:
    return f"""
providers: {{p: {{kind: {kind}, api_key: "${{KEY}}", base_url: "{url}"}}}}
prices: {{m: {{input: 1.0, output: 5.0}}}}
agents:
  ops:
    runner: {{kind: {kind}, provider: p}}
    model: m
    heartbeat: {{interval: 3h, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""


def words(world: World) -> list[str]:
    return [text for _, _, text in world.said]


def kept(world: World, column: str) -> Any:
    return world.store.connection.execute(f"select {column} from entry").fetchone()[0]


# --- cut by a limit of tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        ("anthropic", reply(message(text("Two things: the disk"), stop_reason="max_tokens"))),
        ("anthropic", reply(message(text("Two things: the disk"), stop_reason="model_context_window_exceeded"))),
        ("openai", reply(completion("Two things: the disk", finish="length"))),
    ],
)
def test_an_answer_of_a_model_that_was_cut_says_so_in_its_last_line(play: Play, kind: str, act: Any) -> None:
    with Server([act]) as server:
        world = play(modelled(server.url, kind), environ={"KEY": KEY})
        page = Page(world)
        world.run(minutes=1)
    assert words(world) == [f"Two things: the disk\n\n{CUT_NOTE}"]
    row = world.rows()[0]
    assert (row["outcome"], row["truncated"], row["text"]) == ("alert", True, "Two things: the disk")
    assert page.series("truncated_total") == {"truncated_total{heartbeat,ops}": 1}


def test_a_whole_answer_is_not_called_cut(play: Play) -> None:
    with Server([reply(message(text("All of it.")))]) as server:
        world = play(modelled(server.url, "anthropic"), environ={"KEY": KEY})
        page = Page(world)
        world.run(minutes=1)
    assert words(world) == ["All of it."]
    assert world.rows()[0]["truncated"] is False
    assert page.series("truncated_total") == {"truncated_total{heartbeat,ops}": 0}


def test_an_agent_behind_a_url_may_say_that_its_text_was_cut(play: Play) -> None:
    with Server([gateway.says("The disk is", truncated=True)]) as server:
        world = play(http(server.url))
        world.run(minutes=1)
    assert words(world) == [f"The disk is\n\n{CUT_NOTE}"]


@pytest.mark.parametrize("more", ['"truncated": true', '"stop_reason": "max_tokens"', '"finish_reason": "length"'])
def test_a_program_may_report_that_its_text_was_cut(play: Play, more: str) -> None:
    world = play(agent())
    world.scripts["ops"] = lambda asked: f'{{"result": "The disk is", {more}}}'
    world.run(minutes=1)
    assert words(world) == [f"The disk is\n\n{CUT_NOTE}"]


def test_a_few_characters_beside_the_token_are_no_good_sign_where_more_was_cut(play: Play) -> None:
    with Server([gateway.says("HEARTBEAT_OK but", truncated=True)]) as server:
        world = play(http(server.url))
        world.run(minutes=1)
    assert words(world) == [f"but\n\n{CUT_NOTE}"]


def test_a_later_result_may_have_been_cut_too(play: Play) -> None:
    with Server([gateway.later()]) as server:
        world = play(http(server.url))
        world.run(minutes=1)
        world.ask(ReportResult(world.rows()[0]["id"], "The disk is", None, truncated=True))
        world.run(minutes=1)
    assert words(world) == [f"The disk is\n\n{CUT_NOTE}"]
    assert [row["truncated"] for row in world.rows()] == [False, True]


def test_whom_a_job_wakes_is_told_that_its_answer_was_cut(play: Play) -> None:
    job = 'cron:\n  ask: {at: "2026-03-02T09:00", prompt: "What now?", agent: ops, wake_heartbeat: ops}\n'
    with Server([gateway.says("HEARTBEAT_OK"), gateway.says("<think>hm</think>Half of", truncated=True)] * 2) as server:
        world = play(http(server.url, more=job))
        world.run(hours=2)
        asked = server.requests[2].json["prompt"]
    assert CUT_NOTE in asked
    assert "Half of" in asked
    assert "hm" not in asked.partition("Half of")[0].rpartition("\n")[2]


def test_an_agent_with_a_session_is_reminded_of_what_it_told(play: Play) -> None:
    cut = gateway.says("<think>hm</think>Half of", truncated=True)
    with Server([cut, gateway.says("HEARTBEAT_OK")]) as server:
        world = play(http(server.url, beat=", isolated_session: false"))
        world.run(hours=4)
        messages = server.requests[1].json["messages"]
    assert messages[1] == {"role": "assistant", "content": f"Half of\n\n{CUT_NOTE}"}


# --- reasoning -------------------------------------------------------------------------------------------------------------


def test_reasoning_before_an_answer_is_neither_judged_nor_told_and_the_row_keeps_it(play: Play) -> None:
    world = play(agent(interval="30m"))
    answers = iter(["<think>\nFAILED? No.\n</think>\n\nHEARTBEAT_OK", "<think>hm</think>The disk is full."])
    world.scripts["ops"] = lambda asked: next(answers)
    world.run(minutes=31)
    assert words(world) == ["The disk is full."]
    assert [(row["suppression"], row["text"].partition("</think>")[1]) for row in world.rows()] == [
        ("heartbeat_ok", "</think>"),
        (None, "</think>"),
    ]


def test_reasoning_may_be_told_where_that_is_wished(play: Play) -> None:
    world = play(agent(strip_reasoning="false"))
    world.scripts["ops"] = lambda asked: "<think>hm</think>HEARTBEAT_OK and the disk is full"
    world.run(minutes=1)
    assert words(world) == ["<think>hm</think>HEARTBEAT_OK and the disk is full"]


def test_an_answer_that_is_all_reasoning_is_empty_and_one_that_was_cut_in_it_failed(play: Play) -> None:
    with Server([gateway.says("<think>hm</think>\n"), gateway.says("<think>hm, the disk", truncated=True)]) as server:
        world = play(http(server.url))
        page = Page(world)
        world.run(hours=4)
    assert world.story() == ["03-02 08:00 interval ok empty", "03-02 11:00 interval failed bad_answer"]
    assert world.rows()[1]["text"] == "<think>hm, the disk"
    assert page.series("truncated_total") == {"truncated_total{heartbeat,ops}": 1}


def test_a_jobs_answer_is_delivered_without_its_reasoning(play: Play) -> None:
    job = 'cron:\n  ask: {at: "2026-03-02T09:00", prompt: "What now?", agent: ops, deliver: log}\n'
    with Server([gateway.says("HEARTBEAT_OK"), gateway.says("<think>hm</think>\nNothing.")]) as server:
        world = play(http(server.url, more=job))
        world.run(hours=2)
    assert words(world) == ["Nothing."]


# --- later, or never -------------------------------------------------------------------------------------------------------


def test_a_result_that_does_not_come_in_time_is_a_failed_run(play: Play) -> None:
    with Server([gateway.later()]) as server:
        world = play(http(server.url))
        world.run(minutes=59)
        assert world.story() == ["03-02 08:00 interval async"]
        assert (kept(world, "failures"), kept(world, "last_success_at")) == (0, None)
        world.run(minutes=2)
    assert world.story() == ["03-02 08:00 interval async", "03-02 08:00 result failed no_result"]
    failed = world.rows()[1]
    assert failed["finished_at"] == "2026-03-02T09:00:00Z"
    assert "09:00:00 UTC" in failed["error"]
    assert (kept(world, "failures"), kept(world, "last_success_at")) == (1, None)


def test_a_result_in_time_is_all_that_counts(play: Play) -> None:
    with Server([gateway.later()]) as server:
        world = play(http(server.url))
        world.run(minutes=50)
        world.ask(ReportResult(world.rows()[0]["id"], "HEARTBEAT_OK", None))
        world.run(minutes=100)
    assert world.story() == ["03-02 08:00 interval async", "03-02 08:00 result ok heartbeat_ok"]
    assert kept(world, "failures") == 0


def test_a_result_after_its_time_is_refused_in_words(play: Play) -> None:
    with Server([gateway.later()]) as server:
        world = play(http(server.url, beat=", async_timeout: 10m"))
        world.run(minutes=11)
        with pytest.raises(Refused, match="was given up: its result had not come by its async_timeout") as refused:
            world.ask(ReportResult(world.rows()[0]["id"], "ALERT: late", None))
        assert refused.value.code == "too_late"
        with pytest.raises(Refused, match="has ended already"):
            world.ask(CancelRun(world.rows()[0]["id"]))
    assert words(world) == []


def test_an_agent_that_never_reports_is_told_of_after_two_runs(play: Play) -> None:
    with Server([gateway.later()] * 3) as server:
        world = play(http(server.url))
        world.run(hours=5)
    [notice] = words(world)
    assert notice.startswith("Agent ops failed 2 times in a row")
    assert "no_result" in notice


def test_a_job_that_gets_no_result_wakes_by_its_failure(play: Play) -> None:
    job = 'cron:\n  ask: {at: "2026-03-02T08:30", prompt: "What now?", agent: ops, async_timeout: 10m, wake_heartbeat: ops, wake_on: failure}\n'
    with Server([gateway.says("HEARTBEAT_OK"), gateway.later(), gateway.says("HEARTBEAT_OK")]) as server:
        world = play(http(server.url, more=job))
        world.run(hours=1)
    assert world.story()[1:] == [
        "03-02 08:30 at async",
        "03-02 08:30 result failed no_result",
        "03-02 08:40 cron ok heartbeat_ok",
    ]


def test_a_result_is_given_up_although_its_agent_is_gone_from_the_config(play: Play) -> None:
    with Server([gateway.later()]) as server:
        world = play(http(server.url))
        world.run(minutes=1)
        world.reload("agents: {other: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: none, deliver: log}}}\n")
        world.run(hours=2)
    assert world.story("ops")[1:] == ["03-02 08:00 result failed no_result"]


def test_after_a_stop_a_result_may_still_come_for_five_minutes(play: Play) -> None:
    with Server([gateway.later()] * 2) as server:
        world = play(http(server.url))
        world.run(minutes=1)
        world.off(hours=2)
        world.run(minutes=4)
        assert world.story("ops") == ["03-02 08:00 interval async"]
        world.ask(ReportResult(world.rows()[0]["id"], "The disk is full.", None))
        world.run(minutes=3)
    assert world.story() == ["03-02 08:00 interval async", "03-02 08:00 result alert"]


def test_a_result_that_is_waited_for_outlasts_the_history(play: Play) -> None:
    with Server([gateway.later(), gateway.says("HEARTBEAT_OK")]) as server:
        beat = http(server.url, beat=", async_timeout: 24h").replace("interval: 3h", "interval: 5m")
        world = play(beat + "history: {runs: 1, keep: 1h}\n")
        world.run(hours=3)
        world.ask(ReportResult(server.requests[0].json["run"], "The disk is full.", None))
        world.run(minutes=1)
    assert words(world) == ["The disk is full."]


def test_a_clock_that_is_set_back_does_not_make_a_result_be_waited_for_until_that_time_comes_again(play: Play) -> None:
    with Server([gateway.later()]) as server:
        world = play(http(server.url).replace("interval: 3h", "interval: 5d"))
        world.run(minutes=1)
        world.clock.now -= timedelta(days=100)
        world.run(hours=25)
    assert [row["reason"] for row in world.rows() if row["trigger"] == "result"] == ["no_result"]


def test_a_cancelled_result_is_not_given_up_again(play: Play) -> None:
    with Server([gateway.later()]) as server:
        world = play(http(server.url))
        world.run(minutes=1)
        world.ask(CancelRun(world.rows()[0]["id"]))
        world.run(hours=2)
    assert [row["reason"] for row in world.rows()] == [None, "cancelled"]


def test_a_database_of_the_first_edition_is_taken_over_and_what_it_waits_for_is_waited_for(play: Play) -> None:
    with Server([gateway.later()]) as server:
        world = play(http(server.url))
        world.run(minutes=1)
        world.stop()
        _back_to_the_first_edition(world)
        world.clock.forward(timedelta(hours=20))
        world.boot()
        run_id = world.rows()[0]["id"]
        assert world.rows()[0]["result_due_at"] == "2026-03-03T08:00:00Z"
        world.ask(ReportResult(run_id, "The disk is full.", None))
        world.run(minutes=1)
    assert words(world)[0] == "The disk is full."


def _back_to_the_first_edition(world: World) -> None:
    """Take out of the database what later migrations have brought."""
    with closing(sqlite3.connect(world.state)) as db:
        db.execute("drop index run_awaited")
        for column in ("truncated", "precheck_error", "result_due_at"):
            db.execute(f"alter table run drop column {column}")
        db.execute("delete from _sqlite_migrations where name = 'm003_answers'")
        db.commit()
