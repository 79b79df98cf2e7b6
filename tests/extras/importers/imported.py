"""Imports the example files of a system, and checks what holds for every import."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from checkout import DATA
from ruamel.yaml import YAML

from scheduler.config.file.diagnostics import Diagnostics
from scheduler.config.file.marked_yaml import parse_yaml
from scheduler.config.settings.load import LoadedConfig, load_config
from scheduler.config.settings.time_checks import TimeCheck
from scheduler.extras.importers import config_writer, foreign_system
from scheduler.extras.importers.config_draft import Draft
from scheduler.extras.importers.foreign_system import import_sources
from scheduler.extras.importers.source_files import SourceFile, read_source

EXAMPLES = DATA / "import"
NOW = TimeCheck(datetime(2026, 11, 22, 12, tzinfo=UTC), lambda path, name, text: False)
ZONE = "Europe/Riga"
TOKEN = "123456789:" + "A" * 35


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import: its text, its data, and the draft with the receipt."""

    text: str
    data: Mapping[str, Any]
    draft: Draft

    def status(self, key: str) -> str:
        """The status of a key of the source, with its reason or its new value."""
        entry = next(entry for entry in self.draft.receipt.entries.values() if entry.key == key)
        return f"{entry.status}: {entry.why if entry.status == 'dropped' else ', '.join(entry.targets)}"


def example_files(system: str) -> list[Path]:
    return sorted(path for path in (EXAMPLES / system).rglob("*") if path.is_file())


def convert(system: str, sources: Sequence[SourceFile]) -> Imported:
    draft = import_sources(foreign_system.load_system(system), sources, ZONE)
    text, _ = config_writer.write_new_config(draft, ["Imported."], NOW)
    return Imported(text, parse_yaml(text, Diagnostics("")), draft)


@cache
def import_example(system: str) -> Imported:
    names = example_files(system)
    return convert(system, [read_source(str(path.relative_to(EXAMPLES / system)), path.read_bytes()) for path in names])


def import_text(system: str, **files: str) -> Imported:
    """Import files given as text; `__` in a name stands for a dot."""
    return convert(system, [read_source(name.replace("__", "."), text.encode()) for name, text in files.items()])


def check(imported: Imported) -> LoadedConfig:
    """Load the new config as `heartbeatd check` does, with all environment variables set."""
    environ = {name: "https://example.org/x" if "URL" in name else TOKEN for name in imported.draft.variables}
    return load_config(Path("config.yaml"), environ, content=imported.text.encode(), time_check=NOW)


def leaf_keys(path: Path) -> set[str]:
    """The keys of all values of a file, read with another parser than the one that is tested."""
    text = path.read_text("utf-8")
    if path.suffix == ".toml":
        return set(flatten(tomllib.loads(text)))
    if path.suffix in (".yaml", ".yml"):
        return set(flatten(YAML(typ="safe", pure=True).load(text)))
    if path.name.startswith(".env"):
        return {line.partition("=")[0] for line in text.splitlines() if "=" in line and not line.startswith("#")}
    return set(flatten(json.loads(_to_json(text))))


def _to_json(text: str) -> str:
    """The JSON5 of the examples as JSON: comments on lines of their own, plain keys, and commas at the end."""
    text = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=[{,\s])([A-Za-z_]\w*):(?=\s)", r'"\1":', text)
    return re.sub(r",(\s*[}\]])", r"\1", text)


def flatten(data: Any, above: str = "") -> Iterator[str]:
    items = list(data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ())
    for key, value in items:
        step = f"[{key}]" if isinstance(key, int) else f".{key}"
        yield from flatten(value, above + step)
    if not items and above:
        yield above.removeprefix(".")


def has_target(data: Mapping[str, Any], target: str) -> bool:
    """Whether a key of the new config exists."""
    found: Any = data
    for step in target.split("."):
        if not isinstance(found, dict) or step not in found:
            return False
        found = found[step]
    return True
