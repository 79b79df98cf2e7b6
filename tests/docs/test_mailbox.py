"""The mailbox over IMAP in docs/checklists.md, followed with real servers: IMAP, the Messages API and Telegram on this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from checkout import HOME
from config_file import write
from required_programs import needs
from servers.dovecot import PASSWORD, running_dovecot
from servers.messages import Models
from test_story_postcheck import findings_answer
from world import MakeWorld

from heartbeat.runners import ProcessResult
from scheduler.cli.main import main

PAGE = (HOME / "docs/checklists.md").read_text("utf-8")
CONFIG, CLAUDE_CODE = (
    block for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if "imap.example.org" in block
)


@pytest.mark.parametrize(("config", "at_most"), [(CONFIG, "0.5000"), (CLAUDE_CODE, "0.4000")], ids=["model", "claude"])
def test_the_config_is_short_and_costs_at_most_50_cents_a_day(
    config: str, at_most: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("TG_TOKEN", "TG_CHAT", "ANTHROPIC_API_KEY", "MAIL_PASSWORD", "CLAUDE_CODE_OAUTH_TOKEN"):
        monkeypatch.setenv(name, "4711")
    assert len(config.splitlines()) <= 12
    assert main(["-c", str(write(tmp_path, config)), "plan", "--worst"]) == 0
    assert capsys.readouterr().out.endswith(f"all: at most {at_most} USD a day\n")


@needs("dovecot")
def test_only_a_look_with_new_mail_calls_the_model_and_what_it_reports_is_sent(make_world: MakeWorld) -> None:
    answers = [{"key": "mail:anna", "text": "Anna asks whether you come today", "severity": "info", "resolved": False}]
    with running_dovecot() as box, Models(lambda _: findings_answer({"findings": answers})) as models:
        config = CONFIG.replace("imap: imap.example.org", f'imap: "{box.plain_host}", encryption: none')
        config = config.replace("user: anna@example.org", "user: anna").replace('KEY}"}', f'KEY}}", base_url: "{models.url}"}}')
        config += "prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}}\n"  # of a server of our own
        secrets = {"TG_TOKEN": "4711:a", "TG_CHAT": "1", "ANTHROPIC_API_KEY": "sk-4711", "MAIL_PASSWORD": PASSWORD}
        world = make_world(config, start="2026-03-02 06:50", environ=secrets)
        world.run_until("2026-03-02 08:10")
        box.deliver("Anna <anna@example.org>", "today?")
        world.run_until("2026-03-02 21:50")
    (request,) = models.requests
    assert "Anna <anna@example.org>: today?" in str(request.json["messages"])
    (sent,) = [text for _, _, text in world.delivered]
    assert "mail:anna: Anna asks whether you come today" in sent


@needs("dovecot")
def test_claude_code_is_started_for_new_mail_alone_and_spends_what_it_reports(make_world: MakeWorld) -> None:
    findings = {"findings": [{"key": "mail:anna", "text": "Anna asks whether you come today", "severity": "info"}]}
    report = {"type": "result", "is_error": False, "result": json.dumps(findings), "total_cost_usd": 0.0312}
    printed = ProcessResult(0, json.dumps(report).encode(), b"")
    with running_dovecot() as box:
        config = CLAUDE_CODE.replace("imap: imap.example.org", f'imap: "{box.plain_host}", encryption: none')
        config = config.replace("user: anna@example.org", "user: anna")
        secrets = {"TG_TOKEN": "4711:a", "TG_CHAT": "1", "CLAUDE_CODE_OAUTH_TOKEN": "4711", "MAIL_PASSWORD": PASSWORD}
        world = make_world(config, start="2026-03-02 06:50", environ=secrets, scripts={"mail": lambda _: printed})
        world.run_until("2026-03-02 08:10")
        box.deliver("Anna <anna@example.org>", "today?")
        world.run_until("2026-03-02 21:50")
    (call,) = world.calls
    assert [*call.argv] == ["claude", "-p", "--output-format", "json", "--max-budget-usd", "0.2"]  # and no tools
    assert str(call.env["CLAUDE_CODE_OAUTH_TOKEN"]) == "***"
    assert "The severity is info, warning or critical." in call.stdin  # lines with keys have no `info`
    assert "Anna <anna@example.org>: today?" in call.stdin
    assert [record["cost_usd"] for record in world.records("mail") if record["result"] == "alert"] == [0.0312]
    (sent,) = [text for _, _, text in world.delivered]
    assert "mail:anna: Anna asks whether you come today" in sent
