"""Tests the list of kinds of channels: what the config takes from it, and what it does not import."""

from __future__ import annotations

import subprocess
import sys

from patience import PATIENCE

from scheduler.channels import registry
from scheduler.channels.channel_kind import ChannelKind
from scheduler.config.keys.models import config_schema


def test_the_config_accepts_exactly_the_kinds_of_the_registry() -> None:
    keys = config_schema()["$defs"]["Channel"]["properties"]
    assert keys["kind"]["enum"] == [each.name for each in registry.KINDS]


def test_no_two_kinds_share_a_name_or_a_scheme() -> None:
    names = [kind.name for kind in registry.KINDS]
    schemes = [scheme for kind in registry.KINDS for scheme in kind.schemes]
    assert (len(set(names)), len(set(schemes))) == (len(names), len(schemes))


def test_a_url_without_a_kind_belongs_to_the_kind_of_its_scheme() -> None:
    def kind_of_url(scheme: str, name: str | None = None) -> ChannelKind:
        return registry.kind_for(name, scheme)

    assert [kind_of_url(scheme).name for scheme in ("tgram", "discord", "https", "ntfy", "")] == [
        "telegram",
        "discord",
        "webhook",
        "apprise",
        "apprise",
    ]
    assert kind_of_url("https", "discord").name == "discord"


def test_reading_a_config_imports_neither_apprise_nor_an_http_client() -> None:
    script = "import sys, scheduler.config.settings.load; print(*({'aiohttp', 'apprise', 'asyncio'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "\n"
