"""The mailbox over IMAP in docs/checklists.md, followed with real servers: IMAP, the Messages API and Telegram on this machine."""

from __future__ import annotations

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

from scheduler.cli.main import main

PAGE = (HOME / "docs/checklists.md").read_text("utf-8")
(CONFIG,) = (
    block for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if "imap.example.org" in block
)


def test_the_config_is_short_and_costs_at_most_50_cents_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("TG_TOKEN", "TG_CHAT", "ANTHROPIC_API_KEY", "MAIL_PASSWORD"):
        monkeypatch.setenv(name, "4711")
    assert len(CONFIG.splitlines()) == 12
    assert main(["-c", str(write(tmp_path, CONFIG)), "plan", "--worst"]) == 0
    assert capsys.readouterr().out.endswith("all: at most 0.5000 USD a day\n")


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
