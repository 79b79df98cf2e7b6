"""Each system that can be imported: a realistic config goes in, every value is in the receipt, and the result is valid."""

from __future__ import annotations

import json

import pytest
from imported import check, example_files, has_target, import_example, import_text, leaf_keys
from loops import loop_over

from scheduler.config.file.marked_yaml import value_at
from scheduler.extras.importers import foreign_system
from scheduler.extras.importers.import_receipt import format_receipt


@loop_over("system", foreign_system.SYSTEM_NAMES)
def test_every_value_of_a_realistic_config_is_in_the_receipt(system: str) -> None:
    found = {(entry.file, entry.key) for entry in import_example(system).draft.receipt.entries.values()}
    for path in example_files(system):
        if path.suffix != ".md":
            keys = {key for file, key in found if file.endswith(path.name)}
            assert leaf_keys(path) == keys
            assert len(keys) >= 3


@loop_over("system", foreign_system.SYSTEM_NAMES)
def test_every_value_is_printed_with_its_line(system: str) -> None:
    imported = import_example(system)
    text = "\n".join(format_receipt(imported.draft.receipt))
    missing = [entry for entry in imported.draft.receipt.entries.values() if f"{entry.file}:{entry.line} {entry.key}" not in text]
    assert missing == []


@loop_over("system", foreign_system.SYSTEM_NAMES)
def test_the_imported_config_passes_check_and_has_agents(system: str) -> None:
    assert check(import_example(system)).settings.heartbeats


@loop_over("system", foreign_system.SYSTEM_NAMES)
def test_everything_that_was_kept_or_changed_is_in_the_new_config(system: str) -> None:
    imported = import_example(system)
    kept = [entry for entry in imported.draft.receipt.entries.values() if entry.status != "dropped"]
    assert kept
    assert [(entry.key, target) for entry in kept for target in entry.targets if not has_target(imported.data, target)] == []
    assert all(has_target(imported.data, each.target) for each in imported.draft.receipt.additions)


@loop_over("system", foreign_system.SYSTEM_NAMES)
def test_every_dropped_value_has_a_reason(system: str) -> None:
    entries = import_example(system).draft.receipt.entries.values()
    assert all(entry.why for entry in entries if entry.status == "dropped")


@loop_over("system", foreign_system.SYSTEM_NAMES)
def test_no_secret_is_in_the_config_or_in_the_receipt(system: str) -> None:
    imported = import_example(system)
    sources = "".join(path.read_text("utf-8") for path in example_files(system))
    receipt = imported.draft.receipt
    shown = imported.text + "\n".join(format_receipt(receipt)) + json.dumps([each.as_json() for each in receipt.entries.values()])
    assert "canary" in sources
    assert "canary" not in shown


def test_openclaw_heartbeats_keep_their_settings() -> None:
    agents = import_example("openclaw").data["agents"]
    assert agents["main"]["heartbeat"] == {
        "interval": "30m",
        "active_hours": {"start": "08:00", "end": "24:00", "timezone": "America/Chicago"},
        "model": "anthropic/claude-haiku-4-5",
        "prompt": "Read HEARTBEAT.md if it exists. If nothing needs attention, reply HEARTBEAT_OK.",
        "ack_max_chars": 300,
        "light_context": True,
        "on_missing": "run",
        "deliver": "last",
        "show_ok": True,  # the last chat is one of Telegram, the only bot that heartbeatd can use
        "show_alerts": True,
    }
    ops = agents["Ops-Team"]["heartbeat"]
    assert ops["active_hours"] == {"start": "22:00", "end": "06:00", "timezone": "Europe/Berlin"}
    assert (ops["interval"], ops["timeout"], ops["isolated_session"], ops["show_ok"]) == ("1h30m", "45s", True, True)
    assert agents["quiet"]["heartbeat"] == {"interval": "none", "deliver": "log"}


def test_openclaw_channels_refer_to_the_token_by_name() -> None:
    imported = import_example("openclaw")
    assert imported.data["channels"] == {
        "telegram": {"url": "tgram://${TELEGRAM_BOT_TOKEN}/{target}"},
        "telegram-12345678-42": {"url": "tgram://${TELEGRAM_BOT_TOKEN}/12345678:42"},
        "webhook": {"kind": "webhook", "url": "${WEBHOOK_URL}"},
    }
    assert imported.draft.variables == {
        "TELEGRAM_BOT_TOKEN": "channels.telegram.botToken",
        "WEBHOOK_URL": "jobs[3].delivery.to",
    }


def test_openclaw_jobs_of_each_kind() -> None:
    imported = import_example("openclaw")
    jobs = imported.data["cron"]
    assert jobs["Morning-brief"] == {
        "enabled": False,  # it sends to Slack
        "schedule": "0 7 * * *",
        "timezone": "America/Los_Angeles",
        "agent": "main",
        "prompt": "Summarize overnight updates.",
        "stagger": "30s",
        "model": "opus",
        "effort": "low",
        "fallbacks": ["haiku", "openrouter/qwen"],
        "timeout": "5m",
        "ok_match": "edges",
        "ack_max_chars": 300,
        "deliver": "log",
        "problems": {"pause_after": 10},
    }
    assert jobs["Reminder"] == {
        "enabled": True,
        "at": "2036-02-01T16:00:00Z",
        "wake_heartbeat": "main",
        "wake_text": "Reminder: check the docs draft.",
        "wake_mode": "now",
    }
    assert (jobs["Inbox"]["schedule"], jobs["Inbox"]["wake_mode"], jobs["Inbox"]["wake_heartbeat"]) == (
        "40 * * * *",
        "next",
        "Ops-Team",
    )
    assert jobs["Inbox"]["enabled"] is False
    assert (jobs["Report"]["schedule"], jobs["Report"]["timezone"], jobs["Report"]["deliver"]) == (
        "0 18 * * 1-5",
        "Europe/Riga",  # the zone of the host: userTimezone is only for active hours
        "webhook",
    )
    assert "Every-half-minute" not in jobs
    assert imported.status("jobs[4].schedule.expr").startswith("dropped: it was left out: runs at given seconds")


def test_an_openclaw_tasks_block_becomes_items_with_intervals() -> None:
    imported = import_example("openclaw")
    assert imported.data["agents"]["Ops-Team"]["heartbeat"]["checklist"].splitlines() == [
        "- [every 30m] inbox-triage: Check for urgent unread mail.",
        "- [every 2h] calendar-scan: Check for meetings that need preparation.",
        "Heartbeat",
        "Additional instructions",
        "Keep alerts short.",
        "If nothing needs attention after all due tasks, reply HEARTBEAT_OK.",
    ]


def test_an_openclaw_window_of_no_length_means_that_the_agent_never_runs() -> None:
    hours = '{agents: {defaults: {heartbeat: {every: "1h", activeHours: {start: "08:00", end: "08:00"}}}}}'
    beat = import_text("openclaw", openclaw__json=hours).data["agents"]["main"]["heartbeat"]
    assert beat["enabled"] is False
    assert "active_hours" not in beat


def test_an_interval_of_zero_stays_off() -> None:
    text = '{agents: {defaults: {heartbeat: {every: "0m"}}}}'
    assert import_text("openclaw", openclaw__json=text).data["agents"]["main"]["heartbeat"]["interval"] == "0m"


def test_goclaw_heartbeats_call_the_agent_through_the_gateway() -> None:
    imported = import_example("goclaw")
    support = imported.data["agents"]["support"]
    assert imported.data["providers"]["goclaw"] == {
        "kind": "openai",
        "base_url": "http://127.0.0.1:9600/v1",
        "api_key": "${GOCLAW_GATEWAY_TOKEN}",
    }
    assert (support["runner"], support["model"]) == ({"kind": "openai", "provider": "goclaw"}, "goclaw:support")
    assert support["heartbeat"]["active_hours"] == {"start": "22:00", "end": "06:00", "timezone": "Asia/Ho_Chi_Minh"}
    assert (support["heartbeat"]["provider"], support["heartbeat"]["model"], support["heartbeat"]["retries"]) == (
        "local",
        "qwen3",
        2,
    )
    assert (support["heartbeat"]["ok_match"], support["heartbeat"]["light_context"]) == ("anywhere", True)
    assert imported.data["agents"]["sales"]["heartbeat"]["enabled"] is False
    assert imported.data["cron"]["digest"]["wake_heartbeat"] == "support"


def test_a_job_that_heartbeatd_would_reject_is_left_out_with_the_error_as_its_reason() -> None:
    imported = import_example("goclaw")
    assert "often" not in imported.data["cron"]
    assert "its shortest interval is 1m, but limits.min_interval is 5m" in imported.status("jobs[2].schedule.expr")


def test_picoclaw_intervals_and_messages_mean_the_same() -> None:
    imported = import_example("picoclaw")
    assert imported.data["agents"]["main"]["heartbeat"]["interval"] == "5m"  # PicoClaw raises 3 minutes to 5
    assert imported.data["agents"]["main"]["heartbeat"]["on_missing"] == "create"
    assert imported.data["cron"]["water"]["command"] == ["printf", "%s\n", "Drink water."]
    assert imported.data["cron"]["news"]["prompt"] == "Sum up the news."
    assert (imported.data["cron"]["disk"]["command"], imported.data["cron"]["disk"]["enabled"]) == ("df -h", False)
    zero = import_text("picoclaw", config__json='{"heartbeat": {"interval": 0}}')
    assert zero.data["agents"]["main"]["heartbeat"]["interval"] == "30m"


def test_picoclaw_variables_override_the_config() -> None:
    imported = import_text("picoclaw", config__json='{"heartbeat": {"interval": 60}}', __env="PICOCLAW_HEARTBEAT_INTERVAL=10\n")
    assert imported.data["agents"]["main"]["heartbeat"]["interval"] == "10m"
    assert imported.status("heartbeat.interval") == "dropped: overridden by a more specific value"


def test_mistermorph_heartbeats_use_the_model_of_their_route() -> None:
    main = import_example("mistermorph").data["agents"]["main"]
    assert (main["model"], main["heartbeat"]["model"], main["heartbeat"]["interval"]) == ("gpt-5.4", "gpt-4.1-mini", "45m")
    assert main["heartbeat"]["deliver"] == ["telegram-1001234567890", "telegram-4711"]
    assert (main["heartbeat"]["ok_match"], main["heartbeat"]["on_missing"]) == ("exact", "run")


def test_nanobot_decides_with_its_own_model_first() -> None:
    imported = import_example("nanobot")
    assert imported.data["agents"]["main"]["heartbeat"]["decide"] == {"model": "claude-opus-4-5", "provider": "anthropic"}
    assert imported.data["providers"] == {"anthropic": {"kind": "anthropic", "api_key": "${ANTHROPIC_API_KEY}"}}
    assert imported.data["cron"]["event"]["wake_text"] == "It is time."
    assert (imported.data["cron"]["morning"]["deliver"], imported.data["cron"]["quiet"]["deliver"]) == ("telegram-4711", "none")


def test_claw0_calls_the_model_directly() -> None:
    imported = import_example("claw0")
    main = imported.data["agents"]["main"]
    assert main["runner"] == {"kind": "anthropic", "provider": "anthropic"}
    assert (main["model"], main["heartbeat"]["interval"]) == ("claude-haiku-4-5", "none")
    assert main["heartbeat"]["active_hours"] == {"start": "22:00", "end": "06:00", "timezone": "Europe/Riga"}
    provider = {"kind": "anthropic", "api_key": "${ANTHROPIC_API_KEY}", "base_url": "https://openrouter.ai/api"}
    assert imported.data["providers"]["anthropic"] == provider
    assert imported.data["cron"]["meeting"]["at"] == "2036-02-25T13:00:00Z"  # 15:00 in the zone of the host


def test_zeroclaw_jobs_come_from_the_config() -> None:
    imported = import_example("zeroclaw")
    beat = imported.data["agents"]["main"]["heartbeat"]
    assert (beat["interval"], beat["backoff_on_failure"], beat["deliver"]) == ("15m", True, "telegram-4711")
    assert set(imported.data["cron"]) == {"Calendar", "backup", "once"}
    assert imported.data["cron"]["backup"] == {"enabled": False, "every": "30m", "command": "/srv/backup.sh"}


def test_hermes_jobs_with_and_without_an_agent() -> None:
    jobs = import_example("hermes").data["cron"]
    assert jobs["Morning-feeds"]["timezone"] == "Europe/Lisbon"
    assert (jobs["Morning-feeds"]["prompt"], jobs["Morning-feeds"]["deliver"]) == ("Check the feeds.", "telegram-4711")
    assert jobs["Supervisor"]["command"] == "bash ~/.hermes/scripts/supervisor.sh"
    assert (jobs["Review"]["enabled"], jobs["Review"]["at"]) == (False, "2036-03-18T04:22:00Z")
    assert jobs["Watch"]["every"] == "2h"


@pytest.mark.parametrize("script", ["../../bin/x; rm", "../x.sh", "lib/../../x.sh", "/bin/x"])
def test_a_hermes_script_outside_its_folder_is_left_out(script: str) -> None:
    own = {"name": "a", "script": script, "no_agent": True, "schedule": {"minutes": 5}}
    imported = import_text(
        "hermes", jobs__json=json.dumps({"jobs": [own, {"name": "b", "prompt": "x", "schedule": {"minutes": 5}}]})
    )
    assert set(imported.data["cron"]) == {"b"}
    assert "is no path of a script" in imported.status("jobs[0].script")


def store(schedule: str, **keys: object) -> str:
    """A job store with one job `a`."""
    return json.dumps({"jobs": [{"name": "a", "schedule": json.loads(schedule), **keys}]})


DAILY = '{"kind": "cron", "expr": "0 7 * * *"}'
TWO_TOPICS = "TELEGRAM_BOT_TOKEN=1:a\nTELEGRAM_HOME_CHANNEL=4711\nTELEGRAM_CRON_THREAD_ID=7\nTELEGRAM_HOME_CHANNEL_THREAD_ID=8\n"
OWN_MODEL = '{{"agents": {{"defaults": {{"model": "a/b", "provider": "{0}"}}}}, "providers": {{"{0}": {{"apiKey": "k", "apiBase": "https://example.org/v1"}}}}, "gateway": {{"heartbeat": {{"intervalS": 900}}}}}}'
# In `context_from`, the ID of one job comes before the same name of another one.
OF_TWO_NAMES = [
    {"prompt": "Go.", "schedule": "0 7 * * *", "deliver": "local", **keys}
    for keys in ({"name": "first", "id": "1"}, {"name": "second", "id": "FIRST"}, {"name": "third", "context_from": ["first"]})
]
TWO_AGENTS = '{agents: {defaults: {workspace: "~/mine", heartbeat: {every: "1h", target: "none"}}, list: [{id: "a"}, {id: "b"}]}}'
ONE_BOT = '{channels: {telegram: {botToken: "1:a"}}}'
EVERY_15_MINUTES = '{"kind": "every", "everyMs": 900000, "anchorMs": 1795258200000}'  # 10:50


@loop_over(
    ("system", "files", "place", "expected"),
    [
        ("openclaw", {"openclaw__json": '{agents: {defaults: {heartbeat: {every: "1h", target: "none"}}, list: [{id: "a"}]}}'}, "agents.a.heartbeat.interval", "1h"),
        ("openclaw", {"openclaw__json": '{agents: {defaults: {heartbeat: {every: "1h", target: "none", ackMaxChars: 0}}}}', "jobs__json": store(DAILY, payload={"message": "Go."}, delivery={"mode": "none"})}, "cron.a.ack_max_chars", 0),
        ("openclaw", {"openclaw__json": '{channels: {telegram: {botToken: "1:a"}}}', "jobs__json": store(DAILY, payload={"message": "Go."}, delivery={"channel": "telegram", "to": "1", "threadId": "7"})}, "cron.a.enabled", False),
        ("openclaw", {"jobs__json": store(EVERY_15_MINUTES, payload={"message": "Go."}, delivery={"mode": "none"})}, "cron.a.schedule", "5,20,35,50 * * * *"),
        ("openclaw", {"openclaw__json": '{agents: {defaults: {heartbeat: {every: "1h", target: "none", activeHours: {start: "24:00", end: "08:00"}}}}}'}, "agents.main.heartbeat.active_hours.start", "00:00"),
        ("openclaw", {"openclaw__json": '{agents: {defaults: {heartbeat: {every: "1h", target: "none", activeHours: {start: "08:00", end: "24:30"}}}}}'}, "agents.main.heartbeat.enabled", False),
        ("hermes", {"jobs__json": store(DAILY, prompt="Go.", deliver="local, telegram"), "__env": TWO_TOPICS}, "cron.a.deliver", "telegram-4711-7"),
        ("hermes", {"jobs__json": store(DAILY, prompt="Go.", deliver="telegram"), "__env": TWO_TOPICS}, "cron.a.deliver", "telegram-4711-7"),
        ("nanobot", {"config__json": OWN_MODEL.format("openrouter")}, "agents.main.heartbeat.decide.model", "a/b"),
        ("nanobot", {"config__json": OWN_MODEL.format("openai")}, "agents.main.heartbeat.decide.model", "b"),
        ("goclaw", {"config__json": '{"channels": {"telegram": {"token": "1:a"}}}', "heartbeats__json": '[{"agentKey": "a", "enabled": true, "intervalSec": 900, "chatId": "4711"}]'}, "agents.a.heartbeat.deliver", "telegram-4711"),
        ("picoclaw", {"jobs__json": store(DAILY, payload={"message": "Go.", "command": "df", "deliver": True})}, "cron.a.command", "df"),
        ("openclaw", {"openclaw__json": '{channels: {telegram: {botToken: "1:a"}}, agents: {defaults: {heartbeat: {every: "1h", target: "telegram:4711"}}}}'}, "agents.main.heartbeat.deliver", "telegram-4711"),
        ("openclaw", {"jobs__json": store(DAILY, tz="Asia/Tokyo", payload={"message": "Go."}, delivery={"mode": "none"})}, "cron.a.timezone", "Asia/Tokyo"),
        ("hermes", {"jobs__json": store('"every 2h"', prompt="Go.", deliver="local")}, "cron.a.every", "2h"),
        ("hermes", {"jobs__json": store('"@every 45"', prompt="Go.", deliver="local")}, "cron.a.every", "45m"),
        ("hermes", {"jobs__json": store('{"minutes": 60}', prompt="Go.", deliver="local", repeat={"times": 1})}, "cron.a.enabled", False),
        ("hermes", {"jobs__json": json.dumps({"jobs": OF_TWO_NAMES})}, "cron.third.previous", "second"),
        ("openclaw", {"openclaw__json": '{agents: {list: [{id: "log", heartbeat: {every: "1h", target: "none"}}]}}'}, "agents.log-2.heartbeat.interval", "1h"),
        ("claw0", {"__env": "HEARTBEAT_INTERVAL=300\n"}, "agents.main.heartbeat.interval", "5m"),
        ("claw0", {"__env": "HEARTBEAT_INTERVAL=300\n"}, "agents.main.heartbeat.enabled", None),
        ("claw0", {"__env": "HEARTBEAT_INTERVAL=299\n"}, "agents.main.heartbeat.enabled", False),
        ("zeroclaw", {"jobs__json": store('"0 0 7 * * 2"', prompt="Go.")}, "cron.a.enabled", False),  # Monday there, Tuesday here
        ("zeroclaw", {"jobs__json": '[{"name": "a", "cron": "0 0 7 * * 2", "prompt": "Go."}]'}, "cron.a.enabled", False),
        # croniter, of Hermes and nanobot, has the seconds in the last field, and croner, of OpenClaw, in the first.
        ("hermes", {"jobs__json": store('{"expr": "0 9 * * 1 0"}', prompt="Go.", deliver="local")}, "cron.a.schedule", "0 9 * * 1"),
        ("nanobot", {"jobs__json": store('{"expr": "0 9 * * 1 0"}', payload={"message": "Go."})}, "cron.a.schedule", "0 9 * * 1"),
        ("openclaw", {"jobs__json": store('{"expr": "0 0 9 * * 1"}', payload={"message": "Go."}, delivery={"mode": "none"})}, "cron.a.schedule", "0 9 * * 1"),
        # Both match days by either field, also if one of them begins with a star. gronx, of PicoClaw and GoClaw, by both.
        ("hermes", {"jobs__json": store('"0 9 */2 * 1"', prompt="Go.", deliver="local")}, "cron.a.schedule", "0 9 1-31/2 * 1"),
        ("openclaw", {"jobs__json": store('"0 9 13 * */2"', payload={"message": "Go."}, delivery={"mode": "none"})}, "cron.a.schedule", "0 9 13 * 0-6/2"),
        ("hermes", {"jobs__json": store('"0 9 */2 * *"', prompt="Go.", deliver="local")}, "cron.a.schedule", "0 9 */2 * *"),
        ("picoclaw", {"jobs__json": store('"0 9 */2 * 1"', payload={"message": "Go."})}, "cron.a.schedule", "0 9 */2 * 1"),
        ("picoclaw", {"config__json": '{"channels": {"telegram": {"token": "1:a"}}}', "jobs__json": store('"0 9 13 * 5"', payload={"message": "Go."})}, "cron.a.enabled", False),
        ("goclaw", {"jobs__json": store('{"expr": "0 9 13 * 5"}', payload={"message": "Go."})}, "cron.a.enabled", False),
        ("picoclaw", {"config__json": '{"channels": {"telegram": {"token": "1:a"}}}', "jobs__json": store('"@daily"', payload={"message": "Go.", "channel": "telegram", "to": "1", "deliver": True})}, "cron.a.enabled", None),
        # Without `default: true`, the first agent is the default one. The others have workspaces of their own.
        ("openclaw", {"openclaw__json": TWO_AGENTS}, "agents.a.heartbeat.interval", "1h"),
        ("openclaw", {"openclaw__json": TWO_AGENTS}, "agents.b.heartbeat.interval", "none"),
        ("openclaw", {"openclaw__json": TWO_AGENTS}, "agents.a.workspace", "~/mine"),
        ("openclaw", {"openclaw__json": TWO_AGENTS}, "agents.b.workspace", "~/.openclaw/workspace-b"),
        ("openclaw", {"openclaw__json": ONE_BOT, "jobs__json": store(DAILY, payload={"message": "Go.", "deliver": False, "channel": "telegram", "to": "1"})}, "cron.a.deliver", "none"),
        ("openclaw", {"openclaw__json": ONE_BOT, "jobs__json": store(DAILY, payload={"message": "Go.", "deliver": True, "channel": "telegram", "to": "1"})}, "cron.a.enabled", None),
        ("hermes", {"jobs__json": store(DAILY, prompt="Go.", deliver="local", enabled=True, state="scheduled", paused_at="2026-11-20T10:00:00+00:00")}, "cron.a.enabled", False),
        ("goclaw", {"beats__json": '[{"agentKey": "ops", "agentId": "0190", "enabled": true, "intervalSec": 900}]', "jobs__json": store(DAILY, agentId="0190", wakeHeartbeat=True, payload={"message": "Go."})}, "cron.a.wake_heartbeat", "ops"),
        ("hermes", {"jobs__json": store(DAILY, prompt="Go.", deliver="local", workdir="/srv/site")}, "cron.a.enabled", False),
        ("hermes", {"jobs__json": store(DAILY, prompt="Go.", deliver="local", profile="work")}, "cron.a.enabled", False),
        ("hermes", {"jobs__json": store(DAILY, prompt="Go.", deliver="local", provider="ollama", base_url="http://127.0.0.1:11434")}, "cron.a.enabled", False),
        ("claw0", {"__env": "MODEL_ID=m  # the model\n"}, "agents.main.model", "m"),
        ("claw0", {"__env": "MODEL_ID='m #1' # the model\n"}, "agents.main.model", "m #1"),
        ("claw0", {"__env": 'MODEL_ID="the \\"small\\" one"\n'}, "agents.main.model", 'the "small" one'),
        ("claw0", {"__env": "MODEL_ID=m\nANTHROPIC_BASE_URL=https://example.org/?key=canary\n"}, "providers.anthropic.base_url", "${ANTHROPIC_BASE_URL}"),
    ],
)  # fmt: skip
def test_a_value_means_the_same_in_the_new_config(system: str, files: dict[str, str], place: str, expected: object) -> None:
    assert value_at(import_text(system, **files).data, place.split(".")) == expected
