"""Looks at sources of prechecks, each at a real server of its kind: what is new, what is said, and what is never shown."""

from __future__ import annotations

import asyncio
import json
import os
import socketserver
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import AF_INET, SOCK_STREAM
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from patience import PATIENCE
from required_programs import needs
from run_async import with_http
from servers.dovecot import CERTIFICATE, PASSWORD, Mailbox, running_dovecot
from servers.scripted import Act, Server, reply, silence

from heartbeat.runners import Sight
from heartbeat.runners.call_errors import CallError
from heartbeat.spec import Source
from heartbeatd.secret import Secret
from scheduler.net.http_client import HttpClient
from scheduler.system.process import Children
from scheduler.work import sources
from scheduler.work.sources import Look, SourceReader, folders_of_disks, look_at_disks

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
STATES = ("http", "disk")  # the sources whose lines are about no events


@dataclass
class Looks:
    """Looks at one source again and again. The state moves on if the news has been seen."""

    source: Source
    folder: Path
    state: str | None = None
    now: datetime = NOW
    timeout: timedelta = timedelta(seconds=30)
    resolve: Any = None
    events: tuple[str, ...] = ()  # of the last look

    def look(self, *, seen: bool = True) -> list[str]:
        """The news of a look; none if there are none."""
        sight = self.sight()
        self.state = sight.state if seen else self.state
        self.now += timedelta(minutes=30)
        self.events = sight.events
        lines = sight.text.splitlines() if sight.has_news else []
        assert len(set(self.events)) == (0 if self.source.kind in STATES else len(lines))
        return lines

    def said(self) -> str:
        """What a look without news says."""
        sight = self.sight()
        assert not sight.has_news
        self.state = sight.state
        return sight.text

    def sight(self) -> Sight:
        async def look(http: HttpClient) -> Sight:
            reader = SourceReader(Children("test").start, http, lambda: CERTIFICATE)
            where = {"workspace": self.folder, "now": self.now, "zone": BERLIN, "timeout": self.timeout}
            return await reader(self.source, self.state, **where)  # type: ignore[arg-type]

        return asyncio.run(with_http(look, **({"resolve": self.resolve} if self.resolve else {})))

    def error(self) -> str:
        with pytest.raises(CallError) as caught:
            self.sight()
        return str(caught.value)


def page(kind: Any, server: Server, path: str = "/", **more: Any) -> Source:
    return Source(kind, f"{kind} 127.0.0.1", "same", Secret(server.url + path), **more)


# --- mailbox ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Mailbox]:
    with running_dovecot() as box:
        yield box


@pytest.fixture
def box(server: Mailbox) -> Mailbox:
    for file in (server.folder / "mail").glob("*/*.host*"):
        file.unlink()
    return server


def mailbox(host: str, **more: Any) -> Source:
    return Source("imap", f"imap {host}", "same", host, **{"user": Secret("anna"), "password": Secret(PASSWORD), **more})


needs_dovecot = needs("dovecot")


@needs_dovecot
def test_a_mailbox_shows_unread_messages_that_have_come_since_the_first_look(box: Mailbox, tmp_path: Path) -> None:
    looks = Looks(mailbox(box.host), tmp_path)
    box.deliver("Old <old@example.org>", "hello")
    assert looks.said() == f"first look at imap {box.host}: 1 message in INBOX, none new"
    assert looks.said() == f"nothing new in imap {box.host} since 2026-03-02 09:00"
    box.deliver("Anna <anna@example.org>", "=?utf-8?q?Caf=C3=A9?=\r\n today?")
    box.deliver("Read <read@example.org>", "on another device", is_read=True)
    assert looks.look(seen=False) == ["Anna <anna@example.org>: Café today?"]
    assert looks.look() == ["Anna <anna@example.org>: Café today?"]
    assert looks.look() == []
    assert looks.said() == f"nothing new in imap {box.host} since 2026-03-02 09:30"


@needs_dovecot
def test_a_look_leaves_messages_unread(box: Mailbox, tmp_path: Path) -> None:
    looks = Looks(mailbox(box.host), tmp_path)
    looks.look()
    box.deliver("Anna <anna@example.org>", "hello")
    looks.look()
    assert [file for file in (box.folder / "mail/cur").glob("*host*") if "S" in file.name.partition(":2,")[2]] == []


@needs_dovecot
def test_of_many_messages_the_next_look_shows_the_others(box: Mailbox, tmp_path: Path) -> None:
    looks = Looks(mailbox(box.host), tmp_path)
    looks.look()
    for number in range(130):
        box.deliver("Anna <anna@example.org>", f"mail {number:03}")
    shown = [looks.look() for _ in range(4)]
    assert [len(each) for each in shown] == [61, 61, 10, 0]
    assert [each[-1] for each in shown[:2]] == [f"({left} more messages: the next run gets them)" for left in (70, 10)]
    assert len({line for each in shown for line in each if line.startswith("Anna")}) == 130


@needs_dovecot
@pytest.mark.parametrize("tls", ["none", "starttls"])
def test_a_mailbox_is_read_without_tls_or_with_starttls(box: Mailbox, tmp_path: Path, tls: Any) -> None:
    host = box.plain_host if tls == "none" else box.plain_host.replace("127.0.0.1", "localhost")
    looks = Looks(mailbox(host, encryption=tls), tmp_path)
    looks.look()
    box.deliver("Anna <anna@example.org>", "hello")
    assert looks.look() == ["Anna <anna@example.org>: hello"]


@needs_dovecot
def test_a_folder_has_any_name(box: Mailbox, tmp_path: Path) -> None:
    box.deliver("Anna <anna@example.org>", "hello", folder="Entw&APw-rfe")
    assert Looks(mailbox(box.host, folder="Entwürfe"), tmp_path).said().endswith("1 message in Entwürfe, none new")
    assert Looks(mailbox(box.host, folder="Nope"), tmp_path).error().startswith("it has no folder Nope: ")


@needs_dovecot
def test_a_mailbox_that_was_numbered_anew_says_so_once(box: Mailbox, tmp_path: Path) -> None:
    looks = Looks(mailbox(box.host), tmp_path)
    looks.look()
    assert looks.state is not None
    looks.state = looks.state.replace('"validity": ', '"validity": 1')
    box.deliver("Anna <anna@example.org>", "hello")
    note = "(the server has numbered the messages in INBOX anew: those that came since the last look are not listed)"
    assert looks.look() == [note]
    assert looks.look() == []


@needs_dovecot
def test_errors_of_a_mailbox_are_one_line_without_the_password(box: Mailbox, tmp_path: Path) -> None:
    wrong = Looks(mailbox(box.host, password=Secret("not-the-password")), tmp_path).error()
    assert wrong == "[AUTHENTICATIONFAILED] Authentication failed."
    untrusted = Looks(mailbox(box.host.replace("localhost", "127.0.0.1")), tmp_path).error()
    assert untrusted.startswith("its certificate is not trusted (IP address mismatch, ")
    assert Looks(mailbox("127.0.0.1:1"), tmp_path).error() == "Connection refused"
    with Server([silence()]) as hung:
        late = Looks(mailbox(hung.url.removeprefix("http://"), encryption="none"), tmp_path, timeout=timedelta(seconds=0.2))
        assert late.error() == "no answer within 0s"


class RepeatsLogin(socketserver.StreamRequestHandler):
    """A mailbox that repeats the login in its error."""

    def handle(self) -> None:
        self.wfile.write(b"* OK ready\r\n")
        for line in self.rfile:
            tag, command, *rest = line.split()
            self.wfile.write(
                b"* CAPABILITY IMAP4rev1\r\n%b OK done\r\n" % tag
                if command == b"CAPABILITY"
                else b"%b NO %b\r\n" % (tag, b" ".join(rest))
            )


def test_a_mailbox_that_repeats_the_login_reveals_neither_user_nor_password(tmp_path: Path) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), RepeatsLogin) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        login = {"user": Secret("anna-of-the-canary"), "password": Secret("password-of-the-canary")}
        error = Looks(mailbox(f"127.0.0.1:{server.server_address[1]}", encryption="none", **login), tmp_path).error()
        server.shutdown()
    assert error.replace('"', "") == "*** ***"


@needs_dovecot
def test_a_mail_has_the_same_name_when_it_is_shown_again_and_an_equal_one_has_another(box: Mailbox, tmp_path: Path) -> None:
    looks, line = Looks(mailbox(box.host), tmp_path), "Anna <anna@example.org>: today?"
    looks.look()
    names = []
    for is_new, is_seen, shown in ((1, False, line), (0, True, line), (1, False, line), (1, True, f"2 times: {line}")):
        for _ in range(is_new):
            box.deliver("Anna <anna@example.org>", "today?")
        assert looks.look(seen=is_seen) == [shown]
        names.append(looks.events)
    assert names[0] == names[1]
    assert len(set(names)) == 3


class NamesMailsAfterThem(socketserver.StreamRequestHandler):
    """A mailbox with one message more at each look, which gives the UID of a message after its header."""

    count = 0

    def handle(self) -> None:
        type(self).count += 1
        self.wfile.write(b"* OK ready\r\n")
        answers = {
            b"CAPABILITY": b"* CAPABILITY IMAP4rev1\r\n",
            b"EXAMINE": b"* %d EXISTS\r\n* OK [UIDVALIDITY 7] ok\r\n* OK [UIDNEXT %d] ok\r\n" % (self.count, self.count + 1),
            b"SEARCH": b"* SEARCH %d\r\n" % self.count,
            b"FETCH": b"* 1 FETCH (BODY[HEADER.FIELDS (FROM SUBJECT)]<0> {10}\r\nFrom: A\r\n\r UID %d)\r\n" % self.count,
        }
        for line in self.rfile:
            tag, *words = line.split()
            answer = next((answers[word] for word in words[:2] if word in answers), b"")
            self.wfile.write(answer + b"%b OK done\r\n" % tag)


def test_a_mailbox_may_give_the_number_of_a_message_after_its_header(tmp_path: Path) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), NamesMailsAfterThem) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = mailbox(f"127.0.0.1:{server.server_address[1]}", encryption="none", password=Secret("x"))
        looks = Looks(place, tmp_path)
        looks.look()
        names = [(looks.look(), looks.events) for _ in range(2)]
        server.shutdown()
    assert [lines for lines, _ in names] == [["A: (no subject)"]] * 2
    assert names[0] != names[1]


# --- pages and feeds --------------------------------------------------------------------------------------------------


@dataclass
class Etag:
    """A page that can be changed, on a server with ETags."""

    body: bytes
    sent: int = 0

    def act(self, server: Server) -> Act:
        def answer(connection: Any, over: Any) -> None:
            tag = f'"{sources.digest(self.body.decode())}"'
            if server.requests[-1].headers.get("if-none-match") == tag:
                reply(b"", 304, ETag=tag)(connection, over)
                return
            self.sent += 1
            reply(self.body, ETag=tag)(connection, over)

        return answer


@pytest.fixture
def web() -> Iterator[tuple[Etag, Server]]:
    content = Etag(b"")
    server = Server([])
    server.script.append(content.act(server))
    with server:
        yield content, server


def test_a_page_shows_its_lines_at_the_first_look_and_then_those_that_are_new(web: tuple[Etag, Server], tmp_path: Path) -> None:
    content, server = web
    looks = Looks(page("http", server), tmp_path)
    content.body = b"one\ntwo\n"
    assert looks.look() == ["one", "two"]
    assert looks.look() == looks.look() == []
    assert content.sent == 1  # the server is asked whether the page has changed
    content.body = b"two\n  three \n\n"
    assert looks.look(seen=False) == looks.look() == ["three"]
    content.body = b"two\n"
    assert looks.look() == ["(1 line of the last look left)"]
    content.body = b""
    assert looks.look() == ["(1 line of the last look left)"]
    assert looks.said().startswith("nothing new in http 127.0.0.1 since ")


def test_a_path_selects_what_of_the_json_is_compared(web: tuple[Etag, Server], tmp_path: Path) -> None:
    content, server = web
    status = Looks(page("http", server, json_path="status.text"), tmp_path)
    names = Looks(page("http", server, json_path="incidents[*].name"), tmp_path)
    content.body = b'{"status": {"text": "fine"}, "incidents": [], "at": 1}'
    assert status.look() == ["status.text: fine"]
    assert names.said() == "first look at http 127.0.0.1: it was empty"
    content.body = b'{"status": {"text": "fine"}, "incidents": [{"name": "db"}, {"name": "web"}], "at": 2}'
    assert status.look() == []
    assert names.look() == ["db", "web"]
    content.body = b'{"status": {"text": "bad"}, "incidents": [{"name": "web"}], "at": 3}'
    assert status.look() == ["status.text: bad"]
    content.body = b'{"status": {}, "incidents": [{}]}'
    assert status.error() == "its answer has no 'text' on the path status.text"
    assert names.error() == "its answer has no 'name' on the path incidents[*].name"
    content.body = b"<html>"
    assert status.error() == "its answer is not JSON"


def test_a_path_may_begin_with_a_list(web: tuple[Etag, Server], tmp_path: Path) -> None:
    content, server = web
    content.body = b'[{"name": "v2"}, {"name": "v1"}]'
    assert Looks(page("http", server, json_path="[*].name"), tmp_path).look() == ["v2", "v1"]
    assert Looks(page("http", server, json_path="[0].name"), tmp_path).look() == ["[0].name: v2"]


def test_a_change_beyond_the_shown_part_of_a_long_line_is_news(web: tuple[Etag, Server], tmp_path: Path) -> None:
    content, server = web
    looks = Looks(page("http", server), tmp_path)
    content.body = b'{"text": "' + b"x" * 300 + b'", "version": 1}'
    assert len(looks.look()) == 1
    assert looks.look() == []
    content.body = content.body.replace(b"1}", b"2}")
    assert looks.look() == ['{"text": "' + "x" * 239 + "…"]


def test_a_long_page_is_cut_at_the_limit_of_the_prompt_and_says_so(web: tuple[Etag, Server], tmp_path: Path) -> None:
    content, server = web
    content.body = "\n".join(f"line {number} " + "x" * 300 for number in range(100)).encode()
    lines = Looks(page("http", server), tmp_path).look()
    assert len("\n".join(lines)) <= 16 * 1024
    assert lines[-1] == f"(and {100 - len(lines) + 1} more lines, which did not fit)"


def test_a_page_with_too_many_lines_is_an_error(web: tuple[Etag, Server], tmp_path: Path) -> None:
    content, server = web
    content.body = b"\n".join(b"line %d" % number for number in range(2001))
    assert Looks(page("http", server), tmp_path).error().startswith("it has more than 2,000 lines; ")


def test_errors_of_a_page_show_no_part_of_its_address(tmp_path: Path) -> None:
    with Server([reply(b"", 401)]) as server:
        assert Looks(page("http", server, "/secret-path"), tmp_path).error() == "it answered 401"
    with Server([reply(b"x" * (4 * 1024 * 1024 + 1))]) as server:
        assert Looks(page("http", server), tmp_path).error() == "its answer is larger than 4096 KiB"


def test_a_redirect_to_another_origin_gets_no_header_and_three_are_followed(tmp_path: Path) -> None:
    with Server([reply(b"here")]) as last, Server([]) as first:
        first.script += [
            reply(b"", 302, Location="/a"),
            reply(b"", 301, Location="/b"),
            reply(b"", 307, Location=f"{last.url}/c"),
        ]
        assert Looks(page("http", first, headers={"X-Key": Secret("k4711")}), tmp_path).look() == ["here"]
        assert [request.headers.get("x-key") for request in first.requests] == ["k4711"] * 3
        assert [request.headers.get("x-key") for request in last.requests] == [None]
    with Server([reply(b"", 302, Location="/again")]) as circle:
        assert Looks(page("http", circle), tmp_path).error() == "it redirects more than 3 times"
        assert len(circle.requests) == 4


def test_a_redirect_within_the_origin_keeps_the_login_of_the_address(tmp_path: Path) -> None:
    with Server([]) as server:
        anna, bob = (server.url.replace("http://", f"http://{login}@") for login in ("anna:pass-4711", "bob:pass-4712"))
        server.script += [reply(b"", 302, Location=f"{server.url}/new"), reply(b"", 302, Location=bob), reply(b"here")]
        assert Looks(replace(page("http", server), place=Secret(anna)), tmp_path).look() == ["here"]
        logins = [f"Basic {b64encode(login).decode()}" for login in (b"anna:pass-4711", b"anna:pass-4711", b"bob:pass-4712")]
        assert [request.headers.get("authorization") for request in server.requests] == logins


def test_a_page_does_not_lead_to_a_private_address_of_another_host(tmp_path: Path) -> None:
    def resolve(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(AF_INET, SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    with Server([reply(b"inside")]) as inner, Server([reply(b"", 302, Location=f"{inner.url}/")]) as outer:
        source = replace(page("http", outer), place=Secret(outer.url.replace("127.0.0.1", "page.example")))
        assert Looks(source, tmp_path, resolve=resolve).error() == "it redirects to a private address of another host"
        assert inner.requests == []


RSS = b"""<?xml version="1.0"?><rss version="2.0"><channel><title>News</title>%s</channel></rss>"""
ATOM = b"""<feed xmlns="http://www.w3.org/2005/Atom"><title>News</title>%s</feed>"""


@pytest.mark.parametrize(
    ("feed", "entry"),
    [
        (RSS, b"<item><title>Release %d</title><link>https://example.org/%d</link><guid>%d</guid></item>"),
        (
            ATOM,
            b'<entry><title>Release %d</title><link href="https://example.org/%d"/><link rel="edit" href="x"/><id>%d</id></entry>',
        ),
    ],
    ids=["rss", "atom"],
)
def test_a_feed_shows_entries_that_are_new_since_the_first_look(
    web: tuple[Etag, Server], tmp_path: Path, feed: bytes, entry: bytes
) -> None:
    content, server = web
    looks = Looks(page("rss", server), tmp_path)

    def publish(*numbers: int) -> None:
        content.body = feed % b"".join(entry % (number, number, number) for number in numbers)

    publish(1, 2)
    assert looks.said() == "first look at rss 127.0.0.1: its entries (2) are seen"
    assert looks.look() == []
    publish(3, 2, 1)
    assert looks.look(seen=False) == looks.look() == ["Release 3 https://example.org/3"]
    publish(4, 3)
    assert looks.look() == ["Release 4 https://example.org/4"]
    publish(1, 4)  # an entry that had left the feed
    assert looks.look() == []
    content.body = b"<html></html>"
    assert looks.error() == "it is not a feed, but html"
    content.body = b"no xml"
    assert looks.error().startswith("it is not a feed (syntax error")


def test_all_entries_of_a_feed_are_compared_in_whatever_order_or_it_is_refused(web: tuple[Etag, Server], tmp_path: Path) -> None:
    content, server = web
    looks = Looks(page("rss", server), tmp_path)

    def publish(count: int) -> None:
        content.body = RSS % b"".join(b"<item><title>Release %d</title></item>" % number for number in range(count))

    publish(1999)
    assert looks.said() == "first look at rss 127.0.0.1: its entries (1999) are seen"
    publish(2000)
    assert looks.look() == ["Release 1999"]
    publish(2001)
    assert looks.error() == "it has more than 2,000 entries; print the newest ones with a command"


def test_an_entry_of_a_feed_without_title_and_link_is_shown_by_its_id_and_without_one_never(
    web: tuple[Etag, Server], tmp_path: Path
) -> None:
    content, server = web
    looks = Looks(page("rss", server), tmp_path)
    content.body = RSS % b""
    looks.look()
    content.body = RSS % b"<item><description>a</description></item>"
    assert looks.look() == []
    content.body = RSS % b"<item><guid>tag:4711</guid></item><item><description>a</description></item>"
    assert looks.look() == ["tag:4711"]


def test_a_feed_may_name_characters_but_not_declare_text_that_grows(web: tuple[Etag, Server], tmp_path: Path) -> None:
    content, server = web
    looks = Looks(page("rss", server), tmp_path)
    item = RSS % b"<item><title>a&x;b</title></item>"
    for declared in (b"x" * 21, b"&y;&y;"):
        content.body = item.replace(b"?>", b'?><!DOCTYPE rss [<!ENTITY y "yy"><!ENTITY x "%s">]>' % declared, 1)
        assert looks.error() == "it is not a feed (it declares the entity x, which may make it much larger)"
    content.body = RSS % b""
    looks.look()
    content.body = item.replace(b"?>", b'?><!DOCTYPE rss [<!ENTITY x "&#233;">]>', 1)
    assert looks.look() == ["a\xe9b"]


# --- repositories -----------------------------------------------------------------------------------------------------


@dataclass
class Repository:
    """A git repository in a folder."""

    folder: Path

    def git(self, *argv: str) -> str:
        who = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "Ann", "GIT_COMMITTER_NAME": "Ann"}
        mail = {"GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_EMAIL": "a@example.org"}
        run = subprocess.run(
            ["git", "-C", self.folder, *argv],
            env=os.environ | who | mail,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        return run.stdout

    def commit(self, *titles: str) -> None:
        for title in titles:
            self.git("commit", "--quiet", "--allow-empty", "-m", title)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "repository")
    made.folder.mkdir()
    made.git("init", "--quiet", "--initial-branch=main")
    made.commit("first")
    return made


def titles(lines: list[str]) -> list[str]:
    """The lines without the short hashes of commits."""
    return [line.partition(" ")[2] for line in lines]


@pytest.mark.parametrize("is_remote", [False, True], ids=["folder", "URL"])
def test_a_repository_shows_the_commits_since_the_last_look(repository: Repository, tmp_path: Path, *, is_remote: bool) -> None:
    address = f"file://{repository.folder}" if is_remote else "repository"
    looks = Looks(Source("git", "git x", "same", Secret(address)), tmp_path)
    assert looks.said().endswith("are seen")
    assert looks.look() == []
    repository.commit("second", "third")
    assert titles(looks.look(seen=False)) == titles(looks.look()) == ["Ann: third", "Ann: second"]
    assert looks.look() == []
    repository.git("reset", "--quiet", "--hard", "HEAD~2")
    repository.commit("other")
    assert titles(looks.look()) == ["Ann: other"]
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    assert [line[:25] for line in looks.look()] == ["the branch was set back to"[:25]]


def test_old_commits_are_shown_after_a_server_has_deleted_that_of_the_last_look(repository: Repository, tmp_path: Path) -> None:
    looks = Looks(Source("git", "git x", "same", Secret(f"file://{repository.folder}")), tmp_path)
    repository.commit("second")
    looks.look()
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    repository.commit("other")
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "--quiet", "--prune=now")
    *news, last = looks.look()
    assert titles(news) == ["Ann: other", "Ann: first"]
    assert last.endswith("is not among these: the history is longer, or rewritten)")


def test_a_repository_with_many_commits_says_how_many_are_not_listed(repository: Repository, tmp_path: Path) -> None:
    looks = Looks(Source("git", "git x", "same", Secret("repository")), tmp_path)
    looks.look()
    stream = "".join(
        f"commit refs/heads/main\ncommitter Ann <a@example.org> {number} +0000\ndata 4\nmany\n"
        + ("from refs/heads/main^0\n" if number == 1 else "")
        for number in range(1, 71)
    )
    subprocess.run(
        ["git", "-C", repository.folder, "fast-import", "--quiet"], input=stream, text=True, check=True, timeout=PATIENCE
    )
    news = looks.look()
    assert (len(news), news[-1]) == (51, "(and 20 older commits)")


def test_a_branch_that_is_missing_and_a_server_with_a_password_are_errors_without_it(
    repository: Repository, tmp_path: Path
) -> None:
    source = Source("git", "git x", "same", Secret("repository"), branch="nope")
    assert Looks(source, tmp_path).error() == "it has no branch nope"
    with Server([reply(b"", 401, WWW_Authenticate='Basic realm="x"')]) as server:
        address = server.url.replace("http://", "http://anna:pass-4711@") + "/repository.git"
        error = Looks(Source("git", "git x", "same", Secret(address)), tmp_path).error()
        assert "pass-4711" not in error
        assert error.startswith("exit code 128: ")


def test_git_runs_no_program_that_the_settings_of_a_repository_name(repository: Repository, tmp_path: Path) -> None:
    """An agent may write to its workspace, but the look runs with the rights of the daemon."""
    in_workspace, in_source = tmp_path / "in-workspace", tmp_path / "in-source"
    for name, value in {
        "protocol.ext.allow": "always",
        f"url.ext::touch {in_workspace}.insteadOf": "heartbeatd://repository",
        "remote.origin.url": f"ext::touch {in_source}",
        "remote.origin.promisor": "true",
        "extensions.partialClone": "origin",
    }.items():
        repository.git("config", name, value)
    assert Looks(Source("git", "git x", "same", Secret("http://127.0.0.1:9/x")), repository.folder).error()
    local = Looks(Source("git", "git x", "same", Secret("repository")), tmp_path)
    local.look()
    first = repository.git("rev-parse", "HEAD").strip()
    repository.commit("second")
    (repository.folder / ".git/objects" / first[:2] / first[2:]).unlink()  # git fetches it from the remote
    assert local.error()
    assert (in_workspace.exists(), in_source.exists()) == (False, False)


@pytest.mark.parametrize(("login", "sent"), [("anna:pa%24s-4711", "anna:pa$s-4711"), ("token-4711", "token-4711:")])
def test_the_login_of_a_repository_is_no_argument_of_any_process(tmp_path: Path, login: str, sent: str) -> None:
    """All users of a machine can read the arguments of its processes."""
    arguments: list[bytes] = []

    def answer(connection: Any, over: Any) -> None:
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                arguments.append(process.read_bytes())
        is_known = "authorization" in server.requests[-1].headers
        reply(b"", 404 if is_known else 401, WWW_Authenticate='Basic realm="x"')(connection, over)

    with Server([answer]) as server:
        address = server.url.replace("http://", f"http://{login}@") + "/repository.git"
        assert Looks(Source("git", "git x", "same", Secret(address)), tmp_path).error()
        authorization = server.requests[-1].headers["authorization"]
    assert authorization == f"Basic {b64encode(sent.encode()).decode()}"
    assert [each for each in arguments if b"git-remote" in each and b"-4711" in each] == []


# --- calendars --------------------------------------------------------------------------------------------------------

ICS = """\
BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//example//EN
{events}
END:VCALENDAR
"""
EVENT = "BEGIN:VEVENT\nUID:{uid}\nDTSTAMP:20260101T000000Z\n{keys}\nEND:VEVENT"


def event(uid: str, *keys: str) -> str:
    return EVENT.format(uid=uid, keys="\n".join(keys))


def write_calendar(folder: Path, *events: str) -> None:
    (folder / "home.ics").write_text(ICS.format(events="\n".join(events)).replace("\n", "\r\n"), "utf-8")


CALENDAR = Source("calendar", "calendar home.ics", "same", Secret("home.ics"))


def test_a_calendar_shows_each_event_once_before_it_begins_and_again_if_it_is_changed(tmp_path: Path) -> None:
    looks = Looks(CALENDAR, tmp_path)
    past, far = event("1", "DTSTART:20260302T070000Z", "SUMMARY:past"), event("2", "DTSTART:20260304T090000Z", "SUMMARY:far")
    off = event("5", "DTSTART:20260302T120000Z", "STATUS:CANCELLED", "SUMMARY:Off")
    dentist = ("DTSTART;TZID=Europe/Berlin:20260302T150000", "SUMMARY:Dentist", "LOCATION:Main St 1")
    write_calendar(tmp_path, past, far, off, event("3", *dentist), event("4", "DTSTART;VALUE=DATE:20260303", "SUMMARY:Birthday"))
    expected = ["2026-03-02 15:00 Dentist (Main St 1)", "2026-03-03 (all day) Birthday"]
    assert looks.look(seen=False) == looks.look() == expected
    assert looks.look() == []
    write_calendar(tmp_path, event("3", "DTSTART;TZID=Europe/Berlin:20260302T160000", "SUMMARY:Dentist"))
    assert looks.look() == ["changed: 2026-03-02 16:00 Dentist", "moved or cancelled: 2026-03-03 (all day) Birthday"]
    looks.now = datetime(2026, 3, 2, 16, tzinfo=UTC)
    assert looks.look() == []  # it has begun


def test_an_event_is_not_cancelled_when_a_look_comes_in_the_minute_in_which_it_begins(tmp_path: Path) -> None:
    write_calendar(tmp_path, event("1", "DTSTART:20260302T090000Z", "SUMMARY:Call"))
    looks = Looks(CALENDAR, tmp_path)
    assert looks.look() == ["2026-03-02 10:00 Call"]
    looks.now = datetime(2026, 3, 2, 9, 0, 1, tzinfo=UTC)
    assert looks.look() == []


def test_a_whole_day_and_a_time_without_a_zone_are_local(tmp_path: Path) -> None:
    """In 15 hours it is midnight in Berlin."""
    late = event("2", "DTSTART:20260302T233000", "SUMMARY:Late")
    write_calendar(tmp_path, event("1", "DTSTART;VALUE=DATE:20260303", "SUMMARY:Birthday"), late)
    looks = Looks(replace(CALENDAR, ahead=timedelta(hours=15)), tmp_path)
    assert looks.look() == ["2026-03-02 23:30 Late", "2026-03-03 (all day) Birthday"]


def test_a_repeated_event_keeps_its_local_time_and_its_exceptions(tmp_path: Path) -> None:
    weekly = event(
        "1",
        "DTSTART;TZID=Europe/Berlin:20260105T090000",
        "RRULE:FREQ=WEEKLY;UNTIL=20260501",
        "RRULE:FREQ=WEEKLY;BYDAY=WE;COUNT=12",
        "EXDATE;TZID=Europe/Berlin:20260413T090000",
        "EXDATE;TZID=Europe/Berlin:20260330T090000",
        "SUMMARY:Team",
    )
    moved = event("1", "RECURRENCE-ID;TZID=Europe/Berlin:20260406T090000", "DTSTART:20260407T100000Z", "SUMMARY:Team later")
    other = event("2", "DTSTART;TZID=Europe/Berlin:20260406T090000", "SUMMARY:Other")  # when the first one would have been
    concert = ("DTSTART;TZID=Europe/Berlin:20260325T180000", "RDATE;TZID=Europe/Berlin:20260327T180000", "SUMMARY:Concert")
    begun, last = event("4", "DTSTART:20260322T000000Z", "SUMMARY:Begun"), event("5", "DTSTART:20260421T000000Z", "SUMMARY:Last")
    write_calendar(tmp_path, weekly, moved, other, event("3", *concert), begun, last)
    looks = Looks(replace(CALENDAR, ahead=timedelta(days=30)), tmp_path, now=datetime(2026, 3, 22, tzinfo=UTC))
    assert looks.look() == [
        "2026-03-23 09:00 Team",
        "2026-03-25 09:00 Team",
        "2026-03-25 18:00 Concert",
        "2026-03-27 18:00 Concert",
        "2026-04-06 09:00 Other",
        "2026-04-07 12:00 Team later",
        "2026-04-20 09:00 Team",
        "2026-04-21 02:00 Last",
    ]


def test_one_date_of_a_repeated_event_that_is_changed_is_not_cancelled(tmp_path: Path) -> None:
    weekly = event("1", "DTSTART;TZID=Europe/Berlin:20260105T150000", "RRULE:FREQ=WEEKLY", "SUMMARY:Team")
    days = event("2", "DTSTART;VALUE=DATE:20260105", "RRULE:FREQ=DAILY", "SUMMARY:On call")
    write_calendar(tmp_path, weekly, days)
    looks = Looks(CALENDAR, tmp_path)
    assert looks.look() == ["2026-03-02 15:00 Team", "2026-03-03 (all day) On call"]
    date = ("RECURRENCE-ID;TZID=Europe/Berlin:20260302T150000", "DTSTART;TZID=Europe/Berlin:20260302T160000", "SUMMARY:Team")
    day = ("RECURRENCE-ID;VALUE=DATE:20260303", "DTSTART;VALUE=DATE:20260303", "SUMMARY:Free")
    write_calendar(tmp_path, weekly, days, event("1", *date), event("2", *day))
    assert looks.look() == ["changed: 2026-03-02 16:00 Team", "changed: 2026-03-03 (all day) Free"]


def test_a_moved_event_of_a_series_is_changed_also_in_the_hour_that_the_clocks_repeat(tmp_path: Path) -> None:
    """In Berlin, the clocks go back on 25 October 2026 at 03:00."""
    series = event("1", "DTSTART;TZID=Europe/Berlin:20261024T023000", "RRULE:FREQ=DAILY", "SUMMARY:Backup")
    moved = event("1", "RECURRENCE-ID;TZID=Europe/Berlin:20261025T023000", "DTSTART:20261025T090000Z", "SUMMARY:Backup")
    looks = Looks(CALENDAR, tmp_path, now=datetime(2026, 10, 24, 12, tzinfo=UTC))
    write_calendar(tmp_path, series)
    assert looks.look() == ["2026-10-25 02:30 Backup"]
    write_calendar(tmp_path, series, moved)
    assert looks.look() == ["changed: 2026-10-25 10:00 Backup"]


def test_two_calendars_may_each_define_a_time_zone_of_the_same_name(tmp_path: Path) -> None:
    """Exchange names a zone of its own `Customized Time Zone` in whichever calendar."""
    for folder, offset, expected in (("a", "+0100", "15:00"), ("b", "-0300", "19:00")):
        (tmp_path / folder).mkdir()
        standard = f"BEGIN:STANDARD\nDTSTART:16010101T000000\nTZOFFSETFROM:{offset}\nTZOFFSETTO:{offset}\nEND:STANDARD"
        zone = f"BEGIN:VTIMEZONE\nTZID:Customized Time Zone\n{standard}\nEND:VTIMEZONE"
        write_calendar(tmp_path / folder, zone, event("1", "DTSTART;TZID=Customized Time Zone:20260302T150000", "SUMMARY:Call"))
        assert Looks(CALENDAR, tmp_path / folder).look() == [f"2026-03-02 {expected} Call"]


def test_events_without_an_id_are_all_shown_each_once(tmp_path: Path) -> None:
    events = (event("x", f"DTSTART:20260302T{hour}0000Z", f"SUMMARY:at {hour}") for hour in (10, 12))
    write_calendar(tmp_path, *(each.replace("UID:x\n", "") for each in events))
    looks = Looks(CALENDAR, tmp_path)
    assert looks.look() == ["2026-03-02 11:00 at 10", "2026-03-02 13:00 at 12"]
    assert looks.look() == []


def test_an_event_that_is_repeated_until_the_last_day_of_all_is_shown(tmp_path: Path) -> None:
    keys = ("DTSTART;TZID=Europe/Berlin:20260105T090000", "RRULE:FREQ=DAILY;UNTIL=99991231T235959Z", "SUMMARY:Team")
    write_calendar(tmp_path, event("1", *keys))
    assert Looks(CALENDAR, tmp_path).look() == ["2026-03-03 09:00 Team"]


EACH_MINUTE = f"BYHOUR={','.join(map(str, range(24)))};BYMINUTE={','.join(map(str, range(60)))}"


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        (["DTSTART:20260302T090000Z", "RRULE:FREQ=DAILY;INTERVAL=0"], "the event x is repeated with an interval below 1"),
        (["DTSTART:19700302T090000Z", f"RRULE:FREQ=DAILY;{EACH_MINUTE}"], "the event x is repeated more than 200,000 times"),
        (
            ["DTSTART:20260302T090000Z", "DTSTART:20260302T100000Z"],
            "it is not a valid calendar ('list' object has no attribute 'dt')",
        ),
    ],
    ids=["never ends", "too often", "two beginnings"],
)
def test_an_event_that_cannot_be_listed_is_an_error_soon(tmp_path: Path, keys: list[str], error: str) -> None:
    write_calendar(tmp_path, event("1", *keys, "SUMMARY:x"))
    assert Looks(CALENDAR, tmp_path).error() == error


def test_a_calendar_is_read_from_a_url(web: tuple[Etag, Server], tmp_path: Path) -> None:
    content, server = web
    content.body = ICS.format(events=event("1", "DTSTART:20260302T090000Z", "SUMMARY:Call")).encode()
    content.body += ICS.format(events=event("2", "DTSTART:20260302T100000Z", "SUMMARY:Lunch")).encode()
    assert Looks(page("calendar", server), tmp_path).look() == ["2026-03-02 10:00 Call", "2026-03-02 11:00 Lunch"]
    content.body = b"<html></html>"
    assert Looks(page("calendar", server), tmp_path).error().startswith("it is not a calendar")
    content.body = ICS.format(events=event("1", "DTSTART:20260302T090000Z", "RRULE:FREQ=SECONDLY", "SUMMARY:x")).encode()
    assert Looks(page("calendar", server), tmp_path).error() == "the event x is repeated more than hourly"
    content.body = ICS.format(events=event("1", "DTSTART:20260302T090000Z", "RRULE:FREQ=HOURLY", "SUMMARY:x")).encode()
    often = Looks(page("calendar", server, ahead=timedelta(days=20)), tmp_path)
    assert often.error() == "more than 200 events begin within this time; write a shorter ahead"
    assert Looks(replace(CALENDAR, place=Secret("nope.ics")), tmp_path).error() == "No such file or directory"


def test_a_calendar_that_its_parser_stumbles_over_is_an_error_of_the_source(tmp_path: Path) -> None:
    zone = (
        "BEGIN:VTIMEZONE\nTZID:Own\nTZID:Other\nBEGIN:STANDARD\nDTSTART:20071104T020000\nTZOFFSETFROM:-0400\nTZOFFSETTO:-0500\n"
    )
    write_calendar(tmp_path, f"{zone}END:STANDARD\nEND:VTIMEZONE")
    assert Looks(CALENDAR, tmp_path).error().startswith("it is not a calendar (")


# --- files and disks --------------------------------------------------------------------------------------------------


def test_files_that_are_new_or_changed_are_shown(tmp_path: Path) -> None:
    looks = Looks(Source("files", "files inbox/**/*.txt", "same", "inbox/**/*.txt"), tmp_path)
    deep = tmp_path / "inbox/deep"
    deep.mkdir(parents=True)
    (deep / "old.txt").write_text("old")
    (deep / "link.txt").symlink_to("nowhere")
    assert looks.said() == "first look at files inbox/**/*.txt: 1 file, none new"
    assert looks.look() == []
    (tmp_path / "inbox/a.txt").write_text("new")
    (deep / "old.txt").write_text("other")
    (deep / "c.pdf").write_text("no")
    expected = ["new: inbox/a.txt (3 bytes)", "changed: inbox/deep/old.txt (5 bytes)"]
    assert looks.look(seen=False) == looks.look() == expected
    os.utime(tmp_path / "inbox/a.txt", ns=(1, 1))  # written again, with as many bytes
    assert looks.look() == ["changed: inbox/a.txt (3 bytes)"]
    (tmp_path / "inbox/a.txt").unlink()
    assert looks.look() == []


def test_files_whose_names_differ_only_in_bytes_that_are_no_utf8_are_two(tmp_path: Path) -> None:
    looks = Looks(Source("files", "files *.txt", "same", "*.txt"), tmp_path)
    looks.look()
    for name, text in {b"a\xe4.txt": "1", b"a\xf6.txt": "22"}.items():
        (tmp_path / os.fsdecode(name)).write_text(text)
    assert len(looks.look()) == 2
    assert looks.look() == []


def test_links_that_lead_in_a_circle_end_and_a_linked_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for name, to in {"circle": ".", "second": "circle", "linked": "../elsewhere", ".hidden": "../elsewhere"}.items():
        (inbox / name).symlink_to(to)
    looks = [Looks(Source("files", "files x", "same", pattern), tmp_path) for pattern in ("inbox/**/*.pdf", f"{inbox}/**")]
    for each in looks:
        each.look()
    (tmp_path / "elsewhere/a.pdf").touch()
    assert [each.look() for each in looks] == [
        ["new: inbox/linked/a.pdf (0 bytes)"],
        [f"new: {inbox}/linked/a.pdf (0 bytes)"],
    ]


def test_a_pattern_with_too_many_files_is_an_error(tmp_path: Path) -> None:
    for number in range(2001):
        (tmp_path / f"{number}.txt").touch()
    looks = Looks(Source("files", "files *.txt", "same", "*.txt"), tmp_path)
    assert looks.error() == "the pattern matches more than 2,000 files; write a narrower one"


def test_a_full_disk_is_shown_at_the_limit_at_a_further_level_and_when_it_is_over(tmp_path: Path) -> None:
    source = Source("disk", "disk 90%", "same", "90%", limit=90, paths=("/data",))
    state: Mapping[str, Any] | None = None

    def at(used: int) -> list[str]:
        nonlocal state
        found = look_at_disks(Look(source, state, tmp_path, NOW, BERLIN, 0), lambda _: used)
        state = found.state
        return [*found.lines]

    full, over = "/data is {} % full", "/data is below 90 % again: 87 %"
    shown = [at(used) for used in (80, 90, 92, 88, 91, 95, 91, 95, 87, 80)]
    assert shown == [[], [full.format(90)], [], [], [], [full.format(95)], [], [], [over], []]


def test_a_second_full_disk_is_news_and_so_is_its_end(tmp_path: Path) -> None:
    source = Source("disk", "disk 90%", "same", "90%", limit=90, paths=("/data", "/srv"))
    shown, state = [], None
    for used in (50, 50, 91, 50):
        found = look_at_disks(Look(source, state, tmp_path, NOW, BERLIN, 0), {"/data": 97, "/srv": used}.__getitem__)
        state = found.state
        shown.append([*found.lines])
    full = "/data is 97 % full"
    assert shown == [[full], [], [full, "/srv is 91 % full"], [full, "/srv is below 90 % again: 50 %"]]


def test_the_disks_of_this_machine_are_found_and_measured(tmp_path: Path) -> None:
    looks = Looks(Source("disk", "disk 1%", "same", "1%", limit=1), tmp_path)
    sight = looks.sight()
    assert sight.text.startswith("/ is ") or "first look" in sight.text
    assert json.loads(sight.state)["seen"].keys() == {"levels"}
    missing = Looks(Source("disk", "disk 1%", "same", "1%", limit=1, paths=("/nowhere",)), tmp_path)
    assert missing.error() == "/nowhere: No such file or directory"


def test_a_disk_whose_folder_cannot_be_reached_is_left_out() -> None:
    mounts = f"/dev/a / ext4 rw 0 0\n/dev/b /{'x' * 300} ext4 rw 0 0\n/dev/c /tmp\\040x ext4 rw 0 0\n/dev/d /proc ext4 rw 0 0\n"
    mounts += "/dev/d /dev ext4 rw 0 0\n/dev/e /usr ext4 ro,relatime 0 0\n"  # a second place, and a disk that nobody can fill
    assert folders_of_disks(mounts) == ["/", "/proc"]


# --- state ------------------------------------------------------------------------------------------------------------


def test_a_source_with_another_config_starts_anew(tmp_path: Path) -> None:
    looks = Looks(Source("files", "files *.txt", "one", "*.txt"), tmp_path)
    looks.look()
    looks.source = Source("files", "files *.pdf", "two", "*.pdf")
    (tmp_path / "a.pdf").touch()
    assert looks.said() == "first look at files *.pdf: 1 file, none new"
