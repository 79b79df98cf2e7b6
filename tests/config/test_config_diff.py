"""Two versions of a config are compared by the values in effect. Secrets are neither stored nor shown, but their change is."""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from config_file import RIGHT, write
from loops import loop_over

from scheduler.config.settings.config_diff import compare_stored
from scheduler.config.settings.config_snapshot import (
    KEYS_WITH_LOGIN,
    SECRET_KEYS,
    SECRET_MAPS,
    load_snapshot,
    read_snapshot,
    store_snapshot,
    take_snapshot,
)
from scheduler.config.settings.load import config_schema, load_config
from scheduler.model.config_changes import StoredConfig

CONFIG = """\
timezone: Europe/Berlin
channels:
  hook: {kind: webhook, url: "https://example.org/first-secret", secret: first-secret-first-secret}
  phone: "tgram://123:first-secret/{target}"
  pipe: {kind: command, argv: [send, --token, first-secret]}
providers: {anthropic: {api_key: first-secret}}
server: {tokens: {bot: {value: first-secret-first-secret, may: [read]}}}
deadman: {url: "https://hc.example.org/first-secret"}
network: {proxy: "http://me:first-secret@proxy.example.org:3128"}
prices: {claude-haiku-5-5: {input: 1, output: 5}}
defaults:
  agent: {runner: {kind: command, argv: [ask], env: {API_KEY: first-secret, PLAIN: first-secret}}}
  heartbeat: {interval: 30m, active_hours: "08:00-22:00", deliver: hook}
agents:
  ops: {}
  night: {heartbeat: {active_hours: {start: "00:00", end: "06:00", days: mon-fri}}}
  web: {runner: {kind: http, url: "https://example.org/first-secret", headers: {Authorization: Bearer first-secret}}}
  env: {heartbeat: {deliver: last}}
cron:
  nightly: {schedule: "0 3 * * *", command: "curl -H 'Authorization: Bearer first-secret' https://me:first-secret@example.org"}
  other: {every: 1h, command: "DB_PASSWORD=first-secret backup", env: {TOKEN: first-secret}}
  quoting: {every: 1h, command: "echo first-secret-first-secret", agent: ops}
"""
CONFIG = CONFIG.replace(", agent: ops", "")
SALT = "0123456789abcdef"


def stored(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> StoredConfig:
    loaded = load_config(write(folder, text), environ or {}, resolve_secrets=False)
    return store_snapshot(loaded, take_snapshot(loaded, SALT))


def lines(folder: Path, old: str, new: str, environ: Mapping[str, str] | None = None) -> list[str]:
    found = compare_stored(stored(folder, old), stored(folder, new, environ))
    assert found is not None
    return found.diff.lines()


@loop_over(
    ("old", "new", "expected"),
    [
        ("interval: 30m", "interval: 30m", []),
        ("interval: 30m", "interval: 1800s", []),
        ('active_hours: "08:00-22:00"', 'active_hours: {start: "08:00", end: "22:00"}', []),
        ("interval: 30m", "interval: 1h", ["4 agents: heartbeat.interval 30m -> 1h (env, night, ops, web)"]),
        ("interval: 30m", "interval: 0m", ["4 agents: heartbeat.interval 30m -> 0m (env, night, ops, web)"]),
        ('"08:00-22:00"', '"09:00-18:00"', ["3 agents: heartbeat.active_hours 08:00-22:00 -> 09:00-18:00 (env, ops, web)"]),
        ("days: mon-fri", "days: sat", ["agent/night: heartbeat.active_hours 00:00-06:00 mon-fri -> 00:00-06:00 sat"]),
        ("  ops: {}", "  ops: {heartbeat: {retries: 5}}", ["agent/ops: heartbeat.retries 2 -> 5"]),
        ("  ops: {}", "  ops: {heartbeat: {precheck: ls}}", [
            "agent/ops: heartbeat.precheck none -> ls", "agent/ops: heartbeat.precheck.timeout none -> 30s"]),
        ("  ops: {}", "  ops2: {}", ["renamed agent/ops -> agent/ops2"]),
        ("  ops: {}", "  ops2: {heartbeat: {retries: 5}}", ["added agent/ops2", "removed agent/ops"]),
        ("  ops: {}\n", "", ["removed agent/ops"]),
        ("  ops: {}\n", "  ops: {}\n  ops2: {}\n", ["added agent/ops2"]),
        ("prices: {claude-haiku-5-5: {input: 1,", "prices: {claude-haiku-5-5: {input: 2,", ["prices.claude-haiku-5-5.input 1 -> 2"]),
        ("prices:", "limits: {concurrency: 4}\nprices:", ["limits.concurrency 8 -> 4"]),
        ("prices:", "reload: manual\nx-notes: anything\nprices:", ["reload watch -> manual"]),
        ("timezone: Europe/Berlin", "timezone: UTC", [
            "timezone Europe/Berlin -> UTC",
            "4 agents: heartbeat.timezone Europe/Berlin -> UTC (env, night, ops, web)",
            "3 jobs: timezone Europe/Berlin -> UTC (nightly, other, quoting)"]),
        ("interval: 30m", 'schedule: "0 * * * *"', [
            "4 agents: heartbeat.interval 30m -> none (env, night, ops, web)",
            "4 agents: heartbeat.schedule none -> 0 * * * * (env, night, ops, web)",
            "4 agents: heartbeat.stagger 10% -> 0 (env, night, ops, web)"]),
        ("api_key: first-secret", 'api_key: "${KEY}"', ["providers.anthropic.api_key *** -> ${KEY}"]),
        ("api_key: first-secret", "api_key: other-secret", ["providers.anthropic.api_key *** -> *** (another value)"]),
    ],
)  # fmt: skip
def test_each_change_is_shown_with_its_old_and_new_value(old: str, new: str, expected: list[str], tmp_path: Path) -> None:
    assert old in CONFIG
    assert lines(tmp_path, CONFIG, CONFIG.replace(old, new, 1)) == expected


def test_one_of_two_added_entries_with_the_same_settings_is_not_taken_for_a_renamed_one(tmp_path: Path) -> None:
    assert lines(tmp_path, CONFIG, CONFIG.replace("  ops: {}", "  a: {}\n  b: {}")) == [
        "added 2 agents: a, b",
        "removed agent/ops",
    ]


def test_an_override_is_a_change_with_the_name_of_its_variable(tmp_path: Path) -> None:
    variable = "HEARTBEATD_SET__agents__ops__heartbeat__interval"
    assert lines(tmp_path, CONFIG, CONFIG, {variable: "2h"}) == [
        f'{variable} none -> "2h"',
        "agent/ops: heartbeat.interval 30m -> 2h",
    ]
    secret = "HEARTBEATD_SET__providers__anthropic__api_key"
    assert lines(tmp_path, CONFIG, CONFIG, {secret: "second-secret"}) == [
        f'{secret} none -> "***"',
        "providers.anthropic.api_key *** -> *** (another value)",
    ]


def test_no_secret_of_the_file_is_stored_or_shown_and_each_change_is_noticed(tmp_path: Path) -> None:
    before = stored(tmp_path, CONFIG)
    assert b"first-secret" not in zlib.decompress(before.snapshot)
    for place in re.finditer("first-secret(-first-secret)?", CONFIG[: CONFIG.index("  quoting:")]):
        after = stored(tmp_path, CONFIG[: place.start()] + "second-secret-canary" + CONFIG[place.end() :])
        assert b"canary" not in zlib.decompress(after.snapshot), CONFIG[place.start() - 40 : place.end()]
        found = compare_stored(before, after)
        assert found is not None
        assert found.diff, CONFIG[place.start() - 40 : place.end()]
        shown = json.dumps(found.diff.as_data()) + "".join(found.diff.lines())
        assert "first-secret" not in shown
        assert "canary" not in shown


@pytest.mark.parametrize("text", [CONFIG, RIGHT], ids=["with secrets", "with references"])
def test_a_stored_config_gives_the_same_settings_without_its_secrets(text: str, tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, text), {}, resolve_secrets=False)
    kept = store_snapshot(loaded, take_snapshot(loaded, SALT))
    snapshot = read_snapshot(kept)
    assert snapshot is not None
    again = load_snapshot(kept, snapshot).settings
    for part in ("zone", "state", "limits", "heartbeats", "jobs", "prices", "allowances", "reload"):
        if part != "jobs" or text == RIGHT:  # commands that quote a secret differ
            assert getattr(again, part) == getattr(loaded.settings, part), part
    kinds = {name: (channel.kind, channel.needs_target) for name, channel in loaded.settings.channels.items()}
    assert {name: (channel.kind, channel.needs_target) for name, channel in again.channels.items()} == kinds


def test_each_key_that_may_refer_to_a_secret_is_masked() -> None:
    models = config_schema()["$defs"].values()
    forms = {key: str(form.get("x-form")) for model in models for key, form in model["properties"].items()}
    may_refer = {key for key, form in forms.items() if "${NAME}" in form}
    assert may_refer == SECRET_KEYS | SECRET_MAPS | KEYS_WITH_LOGIN


def test_the_same_secret_has_another_mark_in_another_database(tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, CONFIG), {}, resolve_secrets=False)
    first, second = (take_snapshot(loaded, salt) for salt in ("a", "b"))
    assert first.root["providers"] != second.root["providers"]


@pytest.mark.parametrize("content", [b"", b"damaged", zlib.compress(b"[]"), zlib.compress(b'{"root": {}}')])
def test_a_damaged_copy_is_not_compared(content: bytes, tmp_path: Path) -> None:
    good = stored(tmp_path, CONFIG)
    bad = StoredConfig(good.path, good.hash, good.mode, good.overrides, content)
    assert compare_stored(bad, good) is None


def test_a_copy_that_this_version_rejects_is_not_compared(tmp_path: Path) -> None:
    good = stored(tmp_path, CONFIG)
    data = json.loads(zlib.decompress(good.snapshot))
    data["root"]["removed_key"] = 1
    old = StoredConfig(good.path, good.hash, good.mode, good.overrides, zlib.compress(json.dumps(data).encode()))
    assert compare_stored(old, good) is None


def test_ten_thousand_agents_are_compared_in_seconds(tmp_path: Path) -> None:
    many = "defaults: {agent: {runner: {kind: command, argv: [ask]}}, heartbeat: {interval: 30m, deliver: log}}\nagents:\n"
    many += "".join(f"  agent{number}: {{heartbeat: {{retries: {number % 3}}}}}\n" for number in range(10_000))
    old, new = stored(tmp_path, many), stored(tmp_path, many.replace("interval: 30m", "interval: 1h"))
    assert len(old.snapshot) < 200_000
    begun = time.process_time()
    found = compare_stored(old, new)
    assert found is not None
    assert found.diff.lines() == [
        "10,000 agents: heartbeat.interval 30m -> 1h (agent0, agent1, agent10 and 9,997 more)",
    ]
    assert time.process_time() - begun < 30
