"""`heartbeatd config add` writes an agent or a job from a template into the config. Each template finds what it is for."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from config_file import write
from daemon_process import run_command
from patience import PATIENCE

from heartbeat.runners.redaction import reveal_secret
from scheduler.cli.main import main
from scheduler.config.settings.load import load_config
from scheduler.config.settings.templates import JOB_TEMPLATES, TEMPLATES

CONFIG = """\
# my config, with   odd blanks
timezone:   UTC
agents:
    first:                      # the first one
        runner: {kind: command,   argv: ["./ask", -x]}
        heartbeat: {interval: 30m, deliver: log}

cron:
    old: {every: 1h,   command: "true"}   # the old one
"""
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
Prepare = Callable[[Path], str]


def add(config: Path, *words: str) -> int:
    return main(["-c", str(config), "config", "add", *words])


def git(folder: Path, *words: str) -> None:
    subprocess.run([*GIT, "-C", folder, *words], check=True, capture_output=True, timeout=PATIENCE)


def look(command: str, folder: Path) -> tuple[int, str]:
    """The exit code and the output of a check, as the daemon runs it."""
    found = subprocess.run(["/bin/sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return found.returncode, found.stdout.strip()


def mailbox(folder: Path) -> str:
    box = folder / "my mail"
    (box / "new").mkdir(parents=True)
    return str(box)


def get_mail(folder: Path) -> None:
    (folder / "my mail" / "new" / "1").write_text("From: ann@example.org\nSubject: help\n\nFrom: nobody\n")


def clone(folder: Path) -> str:
    git(folder, "init", "origin")
    git(folder / "origin", "commit", "--allow-empty", "-m", "one")
    git(folder, "clone", "origin", "my clone")
    return str(folder / "my clone")


def push_commit(folder: Path) -> None:
    git(folder / "origin", "commit", "--allow-empty", "-m", "two")


def test_an_agent_is_added_and_no_other_byte_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(tmp_path, CONFIG)
    assert add(config, "agent", "watch-disk", "--template", "disk") == 0
    text = config.read_text()
    head, _, rest = text.partition("    watch-disk:\n")
    assert head == CONFIG.partition("\ncron:")[0]
    assert text.endswith("\ncron:" + CONFIG.partition("\ncron:")[2])
    assert 'argv: [./ask, "-x"]' in rest
    beat = load_config(config, {}).settings.heartbeats["watch-disk"]
    assert (beat.workspace / beat.checklist).read_text().startswith("# Heartbeat\n\n- A disk is")
    printed = capsys.readouterr().out
    assert "+    watch-disk:\n" in printed
    assert "\n-" not in printed.replace("\n---", "")
    assert "next: heartbeatd check; heartbeatd wake watch-disk" in printed


def test_a_dry_run_shows_the_change_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(tmp_path, CONFIG)
    assert add(config, "agent", "watch-disk", "--template", "disk", "--dry-run") == 0
    assert config.read_text() == CONFIG
    assert list(tmp_path.iterdir()) == [config]
    printed = capsys.readouterr().out
    assert "+    watch-disk:" in printed
    assert "# Heartbeat" in printed


def test_a_checklist_that_exists_is_kept(tmp_path: Path) -> None:
    config = write(tmp_path, CONFIG)
    own = tmp_path / "agents" / "watch-disk" / "HEARTBEAT.md"
    own.parent.mkdir(parents=True)
    own.write_text("- mine\n")
    assert add(config, "agent", "watch-disk", "--template", "disk") == 0
    assert own.read_text() == "- mine\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["agent", "first", "--template", "disk"], "already has an agent 'first'"),
        (["agent", "cert", "--template", "certificate"], "the template certificate needs --target HOST or HOST:PORT"),
        (["agent", "news", "--template", "feed"], "the template feed needs --target URL"),
        (["agent", "a b/c", "--template", "disk"], "a b/c"),
        (["job", "disk", "--template", "mail"], "unknown template 'mail'; write disk, repository or certificate"),
    ],
)
def test_wrong_input_is_refused_and_nothing_is_written(
    words: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path, CONFIG)
    assert add(config, *words) == 2
    assert error in capsys.readouterr().err
    assert config.read_text() == CONFIG


def test_a_section_in_braces_over_several_lines_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = CONFIG.partition("cron:")[0] + "cron: {\n  old: {every: 1h, command: x}}\n"
    config = write(tmp_path, text)
    assert add(config, "job", "disk", "--template", "disk") == 2
    assert "cron.disk: its map is in brackets over several lines" in capsys.readouterr().err
    assert config.read_text() == text


def test_a_config_with_errors_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(tmp_path, "agents: {first: {intervall: 3}}\n")
    assert add(config, "agent", "second", "--template", "disk") == 2
    assert "unknown key" in capsys.readouterr().err
    assert config.read_text() == "agents: {first: {intervall: 3}}\n"


def test_defaults_are_not_repeated(tmp_path: Path) -> None:
    text = "defaults: {runner: {kind: command, argv: [ask]}, heartbeat: {deliver: log}}\nagents:\n  first: {heartbeat: {interval: 30m}}\n"
    config = write(tmp_path, text)
    assert add(config, "agent", "second", "--template", "disk", "--interval", "2h") == 0
    added = config.read_text().removeprefix(text)
    assert "interval: 2h" in added
    assert "runner" not in added
    assert "deliver" not in added


@pytest.mark.parametrize(
    "text",
    [
        "defaults: {model: m}\nagents:\n  one: {heartbeat: {interval: 1h}}\n",
        "agents:\n  one: {model: m, heartbeat: {interval: 1h}}\n",
    ],
)
def test_a_new_agent_calls_the_model_that_the_others_call(tmp_path: Path, text: str) -> None:
    config = write(tmp_path, f"prices: {{m: {{input: 1.0, output: 5.0}}}}\nlimits: {{budget: {{usd_per_day: 5}}}}\n{text}")
    assert add(config, "agent", "two", "--template", "disk") == 0
    one, two = load_config(config, {}).settings.heartbeats.values()
    assert (two.runner, two.model) == (one.runner, one.model)


PHONE = "channels: {phone: {kind: command, argv: [send]}}\n"
TWO_CHANNELS = "channels: {phone: {kind: command, argv: [send]}, ops: {kind: command, argv: [send]}}\n"
RUNNER = "runner: {kind: command, argv: [ask]}"
NEW_ENTRIES = [  # the config before, and what is said of an agent and of a job that is added to it
    ("", "every 30m, messages go to log", "every 30m, failures are reported to log"),
    ("# my config\n", "every 30m, messages go to log", "every 30m, failures are reported to log"),
    (f"{PHONE}agents:\n", "every 30m, messages go to phone", "every 30m, failures are reported to phone"),
    ("cron:\n  old: {every: 1h, command: ls}\n", "every 30m, messages go to log", "every 30m, failures are reported to log"),
    (
        f"{PHONE}agents:\n  one: {{{RUNNER}, heartbeat: {{interval: 1h, deliver: log}}}}\n",
        "every 30m, messages go to phone",
        "every 30m, failures are reported to phone",
    ),
    (
        f"{TWO_CHANNELS}defaults: {{{RUNNER}}}\nagents:\n  one: {{heartbeat: {{interval: 1h, deliver: [ops]}}}}\n",
        "every 30m, messages go to ops",
        "every 30m, failures are reported to log",
    ),
    (
        f"{PHONE}defaults:\n  heartbeat: {{interval: 2h, deliver: log}}\n  cron: {{every: 3h, problems: {{deliver: log}}}}\n",
        "every 2h (set in defaults), messages go to log",
        "every 3h (set in defaults), failures are reported to log",
    ),
    (
        'defaults:\n  heartbeat: {schedule: "0 9 * * *"}\n  cron: {schedule: "0 8 * * *", deliver: log, problems: {after: none}}\n',
        "by '0 9 * * *' (set in defaults), messages go to log",
        "by '0 8 * * *' (set in defaults), failures are reported to nobody",
    ),
]


def test_a_new_entry_follows_defaults_and_channels_and_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, agent, job in NEW_ENTRIES:
        for kind, expected in (("agent", agent), ("job", job)):
            config = write(tmp_path, text)
            assert add(config, kind, "disk", "--template", "disk") == 0, (text, capsys.readouterr().err)
            printed = capsys.readouterr().out
            assert f"\ndisk runs {expected}\n" in printed, text
            assert config.read_text().startswith(text)


def test_an_interval_that_is_asked_for_replaces_that_of_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(tmp_path, 'defaults: {heartbeat: {schedule: "0 9 * * *"}, cron: {every: 2h}}\n')
    for kind in ("agent", "job"):
        assert add(config, kind, "disk", "--template", "disk", "--interval", "45m") == 0
        assert "\ndisk runs every 45m, " in capsys.readouterr().out


def check_of(config: Path, name: str) -> str:
    beat = load_config(config, {}).settings.heartbeats[name]
    assert beat.precheck is not None
    return str(beat.precheck.command)


@pytest.mark.parametrize(
    ("template", "prepare", "happen", "found"),
    [
        ("mail", mailbox, get_mail, "From: ann@example.org\nSubject: help"),
        ("repository", clone, push_commit, " two"),
    ],
)
def test_a_check_of_an_agent_prints_what_is_new(
    template: str, prepare: Prepare, happen: Callable[[Path], None], found: str, tmp_path: Path
) -> None:
    config, target = write(tmp_path, CONFIG), prepare(tmp_path)
    assert add(config, "agent", "new", "--template", template, "--target", target) == 0
    command = check_of(config, "new")
    assert look(command, tmp_path) == (0, "NO_WORK")
    happen(tmp_path)
    code, out = look(command, tmp_path)
    assert (code, out.endswith(found)) == (0, True)


@contextmanager
def server_with_certificate(folder: Path, days: int) -> Iterator[str]:
    """The HOST:PORT of a TLS server on the loopback interface whose certificate is valid for so many days."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", str(days)]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=PATIENCE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                    with context.wrap_socket(client, server_side=True) as secure:
                        secure.recv(1)
                except OSError:
                    if listener.fileno() < 0:
                        return

        threading.Thread(target=serve, daemon=True).start()
        yield f"localhost:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_a_check_of_a_certificate_reports_its_end_and_fails_without_a_server(tmp_path: Path) -> None:
    config = write(tmp_path, CONFIG)
    with server_with_certificate(tmp_path, days=90) as target:
        assert add(config, "agent", "good", "--template", "certificate", "--target", target) == 0
        assert look(check_of(config, "good"), tmp_path) == (0, "NO_WORK")
    assert look(check_of(config, "good"), tmp_path) == (2, "")
    with server_with_certificate(tmp_path, days=5) as target:
        assert add(config, "agent", "bad", "--template", "certificate", "--target", target) == 0
        code, out = look(check_of(config, "bad"), tmp_path)
    assert (code, out[:74]) == (0, "the certificate of localhost expires in less than 14 days: notAfter=" + out[68:74])


def test_disks_and_feeds_have_built_in_prechecks(tmp_path: Path) -> None:
    config = write(tmp_path, CONFIG)
    assert add(config, "agent", "disk", "--template", "disk", "--target", str(tmp_path)) == 0
    assert add(config, "agent", "feed", "--template", "feed", "--target", "https://example.org/feed?a=b") == 0
    assert f"precheck: {{disk: 85%, path: {tmp_path}}}" in " ".join(config.read_text().split())
    beats = load_config(config, {}).settings.heartbeats
    disk, feed = (beats[name].precheck for name in ("disk", "feed"))
    assert disk is not None and disk.source is not None
    assert (disk.source.kind, disk.source.limit, disk.source.paths) == ("disk", 85, (str(tmp_path),))
    assert feed is not None and feed.source is not None
    assert feed.source.kind == "rss"
    assert reveal_secret(feed.source.place) == "https://example.org/feed?a=b"


def test_a_job_fails_while_a_disk_is_full_or_cannot_be_looked_at(tmp_path: Path) -> None:
    config = write(tmp_path, CONFIG)
    assert add(config, "job", "none", "--template", "disk", "--target", str(tmp_path / "none")) == 0
    assert look(command_of(config, "none"), tmp_path)[0] == 2
    assert add(config, "job", "disk", "--template", "disk") == 0
    df = tmp_path / "df"
    for percent, expected in ((84, (0, "")), (85, (1, "/var is 85% full"))):
        df.write_text(f"#!/bin/sh\necho Filesystem\necho /dev/x 100 97 3 {percent}% /var\n")
        df.chmod(0o755)
        assert look(f"PATH={tmp_path.as_posix()!r}:$PATH; {command_of(config, 'disk')}", tmp_path) == expected


def command_of(config: Path, name: str) -> str:
    return str(load_config(config, {}).settings.jobs[name].command)


def test_an_agent_gets_the_findings_of_its_template_in_the_prompt(tmp_path: Path) -> None:
    """One run of each template, with an agent that repeats its prompt, and of each job."""
    config = write(tmp_path, CONFIG.replace('["./ask", -x]', "[cat]"))
    targets = {"mail": mailbox(tmp_path), "repository": clone(tmp_path), "disk": str(tmp_path)}
    git(tmp_path, "clone", "origin", "second clone")  # two fetches at once into one clone would disturb each other
    get_mail(tmp_path)
    push_commit(tmp_path)
    with server_with_certificate(tmp_path, days=5) as targets["certificate"]:
        for template in TEMPLATES.keys() - {"feed"}:
            assert add(config, "agent", template, "--template", template, "--target", targets[template]) == 0
        targets["repository"] = str(tmp_path / "second clone")
        for template in JOB_TEMPLATES:
            assert add(config, "job", template, "--template", template, "--target", targets[template]) == 0
        assert main(["-c", str(config), "check"]) == 0
        run_command(config, "run", "--once")
    listed = run_command(config, "runs", "--format", "json")
    runs = {(run["kind"], run["name"]): run for run in json.loads(listed.stdout)}
    texts = {"mail": "Subject: help", "repository": " two", "certificate": "the certificate of localhost"}
    for template, text in texts.items():
        assert text in runs["heartbeat", template]["text"]
    assert [runs["cron", name]["result"] for name in ("repository", "certificate")] == ["failed", "failed"]
