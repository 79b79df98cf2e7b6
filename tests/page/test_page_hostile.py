"""Texts of agents, senders and channels on the status page: markup stays text, control characters are visible, nothing grows without end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from browser import log_in, needs_browser, open_browser, open_page
from page_user import Answer, PageUser
from web_daemon import WebDaemon

from heartbeat.runners import ProcessResult
from scheduler.model.message import DeliveryResult

CANARY = "zq7canary"
HOSTILE = (
    f'{CANARY} \u202egnp.exe\u2066 \u200b\ufeff \x1b[31m \x07 <script>alert(1)</script> "><img src=x onerror=alert(2)> <svg onload=alert(3)> \'><iframe srcdoc="<script>x</script>">'
    " [x](javascript:alert(4)) <a href='javascript:alert(5)'>x</a> </pre></bdi></textarea></title></style><style>*{display:none}</style>"
    " {{ 7*7 }} {% raw %} ${7*7} <!-- --> ]]> &lt;b&gt; hx-on:click=alert(6)"
    ' <form action=https://evil.example><button data-live="ended">send</button></form>'
)
KEY = "<script>alert(7)</script><img src=x onerror=alert(8)>"
TOKEN = "chief-token-with-enough-bits-in-it-1"
YAML = """
server: {listen: "127.0.0.1:0", tokens: {chief: {value: "chief-token-with-enough-bits-in-it-1", may: [read, wake, operate, edit]}}}
channels: {hook: {kind: webhook, url: "https://example.org/hooks/s3cret-canary-0123456789"}, phone: {kind: command, argv: [send]}, away: {kind: command, argv: [send]}}
agents:
  hostile: {runner: {kind: command, argv: [agent], env: {API_KEY: "s3cret-canary-0123456789"}}, heartbeat: {interval: 30m, stagger: 0s, answer: structured, deliver: phone, retries: 0, problems: {after: 1}}}
  long: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: phone}}
  finder: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: phone}}
cron:
  job: {every: 1h, command: measure, deliver: away}
"""
FAILURE = ProcessResult(1, b"", HOSTILE.encode())
ALLOWED_TAGS = frozenset(
    [
        "html",
        "head",
        "meta",
        "title",
        "link",
        "script",
        "body",
        "a",
        "header",
        "nav",
        "ul",
        "ol",
        "li",
        "main",
        "h1",
        "h2",
        "h3",
        "h4",
        "p",
        "div",
        "section",
        "article",
        "form",
        "input",
        "button",
        "label",
        "select",
        "option",
        "textarea",
        "span",
        "small",
        "b",
        "strong",
        "em",
        "code",
        "pre",
        "bdi",
        "del",
        "ins",
        "dl",
        "dt",
        "dd",
        "time",
        "meter",
        "table",
        "caption",
        "thead",
        "tbody",
        "tfoot",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "footer",
        "svg",
        "path",
        "rect",
        "line",
        "circle",
        "text",
        "g",
        "desc",
        "hr",
        "br",
        "fieldset",
        "legend",
        "output",
        "progress",
    ]
)
URL_ATTRIBUTES = ("href", "src", "action", "formaction", "xlink:href", "data-live-url", "hx-get", "hx-post")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    """A daemon whose agents, senders, checklist and channels are all hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    checklist = folder / "agents" / "hostile" / "HEARTBEAT.md"
    checklist.parent.mkdir(parents=True)
    checklist.write_text(f"- look {HOSTILE}\n", "utf-8")
    with WebDaemon(folder, YAML) as running:
        world = running.world
        failing = False
        world.scripts["hostile"] = lambda call: FAILURE if failing else HOSTILE
        world.scripts["long"] = lambda call: HOSTILE * (2500 if call.at.minute else 90)  # 1 MB is refused, 60 kB is kept
        world.scripts["finder"] = lambda call: json.dumps({"findings": [{"key": KEY, "text": HOSTILE, "severity": "warning"}]})
        world.scripts["job"] = lambda call: HOSTILE
        world.send = lambda sent: DeliveryResult("dead" if sent.channel.name == "away" else "delivered", HOSTILE)
        running.do(lambda: world.wake("hostile", HOSTILE, sender=HOSTILE))
        running.do(lambda: world.run(hours=2))
        failing = True
        running.do(lambda: world.run(hours=1))
        running.do(lambda: world.pause(("heartbeat", "long")))
        running.do(lambda: world.wake("long", HOSTILE, sender="bot"))
        yield running


@pytest.fixture(scope="module")
def pages(daemon: WebDaemon) -> dict[str, Answer]:
    """Every view by its URL; and again, with `#` after it, while the config file has a hostile error."""
    found = crawl(daemon)
    daemon.config.write_text(YAML.replace("interval: 30m", "interval: 31 <script>"), "utf-8")
    daemon.post("/-/reload", {}, daemon.token)
    return found | {f"{url}#": answer for url, answer in crawl(daemon).items()}


def crawl(daemon: WebDaemon) -> dict[str, Answer]:
    """Every view that a user can reach by links, a few of each kind."""
    user = PageUser(daemon)
    user.log_in(TOKEN)
    found: dict[str, Answer] = {}
    open_urls = ["/", "/page/cards/hostile", "/page/cards/long"]
    kinds: dict[str, int] = {}
    while open_urls:
        url = open_urls.pop(0)
        kind = re.sub(r"\d+|=[^&]*", "N", url)
        if url in found or kinds.get(kind, 0) >= 3 or url.startswith("/page/static/"):
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
        found[url] = user.get(url)
        links = (each.attributes.get("href", "") for each in found[url].elements if each.tag == "a")
        open_urls += [link.partition("#")[0] for link in links if link.startswith("/")]
    return found


def test_every_view_can_be_reached_and_shown(pages: dict[str, Answer]) -> None:
    assert {url: answer.status for url, answer in pages.items() if answer.status != 200 and not url.endswith("#")} == {}
    assert {answer.status for answer in pages.values()} <= {200, 409}
    assert {pages[url].status for url in ("/", "/page/agents/hostile", "/page/agents/long")} == {200}
    assert "zq7canary" in pages["/"].body


def test_markup_in_texts_stays_text(pages: dict[str, Answer]) -> None:
    for url, answer in pages.items():
        for each in answer.elements:
            place = f"{url}: {each}"[:300]
            assert each.tag in ALLOWED_TAGS, place
            assert not [name for name in each.attributes if name.startswith("on") or name in ("style", "srcdoc")], place
            assert not [name for name in each.attributes if "hx-on" in name], place
            for name in URL_ATTRIBUTES:
                assert re.match(r"$|/|#|\?|[a-z]+$", each.attributes.get(name, "")), place
            if each.tag == "script":
                assert each.attributes["src"].startswith("/page/static/"), place


def test_markup_in_the_key_of_a_problem_stays_text(pages: dict[str, Answer]) -> None:
    assert "&lt;img src=x onerror=alert(8)&gt;" in pages["/page/problems"].body


def test_templates_in_texts_are_not_evaluated(pages: dict[str, Answer]) -> None:
    assert "{{ 7*7 }}" in pages["/page/agents/hostile"].body


@pytest.mark.parametrize("sign", "\u202e\u2066\u200b\ufeff\x1b\x07")
def test_direction_and_control_characters_are_visible(sign: str, pages: dict[str, Answer]) -> None:
    """Only an editor keeps them, because saving must not change the rest of a text."""
    shown = {url: re.sub(r"<textarea.*?</textarea>", "", answer.body, flags=re.DOTALL) for url, answer in pages.items()}
    assert [url for url, body in shown.items() if sign in body or f"&#{ord(sign)};" in body] == []
    assert "\\x202e" in pages["/"].body


def test_a_long_answer_is_cut(pages: dict[str, Answer]) -> None:
    assert len(pages["/"].body) < 30_000
    assert max(len(answer.body) for answer in pages.values()) < 3_000_000


def test_the_security_headers_are_on_every_answer(pages: dict[str, Answer]) -> None:
    for url, answer in pages.items():
        assert answer.headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
            " base-uri 'none'; frame-ancestors 'none'"
        ), url
        assert (answer.headers["x-frame-options"], answer.headers["x-content-type-options"]) == ("DENY", "nosniff"), url


def test_without_a_login_no_text_of_an_agent_can_be_read(daemon: WebDaemon, pages: dict[str, Answer]) -> None:
    stranger = PageUser(daemon)
    static = [
        each.attributes.get("src") or each.attributes["href"] for each in pages["/"].elements if each.tag in ("script", "link")
    ]
    for url in (*pages, *static, "/page/login", "/metrics", "/healthz", "/readyz", "/api/v1/status", "/api/v1/events"):
        answer = stranger.get(url.removesuffix("#"))
        assert CANARY not in answer.body, url
        assert "hostile" not in answer.body or url == "/metrics", url


def test_no_page_shows_a_secret(pages: dict[str, Answer]) -> None:
    assert [url for url, answer in pages.items() if "s3cret-canary" in answer.body or TOKEN in answer.body] == []


def test_static_files_may_be_kept_and_are_what_they_say(pages: dict[str, Answer], daemon: WebDaemon) -> None:
    for each in pages["/"].elements:
        url = each.attributes.get("src") if each.tag == "script" else each.attributes.get("href") if each.tag == "link" else None
        if url:
            answer = PageUser(daemon).get(url)
            assert (answer.status, answer.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
            assert answer.headers["x-content-type-options"] == "nosniff"
    for url in ("/page/static/x/style.css", "/page/static/0000000000000000/style.css", "/page/static/x/..%2f..%2fviews.py"):
        assert PageUser(daemon).get(url).status in (303, 404)  # other paths ask for a login first


@needs_browser
def test_a_browser_runs_nothing_of_a_hostile_text(daemon: WebDaemon) -> None:
    with open_browser() as browser, open_page(browser, daemon.server.url) as page:
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        log_in(page, TOKEN)
        for url in ("/", "/page/agents/hostile"):
            page.goto(url)
            assert page.evaluate("[...document.scripts].filter(each => !each.src).length") == 0
            assert (
                page.evaluate(
                    "[...document.querySelectorAll('*')].filter(e => [...e.attributes].some(a => a.name.startsWith('on'))).length"
                )
                == 0
            )
            assert page.evaluate("document.querySelectorAll('iframe, img, style, object, embed').length") == 0
            assert page.locator("form[action^=http]").count() == 0
        assert dialogs == []
