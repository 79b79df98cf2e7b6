"""Tests the sources of built-in prechecks in a config, and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_file import complaints, read, warnings
from loops import loop_over

from heartbeat.spec import Precheck, Source
from heartbeatd.secret import Secret
from scheduler.config.settings.config_snapshot import mask_text

ENVIRON = {"KEY": "sk-canary-41d8"}
CONFIG = """\
agents:
  ops:
    runner: {{kind: command, argv: [cat]}}
    heartbeat: {{interval: 30m, checklist: "- x\\n", deliver: log, precheck: {precheck}}}
"""
KINDS = "imap, http, rss, git, calendar, files, disk"
PLACE = "agents.ops.heartbeat.precheck"


def precheck_of(folder: Path, precheck: str, environ: dict[str, str] = ENVIRON) -> Precheck:
    found = read(folder, CONFIG.format(precheck=precheck), environ).settings.heartbeats["ops"].precheck
    assert found is not None
    return found


def source_of(folder: Path, precheck: str, environ: dict[str, str] = ENVIRON) -> Source:
    found = precheck_of(folder, precheck, environ).source
    assert found is not None
    return found


@loop_over(
    ("precheck", "title"),
    [
        ('{imap: imap.example.org, user: anna, password: "${KEY}"}', "imap imap.example.org"),
        ('{http: "https://status.example.org/x?key=${KEY}", json: "incidents[*].name"}', "http status.example.org"),
        ('{rss: "${KEY}", headers: {X-Key: "${KEY}"}}', "rss of a server"),
        ('{git: "https://anna:${KEY}@example.org/x.git", branch: main}', "git example.org"),
        ("{git: ~/project}", "git ~/project"),
        ('{git: "git@example.org:x.git"}', "git of a server"),
        ('{calendar: "webcal://example.org/private-4711/x.ics", ahead: 2h}', "calendar example.org"),
        ('{files: "inbox/*.pdf"}', "files inbox/*.pdf"),
        ("{disk: 90%, path: [/, /var]}", "disk 90%"),
    ],
)
def test_a_source_has_a_title_without_secrets(tmp_path: Path, precheck: str, title: str) -> None:
    environ = ENVIRON | ({"KEY": "https://example.org/4711"} if "rss" in precheck else {})
    assert source_of(tmp_path, precheck, environ).title == title


@loop_over(
    ("precheck", "errors"),
    [
        ("{imapp: x}", [".imapp: unknown key; did you mean imap?"]),
        (
            "{}",
            [f".command: is missing; write command: ./new-mail.sh, or one of {KINDS}"],
        ),
        ('{rss: "https://a", git: x}', [": rss and git exclude each other; keep one of them"]),
        ("{imap: h}", ['.user: write user: "${MAIL_USER}"', '.password: write password: "${MAIL_PASSWORD}"']),
        (
            '{imap: h, user: a, password: "${NO}"}',
            [".password: NO is not set; export it before heartbeatd starts, or write it into the env_file"],
        ),
        ("{http: 'http://[::1/x'}", [".http: this is not the address of a server; write http:// or https:// with a host"]),
        ("{http: x}", [".http: this is not the address of a server; write http:// or https:// with a host"]),
        (
            '{http: "https://a", json: a..b}',
            [".json: 'a..b' is not a path in JSON; write names with dots, such as status.text or items[*].name"],
        ),
        ("{disk: 90}", [".disk: 90 is not a percentage from 1% to 99%; write 90%"]),
        ("{disk: 100%}", [".disk: '100%' is not a percentage from 1% to 99%; write 90%"]),
        (
            '{files: "*", json: a, unchanged: skip}',
            [
                ".unchanged: unchanged belongs to command, and this precheck looks at files; remove unchanged",
                ".json: json belongs to http, and this precheck looks at files; remove json",
            ],
        ),
        (
            '{files: "*", branch: main, ahead: 1h, path: /, headers: {A: b}, folder: x, confirm: 1}',
            [
                ".branch: branch belongs to git, and this precheck looks at files; remove branch",
                ".ahead: ahead belongs to calendar, and this precheck looks at files; remove ahead",
                ".path: path belongs to disk, and this precheck looks at files; remove path",
                ".headers: headers belongs to http or rss or calendar, and this precheck looks at files; remove headers",
                ".folder: folder belongs to imap, and this precheck looks at files; remove folder",
                ".confirm: confirm belongs to command, and this precheck looks at files; remove confirm",
            ],
        ),
        ('{files: "*", timeout: 1h}', [".timeout: 1h leaves the agent no time; write less than the whole timeout of 5m"]),
    ],
)
def test_errors_name_the_key_and_all_are_found_at_once(tmp_path: Path, precheck: str, errors: list[str]) -> None:
    found = complaints(tmp_path, CONFIG.format(precheck=precheck), ENVIRON)
    assert sorted(line.partition(PLACE)[2] for line in found) == sorted(errors)


def test_a_failed_look_skips_the_run_unless_the_config_says_otherwise(tmp_path: Path) -> None:
    assert precheck_of(tmp_path, '{files: "*"}').on_error == "skip"
    assert precheck_of(tmp_path, '{files: "*", on_error: run}').on_error == "run"
    assert precheck_of(tmp_path, "./look.sh").on_error == "run"


def test_a_plain_password_and_a_login_without_tls_are_warned_of(tmp_path: Path) -> None:
    found = warnings(tmp_path, CONFIG.format(precheck="{imap: h, user: a, password: plain-4711, encryption: none}"))
    assert [line.partition(PLACE)[2] for line in found] == [
        ".password: this secret is written in the file itself; write ${NAME} or ${file:PATH} instead",
        ".encryption: the password is sent as plain text; write tls or starttls",
    ]
    assert (
        warnings(
            tmp_path, CONFIG.format(precheck='{imap: "127.0.0.1:143", user: a, password: "${KEY}", encryption: none}'), ENVIRON
        )
        == []
    )


def test_a_precheck_of_another_kind_replaces_the_inherited_one(tmp_path: Path) -> None:
    defaults = "defaults: {heartbeat: {precheck: {command: ./look.sh, unchanged: skip}}}\n"
    found = read(tmp_path, defaults + CONFIG.format(precheck="{disk: 90%}")).settings.heartbeats["ops"].precheck
    assert found is not None
    assert (found.command, found.source and found.source.kind) == ("", "disk")


def test_what_decides_about_the_news_is_in_the_identity_and_the_password_is_not(tmp_path: Path) -> None:
    def identity(precheck: str, key: str = "sk-1") -> str:
        return source_of(tmp_path, precheck, {"KEY": key}).identity

    box = '{{imap: h, user: {}, password: "${{KEY}}"}}'
    assert identity(box.format("a")) == identity(box.format("a"), key="sk-2") != identity(box.format("b"))
    other_folder = box.format("a").replace("user", "folder: Work, user")
    shown = [
        box.format("a"),
        other_folder,
        "{git: x}",
        "{git: x, branch: b}",
        "{disk: 90%}",
        "{disk: 91%}",
        "{disk: 90%, path: /var}",
    ]
    shown += ["{calendar: x.ics}", "{calendar: x.ics, ahead: 2h}"]
    assert len({identity(each) for each in shown}) == len(shown)
    assert identity('{http: "https://a/x"}') != identity('{http: "https://a/y"}') != identity('{http: "https://a/y", json: a}')


@pytest.mark.parametrize(
    "precheck",
    ["{imap: h, user: a, password: canary-4711}", '{rss: "https://h/canary-4711"}', '{calendar: "https://h/canary-4711"}'],
)
def test_secrets_of_a_precheck_are_masked(tmp_path: Path, precheck: str) -> None:
    text = CONFIG.format(precheck=precheck)
    assert "canary" not in mask_text(text)
    assert "canary" not in repr(precheck_of(tmp_path, precheck))
    password = source_of(tmp_path, precheck).password
    assert password is None or isinstance(password, Secret)
