"""A daemon with a few agents and half a day of runs, for tests of the view of one agent."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from page_user import Answer as PageAnswer
from page_user import PageUser
from web_daemon import WebDaemon
from world import AgentCall

CONFIG = """\
timezone: Europe/Berlin
server: {listen: "127.0.0.1:0", tokens: {
  reader: {value: "reader-token-with-enough-bits-in-it", may: [read]},
  waker: {value: "waker-token-with-enough-bits-in-it-1", may: [read, wake]},
  self: {value: "self-token-with-enough-bits-in-it-11", may: [read, edit], agents: [ops]},
  all: {value: "all-token-with-enough-bits-in-it-111", may: [read, wake, operate, edit]}}}
channels: {chat: {kind: command, argv: [send]}}
agents:
  ops:                                    # watches the disk
    runner: {kind: command, argv: [agent]}
    heartbeat:
      interval: 30m                       # twice an hour
      stagger: 0s
      active_hours: "08:00-22:00"
      retries: 0
      deliver: chat
      budget: {runs_per_day: 200}
  web: &web
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}
  copy: *web
  off:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 3h, enabled: false, deliver: log}
cron:
  measure: {every: 6h, command: measure}
"""
TOKENS = {
    "reader": "reader-token-with-enough-bits-in-it",
    "waker": "waker-token-with-enough-bits-in-it-1",
    "self": "self-token-with-enough-bits-in-it-11",
    "all": "all-token-with-enough-bits-in-it-111",
}
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)"> \u202eevil\u202c & "quotes"'


def answer(call: AgentCall) -> str | int:
    """What the agent says: most of the time nothing, twice something, and once it fails."""
    time = f"{call.at:%H:%M}"
    return {"10:00": "The disk /srv is 92 % full.", "11:30": HOSTILE, "12:00": 1}.get(time, "HEARTBEAT_OK")


def start_daemon(folder: Path, hours: float = 6) -> WebDaemon:
    """A daemon of which `hours` have passed. Its first slot is at 09:00 in Berlin, before there is a checklist."""
    daemon = WebDaemon(folder, CONFIG)
    daemon.world.scripts = {"ops": answer}
    daemon.do(lambda: daemon.world.write("ops/HEARTBEAT.md", "- Is the disk full?\n- Are there new mails?\n"))
    daemon.do(lambda: daemon.world.run(hours=hours))
    return daemon


def user_of(daemon: WebDaemon, token: str = "all") -> PageUser:
    """A user who has logged in with this token."""
    user = PageUser(daemon)
    assert user.log_in(TOKENS[token]).status == 303
    return user


def form_fields(answer: PageAnswer, action: str) -> dict[str, str]:
    """What a browser would send for the form with this action: the values of all its fields, without its buttons."""
    parser = _FormParser(action)
    parser.feed(answer.body)
    return parser.fields


class _FormParser(HTMLParser):
    def __init__(self, action: str) -> None:
        super().__init__(convert_charrefs=True)
        self.fields: dict[str, str] = {}
        self._action = action
        self._is_inside = False
        self._name = ""  # of the textarea or select that is open
        self._is_selected = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._is_inside = given["action"] == self._action
        if not self._is_inside:
            return
        if tag == "input" and given.get("type") != "checkbox":
            self.fields[given["name"]] = given.get("value", "")
        elif tag in ("textarea", "select"):
            self._name = given["name"]
            self.fields[self._name] = ""
        elif tag == "option" and "selected" in given:
            self._is_selected = True
            self.fields[self._name] = given.get("value", "")

    def handle_data(self, data: str) -> None:
        if self._name and self.lasttag == "textarea":
            self.fields[self._name] = data.removeprefix("\n").replace("\n", "\r\n")
        elif self._name and self._is_selected:
            self.fields[self._name] = data

    def handle_endtag(self, tag: str) -> None:
        if tag in ("textarea", "select"):
            self._name = ""
        elif tag == "option":
            self._is_selected = False
