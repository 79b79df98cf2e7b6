"""Login and logout on the status page, and requests that other sites, old cookies and limited tokens must not get through."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from config_file import complaints
from page_user import PageUser
from web_daemon import CONFIG, TOKENS, WebDaemon

from heartbeatd.secret import Secret
from scheduler import __version__
from scheduler.web.page.page_sessions import MAX_AGE, MAX_ENDED, Sessions, cookie_name, is_own_url
from scheduler.web.page.rendering import PAGE_HEADERS

OPEN = CONFIG.replace("server: {", "server: {page: open, ")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    with WebDaemon(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture
def user(daemon: WebDaemon) -> PageUser:
    found = PageUser(daemon)
    assert found.log_in(TOKENS["chief"]).status == 303
    return found


def refused_tokens(daemon: WebDaemon) -> float:
    """The counter of refused tokens."""
    (value,) = re.findall(rb"^heartbeatd_http_tokens_refused_total (\S+)$", daemon.get("/metrics").body, re.MULTILINE)
    return float(value)


def is_paused(daemon: WebDaemon) -> bool:
    return daemon.rows()["paused"] > 0


def test_without_a_login_every_page_leads_to_the_login(daemon: WebDaemon) -> None:
    stranger = PageUser(daemon)
    for path in ("/", "/?q=ops", "/page/cards/ops", "/page/nothing", "/page/outbox"):
        answer = stranger.get(path)
        assert (answer.status, answer.headers["location"].partition("?")[0]) == (303, "/page/login"), path
        assert "ops" not in answer.body
    login = stranger.get("/page/login")
    assert "ops" not in login.text
    assert __version__ not in login.text
    assert daemon.settings.host not in login.text.split()


def test_a_login_leads_back_to_the_page_that_was_asked_for(daemon: WebDaemon) -> None:
    stranger = PageUser(daemon)
    login = stranger.get("/?q=web&show=quiet").headers["location"]
    answer = stranger.post(login, {"token": TOKENS["chief"]})
    assert (answer.status, answer.headers["location"]) == (303, "/?q=web&show=quiet")
    assert stranger.get("/page/login").status == 303  # logged in already


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example/", "/\\evil.example", "/api/v1/status", "javascript:alert(1)"]
)
def test_neither_a_login_nor_a_form_leads_to_another_site(target: str, daemon: WebDaemon) -> None:
    assert not is_own_url(target)
    user = PageUser(daemon)
    answer = user.post("/page/login?" + "next=" + target, {"token": TOKENS["chief"]})
    assert (answer.status, answer.headers["location"]) == (303, "/")
    answer = user.post("/page/do/agents/ops/resume", {"form_code": user.get("/").form_code, "next": target})
    assert (answer.status, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize("token", ["", "wrong", TOKENS["chief"] + "x", "\N{PILE OF POO}", "a" * 5000])
def test_a_wrong_token_is_refused_and_counted(token: str, daemon: WebDaemon) -> None:
    stranger = PageUser(daemon)
    before = refused_tokens(daemon)
    answer = stranger.log_in(token)
    assert refused_tokens(daemon) == before + 1
    assert (answer.status, "This token is not valid." in answer.text) == (403, True)
    assert not stranger.cookies
    assert token == "" or token not in answer.body


def test_a_token_that_may_not_read_cannot_log_in(daemon: WebDaemon) -> None:
    answer = PageUser(daemon).log_in(TOKENS["waker"])
    assert (answer.status, answer.cookies) == (403, [])
    assert "Add read to server.tokens.waker.may" in answer.text


def test_the_cookie_is_for_this_site_and_not_for_scripts(daemon: WebDaemon) -> None:
    (cookie,) = PageUser(daemon).log_in(TOKENS["chief"]).cookies
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert TOKENS["chief"] not in cookie


def test_behind_tls_the_cookie_is_secure(daemon: WebDaemon) -> None:
    host = {"Host": "beat.example", "Origin": "https://beat.example"}
    (cookie,) = PageUser(daemon).post("/page/login", {"token": TOKENS["chief"]}, **host).cookies
    assert "; Secure" in cookie


def test_a_login_survives_a_restart(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon:
        user = PageUser(daemon)
        user.log_in(TOKENS["chief"])
        user.log_in(daemon.token)
        daemon.server.stop()
        daemon.server.start()
        user.cookies = {cookie_name(f"127.0.0.1:{daemon.port}"): value for value in user.cookies.values()}
        assert user.get("/").status == 200


def test_after_a_logout_a_copy_of_the_cookie_is_worthless(user: PageUser) -> None:
    copy = dict(user.cookies)
    answer = user.submit("/page/logout")
    assert "Log in" in answer.text
    assert not user.cookies
    user.log_in(TOKENS["chief"])
    user.submit("/page/logout")
    user.cookies = copy
    assert user.get("/").status == 303


def test_a_logout_counts_however_many_there_were_before(daemon: WebDaemon) -> None:
    sessions = Sessions(lambda: daemon.settings, Secret("x" * 43), lambda: daemon.now)
    found = sessions.log_in(TOKENS["chief"])
    assert found is not None
    scope = {"type": "http", "headers": [(b"host", b"a:1"), (b"cookie", f"{cookie_name('a:1')}={found.cookie}".encode())]}
    assert sessions.find(scope) == found
    for number in range(MAX_ENDED):
        sessions.log_out(replace(found, cookie=f"{number}"))
    sessions.log_out(found)
    assert sessions.find(scope) is None


def test_a_token_may_have_the_name_of_that_of_the_command_line(tmp_path: Path) -> None:
    with WebDaemon(tmp_path, CONFIG.replace("chief:", "local:")) as daemon:
        for token in (TOKENS["chief"], daemon.token):
            user = PageUser(daemon)
            user.log_in(token)
            assert user.get("/").status == 200


def test_a_cookie_ends_after_a_week_and_with_its_token(tmp_path: Path) -> None:
    with WebDaemon(tmp_path) as daemon:
        user, other = PageUser(daemon), PageUser(daemon)
        user.log_in(TOKENS["chief"])
        daemon.do(lambda: daemon.world.clock.advance(MAX_AGE - timedelta(minutes=1)))
        other.log_in(TOKENS["chief"])
        assert user.get("/").status == 200
        daemon.do(lambda: daemon.world.clock.advance(timedelta(minutes=1)))
        assert (user.get("/").status, other.get("/").status) == (303, 200)
        daemon.do(lambda: daemon.world.reload(CONFIG.replace(TOKENS["chief"], "another-token-with-enough-bits-0")))
        assert other.get("/").status == 303
        user.log_in("another-token-with-enough-bits-0")
        daemon.do(lambda: daemon.world.clock.advance(-MAX_AGE))  # somebody has set the clock back
        assert user.get("/").status == 303


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: "x" + v, lambda v: v.replace("t:chief", "t:editor"), lambda v: v.replace("t:chief", "l:local"), lambda v: ":::::", lambda v: "t:chief:9:9:", lambda v: "\xff" * 50])  # fmt: skip
def test_a_forged_cookie_is_no_login(change: object, user: PageUser) -> None:
    user.cookies = {name: change(value) for name, value in user.cookies.items()}  # type: ignore[operator]
    assert user.get("/").status == 303


def test_cookies_of_other_programs_on_the_same_host_do_no_harm(user: PageUser) -> None:
    user.cookies |= {"weird[]": '{"a":"b;c"}', "heartbeatd_session_1": "other"}
    assert user.get("/").status == 200


def test_the_events_can_be_followed_with_the_cookie_only_from_the_page(user: PageUser) -> None:
    daemon = user.daemon
    cookie = "; ".join(f"{name}={value}" for name, value in user.cookies.items())
    assert daemon.get("/api/v1/events", Cookie=cookie).status == 200
    assert daemon.send("GET", "/api/v1/events", headers={"Cookie": cookie, "Sec-Fetch-Site": "cross-site"}).status == 403
    assert daemon.get("/api/v1/events").status == 401


def test_the_cookie_opens_nothing_else_of_the_api(user: PageUser) -> None:
    daemon = user.daemon
    cookie = "; ".join(f"{name}={value}" for name, value in user.cookies.items())
    assert daemon.get("/api/v1/status", Cookie=cookie).status == 401
    assert daemon.send("POST", "/api/v1/pause", {}, headers={"Cookie": cookie}).status == 401
    assert daemon.send("POST", "/mcp", {}, headers={"Cookie": cookie}).status == 401


def test_a_form_does_what_the_api_does(user: PageUser) -> None:
    notice = "Log out (chief) agent/ops is paused until resumed"
    answer = user.submit("/page/do/agents/ops/pause", next="/?q=ops")
    assert (answer.status, notice in answer.text) == (200, True)
    assert is_paused(user.daemon)
    assert notice not in user.get("/").text  # it is shown once
    user.submit("/page/do/agents/ops/resume")
    assert not is_paused(user.daemon)


def test_the_error_of_a_form_is_shown_on_the_page_it_came_from(user: PageUser) -> None:
    answer = user.submit("/page/do/agents/ops/pause", next="/?q=ops", until="2001-01-01T00:00:00Z")
    assert "until: this time is in the past" in answer.text
    assert user.submit("/page/do/agents/nobody/pause", next="/").status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": None, "Sec-Fetch-Site": None}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": "application/json"}, 415),
    ],
)  # fmt: skip
def test_a_form_of_another_site_changes_nothing(headers: dict[str, str | None], status: int, user: PageUser) -> None:
    form = {"form_code": user.get("/").form_code}
    for path in ("/page/do/agents/ops/pause", "/page/do/pause", "/page/logout", "/page/login"):
        assert user.post(path, form, **headers).status == status, path
    assert not is_paused(user.daemon)
    assert user.get("/").status == 200


def test_a_form_without_the_code_of_this_login_changes_nothing(user: PageUser) -> None:
    other = PageUser(user.daemon)
    other.log_in(TOKENS["chief"])
    for code in ("", "x", other.get("/").form_code):
        answer = user.post("/page/do/pause", {"form_code": code})
        assert (answer.status, "load the page again" in answer.text) == (403, True)
        assert user.post("/page/do/agents/ops/pause", {"form_code": code}).status == 403
    assert user.post("/page/logout", {"form_code": ""}).status == 403
    assert not is_paused(user.daemon)


def test_a_page_of_another_site_cannot_be_put_around_the_page(user: PageUser) -> None:
    for path in ("/", "/page/login", "/page/nothing"):
        headers = PageUser(user.daemon).get(path).headers if path == "/page/login" else user.get(path).headers
        assert headers["x-frame-options"] == "DENY"
        assert headers["content-security-policy"] == PAGE_HEADERS["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "same-origin"


def test_an_unknown_page_is_an_error_page(user: PageUser) -> None:
    answer = user.get("/page/<script>alert(1)</script>")
    assert (answer.status, "Not found" in answer.text) == (404, True)
    assert not [each for each in answer.elements if each.tag == "script" and "src" not in each.attributes]
    assert user.get("/?nothing=1").status == 400


def test_an_open_page_needs_no_login_on_this_machine(tmp_path: Path) -> None:
    with WebDaemon(tmp_path, OPEN) as daemon:
        user = PageUser(daemon)
        page = user.get("/")
        assert (page.status, "Log out" in page.text) == (200, False)
        assert user.post("/page/do/agents/ops/pause", {"form_code": "guessed"}).status == 403
        user.submit("/page/do/agents/ops/pause", next="/")
        assert is_paused(daemon)
        assert daemon.get("/api/v1/status").status == 401


@pytest.mark.parametrize(
    "headers", [{"Host": "beat.example"}, {"X-Forwarded-For": "10.0.0.9"}, {"Forwarded": "for=10.0.0.9"}, {"Via": "1.1 proxy"}]
)
def test_an_open_page_is_closed_behind_a_proxy(headers: dict[str, str], tmp_path: Path) -> None:
    with WebDaemon(tmp_path, OPEN) as daemon:
        assert PageUser(daemon).get("/", **headers).status == 303


def test_an_open_page_needs_an_address_that_only_this_machine_can_reach(tmp_path: Path) -> None:
    yaml = OPEN.replace("127.0.0.1:0", "0.0.0.0:7857")
    (line,) = complaints(tmp_path, yaml)
    assert line.startswith("config.yaml:2:")
    assert line.endswith("server.page: 0.0.0.0 can be reached from other machines; write login, or listen on 127.0.0.1:7857")
