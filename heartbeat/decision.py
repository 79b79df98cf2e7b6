"""The decision that may come before a run: is there something to do, and what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from heartbeat.prompt import Prompt, PromptFacts, PromptPart, compose_prompt
from heartbeat.runners import MAX_ANSWER, Tokens
from heartbeat.spec import Heartbeat

TOOL_NAME = "decide"
TOOL_DESCRIPTION = "Say whether this heartbeat has something to do now, and what."
TOOL_SCHEMA = {
    "type": "object",
    "properties": {
        "action": {
            "type": "string",
            "enum": ["skip", "run"],
            "description": "run: at least one task of the checklist is to be carried out now; skip: none is.",
        },
        "tasks": {
            "type": "string",
            "description": "With run: what to do now, in words that need no further context. With skip: empty.",
        },
    },
    "required": ["action", "tasks"],
    "additionalProperties": False,
}

_CONTRACT = """\
This is a heartbeat: nobody wrote to the agent, the time has come. Decide whether it has something to do now.
Judge by the checklist and the facts below alone. Choose run when a task is due or what woke the agent needs attention, and name \
the tasks; choose skip when there is nothing. When in doubt, choose run. Do not carry anything out."""


class Action(StrEnum):
    SKIP = "skip"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided: with `run` the agent is given `tasks`. The others say what it took, and its name at the provider."""

    action: Action
    tasks: str
    tokens: Tokens | None = None
    model_used: str | None = None
    request_id: str | None = None


class InvalidDecision(ValueError):
    """What came back is no decision; the text says why in one line."""


def decision_prompt(facts: PromptFacts, heartbeat: Heartbeat) -> Prompt:
    """What is asked: the facts and the checklist, never a context file or the heartbeat's own prompt."""
    parts = compose_prompt(facts, replace(heartbeat, light_context=True)).parts
    return Prompt((PromptPart("contract", _CONTRACT), *(part for part in parts if part.name != "contract")))


def parse_decision(given: object) -> Decision:
    """The decision in the arguments of the forced tool; Undecided for whatever leaves a doubt."""
    if not isinstance(given, Mapping):
        raise InvalidDecision("the decision is not an object")
    action, tasks = given.get("action"), given.get("tasks")
    if action not in tuple(Action):
        raise InvalidDecision("the decision's action is neither skip nor run")
    if tasks is None:
        tasks = ""
    if not isinstance(tasks, str):
        raise InvalidDecision("the decision's tasks are not a text")
    if action == Action.RUN and not tasks.strip():
        raise InvalidDecision("the decision is to run, but names no tasks")
    if len(tasks.encode(errors="replace")) > MAX_ANSWER:
        raise InvalidDecision(f"the decision's tasks are larger than {MAX_ANSWER} bytes")
    return Decision(Action(action), tasks.strip())
