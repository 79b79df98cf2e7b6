"""The command `mcp`: an MCP server on stdin and stdout, for agents that start their tools as programs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from mcp.server.stdio import stdio_server

from heartbeatd.client import TOKEN_VARIABLE
from heartbeatd.errors import HeartbeatdError
from scheduler.cli import daemon_files
from scheduler.cli.daemon_client import HttpDaemonClient, connect_to_daemon
from scheduler.extras.mcp.mcp_server import ToolFailed, build_server
from scheduler.model.expected_error import ExpectedError, InputError
from scheduler.web.perform import ENDPOINTS


def serve_tools(token_file: Path | None, path: Path) -> None:
    """Answer on stdin and stdout until stdin ends."""
    token = _read_token(token_file)
    server = build_server(lambda _: _DaemonApi(path, token))

    async def serve() -> None:
        async with stdio_server() as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())

    asyncio.run(serve())


def _read_token(file: Path | None) -> str | None:
    """The token to use; None without one. Raises InputError for an empty one, which must not permit everything."""
    try:
        given = os.environ.get(TOKEN_VARIABLE) if file is None else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
    if given is not None and not given.strip():
        raise InputError(f"{file or TOKEN_VARIABLE} is empty")
    return given and given.strip()


@dataclass(frozen=True, slots=True)
class _DaemonApi:
    """Calls the API of the running daemon. It looks for the daemon at each call, as the daemon may be restarted."""

    config: Path
    token: str | None

    async def __call__(
        self, endpoint: str, subject: str | None = None, sent: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        try:
            answer = await asyncio.to_thread(lambda: self._client().call(ENDPOINTS[endpoint], subject, sent or {}))
        except HeartbeatdError as error:
            lines = (f"{each.line}:{each.column}: {each.path}: {each.message}" for each in error.problems)
            raise ToolFailed("\n".join(lines)) from None
        except (ExpectedError, click.ClickException) as error:
            raise ToolFailed(error.format_message() if isinstance(error, click.ClickException) else str(error)) from None
        return answer.as_data()

    def _client(self) -> HttpDaemonClient:
        found = connect_to_daemon(daemon_files.locate_files(self.config, None), token=self.token)
        if found is None:
            raise click.ClickException("the daemon is not running; start it with `heartbeatd run`")
        return found
