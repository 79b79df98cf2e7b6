"""Callers: who sends a request, by the token they show, and what that token may."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from scheduler.model.outcome import Kind
from scheduler.model.secret import Secret
from scheduler.model.settings import May, Token

EVERYTHING: frozenset[May] = frozenset(get_args(May))


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. `agents` None means all of them, and the jobs too; `local` is our own command line."""

    name: str
    may: frozenset[May]
    agents: frozenset[str] | None = None
    local: bool = False

    def reaches(self, kind: Kind, name: str) -> bool:
        """Whether the token is good for this entry."""
        return self.agents is None or (kind is Kind.HEARTBEAT and name in self.agents)


def find(authorization: list[bytes], local: Secret, tokens: Iterable[Token]) -> Caller | None:
    """The caller whose token the one Authorization header holds; None when there is none, or two, or a wrong one."""
    scheme, _, shown = authorization[0].partition(b" ") if len(authorization) == 1 else (b"", b"", b"")
    if scheme.lower() != b"bearer":
        return None
    # Every token is compared, and each in constant time: how long it takes tells nothing.
    known = [(local, Caller("local", EVERYTHING, local=True))]
    known += [(token.value, Caller(token.name, token.may, token.agents)) for token in tokens]
    matches = [caller for secret, caller in known if hmac.compare_digest(secret.reveal().encode(), shown.strip())]
    return matches[0] if matches else None
