"""Logs users of the status page in and out: cookies signed with the user's token, and the code that each form must send back.

A cookie holds the name of the token, the time of the login and a signature. The key of the signature is derived from the token,
so a cookie ends when its token is changed or removed, and is still valid after a restart of the daemon. Nothing is stored.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from heartbeatd.secret import Secret
from scheduler.model.settings import Settings
from scheduler.web.api_request import EVERYTHING, Caller, find_caller, known_callers

PAGE_PREFIX = "/page/"
LOGIN_PATH = "/page/login"
MAX_AGE = timedelta(days=7)
MAX_ENDED = 1000  # cookies of users that logged out, kept until the daemon ends
PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
OPEN_CALLER = Caller("page", EVERYTHING, noun="open")


@dataclass(frozen=True, slots=True)
class Session:
    """A user of the page. Each form sends `form_code` back. `cookie` is empty if the page is open to everybody."""

    caller: Caller
    form_code: str
    cookie: str = ""

    def is_form_code(self, sent: str) -> bool:
        """Whether a form came from a page that this user was sent."""
        return hmac.compare_digest(self.form_code.encode(), sent.encode(errors="replace"))


def is_page_path(path: str) -> bool:
    """Whether a path belongs to the status page."""
    return path == "/" or path.startswith(PAGE_PREFIX)


def is_own_url(url: str) -> bool:
    """Whether a URL that a browser sent leads to the status page, and not to another site."""
    return url == "/" or (url.startswith(("/?", PAGE_PREFIX)) and not any(sign in url for sign in "\\\r\n\t"))


class Sessions:
    """Makes, checks and ends the cookies of one daemon. `local` is the token of the command line."""

    def __init__(self, settings: Callable[[], Settings], local: Secret, clock: Callable[[], datetime]) -> None:
        self._settings = settings
        self._local = local
        self._clock = clock
        self._open_code = secrets.token_urlsafe(32)
        self._ended: OrderedDict[str, None] = OrderedDict()

    def log_in(self, token: str) -> Session | None:
        """A new session; None if this is not a valid token."""
        caller = find_caller([b"Bearer " + token.strip().encode()], self._local, self._settings().server.tokens)
        if caller is None:
            return None
        signed = f"{'l' if caller.is_local else 't'}:{caller.name}:{int(self._clock().timestamp())}:{secrets.token_urlsafe(12)}"
        return self._read_cookie(f"{signed}:{_sign(Secret(token.strip()), 'session', signed)}")

    def log_out(self, session: Session) -> None:
        """End a session. A copy of its cookie is refused for as long as this daemon runs."""
        self._ended[session.cookie] = None
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def find(self, scope: Scope) -> Session | None:
        """The session of a request. Without a valid cookie it is None, or the user of a page that is open to everybody."""
        headers = Headers(scope=scope)
        name = cookie_name(headers.get("host", ""))
        for line in headers.getlist("cookie"):
            found = cookie_parser(line).get(name)
            if found is not None and (session := self._read_cookie(found)) is not None:
                return session
        if self._settings().server.page == "open" and _comes_from_this_machine(scope, headers):
            return Session(OPEN_CALLER, self._open_code)
        return None

    def _read_cookie(self, cookie: str) -> Session | None:
        signed, _, signature = cookie.rpartition(":")
        kind, _, rest = signed.partition(":")
        name, _, rest = rest.partition(":")
        began, _, nonce = rest.partition(":")
        if cookie in self._ended or not nonce or not (began.isascii() and began.isdigit() and len(began) < 12):
            return None
        age = self._clock().timestamp() - int(began)
        found = self._find_token(kind, name)
        if found is None or not -MAX_AGE.total_seconds() < age < MAX_AGE.total_seconds():  # the clock may have been set back
            return None
        caller, token = found
        if not hmac.compare_digest(_sign(token, "session", signed).encode(), signature.encode(errors="replace")):
            return None
        return Session(caller, _sign(token, "form", signed), cookie)

    def _find_token(self, kind: str, name: str) -> tuple[Caller, Secret] | None:
        known = known_callers(self._local, self._settings().server.tokens)
        return next((each for each in known if each[0].is_local == (kind == "l") and each[0].name == name), None)


def cookie_name(host: str) -> str:
    """The name of the cookie. Cookies of a host are shared by all its ports, so each daemon needs its own name."""
    port = host.rpartition(":")[2]
    return f"heartbeatd_session_{port if port.isdigit() else 'web'}"


def cookie_header(session: Session | None, host: str, *, is_secure: bool) -> str:
    """The header Set-Cookie for a new session, or (None) the one that deletes the cookie."""
    value, age = (session.cookie, int(MAX_AGE.total_seconds())) if session else ("", 0)
    return f"{cookie_name(host)}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{'; Secure' if is_secure else ''}"


def _sign(token: Secret, purpose: str, text: str) -> str:
    return hmac.new(token.reveal().encode(), f"heartbeatd page {purpose}\n{text}".encode(), "sha256").hexdigest()


def _comes_from_this_machine(scope: Scope, headers: Headers) -> bool:
    """Whether a browser on this machine sent the request directly. A proxy would pass on requests of other machines."""
    client = scope.get("client")
    host = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
    try:
        is_near = client is not None and ip_address(client[0]).is_loopback
    except ValueError:
        return False
    return is_near and host.lower() in LOOPBACK_HOSTS and not any(name in headers for name in PROXY_HEADERS)
