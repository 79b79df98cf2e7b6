"""Serves whether a worker works, and its metrics: `/healthz` and `/metrics`, without a token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from scheduler.web.connection_timeouts import ClientTimeouts
from scheduler.web.server import ServerThread, bind_socket

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def serve_health(
    host: str, port: int, problem: Callable[[], str | None], metrics: Callable[[], Mapping[str, float]]
) -> ServerThread:
    """Listen in a thread of its own. Raises CannotListen.

    `/healthz` answers 503 with the text of `problem` while there is one. `metrics` returns the value of each series by its name
    with labels.
    """

    def healthz(_: Request) -> PlainTextResponse:
        found = problem()
        return PlainTextResponse("ok\n" if found is None else f"{found}\n", status_code=200 if found is None else 503)

    def page(_: Request) -> PlainTextResponse:
        lines = "".join(f"{name} {value:g}\n" for name, value in metrics().items())
        return PlainTextResponse(lines, media_type=CONTENT_TYPE)

    app = Starlette(routes=[Route("/healthz", healthz), Route("/metrics", page)])
    listener = bind_socket(host, port)
    return ServerThread(app, listener, f"http://{host}:{listener.getsockname()[1]}", ClientTimeouts(), None)
