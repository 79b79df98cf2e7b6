"""Describes the HTTP API as an OpenAPI document, from the list of its operations and the models of their bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any

from pydantic.json_schema import models_json_schema

from heartbeatd.answers import ConfigErrors, ErrorBody, ResponseBody
from scheduler.model.settings import Permission
from scheduler.web.access import Guarded
from scheduler.web.request_bodies import RequestBody

REFERENCE = "#/components/schemas/"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A key of a query, and the JSON schema of its value."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One request of the API.

    `handler` says who may send it, and what it answers. The first sentence of its docstring is the summary. An answer without a
    model is a text of the type `media_type`. The body, of at most `largest` bytes, is one of `bodies`.
    """

    method: str
    path: str
    handler: Guarded
    bodies: tuple[type[RequestBody], ...] = ()
    query: tuple[QueryParameter, ...] = ()
    largest: int = 0
    media_type: str = JSON

    @property
    def may(self) -> Permission | None:
        """The permission that a token needs; None: any token is enough."""
        return self.handler.may

    @property
    def answers(self) -> tuple[type[ResponseBody], ...]:
        """The models of the answer."""
        return self.handler.answers


def build_document(operations: tuple[Operation, ...], version: str) -> dict[str, Any]:
    """The OpenAPI document of these operations, as JSON data."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe_operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "heartbeatd", "version": version, "summary": "The HTTP API of heartbeatd."},
        "paths": paths,
        "components": {
            "schemas": _schemas(operations),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _describe_operation(operation: Operation) -> dict[str, Any]:
    summary, _, details = cleandoc(operation.handler.__doc__ or "").partition(". ")
    described: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": summary.rstrip("."),
        "description": f"{details} Needs a token{f' with the permission `{operation.may}`' if operation.may else ''}.".strip(),
        "parameters": [*_path_parameters(operation), *_query_parameters(operation)],
        "responses": _responses(operation),
    }
    if operation.bodies and operation.method != "DELETE":
        is_required = all(any(field.is_required() for field in body.model_fields.values()) for body in operation.bodies)
        described["requestBody"] = {"required": is_required, "content": {JSON: {"schema": _one_of(operation.bodies)}}}
    return described


def _path_parameters(operation: Operation) -> Iterable[dict[str, Any]]:
    schemas = {"id": {"type": "integer", "minimum": 1}, "name": {"type": "string", "minLength": 1}}
    for name in re.findall(r"\{(\w+)\}", operation.path):
        yield {"name": name, "in": "path", "required": True, "schema": schemas[name]}


def _query_parameters(operation: Operation) -> Iterable[dict[str, Any]]:
    """The keys of the query. A DELETE has the keys of its body there, because some clients cannot send a body with it."""
    for each in operation.query:
        yield {"name": each.name, "in": "query", "description": each.description, "schema": dict(each.schema)}
    if operation.method == "DELETE":
        for body in operation.bodies:
            schema = body.model_json_schema()
            for name, form in schema["properties"].items():
                yield {"name": name, "in": "query", "required": name in schema["required"], "schema": form}


def _responses(operation: Operation) -> dict[str, Any]:
    answer = _one_of(operation.answers) if operation.answers else {"type": "string"}
    error = {
        "description": "Rejected. `error.message` says what to do instead.",
        "content": {JSON: {"schema": _one_of((ErrorBody,))}},
    }
    failed = {"description": "The daemon cannot do it now, for example because its disk is full.", "content": error["content"]}
    found = {
        "200": {"description": "Done.", "content": {operation.media_type: {"schema": answer}}},
        "4XX": error,
        "5XX": failed,
    }
    if operation.path.endswith(("/-/reload", "/config")):
        found["422"] = {"description": "The config has errors.", "content": {JSON: {"schema": _one_of((ConfigErrors,))}}}
    return found


def _one_of(models: Iterable[type[RequestBody | ResponseBody]]) -> dict[str, Any]:
    references = [{"$ref": f"{REFERENCE}{model.__name__}"} for model in models]
    return references[0] if len(references) == 1 else {"anyOf": references}


def _schemas(operations: Iterable[Operation]) -> dict[str, Any]:
    """The JSON schema of every model by its name. Those of answers allow further keys, which later versions may add."""
    bodies = {body for operation in operations for body in operation.bodies}
    replies: set[type[ResponseBody]] = {answer for operation in operations for answer in operation.answers} | {
        ErrorBody,
        ConfigErrors,
    }
    sent = _definitions(bodies)
    return dict(sorted({**sent, **_definitions(replies)}.items()))


def _definitions(models: Iterable[type[RequestBody | ResponseBody]]) -> dict[str, Any]:
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schema = models_json_schema([(model, "validation") for model in ordered], ref_template=REFERENCE + "{model}")
    found: dict[str, Any] = schema["$defs"]
    return found
