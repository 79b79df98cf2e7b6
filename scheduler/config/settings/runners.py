"""Builds the runners of agents: how each agent is called, and with which tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from heartbeat.spec import (
    Called,
    ClaudeCode,
    CommandRunner,
    Decide,
    Fallback,
    Heartbeat,
    HttpRunner,
    McpServer,
    ModelRunner,
    Provider,
    PythonRunner,
    Runner,
    Tools,
    offered_name,
)
from heartbeatd.secret import Secret
from scheduler.config.file.message_parts import as_yaml, undeclared_name
from scheduler.config.keys import models
from scheduler.config.settings.config_node import ConfigNode, build_spec
from scheduler.config.settings.entry_parts import NO_TIME, choose_effort
from scheduler.config.settings.file_checks import SHELLS
from scheduler.config.settings.providers import Prices, Providers
from scheduler.model.budget import find_price
from scheduler.system import extras

DEFAULT_MODEL = "claude-haiku-5-5"  # the model of agents at Anthropic that set none
NO_RUNNER = CommandRunner((), {})  # takes the place of a runner with errors
CLAUDE_LOGIN = "CLAUDE_CODE_OAUTH_TOKEN"  # not ANTHROPIC_API_KEY, which Claude Code would bill in place of a subscription
MAX_TOOL_NAME = 64  # characters, for a model
NO_FALLBACK = "a fallback needs a model or a runner; write a model, {provider: NAME, model: NAME} or {runner: NAME}"
NO_SERVER = 'no server is named; write mcp: [{name: disk, url: "https://...", allow: [free]}], or remove tools'


class Runners:
    """Builds the runners of all agents."""

    def __init__(self, providers: Providers, prices: Prices) -> None:
        self._providers = providers
        self.prices = prices

    def build_runner(self, agent: models.Agent, node: ConfigNode) -> Runner:
        """The runner of an agent; NO_RUNNER after an error."""
        if isinstance(agent.runner, models.ModelRunner):
            return self._build_model_runner(agent, agent.runner, node)
        return _build_program(agent.runner, node.below("runner"))

    def build_fallbacks(
        self, parts: Sequence[models.Fallback], own: Called, agent: models.Agent, node: ConfigNode
    ) -> tuple[Fallback, ...]:
        """The fallbacks of an agent, its heartbeat or a job, with the key `fallbacks` at `node`. `own` is what it calls first."""
        found: list[Fallback] = []
        called = [own]
        for index, part in enumerate(parts):
            at = node.below("fallbacks", index)
            made = self._build_fallback(part, own[0], agent, at)
            if made is None:
                continue
            if (made.runner, made.model) in called:
                at.add_error(f"{made.name} is called before already; remove it, or write a different one")
            if isinstance(made.runner, ModelRunner) and made.model:
                self.prices.check_price(made.model, made.runner.provider, at)
            called.append((made.runner, made.model))
            found.append(made)
        return tuple(found)

    def _build_fallback(self, part: models.Fallback, own: Runner, agent: models.Agent, at: ConfigNode) -> Fallback | None:
        """One fallback; None after an error."""
        effort = choose_effort(part.effort)
        if part.runner is not None:
            if part.provider is not None:
                at.add_error("a fallback has a runner or a provider, but not both; remove one of them", "provider")
            runner = self._build_named_runner(part.runner, agent, at)
        elif part.model is None:
            at.add_error(NO_FALLBACK)
            return None
        elif part.provider is None:
            runner = own
        else:
            provider = self._providers.find_provider(part.provider, at, "provider")
            tools = own.tools if isinstance(own, ModelRunner) else None
            runner = _limited_runner(provider, agent, tools) if provider else None
        if runner is None:
            return None
        model = require_model(part.model, runner, at, "model")
        return Fallback("/".join(filter(None, (part.runner or part.provider, model))), runner, model, effort)

    def _build_named_runner(self, name: str, agent: models.Agent, at: ConfigNode) -> Runner | None:
        """A runner of the section `runners`; None after an error."""
        declared = at.context.config.runners
        if name not in declared:
            at.add_error(undeclared_name(name, "runner", declared), "runner")
            return None
        part, keys = declared[name], at.context.entry("runners", name, used=at.used)
        if not isinstance(part, models.ModelRunner):
            return _build_program(part, keys)
        inside = ("provider",) if part.provider else ()
        provider = self._providers.find_provider(part.provider or part.kind, keys, *inside)
        tools = _build_tools(part.tools, keys.below("tools")) if part.tools else None
        return _limited_runner(provider, agent, tools) if provider else None

    def build_job_runner(self, agent: models.Agent, runner: Runner, node: ConfigNode) -> Runner:
        """The runner for jobs that call the agent: like its `runner`, but not with the provider of the heartbeat."""
        part = agent.runner
        if agent.heartbeat.provider is None or not isinstance(part, models.ModelRunner):
            return runner
        inside = ("runner", "provider") if part.provider else ("runner",)
        provider = self._providers.find_provider(part.provider or part.kind, node, *inside)
        return replace(runner, provider=provider) if provider and isinstance(runner, ModelRunner) else runner

    def build_decide(self, agent: models.Agent, node: ConfigNode) -> Decide | None:
        """The model that decides before a run; None if there is none."""
        part = agent.heartbeat.decide
        if part is None:
            return None
        name, inside = (part.provider, ("heartbeat", "decide", "provider")) if part.provider else _provider_of(agent)
        provider = self._providers.find_provider(name, node, *inside)
        if provider is None:
            return None
        self.prices.check_price(part.model, provider, node, "heartbeat", "decide", "model")
        return Decide(_limited_runner(provider, agent), part.model)

    def warn_if_decide_is_costly(self, beat: Heartbeat, node: ConfigNode) -> None:
        """Warn about a decision without a precheck, if its model costs as much as the model of the run.

        This decision gets the same checklist and facts as the run, so it knows no more, and a run costs both calls. It may save
        something if it leaves out context files, earlier messages or the text of `prompt`. There is no warning if the cost is
        unknown: for a program, a URL or a function, and for models without prices.
        """
        decide = beat.decide
        if decide is None or beat.precheck or beat.model is None or not (beat.enabled and isinstance(beat.runner, ModelRunner)):
            return
        leaves_out = beat.context_files or beat.session_keep or beat.prompt
        if not leaves_out and self._costs_as_much(decide.runner.provider, decide.model, beat.runner.provider, beat.model):
            problem = "without a precheck, this model gets no more facts than the agent's own model, and it is not cheaper"
            node.add_warning(f"{problem}; remove decide, add a precheck, or write a cheaper model", "heartbeat", "decide")

    def _costs_as_much(self, provider: Provider, model: str, other_provider: Provider, other: str) -> bool:
        """Whether the prices of a model are surely not below those of another, which is not free."""
        if (provider.name, model) == (other_provider.name, other):
            return True
        price = find_price(self.prices.by_model, provider.name, model)
        others = find_price(self.prices.by_model, other_provider.name, other)
        if price is None or others is None or not (others.input or others.output):
            return False
        return price.input >= others.input and price.output >= others.output

    def choose_model(self, agent: models.Agent, runner: Runner, node: ConfigNode) -> str | None:
        """The model of its heartbeat runs; None leaves the choice to the agent."""
        inside = ("heartbeat", "model") if agent.heartbeat.model else ("model",)
        model = require_model(agent.heartbeat.model or agent.model, runner, node, *inside)
        if isinstance(runner, ModelRunner) and model:
            self.prices.check_price(model, runner.provider, node, *inside)
        return model

    def _build_model_runner(self, agent: models.Agent, part: models.ModelRunner, node: ConfigNode) -> Runner:
        name, inside = _provider_of(agent)
        provider = self._providers.find_provider(name, node, *inside)
        own = provider
        if agent.heartbeat.provider:  # the runner may name a provider too, which is then not used
            unused = replace(node, used=False)
            own = self._providers.find_provider(part.provider, unused, "runner", "provider") if part.provider else None
        if own and own.kind != part.kind:
            right = {"kind": own.kind, "provider": own.name}
            problem = f"the provider {own.name} is of kind {own.kind}"
            node.add_error(f"{problem}; write runner: {as_yaml(right)}", "runner")
            return NO_RUNNER
        tools = _build_tools(part.tools, node.below("runner", "tools")) if part.tools else None
        return _limited_runner(provider, agent, tools) if provider else NO_RUNNER


def _build_program(
    part: models.ClaudeCodeRunner | models.CommandRunner | models.HttpRunner | models.PythonRunner, keys: ConfigNode
) -> Runner:
    """A runner that calls no model itself. `keys` are its own."""
    match part:
        case models.ClaudeCodeRunner(program=program):
            token = keys.context.secrets.find_variable(CLAUDE_LOGIN)
            return _build_command(part, (program,), keys, ClaudeCode(part.allow, {CLAUDE_LOGIN: token} if token else {}))
        case models.CommandRunner(argv=argv):
            return _build_command(part, argv, keys)
        case models.HttpRunner():
            url = keys.resolve_address(part.url, "url")
            headers = keys.build_headers(part.headers, "headers")
            return HttpRunner(url or Secret(""), headers)
        case models.PythonRunner():
            return build_spec(part, PythonRunner)


def _build_command(
    part: models.ClaudeCodeRunner | models.CommandRunner,
    argv: tuple[str, ...],
    keys: ConfigNode,
    claude: ClaudeCode | None = None,
) -> CommandRunner:
    env, account = keys.build_variables(part.env, "env"), part.account
    name = account.name or _program_name(argv)
    return build_spec(part, CommandRunner, argv=argv, env=env, account=name, max_runs=account.max_runs, claude=claude)


def calls_claude(runner: Runner) -> bool:
    """Whether the runner is Claude Code, called by its own kind of runner."""
    return isinstance(runner, CommandRunner) and runner.claude is not None


def find_usd_limit(budget: models.Budget | None, runner: Runner, fallbacks: Sequence[Fallback]) -> float | None:
    """The cost of a try at which Claude Code stops; None if there is no limit, or if nothing else knows it."""
    is_used = any(map(calls_claude, (runner, *(each.runner for each in fallbacks))))
    return budget.usd_per_try if budget and is_used else None


def require_model(named: str | None, runner: Runner, node: ConfigNode, *inside: str) -> str | None:
    """The named model, or the default one of the provider; without one, an error. None leaves the choice to the agent.

    `inside` are the steps to the key that names it.
    """
    if named is not None and named.startswith("-") and calls_claude(runner):
        node.add_error(f"{named!r} would be an option of Claude Code; write the name of a model", *inside)
    if named is not None or not isinstance(runner, ModelRunner):
        return named
    if runner.provider.kind == "anthropic":
        return DEFAULT_MODEL
    node.add_error(f"is missing; write model: NAME, with a model of provider {runner.provider.name}", missing="model")
    return None


def _limited_runner(provider: Provider, agent: models.Agent, tools: Tools | None = None) -> ModelRunner:
    return ModelRunner(provider, agent.heartbeat.max_output_tokens, tools)


def _program_name(argv: Sequence[str]) -> str:
    """The name of the program that is started, or that a shell starts."""
    first, *rest = argv
    if Path(first).name in SHELLS and len(rest) >= 2 and rest[0] == "-c":
        first = (rest[1].split() or [first])[0]
    return Path(first).name


def is_enabled(agent: models.Agent) -> bool:
    return agent.heartbeat.enabled and agent.heartbeat.interval != NO_TIME


def calls_model(agent: models.Agent) -> bool:
    """Whether a run calls a model as far as the daemon knows; programs may call models themselves."""
    return isinstance(agent.runner, models.ModelRunner) or agent.heartbeat.decide is not None


def uses_provider(agent: models.Agent) -> bool:
    """Whether `heartbeat.provider` is used: by the agent's runner, or by `decide` without a provider of its own."""
    decide = agent.heartbeat.decide
    return isinstance(agent.runner, models.ModelRunner) or (decide is not None and decide.provider is None)


def _provider_of(agent: models.Agent) -> tuple[str, tuple[str, ...]]:
    """The name of an agent's provider, and the steps to the key that sets it."""
    if agent.heartbeat.provider:
        return agent.heartbeat.provider, ("heartbeat", "provider")
    if not isinstance(agent.runner, models.ModelRunner):
        return "anthropic", ("heartbeat", "decide", "provider")
    if agent.runner.provider:
        return agent.runner.provider, ("runner", "provider")
    return agent.runner.kind, ("runner",)


def _build_tools(part: models.Tools, node: ConfigNode) -> Tools | None:
    """The tools of a runner, whose key is at `node`; None after an error, and if there is no server."""
    if not part.mcp:
        node.add_error(NO_SERVER, missing="mcp")
        return None
    if (missing := extras.describe_missing("executors", "tools")) is not None:
        node.add_error(missing)
        return None
    _check_names(part.mcp, node)
    servers = tuple(_build_server(server, node.below("mcp", index)) for index, server in enumerate(part.mcp))
    return Tools(servers, part.max_turns)


def _build_server(part: models.McpServer, node: ConfigNode) -> McpServer:
    url = node.resolve_address(part.url, "url")
    headers = node.build_headers(part.headers, "headers")
    if part.url and part.command:
        node.add_error("a server has a url or a command, but not both; remove one of them", "command")
    elif not part.url and not part.command:
        problem = "the server has neither a url nor a command"
        node.add_error(f'{problem}; write url: "https://...", or command: [program, argument]')
    elif part.headers and part.command:
        node.add_error("a program gets no headers; write env instead, or remove headers", "headers")
    elif part.env and part.url:
        node.add_error("a server at a url gets no variables; write headers instead, or remove env", "env")
    for name in set(part.approve or ()) - set(part.allow):
        node.add_error(f"allow does not have {name}; write it there too, or remove it here", "approve")
    return build_spec(
        part,
        McpServer,
        approve=part.approve or (),
        url=(url or Secret("")) if part.url else None,
        headers=headers,
        env=node.build_variables(part.env, "env"),
    )


def _check_names(servers: list[models.McpServer], node: ConfigNode) -> None:
    """Check that the model can tell all tools apart by their names."""
    seen: set[str] = set()
    names: set[str] = set()
    for index, server in enumerate(servers):
        at = node.below("mcp", index)
        if server.name in names:
            at.add_error(f"another server is named {server.name} too; write a different name", "name")
            continue
        names.add(server.name)
        for number, tool in enumerate(server.allow):
            offered = offered_name(server.name, tool)
            problem = f"the model sees this tool as {offered}"
            if len(offered) > MAX_TOOL_NAME:
                limit = f"a name can have {MAX_TOOL_NAME} characters"
                at.add_error(f"{problem}, and {limit}; write a shorter name of the server", "allow", number)
            elif offered in seen:
                at.add_error(f"{problem}, and another tool too; write a different name of the server", "allow", number)
            seen.add(offered)
