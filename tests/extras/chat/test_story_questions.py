"""Runs ask people: a message with buttons goes to a chat, and the answer ends the wait. The time of the run stops meanwhile."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from config_file import complaints
from daemon_process import Begin
from metrics_page import Page
from servers import gateway, telegram
from servers.messages import message, text_answer, tool
from servers.scripted import Server, reply
from servers.telegram import Telegram
from servers.tools import ToolServer
from simulated_chat import AtOnce
from test_story_buttons import Chat, send
from test_story_explain import explained_entry
from world import Delayed, MakeWorld, World, send_by_transport

from heartbeatd.answers import PersonQuestion
from heartbeatd.verbs import AnswerQuestion, Ask, Cancel
from scheduler.engine.effects import Sender, VerbRequest
from scheduler.engine.tick_items import Refused
from scheduler.extras.chat.button_poller import ButtonPoller
from scheduler.insight import explanation
from scheduler.insight.status_data import read_status
from scheduler.model.events import QuestionMoved
from scheduler.model.message import DeliveryResult
from scheduler.store import asked_questions

CONFIG = """\
host: web1
channels:
  phone: {{url: "${{TG}}", base_url: "{url}", allow_private: true, prefix: none, buttons: true, people: [bob, anna]}}
agents:
  ops:
    runner: {{kind: command, argv: [agent]}}
    heartbeat: {{interval: 1d, stagger: 0s, checklist: "- look\\n", deliver: log, retries: 0, timeout: 10m, ask: phone_of_ops}}
cron:
  deploy:
    schedule: "0 8 * * *"
    command: ./deploy
    timeout: 10m
    deliver: {{to: phone, hours: "20:00-22:00"}}
    ask: {{to: phone, people: ["@Anna", "77"], timeout: 30m}}
""".replace("phone_of_ops", "{{to: [phone, log], people: anna}}")
HOOK = "kind: webhook, url: 'http://127.0.0.1:9/hook', allow_private: true"
ANNA: dict[str, Any] = {"user": "Anna"}
EVE: dict[str, Any] = {"user": "eve", "user_id": 6}
BOB: dict[str, Any] = {"user": "bob", "user_id": 8}  # one of the people of the channel, whom the job does not ask


@pytest.fixture
def chat(make_world: MakeWorld, phone: Telegram) -> Chat:
    """At 08:00 a job has begun that takes five minutes, and an agent that takes one."""
    world = make_world(CONFIG.format(url=phone.url), environ={"TG": telegram.URL}, send=send_by_transport)
    world.scripts |= {
        "deploy": lambda _: Delayed("done", timedelta(hours=20)),
        "ops": lambda _: Delayed("ok", timedelta(hours=20)),
    }
    world.run_job("deploy")
    world.run(seconds=1)
    return Chat(world, phone)


def run_of(world: World, name: str = "deploy") -> int:
    return next(each["id"] for each in world.records(name) if each["state"] == "running")


def ask(
    world: World, text: str = "Deploy 2.31?", name: str = "deploy", sender: Sender | None = None, **keys: Any
) -> PersonQuestion:
    """Ask in the run in progress, and let the message be sent."""
    request = VerbRequest(Ask.of(text=text, **keys), run_of(world, name), sender or Sender())
    asked: PersonQuestion = world.request(request).question
    world.run(seconds=1)
    return asked


def answer(world: World, number: int, text: str, sender: Sender | None = None) -> str:
    return str(world.request(VerbRequest(AnswerQuestion(answer=text), number, sender or Sender())).says)


def state_of(world: World, number: int) -> str:
    found = asked_questions.find_question(world.store.connection, number)
    assert found is not None
    return found.course


def outcome(world: World, name: str = "deploy") -> str | None:
    """The outcome of the last run; None while it is in progress."""
    last = world.records(name)[-1]
    return last["result"] if last["state"] == "closed" else None


def refusal(world: World, **sent: Any) -> str:
    with pytest.raises(Refused) as refused:
        ask(world, **sent)
    return str(refused.value)


def refusal_for(world: World, run: int) -> str:
    with pytest.raises(Refused) as refused:
        world.request(VerbRequest(Ask(text="?"), run))
    return str(refused.value)


def test_only_a_channel_with_buttons_is_a_place_to_answer(chat: Chat) -> None:
    """The agent asks on the phone and in the log."""
    chat.world.wake("ops")
    chat.world.run(seconds=1)
    ask(chat.world, name="ops")
    asked = sorted(text.partition("until 2026-03-02 ")[2][8:] for _, name, text in chat.world.delivered if name == "ops")
    command = "with `heartbeatd answer 1 yes`. No answer means no."
    assert asked == [f", here or {command}", f", {command}"]


def test_a_day_of_questions(chat: Chat) -> None:
    """The job asks at 08:00, and Anna answers after 20 minutes. Its 10 minutes end 20 minutes later than they would have."""
    world, phone, page = chat.world, chat.phone, Page(chat.world)
    asked = ask(world)
    assert phone.texts[-1].startswith("Deploy 2.31?\n\nAnswer yes or no until 2026-03-02 08:30:01, here or with")
    assert list(phone.buttons()) == ["yes", "no"]
    world.run(minutes=20)
    assert outcome(world) is None
    assert (
        explanation.explain_now(explained_entry(world, "deploy")).overview.says
        == "has waited for a person to answer since 08:00: Deploy 2.31?"
    )
    assert [each.text for each in read_status(world.store.connection, world.clock.now).questions] == ["Deploy 2.31?"]
    assert page.series("questions_open") == {"questions_open{cron,deploy}": 1}
    for other in (EVE, BOB):
        assert chat.press("yes", **other) == "Only the people whom the question is for may answer it."
    assert state_of(world, asked.id) == "waits for an answer"
    assert chat.press("yes", **ANNA) == "yes, by Anna on phone"
    assert phone.texts[-1] == "Deploy 2.31?: yes, by Anna on phone"
    assert chat.press("no", 0, **ANNA) == f"question {asked.id} has ended: yes, by Anna on phone"
    assert chat.results == ["not_allowed", "not_allowed", "applied", "failed"]
    recorded = world.records("deploy")[-1]["questions"][0]
    assert (recorded["text"], recorded["answer"], recorded["answered_by"]) == ("Deploy 2.31?", "yes", "Anna on phone")
    world.run_until("2026-03-02 08:29")
    assert outcome(world) is None
    world.run_until("2026-03-02 08:31")
    assert outcome(world) == "timeout"
    assert [event.state for event in world.events_of(QuestionMoved)] == ["asked", "answered"]


def test_no_answer_means_no_and_the_message_says_so(chat: Chat) -> None:
    world = chat.world
    asked = ask(world, timeout=timedelta(minutes=5))
    world.run(minutes=6)
    assert state_of(world, asked.id) == "no answer: nobody answered within 5m"
    assert chat.phone.texts[-1] == "Deploy 2.31?: no answer: nobody answered within 5m"
    assert chat.press("yes", 0, **ANNA) == f"question {asked.id} has ended: no answer: nobody answered within 5m"
    world.run_until("2026-03-02 08:14")
    assert outcome(world) is None
    world.run_until("2026-03-02 08:16")
    assert outcome(world) == "timeout"


def test_a_reply_with_one_of_the_answers_is_an_answer_and_any_other_is_rejected(chat: Chat) -> None:
    asked = ask(chat.world)
    for text, user in (("perhaps", ANNA), ("yes", BOB), ("No.", ANNA)):
        chat.phone.reply(text, 0, **user)
        chat.poll()
    said = chat.phone.texts[1:]
    assert said[:2] == ["answer: write yes or no", "Only the people of this channel may answer its messages."]
    assert state_of(chat.world, asked.id) == "no, by Anna on phone"


def test_long_answers_stand_one_below_the_other(chat: Chat) -> None:
    """Side by side, a phone would cut them."""
    ask(chat.world)
    ask(chat.world, "How?", options="deploy to the first machine alone,deploy to all machines,stop")
    chat.world.run(minutes=1)
    rows = [[len(row) for row in each["reply_markup"]["inline_keyboard"]] for each in chat.phone.messages]
    assert rows == [[2], [1, 1, 1]]


def test_several_questions_wait_at_once_and_the_time_stops_until_the_last_is_answered(chat: Chat) -> None:
    world = chat.world
    first, second = ask(world), ask(world, "Tell the customers?", options="yes,no,later")
    explained = explanation.explain_now(explained_entry(world, "deploy")).overview.says
    assert explained == "has waited for a person to answer since 08:00: Deploy 2.31?"
    world.run(minutes=10)
    assert answer(world, first.id, "YES") == f"question {first.id} of run {first.run}: yes, by command"
    world.run(minutes=10)
    assert outcome(world) is None
    chat.press("later", 1, **ANNA)
    assert [each["answer"] for each in world.records("deploy")[-1]["questions"]] == ["yes", "later"]
    world.run(minutes=9)
    assert outcome(world) is None
    world.run(minutes=2)
    assert outcome(world) == "timeout"
    assert second.waits_since == first.asked_at


def test_two_waits_one_after_the_other_do_not_count(chat: Chat) -> None:
    world = chat.world
    for text in ("Deploy 2.31?", "Tell the customers?"):
        asked = ask(world, text)
        world.run(minutes=20)
        answer(world, asked.id, "yes")
    world.run(minutes=9)
    assert outcome(world) is None
    world.run(minutes=2)
    assert outcome(world) == "timeout"


def test_the_wait_of_an_attempt_does_not_lengthen_the_next_one(make_world: MakeWorld, phone: Telegram) -> None:
    yaml = CONFIG.format(url=phone.url).replace("command: ./deploy", "command: ./deploy\n    retries: 1")
    world = make_world(yaml, environ={"TG": telegram.URL}, send=send_by_transport)
    results = [Delayed(1, timedelta(minutes=25)), Delayed("done", timedelta(hours=20))]
    world.scripts |= {"deploy": lambda _: results.pop(0), "ops": lambda _: "HEARTBEAT_OK"}
    world.run_job("deploy")
    world.run(seconds=1)
    asked = ask(world)
    world.run(minutes=20)
    answer(world, asked.id, "yes")
    world.run_until("2026-03-02 08:45")
    assert outcome(world) == "timeout"


def test_a_question_has_buttons_also_in_a_channel_without_other_buttons(make_world: MakeWorld, phone: Telegram) -> None:
    """A question that names no people is for those of its channel."""
    yaml = CONFIG.format(url=phone.url).replace("buttons: true, ", "").replace('people: ["@Anna", "77"], ', "")
    world = make_world(yaml, environ={"TG": telegram.URL}, send=send_by_transport)
    world.scripts |= {"deploy": lambda _: Delayed("done", timedelta(hours=20)), "ops": lambda _: "HEARTBEAT_OK"}
    world.run_job("deploy")
    world.run(seconds=1)
    ask(world)
    chat = Chat(world, phone)
    assert chat.press("yes", **EVE) == "Only the people whom the question is for may answer it."
    assert chat.press("yes", **BOB) == "yes, by bob on phone"


def test_a_question_goes_to_several_channels_and_is_over_in_all_of_them(chat: Chat) -> None:
    world = chat.world
    asked = ask(world, "Delete it?", "ops")
    chat.press("no", **ANNA)
    notices = world.records("ops")[-1]["notices"]
    sent = [(each["channel"], each["text"][:17]) for each in notices]
    assert sent == [(channel, text) for text in ("Delete it?\n\nAnswe", "Delete it?: no, b") for channel in ("phone", "log")]
    assert state_of(world, asked.id) == "no, by Anna on phone"


def test_a_button_for_the_same_question_in_a_channel_that_is_no_chat_is_not_valid(make_world: MakeWorld, phone: Telegram) -> None:
    config = (
        CONFIG.format(url=phone.url).replace("[phone, log]", "[phone, hook]").replace("  phone:", f"  hook: {{{HOOK}}}\n  phone:")
    )
    world = make_world(config, environ={"TG": telegram.URL}, send=send_by_transport)
    world.scripts["ops"] = lambda _: Delayed("ok", timedelta(hours=20))
    world.run(seconds=1)
    ask(world, "Delete it?", "ops")
    chat = Chat(world, phone)
    action, number, *rest = phone.buttons()["yes"].split(":")
    others = [f"{action}:{int(number, 16) + difference:x}:{':'.join(rest)}" for difference in (-1, 1)]
    assert {chat.press_data(data, **ANNA) for data in others} == {"This button is not valid."}
    assert world.engine.health.internal_errors["request"] == 0
    assert chat.press("yes", **ANNA) == "yes, by Anna on phone"


def test_a_question_of_a_run_that_is_cancelled_ends_with_it(chat: Chat) -> None:
    world = chat.world
    asked = ask(world)
    world.request(VerbRequest(Cancel(), asked.run))
    world.run(seconds=20)
    assert outcome(world) == "abandoned"
    assert state_of(world, asked.id) == f"no answer: run {asked.run} has ended"
    assert chat.phone.texts[-1] == f"Deploy 2.31?: no answer: run {asked.run} has ended"
    assert refusal_for(world, asked.run) == f"run {asked.run} is not in progress, so nothing would wait for the answer"


def test_the_same_key_is_the_same_question_and_another_text_needs_another_key(chat: Chat) -> None:
    world = chat.world
    first = ask(world, key="deploy")
    assert ask(world, key="deploy").id == first.id
    assert len(chat.phone.messages) == 1
    assert refusal(world, text="Deploy 2.32?", key="deploy").startswith("key: this run has asked another question")
    chat.press("yes", **ANNA)
    assert ask(world, key="deploy").answer == "yes"
    assert ask(world).id != first.id


def test_after_a_crash_the_next_attempt_gets_the_question_of_the_one_before_and_its_answer(chat: Chat) -> None:
    world = chat.world
    asked = ask(world, "Delete it?", "ops")
    world.downtime(minutes=2)
    world.run(minutes=1)
    chat.poller = ButtonPoller(AtOnce(send), world.inbox.submit)
    assert chat.press("yes", 0, **ANNA) == "yes, by Anna on phone"
    again = ask(world, "Delete it?", "ops")
    assert (again.id, again.answer, again.run) == (asked.id, "yes", asked.run)
    assert ask(world, "Delete it?", "ops").id != asked.id  # in the same attempt, the same text is another question


def test_a_question_of_the_attempt_before_does_not_stop_the_time_of_this_one(chat: Chat) -> None:
    world = chat.world
    ask(world, "Delete it?", "ops", timeout=timedelta(hours=20))
    world.downtime(minutes=2)
    world.run(minutes=1)
    asked = ask(world, "Keep it?", "ops")
    answer(world, asked.id, "yes")
    world.run(minutes=12)
    assert outcome(world, "ops") == "timeout"


def test_a_further_attempt_waits_again_for_the_same_question_only(chat: Chat) -> None:
    world = chat.world
    asked = ask(world, "Delete it?", "ops", timeout=timedelta(hours=2))
    ended = ask(world, "Keep it?", "ops", timeout=timedelta(minutes=1))
    world.run(minutes=2)
    world.downtime(minutes=2)
    world.run(minutes=1)
    others = [ask(world, "Delete it?", "ops", options="now,never"), ask(world, "Keep it?", "ops")]
    for each in others:
        answer(world, each.id, each.options[0])
    assert not {asked.id, ended.id} & {each.id for each in others}
    assert ask(world, "Delete it?", "ops").id == asked.id
    world.run(minutes=12)
    assert outcome(world, "ops") is None


def test_two_runs_may_ask_with_the_same_key_and_wait_each_since_its_own_question(chat: Chat) -> None:
    world = chat.world
    first = ask(world, "Go on?", key="go")
    world.run(minutes=2)
    second = ask(world, "Go on?", "ops", key="go")
    assert (second.run, second.waits_since) == (run_of(world, "ops"), second.asked_at)
    answer(world, first.id, "yes")
    assert state_of(world, second.id) == "waits for an answer"


def test_a_job_with_a_prompt_asks_those_whom_its_agent_asks(make_world: MakeWorld, phone: Telegram) -> None:
    yaml = CONFIG.format(url=phone.url).replace("interval: 1d", "interval: none").partition("cron:")[0]
    yaml += "cron:\n  sort: {every: 30m, agent: ops, prompt: Sort it.}\n"
    world = make_world(yaml, environ={"TG": telegram.URL}, send=send_by_transport)
    world.scripts |= dict.fromkeys(("ops", "sort"), lambda _: Delayed("done", timedelta(hours=20)))
    world.run(minutes=31)
    assert ask(world, "Delete it?", "sort").people == ["anna"]


def test_a_run_cannot_answer_itself_and_asks_a_limited_number_of_questions(chat: Chat) -> None:
    world = chat.world
    asked = ask(world)
    with pytest.raises(Refused, match="who has asked it cannot answer it"):
        answer(world, asked.id, "yes", Sender(run=f"boot1/{asked.run}"))
    for number in range(4):
        ask(world, f"And {number}?")
    assert refusal(world, text="And more?") == f"run {asked.run} waits for 5 answers already"
    assert ask(world, "And I?", "ops").state == "open"  # another run
    assert refusal(world, timeout=timedelta(days=2), key="long") == "timeout: at most 1d"
    assert Ask.of(text="?", options="go").options == ["go"]
    wrong = ("yes,YES", "", "x" * 41, "1,2,3,4,5,6,7,8,9")
    for sent in (*({"options": each} for each in wrong), {"text": " "}, {"text": "x" * 1001}):
        with pytest.raises(ValueError, match=r"^(options|text): "):
            Ask.of(**{"text": "?", **sent})


def test_a_run_asks_at_most_fifty_questions_also_if_each_is_answered(chat: Chat) -> None:
    world = chat.world
    run = run_of(world)
    for number in range(50):
        asked = world.request(VerbRequest(Ask(text=f"And {number}?"), run, Sender())).question
        answer(world, asked.id, "no")
    assert refusal_for(world, run) == f"run {run} has asked 50 questions already"


def test_an_unsent_question_that_has_ended_is_dropped_and_nothing_follows(chat: Chat) -> None:
    world = chat.world
    world.send = lambda _: DeliveryResult("retry", "down")
    asked = ask(world)
    assert answer(world, asked.id, "no") == f"question {asked.id} of run {asked.run}: no, by command"
    world.send = send_by_transport
    world.run(minutes=5)
    assert chat.phone.texts == []


def test_the_time_for_a_result_that_comes_later_stops_too(make_world: MakeWorld, phone: Telegram) -> None:
    """The agent answers later, at most after an hour. It asks twice after 10 minutes, and gets its answers 20 and 40 minutes later."""
    with Server([gateway.async_answer()]) as server:
        runner = f'runner: {{{{kind: http, url: "{server.url}"}}}}'
        config = CONFIG.replace("runner: {{kind: command, argv: [agent]}}", runner).replace(
            "people: anna", "people: anna, timeout: 2h"
        )
        world = make_world(config.format(url=phone.url), environ={"TG": telegram.URL}, send=send_by_transport)
        world.run(minutes=10)
    run = world.records("ops")[-1]["id"]
    asked = [world.request(VerbRequest(Ask(text=text), run)).question for text in ("Delete it?", "All of it?")]
    for each in asked:
        world.run(minutes=20)
        answer(world, each.id, "yes")
    world.run(minutes=48)
    assert [each["result"] for each in world.records("ops")] == ["async"]
    world.run(minutes=4)
    assert [each["result"] for each in world.records("ops")] == ["async", "failed"]


def test_a_change_of_the_clock_does_not_shorten_a_wait(chat: Chat) -> None:
    world = chat.world
    asked = ask(world)
    world.clock.now += timedelta(hours=2)
    world.run(minutes=20)
    assert state_of(world, asked.id) == "waits for an answer"
    world.run(minutes=11)
    assert state_of(world, asked.id) == "no answer: nobody answered within 30m"


TOOLS = """\
providers: {anthropic: {api_key: x}}
agents:
  ops:
    model: claude-haiku-5-5
    runner: {kind: anthropic, tools: {mcp: [{name: shop, command: [x], allow: [list, refund], approve: refund}]}}
    heartbeat: {interval: 1h, checklist: "- x\\n", deliver: log, budget: unlimited}
"""


@pytest.mark.parametrize(
    ("channel", "ask_key", "says"),
    [
        (", buttons: true", "{to: phone, people: anna}", ""),
        (", people: anna", "phone", ""),
        (", buttons: true", "phone", 'nobody may answer in phone; write people: ["@NAME"]'),
        ("", "{to: phone, people: anna}", "phone takes no answers; write buttons: true at channels.phone"),
        ("", "{to: []}", "nobody would be asked"),
        ("", "fone", "write log or phone"),
        ("", "{to: log, timeout: 2d}", "ask.timeout"),
        ("", "log", ""),
    ],
)
def test_somebody_must_be_able_to_answer(tmp_path: Path, channel: str, ask_key: str, says: str) -> None:
    yaml = (
        f'channels: {{phone: {{url: "tgram://1:a/5"{channel}}}}}\ncron: {{deploy: {{every: 1h, command: x, ask: {ask_key}}}}}\n'
    )
    found = complaints(tmp_path, yaml)
    assert [line for line in found if says not in line] == []
    assert bool(found) is bool(says)


def test_tools_that_wait_for_a_person_need_one_to_ask(tmp_path: Path) -> None:
    assert "nobody is asked; write ask: CHANNEL" in complaints(tmp_path, TOOLS)[0]
    assert complaints(tmp_path, TOOLS.replace("deliver: log", "deliver: log, ask: log")) == []
    for allowed in ("[list, refund]", "refund"):
        text = TOOLS.replace("allow: [list, refund], approve: refund", f"allow: {allowed}, approve: pay")
        assert "allow does not have pay" in complaints(tmp_path, text)[0]


SERVER = """\
state: state/h.db
host: web1
server: {{listen: "127.0.0.1:0"}}
channels:
  phone: {{url: "{tg}", base_url: "{url}", allow_private: true, prefix: none, buttons: true, people: [anna]}}
"""
JOB = """\
cron:
  deploy:
    every: 1d
    timeout: 1m
    deliver: phone
    ask: phone
    command: "'{python}' -m scheduler ask 'Deploy 2.31?' --options yes,no --timeout 1m --key deploy; echo \\"exit code $?\\""
"""


@pytest.mark.parametrize(("answer", "code"), [("yes", "0"), ("no", "3")])
def test_a_command_of_a_running_daemon_waits_for_its_answer(daemon: Begin, phone: Telegram, answer: str, code: str) -> None:
    phone.poll_seconds = 0.3
    running = daemon(SERVER.format(tg=telegram.URL, url=phone.url) + JOB.format(python=sys.executable))
    running.run_command("cron", "run", "deploy")
    running.wait_until(lambda: phone.messages)
    assert "question: 1 of cron/deploy, run 1, until" in running.run_command("status").stdout
    assert running.runs()[0]["questions"][0]["state"] == "open"
    phone.press(phone.buttons()[answer])
    running.wait_until(lambda: f"{answer}\nexit code {code}" in phone.texts)
    assert running.runs()[0]["result"] == "ok"


AGENT = """\
providers: {{anthropic: {{api_key: x, base_url: "{model}"}}}}
agents:
  ops:
    model: claude-haiku-5-5
    runner:
      kind: anthropic
      tools: {{mcp: [{{name: disk, url: "{tools}", headers: {{X-Token: t}}, allow: clean, approve: clean, read_only: false}}]}}
    heartbeat: {{interval: 1d, stagger: 0s, checklist: "- look\\n", timeout: 5s, deliver: phone, ask: phone, budget: unlimited}}
"""


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_a_tool_of_a_model_is_called_only_after_a_person_has_said_yes(daemon: Begin, phone: Telegram, answer: str) -> None:
    phone.poll_seconds = 0.3
    wanted = reply(message(tool("disk__clean", {"path": "/tmp"}), stop_reason="tool_use"))
    with ToolServer() as disk, Server([wanted, text_answer("all done")]) as model:
        yaml = SERVER.format(tg=telegram.URL, url=phone.url) + AGENT.format(model=model.url, tools=disk.url)
        running = daemon(yaml)
        running.wait_until(lambda: phone.messages)
        assert phone.texts[0].startswith('ops calls disk__clean with {"path": "/tmp"}. Allow it?')
        asked_at = time.monotonic()
        if answer == "yes":  # later than the timeout of the run
            running.wait_until(lambda: time.monotonic() - asked_at > 5.2)
        assert disk.cleaned == []
        phone.press(phone.buttons()[answer])
        running.wait_until(lambda: any("all done" in text for text in phone.texts))
        assert disk.cleaned == (["/tmp"] if answer == "yes" else [])
        result = str(model.requests[1].json["messages"][-1])
    assert ("refused by a person" in result) is (answer == "no")
    assert running.runs()[0]["tool_calls"][0].get("error") == (None if answer == "yes" else "refused by a person")
