"""The value of `state`, a database file or the address of a PostgreSQL server, and the files beside it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from heartbeatd.state_folder import SCHEMES

SCHEMA = "heartbeatd"  # of our tables and functions, unless the address sets `options=-csearch_path=NAME`
LOCAL_HOSTS = ("localhost", "::1")
ENCRYPTED = ("require", "verify-ca", "verify-full")  # values of `sslmode` with which a connection is never in clear text
SECRET_PARAMETERS = ("password", "sslpassword")
_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(:\d*)?")


def server_of_path(path: Path) -> str | None:
    """The address that was given where a path is expected, as by `--state`; None if it is a path."""
    scheme, found, rest = str(path).partition(":/")
    return f"{scheme}://{rest.lstrip('/')}" if found and f"{scheme}://" in SCHEMES else None


def address_problem(url: str) -> str | None:
    """What is wrong with the address of a server; None if it can be used. The text contains nothing of the address."""
    try:
        parts = urlsplit(url)
        has_password, parameters = parts.password is not None, parse_qs(parts.query, keep_blank_values=True)
        if not all(_HOST.fullmatch(each) for each in _hosts(parts)):
            raise ValueError
    except ValueError:
        return "this is no address of a PostgreSQL server; write postgresql://USER@HOST/DATABASE"
    if has_password or any(each in parameters for each in SECRET_PARAMETERS):
        return (
            "a password must not be in the address, because commands and logs print it; use PGPASSWORD, ~/.pgpass, or a private"
            " file that ?passfile=PATH names"
        )
    return None


def clear_text_host(url: str) -> str | None:
    """The host of another machine to which this address may connect without encryption; None if there is none.

    https://www.postgresql.org/docs/current/libpq-ssl.html: without `sslmode`, the server decides whether there is encryption.
    """
    parts = urlsplit(url)
    parameters = parse_qs(parts.query)
    if parameters.get("sslmode", [""])[-1] in ENCRYPTED:
        return None
    before_path = [_HOST.sub(r"\1", each).strip("[]") for each in _hosts(parts)]
    named = ",".join([*parameters.get("host", []), *parameters.get("hostaddr", [])])  # without ports, also those of IPv6
    hosts = [*before_path, *named.split(",")]
    return next((each for each in hosts if each and each not in LOCAL_HOSTS and not each.startswith(("/", "127."))), None)


def _hosts(parts: SplitResult) -> list[str]:
    """The servers of an address, each with its port. An address may name several: the first that answers is used."""
    return unquote(parts.netloc.rpartition("@")[2]).split(",")


def clear_text_warning(host: str) -> str:
    """What is wrong with an address with this `clear_text_host`, and what to do."""
    return f"the connection to {host} may be unencrypted; append ?sslmode=verify-full to the address (docs/scaling.md#tls)"


def describe_server(url: str) -> str:
    """The address of a server for messages: without its parameters."""
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    host = parts.netloc.rpartition("@")[2]
    return f"postgresql://{user}{host}{parts.path}"


def schema_of(url: str) -> str:
    """The schema of our tables: the one that the address names, else SCHEMA."""
    options = " ".join(parse_qs(urlsplit(url).query).get("options", []))
    found = re.search(r"-c\s*search_path=([a-z_][a-z0-9_]*)", options)
    return found[1] if found else SCHEMA
