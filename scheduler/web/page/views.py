"""Turns a function that shows a view, or handles its form, into an endpoint: login, permission, database, errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode

from anyio import to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response

from heartbeat.findings import Severity
from heartbeatd.operations import Concern, Permission
from heartbeatd.questions import ListProblems
from scheduler import __version__
from scheduler.engine.tick_items import Refused
from scheduler.model.settings import Settings
from scheduler.store import problems
from scheduler.store.database import parse_row_id
from scheduler.web.access import authorize
from scheduler.web.api_request import ApiRequest, Caller, HttpHandler, read_body_bytes, wait_for_disconnect
from scheduler.web.app_state import AppState, open_reader
from scheduler.web.http_errors import EXPECTED_ERRORS, HttpError, as_http_error, bad_request
from scheduler.web.page.page_sessions import LOGIN_PATH, Session, is_own_url
from scheduler.web.page.rendering import Page, local_time, render_page
from scheduler.web.perform import ask

NAVIGATION = (
    ("/", "Fleet"),
    ("/page/problems", "Problems"),
    ("/page/jobs", "Jobs"),
    ("/page/outbox", "Outbox"),
    ("/page/plan", "Plan"),
    ("/page/costs", "Costs"),
    ("/page/changes", "Changes"),
    ("/page/doctor", "Doctor"),
)
NOTICE_COOKIE = "heartbeatd_notice"
LONGEST_NOTICE = 1000  # bytes; each may take three in the cookie, of which a browser takes no more than 4 KB
MAX_FORM_BYTES = 512 * 1024  # bytes; a checklist may be sent, and a form may need three bytes for one of the text
Item = TypeVar("Item")
OWN_FIELDS = frozenset(("form_code", "next"))


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a view gets. `api` is for the functions of the API (queries, operations); `db` is a read-only connection.

    `url` is the path with the query, for forms that lead back to it.
    """

    api: ApiRequest
    session: Session
    db: sqlite3.Connection
    settings: Settings
    now: datetime
    url: str

    @property
    def caller(self) -> Caller:
        return self.api.caller

    @property
    def path(self) -> Mapping[str, str]:
        """The variable parts of the path."""
        return self.api.path

    @property
    def query(self) -> Mapping[str, str]:
        return self.api.query

    def choose(self, key: str, choices: Iterable[str], default: str) -> str:
        """The word that the URL has for `key`, which is one of the choices. Raises HttpError."""
        found, known = self.query.get(key, default), tuple(choices)
        if found not in known:
            raise bad_request(f"{key}: write {', '.join(filter(None, known))}")
        return found

    def numbered_page(self, found: Sequence[Item], size: int) -> tuple[Sequence[Item], dict[str, int]]:
        """The items on the page with the number in the URL, and the values that the template needs for the links."""
        count = max(1, -(-len(found) // size))
        number = min(parse_row_id(self.query.get("page", "")) or 1, count)
        return found[(number - 1) * size : number * size], {"page_number": number, "page_count": count}

    def before(self, what: str) -> int | None:
        """The id in the URL before which a list continues; None without it. Raises HttpError if it is no id of `what`."""
        text = self.query.get("before")
        found = None if text is None else parse_row_id(text)
        if text is not None and found is None:
            raise bad_request(f"before: this is not the number of a {what}")
        return found


@dataclass(frozen=True, slots=True)
class FormRequest:
    """What the handler of a form gets: the request, and the fields without those that every form has.

    `problem` is why nothing may be changed: the handler only shows the form again. It is empty if the form may be handled. `gone`
    returns when the browser no longer waits for the answer.
    """

    api: ApiRequest
    session: Session
    fields: Mapping[str, str]
    gone: Callable[[], Awaitable[None]]
    problem: str = ""

    def check(self) -> None:
        """Raises HttpError if the form may not be handled."""
        if self.problem:
            raise HttpError(403, "form_code", self.problem)


@dataclass(frozen=True, slots=True)
class Redirect:
    """Leads the browser to a URL of the page, and shows a sentence there once."""

    url: str
    notice: str = ""
    is_error: bool = False


OTHER_LOGIN = "this form is from another login; load the page again, and send the form again"
KEPT_FORM = "you have logged in again since you opened this form, so nothing was changed; check it, and send it again"
LOGIN_ENDED = (
    "your login has ended, so nothing was changed; log in in another tab, and then load this page again: the browser sends the"
    " form again, and the page shows it with all that you have written"
)
Show = Callable[[PageRequest], Page]
Handle = Callable[[FormRequest], Awaitable[Page | Redirect]]


def view_endpoint(app_state: AppState, show: Show, concern: Concern, parameters: Collection[str] = ()) -> HttpHandler:
    """A view for users that may read what it concerns; others are led to the login. `show` runs in a thread.

    `parameters` are the keys that the query may have.
    """

    async def endpoint(request: Request) -> Response:
        if request.scope["session"] is None:
            return _login_response(request)
        session: Session = request.scope["session"]
        try:
            api = ApiRequest.of(app_state, request)
            api.allow_only(parameters)
            render = partial(_render_view, show, concern, api, session, _url_of(request))
            response = await to_thread.run_sync(render, limiter=app_state.view_limiter)
        except EXPECTED_ERRORS as error:
            return await run_in_threadpool(_error_response, request, app_state, session, error)
        if NOTICE_COOKIE in request.cookies:
            response.delete_cookie(NOTICE_COOKIE, httponly=True, samesite="strict")
        return response

    return endpoint


def _render_view(show: Show, concern: Concern, api: ApiRequest, session: Session, url: str) -> Response:
    authorize(api, "read", concern)
    return render_page(read_page(show, api, session, url), shared_values(api, session, url))


def read_page(show: Show, api: ApiRequest, session: Session, url: str) -> Page:
    """What a view shows now. Blocks."""
    with open_reader(api.app_state) as db:
        return show(PageRequest(api, session, db, api.app_state.settings(), api.app_state.clock(), url))


def form_endpoint(
    app_state: AppState, handle: Handle, may: Permission | None, concern: Concern = Concern.PART, *, keeps: bool = False
) -> HttpHandler:
    """Handles a form of the page, for users with the permission `may` that may access what the form concerns.

    The form must contain the code of the session. An error leads back to `next` and is shown there.
    `keeps`: the handler shows the form again with everything that was sent, even after the login has ended.
    """

    async def endpoint(request: Request) -> Response:
        if request.scope["session"] is None:
            ended = HttpError(403, "login_ended", LOGIN_ENDED)
            return (
                await run_in_threadpool(_error_response, request, app_state, None, ended) if keeps else _login_response(request)
            )
        session: Session = request.scope["session"]
        api = ApiRequest.of(app_state, request)
        target = "/"
        try:
            fields = parse_form(await read_body_bytes(request, MAX_FORM_BYTES))
            sent_code = request.headers.get("x-form-code") or fields.get("form_code", "")
            is_own = session.is_form_code(sent_code)
            if not is_own and not keeps:
                raise HttpError(403, "form_code", OTHER_LOGIN)
            target = fields["next"] if is_own_url(fields.get("next", "")) else "/"
            await run_in_threadpool(authorize, api, may, concern)
            own = {key: value for key, value in fields.items() if key not in OWN_FIELDS}
            result = await handle(
                FormRequest(api, session, own, partial(wait_for_disconnect, request.receive), "" if is_own else KEPT_FORM)
            )
        except (HttpError, Refused) as error:
            if isinstance(error, HttpError) and error.code == "form_code":
                return await run_in_threadpool(_error_response, request, app_state, session, error)
            return redirect_response(Redirect(target, str(error), is_error=True))
        except EXPECTED_ERRORS as error:
            return await run_in_threadpool(_error_response, request, app_state, session, error)
        if isinstance(result, Redirect):
            return redirect_response(Redirect(result.url or target, result.notice, result.is_error))
        return await run_in_threadpool(render_page, result, shared_values(api, session, target))

    return endpoint


def parse_form(sent: bytes) -> dict[str, str]:
    """The fields of a form; of several fields with one name, the last one counts. Raises HttpError."""
    try:
        return dict(parse_qsl(sent.decode("ascii"), keep_blank_values=True, errors="replace", max_num_fields=1000))
    except ValueError as error:
        raise HttpError(400, "bad_request", "this is not the content of a form") from error


def redirect_response(redirect: Redirect) -> Response:
    """The browser loads the URL with GET. The notice is in a cookie, because a URL could be sent by anybody."""
    response = RedirectResponse(redirect.url, 303)
    if redirect.notice:
        kind = "error" if redirect.is_error else "done"
        value = f"{kind}:{quote(redirect.notice.encode(errors='replace')[:LONGEST_NOTICE].decode(errors='ignore'))}"
        response.set_cookie(NOTICE_COOKIE, value, max_age=60, httponly=True, samesite="strict")
    return response


def shared_values(api: ApiRequest, session: Session | None, url: str) -> dict[str, object]:
    """The values that every template has. `new_problems` reads the database, so templates call it in a thread."""
    kind, _, notice = cookie_parser(api.headers.get("cookie", "")).get(NOTICE_COOKIE, "").partition(":")
    return {
        "navigation": NAVIGATION,
        "new_problems": partial(_new_problems, api),
        "session": session,
        "form_code": session.form_code if session else "",
        "may": session.caller.may if session else frozenset(),
        "is_limited": session is not None and session.caller.agents is not None,
        "url": url,
        "here": url.partition("?")[0],
        "notice": unquote(notice)[:LONGEST_NOTICE],
        "notice_is_error": kind == "error",
        "version": __version__,
        "now": api.app_state.clock(),
        "zone": (zone := api.app_state.settings().zone),
        "local_text": partial(local_time, zone=zone),
        "host": api.app_state.settings().host,
    }


def _new_problems(api: ApiRequest) -> list[str]:
    """The severities of the open problems that nobody has acknowledged, the worst first, as far as the caller may see them.

    There are none if they cannot be read: the page of an error has the navigation too. For a token for all agents they are only
    counted, because each page does this.
    """
    try:
        if api.caller.agents is not None:
            listed = ask(api, "list_problems", ListProblems()).problems
            return [each.severity for each in listed if each.state == "open" and not each.acknowledged_at]
        with open_reader(api.app_state) as db:
            counts = problems.count_open(db)
    except EXPECTED_ERRORS:
        return []
    found = [severity for (_, severity, is_known), count in counts.items() if not is_known for _ in range(count)]
    return sorted(found, key=lambda each: -Severity(each).rank)


def _url_of(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _login_response(request: Request) -> Response:
    """Leads to the login, and back to this page after it. htmx follows the header in place of the redirect."""
    url = _url_of(request) if request.method == "GET" and "hx-request" not in request.headers else "/"
    login = f"{LOGIN_PATH}?{urlencode({'next': url})}" if url != "/" else LOGIN_PATH
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={"HX-Redirect": LOGIN_PATH})
    return RedirectResponse(login, 303)


def _error_response(request: Request, app_state: AppState, session: Session | None, error: Exception) -> Response:
    """The error as a page."""
    found = as_http_error(error)
    page = Page("error.html", {"status": found.status, "messages": found.message.splitlines()}, found.status)
    return render_page(page, shared_values(ApiRequest.of(app_state, request), session, _url_of(request)))
