"""`check`, `schema` and `init`: a config is good, or every fault of it is told with its place."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from config_file import write

from scheduler.cli.main import main

GOOD = """\
agents:
  ops:
    runner: {kind: command, argv: [cat]}
    heartbeat: {interval: 30m, deliver: log}
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


def test_a_good_config_is_praised_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, GOOD)
    assert main(["check", "-c", path]) == 0
    assert capsys.readouterr().out == f"{path} is good: 1 agent, 2 jobs\n"


def test_the_config_may_be_named_before_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, GOOD)
    assert main(["-c", path, "check"]) == 0
    assert path in capsys.readouterr().out


def test_the_config_named_after_the_command_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, GOOD)
    assert main(["-c", "elsewhere.yaml", "check", "-c", path]) == 0
    assert path in capsys.readouterr().out


def test_the_config_is_config_yaml_here_if_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    assert main(["check"]) == 0
    assert capsys.readouterr().out == "config.yaml is good: 1 agent, 2 jobs\n"


def test_every_fault_is_a_line_with_its_place(
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


def test_faults_for_programs_are_one_object_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        "remedies": [{"value": "90s"}, {"value": "30m"}, {"value": "1h30m"}],
    }


def test_a_good_config_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", config(tmp_path, GOOD), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "errors": [], "warnings": []}


def test_warnings_go_to_stderr_and_are_no_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", config(tmp_path, GOOD.replace(", deliver: log", ""))]) == 0
    out, err = capsys.readouterr()
    assert "is good" in out
    assert err.startswith("warning: ")


def test_hours_that_fit_an_interval_badly_are_told_to_programs_with_the_beats_a_week(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GOOD.replace("interval: 30m", 'interval: 6h, active_hours: "08:00-12:00"')
    assert main(["check", "-c", config(tmp_path, text), "--format", "json"]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert warning["path"] == "agents.ops.heartbeat.interval"
    assert warning["message"].startswith("6h fits badly into the active hours, which leave 7 beats a week; ")


def test_overrides_of_the_environment_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEARTBEATD_SET__agents__ops__heartbeat__interval", "10m")
    assert main(["check", "-c", config(tmp_path, GOOD)]) == 0
    assert capsys.readouterr().out.endswith("overridden by HEARTBEATD_SET__agents__ops__heartbeat__interval\n")


def test_effective_values_come_with_their_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", config(tmp_path, GOOD), "--effective", "agent/ops"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["heartbeat.interval", "30m", "config.yaml:4"] in lines
    assert ["heartbeat.retries", "2", "built", "in"] in lines


def test_effective_values_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", config(tmp_path, GOOD), "--effective", "tick", "--format", "json"]) == 0
    assert {"key": "every", "value": "1h", "origin": "config.yaml:7"} in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("name", "said"), [("ops", "write agent/ops or cron/ops"), ("nobody", "neither an agent nor a job")])
def test_effective_values_need_one_entry(name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", config(tmp_path, GOOD), "--effective", name]) == 2
    assert said in capsys.readouterr().err


def test_a_config_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-c", str(tmp_path / "none.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_init_writes_a_config_that_check_calls_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "new")]) == 0
    assert main(["check", "-c", str(tmp_path / "new" / "config.yaml")]) == 0
    assert "is good" in capsys.readouterr().out


def test_the_next_steps_that_init_prints_can_be_copied_also_where_the_folder_has_a_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "a place")]) == 0
    steps = capsys.readouterr().out.splitlines()[-1].removeprefix("next: ")
    shown = subprocess.run(
        ["/bin/sh", "-c", f"heartbeatd() {{ pwd; }}; {steps}"], capture_output=True, text=True, timeout=20, check=True
    )
    assert shown.stdout == f"{tmp_path}/a place\n" * 2


def test_init_leaves_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, "mine")
    assert main(["init", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"heartbeatd: {path} is there already; nothing was written\n"
    assert [each.name for each in tmp_path.iterdir()] == ["config.yaml"]
    assert Path(path).read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, GOOD)
    assert main(["init", f"{path}/new"]) == 1
    assert capsys.readouterr().err == f"heartbeatd: {path}/new: Not a directory\n"


def test_what_init_writes_nobody_else_can_change(tmp_path: Path, no_umask: None) -> None:
    main(["init", str(tmp_path / "new")])
    assert (tmp_path / "new" / "config.yaml").stat().st_mode & 0o777 == 0o644


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_the_schema_is_a_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert {"agents", "cron", "defaults"} <= json.loads(capsys.readouterr().out)["properties"].keys()
