"""Executes or checks every code block of README.md and of all pages, and parses every command that their text quotes.

- `yaml`: a config must pass `heartbeatd check` as printed. An example of a few keys is completed by `complete` first. Files of other
  programs (Alertmanager, GitHub Actions) are checked by these programs, or their commands are executed.
- `sh`: the block runs in a scratch folder with a real daemon. A program that would change the machine has a stand-in.
- `crontab`: our reader must read all lines, except for those that the page shows as errors.
- `sql` is executed by tests/extras/cluster/test_job_queue.py.
- `text` is output, which other tests compare. Any other word after the backticks needs a check of its own in `CHECKED`.
"""

from __future__ import annotations

import io
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
import required_programs
import warm_start
from checkout import HOME
from config_file import write
from daemon_process import Daemon
from loops import loop_over
from patience import PATIENCE
from ruamel.yaml import YAML
from servers import dovecot, gateway, messages, telegram
from servers.dovecot import running_dovecot
from servers.scripted import Server, reply
from servers.telegram import Telegram

import heartbeat
from cron import crontab_reader
from heartbeat import findings
from heartbeat.checklist import parse_checklist
from scheduler.cli.main import commands, main
from scheduler.config.keys import time_zones

USER_PAGES = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md")), HOME / "grafana/README.md"]
DEVELOPER_PAGES = [HOME / "ARCHITECTURE.md", HOME / "tests/README.md", HOME / "bench/README.md"]  # not in the wheel
PAGES = [*USER_PAGES, *DEVELOPER_PAGES]

# Blocks that are not executed, by their first line, with the reason.
NOT_EXECUTED = {
    "make run     # the daemon": "would start the daemon of this checkout, or its tests within its tests. `make -n` accepts the commands",
}
CHECKED = {"yaml", "sh", "crontab", "ini", "python", "markdown", "json", "json5", "promql", "sql", "text"}

# Values of the environment variables that the examples use. All others get OTHER_VALUE.
ENVIRONMENT = {
    "TG_TOKEN": "123456:ABC",
    "TG_CHAT": "4711",
    "HC_URL": "https://hc.example.org/ping/1",
    "TOKEN": "",
    "HEARTBEATD_DSN": "postgresql:///x",
}
OTHER_VALUE = "0123456789abcdef-canary"
TOKEN = "token-of-the-scripts-1234"  # may only wake, as in the examples

# `check` may warn about these keys of an example: programs and folders that are not here, and settings that the example leaves out.
INCOMPLETE = {
    "agents",
    "cron",
    "runner",
    "argv",
    "program",
    "command",
    "precheck",
    "workspace",
    "workdir",
    "model",
    "wake_heartbeat",
}

CONFIG = """\
state: state/heartbeatd.db
server: {{listen: "127.0.0.1:0", tokens: {{scripts: {{value: "{token}", may: [wake], agents: [ops]}}}}}}
channels:
  chat: {{kind: webhook, url: "https://example.org/{{target}}"}}
agents:
  host:
    runner: {{kind: command, argv: [echo, "The disk is 93 % full."]}}
    heartbeat: {{interval: 5m, stagger: 0s, checklist: "- look\\n", deliver: log}}
  ops:
    runner: {{kind: http, url: "{url}"}}
    heartbeat: {{interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}}
"""


@dataclass(frozen=True)
class Block:
    """A code block of a page: its first line in the file, the word after the backticks, and its text."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(HOME)}:{self.line}"

    @property
    def first_line(self) -> str:
        return self.text.split("\n", 1)[0]


def find_blocks(page: Path) -> Iterator[Block]:
    """All fenced blocks of a page, without the indentation of a list that contains them."""
    text = page.read_text("utf-8")
    for found in re.finditer(r"^( *)```([^\n`]*)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE):
        body = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
        yield Block(page, text.count("\n", 0, found.start()) + 1, found[2].strip(), body)


BLOCKS = [block for page in PAGES for block in find_blocks(page)]


def is_excluded(block: Block) -> bool:
    return any(block.first_line.startswith(line) for line in NOT_EXECUTED)


def runnable(language: str) -> list[Block]:
    """The blocks of a language that are executed or checked."""
    return [block for block in BLOCKS if block.language == language and not is_excluded(block)]


def blocks(language: str) -> pytest.MarkDecorator:
    """One test for each block of a language."""
    return pytest.mark.parametrize("block", runnable(language), ids=str)


def parse(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(io.StringIO(text))


def dump(data: object) -> str:
    """YAML in the form of JSON."""
    return json.dumps(data, default=str)


def test_every_block_names_its_language_and_is_checked() -> None:
    assert len(BLOCKS) > 50
    assert [f"{block}: {block.language or 'no language'}" for block in BLOCKS if block.language not in CHECKED] == []
    assert sum(len(re.findall(r"^ *```", page.read_text("utf-8"), re.MULTILINE)) for page in PAGES) == 2 * len(BLOCKS)


def test_every_exclusion_is_of_an_existing_block() -> None:
    assert sum(is_excluded(block) for block in BLOCKS) == len(NOT_EXECUTED)


def test_the_makefile_has_the_targets_of_the_readme() -> None:
    (block,) = (block for block in BLOCKS if is_excluded(block))
    for line in block.text.splitlines():
        dry = line.replace("make", "make -n", 1)
        planned = subprocess.run(["sh", "-c", dry], cwd=HOME, capture_output=True, timeout=PATIENCE, check=False)
        assert planned.returncode == 0, planned.stderr


# --- yaml ---------------------------------------------------------------------------------------------------------------------


def complete(text: str) -> str:
    """A config from an example that shows only a part of one.

    The key `heartbeat` belongs to an agent, and gets an interval if it has none. A config without agents and jobs gets an agent.
    Everything else, such as channels and providers, must be in the example.
    """
    data = parse(text)
    if "heartbeat" in data:
        return dump({"agents": {"ops": {"heartbeat": {"interval": "30m", **data["heartbeat"]}}}})
    return text if {"agents", "cron"} & set(data) else dump({**data, "agents": {"ops": {"heartbeat": {"interval": "30m"}}}})


def environment_of(text: str) -> dict[str, str]:
    """A value for each environment variable of a text."""
    return {name: ENVIRONMENT.get(name) or OTHER_VALUE for name in re.findall(r"\$\{(\w+)[:}]", text)}


CONFIG_KEYS = {
    "agents",
    "cron",
    "heartbeat",
    "channels",
    "providers",
    "prices",
    "deadman",
    "server",
    "limits",
    "defaults",
    "network",
    "telemetry",
}


def is_config(text: str) -> bool:
    data = parse(text)
    return isinstance(data, dict) and bool(CONFIG_KEYS & set(data))


@pytest.mark.extras
@blocks("yaml")
def test_a_yaml_example_is_valid(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scratch: Scratch
) -> None:
    if not is_config(block.text):
        check_foreign_file(block, tmp_path, scratch)
        return
    for name, value in environment_of(block.text).items():
        monkeypatch.setenv(name, value)
    file = write(tmp_path, complete(block.text))
    code = main(["-c", str(file), "check", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0, found["errors"]
    keys = {key for warning in found["warnings"] for key in re.findall(r"[a-z_]+", warning["path"])[-1:]}
    assert keys <= INCOMPLETE, found["warnings"]


def check_foreign_file(block: Block, folder: Path, scratch: Scratch) -> None:
    """Check a file of another program. Fails for a file of a program that is not known here."""
    data = parse(block.text)
    if isinstance(data, list):  # steps of GitHub Actions
        for step in data:
            scratch.run(step["run"], TEXT="Build failed in run 7.")
    elif "receivers" in data:
        (folder / "alertmanager.yml").write_text(block.text)
        amtool = required_programs.need("amtool")
        subprocess.run([amtool, "check-config", folder / "alertmanager.yml"], check=True, capture_output=True, timeout=PATIENCE)
    else:
        pytest.fail(f"{block}: no check for this file; is it a config of heartbeatd?")


# --- sh -----------------------------------------------------------------------------------------------------------------------

# Programs that would change this machine or need an account, with what they do here. `test_installation` runs the real installers.
STAND_INS = {
    "heartbeatd": warm_start.FOR_SCRIPTS,
    "curl": f'exec {shutil.which("curl") or "curl"} -f "$@"',  # an error status fails the example
    "crontab": 'case "$1" in -l) echo "30 2 * * * /srv/backup.sh" ;; -e) ;; *) exit 2 ;; esac',
    "sudo": 'exec "$@"',
    "pipx": '[ "$1" = install ]',
    "uv": '[ "$1 $2" = "tool install" ]',
    "pip": '[ "$1" = wheel ]',
    "docker": '[ "$1" = compose ]',
    "loginctl": 'test "$1" = enable-linger',
    "systemctl": 'test "$1" != --user || shift; case "$1" in daemon-reload|enable|start|stop|restart) ;; *) exit 2 ;; esac',
    "systemd-sysusers": "",
    "claude": r"""
[ "$*" = "-p --output-format json --max-budget-usd 0.2" ] && [ "$CLAUDE_CODE_OAUTH_TOKEN" = ... ] || exit 2
if grep -q findings; then answer='{\"findings\": [{\"key\": \"disk:/\", \"text\": \"13 % full\", \"severity\": \"info\"}]}'; else answer='[disk:/] 13 % full'; fi
printf '{"type": "result", "result": "%s", "total_cost_usd": 0.01}' "$answer"
""",  # answers in the form that the prompt describes, if it is called and logged in as on the page
    "journalctl": "",
}
STARTED, MAILBOX = "getting-started.md", "checklists.md"  # are typed by one user in one shell, so each has a test of its own
NEEDS_DAEMON = re.compile(r"^heartbeatd (?:explain|status)", re.MULTILINE)
SMALL = """\
agents:
  ops:
    runner: {kind: command, argv: [cat]}
    heartbeat: {interval: 30m, checklist: look, deliver: log}
"""


class Scratch:
    """A folder with stand-ins, in which examples of the shell are run. `address` is the address of its daemon, if it has one."""

    def __init__(self, folder: Path, address: str = "", async_run: int = 0) -> None:
        self.folder = folder
        self.address = address
        self.async_run = async_run
        for place in (folder / "bin", folder / ".venv/bin"):
            place.mkdir(parents=True)
            for name, script in STAND_INS.items():
                (place / name).write_text(f"#!/bin/sh\n{script}\n")
                (place / name).chmod(0o755)
        for place in ("cron.d", "sysusers.d", "systemd/system"):
            (folder / "etc" / place).mkdir(parents=True)
        (folder / "etc/cron.d/site").write_text(f"0 3 * * * {pwd.getpwuid(os.geteuid()).pw_name} /usr/local/bin/site.sh\n")

    def run(self, script: str, **environment: str) -> str:
        """Run a script with `sh -eu`, and return its output. Fails if a command fails."""
        places = {
            "https://heartbeatd.example.org": f"http://{self.address}",  # the proxy with TLS of the page
            "127.0.0.1:7857": self.address,
            "localhost:7857": self.address,
            "/etc/": f"{self.folder}/etc/",
            "/runs/12/": f"/runs/{self.async_run}/",
            "TG_TOKEN=123456:ABC": f"TG_TOKEN={telegram.TOKEN}",
            "TG_CHAT=4711": f"TG_CHAT={telegram.CHAT}",
        }
        for written, here in places.items():
            script = script.replace(written, here)
        for system, files in re.findall(r"heartbeatd config import (\w+) (.*)", script):
            for file in re.findall(r"~/(\S+)", files):  # a file of the other system, in the home folder
                (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(HOME / "tests/data/import" / system / Path(file).name, self.folder / file)
        server = warm_start.open_for_scripts()
        values = {"HOME": str(self.folder), "SCRIPTS_TOKEN": TOKEN, "TOKEN": TOKEN, "PYTHONPATH": str(HOME), **environment}
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        ended = subprocess.run(
            ["sh", "-eu", "-c", script],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "WARM_START": str(server), **values},
            pass_fds=[server],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == 0, f"{script}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scratch]:
    """A folder with a daemon, with one finished run of host and one `async` run of ops."""
    folder = tmp_path_factory.mktemp("scratch")
    with Server([gateway.async_answer()]) as server:
        daemon = Daemon(folder, CONFIG.format(token=TOKEN, url=server.url))
        try:
            daemon.wait_until(lambda: {row["name"]: row["result"] for row in daemon.runs()} == {"host": "alert", "ops": "async"})
            url = json.loads((folder / "state/daemon.json").read_text())["url"]
            yield Scratch(folder, url.removeprefix("http://"), next(row["id"] for row in daemon.runs("ops")))
        finally:
            daemon.kill()


def pages_of_commands(*, curl: bool) -> list[str]:
    """The pages with commands. Those that call curl need a running daemon."""
    pages = {block.page.name for block in runnable("sh")} - {STARTED, MAILBOX}
    with_curl = {block.page.name for block in runnable("sh") if "curl " in block.text}
    return sorted(pages & with_curl if curl else pages - with_curl)


def commands_of(page: str) -> list[Block]:
    return [block for block in runnable("sh") if block.page.name == page]


@pytest.mark.process
@required_programs.needs("curl")
@pytest.mark.parametrize("page", pages_of_commands(curl=True))
def test_the_commands_of_a_page_work_with_a_daemon(page: str, scratch: Scratch) -> None:
    for block in commands_of(page):
        scratch.run(block.text)


@pytest.mark.extras
@pytest.mark.process
@pytest.mark.parametrize("page", pages_of_commands(curl=False))
def test_the_commands_of_a_page_work_without_a_daemon(page: str, tmp_path: Path) -> None:
    """Each block is run in a folder with a small config and one recorded run, after the blocks before it."""
    write(tmp_path, SMALL)
    here = Scratch(tmp_path)
    here.run("heartbeatd run --once")
    for block in commands_of(page):
        here.run(block.text)
    if page == "operations.md":
        assert "state: /var/lib/heartbeatd/heartbeatd.db" in (tmp_path / "etc/heartbeatd/config.yaml").read_text()
        assert (tmp_path / "state/heartbeatd.db").read_bytes() == (tmp_path / "heartbeatd-backup.db").read_bytes()


def settings_of_stand_ins(chat: Telegram, model: messages.Models) -> dict[str, str]:
    """Variables that replace Telegram and the API of Anthropic in a config of the pages."""
    phone = {"kind": "telegram", "url": telegram.URL, "base_url": chat.url, "allow_private": True}
    prices = {"claude-haiku-5-5": {"input": 1.0, "output": 5.0}}  # a server of our own has no listed prices
    return {
        "HEARTBEATD_SET__channels__phone": json.dumps(phone),
        "HEARTBEATD_SET__providers__anthropic__base_url": model.url,
        "HEARTBEATD_SET__prices": json.dumps(prices),
    }


@pytest.mark.process
def test_getting_started_ends_with_one_alert_in_the_chat(tmp_path: Path) -> None:
    """The commands and the configs of the page in order, as a new user types them. Model, Claude Code and chat are stand-ins."""
    here = Scratch(tmp_path)
    typed = []
    for block in (block for block in BLOCKS if block.page.name == STARTED):
        if block.language == "yaml":
            name = block.first_line.removeprefix("# ")
            typed.append(f"cat > {tmp_path / name} <<'END'\n{block.text}END\n")
        elif not NEEDS_DAEMON.search(block.text):
            typed.append(block.text)
    finding = {"key": "disk:/", "text": "12 % of the disk are used.", "severity": "info", "resolved": False}
    report = messages.tool("report_findings", {"findings": [finding]})
    answer = reply(messages.message(report, stop_reason="tool_use"))
    with Telegram() as chat, messages.Models(lambda _: answer) as model:
        shown = here.run("\n".join(typed), **settings_of_stand_ins(chat, model))
        test_message, alert = chat.texts  # and no second alert for the same problem by Claude Code
        assert len(model.requests) == 1  # its answer is complete
    assert "test message" in test_message.lower()
    assert "[disk@" in alert
    assert "info     disk:/:" in alert
    assert "at most 0.5000 USD a day" in shown
    assert "12 % of the disk are used." in shown  # `heartbeatd show 2`
    assert "13 % full" in shown  # `heartbeatd show 3`


@pytest.mark.process
@required_programs.needs("dovecot")
def test_the_commands_of_the_mailbox_end_with_one_mail_in_the_chat(tmp_path: Path) -> None:
    """The first config and the commands of the page, as a new user types them. A mail comes between the two blocks of commands."""
    here = Scratch(tmp_path)
    prepare, ask = (block.text for block in commands_of(MAILBOX))
    config = next(block.text for block in BLOCKS if block.page.name == MAILBOX and "imap.example.org" in block.text)
    finding = {"key": "mail:bank", "text": "The bank asks for a signature", "severity": "info", "resolved": False}
    answer = reply(messages.message(messages.tool("report_findings", {"findings": [finding]}), stop_reason="tool_use"))
    with Telegram() as chat, messages.Models(lambda _: answer) as model, running_dovecot() as box:
        mailbox = {"imap": box.plain_host, "encryption": "none", "user": "anna", "password": dovecot.PASSWORD}
        environment = settings_of_stand_ins(chat, model) | {
            "HEARTBEATD_SET__agents__mail__heartbeat__precheck": json.dumps(mailbox),
            "HEARTBEATD_SET__agents__mail__heartbeat__active_hours": "00:00-24:00",  # the test may run at night
        }
        shown = here.run(f"cat > config.yaml <<'END'\n{config}END\n{prepare}", **environment)
        assert "at most 0.5000 USD a day" in shown
        assert len(model.requests) == 0  # the first run only notes which mails there are
        box.deliver("Bank <bank@example.org>", "sign today, please")
        shown = here.run(f"export TG_TOKEN=123456:ABC TG_CHAT=4711 ANTHROPIC_API_KEY=... MAIL_PASSWORD=...\n{ask}", **environment)
        assert "Bank <bank@example.org>: sign today, please" in shown  # `heartbeatd show 2`
        assert len(model.requests) == 1
        _, alert = chat.texts  # the first is the test message
        assert "mail:bank: The bank asks for a signature" in alert


def test_the_last_commands_of_getting_started_are_accepted() -> None:
    """They need the running daemon of the page, whose replies other tests compare."""
    (block,) = (block for block in runnable("sh") if block.page.name == STARTED and NEEDS_DAEMON.search(block.text))
    for line in block.text.splitlines():
        parse_command(shlex.split(line, comments=True)[1:])


PLACEHOLDERS = {"RUN": "1", "ID": "1", "SYSTEM": "openclaw"}
QUOTED = re.compile(r"`((?:\.venv/bin/)?heartbeatd(?: [^`]*)?)`")


def quoted_commands() -> list[tuple[str, str]]:
    """Each command line that the text of a page quotes, with the page that quotes it first. `bash|zsh` stands for two commands."""
    found: dict[str, str] = {}
    for page in [*PAGES, HOME / "CHANGELOG.md"]:
        for command in QUOTED.findall(page.read_text("utf-8")):
            choice = re.search(r"\w+(?:\|\w+)+", command)
            for word in choice[0].split("|") if choice else [""]:
                found.setdefault(command.replace(choice[0], word) if choice else command, page.name)
    return [(page, command) for command, page in found.items()]


def parse_command(words: list[str]) -> None:
    """Parse a command line of heartbeatd without running it. Raises UsageError."""
    with ExitStack() as closing, suppress(click.exceptions.Exit):  # --help and --version exit
        context = closing.enter_context(commands.make_context("heartbeatd", list(words)))
        command: click.Command | None = commands
        while isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]  # private, but of a test alone, which fails if it moves
            if not rest:
                return
            name, command, rest = command.resolve_command(context, rest)
            assert command is not None
            try:
                context = closing.enter_context(command.make_context(name, rest, parent=context))
            except click.MissingParameter:
                if rest:
                    raise
                return  # only the name of the command is quoted, as in a sentence about it


@pytest.mark.extras
@loop_over(("page", "command"), quoted_commands())
def test_a_quoted_command_is_accepted_by_the_command_line(page: str, command: str) -> None:
    _, *words = shlex.split(command.replace("[", "").replace("]", ""))
    words = words[: words.index("|")] if "|" in words else words
    if words and words[0] != "COMMAND":
        parse_command([PLACEHOLDERS.get(word, word) for word in words])


@pytest.mark.parametrize("words", [["runs", "--no-such-option"], ["no-such-command"], ["cron", "no-such-command"], ["show", "x"]])
def test_a_wrong_command_is_found(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse_command(words)


# --- other languages ----------------------------------------------------------------------------------------------------------


@blocks("crontab")
def test_our_reader_reads_a_crontab(block: Block) -> None:
    """A line in which the name of an account follows the time is one of /etc/cron.d."""
    is_system = bool(re.search(r"^(?:\S+ +){5}root ", block.text, re.MULTILINE))
    found = crontab_reader.read_crontab(block.text, time_zones.UTC_ZONE, time_zones.find_zone, user_column=is_system)
    page = block.page.read_text("utf-8")
    assert found.lines
    assert [error.text for error in found.errors if error.text not in page] == []
    for words in re.findall(r"\bheartbeatd (-c .*)$", block.text, re.MULTILINE):
        parse_command(shlex.split(words))


@pytest.mark.process
@required_programs.needs("systemd-analyze")
def test_systemd_accepts_the_units_of_a_page(tmp_path: Path) -> None:
    """A unit begins with a comment that contains its path. Programs that are not installed here are replaced by /bin/true."""
    for block in (block for block in BLOCKS if block.language == "ini"):
        name = re.search(r"[\w@-]+\.(?:service|timer)", block.first_line)
        unit = tmp_path / (name[0] if name else "heartbeatd.service")
        unit.write_text(re.sub(r"^(Exec\w+=)/(?:opt|usr/local)/\S+", r"\1/bin/true", block.text, flags=re.MULTILINE))
    units = sorted(str(unit) for unit in tmp_path.iterdir())
    assert units
    verified = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    names = [Path(unit).name for unit in units]
    assert [line for line in verified.stderr.splitlines() if any(name in line for name in names)] == []


def uses_the_client(block: Block) -> bool:
    return "from heartbeatd import" in block.text


@pytest.mark.process
@pytest.mark.parametrize("block", [block for block in runnable("python") if uses_the_client(block)], ids=str)
def test_a_python_example_of_the_client_runs(
    block: Block, scratch: Scratch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code is executed in the folder of a running daemon."""
    monkeypatch.chdir(scratch.folder)
    exec(compile(block.text, str(block), "exec"), {})
    printed = capsys.readouterr().out
    assert re.search("not_found there is no run 999999|ended (host alert|ops async)", printed), printed


@pytest.mark.parametrize("block", [block for block in runnable("python") if not uses_the_client(block)], ids=str)
def test_a_python_example_runs(block: Block, tmp_path: Path) -> None:
    """The code is executed. Names that the page leaves to the reader are replaced."""
    text = block.text.replace("datetime.now(UTC)", "NOW")
    text = text.replace('Path("HEARTBEAT.md")', f"Path({str(tmp_path / 'HEARTBEAT.md')!r})")
    (tmp_path / "HEARTBEAT.md").write_text("- look\n")
    sent: list[str] = []
    turns = iter([True, True, False])
    given: dict[str, Any] = {
        "NOW": datetime(2026, 3, 2, 12, tzinfo=UTC),
        "beating": lambda: next(turns),
        "ask": lambda prompt: "The disk is full.",
        "send": sent.append,
    }
    exec(compile(text, str(block), "exec"), given)
    if "heartbeat.beat(" in text:
        assert (sent, given["last"].why) == (["The disk is full."], "duplicate")
        assert isinstance(given["last"], heartbeat.Beat)
    elif "def beat(" in text:
        assert given["beat"]({}) is None or "full" in given["beat"]({})


@blocks("markdown")
def test_a_checklist_has_only_known_annotations(block: Block) -> None:
    assert parse_checklist(block.text).remarks == ()


@blocks("json")
def test_json_is_an_answer_with_findings(block: Block) -> None:
    assert findings.read_report(block.text)


@pytest.mark.extras
@blocks("json5")
def test_json5_is_a_config_of_openclaw(block: Block, tmp_path: Path) -> None:
    (tmp_path / "openclaw.json").write_text(block.text)
    assert main(["config", "import", "openclaw", str(tmp_path / "openclaw.json")]) == 0


@required_programs.needs("promtool")
@blocks("promql")
def test_prometheus_accepts_a_query(block: Block, tmp_path: Path) -> None:
    rules = {"groups": [{"name": "example", "rules": [{"record": "example", "expr": block.text.strip()}]}]}
    (tmp_path / "rules.yml").write_text(dump(rules))
    subprocess.run(["promtool", "check", "rules", tmp_path / "rules.yml"], check=True, capture_output=True, timeout=PATIENCE)
