"""Lists the URLs of the status page: its views, its forms, the login and the static files."""

from __future__ import annotations

import json
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from heartbeatd.answers import Done
from heartbeatd.operations import Concern, Endpoint
from heartbeatd.verbs import VERB_ENDPOINTS
from scheduler.web.api_request import ApiRequest, HttpHandler, parse_sent, read_body_bytes
from scheduler.web.app_state import AppState
from scheduler.web.http_errors import HttpError, bad_request, not_found
from scheduler.web.page import (
    agent_checklist,
    agent_config,
    agent_view,
    daemon_views,
    fleet_view,
    foresight_view,
    jobs_view,
    plan_view,
)
from scheduler.web.page.page_sessions import LOGIN_PATH, Session, Sessions, cookie_header, is_own_url
from scheduler.web.page.rendering import Page, render_page, send_static_file
from scheduler.web.page.views import (
    FormRequest,
    Handle,
    PageRequest,
    Redirect,
    form_endpoint,
    parse_form,
    shared_values,
    view_endpoint,
)
from scheduler.web.perform import perform

MAX_LOGIN_BYTES = 8 * 1024  # bytes
WRONG_TOKEN = "This token is not valid."  # noqa: S105 (a message)
NO_READ = "The token {!r} may not read. Add read to server.tokens.{}.may, or use another token."

# The views: path, function, what it concerns, and the keys that the query may have.
VIEWS: tuple[tuple[str, Callable[[PageRequest], Page], Concern, tuple[str, ...]], ...] = (
    ("/", fleet_view.show_fleet, Concern.PART, ("q", "show", "as", "page")),
    ("/page/cards/{name}", fleet_view.show_card, Concern.AGENT, ()),
    ("/page/agents/{name}", agent_view.show_agent, Concern.AGENT, ("on", "cursor")),
    ("/page/agents/{name}/checklist", agent_checklist.show_checklist, Concern.AGENT, ("undo",)),
    ("/page/agents/{name}/config", agent_config.show_config, Concern.AGENT, ("undo",)),
    ("/page/runs/{id}", agent_view.show_run, Concern.RUN, ()),
    ("/page/problems", daemon_views.show_problems, Concern.PART, ("show",)),
    ("/page/jobs", jobs_view.list_jobs, Concern.PART, ("q", "show", "page")),
    ("/page/jobs/{name}", jobs_view.show_job, Concern.JOB, ("before", "config")),
    ("/page/outbox", daemon_views.list_messages, Concern.PART, ("state", "before")),
    ("/page/outbox/{id}", daemon_views.show_message, Concern.MESSAGE, ()),
    ("/page/plan", plan_view.show_plan, Concern.PART, ("q", "kind", "page")),
    ("/page/simulate", foresight_view.show_form, Concern.PART, ()),
    ("/page/costs", daemon_views.show_costs, Concern.PART, ("for",)),
    ("/page/changes", daemon_views.list_changes, Concern.PART, ("before", "result", "of")),
    ("/page/changes/{id}", daemon_views.show_change, Concern.PART, ()),
    ("/page/doctor", daemon_views.show_doctor, Concern.ALL, ("database",)),
)

# Forms whose handlers call requests of the API. Whenever a form is refused, they show it with everything that was sent.
FORMS: tuple[tuple[str, Handle, Concern], ...] = (
    ("/page/agents/{name}/checklist", agent_checklist.save_checklist, Concern.AGENT),
    ("/page/agents/{name}/config", agent_config.send_config, Concern.AGENT),
    ("/page/simulate", foresight_view.simulate_month, Concern.PART),
    ("/page/changes/check", daemon_views.check_reload, Concern.ALL),
)


def build_routes(app_state: AppState, sessions: Sessions) -> list[Route]:
    """All routes of the page. Each verb that is sent with POST has a form: `/page/do/` and the path of its request."""
    verbs = [each for each in VERB_ENDPOINTS.values() if each.method == "POST"]
    return [
        *(Route(path, view_endpoint(app_state, show, concern, keys), methods=["GET"]) for path, show, concern, keys in VIEWS),
        *(
            Route(path, form_endpoint(app_state, do, "read", concern, keeps=True), methods=["POST"])
            for path, do, concern in FORMS
        ),
        *(Route(_path_of_form(each), _verb_endpoint(app_state, each), methods=["POST"]) for each in verbs),
        Route(LOGIN_PATH, _login_endpoint(app_state, sessions), methods=["GET", "POST"]),
        Route("/page/logout", _logout_endpoint(app_state, sessions), methods=["POST"]),
        Route("/page/static/{digest}/{name}", send_static_file, methods=["GET"]),
        Route("/page/{rest:path}", view_endpoint(app_state, _show_nothing, Concern.PART), methods=["GET"]),
    ]


def _path_of_form(endpoint: Endpoint) -> str:
    return f"/page/do/{endpoint.path.removeprefix('/api/v1/').removeprefix('/-/')}"


def _verb_endpoint(app_state: AppState, endpoint: Endpoint) -> HttpHandler:
    """Does what the API does for the same fields. A field `KEY:json` contains JSON; an empty field counts as not sent."""

    async def handle(form: FormRequest) -> Redirect:
        sent: dict[str, object] = {key: value for key, value in form.fields.items() if value and not key.endswith(":json")}
        for key, value in form.fields.items():
            if key.endswith(":json") and value:
                sent[key.removesuffix(":json")] = _parse_json(key, value)
        done = await perform(form.api, endpoint.name, parse_sent(endpoint.operation, sent, are_texts=True))
        assert isinstance(done, Done)  # as that of each verb with a form
        return Redirect("", done.says)

    if endpoint.concern is not Concern.AGENT:
        return form_endpoint(app_state, handle, endpoint.may)
    return form_endpoint(app_state, agent_view.keep_refused(endpoint, handle), "read", Concern.AGENT, keeps=True)


def _parse_json(key: str, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"{key} is not JSON") from error


def _show_nothing(request: PageRequest) -> Page:
    raise not_found(f"page {request.url.partition('?')[0]}")


def _login_endpoint(app_state: AppState, sessions: Sessions) -> HttpHandler:
    """GET shows the form. POST checks the token, sets the cookie, and leads back to the page that was asked for."""

    async def endpoint(request: Request) -> Response:
        target = request.query_params.get("next", "/")
        target = target if is_own_url(target) else "/"
        session: Session | None = request.scope["session"]
        if request.method != "POST":
            return RedirectResponse(target, 303) if session else await show(request, target, "", 200)
        try:
            token = parse_form(await read_body_bytes(request, MAX_LOGIN_BYTES)).get("token", "")
        except HttpError as error:
            return await show(request, target, error.message, error.status)
        found = await run_in_threadpool(sessions.log_in, token)
        if found is None:
            app_state.metrics.count_refused_token()
            return await show(request, target, WRONG_TOKEN, 403)
        if "read" not in found.caller.may:
            return await show(request, target, NO_READ.format(found.caller.name, found.caller.name), 403)
        return RedirectResponse(target, 303, headers={"Set-Cookie": _cookie_header(request, found)})

    async def show(request: Request, target: str, error: str, status: int) -> Response:
        page = Page("login.html", {"error": error, "next": target}, status)
        return await run_in_threadpool(render_page, page, shared_values(ApiRequest.of(app_state, request), None, LOGIN_PATH))

    return endpoint


def _logout_endpoint(app_state: AppState, sessions: Sessions) -> HttpHandler:
    """Ends the session, and deletes the cookie."""

    async def handle(form: FormRequest) -> Redirect:
        sessions.log_out(form.session)
        return Redirect(LOGIN_PATH)

    inner = form_endpoint(app_state, handle, None)

    async def endpoint(request: Request) -> Response:
        response = await inner(request)
        if response.headers.get("location") == LOGIN_PATH:
            response.headers.append("Set-Cookie", _cookie_header(request, None))
        return response

    return endpoint


def _cookie_header(request: Request, session: Session | None) -> str:
    """The cookie is only sent over TLS if the browser used TLS, as the origin of the form says."""
    is_secure = request.headers.get("origin", "").lower().startswith("https://")
    return cookie_header(session, request.headers.get("host", ""), is_secure=is_secure)
