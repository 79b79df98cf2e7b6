"""Describes the HTTP API as an OpenAPI document, from the classes of its operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from heartbeatd.answers import ConfigErrors, ErrorBody
from heartbeatd.operations import Endpoint
from scheduler.web import event_stream
from scheduler.web.alertmanager import AlertmanagerBody

REFERENCE = "#/components/schemas/"
JSON = "application/json"
SECOND_BODIES: dict[str, tuple[type[BaseModel], ...]] = {"wake_agent": (AlertmanagerBody,)}  # beside the operation itself
PATH_SCHEMAS = {"id": {"type": "integer", "minimum": 1}, "name": {"type": "string", "minLength": 1}}


def build_document(endpoints: Iterable[Endpoint], version: str) -> dict[str, object]:
    """The OpenAPI document of these requests and of the event stream, as JSON data."""
    listed = tuple(endpoints)
    paths: dict[str, dict[str, object]] = {event_stream.PATH: {"get": _describe_events()}}
    for endpoint in listed:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _describe(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "heartbeatd", "version": version, "summary": "The HTTP API of heartbeatd."},
        "paths": paths,
        "components": {"schemas": _schemas(listed), "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _describe(endpoint: Endpoint) -> dict[str, object]:
    refused = {"422": {"description": "The config has errors.", "content": {JSON: {"schema": _one_of((ConfigErrors,))}}}}
    if not endpoint.operation.may_be_refused_by_config:
        refused = {}
    described: dict[str, object] = {
        "operationId": endpoint.name,
        **_sentences(*endpoint.describes, endpoint.may),
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint)],
        "responses": _responses(JSON, _one_of(endpoint.operation.answers())) | refused,
    }
    if bodies := _bodies(endpoint):
        is_required = all(any(field.is_required() for field in body.model_fields.values()) for body in bodies)
        described["requestBody"] = {"required": is_required, "content": {JSON: {"schema": _one_of(bodies)}}}
    return described


def _describe_events() -> dict[str, object]:
    summary, _, details = (event_stream.stream_events.__doc__ or "").partition(". ")
    return {
        "operationId": "stream_events",
        **_sentences(summary, details, event_stream.MAY),
        "parameters": [],
        "responses": _responses("text/event-stream", {"type": "string"}),
    }


def _sentences(summary: str, details: str, may: str | None) -> dict[str, str]:
    needs = f"Needs a token{f' with the permission `{may}`' if may else ''}."
    return {"summary": summary, "description": f"{' '.join(details.split())} {needs}".strip()}


def _bodies(endpoint: Endpoint) -> tuple[type[BaseModel], ...]:
    """The forms of the body. A GET and a DELETE have none: their keys are in the query."""
    if endpoint.method in ("GET", "DELETE"):
        return ()
    return (*SECOND_BODIES.get(endpoint.name, ()), endpoint.operation)


def _path_parameters(endpoint: Endpoint) -> Iterator[dict[str, object]]:
    for name in re.findall(r"\{(\w+)\}", endpoint.path):
        yield {"name": name, "in": "path", "required": True, "schema": PATH_SCHEMAS[name]}


def _query_parameters(endpoint: Endpoint) -> Iterator[dict[str, object]]:
    """The keys of the query. A DELETE has the keys of its body there, because some clients cannot send a body with it."""
    if endpoint.method not in ("GET", "DELETE"):
        return
    schema = endpoint.operation.model_json_schema()
    for name, form in schema["properties"].items():
        described, required = without_null(form), name in schema.get("required", ())
        description = described.pop("description")
        yield {"name": name, "in": "query", "description": description, "required": required, "schema": described}


def without_null(form: Mapping[str, Any]) -> dict[str, object]:
    """The schema of a key that is left out instead of being null, as in a query."""
    plain = next((each for each in form.get("anyOf", ()) if each != {"type": "null"}), form)
    described = {"description": form["description"]} if "description" in form else {}
    return {key: value for key, value in plain.items() if key not in ("title", "default")} | described


def _responses(media_type: str, answer: dict[str, object]) -> dict[str, object]:
    error = {
        "description": "Rejected. `error.message` says what to do instead.",
        "content": {JSON: {"schema": _one_of((ErrorBody,))}},
    }
    failed = {"description": "The daemon cannot do it now, for example because its disk is full.", "content": error["content"]}
    return {"200": {"description": "Done.", "content": {media_type: {"schema": answer}}}, "4XX": error, "5XX": failed}


def _one_of(models: Iterable[type[BaseModel]]) -> dict[str, object]:
    references: list[dict[str, object]] = [{"$ref": f"{REFERENCE}{model.__name__}"} for model in models]
    return references[0] if len(references) == 1 else {"anyOf": references}


def _schemas(endpoints: Iterable[Endpoint]) -> dict[str, object]:
    """The JSON schema of every model by its name. Those of answers allow further keys, which later versions may add."""
    models: set[type[BaseModel]] = {ErrorBody, ConfigErrors}
    for endpoint in endpoints:
        models.update(_bodies(endpoint), endpoint.operation.answers())
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schema = models_json_schema([(model, "validation") for model in ordered], ref_template=REFERENCE + "{model}")
    found: dict[str, object] = schema["$defs"]
    return found
