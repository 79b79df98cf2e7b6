"""Two versions of a config are compared by their values. Secrets are neither stored nor shown, but their change is."""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from config_file import RIGHT, SMALL, write
from loops import loop_over

from scheduler.config.file.diagnostics import Diagnostics
from scheduler.config.file.marked_yaml import parse_yaml
from scheduler.config.keys.models import config_schema
from scheduler.config.settings.config_diff import compare_configs, compare_stored
from scheduler.config.settings.config_snapshot import load_stored, mask_secrets, store_config, stored_overrides
from scheduler.config.settings.load import LoadedConfig, load_config
from scheduler.model.config_changes import NOT_SET, Override, StoredConfig

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
  runner: {kind: command, argv: [ask], env: {API_KEY: first-secret, PLAIN: first-secret}}
  heartbeat: {interval: 30m, active_hours: "08:00-22:00", deliver: hook}
agents:
  ops: {}
  night: {heartbeat: {active_hours: {start: "00:00", end: "06:00", days: mon-fri}}}
  web: {runner: {kind: http, url: "https://example.org/first-secret", headers: {Authorization: Bearer first-secret}}}
  env: {heartbeat: {deliver: last}}
cron:
  nightly: {schedule: "0 3 * * *", command: "curl -H 'Authorization: Bearer first-secret' https://me:first-secret@example.org"}
  other: {every: 1h, command: "DB_PASSWORD=first-secret backup", env: {TOKEN: first-secret}}
  short: {every: 1h, command: backup, postcheck: "curl https://me:first-secret@example.org"}
  quoting: {every: 1h, command: "echo first-secret-first-secret"}
"""


def loaded(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> LoadedConfig:
    return load_config(write(folder, text), environ or {})


def stored(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> StoredConfig:
    return store_config(loaded(folder, text, environ))


def lines(folder: Path, old: str, new: str, environ: Mapping[str, str] | None = None) -> list[str]:
    return compare_configs(loaded(folder, old), loaded(folder, new, environ)).lines()


# old text, new text, the lines at a reload, and (where they differ) those of a comparison with the stored copy
@loop_over(
    ("old", "new", "expected", "without_secrets"),
    [
        ("interval: 30m", "interval: 30m", [], None),
        ("interval: 30m", "interval: 1800s", [], None),
        ("interval: 30m", "interval: 1h", ["4 agents: heartbeat.interval 30m -> 1h (env, night, ops, web)"], None),
        ("interval: 30m", "interval: 0m", ["4 agents: heartbeat.interval 30m -> 0m (env, night, ops, web)"], None),
        ('"08:00-22:00"', '"09:00-18:00"', [
            "3 agents: heartbeat.active_hours 08:00-22:00 -> 09:00-18:00 (env, ops, web)"], None),
        ("days: mon-fri", "days: sat", ["agent/night: heartbeat.active_hours.days mon-fri -> sat"], None),
        ("  ops: {}", "  ops: {heartbeat: {retries: 5}}", ["agent/ops: heartbeat.retries 2 -> 5"], None),
        ("  ops: {}", "  ops: {heartbeat: {interval: 1h}}", ["agent/ops: heartbeat.interval 30m -> 1h"], None),
        ("  ops: {}", "  ops: {heartbeat: {precheck: ls}}", ["agent/ops: heartbeat.precheck none -> ls"], None),
        ("  ops: {}", "  ops2: {}", ["added agent/ops2", "removed agent/ops"], None),
        ("  ops: {}\n", "", ["removed agent/ops"], None),
        ("  env: {", "  env: {effort: low, ", ["agent/env: effort none -> low"], None),
        ("  ops: {}\n", "  ops: {}\n  ops2: {}\n  cron2: {}\n", ["added 2 agents: cron2, ops2"], None),
        ("{input: 1,", "{input: 2,", ["prices.claude-haiku-5-5.input 1 -> 2"], None),
        ("prices:", "limits: {concurrency: 4}\nprices:", ["limits.concurrency 8 -> 4"], None),
        ("prices:", "limits: {concurrency: 8}\nprices:", [], None),
        ("prices:", "reload: manual\nx-notes: anything\n# a comment\nprices:", ["reload watch -> manual"], None),
        ("timezone: Europe/Berlin", "timezone: UTC", [
            "timezone Europe/Berlin -> UTC",
            "4 agents: heartbeat.timezone Europe/Berlin -> UTC (env, night, ops, web)",
            "4 jobs: timezone Europe/Berlin -> UTC (nightly, other, quoting, short)"], None),
        ("interval: 30m", 'schedule: "0 * * * *"', [
            "4 agents: heartbeat.interval 30m -> none (env, night, ops, web)",
            "4 agents: heartbeat.schedule none -> 0 * * * * (env, night, ops, web)"], None),
        ("api_key: first-secret", "api_key: second-secret", ["providers.anthropic.api_key *** -> *** (another value)"], []),
        ("url: \"https://hc.example.org/first-secret", "url: \"https://hc.example.org/second-secret", [
            "deadman.url https://*** -> *** (another value)"], []),
        ("env: {TOKEN: first-secret}", "env: {TOKEN: second-secret}, timeout: 1m", [
            "cron/other: env.TOKEN *** -> *** (another value)", "cron/other: timeout 10m -> 1m"], ["cron/other: timeout 10m -> 1m"]),
    ],
)  # fmt: skip
def test_each_change_is_shown_with_its_old_and_new_value(
    old: str, new: str, expected: list[str], without_secrets: list[str] | None, tmp_path: Path
) -> None:
    assert old in CONFIG
    edited = CONFIG.replace(old, new, 1)
    assert lines(tmp_path, CONFIG, edited) == expected
    found = compare_stored(stored(tmp_path, CONFIG), stored(tmp_path, edited))
    assert found is not None
    assert found.diff.lines() == (expected if without_secrets is None else without_secrets)


def test_the_budget_and_the_effort_of_a_job_are_changes_of_the_job(tmp_path: Path) -> None:
    agents = "agents: {ops: {runner: {kind: command, argv: [a]}, heartbeat: {interval: none}}}\n"
    text = f"{agents}cron: {{ask: {{every: 1h, prompt: hello, agent: ops, budget: {{runs_per_day: 5}}}}}}\n"
    assert lines(tmp_path, text, text.replace("5}", "6}")) == ["cron/ask: budget.runs_per_day 5 -> 6"]
    model = text.replace("{kind: command, argv: [a]}", "{kind: anthropic}").replace("hello", "hello, effort: low")
    assert lines(tmp_path, model, model.replace("low", "high")) == ["cron/ask: effort low -> high"]


def test_each_of_two_secrets_that_changed_is_named_without_its_value(tmp_path: Path) -> None:
    edited = CONFIG.replace("api_key: first-secret", "api_key: second-secret").replace(
        "API_KEY: first-secret", "API_KEY: second-secret"
    )
    assert lines(tmp_path, CONFIG, edited) == [
        "providers.anthropic.api_key *** -> *** (another value)",
        "3 agents: runner.env.API_KEY *** -> *** (another value) (env, night, ops)",
    ]


def test_a_secret_outside_the_file_that_changed_is_named_by_what_refers_to_it(tmp_path: Path) -> None:
    text = CONFIG.replace("api_key: first-secret", "api_key: '${KEY}'").replace("API_KEY: first-secret", "API_KEY: '${KEY}'")
    text = text.replace("https://hc.example.org/first-secret", "https://hc.example.org/${KEY}").replace(
        '/first-secret", secret', '/${KEY}", secret'
    )
    before, after = (loaded(tmp_path, text, {"KEY": f"{word}-secret"}) for word in ("first", "second"))
    assert compare_configs(before, after).lines() == [
        "channels.hook *** -> *** (another value)",
        "deadman *** -> *** (another value)",
        "3 agents: secrets *** -> *** (another value) (env, night, ops)",
    ]
    later = loaded(tmp_path, text.replace("  ops: {}", "  ops: {heartbeat: {retries: 5}}"), {"KEY": "second-secret"})
    assert compare_configs(before, later).lines() == [
        "2 agents: secrets *** -> *** (another value) (env, night)",
        "agent/ops: heartbeat.retries 2 -> 5",
    ]
    more = loaded(tmp_path, text.replace("  ops: {}", "  ops: {}\n  ops2: {}"), {"KEY": "second-secret"})
    assert compare_configs(before, more).lines()[-2:] == [
        "added agent/ops2",
        "3 agents: secrets *** -> *** (another value) (env, night, ops)",
    ]


def test_an_override_is_a_change_of_its_key(tmp_path: Path) -> None:
    environ = {
        "HEARTBEATD_SET__agents__ops__heartbeat__interval": "2h",
        "HEARTBEATD_SET__providers__anthropic__api_key": "second-secret",
    }
    assert lines(tmp_path, CONFIG, CONFIG, environ) == [
        "providers.anthropic.api_key *** -> *** (another value)",
        "agent/ops: heartbeat.interval 30m -> 2h",
    ]
    assert list(stored_overrides(stored(tmp_path, CONFIG, environ)).values()) == ['"2h"', '"${REDACTED}"']


def test_an_override_concerns_no_agent_whose_name_only_begins_the_same_and_no_job() -> None:
    own, default = (
        Override("X", key, NOT_SET, "1h") for key in ("agents.ops2.heartbeat.interval", "defaults.heartbeat.interval")
    )
    labels = ("agent/ops", "agent/ops2", "cron/ops2")
    assert [[each.concerns(label) for label in labels] for each in (own, default)] == [[False, True, False], [True, True, False]]


def test_an_override_of_a_whole_map_concerns_the_entries_in_it() -> None:
    labels = ("agent/ops", "agent/web", "cron/ops")
    found = {
        key: [Override("X", key, NOT_SET, "{}").concerns(label) for label in labels]
        for key in ("agents.ops", "cron", "defaults.cron", "defaults", "limits")
    }
    assert found == {
        "agents.ops": [True, False, False],
        "cron": [False, False, True],
        "defaults.cron": [False, False, True],
        "defaults": [True, True, True],
        "limits": [False, False, False],
    }


def test_a_value_that_agents_share_by_an_alias_is_masked_and_compared_for_each_of_them(tmp_path: Path) -> None:
    shared = "x-env: &env {KEY: first-secret}  # was first-secret\nx-zone: &zone Europe/Berlin\n"
    text = shared + CONFIG.replace("timezone: Europe/Berlin", "timezone: *zone").replace(
        "  ops: {}", "  ops: {runner: {kind: command, argv: [a], env: {<<: *env, TZ: *zone}}}\n"
        "  ops2: {runner: {kind: command, argv: [a], env: *env}}, x: {heartbeat: {interval: 1h}}".replace("}, x", "}\n  x"))  # fmt: skip
    assert lines(tmp_path, text, text.replace("{KEY: first", "{KEY: second")) == [
        "2 agents: runner.env.KEY *** -> *** (another value) (ops, ops2)"
    ]
    copy = stored(tmp_path, text)
    assert b"first-secret" not in zlib.decompress(copy.snapshot)
    assert load_stored(copy).settings.zone.key == "Europe/Berlin"  # masked where it is a secret, and only there


def test_two_agents_on_one_line_are_told_apart(tmp_path: Path) -> None:
    """A line of the file would show the change of one of them to a token for the other."""
    text = (
        "defaults: {runner: {kind: command, argv: [ask]}, heartbeat: {interval: 30m, deliver: log}}\n"
        "agents: {ops: {heartbeat: {prompt: look}}, web: {heartbeat: {prompt: look}}}  # ops and web\n"
    )
    found = compare_configs(
        loaded(tmp_path, text), loaded(tmp_path, text.replace("web: {heartbeat: {prompt: look", "web: {heartbeat: {prompt: wait"))
    )
    assert found.lines() == ["agent/web: heartbeat.prompt look -> wait"]
    assert (found.of_agents({"web"}).lines(), found.of_agents({"ops"}).lines()) == (found.lines(), [])


def test_no_secret_of_the_file_is_stored_or_shown_and_each_change_is_noticed(tmp_path: Path) -> None:
    before = loaded(tmp_path, CONFIG)
    assert b"first-secret" not in zlib.decompress(store_config(before).snapshot)
    for place in re.finditer("first-secret(-first-secret)?", CONFIG[: CONFIG.index("  quoting:")]):
        where = CONFIG[place.start() - 40 : place.end()]
        text = CONFIG[: place.start()] + "second-secret-canary" + CONFIG[place.end() :]
        after = loaded(tmp_path, text.replace("timezone:", "# second-secret-canary\ntimezone:"))
        assert b"canary" not in zlib.decompress(store_config(after).snapshot), where
        found = compare_configs(before, after)
        assert found.changes, where
        shown = json.dumps(found.as_data()) + "".join(found.lines())
        assert ("first-secret" in shown, "canary" in shown) == (False, False), where


def test_a_secret_beside_a_reference_is_not_stored(tmp_path: Path) -> None:
    channel = 'channels: {hook: {kind: webhook, url: "https://example.org/path-canary/${TOKEN}"}}\n'
    found = stored(tmp_path, channel + SMALL, {"TOKEN": "a-token-of-a-channel"})
    assert b"path-canary" not in zlib.decompress(found.snapshot)


@pytest.mark.parametrize("text", [CONFIG, RIGHT], ids=["with secrets", "with references"])
def test_a_stored_config_gives_the_same_settings_without_its_secrets(text: str, tmp_path: Path) -> None:
    read = load_config(write(tmp_path, text), {}, resolve_secrets=False)
    again = load_stored(store_config(read)).settings
    for part in ("zone", "state", "limits", "heartbeats", "jobs", "prices", "allowances", "reload"):
        if part != "jobs" or text == RIGHT:  # commands that quote a secret differ
            assert repr(getattr(again, part)) == repr(getattr(read.settings, part)), part
    kinds = {name: (channel.kind, channel.needs_target) for name, channel in read.settings.channels.items()}
    assert {name: (channel.kind, channel.needs_target) for name, channel in again.channels.items()} == kinds


def test_any_character_of_a_text_survives_in_the_copy(tmp_path: Path) -> None:
    prompt = "".join(map(chr, (7, 9, 10, 34, 92, 127, 133, 160, 0x2028, 0xFEFF, 0xFFFE, 0x1F600)))
    text = CONFIG.replace("  ops: {}", f"  ops: {{heartbeat: {{prompt: {json.dumps(prompt)}}}}}").replace(
        "\\ud83d\\ude00", "\\U0001F600"
    )
    assert load_stored(stored(tmp_path, text)).settings.heartbeats["ops"].prompt == prompt


def test_each_key_that_may_refer_to_a_secret_is_masked() -> None:
    models = config_schema()["$defs"].values()
    forms = {key: str(form.get("x-form")) for model in models for key, form in model["properties"].items()}
    may_refer = {key: form for key, form in forms.items() if "${NAME}" in form}
    assert {"url", "value", "dsn", "proxy", "env", "headers"} < may_refer.keys()
    for key, form in may_refer.items():
        text = "https://user:canary@host"
        value = json.dumps({"NAME": text} if form.startswith("map") else text)
        root = parse_yaml(f"agents: {{ops: {{part: {{{key}: {value}, seen: 1}}}}}}", Diagnostics(""))
        masked = json.dumps(mask_secrets(root))
        assert ("canary" in masked, "seen" in masked) == (False, True), key


def test_a_copy_that_is_damaged_or_that_this_version_rejects_is_not_compared(tmp_path: Path) -> None:
    good = stored(tmp_path, CONFIG)
    for content in (b"", b"damaged", zlib.compress(b'{"root": {"removed_key": 1}, "overrides": {}}')):
        bad = StoredConfig(good.path, good.hash, good.mode, good.overrides, content)
        assert (compare_stored(bad, good), compare_stored(good, bad), stored_overrides(bad)) == (None, None, {}), content


def test_the_time_of_a_comparison_grows_with_the_number_of_agents_and_no_faster(tmp_path: Path) -> None:
    head = "defaults: {runner: {kind: command, argv: [ask]}, heartbeat: {interval: 30m, deliver: log}}\nagents:\n"

    def compare(count: int) -> float:
        """The CPU time of a comparison in which each of so many agents has changed."""
        agents = "".join(f"  agent{number}: {{heartbeat: {{retries: {number % 3}}}}}\n" for number in range(count))
        old, new = stored(tmp_path, head + agents), stored(tmp_path, head.replace("interval: 30m", "interval: 1h") + agents)
        assert len(old.snapshot) < 20 * count
        begun = time.process_time()
        found = compare_stored(old, new)
        spent = time.process_time() - begun
        assert found is not None
        assert found.diff.lines() == [
            f"{count:,} agents: heartbeat.interval 30m -> 1h (agent0, agent1, agent10 and {count - 3:,} more)",
        ]
        return spent

    assert compare(1_500) < 20 * max(compare(300), compare(300))
