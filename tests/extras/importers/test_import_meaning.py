"""An import keeps what a job means: a job that would do something else than before is disabled or left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from imported import Imported, import_text

from scheduler.cli.main import main
from scheduler.extras.importers import foreign_system
from scheduler.extras.importers.foreign_system import import_sources
from scheduler.extras.importers.import_receipt import format_receipt
from scheduler.extras.importers.source_files import read_source

HOURLY = {"kind": "cron", "expr": "5 * * * *", "tz": "UTC"}
SILENT = {"mode": "none"}


def jobs(*jobs: dict[str, Any]) -> str:
    """A job store with these jobs, each with a schedule and a prompt if it has none."""
    return json.dumps({"jobs": [{"schedule": HOURLY, "payload": {"message": "Go."}, "delivery": SILENT, **job} for job in jobs]})


def last_lines(imported: Imported) -> list[str]:
    """The lines of the receipt after its counts."""
    lines = list(format_receipt(imported.draft.receipt))
    return lines[next(place for place, line in enumerate(lines) if line.startswith("receipt: ")) + 1 :]


def test_a_job_with_a_key_that_the_importer_does_not_know_is_disabled() -> None:
    """The key may be a condition, as `trigger.script` was."""
    plain, known, unknown, unset = (
        {"name": "plain"},
        {"name": "known", "description": "only a text"},
        {"name": "unknown", "newKey": {"when": "moon"}},
        {"name": "unset", "newKey": {"when": None, "often": False}},
    )
    imported = import_text("openclaw", jobs__json=jobs(plain, known, unknown, unset))
    off = [name for name, job in imported.data["cron"].items() if not job.get("enabled", True)]
    assert off == ["unknown"]
    assert last_lines(imported) == ["disabled cron.unknown: jobs[2].newKey.when: heartbeatd has no such setting"]


def test_every_system_disables_what_has_a_key_that_is_not_known() -> None:
    """Also where a reason covers a whole part of the file, such as all that stays in the other system."""
    once = '"newKey": {"when": "moon"}'
    prompt = '"prompt": "Go.", "content": "Go.", "payload": {"message": "Go."}, "deliver": "local"'
    job = f'{{"name": "a", {prompt}, "schedule": {{"expr": "5 9 * * *", "tz": "UTC"}}, {once}}}'
    stores = {"nanobot", "picoclaw", "claw0", "goclaw", "hermes", "openclaw", "zeroclaw"}
    tables = "schedule = {kind = 'cron', expr = '5 9 * * *'}\nprompt = 'Go.'\nnew_key = 'moon'\n"
    cases = [
        *((system, {"jobs__json": f'{{"jobs": [{job}]}}'}, "cron.a") for system in sorted(stores)),
        ("zeroclaw", {"config__toml": f"[[cron.jobs]]\nid = 'a'\n{tables}"}, "cron.a"),
        ("zeroclaw", {"config__toml": f"[cron.a]\n{tables}"}, "cron.a"),
        ("mistermorph", {"cron__yaml": "tasks: [{id: a, cron: 5 9 * * *, content: Go., chat_id: 'tg:1', newKey: moon}]"}, "cron.a"),
        ("zeroclaw", {"config__toml": "[heartbeat]\nenabled = true\nnew_key = 'moon'\n"}, "agents.main"),
        ("mistermorph", {"config__yaml": "heartbeat: {interval: 1h, newKey: moon}"}, "agents.main"),
        ("picoclaw", {"config__json": '{"heartbeat": {"interval": 30, "newKey": "moon"}, "channels": {"telegram": {"token": "t"}}}'}, "agents.main"),
        ("nanobot", {"config__json": '{"gateway": {"heartbeat": {"intervalS": 900, "newKey": "moon"}}, "channels": {"telegram": {"token": "t"}}}'}, "agents.main"),
        ("openclaw", {"openclaw__json": '{agents: {defaults: {heartbeat: {every: "1h", target: "none", newKey: "moon"}}}}'}, "agents.main"),
        ("goclaw", {"heartbeats__json": f'[{{"agentKey": "main", "enabled": true, "intervalSec": 900, {once}}}]'}, "agents.main"),
    ]  # fmt: skip
    for system, files, entry in cases:
        imported = import_text(system, **files)
        section, name = entry.split(".")
        keys = imported.data[section][name]
        assert (keys if section == "cron" else keys["heartbeat"])["enabled"] is False, (system, entry)
        reasons = [why for each in imported.draft.receipt.changed_meanings if each.entry == entry for why in each.reasons]
        assert any("new" in why and "key" in why.lower() for why in reasons), (system, entry, reasons)


def test_the_last_lines_and_the_exit_code_tell_of_every_job_whose_meaning_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "jobs.json"
    often = {"name": "often", "schedule": {"kind": "cron", "expr": "*/30 * * * * *"}}
    source.write_text(
        jobs({"name": "plain"}, often, {"name": "slack", "delivery": {"channel": "slack", "to": "C1"}}, {"name": "new", "a": 1})
    )
    code = main(["config", "import", "openclaw", str(source), "--timezone", "UTC"])
    lines = capsys.readouterr().err.splitlines()
    assert code == 1
    assert [line for line in lines if line.startswith(("disabled", "left out"))] == [
        f"left out {source}:1 jobs[1] (often): runs at given seconds, and heartbeatd's schedules begin at full minutes",
        "disabled cron.slack: heartbeatd cannot use this bot of slack; declare a webhook or an Apprise URL, and set deliver",
        "disabled cron.new: jobs[3].a: heartbeatd has no such setting",
    ]


def test_settings_that_end_with_the_move_do_not_stay_in_the_other_system() -> None:
    cases = {
        ("goclaw", "config__json", '{"cron": {"max_retries": 3}, "agents": {"list": {"a": {}}}}'): "cron.max_retries",
        (
            "mistermorph",
            "config__yaml",
            "tasks: {targets: {console: {heartbeat_topic_id: x}}}",
        ): "tasks.targets.console.heartbeat_topic_id",
        ("mistermorph", "config__yaml", "cron: {tick: 1m}"): "cron.tick",
        ("hermes", "config__yaml", "model: {default: x}\ncron: {wrap_response: false}"): "cron.wrap_response",
        ("hermes", "jobs__json", jobs({"name": "a", "prompt": "x", "deliver": "local", "provider": "p"})): "jobs[0].provider",
        (
            "nanobot",
            "config__json",
            '{"gateway": {"heartbeat": {"keepRecentMessages": 8}}}',
        ): "gateway.heartbeat.keepRecentMessages",
        ("picoclaw", "config__json", '{"tools": {"cron": {"exec_timeout_minutes": 5}}}'): "tools.cron.exec_timeout_minutes",
        ("zeroclaw", "config__toml", "[heartbeat]\nmax_run_history = 5\n[cron]\nmax_run_history = 5\n"): "cron.max_run_history",
        ("openclaw", "openclaw__json", "{cron: {maxConcurrentRuns: 2}, agents: {}}"): "cron.maxConcurrentRuns",
    }
    for (system, name, text), key in cases.items():
        source = read_source(name.replace("__", "."), text.encode())
        draft = import_sources(foreign_system.load_system(system), [source], "UTC")
        (found,) = [entry for entry in draft.receipt.entries.values() if entry.key == key]
        assert found.status == "dropped", (system, key)
        assert "stays in" not in found.why, (system, key, found.why)


def test_jobs_of_an_agent_whose_heartbeat_is_off_are_kept() -> None:
    imported = import_text(
        "picoclaw",
        config__json='{"heartbeat": {"enabled": false}, "channels": {"telegram": {"token": "x"}}}',
        jobs__json='{"jobs": [{"name": "a", "schedule": {"everyMs": 3600000}, "payload": {"message": "Go.", "to": "1"}}]}',
    )
    assert imported.data["agents"]["main"]["heartbeat"]["interval"] == "none"
    assert imported.data["cron"]["a"]["prompt"] == "Go."


def test_jobs_stay_off_whatever_each_says_if_all_are_switched_off() -> None:
    config, enabled = "{cron: {enabled: false}}", {"name": "a", "enabled": True}
    imported = import_text("openclaw", openclaw__json=config, jobs__json=jobs(enabled, {"name": "b"}))
    assert {name: job["enabled"] for name, job in imported.data["cron"].items()} == {"a": False, "b": False}


def test_a_job_calls_the_agent_that_it_names_also_if_only_the_job_is_imported() -> None:
    stored = jobs({"name": "a", "agentId": "ops"}, {"name": "b"}, {"name": "c", "agentId": "web"})
    imported = import_text("openclaw", jobs__json=stored)
    argv = {name: agent["runner"]["argv"][-1] for name, agent in imported.data["agents"].items()}
    assert [argv[imported.data["cron"][name]["agent"]] for name in "abc"] == ["ops", "ops", "web"]


def test_the_default_agent_has_the_default_workspace_and_its_own_recipient_counts_before_that_of_all() -> None:
    beat = '{every: "1h", target: "telegram", to: "1"}'
    agents = f'{{defaults: {{heartbeat: {beat}}}, list: [{{id: "a"}}, {{id: "b", default: true, heartbeat: {{to: "2"}}}}]}}'
    data = import_text("openclaw", openclaw__json=f'{{channels: {{telegram: {{botToken: "1:a"}}}}, agents: {agents}}}').data
    assert [data["agents"][name]["workspace"] for name in "ab"] == ["~/.openclaw/workspace-a", "~/.openclaw/workspace"]
    assert data["channels"][data["agents"]["b"]["heartbeat"]["deliver"]]["url"].endswith("/2")


def test_two_configs_of_a_system_with_one_agent_become_one_agent() -> None:
    for system, first, second in (
        ("nanobot", '{"gateway": {"heartbeat": {"intervalS": 900}}}', '{"agents": {"defaults": {"workspace": "/w"}}}'),
        ("mistermorph", '{"heartbeat": {"interval": "1h"}}', '{"file_state_dir": "/w"}'),
    ):
        agents = import_text(system, a__json=first, b__json=second).data["agents"]
        assert {name: agent["workspace"] for name, agent in agents.items()} == {"main": "/w"}, system


def test_a_telegram_bot_with_an_empty_token_does_not_count_as_a_bot() -> None:
    text = '{channels: {telegram: {botToken: ""}}, agents: {defaults: {heartbeat: {every: "1h", target: "last"}}}}'
    for written in (text, text.replace('botToken: ""', "")):
        beat = import_text("openclaw", openclaw__json=written).data["agents"]["main"]["heartbeat"]
        assert (beat["deliver"], beat["enabled"]) == ("log", False)


def test_alerts_for_two_webhooks_go_to_two_webhooks() -> None:
    def webhook(name: str, url: str) -> dict[str, Any]:
        return {"name": name, "delivery": {"mode": "webhook", "to": url}}

    first, second = "https://a.example.org/1", "https://b.example.org/2"
    cases = {
        "one file": import_text("openclaw", jobs__json=jobs(webhook("a", first), webhook("b", second))),
        "two files": import_text("openclaw", jobs__json=jobs(webhook("a", first)), more__json=jobs(webhook("b", second))),
        "a variable of the user": import_text("openclaw", jobs__json=jobs(webhook("a", first), webhook("b", "${WEBHOOK_URL}"))),
    }
    for case, imported in cases.items():
        channels, cron = imported.data["channels"], imported.data["cron"]
        urls = [channels[cron[name]["deliver"]]["url"] for name in ("a", "b")]
        assert len(set(urls)) == 2, case
        assert {f"${{{name}}}" for name in imported.draft.variables} == set(urls), case
        assert len(set(imported.draft.variables.values())) == 2, case


def test_a_secret_gets_another_variable_than_that_of_the_config_to_which_it_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variable of the config may hold the token of another bot; it is used only if its value is known to be the same."""
    mine = 'channels:\n  telegram:\n    url: "tgram://${TELEGRAM_BOT_TOKEN}/99"\nagents:\n  one:\n    runner: {kind: command, argv: [echo]}\n'
    source = tmp_path / "openclaw.json"
    token = "123456789:" + "B" * 35
    source.write_text(
        f'{{channels: {{telegram: {{botToken: "{token}"}}}},'
        ' agents: {defaults: {heartbeat: {every: "1h", target: "telegram", to: "4711"}}}}'
    )
    for value, expected in (("123456789:" + "A" * 35, "TELEGRAM_BOT_TOKEN_2"), (token, "TELEGRAM_BOT_TOKEN")):
        monkeypatch.setenv("TELEGRAM_BOT_TOKEN", value)
        config = tmp_path / "config.yaml"
        config.write_text(mine + "    heartbeat: {interval: 1h, deliver: log}\n")
        for times in ("first", "again"):
            assert main(["config", "import", "openclaw", str(source), "--into", str(config), "--timezone", "UTC"]) == 0
            text, printed = config.read_text(), capsys.readouterr().out
            assert f'"tgram://${{{expected}}}/4711"' in text, (value, times)
            assert text.count("4711") == 3, "the name of one channel, its address, and its use"
            assert f"set these environment variables: {expected} (was channels.telegram.botToken)" in printed or times == "again"


def test_two_bots_send_to_the_same_chat_each_with_its_own_token() -> None:
    bots = '{channels: {telegram: {botToken: "1:a", accounts: {work: {botToken: "2:b"}}}}}'
    chat = {"channel": "telegram", "to": "4711"}
    store = jobs({"name": "a", "delivery": chat}, {"name": "b", "delivery": {**chat, "accountId": "work"}})
    imported = import_text("openclaw", openclaw__json=bots, jobs__json=store)
    channels, cron = imported.data["channels"], imported.data["cron"]
    variables = [channels[cron[name]["deliver"]]["url"].split("/")[2][2:-1] for name in ("a", "b")]
    assert [imported.draft.secrets[name] for name in variables] == ["1:a", "2:b"]


def test_a_job_calls_the_first_of_two_agents_with_its_id() -> None:
    agents = '{agents: {list: [{id: "x", workspace: "~/one"}, {id: "x", workspace: "~/two"}]}}'
    data = import_text("openclaw", openclaw__json=agents, jobs__json=jobs({"name": "a", "agentId": "x"})).data
    assert data["agents"][data["cron"]["a"]["agent"]]["workspace"] == "~/one"


def test_every_reason_for_which_a_job_is_disabled_is_named() -> None:
    (line,) = last_lines(import_text("openclaw", jobs__json=jobs({"name": "a", "newKey": 1, "otherKey": 2})))
    assert [f"jobs[0].{key}: " in line for key in ("newKey", "otherKey")] == [True, True]


def test_a_value_of_two_jobs_is_kept_by_one_although_the_other_has_passed() -> None:
    hourly, past = {"kind": "interval", "minutes": 60}, {"kind": "once", "runAt": "2026-01-01T00:00:00Z"}
    store = [{"name": f"a{at}", "prompt": "Go.", "schedule": each, "deliver": "local"} for at, each in enumerate((hourly, past))]
    imported = import_text("hermes", config__yaml="cron: {model: small}", jobs__json=json.dumps({"jobs": store}))
    assert imported.status("cron.model") == "kept: cron.a0.model"


@pytest.mark.parametrize(("deliver", "channel"), [("telegram:1, slack:2", "telegram-1"), ("all", "log")])
def test_a_job_is_disabled_if_one_of_its_two_recipients_cannot_be_kept(deliver: str, channel: str) -> None:
    job = {"name": "a", "prompt": "Go.", "schedule": "0 7 * * *", "deliver": deliver}
    settings = "TELEGRAM_BOT_TOKEN=1:a\nTELEGRAM_HOME_CHANNEL=1\nSLACK_HOME_CHANNEL=2\n"
    imported = import_text("hermes", jobs__json=json.dumps({"jobs": [job]}), __env=settings)
    assert (imported.data["cron"]["a"]["deliver"], imported.data["cron"]["a"].get("enabled")) == (channel, False)


def test_the_default_agent_has_no_heartbeat_if_only_another_one_has_its_own() -> None:
    agents = '{agents: {list: [{id: "a", default: true}, {id: "b", heartbeat: {every: "1h", target: "none"}}]}}'
    data = import_text("openclaw", openclaw__json=agents).data["agents"]
    assert {name: agent["heartbeat"]["interval"] for name, agent in data.items()} == {"a": "none", "b": "1h"}


def test_a_finished_hermes_job_does_not_run_again() -> None:
    store = [
        {"name": state, "prompt": "Go.", "schedule": {"kind": "interval", "minutes": 60}, "state": state, "deliver": "local"}
        for state in ("scheduled", "paused", "completed")
    ]
    imported = import_text("hermes", jobs__json=json.dumps({"jobs": store}))
    assert {name: job.get("enabled", True) for name, job in imported.data["cron"].items()} == {
        "scheduled": True,
        "paused": False,
        "completed": False,
    }
