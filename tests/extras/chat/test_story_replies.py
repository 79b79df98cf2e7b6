"""A person replies to messages in Telegram: it wakes the agent, or closes, snoozes and reminds without a model."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from config_file import complaints
from daemon_process import Begin
from servers import telegram
from servers.telegram import Telegram
from test_story_buttons import Chat
from world import MakeWorld, send_by_transport, utc

from scheduler.extras.chat.replies import parse_when
from scheduler.model.message import DeliveryResult
from scheduler.store.outbox import list_messages, said_by

CONFIG = """\
host: web1
channels:
  phone: {{url: "${{TG}}", base_url: "{url}", allow_private: true, prefix: none, people: ["@Anna", "77"]}}
agents:
  ops:
    runner: {{kind: command, argv: [agent]}}
    heartbeat: {{interval: 1d, stagger: 0s, checklist: "- look\\n", deliver: phone, retries: 0, ask_again: 0}}
cron:
  backup: {{schedule: "0 9 * * *", command: backup, deliver: phone, wake_heartbeat: ops, wake_on: failure}}
  alone: {{schedule: "0 10 * * *", command: alone, deliver: phone}}
"""


@pytest.fixture
def chat(make_world: MakeWorld, phone: Telegram) -> Chat:
    """The agent has reported a full disk at 08:00."""
    world = make_world(CONFIG.format(url=phone.url), environ={"TG": telegram.URL}, send=send_by_transport)
    world.scripts["ops"] = lambda call: "[disk] 92 %" if len(world.calls) == 1 else "HEARTBEAT_OK"
    world.scripts |= {"backup": lambda _: "copied 12 files", "alone": lambda _: "alone"}
    world.run(minutes=5)
    assert phone.texts == ["warning  ops disk: 92 % (since 2026-03-02 08:00 UTC)   p1"]
    return Chat(world, phone)


def say(chat: Chat, text: str, message: int = 0, **more: object) -> str:
    """Reply to a message, and return what the bot answers."""
    before = len(chat.phone.messages)
    chat.phone.reply(text, message, str(more.pop("where", telegram.CHAT)), **more)  # type: ignore[arg-type]
    chat.poll()
    return "; ".join(chat.phone.texts[before:])


def test_a_day_of_replies(chat: Chat) -> None:
    """Anna asks the agent, puts a message off until the evening, and closes the problem then. The model runs once for her."""
    world = chat.world
    assert chat.phone.buttons(0) == {}, "the channel has people, and no buttons"
    assert say(chat, "Which files are so large?").startswith("wake 1 for agent/ops is queued")
    world.run(minutes=5)
    woken = world.calls[-1].stdin
    assert "By manual anna on phone" in woken
    assert "Answer of anna: Which files are so large?" in woken
    assert "It answers this message of 2026-03-02 08:00:00:\nwarning  ops disk: 92 %" in woken
    assert say(chat, "18:00") == "this message is sent again at 2026-03-02 18:00:00"
    world.run_until("2026-03-02 17:59")
    begun, sent = len(world.calls), len(chat.phone.messages)
    world.run_until("2026-03-02 18:01")
    assert chat.phone.texts[sent:] == ["warning  ops disk: 92 % (since 2026-03-02 08:00 UTC)   p1"]
    say(chat, "19:00", -1)
    world.run_until("2026-03-02 19:01")
    say(chat, "Done!", -1)
    assert world.problem("disk").over_at == world.clock.now
    assert len(world.calls) == begun
    assert say(chat, "done", 0) == "this message is about no open problem"
    assert say(chat, "later 91d", 0) == "write a time within the next 90 days"


def test_a_problem_that_is_over_is_not_sent_again(chat: Chat) -> None:
    say(chat, "tomorrow 9")
    say(chat, "done")
    sent = len(chat.phone.messages)
    chat.world.scripts["ops"] = lambda _: "HEARTBEAT_OK"
    chat.world.run_until("2026-03-03 08:59")
    before = [text for text in chat.phone.texts[sent:] if "disk" in text]
    chat.world.run_until("2026-03-03 09:10")
    assert [text for text in chat.phone.texts[sent:] if "disk" in text] == before == []


def test_done_closes_every_problem_of_a_message(chat: Chat) -> None:
    world = chat.world
    world.scripts["ops"] = lambda _: "[mail] waits\n[tls] expires"
    world.wake("ops")
    world.run(minutes=10)
    assert "mail" in chat.phone.texts[-1] and "tls" in chat.phone.texts[-1]
    say(chat, "done", -1)
    assert {world.problem(key).over_at for key in ("mail", "tls")} == {world.clock.now}


def test_done_closes_the_problem_of_a_message_although_a_reminder_came_later(chat: Chat) -> None:
    world = chat.world
    world.scripts["ops"] = lambda _: "[disk] 92 %"
    world.run(minutes=25 * 60)
    assert len([text for text in chat.phone.texts if "ops disk" in text]) == 2
    say(chat, "done", 0)
    assert world.problem("disk").over_at == world.clock.now


def test_two_replies_before_the_agent_runs_are_both_in_its_prompt(chat: Chat) -> None:
    chat.phone.reply("first question", 0)
    chat.phone.reply("second question", 0)
    chat.poll()
    chat.world.run(minutes=10)
    prompts = "".join(call.stdin for call in chat.world.calls[1:])
    assert ("first question" in prompts, "second question" in prompts) == (True, True)


def test_a_reply_during_a_run_that_fails_is_in_the_next_prompt_beside_the_one_of_that_run(chat: Chat) -> None:
    world = chat.world

    world.durations["ops"] = timedelta(minutes=1)
    world.scripts["ops"] = lambda _: 1
    say(chat, "Which files are so large?")
    world.run(seconds=30)
    say(chat, "And what can be deleted?")
    world.run(minutes=1)
    world.scripts["ops"] = lambda _: "HEARTBEAT_OK"
    world.run(minutes=5)
    for reply in ("Which files are so large?", "And what can be deleted?"):
        assert f"Answer of anna: {reply}" in world.calls[-1].stdin


def test_after_the_clock_was_set_back_a_message_still_comes_at_the_time_that_a_person_asked_for(chat: Chat) -> None:
    say(chat, "18:00")
    chat.world.clock.now -= timedelta(hours=1)
    sent = len(chat.phone.messages)
    chat.world.run_until("2026-03-02 17:59")
    assert [text for text in chat.phone.texts[sent:] if "disk" in text] == []
    chat.world.run_until("2026-03-02 18:01")
    assert len([text for text in chat.phone.texts[sent:] if "disk" in text]) == 1


@pytest.mark.parametrize("by", ["reload", "restart"])
def test_a_message_comes_no_earlier_than_a_person_asked_for_although_the_hours_are_looked_at_again(chat: Chat, by: str) -> None:
    say(chat, "18:00")
    sent = len(chat.phone.messages)
    if by == "reload":
        chat.world.reload(chat.world.yaml)
    else:
        chat.world.downtime(minutes=1)
    chat.world.run_until("2026-03-02 17:59")
    assert [text for text in chat.phone.texts[sent:] if "disk" in text] == []
    chat.world.run_until("2026-03-02 18:01")
    assert len([text for text in chat.phone.texts[sent:] if "disk" in text]) == 1


def test_a_message_comes_at_the_time_that_a_person_asked_for_although_it_is_night(chat: Chat) -> None:
    world = chat.world
    world.reload(world.yaml.replace("deliver: phone, retries", 'deliver: {to: phone, hours: "07:00-22:00"}, retries'))
    assert say(chat, "23:00") == "this message is sent again at 2026-03-02 23:00:00"
    sent = len(chat.phone.messages)
    world.run_until("2026-03-02 23:01")
    assert chat.phone.texts[sent:][-1] == "warning  ops disk: 92 % (since 2026-03-02 08:00 UTC)   p1"


def test_two_messages_that_were_put_off_until_the_same_time_can_be_put_off_again_and_closed_together(chat: Chat) -> None:
    world = chat.world
    world.scripts["ops"] = lambda _: "[mail] waits"
    world.wake("ops")
    world.run(minutes=10)
    say(chat, "18:00", 0)
    say(chat, "18:00", 1)
    world.run_until("2026-03-02 18:01")
    common = chat.phone.texts[-1]
    assert ("disk: 92 %" in common, "mail: waits" in common) == (True, True)
    say(chat, "later", -1)
    world.run_until("2026-03-02 19:02")
    again = chat.phone.texts[-1]
    assert ("disk: 92 %" in again, "mail: waits" in again) == (True, True)
    say(chat, "done", -1)
    assert [world.problem(key).over_at for key in ("disk", "mail")] == [world.clock.now] * 2


def test_a_message_that_was_put_off_has_its_buttons_again(chat: Chat) -> None:
    chat.world.reload(chat.world.yaml.replace("people:", "buttons: true, people:"))
    say(chat, "18:00")
    chat.world.run_until("2026-03-02 18:01")
    chat.press("Acknowledge")
    assert chat.world.problem("disk").acknowledgement is not None


def test_a_message_is_sent_again_although_there_was_a_reminder_meanwhile(chat: Chat) -> None:
    chat.world.scripts["ops"] = lambda _: "[disk] 92 %"
    assert say(chat, "wed 9") == "this message is sent again at 2026-03-04 09:00:00"
    sent = len(chat.phone.messages)
    chat.world.run_until("2026-03-04 09:01")
    texts = [text for text in chat.phone.texts[sent:] if "disk" in text]
    assert [("reminder" in text) for text in texts] == [True, True, False]


def test_a_message_that_is_sent_again_after_a_reminder_has_its_buttons(chat: Chat) -> None:
    chat.world.reload(chat.world.yaml.replace("people:", "buttons: true, people:"))
    chat.world.scripts["ops"] = lambda _: "[disk] 92 %"
    say(chat, "wed 9")
    chat.world.run_until("2026-03-04 09:01")
    place = max(number for number, text in enumerate(chat.phone.texts) if "ops disk" in text)
    assert "reminder" not in chat.phone.texts[place]
    chat.press("Acknowledge", place)
    assert chat.world.problem("disk").acknowledgement is not None


def test_a_reply_that_does_not_fit_beside_those_before_it_is_refused_and_not_cut(chat: Chat) -> None:
    chat.world.scripts["ops"] = lambda _: f"A long text. {'x' * 3900}"
    chat.world.wake("ops", "look")
    chat.world.run(minutes=5)
    chat.world.scripts["ops"] = lambda _: "HEARTBEAT_OK"
    chat.phone.reply("first question", 1)
    chat.phone.reply("second question", 1)
    chat.phone.reply("third " * 400, 1)
    before = len(chat.phone.texts)
    chat.poll()
    assert [text[:38] for text in chat.phone.texts[before:]][2] == "this reply is too long, together with "
    chat.world.run(minutes=10)
    asked = chat.world.calls[-1].stdin
    assert ("first question" in asked, "second question" in asked, "third " in asked) == (True, True, False)


def test_after_one_of_two_channels_with_the_same_bot_is_removed_the_other_still_gets_replies(chat: Chat) -> None:
    world = chat.world
    phone = (
        'phone: {url: "${TG}", base_url: "' + chat.phone.url + '", allow_private: true, prefix: none, people: ["@Anna", "77"]}'
    )
    two = CONFIG.format(url=chat.phone.url).replace(phone, f"{phone}\n  zwei: {phone.removeprefix('phone: ')}")
    world.reload(two)
    chat.poller._bots.clear()  # the first poll after a start finds the bot by its last channel
    chat.poll()
    world.reload(CONFIG.format(url=chat.phone.url))
    assert say(chat, "What is that?").startswith("wake 1")


def test_a_bot_is_asked_for_replies_only_if_one_of_its_own_channels_has_people(chat: Chat) -> None:
    text = CONFIG.format(url=chat.phone.url)
    phone = next(line for line in text.splitlines() if "phone: {" in line)
    of_other_bot = phone.replace("phone:", "other:").replace("${TG}", telegram.URL.replace("tgram://1", "tgram://9"))
    buttons = of_other_bot.replace('people: ["@Anna", "77"]', "buttons: true")
    chat.world.reload(text.replace(phone, f"{phone}\n{buttons}"))
    chat.poll()
    asked = {
        request.path.split("/")[1][:4]: request.json["allowed_updates"]
        for request in chat.phone.requests
        if request.path.endswith("/getUpdates")
    }
    assert asked == {"bot1": ["callback_query", "message"], "bot9": ["callback_query"]}


def test_a_reply_to_the_message_of_a_job_wakes_the_agent_that_belongs_to_it(chat: Chat) -> None:
    chat.world.run_until("2026-03-02 10:01")
    assert chat.phone.texts[1:] == ["copied 12 files", "alone"]
    assert say(chat, "Only 12?", 1).startswith("wake 1 for agent/ops")
    assert say(chat, "Only this?", 2).startswith("no agent belongs to this message")
    assert say(chat, "later", 2) == "this message is sent again at 2026-03-02 11:01:03"
    assert [each.error for each in list_messages(chat.world.store.connection)] == [
        "waits until 2026-03-02 11:01:03, as anna has asked"
    ]


def test_a_reply_to_the_message_of_a_prompt_wakes_the_agent_that_answered_it(chat: Chat) -> None:
    world = chat.world
    world.reload(world.yaml + '  mail: {schedule: "30 9 * * *", prompt: Look., agent: ops, deliver: phone}\n')
    world.scripts["mail"] = lambda _: "two letters wait"
    world.run_until("2026-03-02 09:40")
    assert chat.phone.texts[-1] == "two letters wait"
    assert "for agent/ops is queued" in say(chat, "From whom?", -1)


def test_a_reply_wakes_the_agent_of_a_job_whose_own_wakes_wait_for_its_next_run(chat: Chat) -> None:
    chat.world.reload(CONFIG.format(url=chat.phone.url).replace("wake_on: failure", "wake_on: failure, wake_mode: next"))
    chat.world.run_until("2026-03-02 09:01")
    assert say(chat, "Only 12?", 1).startswith("wake 1 for agent/ops")


@pytest.mark.parametrize(
    ("who", "answers"),
    [
        ({"user": "ANNA"}, "wake 1"),
        ({"user": "carl", "user_id": 77}, "wake 1"),
        ({"user": "carl", "user_id": 78}, "Only the people of this channel"),
        ({"user": "77"}, "wake 1"),
        ({"where": "-1002"}, ""),
    ],
)
def test_only_people_of_the_channel_may_reply(chat: Chat, who: dict[str, object], answers: str) -> None:
    said = say(chat, "What is that?", **who)
    assert said.startswith(answers) if answers else (said, chat.results) == ("", [])


def test_a_reply_that_arrives_twice_counts_once(chat: Chat) -> None:
    """As after a crash before the next request has confirmed it."""
    say(chat, "What is that?")
    chat.poller._bots[next(iter(chat.poller._bots))].offset = 0
    chat.poll()
    chat.world.run(minutes=10)
    assert len(chat.world.calls) == 2


def test_a_reply_is_not_confirmed_before_it_is_recorded(chat: Chat) -> None:
    """The next request to Telegram confirms it. If the daemon is killed before its commit, Telegram sends it again."""
    chat.phone.reply("What is that?", 0)
    channels, clock = chat.world.engine.plan.settings.channels, chat.world.clock
    for _ in range(4):  # no tick of the engine
        clock.advance(timedelta(seconds=2))
        chat.poller.poll(clock.monotonic, channels)
    asked = [request.json["offset"] for request in chat.phone.requests if request.path.endswith("getUpdates")]
    assert asked == [0]
    chat.poll()
    chat.poll()
    asked = [request.json["offset"] for request in chat.phone.requests if request.path.endswith("getUpdates")]
    assert asked[-1] == 701


@pytest.mark.sqlite_file("SQLite can be told to refuse a commit")
def test_a_reply_whose_commit_fails_is_neither_confirmed_nor_lost(chat: Chat) -> None:
    def refuse_commits(action: int, name: str | None, *_: str | None) -> int:
        return sqlite3.SQLITE_DENY if (action, name) == (sqlite3.SQLITE_TRANSACTION, "COMMIT") else sqlite3.SQLITE_OK

    chat.phone.reply("What is that?", 0)
    channels, clock, db = chat.world.engine.plan.settings.channels, chat.world.clock, chat.world.store.connection
    for _ in range(4):
        clock.advance(timedelta(seconds=2))
        if chat.phone.requests[-1].path.endswith("getUpdates"):
            db.set_authorizer(refuse_commits)
            with pytest.raises(sqlite3.DatabaseError):
                chat.world.settle()
            db.set_authorizer(None)
        chat.poller.poll(clock.monotonic, channels)
    asked = [request.json["offset"] for request in chat.phone.requests if request.path.endswith("getUpdates")]
    assert asked == [0]
    chat.poll()
    chat.world.run(minutes=5)
    assert len(chat.world.calls) == 2


def test_a_reply_to_a_message_of_another_program_has_no_answer(chat: Chat) -> None:
    chat.phone.messages.append({"text": "not ours"})
    assert say(chat, "What is that?", -1) == ""


def test_a_reply_is_to_the_message_of_its_own_bot(chat: Chat) -> None:
    """Another bot has sent a message with the same number to the same chat."""
    text = CONFIG.format(url=chat.phone.url)
    phone = next(line for line in text.splitlines() if "phone: {" in line)
    other = phone.replace("phone:", "other:").replace("${TG}", telegram.URL.replace("tgram://1", "tgram://9"))
    chat.world.reload(
        text.replace(phone, f"{phone}\n{other}").replace("command: alone, deliver: phone", "command: alone, deliver: other")
    )
    sent = ["3", "1"]  # the numbers of its messages
    chat.world.send = lambda outgoing: (
        DeliveryResult("delivered", receipt=sent.pop()) if outgoing.channel.name == "other" else send_by_transport(outgoing)
    )
    chat.world.run_until("2026-03-02 10:01")
    assert sent == ["3"]
    assert say(chat, "What is that?", 0).startswith("wake 1 for agent/ops")
    chat.world.run_job("alone")
    chat.world.run(minutes=1)
    assert sent == []
    assert say(chat, "What is that?", 2) == ""


def test_a_reply_to_a_message_of_a_channel_without_people_has_no_answer(chat: Chat) -> None:
    text = CONFIG.format(url=chat.phone.url)
    phone = next(line for line in text.splitlines() if "phone: {" in line)
    other = phone.replace("phone:", "other:").replace(', people: ["@Anna", "77"]', "")
    chat.world.reload(
        text.replace(phone, f"{phone}\n{other}").replace("command: alone, deliver: phone", "command: alone, deliver: other")
    )
    chat.world.run_until("2026-03-02 10:01")
    assert chat.phone.texts[2] == "alone"
    assert (say(chat, "What is that?", 2), chat.results) == ("", [])


NOW = utc("2026-03-27 15:00")  # a Friday, 16:00 in Riga is 17:00; the clocks go forward on the 29th


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("later", "2026-03-27 16:00"),
        ("Later 2h.", "2026-03-27 17:00"),
        ("in 30m", "2026-03-27 15:30"),
        ("1h30m", "2026-03-27 16:30"),
        ("tomorrow", "2026-03-28 07:00"),
        ("tomorrow 9", "2026-03-28 07:00"),
        ("tomorrow at 18:30", "2026-03-28 16:30"),
        ("sunday 9", "2026-03-29 06:00"),
        ("fri 8", "2026-04-03 05:00"),
        ("18:00", "2026-03-27 16:00"),
        ("17:00", "2026-03-28 15:00"),
        ("at 8:00", "2026-03-28 06:00"),
        ("9", None),
        ("thur 9", "2026-04-02 06:00"),
        ("monitor", None),
        ("we", None),
        ("thumbsup", None),
        ("satisfied!", None),
        ("tomorrow we will mend it", None),
        ("tomorrow 25", None),
        ("later today", None),
        ("what is that?", None),
        ("...", None),
        ("99999999h", None),
    ],
)
def test_when(text: str, when: str | None) -> None:
    found: datetime | None = parse_when(text, NOW, ZoneInfo("Europe/Riga"))
    assert found == (utc(when) if when else None)


def test_a_time_that_is_over_today_is_that_of_tomorrow_also_across_the_change_of_the_clocks() -> None:
    """A day is 23 hours long then."""
    eve = utc("2026-03-28 15:00")
    assert parse_when("16:00", eve, ZoneInfo("Europe/Riga")) == utc("2026-03-29 13:00")


def test_what_an_agent_said_to_a_conversation(chat: Chat) -> None:
    chat.world.scripts["ops"] = lambda _: "The mail is slow."
    chat.world.wake("ops", "look")
    chat.world.run(minutes=5)
    db = chat.world.store.connection
    assert [each.text[:12] for each in said_by(db, "ops", "phone", 10)] == ["The mail is ", "warning  ops"]
    assert [each.text[:12] for each in said_by(db, "ops", None, 1)] == ["The mail is "]
    assert said_by(db, "ops", "mail", 10) == []
    assert [len(said_by(db, "ops", f"phone:{who}", 10)) for who in ("", "4711")] == [2, 0]
    chat.world.reload(chat.world.yaml.replace("alone:", "ops:"))
    chat.world.run_until("2026-03-02 10:01")  # a job with the name of the agent delivers its output
    assert len(said_by(db, "ops", "phone", 10)) == 2
    assert said_by(db, "web", "phone", 10) == []


def test_only_telegram_passes_replies_on(tmp_path: Path, phone: Telegram) -> None:
    yaml = CONFIG.format(url=phone.url).replace(f'base_url: "{phone.url}", ', "").replace("${TG}", "discord://42/abc")
    assert any(
        "channels.phone.people: only telegram passes answers on; remove people" in line for line in complaints(tmp_path, yaml)
    )


@pytest.mark.parametrize("person", ["@", "Anna Smith", "https://t.me/anna"])
def test_a_person_is_a_user_name_or_a_number(tmp_path: Path, phone: Telegram, person: str) -> None:
    yaml = CONFIG.format(url=phone.url).replace("@Anna", person)
    says = (
        f"channels.phone.people[0]: '{person}' is not a user name of Telegram; write @NAME, or the number of the user in quotes"
    )
    assert any(says in line for line in complaints(tmp_path, yaml))


DAEMON = """\
state: state/h.db
host: web1
server: {{listen: "127.0.0.1:0"}}
channels:
  phone: {{url: "{tg}", base_url: "{url}", allow_private: true, people: [anna]}}
agents:
  ops:
    runner: {{kind: command, argv: [sh, -c, "grep -q 'Answer of anna: Why' && echo Because. || echo The disk is full."]}}
    heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: phone}}
"""


def test_a_running_daemon_passes_a_reply_to_its_agent(daemon: Begin, phone: Telegram) -> None:
    phone.poll_seconds = 0.3
    running = daemon(DAEMON.format(tg=telegram.URL, url=phone.url) + "limits: {wake_gap: 1s}\n")
    running.wait_until(lambda: phone.messages)
    phone.reply("Why?", 0)
    running.wait_until(lambda: "[ops@web1] Because." in phone.texts)
