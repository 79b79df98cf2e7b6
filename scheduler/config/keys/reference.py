"""Generates docs/reference.md from the models of config.yaml: `python -m scheduler.config.keys.reference > docs/reference.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from scheduler.config.keys.models import config_schema

_HEAD = """# config.yaml

Every key with its form and its default. This page is generated from the models (`python -m scheduler.config.keys.reference`).
`heartbeatd schema` prints the same as JSON Schema for an editor.

- A duration has units: `90s`, `30m`, `1h30m`, `2d`. A rate is `5 per 10m`. A time is quoted: `"08:00"`. Zones are IANA names.
- An amount of tokens is a number, or a number of thousands or millions: `200k`, `1m`.
- A list with a single name may be written without brackets.
- Names of agents, jobs, providers, channels and tokens: 1 to 63 characters of `A-Z a-z 0-9 . _ -`, not starting with `.` or `-`.
- Relative paths start at the folder of config.yaml.
- A relative program with a slash, such as `./x.sh`, is looked for in the folder in which it is started: the workspace for agents
  (`runner.argv`, `precheck.command`), `workdir` for jobs (`command`, `shell`; by default the folder of config.yaml), and the
  folder of config.yaml for `argv` of channels. A program without a slash is looked for in the PATH of the entry's `env`, else in
  the daemon's PATH.
- Limits of a prompt: a checklist, context or memory file has at most 64 KiB, and links below the workspace are not followed.
  The prompt contains the last 4,096 characters of a wake's text, at most 80,000 characters of all wakes together, and the first
  16,384 characters of a precheck's output. `max_input_tokens` limits the prompt as a whole. If the checklist cannot be read, the
  run is skipped; if another file cannot be read, the prompt only names it. Everything that was left out is listed in the run
  record (`left_out`), in its log line, and by `explain`.
- Top-level keys that begin with `x-` are ignored; use them for YAML anchors.
- `HEARTBEATD_SET__defaults__heartbeat__interval=10m` in the environment sets a value by its path.
"""


def render_reference() -> str:
    """The page in Markdown."""
    made = config_schema()
    return "\n".join([_HEAD, *_render_section("Top level", made, made["$defs"], {})])


def _render_section(title: str, model: Mapping[str, Any], models: Mapping[str, Any], seen: dict[str, str]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| key | form | default | |"
    yield "|---|---|---|---|"
    inner: list[tuple[str, str]] = []
    for key, form in model["properties"].items():
        names = _model_names(form)
        path = key if title == "Top level" else f"{title}.{key}"
        if names and "additionalProperties" in form:
            path = f"{path}.NAME"
        for name in names:
            if name not in seen:
                seen[name] = path
                inner.append((name, path if len(names) == 1 else f"{path}, kind {_join_kinds(models[name])}"))
        default = _describe_default(form, required=key in model.get("required", ()))
        yield f"| `{key}` | {_describe_form(form, names, seen)} | {default} | {form['description']} |"
    yield ""
    for name, path in inner:
        yield from _render_section(path, models[name], models, seen)


def _model_names(form: Mapping[str, Any]) -> list[str]:
    """The names of the models that a key may contain; none for a plain value."""
    named = form.get("additionalProperties", {})
    among = [*form.get("anyOf", ()), *form.get("oneOf", ()), *(named.get("anyOf", ()) if isinstance(named, dict) else ())]
    parts = [form, named, *among]
    return [part["$ref"].rpartition("/")[2] for part in parts if isinstance(part, dict) and "$ref" in part]


def _join_kinds(model: Mapping[str, Any]) -> str:
    kind = model["properties"]["kind"]
    return " or ".join(kind.get("enum") or [kind["const"]])


def _describe_form(form: Mapping[str, Any], names: list[str], seen: Mapping[str, str]) -> str:
    if "x-form" in form:
        return str(form["x-form"])
    if "const" in form or "enum" in form:
        return " \\| ".join(f"`{word}`" for word in form.get("enum") or [form["const"]])
    if "additionalProperties" not in form:
        return f"map, see `{seen[names[0]]}`"
    return f"{'texts or ' if 'anyOf' in form['additionalProperties'] else ''}maps by name, see `{seen[names[0]]}`"


def _describe_default(form: Mapping[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    if "x-else" in form:
        return str(form["x-else"])
    default = form.get("default")
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, dict):
        return f"`{{{', '.join(f'{key}: {value}' for key, value in default.items())}}}`"
    return f"`{default}`" if default != "" else "empty"


if __name__ == "__main__":
    sys.stdout.write(render_reference())
