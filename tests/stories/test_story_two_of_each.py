"""Verbs where there are two: two runs that ask, two reasons to refuse a job, two who pause an agent, two ways to a message."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from servers import gateway
from servers.scripted import Server
from test_story_async_results import http_agent
from test_story_explain import records_of
from world import Delayed, MakeWorld, World, utc

from heartbeat.runners import MAX_ANSWER
from heartbeatd.answers import PersonQuestion
from heartbeatd.verbs import AnswerQuestion, Ask, Cancel, HoldLock, NoteActivity, ReportResult, Retry
from scheduler.engine.ask_people import MAX_OPEN
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.tick_items import Refused
from scheduler.insight.status_data import read_status
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.store import agent_memory, outbox

CONFIG = """\
channels:
  hook: {kind: webhook, url: "http://127.0.0.1:9/hook", allow_private: true}
  mail: {kind: webhook, url: "http://127.0.0.1:9/mail", allow_private: true}
  chat: {url: "json://127.0.0.1:9/{target}"}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 1d, stagger: 0s, checklist: "- look\\n", deliver: log, retries: 0, timeout: 20h, ask: mail, problems: {pause_after: 2}}
cron:
  backup: {every: 20h, command: backup, timeout: 10h, ask: {to: [hook, log], timeout: 30m}}
  sync: {every: 20h, prompt: Sync., agent: ops, timeout: 10h, ask: {to: hook, timeout: 30m}}
  off: {every: 1h, command: "true", enabled: false}
"""
OPS = (Kind.HEARTBEAT, "ops")


def begin(make_world: MakeWorld, *asking: str, **fields: Any) -> World:
    """A world in which these entries run until somebody ends them."""
    world = make_world(CONFIG, **fields)
    world.scripts |= dict.fromkeys(asking, lambda _: Delayed("done", timedelta(hours=9)))
    for name in asking:
        if name != "ops":
            world.run_job(name)
    world.run(seconds=1)
    return world


def run_of(world: World, name: str) -> int:
    return next(each["id"] for each in world.records(name) if each["state"] == "running")


def ask(world: World, name: str, text: str = "Go?", **keys: Any) -> PersonQuestion:
    asked: PersonQuestion = world.request(VerbRequest(Ask.of(text=text, **keys), run_of(world, name))).question
    return asked


def answer(world: World, number: int, sender: Sender | None = None, text: str = "yes") -> str:
    return str(world.request(VerbRequest(AnswerQuestion(answer=text), number, sender or Sender())).says)


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refused:
        act()
    return str(refused.value)


def test_a_job_is_refused_for_the_first_of_the_reasons_that_apply(make_world: MakeWorld) -> None:
    world = begin(make_world, "backup")
    for name in ("off", "backup"):
        world.pause((Kind.CRON, name))
    assert refusal(lambda: world.run_job("off")) == "cron job 'off' is disabled in the config"
    assert refusal(lambda: world.run_job("backup")) == "cron job 'backup' is paused; resume it first"
    world.resume((Kind.CRON, "backup"))
    assert refusal(lambda: world.run_job("backup")) == "cron job 'backup' is already running"
    assert world.history("off") == ["03-02 08:00 manual skipped disabled"]


def test_a_person_who_pauses_an_agent_that_failures_have_paused_decides_from_then_on(make_world: MakeWorld) -> None:
    world = make_world(CONFIG.replace("interval: 1d", "interval: 1h"), scripts={"ops": lambda _: 1})
    world.run(hours=2)
    shown = lambda: next(  # noqa: E731
        each["paused_by"]
        for each in read_status(world.store.connection, world.clock.now).as_data()["entries"]
        if each["name"] == "ops"
    )
    assert shown() == "2 failures"
    world.pause(OPS, utc("2026-03-02 11:30"))
    assert shown() == "command"
    world.pause(None, utc("2026-03-02 12:30"))
    world.run_until("2026-03-02 13:01")
    assert [f"{call.at:%H}" for call in world.calls if call.name == "ops"] == ["08", "09", "13"]


def test_a_question_is_sent_to_those_whom_its_own_entry_asks_for_as_long_as_the_run_says(make_world: MakeWorld) -> None:
    world = begin(make_world, "backup", "sync")
    asked = [ask(world, "backup"), ask(world, "backup", timeout=timedelta(hours=2)), ask(world, "sync")]
    minutes = [(each.until - world.clock.now) / timedelta(minutes=1) for each in asked]
    assert minutes == [30, 120, 30]
    sent = [(each["notice"], each["channel"]) for name in ("backup", "sync") for each in world.records(name)[-1]["notices"]]
    assert sent == [
        ("question 1", "hook"),
        ("question 1", "log"),
        ("question 2", "hook"),
        ("question 2", "log"),
        ("question 3", "hook"),
    ]


def test_the_open_questions_of_one_run_do_not_keep_another_from_asking(make_world: MakeWorld) -> None:
    world = begin(make_world, "backup", "sync")
    for number in range(MAX_OPEN):
        ask(world, "backup", f"Number {number}?")
        world.run(seconds=1)
    assert records_of(world).asking[Kind.CRON, "backup"].text == "Number 0?"
    assert "waits for 5 answers already" in refusal(lambda: ask(world, "backup", "One more?"))
    ask(world, "sync")
    first = ask(world, "sync", key="a", options=["x", "y"])
    assert ask(world, "sync", key="a", options=["x", "y"]).id == first.id
    assert "has asked another question with the key 'a'" in refusal(lambda: ask(world, "sync", key="a", options=["x", "z"]))


def test_a_run_cannot_answer_its_own_question_and_another_whose_number_ends_alike_can(make_world: MakeWorld) -> None:
    world = begin(make_world, "backup")
    asked = ask(world, "backup")
    own = Sender("ops", run=f"boot1/{asked.run}")
    assert "who has asked it cannot answer it" in refusal(lambda: answer(world, asked.id, own))
    assert answer(world, asked.id, Sender("ops", run=f"boot1/7{asked.run}")).endswith("yes, by ops")


def test_an_answer_at_the_end_of_its_time_is_too_late(make_world: MakeWorld) -> None:
    world = begin(make_world, "backup")
    asked = ask(world, "backup")
    world.clock.advance(timedelta(minutes=30))
    assert "has ended: nobody answered within 30m" in refusal(lambda: answer(world, asked.id))


TOKENS = """\
server: {tokens: {
  all: {value: "a-token-with-enough-bits-in-it-for-all", may: [wake]},
  some: {value: "a-token-with-enough-bits-in-it-for-some", may: [wake], agents: [ops]}}}
"""


def test_a_token_of_all_agents_can_answer_what_it_has_asked_beside_one_of_some_that_cannot(make_world: MakeWorld) -> None:
    world = make_world(CONFIG + TOKENS, scripts={"backup": lambda _: Delayed("done", timedelta(hours=9))})
    world.run_job("backup")
    world.run(seconds=1)
    run, every, some = run_of(world, "backup"), Sender("all", "token", token="all"), Sender("some", "token", token="some")
    first, second = (world.request(VerbRequest(Ask.of(text=by.name), run, by)).question for by in (every, some))
    assert answer(world, first.id, every).endswith("yes, by token all")
    assert "who has asked it cannot answer it" in refusal(lambda: answer(world, second.id, some))


def test_the_end_of_a_question_is_sent_to_a_channel_that_may_have_got_it_and_to_no_other(make_world: MakeWorld) -> None:
    sends = {"hook": DeliveryResult("uncertain", "timeout"), "log": DeliveryResult("delivered")}
    config = CONFIG.replace(
        'http://127.0.0.1:9/hook", allow_private: true', 'http://127.0.0.1:9/hook", allow_private: true, uncertain: resend'
    )
    world = make_world(
        config.replace("[hook, log]", "[hook, mail]"),
        send=lambda each: sends.get(each.channel.name, DeliveryResult("retry", "busy")),
    )
    world.scripts["backup"] = lambda _: Delayed("done", timedelta(hours=9))
    world.run_job("backup")
    world.run(seconds=1)
    asked = ask(world, "backup")
    world.run(seconds=1)
    answer(world, asked.id)
    found = [(each["notice"], each["channel"], each["state"]) for each in world.records("backup")[-1]["notices"]]
    assert found == [
        ("question 1", "hook", "pending"), ("question 1", "mail", "dropped"), ("question 1 has ended", "hook", "sending"),
    ]  # fmt: skip


def test_a_lock_names_the_run_in_progress_and_none_that_waits_for_it(make_world: MakeWorld) -> None:
    world = begin(make_world, "ops")
    hold = lambda holder: world.request(VerbRequest(HoldLock.of(id=holder, for_=timedelta(hours=20)), OPS)).run  # noqa: E731
    assert hold("a") == run_of(world, "ops")
    world.run(hours=10)
    world.wake("ops", "look")
    world.run(seconds=5)
    assert world.records("ops")[-1]["state"] == "waiting"
    assert hold("b") is None


def test_the_activity_names_the_latest_of_two_places_and_keeps_its_title(make_world: MakeWorld) -> None:
    world = begin(make_world)
    note = lambda **keys: world.request(VerbRequest(NoteActivity(**keys), OPS)).last  # noqa: E731
    note(channel="chat", target="1", title="Ann")
    note(channel="chat", target="2", title="Bob")
    assert note(channel="chat", target="1").target == "1"
    assert note(queue=3).target == "1"
    known = agent_memory.known_targets(world.store.connection, "ops")
    assert [(each.target, each.title) for each in known] == [("1", "Ann"), ("2", "Bob")]


def test_a_text_that_was_sent_together_with_others_can_be_sent_by_itself_once_that_was_given_up(make_world: MakeWorld) -> None:
    world = begin(make_world, send=lambda _: DeliveryResult("dead", "refused"))
    world.reload(CONFIG.replace("deliver: log", "deliver: hook"))
    world.scripts["ops"] = lambda call: f"disk full at {call.at}"
    for _ in range(2):
        world.wake("ops", "look")
        world.run(minutes=5)
    first, common = (each.id for each in outbox.list_messages_of_states(world.store.connection, ["dead"], 2)[::-1])
    change = "update outbox set state = ?, merged_into = ? where id = ?"
    world.store.connection.execute(change, ("pending", common, first))
    assert f"together with others as message {common}" in refusal(lambda: world.request(VerbRequest(Retry(), first)))
    world.store.connection.execute(change, ("dead", common, first))
    assert world.request(VerbRequest(Retry(), first)).says == f"message {first} will be sent again"


def test_no_result_is_given_up_within_an_hour_of_a_change_of_the_clock(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()] * 2) as server:
        world = make_world(http_agent(server.url, interval="1d", retries="0"))
        world.run(minutes=30)
        world.clock.now += timedelta(hours=3)
        world.run(minutes=59)
        assert world.history() == ["03-02 08:00 interval async"]
        world.run(minutes=2)
    assert world.history()[1:] == ["03-02 08:00 result failed no_result"]
    assert "has already ended" in refusal(lambda: world.request(VerbRequest(Cancel(), world.records()[0]["id"])))


def test_a_result_is_as_long_as_its_bytes(make_world: MakeWorld) -> None:
    with Server([gateway.async_answer()]) as server:
        world = make_world(http_agent(server.url, interval="1d", retries="0"))
        world.run(minutes=1)
        world.request(VerbRequest(ReportResult(text="é" * (MAX_ANSWER // 2 + 1)), world.records()[0]["id"]))
    assert world.history()[1:] == ["03-02 08:00 result failed bad_answer"]


def test_a_changed_interval_counts_from_the_last_slot_and_not_from_a_woken_run_after_it(make_world: MakeWorld) -> None:
    world = make_world(CONFIG.replace("interval: 1d", "interval: 1h"))
    world.run(minutes=20)
    world.wake("ops", "look")
    world.run(minutes=1)
    world.reload(CONFIG.replace("interval: 1d", "interval: 30m"))
    world.run(minutes=30)
    assert [f"{call.at:%H:%M}" for call in world.calls if call.name == "ops"] == ["08:00", "08:20", "08:30"]


def test_of_two_jobs_that_follow_one_the_second_starts_although_the_first_is_disabled(make_world: MakeWorld) -> None:
    follower = "{after: backup, command: check}"
    more = f"  first: {follower.replace('}', ', enabled: false}')}\n  second: {follower}\n"
    world = make_world(CONFIG + more)
    world.run_job("backup")
    world.run(minutes=1)
    assert [call.name for call in world.calls if call.name in ("backup", "first", "second")] == ["backup", "second"]
