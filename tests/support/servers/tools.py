"""A server of tools, made with the official MCP SDK: as a program on stdin and stdout, or over HTTP in a thread."""

from __future__ import annotations

import base64
import os
import threading
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.utilities.types import Image
from mcp.types import ToolAnnotations
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Receive, Scope, Send

READS = ToolAnnotations(read_only_hint=True)
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


def make_server(cleaned: list[str], called: threading.Event, released: threading.Event) -> MCPServer[Any]:
    """A server with tools that read, a tool that changes something (noted in `cleaned`), and tools that fail.

    The tool `wait` sets `called`, and returns when `released` is set.
    """
    server: MCPServer[Any] = MCPServer("disk", log_level="CRITICAL")

    @server.tool(annotations=READS)
    def free(path: str) -> str:
        """How much of a disk is free."""
        return f"{path}: 8 % free"

    @server.tool()
    def clean(path: str) -> str:
        """Delete old files."""
        cleaned.append(path)
        return f"{path}: cleaned"

    @server.tool(annotations=READS)
    def picture() -> Image:
        return Image(data=PIXEL, format="png")

    @server.tool(annotations=READS)
    def long(size: int) -> str:
        return "ü" * size

    @server.tool(annotations=READS)
    def fail() -> str:
        raise ToolError("no such disk")

    @server.tool(annotations=READS)
    def wait() -> str:
        called.set()
        released.wait(20)
        return "released"

    @server.tool(annotations=READS)
    def environment() -> dict[str, str]:
        return {**os.environ, "cwd": str(Path.cwd())}

    return server


class ToolServer:
    """Serves the tools over HTTP, for the duration of the context. `headers` has those of each request."""

    def __init__(self) -> None:
        self.cleaned: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.called = threading.Event()
        self._released = threading.Event()
        server = make_server(self.cleaned, self.called, self._released)
        app = self._note_headers(server.streamable_http_app())
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
        self._thread = threading.Thread(target=self._server.run)
        self._bound = threading.Event()

    def _note_headers(self, app: ASGIApp) -> ASGIApp:
        async def noting(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                self.headers.append(dict(HttpRequest(scope).headers))
            await app(scope, receive, send)

        return noting

    def __enter__(self) -> ToolServer:
        startup = self._server.startup

        async def start(*given: Any, **more: Any) -> None:
            await startup(*given, **more)
            self._bound.set()

        self._server.startup = start  # type: ignore[method-assign]
        self._thread.start()
        assert self._bound.wait(20)
        return self

    @property
    def url(self) -> str:
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/mcp"

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.should_exit = True
        self._thread.join(10)


if __name__ == "__main__":
    make_server([], threading.Event(), threading.Event()).run()
