"""Makes the forms that send a verb from the class of the verb: a button, and an input for each field that has a title."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import get_args

from heartbeatd.operations import Concern, Endpoint, keys_of
from heartbeatd.verbs import VERB_ENDPOINTS, Verb

KINDS = {bool: "checkbox", int: "number", timedelta: "duration"}  # of inputs; any other value is a text


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a form. `kind` is checkbox, number, duration or text."""

    key: str
    label: str
    kind: str


@dataclass(frozen=True, slots=True)
class VerbForm:
    """The form of a verb for one kind of subject."""

    endpoint: Endpoint
    verb: type[Verb]

    @property
    def word(self) -> str:
        """The last word of the path."""
        return self.endpoint.path.rpartition("/")[2]

    @property
    def inputs(self) -> list[Input]:
        titled = ((key, field) for key, field in keys_of(self.verb).items() if field.title)
        return [Input(key, str(field.title).rstrip("."), _kind_of(field.annotation)) for key, field in titled]


def _kind_of(annotation: object) -> str:
    return next((KINDS[each] for each in (annotation, *get_args(annotation)) if each in KINDS), "text")


@cache
def forms_of(subject: str) -> tuple[VerbForm, ...]:
    """The forms for an agent, a job, a run, a message or a problem, in the order of the verbs."""
    concern = Concern[subject.upper()]
    listed = ((each, each.operation) for each in VERB_ENDPOINTS.values() if each.concern is concern)
    return tuple(VerbForm(each, verb) for each, verb in listed if issubclass(verb, Verb) and verb.button)
