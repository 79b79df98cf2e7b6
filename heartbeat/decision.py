"""Builds the prompt that asks a small model, before a run, whether there is anything to do, and reads its decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heartbeat.prompt import Prompt, PromptFacts, PromptPart, compose_prompt
from heartbeat.runners import MAX_ANSWER, Action, Decision
from heartbeat.spec import Heartbeat

TOOL_NAME = "decide"
TOOL_DESCRIPTION = "Say whether this heartbeat run has anything to do now, and what."
TOOL_SCHEMA = {
    "type": "object",
    "properties": {
        "action": {
            "type": "string",
            "enum": ["skip", "run"],
            "description": "run: at least one task must be carried out now; skip: there is nothing to do.",
        },
        "tasks": {
            "type": "string",
            "description": "With run: what to do now, understandable without further context. With skip: empty.",
        },
    },
    "required": ["action", "tasks"],
    "additionalProperties": False,
}

_CONTRACT = """\
This is a scheduled heartbeat run, not a message from a user. Decide whether the agent has anything to do now.
Use only the checklist and the facts below. Choose run if a task is due or if the reason for waking the agent needs attention, \
and name the tasks. Choose skip if there is nothing to do. If in doubt, choose run. Do not carry out any task."""


class InvalidDecision(ValueError):
    """The response is not a valid decision. The message is one line that gives the reason."""


def decision_prompt(facts: PromptFacts, heartbeat: Heartbeat) -> Prompt:
    """The prompt for the decision: the facts and the checklist, without context files and without the heartbeat's own prompt."""
    parts = compose_prompt(replace(facts, context=()), heartbeat).parts
    return Prompt((PromptPart("contract", _CONTRACT), *(part for part in parts if part.name != "contract")))


def parse_decision(given: object) -> Decision:
    """The decision in the arguments of the forced tool. Raises InvalidDecision if anything is unclear."""
    if not isinstance(given, Mapping):
        raise InvalidDecision("the decision is not an object")
    action, tasks = given.get("action"), given.get("tasks")
    if action not in tuple(Action):
        raise InvalidDecision("the decision's action is neither skip nor run")
    if tasks is None:
        tasks = ""
    if not isinstance(tasks, str):
        raise InvalidDecision("the decision's tasks are not a string")
    if action == Action.RUN and not tasks.strip():
        raise InvalidDecision("the decision is to run, but names no tasks")
    if len(tasks.encode(errors="replace")) > MAX_ANSWER:
        raise InvalidDecision(f"the decision's tasks are larger than {MAX_ANSWER} bytes")
    return Decision(Action(action), tasks.strip())
