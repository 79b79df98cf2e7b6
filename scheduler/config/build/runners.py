"""The ways to an agent: each runner of the file as the one that the daemon asks by."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import timedelta
from typing import TypeVar

from heartbeat.spec import CommandRunner, Decide, HttpRunner, ModelRunner, Provider, PythonRunner, Runner
from scheduler.config.build.config_node import Spot
from scheduler.config.build.prices import Prices
from scheduler.config.build.providers import Providers
from scheduler.config.file.remedies import Remedy, Wrong, as_yaml
from scheduler.config.keys import models
from scheduler.config.keys.value_parsers import is_web_address
from scheduler.model.secret import Secret

CHEAP = "claude-haiku-5-5"  # the model of an agent that names none, at Anthropic
NOBODY = CommandRunner((), {})  # stands where a fault is noted
NO_TIME = timedelta(0)

Shared = TypeVar("Shared")


class Runners:
    """Makes the runners of all agents; those that differ in nothing are one and the same."""

    def __init__(self, providers: Providers, prices: Prices) -> None:
        self._providers = providers
        self._prices = prices
        self._made: dict[Hashable, object] = {}

    def runner(self, agent: models.Agent, spot: Spot) -> Runner:
        """How an agent is asked; NOBODY after a fault."""
        used = is_enabled(agent)
        if not spot.knows("runner"):
            return NOBODY
        match agent.runner:
            case models.ModelRunner():
                return self._model(agent, agent.runner, spot)
            case models.CommandRunner(argv=argv):
                env = spot.variables(agent.runner.env, "runner", "env", used=used)
                return self._shared((argv, tuple(env.items())), CommandRunner(argv, env))
            case models.HttpRunner():
                return self._http(agent.runner, spot, used=used)
            case models.PythonRunner(call=call, in_process=inside):
                return self._shared((call, inside), PythonRunner(call, inside))

    def outside_heartbeat(self, agent: models.Agent, runner: Runner, spot: Spot) -> Runner:
        """How an agent whose heartbeat asks by `runner` is asked otherwise: not at the heartbeat's own provider."""
        part = agent.runner
        if agent.heartbeat.provider is None or not isinstance(part, models.ModelRunner):
            return runner
        inside = ("runner", "provider") if part.provider else ("runner",)
        provider = self._providers.find(part.provider or part.kind, spot, *inside, used=is_enabled(agent))
        return self._bounded(provider, agent) if provider else runner

    def decide(self, agent: models.Agent, spot: Spot) -> Decide | None:
        """Who decides first, if somebody does."""
        part = agent.heartbeat.decide
        if part is None:
            return None
        name, inside = (part.provider, ("heartbeat", "decide", "provider")) if part.provider else _whom(agent)
        provider = self._providers.find(name, spot, *inside, used=is_enabled(agent))
        if provider is None:
            return None
        self._look_up(part.model, agent, spot, "heartbeat", "decide", "model")
        runner = self._bounded(provider, agent)
        return self._shared((provider.name, runner.max_output_tokens, part.model), Decide(runner, part.model))

    def model(self, agent: models.Agent, runner: Runner, spot: Spot) -> str | None:
        """What its beats ask for; None leaves the choice to the agent."""
        named = agent.heartbeat.model or agent.model
        if not isinstance(runner, ModelRunner):
            return named
        if named is None and runner.provider.kind == "openai":
            spot.fault(f"is missing; write model: NAME, one that {runner.provider.name} has", "model")
            return None
        self._look_up(named or CHEAP, agent, spot, *(("heartbeat", "model") if agent.heartbeat.model else ("model",)))
        return named or CHEAP

    def _model(self, agent: models.Agent, part: models.ModelRunner, spot: Spot) -> Runner:
        name, inside = _whom(agent)
        provider = self._providers.find(name, spot, *inside, used=is_enabled(agent))
        own = self._own(part, spot) if agent.heartbeat.provider else provider
        if own and own.kind != part.kind:
            right = {"kind": own.kind, "provider": own.name}
            wrong = Wrong(
                f"the provider {own.name} is of kind {own.kind}", Remedy(right), words=f"write runner: {as_yaml(right)}"
            )
            spot.fault(wrong, "runner")
            return NOBODY
        return self._bounded(provider, agent) if provider else NOBODY

    def _own(self, part: models.ModelRunner, spot: Spot) -> Provider | None:
        """The provider that the runner names, though the heartbeat asks another."""
        return self._providers.find(part.provider, spot, "runner", "provider", used=False) if part.provider else None

    def _bounded(self, provider: Provider, agent: models.Agent) -> ModelRunner:
        bound = agent.heartbeat.max_output_tokens
        return self._shared((provider.name, bound), ModelRunner(provider, bound))

    def _http(self, part: models.HttpRunner, spot: Spot, *, used: bool) -> Runner:
        url = spot.secret(part.url, "runner", "url", used=used)
        headers = spot.environment(part.headers, "runner", "headers", used=used)
        if not spot.frame.vault.sealed:
            if url and not is_web_address(url.reveal()):
                spot.fault("this is not the address of an agent; write http:// or https:// with a host", "runner", "url")
            for name, value in headers.items():
                if not _fits_a_header(value):
                    spot.fault("a header holds ASCII letters, digits and signs, on one line", "runner", "headers", name)
        return self._shared((url, tuple(headers.items())), HttpRunner(url or Secret(""), headers))

    def _look_up(self, model: str, agent: models.Agent, spot: Spot, *inside: str) -> None:
        if is_enabled(agent):
            self._prices.look_up(model, spot, *inside)

    def _shared(self, key: Hashable, value: Shared) -> Shared:
        made: Shared = self._made.setdefault((type(value), key), value)  # type: ignore[assignment]
        return made


def is_enabled(agent: models.Agent) -> bool:
    return agent.heartbeat.enabled and agent.heartbeat.interval != NO_TIME


def calls_model(agent: models.Agent) -> bool:
    """Whether a beat asks a model, as far as the daemon can tell: what an agent does itself is its own business."""
    return isinstance(agent.runner, models.ModelRunner) or agent.heartbeat.decide is not None


def asks_provider(agent: models.Agent) -> bool:
    """Whether `heartbeat.provider` would be asked: by the agent's own runner, or by a decision that names no other."""
    decide = agent.heartbeat.decide
    return isinstance(agent.runner, models.ModelRunner) or (decide is not None and decide.provider is None)


def _whom(agent: models.Agent) -> tuple[str, tuple[str, ...]]:
    """The provider of an agent by name, and where that is written."""
    if agent.heartbeat.provider:
        return agent.heartbeat.provider, ("heartbeat", "provider")
    if not isinstance(agent.runner, models.ModelRunner):
        return "anthropic", ("heartbeat", "decide", "provider")
    if agent.runner.provider:
        return agent.runner.provider, ("runner", "provider")
    return agent.runner.kind, ("runner",)


def _fits_a_header(value: object) -> bool:
    return isinstance(value, Secret) and all(" " <= character <= "~" or character == "\t" for character in value.reveal())
