"""Reads the time zone and the names of a config that may be invalid, for commands that only read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from heartbeatd.state_folder import OVERRIDE_PREFIX, find_line_value, read_config_text, read_override

DEFAULT_TIMEZONE = "UTC"
TIMEZONE_OVERRIDE = f"{OVERRIDE_PREFIX}timezone"


def read_timezone_name(path: Path, environ: Mapping[str, str] | None = None) -> str | None:
    """The name of the top-level time zone; None if the config at `path` cannot be read."""
    text = read_config_text(path)
    if text is None:
        return None
    return read_override(environ, TIMEZONE_OVERRIDE) or find_line_value(text, "timezone") or DEFAULT_TIMEZONE


def read_names(path: Path) -> dict[str, list[str]]:
    """The names in the sections `agents`, `cron` and `channels` of a config. A section that cannot be read has none."""
    from scheduler.config.file import marked_yaml
    from scheduler.config.file.diagnostics import Diagnostics  # `status` does not parse the config, and does not need these

    try:
        root = marked_yaml.parse_yaml(read_config_text(path) or "", Diagnostics(str(path)))
    except marked_yaml.UnreadableYaml:
        root = None
    sections = {key: root.get(key) if isinstance(root, dict) else None for key in ("agents", "cron", "channels")}
    return {key: [str(name) for name in found] if isinstance(found, dict) else [] for key, found in sections.items()}
