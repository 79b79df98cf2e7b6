"""Webhooks carry signed links to mute an agent, to acknowledge its conditions and to run it again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from config_file import complaints
from run_async import send_message
from servers.scripted import Server, raw
from test_webhook import MESSAGE, OK
from web_daemon import Reply, WebDaemon

from scheduler.channels import webhook
from scheduler.channels.channel_kind import SendContext
from scheduler.channels.message import Button, DeliveryResult, Message
from scheduler.engine.delivery import Delivery
from scheduler.model.events import ButtonPressed
from scheduler.model.settings import Channel

SECRET = "a-secret-with-enough-bits-in-it"
CONFIG = f"""
server: {{listen: "127.0.0.1:0", public_url: "https://beat.example/"}}
channels:
  hook: {{kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true, secret: "{SECRET}", links: true}}
agents:
  ops:
    runner: {{kind: command, argv: [agent]}}
    heartbeat: {{interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: hook}}
"""


class Receiver:
    """The links of the messages that the daemon has sent."""

    def __init__(self, daemon: WebDaemon, answer: str = "[disk!] 97 %") -> None:
        self.daemon = daemon
        self.links: list[dict[str, str]] = []
        daemon.world.send = self._take
        daemon.world.scripts["ops"] = lambda call: answer
        daemon.do(lambda: daemon.world.run(minutes=31))

    def _take(self, delivery: Delivery) -> DeliveryResult:
        self.links.append({link.name: link.data for link in delivery.buttons})
        return DeliveryResult("delivered")

    def path(self, name: str) -> str:
        parts = urlsplit(self.links[0][name])
        assert (parts.scheme, parts.netloc) == ("https", "beat.example")
        return parts.path

    def open(self, path: str) -> Reply:
        return self.daemon.send("GET", path, headers={"Host": "beat.example"})

    def confirm(self, path: str) -> Reply:
        """Send the form, as a browser does for a page with the policy no-referrer."""
        headers = {"Host": "beat.example", "Origin": "null", "Content-Type": "application/x-www-form-urlencoded"}
        return self.daemon.send("POST", path, "", headers=headers)

    @property
    def results(self) -> list[str]:
        return [event.result for event in self.daemon.world.events_of(ButtonPressed)]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with WebDaemon(tmp_path, CONFIG) as daemon:
        yield Receiver(daemon)


def is_muted(receiver: Receiver) -> bool:
    def read() -> bool:
        row = receiver.daemon.world.store.connection.execute("select muted_until from entry where name = 'ops'").fetchone()
        return row[0] is not None

    return bool(receiver.daemon.do(read))


def test_get_shows_what_a_link_does_and_post_does_it_once(receiver: Receiver) -> None:
    assert list(receiver.links[0]) == ["acknowledge", "mute", "run"]
    page = receiver.open(receiver.path("mute"))
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<h1>Mute 2h: ops</h1>" in page.body
    assert b'<form method="post">' in page.body
    assert not is_muted(receiver)
    page = receiver.confirm(receiver.path("mute"))
    assert (page.status, b"agent/ops is muted until " in page.body) == (200, True)
    assert is_muted(receiver)
    assert receiver.confirm(receiver.path("mute")).status == 403
    page = receiver.open(receiver.path("mute"))
    assert (page.status, b"This button was used before." in page.body, b"<form" in page.body) == (403, True, False)
    assert receiver.results == ["applied", "replayed"]


def test_links_acknowledge_and_run(receiver: Receiver) -> None:
    assert (
        b"the condition disk of agent/ops: no messages until worse or over" in receiver.confirm(receiver.path("acknowledge")).body
    )
    assert b"for agent/ops is queued" in receiver.confirm(receiver.path("run")).body


def test_a_key_that_a_model_wrote_is_text_on_the_page_behind_a_link(tmp_path: Path) -> None:
    with WebDaemon(tmp_path, CONFIG) as daemon:
        receiver = Receiver(daemon, "[disk <b>full</b>!] 97 %")
        done = receiver.confirm(receiver.path("acknowledge"))
    assert (done.status, b"disk &lt;b&gt;full&lt;/b&gt; of agent/ops: no messages until worse or over" in done.body) == (
        200,
        True,
    )
    assert b"<b>" not in done.body


def test_a_forged_link_has_no_effect_and_is_counted(receiver: Receiver) -> None:
    action, number, expires, code = receiver.path("mute").removeprefix("/act/").split(":")
    forged = [
        "/act/x",
        "/act/m:::",
        f"/act/{action}:{number}:{expires}:{'A' * len(code)}",
        f"/act/r:{number}:{expires}:{code}",
        f"/act/{action}:{number}:{int(expires, 16) + 1:x}:{code}",
        f"/act/{action}:{number}:{expires}:{code}%20",
        "/act/%3Cscript%3E",
    ]
    assert {receiver.open(path).status for path in forged} == {403}
    assert {receiver.confirm(path).status for path in forged} == {403}
    assert (receiver.results, is_muted(receiver)) == (["forged"] * len(forged) * 2, False)


def test_a_link_expires_after_a_day(receiver: Receiver) -> None:
    receiver.daemon.do(lambda: receiver.daemon.world.run(hours=25))
    page = receiver.confirm(receiver.path("mute"))
    assert (page.status, receiver.results, is_muted(receiver)) == (403, ["expired"], False)
    page = receiver.open(receiver.path("mute"))
    assert (page.status, b"This button has expired." in page.body, b"<form" in page.body) == (403, True, False)


def test_a_link_gives_no_access_to_anything_else(receiver: Receiver) -> None:
    for path in ("/act/../api/v1/pause", "/act/..%2fapi%2fv1%2fpause", "/act//api/v1/pause", "/act/x/y"):
        assert receiver.confirm(path).status in (403, 404)
    assert receiver.daemon.send("POST", "/api/v1/pause", "", headers={"Host": "beat.example"}).status == 401
    assert receiver.daemon.send("GET", receiver.path("mute"), headers={"Host": "evil.example"}).status == 421


def test_without_links_there_is_no_such_page(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon:
        assert daemon.get("/act/m:1:2:3").status == 404
        assert daemon.post("/act/m:1:2:3").status == 404


def test_the_json_of_a_webhook_has_the_links() -> None:
    async def send(channel: Channel, message: Message, context: SendContext) -> DeliveryResult:
        links = (Button("mute", "Mute 2h", "https://beat.example/act/m:1"),)
        return await webhook.send(channel, message, SendContext(context.http, context.start, context.now, buttons=links))

    with Server([raw(OK)]) as server:
        send_message(send, f"http://127.0.0.1:{server.port}/x", MESSAGE)
        assert server.requests[0].json["links"] == {"mute": "https://beat.example/act/m:1"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (f', secret: "{SECRET}"', "", "channels.hook.links: links are signed; write a secret for this channel"),
        (', public_url: "https://beat.example/"', "", "channels.hook.links: links need the address of the daemon"),
        ("https://beat.example/", "beat.example", "server.public_url: this is not the address of a server"),
        ("https://beat.example/", "https://me@beat.example/?x", "server.public_url: this is not the address of a server"),
    ],
)
def test_links_need_a_secret_and_the_public_address(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert problem in complaints(tmp_path, CONFIG.replace(old, new))[0]


def test_only_webhooks_have_links(tmp_path: Path) -> None:
    yaml = (
        CONFIG.replace("kind: webhook, ", "")
        .replace("http://127.0.0.1:9/x", "discord://42/abc")
        .replace(f', secret: "{SECRET}"', "")
    )
    assert "channels.hook.links: only webhook has links; remove links" in "\n".join(complaints(tmp_path, yaml))
