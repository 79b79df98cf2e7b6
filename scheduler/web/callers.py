"""Finds the sender of a request by its token, and says what the sender may do."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from heartbeatd.secret import Secret
from scheduler.model.outcome import Kind
from scheduler.model.settings import Permission, Token
from scheduler.web.http_errors import HttpError

EVERYTHING: frozenset[Permission] = frozenset(get_args(Permission))


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. `agents` None means all agents and jobs; `is_local` is our own command line.

    Records name the sender by `noun` and name, such as: token NAME.
    """

    name: str
    may: frozenset[Permission]
    agents: frozenset[str] | None = None
    is_local: bool = False
    noun: str = "token"

    def may_access(self, kind: str, name: str) -> bool:
        """Whether the token is valid for this entry."""
        return self.agents is None or (kind == Kind.HEARTBEAT and name in self.agents)


def find_caller(authorization: list[bytes], local: Secret, tokens: Iterable[Token]) -> Caller | None:
    """The caller whose token is in the Authorization header; None without exactly one such header with a known token."""
    scheme, _, shown = authorization[0].partition(b" ") if len(authorization) == 1 else (b"", b"", b"")
    if scheme.lower() != b"bearer":
        return None
    # Every token is compared, each in constant time, so that the duration reveals nothing.
    known = [(local, Caller("local", EVERYTHING, is_local=True))]
    known += [(token.value, Caller(token.name, token.may, token.agents)) for token in tokens]
    matches = [caller for secret, caller in known if hmac.compare_digest(secret.reveal().encode(), shown.strip())]
    return matches[0] if matches else None


def check_permission(caller: Caller, may: Permission | None) -> None:
    """Raises HttpError if the caller's token does not have the permission `may`; None: any token is enough."""
    if may is not None and may not in caller.may:
        raise HttpError(
            403, "forbidden", f"the token {caller.name!r} may not {may}; add {may} to server.tokens.{caller.name}.may"
        )
