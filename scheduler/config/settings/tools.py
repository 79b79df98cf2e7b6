"""Builds the tools that a model may use, and checks their servers."""

from __future__ import annotations

from collections.abc import Mapping

from heartbeat.spec import McpServer, Tools, offered_name
from heartbeatd.secret import Secret
from scheduler.config.keys import models
from scheduler.config.settings.config_node import ConfigNode, carried_keys
from scheduler.system import extras

MAX_NAME = 64  # characters of the name of a tool for a model
STEPS = ("runner", "tools")
COMPUTED_KEYS = ("url", "headers", "env")
NO_SERVER = 'no server is named; write mcp: [{name: disk, url: "https://...", allow: [free]}], or remove tools'


def build_tools(part: models.Tools, node: ConfigNode, *, used: bool) -> Tools | None:
    """The tools of an agent's runner; None after an error, and if there is no server."""
    if not part.mcp:
        node.add_error(NO_SERVER, *STEPS, missing="mcp")
        return None
    if (missing := extras.describe_missing("executors", "tools")) is not None:
        node.add_error(missing, *STEPS)
        return None
    _check_names(part.mcp, node)
    servers = tuple(_build_server(server, index, node, used=used) for index, server in enumerate(part.mcp))
    return Tools(servers, part.max_turns)


def check_headers(headers: Mapping[str, object], node: ConfigNode, *inside: str | int) -> None:
    """Add an error for each header with a value that cannot be sent."""
    for name, value in headers.items():
        if not _fits_a_header(value):
            node.add_error("a header can contain only ASCII letters, digits and punctuation, on one line", *inside, name)


def _build_server(part: models.McpServer, index: int, node: ConfigNode, *, used: bool) -> McpServer:
    at = (*STEPS, "mcp", index)
    url = node.resolve_address(part.url, *at, "url", used=used) if part.url else None
    headers = node.build_environment(part.headers, *at, "headers", used=used)
    if not node.context.secrets.is_disabled:
        check_headers(headers, node, *at, "headers")
    _check_kind(part, at, node)
    return McpServer(
        **carried_keys(part, McpServer, COMPUTED_KEYS),
        url=(url or Secret("")) if part.url else None,
        headers=headers,
        env=node.build_variables(part.env, *at, "env", used=used),
    )


def _check_kind(part: models.McpServer, at: tuple[str | int, ...], node: ConfigNode) -> None:
    """Check that a server is either at a URL or a program, and has only the keys of this kind."""
    if part.url and part.command:
        node.add_error("a server has a url or a command, but not both; remove one of them", *at, "command")
    elif not part.url and not part.command:
        problem = "the server has neither a url nor a command"
        node.add_error(f'{problem}; write url: "https://...", or command: [program, argument]', *at)
    elif part.headers and part.command:
        node.add_error("a program gets no headers; write env instead, or remove headers", *at, "headers")
    elif part.env and part.url:
        node.add_error("a server at a url gets no variables; write headers instead, or remove env", *at, "env")


def _check_names(servers: list[models.McpServer], node: ConfigNode) -> None:
    """Check that the model can tell all tools apart by their names."""
    seen: set[str] = set()
    names: set[str] = set()
    for index, server in enumerate(servers):
        if server.name in names:
            node.add_error(f"another server is named {server.name} too; write a different name", *STEPS, "mcp", index, "name")
            continue
        names.add(server.name)
        for number, tool in enumerate(server.allow):
            offered = offered_name(server.name, tool)
            at = (*STEPS, "mcp", index, "allow", number)
            if len(offered) > MAX_NAME:
                problem = f"the model sees this tool as {offered}, and a name can have {MAX_NAME} characters"
                node.add_error(f"{problem}; write a shorter name of the server", *at)
            elif offered in seen:
                problem = f"the model sees this tool as {offered}, and another tool too"
                node.add_error(f"{problem}; write a different name of the server", *at)
            seen.add(offered)


def _fits_a_header(value: object) -> bool:
    return isinstance(value, Secret) and all(" " <= character <= "~" or character == "\t" for character in value.reveal())
