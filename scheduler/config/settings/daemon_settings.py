"""Builds the settings of the daemon itself: the HTTP server, outgoing requests, the dead man's switch, and the executor."""

from __future__ import annotations

import re
import ssl
from datetime import timedelta
from ipaddress import ip_address
from itertools import pairwise
from urllib.parse import urlsplit

from heartbeatd.state_folder import is_server
from scheduler.channels.url_template import is_web_address
from scheduler.config.keys import models
from scheduler.config.settings.config_node import ConfigNode, build_spec
from scheduler.model.daemon_health import DEFAULT_QUEUE
from scheduler.model.settings import Deadman, Network, Proxy, RemoteQueue, Server, Token
from scheduler.model.state_address import clear_text_host, clear_text_warning
from scheduler.system import extras

LEAST_BYTES = 16  # 128 bit
LEAST_DIFFERENT = 5  # characters
SHORTEST_LEASE = timedelta(seconds=2)
LONGEST_QUEUE = 40  # characters; PostgreSQL limits the name of the channel on which Procrastinate announces jobs to 63
QUEUE = ("executor", "queue")
DSN_EXAMPLE = 'dsn: "${HEARTBEATD_DSN}", and set that to postgresql://USER:PASSWORD@HOST/DATABASE'

_LISTEN = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+):([0-9]{1,5})")


def build_server(part: models.Server, node: ConfigNode) -> Server:
    if (address := parse_address(part.listen)) is None:
        node.add_error('this is not an address with a port; write "127.0.0.1:7857"', "listen")
    host, port = address or ("127.0.0.1", 0)
    tokens = tuple(token for name, written in part.tokens.items() if (token := _build_token(name, written, node)))
    if not part.tokens and not is_loopback(host):
        words = f"declare server.tokens, or listen on 127.0.0.1:{port}"
        node.add_error(f"{host} can be reached from other machines; {words}", "listen")
    public = _check_public_url(part, node)
    hosts = (*part.hosts, urlsplit(public).netloc) if public else part.hosts
    if part.page == "open" and not is_loopback(host):
        words = f"write login, or listen on 127.0.0.1:{port}"
        node.add_error(f"{host} can be reached from other machines; {words}", "page")
    return build_spec(part, Server, host=host, port=port, hosts=hosts, tokens=tokens, public_url=public)


def _check_public_url(part: models.Server, node: ConfigNode) -> str | None:
    """The public URL without a slash at its end; None if there is none, or an error in it."""
    if part.public_url is None:
        return None
    if not is_web_address(part.public_url) or any(sign in part.public_url for sign in "@?#"):
        node.add_error('this is not the address of a server; write "https://HOST" or "https://HOST/PATH"', "public_url")
        return None
    return part.public_url.rstrip("/")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. Names other than localhost are not resolved."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_address(text: str) -> tuple[str, int] | None:
    """The host and the port of an address at which to listen; None if it is none."""
    found = _LISTEN.fullmatch(text)
    return (found[1].strip("[]"), int(found[2])) if found and int(found[2]) < 65536 else None


def _build_token(name: str, part: models.Token, node: ConfigNode) -> Token | None:
    node.check_declared(part.agents or (), node.context.config.agents, "agent", "tokens", name, "agents")
    value = node.resolve_secret(part.value, "tokens", name, "value")
    if value is None:
        return None
    if value.is_checked and (problem := _token_problem(value.reveal())):
        node.add_error(problem, "tokens", name, "value")
    node.warn_of_plain_secret(part.value, "tokens", name, "value")
    return Token(name, value, frozenset(part.may), frozenset(part.agents) if part.agents is not None else None)


def _is_guessable(value: str) -> bool:
    """Whether a token is guessable: few different characters, a repeated piece, or a sequence such as 12345.

    Fewer than one in 10^9 tokens with 128 random bits are rejected.
    """
    again = (value + value).find(value, 1) < len(value)
    steps = [ord(after) - ord(before) for before, after in pairwise(value)]
    in_a_row = max(sum(step in (0, way) for step in steps) for way in (1, -1))
    return again or len(set(value)) < LEAST_DIFFERENT or in_a_row * 4 > len(steps) * 3


def _token_problem(value: str) -> str | None:
    if len(value.encode(errors="surrogateescape")) < LEAST_BYTES:
        return "this token is shorter than 16 bytes; make one with: openssl rand -hex 16"
    if not all("!" <= character <= "~" for character in value):
        return "a token is sent in a header; use only ASCII letters, digits and punctuation, no spaces"
    if _is_guessable(value):
        return "this token is easy to guess; make one with: openssl rand -hex 16"
    return None


def build_network(part: models.Network, node: ConfigNode) -> Network:
    """The proxy and the certificate authorities of all requests. Errors are added at `node`."""
    proxy: Proxy = "none" if part.proxy == "none" else "environment"
    if part.proxy != proxy:
        advice = 'write environment, none, or "http://HOST:PORT"'
        proxy = node.resolve_address(part.proxy, "proxy", advice=advice) or proxy
    if part.ca_file is None:
        return Network(proxy)
    path = node.context.resolve_path(part.ca_file)
    advice = "write the path of a file of PEM certificates"
    try:
        ssl.create_default_context(cafile=str(path))
    except ssl.SSLError:
        node.add_error(f"{path} contains no certificates; {advice}", "ca_file")
    except OSError as error:
        node.add_error(f"{path} cannot be read ({error.strerror}); {advice}", "ca_file")
    return Network(proxy, path)


def build_deadman(part: models.Deadman | None, node: ConfigNode) -> Deadman | None:
    """The dead man's switch; None if there is none. Errors are added at `node`."""
    if part is None:
        return None
    url = node.resolve_address(part.url, "url")
    if not part.allow_private:
        node.warn_of_private_address(url, "url")
    return build_spec(part, Deadman, url=url) if url is not None else None


def build_remote_queue(part: models.Executor, node: ConfigNode) -> RemoteQueue | None:
    """The queue of the workers; None if the daemon executes the runs itself. Errors are added at `node`."""
    if part.kind == "local":
        if part.dsn is not None:
            node.add_error("only `kind: procrastinate` uses a database; write kind: procrastinate, or remove dsn", "dsn")
        return None
    if (missing := extras.describe_missing("executors", part.kind)) is not None:
        node.add_error(missing, "kind")
    if part.lease < SHORTEST_LEASE:
        node.add_error("a lease this short ends by accident; write at least 2s", "lease")
    if part.dsn is None:
        node.add_error(f"the workers need a database; write {DSN_EXAMPLE}", missing="dsn")
        return None
    if len(part.queue) > LONGEST_QUEUE:
        node.add_error(f"this name has at most {LONGEST_QUEUE} characters; write a shorter one, such as heartbeatd", "queue")
    dsn = node.resolve_secret(part.dsn, "dsn")
    if dsn is None:
        return None
    if dsn.is_checked:
        try:
            if not is_server(dsn.reveal()):
                raise ValueError
            if host := clear_text_host(dsn.reveal()):
                node.add_warning(clear_text_warning(host), "dsn")
        except ValueError:  # or a [ in the password that is not percent-encoded
            node.add_error("this is not the address of a PostgreSQL database; write postgresql://USER@HOST/DATABASE", "dsn")
    return RemoteQueue(dsn, part.queue, part.lease)


def check_routing(part: models.Executor, routing: models.Routing, node: ConfigNode) -> None:
    """Add an error at `node`, an agent or a job, if no worker could serve the queue that it names."""
    if routing.queue is None:
        return
    room = LONGEST_QUEUE - len(part.queue) - 1
    if part.kind == "local":
        node.add_error(
            "the daemon executes all runs itself; write executor: {kind: procrastinate, dsn: ...} at the top of the file", *QUEUE
        )
    elif routing.queue == DEFAULT_QUEUE or len(part.queue) > LONGEST_QUEUE:
        return  # the default queue has the name of the cluster; and a name that is too long itself is already an error
    elif room < 1:
        node.add_error("executor.queue leaves no room for this name; write a shorter one, such as heartbeatd", *QUEUE)
    elif len(routing.queue) > room:
        node.add_error(f"this name has at most {room} characters, because executor.queue is {part.queue!r}", *QUEUE)
