"""A user of the status page for tests without a browser: keeps cookies, follows redirects, fills in forms, parses the HTML."""

from __future__ import annotations

import http.client
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode

from patience import PATIENCE
from web_daemon import WebDaemon


@dataclass
class Element:
    """A start tag."""

    tag: str
    attributes: dict[str, str]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@dataclass
class Answer:
    """An answer of the page, with its parsed HTML."""

    status: int
    headers: dict[str, str]
    cookies: list[str]
    body: str

    @property
    def elements(self) -> list[Element]:
        parser = _Parser()
        parser.feed(self.body)
        return parser.elements

    @property
    def text(self) -> str:
        """The text that a reader sees, with single blanks."""
        parser = _Parser()
        parser.feed(self.body)
        return " ".join(" ".join(parser.texts).split())

    @property
    def form_code(self) -> str:
        """The code that forms of this page contain."""
        return next(each.attributes["data-form-code"] for each in self.elements if "data-form-code" in each.attributes)


@dataclass
class PageUser:
    """`PageUser(daemon)`, then `log_in(token)`, `get("/")`, `post("/page/do/...", {...})`."""

    daemon: WebDaemon
    cookies: dict[str, str] = field(default_factory=dict)

    def send(self, method: str, path: str, form: dict[str, str] | None = None, **headers: str | None) -> Answer:
        """One request with the headers that a browser sends; None leaves a header out."""
        host = f"127.0.0.1:{self.daemon.port}"
        sent: dict[str, str | None] = {"Host": host}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if form is not None:
            sent |= {
                "Content-Type": "application/x-www-form-urlencoded",
                "Origin": f"http://{host}",
                "Sec-Fetch-Site": "same-origin",
            }
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        self.daemon.do(lambda: None)
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon.port, timeout=PATIENCE)
        try:
            body = None if form is None else urlencode(form)
            connection.request(method, path, body, {name: value for name, value in sent.items() if value is not None})
            response = connection.getresponse()
            cookies = response.headers.get_all("set-cookie") or []
            self._keep(cookies)
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, cookies, response.read().decode())
        finally:
            connection.close()

    def get(self, path: str, **headers: str | None) -> Answer:
        return self.send("GET", path, **headers)

    def post(self, path: str, form: dict[str, str], **headers: str | None) -> Answer:
        return self.send("POST", path, form, **headers)

    def submit(self, path: str, **fields: str) -> Answer:
        """Submit a form of the page, and follow the redirect."""
        answer = self.post(path, {"form_code": self.get("/").form_code, **fields})
        return self.get(answer.headers["location"]) if answer.status == 303 else answer

    def log_in(self, token: str) -> Answer:
        return self.post("/page/login", {"token": token})

    def _keep(self, cookies: list[str]) -> None:
        for each in cookies:
            name, _, value = each.partition(";")[0].partition("=")
            if value.strip('"'):
                self.cookies[name] = value
            else:
                self.cookies.pop(name, None)
