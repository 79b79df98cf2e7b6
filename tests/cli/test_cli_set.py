"""`heartbeatd config set` and `unset` change single values in the config file."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_file import write

from scheduler.cli.main import main
from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Diagnostics

CONFIG = """\
timezone: UTC
prices: {gpt-9.5: {input: 1, output: 2}}   # a dot in a name
agents:
  mail:   # reads the mail
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, deliver: log, on_missing: run}
"""
RUNNER = "runner: {kind: command, argv: [agent]}"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write(tmp_path, CONFIG)


def call(config: Path, *arguments: str) -> int:
    return main(["-c", str(config), "config", *arguments])


def test_a_value_is_set_and_the_changed_line_is_printed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(config, "set", "agents.mail.heartbeat.retries=3") == 0
    printed = capsys.readouterr()
    assert config.read_text() == CONFIG.replace("on_missing: run}", "on_missing: run, retries: 3}")
    assert "+    heartbeat: {interval: 30m, deliver: log, on_missing: run, retries: 3}" in printed.out
    assert printed.err == "written; the daemon is not running and reads the file when it starts\n"


@pytest.mark.parametrize("path", ["defaults.runner", "agents.mail.runner", "runners.spare"])
def test_a_value_inside_a_runner_of_which_only_the_kind_is_written_keeps_the_kind(config: Path, path: str) -> None:
    short = CONFIG.replace("{kind: command, argv: [agent]}", "claude-code")
    short += "defaults: {runner: claude-code}\nrunners: {spare: claude-code}\n"
    config.write_text(short)
    assert call(config, "unset", f"{path}.allow") == 0
    assert config.read_text() == short
    assert call(config, "set", f"{path}.allow=[Read, Grep]", f"{path}.program=/opt/claude") == 0
    changed = config.read_text()
    assert changed.count("kind: claude-code") == 1
    assert changed.count("claude-code") == 3
    found = marked_yaml.value_at(marked_yaml.parse_yaml(changed, Diagnostics("")), path.split("."))
    assert found == {"kind": "claude-code", "allow": ["Read", "Grep"], "program": "/opt/claude"}


@pytest.mark.parametrize(
    ("written", "edit", "read"),
    [
        (
            "runner: {kind: claude-code, account: work}",
            "runner.account.max_runs=5 per 1h",
            {"name": "work", "max_runs": "5 per 1h"},
        ),
        ("precheck: ./new-mail.sh", "heartbeat.precheck.timeout=5s", {"command": "./new-mail.sh", "timeout": "5s"}),
        ("deliver: log", "heartbeat.deliver.critical=hold", {"to": "log", "critical": "hold"}),
    ],
)
def test_a_value_inside_a_map_that_is_written_as_a_text_keeps_the_text(
    config: Path, written: str, edit: str, read: dict[str, str]
) -> None:
    key = edit.rpartition(".")[0]
    text = CONFIG.replace("deliver: log", written) if "heartbeat" in key else CONFIG.replace(RUNNER, written)
    config.write_text(text)
    assert call(config, "set", f"agents.mail.{edit}") == 0
    found = marked_yaml.parse_yaml(config.read_text(), Diagnostics(""))
    assert marked_yaml.value_at(found, ["agents", "mail", *key.split(".")]) == read


def test_a_precheck_of_none_does_not_become_a_command(config: Path) -> None:
    config.write_text(CONFIG.replace("deliver: log", "precheck: none"))
    assert call(config, "set", "agents.mail.heartbeat.precheck.timeout=5s") == 2


def test_a_value_that_is_there_already_is_not_written(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(config, "set", "timezone=UTC") == 0
    assert capsys.readouterr() == ("nothing changed\n", "")


def test_several_values_are_written_together(config: Path) -> None:
    assert call(config, "set", "timezone=Europe/Berlin", r"prices.gpt-9\.5.input=4", "agents.mail.heartbeat.interval=1h") == 0
    expected = CONFIG.replace("UTC", "Europe/Berlin").replace("input: 1", "input: 4").replace("30m", "1h")
    assert config.read_text() == expected


def test_a_key_is_removed(config: Path) -> None:
    assert call(config, "unset", "agents.mail.heartbeat.deliver", "agents.mail.heartbeat.none_of_this") == 0
    assert config.read_text() == CONFIG.replace("deliver: log, ", "")


def test_a_dry_run_writes_nothing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(config, "set", "timezone=Europe/Berlin", "--dry-run") == 0
    assert capsys.readouterr().out == "@@ -1 +1 @@\n-timezone: UTC\n+timezone: Europe/Berlin\n"
    assert config.read_text() == CONFIG


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("agents.mail.heartbeat.interval=1x", "config.yaml:6:27: agents.mail.heartbeat.interval: '1x' is not a duration"),
        ("agents.mail.heartbeat.intervall=1h", "config.yaml:6:63: agents.mail.heartbeat.intervall: unknown key"),
        ("agents.mail.heartbeat.interval", "has no =; write KEY=VALUE"),
        ("agents..interval=1h", "is not the path of a key"),
        ("timezone=", "timezone has no value"),
        ("timezone={", "the value of timezone is not YAML"),
        (
            "agents.mail.heartbeat.prompt=look at #3",
            "the value of agents.mail.heartbeat.prompt would be 'look at'; put a text with",
        ),
    ],
)
def test_a_wrong_assignment_is_refused_and_changes_nothing(
    config: Path, capsys: pytest.CaptureFixture[str], assignment: str, message: str
) -> None:
    assert call(config, "set", assignment) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert config.read_text() == CONFIG


def test_a_shared_value_is_refused_with_its_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = (
        CONFIG.replace("heartbeat: {", "heartbeat: &beat {") + "  copy: {runner: {kind: command, argv: [x]}, heartbeat: *beat}\n"
    )
    config.write_text(shared)
    assert call(config, "set", "agents.mail.heartbeat.interval=1h") == 2
    assert "config.yaml:6: agents.mail.heartbeat: its value has the anchor &beat" in capsys.readouterr().err
    assert config.read_text() == shared


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("channels.phone=https://example.org/", "an https:// address alone names no kind"),
        ("providers.local={kind: openai, base_url: localhost}", "this is not the address of a server"),
        ("server.tokens={ui: {value: short, may: [read]}}", "this token"),
        ("agents.web={runner: {kind: http, url: 'http://x', headers: {X-Name: ü}}}", "a header can contain only ASCII"),
        ("executor={kind: procrastinate, dsn: localhost}", "this is not the address of a PostgreSQL database"),
        ('executor={kind: procrastinate, dsn: "postgresql://u:p[x@h/d"}', "this is not the address of a PostgreSQL database"),
    ],
)
def test_a_value_that_the_daemon_would_reject_is_not_written(
    config: Path, capsys: pytest.CaptureFixture[str], value: str, problem: str
) -> None:
    """The command needs no secrets. What is written in the file itself is checked all the same."""
    assert call(config, "set", value) == 2
    assert problem in capsys.readouterr().err
    assert config.read_text() == CONFIG


def test_a_missing_config_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path / "config.yaml", "set", "timezone=UTC") == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.extras
def test_each_command_that_edits_keeps_the_mark_the_line_breaks_and_the_missing_last_one(tmp_path: Path) -> None:
    (tmp_path / "crontab").write_text("0 3 * * * date\n")
    (tmp_path / "openclaw.json").write_text('{agents: {defaults: {workspace: "~/x", heartbeat: {every: "1h", target: "none"}}}}')
    commands = (
        ("config", "set", "agents.mail.heartbeat.retries=3"),
        ("config", "unset", "timezone"),
        ("config", "add", "agent", "disk", "--template", "disk"),
        ("cron", "import", str(tmp_path / "crontab"), "--timezone", "UTC"),
        ("config", "import", "openclaw", str(tmp_path / "openclaw.json"), "--timezone", "UTC"),
    )
    before = b"\xef\xbb\xbf" + CONFIG.removesuffix("\n").replace("\n", "\r\n").encode()
    config = tmp_path / "config.yaml"
    for command in commands:
        config.write_bytes(before)
        assert main([*command, "--into" if "import" in command else "-c", str(config)]) == 0, command
        after = config.read_bytes()
        found = (after != before, after[:3], after.count(b"\n") == after.count(b"\r\n"), after.endswith(b"\n"))
        assert found == (True, before[:3], True, False), (command, after)
