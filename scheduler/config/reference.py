"""The reference of config.yaml, written from its models: `python -m scheduler.config.reference > docs/reference.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from scheduler.config.models import schema

_HEAD = """# config.yaml

Every key, its form and its default. This page is written from the models (`python -m scheduler.config.reference`);
`heartbeatd schema` gives the same to an editor.

- A duration has units: `90s`, `30m`, `1h30m`, `2d`. A rate is `5 per 10m`. A time is quoted: `"08:00"`. Zones are IANA names.
- Where a list of names is expected, a single one may stand without brackets.
- Names of agents, jobs, channels and tokens: 1 to 63 of `A-Z a-z 0-9 . _ -`, and neither `.` nor `-` first.
- Relative paths start at the folder of the file.
- Top-level keys that begin with `x-` are yours: anchors live there.
- `HEARTBEATD_SET__defaults__heartbeat__interval=10m` in the environment sets a value by its path.
"""


def reference() -> str:
    """The page in Markdown."""
    made = schema()
    return "\n".join([_HEAD, *_section("Top level", made, made["$defs"], {})])


def _section(title: str, model: Mapping[str, Any], models: Mapping[str, Any], seen: dict[str, str]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| key | form | default | |"
    yield "|---|---|---|---|"
    inner: list[tuple[str, str]] = []
    for key, form in model["properties"].items():
        name = _model_name(form)
        path = key if title == "Top level" else f"{title}.{key}"
        if name and "additionalProperties" in form:
            path = f"{path}.NAME"
        if name and name not in seen:
            seen[name] = path
            inner.append((name, path))
        default = _default(form, required=key in model.get("required", ()))
        yield f"| `{key}` | {_form(form, name, seen)} | {default} | {form['description']} |"
    yield ""
    for name, path in inner:
        yield from _section(path, models[name], models, seen)


def _model_name(form: Mapping[str, Any]) -> str:
    """The model inside a key's form; empty where it is a plain value."""
    named = form.get("additionalProperties", {})
    parts = [form, named, *form.get("anyOf", ()), *(named.get("anyOf", ()) if isinstance(named, dict) else ())]
    references = [part["$ref"] for part in parts if isinstance(part, dict) and "$ref" in part]
    return references[0].rpartition("/")[2] if references else ""


def _form(form: Mapping[str, Any], name: str, seen: Mapping[str, str]) -> str:
    if "x-form" in form:
        return str(form["x-form"])
    if "const" in form:
        return f"`{form['const']}`"
    if "additionalProperties" not in form:
        return f"map, see `{seen[name]}`"
    return f"{'texts or ' if 'anyOf' in form['additionalProperties'] else ''}maps by name, see `{seen[name]}`"


def _default(form: Mapping[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    if "x-else" in form:
        return str(form["x-else"])
    default = form.get("default")
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`" if default != "" else "empty"


if __name__ == "__main__":
    sys.stdout.write(reference())
