"""Shows the page behind a link of a message, and carries out its action after a confirmation.

The code in the link is the permission.
"""

from __future__ import annotations

import asyncio
from html import escape

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from scheduler.channels.telegram_buttons import Press
from scheduler.engine import buttons
from scheduler.engine.buttons import PressAnswer, PressButton
from scheduler.web.api_request import HttpHandler
from scheduler.web.app_state import AppState, open_reader
from scheduler.web.http_errors import not_found

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>heartbeatd</title></head>
<body><h1>{title}</h1>{content}</body></html>
"""
FORM = '<form method="post"><button type="submit">{label}</button></form>'


def link_endpoint(app_state: AppState) -> HttpHandler:
    """GET shows what the link does and changes nothing, because programs that preview links follow them. POST does it.

    A forged link is counted in both cases.
    """

    async def endpoint(request: Request) -> Response:
        with_links = [name for name, channel in app_state.settings().channels.items() if channel.links]
        if not with_links:
            raise not_found("page")
        data = request.path_params["data"]
        if request.method != "POST":
            page = await run_in_threadpool(_confirmation_page, app_state, data)
            if page is not None:
                return page
        press = Press("", "", "", "link", data)
        submitted = asyncio.wrap_future(app_state.submit_request(PressButton(with_links[0], press, is_link=True)))
        done, _ = await asyncio.wait([submitted], timeout=app_state.answer_timeout)
        if not done:
            return _page("The daemon cannot write its database at the moment. It will do this as soon as it can.", 503)
        answer: PressAnswer = submitted.result()
        return _page(answer.text, 200 if answer.is_done else 403)

    return endpoint


def _confirmation_page(app_state: AppState, data: str) -> Response | None:
    """What a link does, or why it can no longer be used; None for a forged link."""
    with open_reader(app_state) as db:
        found = buttons.find_genuine(db, app_state.settings().channels, data, is_link=True)
        why = buttons.why_over(db, found, app_state.clock()) if found else None
    if found is None:
        return None
    if why is not None:
        return _page(buttons.REFUSALS[why], 403)
    label = buttons.CHAT_BUTTONS[found.action].label
    return _page(f"{label}: {found.message.name}", 200, FORM.format(label=escape(label)))


def _page(title: str, status: int, content: str = "") -> Response:
    return HTMLResponse(PAGE.format(title=escape(title), content=content), status)
