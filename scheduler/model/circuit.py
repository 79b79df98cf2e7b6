"""Circuits: the parts of a provider that can be out of order by themselves: all of it, or one of its models.

A circuit breaker, what people are notified of, and the metrics all name a failure by its circuit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from scheduler.model.outcome import LONGEST_RETRY_AFTER, Call, Failure

EVERY_MODEL = "*"

RATE_REASON = Failure.RATE.value  # the reason of a breaker that a long Retry-After has opened

# The HTTP statuses that concern the model that was asked for and say nothing of the key or the account.
MODEL_STATUSES = frozenset({403, 404})

# Classes of failures that are the provider's: another request to it would most likely fail in the same way.
PROVIDER_FAILURES = frozenset({
    Failure.RATE, Failure.OVERLOADED, Failure.SERVER, Failure.CONNECT, Failure.DNS, Failure.TLS, Failure.TIMEOUT,
})  # fmt: skip


class Circuit(NamedTuple):
    """A provider with one of its models, by the names that the config gives them.

    The model is `*` for the provider as a whole, and empty where a request names none and the server chooses.
    """

    provider: str
    model: str = EVERY_MODEL

    @property
    def is_whole_provider(self) -> bool:
        """Whether this is the provider itself, whatever the model."""
        return self.model == EVERY_MODEL

    def __str__(self) -> str:
        if self.is_whole_provider:
            return f"provider {self.provider}"
        return f"provider {self.provider}, model {self.model}" if self.model else f"provider {self.provider}, its only model"


@dataclass(frozen=True, slots=True)
class Breaker:
    """An open circuit breaker: no calls are made until a probe succeeds.

    `reason` is the class of the failure that opened it, `error` what the provider said. From `probe_at` on one run may probe;
    while the run `tried_by` does so, this lies ahead. `half_open_at` is when the present round of probes could begin. `turns`
    are the agents and jobs that could probe since it opened, by kind and name, the latest last.
    """

    circuit: Circuit
    reason: str
    error: str
    opened_at: datetime
    probe_at: datetime
    half_open_at: datetime
    tried_by: int | None = None
    turns: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.circuit}: {self.error or self.reason}"

    def other_probes_first(self, other: tuple[str, str], key: tuple[str, str]) -> bool:
        """Whether another entry is to probe before this one: it never could, or its last turn was earlier."""
        return key in self.turns and (other not in self.turns or self.turns.index(other) < self.turns.index(key))


def required_circuits(asked: Iterable[Circuit]) -> tuple[Circuit, ...]:
    """The circuits that must be in order for these models to be asked, each once, the providers themselves first."""
    asked = tuple(asked)
    return tuple(dict.fromkeys((*(Circuit(each.provider) for each in asked), *asked)))


def circuit_of_call(call: Call) -> Circuit | None:
    """The model that a call asked for; None where the call went to no provider of the config."""
    return None if call.provider is None else Circuit(call.provider, call.model or "")


def circuit_opened_by(call: Call) -> tuple[Circuit, str] | None:
    """The circuit whose breaker a call opens, and the reason; None where it opens none.

    A refused key or account (401, 402) concerns the whole provider, as does a Retry-After that is too long to wait for; a
    forbidden or unknown model (403, 404) concerns that model alone.
    """
    asked = circuit_of_call(call)
    if asked is None or call.failure is None:
        return None
    if call.status in MODEL_STATUSES:
        return asked, str(call.failure)
    if call.failure in (Failure.AUTH, Failure.PAYMENT):
        return Circuit(asked.provider), str(call.failure)
    if call.retry_after is not None and call.retry_after > LONGEST_RETRY_AFTER:
        return Circuit(asked.provider), RATE_REASON
    return None


def circuit_blamed_for(call: Call) -> tuple[Circuit, str] | None:
    """The circuit whose fault the failure of a call is, with its class; None where the request or the answer is at fault."""
    shut_off = circuit_opened_by(call)
    if shut_off is not None or call.provider is None or call.failure not in PROVIDER_FAILURES:
        return shut_off
    return Circuit(call.provider), str(call.failure)


def is_answered(call: Call) -> bool:
    """Whether a model answered a call, be its answer of use or not: so its key, its account and its model are accepted."""
    return call.provider is not None and (call.failure is None or call.tokens is not None)
