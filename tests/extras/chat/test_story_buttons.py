"""Messages in Telegram have buttons: mute for two hours, acknowledge, run again. Only genuine presses in the chat have an effect."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from config_file import complaints
from daemon_process import Begin
from run_async import with_http
from servers import telegram
from servers.messages import Models, error_answer
from servers.scripted import reply
from servers.telegram import Telegram, refusal
from simulated_chat import AtOnce
from test_endless_answers import check_reader
from world import MakeWorld, World, send_by_transport

from heartbeatd.secret import Secret
from heartbeatd.verbs import CloseProblem
from scheduler.engine.effects import VerbRequest
from scheduler.extras.chat import telegram_buttons
from scheduler.extras.chat.button_poller import BotCall, ButtonPoller, call_bot
from scheduler.extras.chat.buttons import is_from_its_chat
from scheduler.extras.chat.telegram_buttons import Press, Presses
from scheduler.insight.status_data import read_status
from scheduler.model.events import ButtonPressed, PauseChanged
from scheduler.net.http_client import MAX_BODY_START
from scheduler.store import outbox
from scheduler.telemetry.event_log import EventLog

CONFIG = """\
host: web1
channels:
  phone: {{url: "${{TG}}", base_url: "{url}", allow_private: true, buttons: true}}
agents:
  ops:
    runner: {{kind: command, argv: [agent]}}
    heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: phone, retries: 0, problems: {{after: 1}}}}
cron:
  backup: {{every: 1h, command: backup, deliver: phone, retries: 0, problems: {{after: 1}}}}
"""


def send(call: BotCall) -> Presses:
    """The answer of the stand-in to a request of the poller."""
    return asyncio.run(with_http(lambda http: call_bot(call, http)))


class Chat:
    """A world whose agent writes to a chat, and a person there who presses buttons."""

    def __init__(self, world: World, phone: Telegram) -> None:
        self.world, self.phone = world, phone
        self.poller = ButtonPoller(AtOnce(send), world.inbox.submit)

    def poll(self) -> float | None:
        """Ask for presses once, and carry them out."""
        wait = None
        self.world.clock.advance(timedelta(seconds=1))  # the shortest time between two requests
        for _ in range(2):  # the first asks, the second reads the answer
            wait = self.poller.poll(self.world.clock.monotonic, self.world.engine.plan.settings.channels)
            self.world.settle()
        return wait

    def press(self, label: str, message: int = -1, **more: Any) -> str:
        """Press a button and return the text that is shown."""
        self.phone.press(self.phone.buttons(message)[label], **more)
        self.poll()
        return self.phone.answers[-1]

    def press_data(self, data: str, **more: Any) -> str:
        self.phone.press(data, **more)
        self.poll()
        return self.phone.answers[-1]

    @property
    def results(self) -> list[str]:
        return [event.result for event in self.world.events_of(ButtonPressed)]


@pytest.fixture
def chat(make_world: MakeWorld, phone: Telegram) -> Chat:
    """The agent has reported a full disk, and every hour one more mail that waits."""
    world = make_world(CONFIG.format(url=phone.url), environ={"TG": telegram.URL}, send=send_by_transport)
    mails = [f"[mail{number}] waits" for number in range(1, 99)]
    found = ["\n".join(["[disk!] 97 %", *mails[:count]]) for count in range(99)]
    world.scripts["ops"] = lambda call: found[len([each for each in world.calls if each.name == "ops"]) - 1]
    world.run(minutes=30)
    return Chat(world, phone)


def muted(world: World, name: str = "ops") -> Any:
    entries = read_status(world.store.connection, world.clock.now).as_data()["entries"]
    return next(each["muted"] for each in entries if each["name"] == name)


def test_an_alert_names_agent_and_host_and_has_three_buttons(chat: Chat) -> None:
    assert chat.phone.texts == ["[ops@web1] CRITICAL disk: 97 % (since 2026-03-02 08:00 UTC)   p1"]
    assert list(chat.phone.buttons()) == ["Acknowledge", "Mute 2h", "Run again"]
    assert max(len(data) for data in chat.phone.buttons().values()) <= 64


def test_of_a_long_message_the_last_part_has_buttons_and_none_for_problems_if_it_is_about_none(chat: Chat) -> None:
    chat.world.scripts["backup"] = lambda _: "copied " * 1000
    chat.world.run(minutes=40)
    parts = [place for place, text in enumerate(chat.phone.texts) if "copied" in text]
    assert [list(chat.phone.buttons(place)) for place in parts] == [[], ["Mute 2h", "Run again"]]


def test_a_button_mutes_for_two_hours(chat: Chat) -> None:
    assert chat.press("Mute 2h").startswith("agent/ops is muted until 2026-")
    assert (muted(chat.world)["by"], muted(chat.world)["until"]) == ("anna on phone", "2026-03-02T10:30:01Z")
    chat.world.run(hours=2)
    assert len(chat.phone.texts) == 1
    chat.world.run(hours=1)
    assert "warning  mail3: waits" in chat.phone.texts[1]


def test_hundreds_of_forged_presses_do_not_delay_a_genuine_one(chat: Chat) -> None:
    """An answer of Telegram is read up to 64 KiB, and has as many presses as fit."""
    for number in range(300):
        chat.phone.press(f"m:{number:x}:0:forged", text="x" * (number % 3000))
    chat.phone.press(chat.phone.buttons()["Mute 2h"], text="y" * 4096)
    for _ in range(10):
        chat.poll()
    assert (chat.results.count("forged"), chat.results[-1]) == (300, "applied")
    assert muted(chat.world)["by"] == "anna on phone"


def test_a_button_acknowledges_the_problems_of_the_message(chat: Chat) -> None:
    assert chat.press("Acknowledge") == "problem p1 (agent/ops disk) is acknowledged: no messages until it is worse or over"
    chat.world.run(hours=10)
    assert not [text for text in chat.phone.texts[1:] if "ops disk" in text]


def test_a_button_acknowledges_the_problem_of_a_message_although_a_reminder_came_later(chat: Chat) -> None:
    chat.world.run(hours=7)
    assert "reminder" in "".join(chat.phone.texts)
    assert chat.press("Acknowledge", 0).startswith("problem p1 (agent/ops disk) is acknowledged")


def test_a_button_for_a_problem_that_is_over_says_so(chat: Chat) -> None:
    chat.world.request(VerbRequest(CloseProblem(), 1))
    chat.world.settle()
    assert chat.press("Acknowledge") == "this message is about no open problem"
    assert chat.results == ["failed"]


def test_a_button_runs_the_agent_again(chat: Chat) -> None:
    assert "for agent/ops is queued" in chat.press("Run again")
    chat.world.run(minutes=1)
    assert [row["trigger"] for row in chat.world.records("ops")] == ["interval", "api"]


def test_the_notification_of_a_failed_job_has_buttons_for_the_job(chat: Chat) -> None:
    chat.world.scripts["backup"] = lambda call: 3
    chat.world.run(hours=1)
    job = next(index for index, text in enumerate(chat.phone.texts) if text.startswith("[backup@web1]"))
    assert list(chat.phone.buttons(job)) == ["Acknowledge", "Mute 2h", "Run again"]
    before = len(chat.world.calls)
    assert chat.press("Run again", job) == "cron/backup is queued"
    assert chat.press("Mute 2h", job).startswith("cron/backup is muted until 2026-")
    chat.world.run(minutes=1)
    assert [call.name for call in chat.world.calls[before:]] == ["backup"]
    assert muted(chat.world, "backup")["by"] == "anna on phone"


def test_a_message_about_a_provider_has_no_button_for_the_agent_that_found_it(make_world: MakeWorld, phone: Telegram) -> None:
    """A mute of one agent would not stop messages about the provider."""
    with Models(lambda _: error_answer(401, "authentication_error", "invalid x-api-key")) as server:
        provider = f'providers: {{anthropic: {{api_key: "${{KEY}}", base_url: "{server.url}"}}}}\n'
        yaml = provider + CONFIG.format(url=phone.url).replace("{kind: command, argv: [agent]}", "anthropic\n    model: m")
        world = make_world(yaml, environ={"TG": telegram.URL, "KEY": "k"}, send=send_by_transport)
        world.run(minutes=30)
    assert [text[:53] for text in phone.texts] == ["[anthropic@web1] CRITICAL provider anthropic refused:"]
    assert list(phone.buttons()) == ["Acknowledge"]
    assert Chat(world, phone).press("Acknowledge").startswith("problem p1 (provider/anthropic refused) is acknowledged")


def test_the_message_that_a_job_is_paused_has_a_button_to_resume_it(chat: Chat) -> None:
    world = chat.world
    text = CONFIG.format(url=chat.phone.url)
    world.reload(text.replace("retries: 0, problems: {after: 1}}\n", "retries: 0, problems: {after: 1, pause_after: 2}}\n"))
    world.scripts["backup"] = lambda call: 3
    world.run(hours=2)
    paused = next(index for index, text in enumerate(chat.phone.texts) if "cron/backup paused" in text)
    assert list(chat.phone.buttons(paused)) == ["Acknowledge", "Resume", "Mute 2h"]
    world.scripts["backup"] = lambda call: ""
    assert chat.press("Resume", paused) == "cron/backup is resumed"
    assert world.events_of(PauseChanged)[-1].by == "anna on phone"
    world.run(hours=1)
    assert [row["result"] for row in world.records("backup")][-3:] == ["failed", "failed", "ok"]
    assert chat.press("Resume", paused) == "This button was used before."


def test_one_message_of_several_entries_has_a_button_to_resume_those_that_are_paused(chat: Chat) -> None:
    world = chat.world
    text = CONFIG.format(url=chat.phone.url).replace("deliver: phone", 'deliver: {to: phone, hours: "12:00-13:00"}')
    job = "retries: 0, problems: {after: 1, pause_after: 2}}\n"
    twin = f'  copy: {{every: 1h, command: copy, deliver: {{to: phone, hours: "12:00-13:00"}}, {job}'
    world.reload(text.replace("retries: 0, problems: {after: 1}}\n", job) + twin + twin.replace("copy", "sync"))
    world.scripts |= dict.fromkeys(("backup", "copy", "sync"), lambda call: 3)
    world.run(hours=4)
    world.resume(("cron", "sync"))  # so the button leaves it alone
    together = next(index for index, text in enumerate(chat.phone.texts) if "cron/backup paused" in text)
    assert "cron/copy paused" in chat.phone.texts[together] and "cron/sync paused" in chat.phone.texts[together]
    assert "warning  ops mail1: waits" in chat.phone.texts[together]
    assert list(chat.phone.buttons(together)) == ["Acknowledge", "Resume"]
    assert chat.press("Resume", together) == "cron/backup is resumed; cron/copy is resumed"


def test_a_button_can_be_used_once(chat: Chat) -> None:
    chat.press("Mute 2h")
    assert chat.press("Mute 2h") == "This button was used before."
    chat.world.run(hours=23)
    assert chat.press("Mute 2h", 0) == "This button was used before."
    assert chat.results == ["applied", "replayed", "replayed"]


def test_a_button_has_no_effect_once_its_channel_has_none(chat: Chat) -> None:
    chat.world.reload(CONFIG.format(url=chat.phone.url).replace("buttons: true", "people: [anna]"))
    assert chat.press("Mute 2h") == "This button is not valid."
    assert (chat.results, muted(chat.world)) == (["forged"], None)


def test_a_button_expires_after_a_day(chat: Chat) -> None:
    chat.world.run(hours=24)
    assert chat.press("Mute 2h", 0).startswith("This button has expired")
    assert (chat.results, muted(chat.world)) == (["expired"], None)


def test_a_press_in_another_chat_has_no_effect(chat: Chat) -> None:
    assert chat.press("Mute 2h", chat="-1002") == "This button is not valid in this chat."
    assert (chat.results, muted(chat.world)) == (["wrong_chat"], None)


@pytest.mark.parametrize(("place", "is_own"), [("-1001", True), ("-1002", False)])
def test_the_chat_of_a_message_may_be_its_target(chat: Chat, place: str, *, is_own: bool) -> None:
    channel = replace(chat.world.engine.plan.settings.channels["phone"], url=Secret("tgram://1:a/{target}"), needs_target=True)
    message = replace(outbox.get_message(chat.world.store.connection, 1), recipient="-1001")
    assert is_from_its_chat(Press(place, "", "anna", frozenset(), "1", "x"), channel, message) is is_own


@pytest.mark.parametrize(("name", "is_own"), [("team", True), ("Team", True), ("teams", False), ("", False)])
def test_the_chat_of_a_channel_may_be_known_by_its_name(chat: Chat, name: str, *, is_own: bool) -> None:
    channel = replace(chat.world.engine.plan.settings.channels["phone"], url=Secret("tgram://1:a/@Team"))
    message = outbox.get_message(chat.world.store.connection, 1)
    assert is_from_its_chat(Press("-1009", name, "anna", frozenset(), "1", "x"), channel, message) is is_own


def forgeries(genuine: str) -> list[str]:
    action, number, expires, code = genuine.split(":")
    later = f"{int(expires, 16) + 3600:x}"
    return [
        "",
        "m",
        ":::",
        "m:::",
        "m:x:y:z",
        f"{action}:{number}:{expires}:{'A' * len(code)}",
        f"{action}:{number}:{expires}:",
        f"{action}:{number}:{later}:{code}",
        f"r:{number}:{expires}:{code}",
        f"x:{number}:{expires}:{code}",
        f"{action}:{int(number, 16) + 1:x}:{expires}:{code}",
        f"{action}:{'f' * 40}:{expires}:{code}",
        f"{action}:-{number}:{expires}:{code}",
        f"{action}:{number}:{'f' * 40}:{code}",
        f"{action}:{number}:{expires}:\N{FIRE}",
        genuine + ":",
    ]


def test_a_forged_button_has_no_effect_and_is_counted(chat: Chat) -> None:
    forged = forgeries(chat.phone.buttons()["Mute 2h"])
    calls = len(chat.world.calls)
    assert {chat.press_data(data) for data in forged} == {"This button is not valid."}
    assert (chat.results, muted(chat.world), len(chat.world.calls)) == (["forged"] * len(forged), None, calls)


def test_the_first_refused_press_is_a_warning_and_the_others_are_not(chat: Chat, caplog: pytest.LogCaptureFixture) -> None:
    for data in forgeries(chat.phone.buttons()["Mute 2h"]):
        chat.press_data(data)
    log = EventLog()
    with caplog.at_level(logging.DEBUG):
        for event in chat.world.events_of(ButtonPressed):
            log.log_event(event)
    levels = [record.levelno for record in caplog.records if record.getMessage() == "button"]
    assert levels == [logging.WARNING, *[logging.DEBUG] * (len(levels) - 1)]


def test_a_button_of_an_earlier_database_is_not_valid(chat: Chat, make_world: MakeWorld) -> None:
    old = chat.phone.buttons()["Mute 2h"]
    chat.world.store.connection.execute("update outbox set key = 'that of another message'")
    assert chat.press_data(old) == "This button is not valid."


def test_a_press_that_is_refused_by_the_engine_says_why_and_can_be_repeated(chat: Chat) -> None:
    chat.world.reload(chat.world.yaml.replace("interval: 1h", "interval: 1h, enabled: false"))
    assert "is disabled" in chat.press("Run again")
    chat.world.reload(chat.world.yaml)
    assert "for agent/ops is queued" in chat.press("Run again")
    assert chat.results == ["failed", "applied"]


def test_a_poll_that_fails_is_repeated_with_longer_pauses_and_logged_once(chat: Chat, caplog: pytest.LogCaptureFixture) -> None:
    chat.phone.script = [refusal(409, "Conflict: terminated by other getUpdates request") for _ in range(3)]
    waits = []
    for _ in range(3):
        waits.append(chat.poll())
        chat.world.clock.advance(timedelta(seconds=waits[-1] or 0))
    assert len(chat.phone.script) == 0
    assert waits == [5.0, 10.0, 20.0]
    assert chat.press("Mute 2h").startswith("agent/ops is muted until 2026-")
    chat.poll()
    lines = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "buttons"]
    assert [line["problem"] and line["problem"].partition(": ")[2] for line in lines] == [
        "Conflict: terminated by other getUpdates request",
        None,
    ]


@pytest.mark.parametrize(
    "result",
    [
        None,
        {},
        [None],
        [{}],
        [{"update_id": "7"}],
        [{"update_id": 7, "callback_query": None}],
        [{"update_id": 7, "callback_query": {"id": 7}}],
        [{"update_id": 7, "callback_query": {"id": "7", "message": [], "from": None, "data": ["m"]}}],
        [{"update_id": 7, "message": {"text": "m:1:1:1"}}],
    ],
)
def test_an_update_that_is_no_press_has_no_effect_and_does_not_stop_the_polls(chat: Chat, result: Any) -> None:
    chat.phone.script = [reply({"ok": True, "result": result})]
    chat.poll()
    chat.world.clock.advance(timedelta(minutes=1))
    assert chat.press("Mute 2h").startswith("agent/ops is muted until 2026-")
    assert chat.results in (["applied"], ["forged", "applied"])


def test_a_server_that_answers_at_once_is_asked_once_a_second(chat: Chat) -> None:
    before = len(chat.phone.requests)
    for _ in range(50):
        wait = chat.poller.poll(chat.world.clock.monotonic, chat.world.engine.plan.settings.channels)
    assert (wait, len(chat.phone.requests) - before) == (1.0, 1)


class Waiting(AtOnce):
    """An executor whose requests wait for presses."""

    def __init__(self) -> None:
        super().__init__(lambda _: Presses())
        self.open: dict[int, BotCall] = {}

    def submit(self, number: int, task: BotCall) -> None:
        self.open[number] = task

    def inflight(self) -> dict[int, BotCall]:
        return dict(self.open)

    def answer(self) -> None:
        for number, task in self.open.items():
            super().submit(number, task)
        self.open = {}


def test_a_bot_that_one_reload_removes_and_another_declares_again_is_polled_once(chat: Chat) -> None:
    """Telegram ends the earlier of two requests with an error, and the later one when that is repeated."""
    calls = Waiting()
    poller = ButtonPoller(calls, chat.world.inbox.submit)
    for yaml in (chat.world.yaml, chat.world.yaml.replace(", buttons: true", ""), chat.world.yaml):
        chat.world.reload(yaml)
        assert poller.poll(chat.world.clock.monotonic, chat.world.engine.plan.settings.channels) is None
        assert len(calls.open) == 1
    calls.answer()
    for _ in range(2):
        chat.world.clock.advance(timedelta(seconds=1))
        poller.poll(chat.world.clock.monotonic, chat.world.engine.plan.settings.channels)
        assert len(calls.open) == 1


def test_two_channels_with_one_bot_poll_it_once_although_only_one_may_reach_a_private_address(chat: Chat) -> None:
    """Telegram ends the earlier of two requests. Its server is on this machine here, so the other channel alone could not poll."""
    line = next(line for line in chat.world.yaml.splitlines() if "phone: {" in line)
    public = line.replace(", allow_private: true", "").replace(f'"{chat.phone.url}"', f'"{chat.phone.url}/"')
    for first, last in ((line, public.replace("phone:", "team:")), (public.replace("phone:", "early:"), line)):
        chat.world.reload(chat.world.yaml.replace(line, f"{first}\n{last}"))
        chat.poll()
        ((bot, state),) = chat.poller._bots.items()
        assert (bot.allow_private, state.channel) == (True, "phone")
    assert chat.press("Mute 2h").startswith("agent/ops is muted until 2026-")


def test_a_press_that_the_engine_cannot_carry_out_yet_does_not_keep_its_loop_busy(chat: Chat) -> None:
    """For example while the disk is full."""
    chat.poller = ButtonPoller(AtOnce(send), lambda _: Future())
    chat.phone.press(chat.phone.buttons()["Mute 2h"])
    assert chat.poll() is None


def test_without_buttons_nothing_is_polled(make_world: MakeWorld, phone: Telegram) -> None:
    yaml = CONFIG.format(url=phone.url).replace(", buttons: true", "")
    world = make_world(yaml, environ={"TG": telegram.URL}, send=send_by_transport, scripts={"ops": lambda call: "Disk full"})
    world.run(minutes=1)
    assert Chat(world, phone).poll() is None
    assert (phone.buttons(), [request.path.rpartition("/")[2] for request in phone.requests]) == ({}, ["sendMessage"])


def test_only_telegram_has_buttons(tmp_path: Path) -> None:
    yaml = CONFIG.format(url="http://127.0.0.1:9").replace('base_url: "http://127.0.0.1:9", ', "")
    (line,) = complaints(tmp_path, yaml.replace("${TG}", "discord://42/abc"))
    assert "channels.phone.buttons: only telegram has buttons; remove buttons" in line


DAEMON = """\
state: state/h.db
host: web1
server: {{listen: "127.0.0.1:0"}}
channels:
  phone: {{url: "{tg}", base_url: "{url}", allow_private: true, buttons: true}}
agents:
  ops:
    runner: {{kind: command, argv: [sh, -c, "cat >/dev/null; echo The disk is full."]}}
    heartbeat: {{interval: 1h, stagger: 0s, checklist: "- look\\n", deliver: phone}}
"""


def test_a_running_daemon_obeys_a_button(daemon: Begin, phone: Telegram) -> None:
    phone.poll_seconds = 0.3
    running = daemon(DAEMON.format(tg=telegram.URL, url=phone.url))
    running.wait_until(lambda: phone.messages)
    assert phone.texts == ["[ops@web1] The disk is full."]
    phone.press("m:1:ffffffff:forged")
    running.wait_until(lambda: len(phone.answers) == 1)
    phone.press(phone.buttons()["Mute 2h"])
    running.wait_until(lambda: len(phone.answers) == 2)
    assert phone.answers[0] == "This button is not valid."
    assert phone.answers[1].startswith("agent/ops is muted until ")
    (ops,) = running.json("status")["entries"]
    assert ops["muted"]["by"] == "anna on phone"
    page = running.metrics()
    assert 'heartbeatd_button_presses_total{channel="phone",result="forged"} 1\n' in page
    assert 'heartbeatd_muted{kind="heartbeat",name="ops"} 1\n' in page
    assert running.stop() == 0


def test_an_endless_answer_of_telegram_is_not_read_to_its_end() -> None:
    def poll_buttons(url: str) -> object:
        bot = telegram_buttons.Bot(url, Secret("1:a"), allow_private=True)
        return asyncio.run(with_http(lambda http: telegram_buttons.get_presses(bot, 0, http)))

    check_reader("the buttons of Telegram", poll_buttons, MAX_BODY_START)
