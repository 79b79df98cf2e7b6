"""Names what can fail at a provider: the whole provider, or one of its models. Finds the failing part from a call's result.

Circuit breakers, notifications and metrics all name a failure by its circuit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from heartbeat.runners import PROVIDER_FAILURES
from heartbeat.spec import Called, CommandRunner, ModelRunner
from scheduler.model.outcome import LONGEST_RETRY_AFTER, Call, Failure

EVERY_MODEL = "*"

RATE_REASON = Failure.RATE.value  # the reason of a breaker that a long Retry-After opened

LIMIT_REASON = Failure.LIMITED.value  # the reason of a breaker that a usage limit opened

ACCOUNT = "account "  # begins the name of a circuit that stands for an account

# HTTP statuses that concern the requested model only, not the key or the account.
MODEL_STATUSES = frozenset({403, 404})


class Circuit(NamedTuple):
    """A provider and one of its models, by their names in the config.

    The model is `*` for the provider as a whole, and empty if requests name no model because the server chooses.
    """

    provider: str
    model: str = EVERY_MODEL

    @property
    def is_whole_provider(self) -> bool:
        """Whether this is the provider as a whole, with all its models."""
        return self.model == EVERY_MODEL

    @property
    def is_account(self) -> bool:
        """Whether this is an account with a usage limit, and no provider."""
        return self.provider.startswith(ACCOUNT)

    def __str__(self) -> str:
        if self.is_account:
            return self.provider
        if self.is_whole_provider:
            return f"provider {self.provider}"
        return f"provider {self.provider}, model {self.model}" if self.model else f"provider {self.provider}, its only model"


@dataclass(frozen=True, slots=True)
class Breaker:
    """An open circuit breaker: no calls are made until a probe succeeds.

    `reason` is the class of the failure that opened it, `error` the provider's text. From `probe_at` on one run may probe; while
    the run `tried_by` probes, `probe_at` is later. `half_open_at` is when the present round of probes could begin. `turns` are
    the agents and jobs, by kind and name, that could have probed since it opened, the latest last.
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
        """Whether another entry is to probe before this one: it had no turn yet, or an earlier one."""
        return key in self.turns and (other not in self.turns or self.turns.index(other) < self.turns.index(key))


def account_circuit(account: str) -> Circuit:
    """The circuit of an account, whose usage limit all programs with it share."""
    return Circuit(f"{ACCOUNT}{account}")


def required_circuits(called: Iterable[Circuit]) -> tuple[Circuit, ...]:
    """The circuits that must work for these models to be called: the providers first, then the models, each once."""
    called = tuple(called)
    return tuple(dict.fromkeys((*(Circuit(each.provider) for each in called), *called)))


def circuit_of_call(call: Call) -> Circuit | None:
    """The model that a call requested; None if the call went to no provider of the config."""
    if call.account is not None:
        return account_circuit(call.account)
    return None if call.provider is None else Circuit(call.provider, call.model or "")


def circuit_opened_by(call: Call) -> tuple[Circuit, str] | None:
    """The circuit whose breaker the result of a call opens, and the reason; None if it opens none.

    A rejected key or account (401, 402) affects the whole provider, and so does a Retry-After that is too long to wait for. A
    forbidden or unknown model (403, 404) affects that model only.
    """
    called = None if call.failure is None else circuit_of_call(call)
    if called is None:
        return None
    if call.account is not None:
        return (called, LIMIT_REASON) if call.failure is Failure.LIMITED else None
    if call.status in MODEL_STATUSES:
        return called, str(call.failure)
    if call.failure in (Failure.AUTH, Failure.PAYMENT):
        return Circuit(called.provider), str(call.failure)
    if call.retry_after is not None and call.retry_after > LONGEST_RETRY_AFTER:
        return Circuit(called.provider), RATE_REASON
    return None


def circuit_blamed_for(call: Call) -> tuple[Circuit, str] | None:
    """The circuit at fault for the failure of a call, with the failure's class; None if the request or the answer is at fault."""
    shut_off = circuit_opened_by(call)
    if shut_off is not None or call.provider is None or call.failure not in PROVIDER_FAILURES:
        return shut_off
    return Circuit(call.provider), str(call.failure)


def is_answered(call: Call) -> bool:
    """Whether a model answered a call, usefully or not: then its key, account and model are accepted."""
    if call.account is not None:
        return call.failure is None
    return call.provider is not None and (call.failure is None or call.tokens is not None)


def accounts_of(*called: Called) -> tuple[Circuit, ...]:
    """The circuits of the accounts that these programs use; each once."""
    programs = (runner for runner, _ in called if isinstance(runner, CommandRunner))
    return tuple(dict.fromkeys(account_circuit(runner.account) for runner in programs if runner.account))


def circuits_of(*called: Called) -> tuple[Circuit, ...]:
    """The circuits of these runners, which call models of providers in the config; each once."""
    return tuple(
        dict.fromkeys(Circuit(runner.provider.name, model or "") for runner, model in called if isinstance(runner, ModelRunner))
    )
