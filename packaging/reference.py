"""Generates docs/reference.md from the models of config.yaml: `python packaging/reference.py > docs/reference.md`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping

from scheduler.config.keys.models import Form, config_schema, describe_form, kinds_of_model, models_of_form

MOST_KEYS_OF_A_SHORT_MAP = 2

_HEAD = """# config.yaml

Every key of config.yaml, with its form and its default. `heartbeatd files schema` prints a JSON Schema for editors.

| value | form |
|---|---|
| boolean | `true` or `false` |
| duration | with units: `90s`, `30m`, `1h30m`, `2d` |
| rate | `5 per 10m` |
| time | in quotes: `"08:00"` |
| time zone | an IANA name |
| string with `${NAME}` | may contain environment variables, and `${file:PATH}` for the content of a file |
| amount of tokens | a number, or thousands (`200k`) or millions (`1m`) |
| list | a list of one name needs no brackets |
| name | 1 to 63 characters of `A-Z a-z 0-9 . _ -`, not starting with `.` or `-` |
| path | relative to the folder of config.yaml |
| `./x.sh` as a program | relative to the workspace (agents), to `workdir` (jobs), or to the folder of config.yaml (channels) |
| program without a slash | looked up in the PATH of `env`, else in the PATH of the daemon |
| top-level key `x-...` | ignored. Use it for YAML anchors |

- **Environment.** `HEARTBEATD_SET__defaults__heartbeat__interval=10m` sets `defaults.heartbeat.interval`.
- **Files in a prompt** have at most 64 KiB each. Symbolic links in the workspace are not followed. If the checklist is larger or
  unreadable, the run is skipped. In place of any other file that is larger or unreadable, the prompt contains its name and
  the error.
- **Other text in a prompt:** at most 4 KiB of each wake, at most 80,000 characters of all wakes, and the first 16,384
  characters of a precheck's output. The run record lists what was left out (`left_out`).
"""


def render_reference() -> str:
    """The page in Markdown."""
    made = config_schema()
    beat, rules = (made["$defs"][model]["properties"].items() for model in ("Heartbeat", "Problems"))
    own = [f"`{key}`" for key, form in beat if "x-own" in form]
    own += [f"`problems.{key}`" for key, form in rules if "x-own" in form]
    limited = (
        f"- **[API tokens](#servertokensname)** limited to some agents may change only these heartbeat keys: {', '.join(own)}.\n"
    )
    return "\n".join([_HEAD + limited, *_render_section("Top level", made, made["$defs"], {}, {})])


def _render_section(title: str, model: Form, models: Form, seen: dict[str, str], rows: dict[str, str]) -> Iterator[str]:
    """The section of a model, then those of the models inside it. Keys with the rows of an earlier section are only named."""
    own: list[str] = []
    same: dict[str, dict[str, str]] = {}
    inner: list[tuple[str, str]] = []
    for key, form, is_required in _keys_of_section(model, models):
        names = [name for name in models_of_form(form) if not _is_short(form, models[name])]
        path = key if title == "Top level" else f"{title.partition(',')[0]}.{key}"
        if names and "additionalProperties" in form:
            path = f"{path}.NAME"
        for name in names:
            if name not in seen:
                seen[name] = path if len(names) == 1 else f"{path}, kind {' or '.join(kinds_of_model(models[name]))}"
                inner.append((name, seen[name]))
        default = _describe_default(form, required=is_required)
        row = f"| `{key}` | {describe_form(form) or _describe_map(form, names, seen)} | {default} | {form['description']} |"
        if (place := rows.setdefault(row, title)) == title:
            own.append(row)
        else:
            same.setdefault(place, {})[key] = row
    for place in [place for place, repeated in same.items() if len(repeated) == 1]:
        own += same.pop(place).values()
    yield f"## {title}\n"
    yield "| key | form | default | |"
    yield "|---|---|---|---|"
    yield from own
    yield ""
    for place, repeated in same.items():
        yield f"As in {_link(place, place)}: {', '.join(f'`{key}`' for key in repeated)}.\n"
    for name, path in inner:
        yield from _render_section(path, models[name], models, seen, rows)


def _keys_of_section(model: Form, models: Form) -> Iterator[tuple[str, Form, bool]]:
    """The keys of a model with their forms, and whether they are required. The keys of a short map follow as `map.key`.

    A map that can be written in no other form has no line of its own then.
    """
    for key, form in model["properties"].items():
        short = [models[name] for name in models_of_form(form) if _is_short(form, models[name])]
        if describe_form(form) or not short:
            yield key, form, key in model.get("required", ())
        for each in short:
            for inner, form_of_inner, is_required in _keys_of_section(each, models):
                yield f"{key}.{inner}", form_of_inner, is_required


def _is_short(form: Form, model: Form) -> bool:
    """Whether the keys of a map are shown in the section of the map's own key, and not in another section."""
    return "additionalProperties" not in form and "items" not in form and len(model["properties"]) <= MOST_KEYS_OF_A_SHORT_MAP


def _describe_map(form: Form, names: list[str], seen: Mapping[str, str]) -> str:
    if "additionalProperties" not in form:
        return _link("map", seen[names[0]])
    return f"{'strings or ' if 'anyOf' in form['additionalProperties'] else ''}{_link('maps by name', seen[names[0]])}"


def _link(text: str, title: str) -> str:
    """A link to the section with this title."""
    return f"[{text}](#{re.sub(r'[.,]', '', title).replace(' ', '-').lower()})"


def _describe_default(form: Form, *, required: bool) -> str:
    if required:
        return "required"
    if "x-else" in form:
        return str(form["x-else"])
    default = form.get("default")
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if default == {}:
        return ""
    if isinstance(default, dict):
        return f"`{{{', '.join(f'{key}: {value}' for key, value in default.items())}}}`"
    return f"`{default}`" if default != "" else "empty"


if __name__ == "__main__":
    sys.stdout.write(render_reference())
