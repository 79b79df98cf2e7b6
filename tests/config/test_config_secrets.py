"""Tests how references to secrets are resolved, and that secrets are never shown."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
from config_file import RIGHT, SMALL, TOKEN, complaints, read
from loops import loop_over

from heartbeatd.secret import Secret
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.settings.config_snapshot import mask_text
from scheduler.config.settings.effective_values import list_effective_values
from scheduler.config.settings.load import load_config
from scheduler.config.settings.secrets import is_secret_variable, read_env_file
from scheduler.model.outcome import Kind

CANARY = "canary-5f1c-do-not-print"
WITH_SECRETS = """\
server: {tokens: {bot: {value: "${CANARY}", may: read}}}
channels: {hook: {kind: webhook, url: "https://example.org/${CANARY}"}}
agents:
  ops: {runner: {kind: command, argv: [echo, "${CANARY}"], env: {KEY: "a ${CANARY} b ${CANARY}"}}, heartbeat: {interval: 30m, prompt: "${CANARY}"}}
cron:
  job: {every: 1h, command: 'echo "${CANARY}"', env: {KEY: "${file:key.txt}"}, wake_text: "${CANARY}"}
"""


def reveal(value: object) -> str:
    assert isinstance(value, Secret)
    return value.reveal()


def test_references_are_resolved_only_in_keys_for_secrets(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text("from a file\n")
    settings = read(tmp_path, WITH_SECRETS, {"CANARY": CANARY}).settings
    ops, job = settings.heartbeats["ops"], settings.jobs["job"]
    assert reveal(settings.server.tokens[0].value) == CANARY
    assert reveal(settings.channels["hook"].url) == f"https://example.org/{CANARY}"
    assert reveal(ops.runner.env["KEY"]) == f"a {CANARY} b {CANARY}"
    assert reveal(job.env["KEY"]) == "from a file"
    assert (ops.runner.argv[1], ops.prompt, job.command, job.wake_text) == (
        "${CANARY}",
        "${CANARY}",
        'echo "${CANARY}"',
        "${CANARY}",
    )


CREDENTIAL = RIGHT.replace("${TOKEN}", "${file:$CREDENTIALS_DIRECTORY/bot token}")


def test_a_credential_of_systemd_is_read_from_its_folder(tmp_path: Path) -> None:
    """systemd.exec(5), LoadCredential=: the files are read-only, and only the user of the service can enter the folder."""
    folder = tmp_path / "credentials"
    folder.mkdir(mode=0o700)
    (folder / "bot token").write_text(f"{TOKEN}\n")
    (folder / "bot token").chmod(0o400)
    settings = read(tmp_path, CREDENTIAL, {"CREDENTIALS_DIRECTORY": str(folder)}).settings
    assert reveal(settings.server.tokens[0].value) == TOKEN


def test_a_credential_outside_systemd_is_an_error_that_says_what_to_set(tmp_path: Path) -> None:
    (line,) = complaints(tmp_path, CREDENTIAL)
    assert "CREDENTIALS_DIRECTORY is not set; systemd sets it for a service with LoadCredential=" in line
    assert line.endswith("in a shell set it to a folder with the file bot token")


def test_references_inside_a_resolved_value_are_not_resolved(tmp_path: Path) -> None:
    settings = read(tmp_path, RIGHT, {"TOKEN": "${HOME}-${USER}-${SHELL}"}).settings
    assert reveal(settings.server.tokens[0].value) == "${HOME}-${USER}-${SHELL}"


def test_no_secret_is_shown_in_settings_warnings_or_effective_values(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text(CANARY)
    loaded = read(tmp_path, WITH_SECRETS, {"CANARY": CANARY})
    rows = [
        *list_effective_values(tmp_path / "config.yaml", {"CANARY": CANARY}, (Kind.HEARTBEAT, "ops")),
        *list_effective_values(tmp_path / "config.yaml", {}, (Kind.CRON, "job")),
    ]
    assert CANARY not in f"{loaded} {loaded!r} {rows}"
    assert ("env", "{KEY: ${file:key.txt}}") in [(row.key, row.value) for row in rows]


@loop_over(
    "wrong",
    [
        'server: {tokens: {bot: {value: "%s", may: reed}}}',
        'server: {tokens: {bot: {valeu: "%s", may: read}}}',
        "server: {tokens: {bot: %s}}",
        "server: {tokens: %s}",
        'channels: {hook: {kind: webhook, url: "ftp://%s"}}',
        "channels: {hook: 'tgram://%s'}",
        "channels: {hook: {kind: webhook, url: [%s]}}",
        "cron: {a: {every: 1h, command: x, env: {A: [%s]}}}",
        "cron: {a: {every: 1h, command: x, env: ['A=%s']}}",
        "cron: {a: {every: 1h, command: x, env: {A: '%s${'}}}",
        "providers: {anthropic: {api_key: [%s]}}",
        "providers: {anthropic: {api_key: '%s with a blank'}}",
        "providers: {anthropic: {base_url: '%s'}}",
        "agents: {a: {runner: {kind: http, url: '%s'}, heartbeat: {interval: 1h}}}",
        "agents: {a: {runner: {kind: http, url: 'http://a', headers: {X: [%s]}}, heartbeat: {interval: 1h}}}",
        "agents: {a: {runner: {kind: http, url: 'http://a', headers: [%s]}, heartbeat: {interval: 1h}}}",
        "x-a: '%s",
        "x-a: {%s: 1, b",
    ],
)
def test_no_secret_is_shown_in_an_error(tmp_path: Path, wrong: str) -> None:
    lines = complaints(tmp_path, f"{'' if wrong.startswith('agents') else SMALL}{wrong % CANARY}\n")
    assert lines
    assert CANARY not in "\n".join(lines)


def test_a_secret_of_a_channel_that_nothing_enabled_uses_is_a_warning(tmp_path: Path) -> None:
    text = SMALL + 'channels: {hook: {kind: webhook, url: "${NOPE}"}}\n'
    loaded = read(tmp_path, text)
    assert [warning.path for warning in loaded.warnings] == ["channels.hook.url"]
    assert loaded.settings.channels["hook"].url is None
    for used in ("deliver: hook", "deliver: log, problems: {deliver: hook}"):
        assert complaints(tmp_path, text.replace("deliver: log", used)) == [
            "config.yaml:2:39: channels.hook.url: NOPE is not set; export it before heartbeatd starts, or write it into the env_file"
        ]


def test_a_secret_of_a_disabled_job_is_a_warning(tmp_path: Path) -> None:
    text = 'cron: {a: {enabled: false, every: 1h, command: x, env: {A: "${NOPE}", B: "b"}}}\n'
    loaded = read(tmp_path, text)
    assert [warning.path for warning in loaded.warnings] == ["cron.a.env.A"]
    assert list(loaded.settings.jobs["a"].env) == ["B"]


def test_a_secret_of_a_fallback_is_a_warning_if_only_a_disabled_job_calls_it(tmp_path: Path) -> None:
    """The heartbeat has fallbacks of its own: none."""
    text = SMALL.replace("heartbeat: {", "fallbacks: [{runner: other}], heartbeat: {fallbacks: [], ", 1)
    text += 'runners: {other: {kind: http, url: "http://a", headers: {X: "${NOPE}"}}}\n'
    job = "cron: {a: {enabled: false, every: 1h, agent: ops, prompt: look}}\n"
    assert [warning.path for warning in read(tmp_path, text + job).warnings] == ["runners.other.headers.X"]
    assert complaints(tmp_path, text + job.replace("enabled: false, ", "")) == [
        "config.yaml:2:61: runners.other.headers.X: NOPE is not set; export it before heartbeatd starts, or write it into the env_file"
    ]


def test_reading_commands_need_no_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read(tmp_path, RIGHT, {})
    settings = load_config(tmp_path / "config.yaml", {}, resolve_secrets=False).settings
    assert reveal(settings.server.tokens[0].value) == ""


def test_the_env_file_is_read_first_and_the_environment_wins(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("# secrets\n\nexport TOKEN='from the env_file'\nOTHER=x\n")
    env_file.chmod(0o600)
    text = f"env_file: .env\n{RIGHT}".replace("${TOKEN}", "${TOKEN}${OTHER}${OTHER}")
    text = text.replace("value: ", "value: ").replace("https://example.org/x", "https://example.org/${TOKEN}")
    with pytest.raises(ConfigError, match="not the address of a webhook"):
        read(tmp_path, text, {})
    settings = read(tmp_path, text, {"TOKEN": TOKEN}).settings
    assert reveal(settings.server.tokens[0].value) == f"{TOKEN}xx"


@loop_over(
    ("line", "value"),
    [
        ("TOKEN=plain", "plain"),
        ("export TOKEN = spaced  ", "spaced"),
        ("TOKEN=", ""),
        ("TOKEN=a=b&c#d", "a=b&c#d"),
        ("TOKEN=word # what it is for", "word"),
        ("TOKEN='with # and $HOME and ${HOME}' # what it is for", "with # and $HOME and ${HOME}"),
        ("TOKEN=$HOME${HOME}", "$HOME${HOME}"),
        (r'TOKEN="two\nlines \"quoted\""', 'two\nlines "quoted"'),
        (r"TOKEN='raw\n'", r"raw\n"),
        ("TOKEN='-----BEGIN\nKEY-----'", "-----BEGIN\nKEY-----"),
        ("TOKEN=first\r\nTOKEN=second\r\n", "second"),
        ("\ufeffTOKEN=behind a byte order mark", "behind a byte order mark"),
    ],
)
def test_a_line_of_an_env_file_is_read_as_other_tools_read_it(tmp_path: Path, line: str, value: str) -> None:
    env_file = tmp_path / ".env"
    env_file.write_bytes(line.encode())
    env_file.chmod(0o600)
    assert read_env_file(env_file) == {"TOKEN": value}


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        ("A=b\n", 0o644, "has mode 0644, so other users can read it; do: chmod 600"),
        (f"A=b\n{CANARY}\n", 0o600, "line 2 of .env is not NAME=value"),
        (f"A=b\r\n\r\n# x\r\n\r\n{CANARY}\r\n", 0o600, "line 5 of .env is not NAME=value"),
        (f"\n\nA-B={CANARY}\n", 0o600, "line 3 of .env is not NAME=value"),
        (f"A='b'\nB='{CANARY}\nC=d\n", 0o600, "line 2 of .env is not NAME=value"),
        (f"A='b' {CANARY}\n", 0o600, "line 1 of .env is not NAME=value"),
        (f"A='b\nc'\n=\nB={CANARY}\n", 0o600, "line 3 of .env is not NAME=value"),
    ],
)
def test_an_invalid_env_file_is_rejected_without_showing_its_text(tmp_path: Path, content: str, mode: int, problem: str) -> None:
    (tmp_path / ".env").write_text(content)
    (tmp_path / ".env").chmod(mode)
    (line,) = complaints(tmp_path, f"env_file: .env\n{SMALL}")
    assert line.startswith("config.yaml:1:11: env_file: ")
    assert problem in line
    assert CANARY not in line


def test_only_the_env_file_is_reported_if_it_cannot_be_read_and_not_each_variable_in_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"CANARY={CANARY}\n")
    (tmp_path / ".env").chmod(0o644)
    (tmp_path / "key.txt").write_text("from a file\n")
    (line,) = complaints(tmp_path, f"env_file: .env\n{WITH_SECRETS}")
    assert line.startswith("config.yaml:1:11: env_file: ")


def test_a_token_in_the_file_itself_is_a_warning(tmp_path: Path) -> None:
    (warning,) = read(tmp_path, RIGHT.replace("${TOKEN}", CANARY)).warnings
    assert warning.path == "server.tokens.bot.value"
    assert CANARY not in str(warning)


def test_a_secret_is_masked_when_printed(tmp_path: Path) -> None:
    secret = Secret(CANARY)
    assert {repr(secret), str(secret), f"{secret}", f"{secret!r:>3}", json.dumps({"a": secret}, default=str)} == {
        "***",
        '{"a": "***"}',
    }
    assert pickle.loads(pickle.dumps(secret)).reveal() == "***"
    assert CANARY.encode() not in pickle.dumps(secret)
    assert copy.deepcopy(secret) == secret != CANARY


@loop_over(
    ("name", "text", "secret"),
    [
        ("A", "${A}", True),
        ("A", "${file:a.txt}", True),
        ("API_TOKEN", "abc", True),
        ("A", "sk-ant-0123", True),
        ("A", "correct horse battery", True),
        ("A", "production", False),
        ("A", "2026-11-22", False),
        ("A", "/srv/data/x1", False),
        ("A", "abc-1", False),
        ("A", "abc-123", False),
        ("A", "abc-1234", True),
        ("LANG", "de_DE.UTF-8", False),
        ("PATH", "~/bin:/usr/bin", False),
    ],
)
def test_env_values_are_secrets_by_name_and_form(name: str, text: str, secret: bool) -> None:
    assert is_secret_variable(name, text) is secret


def test_a_masked_config_has_as_many_lines_and_no_secret() -> None:
    """A diff shows lines by their numbers, and must not show the next line in place of a secret."""
    for env in (
        "{KEY: canary}",
        '{KEY: "canary\u2028canary"}',
        '{KEY: "canary\x85canary"}',
        '{KEY: "canary\n\n      canary"}',
        "\n        KEY: |\n          canary\n          canary",
        "{<<: {KEY: canary}}",
        "{<<: [{KEY: canary}, {OTHER: canary}]}",
        "&env {KEY: canary}",
    ):
        text = f"agents:\n  ops:\n    runner:\n      kind: command\n      env: {env}\n  web: 1\n"
        masked = mask_text(text)
        assert ("canary" in masked, len(masked.splitlines())) == (False, len(text.splitlines())), (env, masked)
        assert masked.splitlines()[-1] == "  web: 1"


def test_what_an_editor_adds_to_a_file_with_a_secret_is_no_part_of_it(tmp_path: Path) -> None:
    for content in (TOKEN, f"{TOKEN}\n", f"{TOKEN}\r\n", f"\ufeff{TOKEN}\r\n"):
        (tmp_path / "token.txt").write_bytes(content.encode())
        (token,) = read(tmp_path, RIGHT.replace("${TOKEN}", "${file:token.txt}")).settings.server.tokens
        assert token.value.reveal() == TOKEN


def test_an_empty_file_in_place_of_a_secret_is_an_error(tmp_path: Path) -> None:
    for content in ("", "\n"):
        (tmp_path / "token.txt").write_text(content)
        (line,) = complaints(tmp_path, RIGHT.replace("${TOKEN}", "${file:token.txt}"))
        assert line.endswith("server.tokens.bot.value: token.txt is empty; write the secret into it")


def test_a_channel_whose_messages_cannot_be_signed_has_no_address(tmp_path: Path) -> None:
    """Otherwise a message would be sent without the signature if the secret is not set."""
    for secret, is_usable in (("0123456789abcdef", True), ("${NOWHERE}", False)):
        text = SMALL + f'channels: {{hook: {{kind: webhook, url: "https://example.org/x", secret: "{secret}"}}}}\n'
        assert (read(tmp_path, text).settings.channels["hook"].url is not None) is is_usable
