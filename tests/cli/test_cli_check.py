"""`check`, `schema` and `init`: a config is valid, or each of its errors is printed with its position."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from config_file import write
from patience import PATIENCE

from scheduler.cli.main import main

GOOD = """\
agents:
  ops:
    runner: {kind: command, argv: [cat]}
    heartbeat: {interval: 30m, deliver: log, on_missing: create}
cron:
  ops: {every: 1m, command: "true"}
  tick: {every: 1h, command: "true"}
"""

FAULTY = """\
agents:
  ops:
    runner: {kind: command, argv: [cat]}
    heartbeat: {interval: soon}
cron:
  tick: {evry: 1m, command: "true"}
"""


def config(folder: Path, text: str) -> str:
    return str(write(folder, text))


def test_a_valid_config_is_reported_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, GOOD)
    assert main(["check", "-c", path]) == 0
    assert capsys.readouterr().out == f"{path} is valid: 1 agent, 2 jobs\n"


@pytest.mark.parametrize("words", [["-c", "PATH", "check"], ["-c", "elsewhere.yaml", "check", "-c", "PATH"]])
def test_the_config_option_can_come_before_the_command_and_takes_precedence_after_it(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, GOOD)
    assert main([word.replace("PATH", path) for word in words]) == 0
    assert path in capsys.readouterr().out


def test_the_default_config_is_config_yaml_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    assert main(["check"]) == 0
    assert capsys.readouterr().out == "config.yaml is valid: 1 agent, 2 jobs\n"


def test_every_error_is_one_line_with_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config(tmp_path, FAULTY)
    monkeypatch.chdir(tmp_path)
    assert main(["check"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    faults = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert faults[0] == "config.yaml:4:27: agents.ops.heartbeat.interval: 'soon' is not a duration; write 90s, 30m or 1h30m"
    assert faults[1].startswith("config.yaml:6:10: cron.tick.evry: unknown key; did you mean every?")


def test_errors_as_json_are_one_object_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", config(tmp_path, FAULTY), "--format", "json"]) == 2
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert found["ok"] is False
    assert found["errors"][0] == {
        "line": 4,
        "column": 27,
        "path": "agents.ops.heartbeat.interval",
        "message": "'soon' is not a duration; write 90s, 30m or 1h30m",
    }


def test_a_valid_config_is_reported_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", config(tmp_path, GOOD), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "errors": [], "warnings": []}


def test_warnings_go_to_stderr_and_are_not_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", config(tmp_path, GOOD.replace(", deliver: log", ""))]) == 0
    out, err = capsys.readouterr()
    assert "is valid" in out
    assert err.startswith("warning: ")


def test_the_json_has_the_runs_a_week_if_an_interval_does_not_fit_its_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GOOD.replace("interval: 30m", 'interval: 6h, active_hours: "08:00-12:00"')
    assert main(["check", "-c", config(tmp_path, text), "--format", "json"]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert warning["path"] == "agents.ops.heartbeat.interval"
    assert warning["message"].startswith("6h does not fit the active hours, which allow 7 runs a week; ")


def test_overrides_from_the_environment_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEARTBEATD_SET__agents__ops__heartbeat__interval", "10m")
    assert main(["check", "-c", config(tmp_path, GOOD)]) == 0
    assert capsys.readouterr().out.endswith("overridden by HEARTBEATD_SET__agents__ops__heartbeat__interval\n")


def test_effective_values_are_shown_with_their_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", config(tmp_path, GOOD), "--effective", "agent/ops"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["heartbeat.interval", "30m", "config.yaml:4"] in lines
    assert ["heartbeat.retries", "2", "built", "in"] in lines


def test_effective_values_are_printed_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", config(tmp_path, GOOD), "--effective", "tick", "--format", "json"]) == 0
    assert {"key": "every", "value": "1h", "origin": "config.yaml:7"} in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "error"), [("ops", "write agent/ops or cron/ops"), ("opps", "no agent or cron job 'opps'; did you mean ops?")]
)
def test_effective_values_need_the_name_of_one_entry(
    name: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "-c", config(tmp_path, GOOD), "--effective", name]) == 2
    assert error in capsys.readouterr().err


def test_a_missing_config_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", str(tmp_path / "none.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_init_writes_a_valid_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "new")]) == 0
    assert main(["check", "-c", str(tmp_path / "new" / "config.yaml")]) == 0
    assert "is valid" in capsys.readouterr().out


def test_the_first_run_of_a_new_config_happens_at_any_hour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["init", str(tmp_path / "new")])
    capsys.readouterr()
    assert main(["check", "-c", str(tmp_path / "new/config.yaml"), "--effective", "assistant"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "heartbeat.active_hours always" in shown


def test_the_commands_that_init_prints_can_be_copied_even_if_the_folder_has_a_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "a place")]) == 0
    steps = capsys.readouterr().out.splitlines()[-1].removeprefix("next: ")
    shown = subprocess.run(
        ["/bin/sh", "-c", f"heartbeatd() {{ pwd; }}; {steps}"], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert shown.stdout == f"{tmp_path}/a place\n" * 2


def test_init_changes_no_existing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, "mine")
    assert main(["init", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"heartbeatd: {path} already exists; nothing was written\n"
    assert [each.name for each in tmp_path.iterdir()] == ["config.yaml"]
    assert Path(path).read_text() == "mine"


def test_a_folder_that_cannot_be_created_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, GOOD)
    assert main(["init", f"{path}/new"]) == 1
    assert capsys.readouterr().err == f"heartbeatd: {path}/new: Not a directory\n"


def test_other_users_cannot_change_the_files_that_init_writes(tmp_path: Path, no_umask: None) -> None:
    main(["init", str(tmp_path / "new")])
    assert (tmp_path / "new" / "config.yaml").stat().st_mode & 0o777 == 0o644


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_the_schema_is_a_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["files", "schema"]) == 0
    assert {"agents", "cron", "defaults"} <= json.loads(capsys.readouterr().out)["properties"].keys()


LEFT_OUT = "links are not followed, so it is left out of the prompt"
TEXT_ADVICE = 'to write the checklist here, end it with a line break, in double quotes: "- Look.\\n"'
NEEDS = """\
channels: {pager: {kind: command, argv: [no-such-pager]}}
runners: {spare: {kind: command, argv: [no-such-agent]}, last: {kind: claude-code}}
defaults: {heartbeat: {interval: 30m, deliver: log}, runner: {kind: command, argv: [cat]}}
agents:
  here:
    context: [SOUL.md, link.md, far.md, LARGE.md, FOLDER]
    runner: {kind: command, argv: [./agent.sh]}
    fallbacks: [small, {runner: spare}, {runner: spare, model: small}]
    heartbeat: {precheck: {command: "new-mail --now | head"}}
  away: {}
  bare: {heartbeat: {interval: 1h}}
  woken: {workspace: agents/bare, heartbeat: {interval: none}}
  only-woken: {heartbeat: {interval: none}}
  made: {heartbeat: {on_missing: create}}
  text: {heartbeat: {interval: 1h, checklist: Report each mail.}}
  off: {heartbeat: {enabled: false}}
cron:
  a: {every: 1h, command: ./backup.sh --all}
  b: {every: 1h, command: [no-such-program]}
  c: {every: 1h, command: pwd, workdir: nowhere}
  d: {every: 1h, command: "cd x && ./y; exit", shell: /bin/no-such-shell}
  e: {every: 1h, command: "if true; then ./x; fi"}
  f: {every: 1h, command: [./tool], env: {PATH: /x}}
  g: {every: 1h, prompt: Go., agent: here, precheck: {command: new-mail --now}}
  h: {every: 1h, prompt: Go., agent: here, fallbacks: [{runner: spare}, {runner: last}]}
"""


def test_each_missing_file_or_program_in_the_config_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    here = tmp_path / "agents" / "here"
    (here / "FOLDER").mkdir(parents=True)
    (tmp_path / "agents" / "bare").mkdir()
    (here / "HEARTBEAT.md").symlink_to("SOUL.md")
    (here / "SOUL.md").write_text("You are gentle.")
    (here / "link.md").symlink_to("SOUL.md")
    (here / "far.md").symlink_to("/etc/hostname")
    (here / "LARGE.md").write_text("x" * 65_537)
    (tmp_path / "tool").touch(mode=0o644)
    assert main(["check", "-c", config(tmp_path, NEEDS)]) == 0
    lines = capsys.readouterr().err.replace(f"{tmp_path}/", "").splitlines()
    assert [line.removeprefix("warning: config.yaml:").split(": ", 2)[1:] for line in lines] == [
        ["channels.pager.argv", "there is no program 'no-such-pager'; PATH is /usr/bin:/bin"],
        ["agents.here.context[1]", f"agents/here/link.md is a link, and {LEFT_OUT}"],
        ["agents.here.context[2]", f"agents/here/far.md is a link that leads outside the workspace, and {LEFT_OUT}"],
        ["agents.here.context[3]", "agents/here/LARGE.md is larger than 64 KiB, so it is left out of the prompt"],
        ["agents.here.context[4]", "agents/here/FOLDER is not a regular file, so it is left out of the prompt"],
        ["agents.here.runner.argv", "there is no program agents/here/agent.sh"],
        ["agents.here.fallbacks[1].runner", "there is no program 'no-such-agent'; PATH is /usr/bin:/bin"],
        [
            "agents.here.heartbeat.checklist",
            "agents/here/HEARTBEAT.md is a link, and links are not followed, so its runs are skipped",
        ],
        ["agents.here.heartbeat.precheck.command", "there is no program 'new-mail'; PATH is /usr/bin:/bin"],
        ["agents.away.workspace", "the folder agents/away does not exist; do: mkdir -p agents/away"],
        [
            "agents.bare.heartbeat.checklist",
            "agents/bare/HEARTBEAT.md does not exist, so its planned runs are skipped",
        ],
        [
            "agents.text.heartbeat.checklist",
            f"agents/text/Report each mail. does not exist, so its planned runs are skipped; {TEXT_ADVICE}",
        ],
        ["cron.a.command", "there is no program backup.sh"],
        ["cron.b.command", "there is no program 'no-such-program'; PATH is /usr/bin:/bin"],
        ["cron.c.workdir", "the folder nowhere does not exist; do: mkdir -p nowhere"],
        ["cron.d.shell", "there is no program /bin/no-such-shell"],
        ["cron.f.command", "tool is not executable; do: chmod +x tool"],
        ["cron.g.precheck.command", "there is no program 'new-mail'; PATH is /usr/bin:/bin"],
        ["cron.h.fallbacks[1].runner", "there is no program 'claude'; PATH is /usr/bin:/bin"],
    ]


CLAUDE = """\
runners: {backup: {kind: command, argv: [claude, -p]}}
defaults: {heartbeat: {interval: 1h, checklist: "- look\\n", deliver: log}}
agents:
  old: {runner: {kind: command, argv: [claude, -p]}, model: sonnet, heartbeat: {effort: high}}
  plain: {runner: {kind: command, argv: [/bin/claude]}}
  shell: {runner: {kind: command, argv: [sh, -c, "claude -p --model $HEARTBEATD_MODEL"]}, model: sonnet}
  new: {runner: claude-code, model: sonnet, fallbacks: [haiku, {runner: backup}, {runner: backup, model: opus}]}
  off: {runner: {kind: command, argv: [claude, -p]}, model: sonnet, heartbeat: {enabled: false}}
cron:
  same: {every: 1h, prompt: look, agent: old}
  own: {every: 1h, prompt: look, agent: plain, model: opus}
"""


def test_a_model_that_claude_code_ignores_as_a_plain_program_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "claude").touch(mode=0o755)
    assert main(["check", "-c", config(tmp_path, CLAUDE)]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "does not read" in line]
    no_effect = "`claude` does not read HEARTBEATD_{}, so {} has no effect; write runner: claude-code"
    assert [line.removeprefix("warning: ").split(": ", 2)[1:] for line in lines] == [
        ["agents.old.runner", no_effect.format("MODEL", "sonnet")],
        ["agents.old.runner", no_effect.format("EFFORT", "high")],
        ["agents.new.fallbacks[2].runner", no_effect.format("MODEL", "opus")],
        ["cron.own", no_effect.format("MODEL", "opus")],
    ]


def test_claude_code_may_be_missing_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    beat = 'heartbeat: {interval: 1h, checklist: "- look\\n", deliver: log, on_missing: run}'
    text = f"agents: {{a: {{runner: claude-code, {beat}}}, b: {{runner: {{kind: claude-code, program: /x/claude}}, {beat}}}}}\n"
    assert main(["check", "-c", config(tmp_path, text)]) == 0
    assert [line.split(": ", 2)[2] for line in capsys.readouterr().err.splitlines() if "program" in line] == [
        "agents.a.runner.program: there is no program 'claude'; PATH is /usr/bin:/bin",
        "agents.b.runner.program: there is no program /x/claude",
    ]


def test_strict_turns_warnings_into_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, GOOD.replace(", on_missing: create", ""))
    assert main(["check", "-c", path]) == 0
    assert "warning: " in capsys.readouterr().err
    assert main(["check", "-c", path, "--strict"]) == 2
    assert "agents.ops.workspace: the folder" in capsys.readouterr().err
    assert main(["check", "-c", path, "--strict", "--format", "json"]) == 2
    assert [each["path"] for each in json.loads(capsys.readouterr().out)["errors"]] == ["agents.ops.workspace"]
    (tmp_path / "agents" / "ops").mkdir(parents=True)
    (tmp_path / "agents" / "ops" / "HEARTBEAT.md").write_text("- look\n")
    assert main(["check", "-c", path, "--strict"]) == 0
    capsys.readouterr()
    env = 'env: {A: "${NOPE}"}'
    path = config(tmp_path, f"cron: {{a: {{after: c, command: x}}, b: {{enabled: false, every: 1h, command: x, {env}}}}}\n")
    for options, expected in (([], ["cron.a.after"]), (["--strict"], ["cron.a.after", "cron.b.env.A"])):
        assert main(["check", "-c", path, *options, "--format", "json"]) == 2
        assert [each["path"] for each in json.loads(capsys.readouterr().out)["errors"]] == expected
