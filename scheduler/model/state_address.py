"""The value of `state`: a database file, or the address of a PostgreSQL server, and what is beside it for each shard."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit

SCHEMES = ("postgresql://", "postgres://")
SCHEMA = "heartbeatd"  # of our tables and functions, unless the address sets `options=-csearch_path=NAME`
SECRET_PARAMETERS = ("password", "sslpassword")
MAX_SHARDS = 1000
MAX_DAEMON_ANSWER = 128 * 1024 * 1024  # bytes that clients read of an answer; the status of 100,000 agents has about 80 MB

_SHARD_FILE = re.compile(r"-shard-(\d{1,3})$")
_SEARCH_PATH = re.compile(r"-c\s*search_path=\S+")


def is_server(text: str) -> bool:
    """Whether the value of `state` is meant as the address of a server."""
    return text.startswith(SCHEMES)


def server_of_path(path: Path) -> str | None:
    """The address that was given where a path is expected, as by `--state`; None if it is a path."""
    scheme, found, rest = str(path).partition(":/")
    return f"{scheme}://{rest.lstrip('/')}" if found and f"{scheme}://" in SCHEMES else None


def address_problem(url: str) -> str | None:
    """What is wrong with the address of a server; None if it can be used. The text contains nothing of the address."""
    try:
        parts = urlsplit(url)
        has_password, parameters, _ = parts.password is not None, parse_qs(parts.query, keep_blank_values=True), parts.port
    except ValueError:
        return "this is no address of a PostgreSQL server; write postgresql://USER@HOST/DATABASE"
    if has_password or any(each in parameters for each in SECRET_PARAMETERS):
        return (
            "a password must not be in the address, because commands and logs print it; use PGPASSWORD, ~/.pgpass, or a private"
            " file that ?passfile=PATH names"
        )
    return None


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


def shard_file(state: Path, index: int) -> Path:
    """The database file of a shard, in the folder of the file that `state` names."""
    return state.with_name(f"{state.stem}-shard-{index}{state.suffix}")


def shard_address(url: str, index: int) -> str:
    """The address of a server, with the schema of a shard: the schema of the address, and the index."""
    parts = urlsplit(url)
    schema = f"{schema_of(url)}_shard_{index}"
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    others = _SEARCH_PATH.sub("", query.pop("options", "")).strip()
    query["options"] = f"{others} -csearch_path={schema}".strip()
    encoded = urlencode(query, safe="/,:", quote_via=quote)
    return f"{parts.scheme}://{parts.netloc}{parts.path}?{encoded}"  # urlunsplit leaves out the // of an address without a host


def address_file(database: Path) -> Path:
    """The file in which the daemon with this database file writes its address."""
    found = _SHARD_FILE.search(database.stem)
    return database.with_name(f"daemon-shard-{found[1]}.json" if found else "daemon.json")
