"""Finds the address and the token of a daemon: named by the caller, in the environment, or in the daemon's state folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from heartbeatd.errors import HeartbeatdError
from heartbeatd.secret import Secret
from heartbeatd.state_folder import DEFAULT_STATE, address_file, is_locked, read_state_path, real_path

URL_VARIABLE = "HEARTBEATD_URL"
TOKEN_VARIABLE = "HEARTBEATD_TOKEN"  # noqa: S105 (the name of a variable)

_TOKEN_PATTERN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon listens, without a slash at the end, and the token to send there."""

    url: str
    token: Secret


@dataclass(frozen=True, slots=True)
class AddressSource:
    """Where the address comes from. Each value is None if the caller has not named it."""

    url: str | None
    token: Secret | None
    config: Path | None
    state: Path | None
    environ: Mapping[str, str]

    def find_address(self) -> Address:
        """The address at this moment: a daemon of this machine may have been started again on another port.

        Raises HeartbeatdError.
        """
        named = self.config is not None or self.state is not None
        url = self.url or (None if named else self.environ.get(URL_VARIABLE)) or None
        text = self.environ.get(TOKEN_VARIABLE)
        token = self.token or (Secret(text) if text else None)
        if url is None:
            database = self._database()
            return Address(find_url(database), token or read_token(database))
        if token is None:
            raise HeartbeatdError("no_token", f"there is no token for {url}; pass token= or set {TOKEN_VARIABLE}")
        return Address(url.rstrip("/"), _checked(token))

    def _database(self) -> Path:
        """The path of the database, as the commands find it."""
        if self.state is None:
            return read_state_path(self.config or Path("config.yaml"), self.environ)
        return real_path(self.state / Path(DEFAULT_STATE).name if self.state.is_dir() else self.state)


def find_url(database: Path) -> str:
    """The URL of the running daemon of a database.

    An address that another process has written is not used: a different program may listen there by now, and would receive the
    token. Raises HeartbeatdError.
    """
    lock_file = database.with_name(f"{database.name}.lock")
    try:
        is_running = is_locked(lock_file)
    except OSError as error:
        raise HeartbeatdError(
            "not_running",
            f"cannot read {lock_file}: {error.strerror}; run this as the user of the daemon, or pass url= and token=",
        ) from None
    if not is_running:
        raise HeartbeatdError(
            "not_running", f"no daemon runs with the database {database}; start it with `heartbeatd run`, or pass url= and token="
        )
    try:
        address = json.loads(address_file(database).read_text("utf-8"))
        if address["pid"] == json.loads(lock_file.read_text("utf-8"))["pid"]:
            return str(address["url"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise HeartbeatdError("not_running", f"the daemon of {database} does not listen yet or no longer; try again in some seconds")


def read_token(database: Path) -> Secret:
    """The token of the daemon's own user. Raises HeartbeatdError."""
    path = database.with_name("token")
    try:
        return _checked(Secret(path.read_text("utf-8").strip()))
    except (OSError, UnicodeDecodeError) as error:
        raise HeartbeatdError(
            "no_token",
            f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not text'}; run this as the user of the daemon, or"
            f" pass token= or set {TOKEN_VARIABLE}",
        ) from None


def _checked(token: Secret) -> Secret:
    """The token, if a header can hold it."""
    if not _TOKEN_PATTERN.fullmatch(token.reveal()):
        raise HeartbeatdError(
            "bad_token", "the token is empty, or has blanks or characters beyond ASCII; check where it comes from"
        )
    return token
