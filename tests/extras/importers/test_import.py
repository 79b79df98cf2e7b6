"""Tests of the command `config import`: its output, --into, --strict, JSON, several files, and files that are damaged or hostile."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from checkout import HOME
from imported import EXAMPLES
from loops import loop_over

from scheduler.cli.main import main
from scheduler.extras.importers import foreign_system
from scheduler.extras.importers.json5_reader import read_json5
from scheduler.extras.importers.source_files import MAX_BYTES

OPENCLAW = EXAMPLES / "openclaw"
SMALL = """\
agents:
  one:
    runner: {kind: command, argv: [echo]}
    heartbeat: {interval: 1h, deliver: log}
"""
ONE_AGENT = '{agents: {defaults: {workspace: "~/x", heartbeat: {every: "1h", target: "none"}}}}'
ONE_JOB = '{"jobs": [{"name": "brief", "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": "UTC"}, "payload": {"message": "Go."}, "delivery": {"mode": "none"}}]}'


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["config", "import", *map(str, arguments), "--timezone", "Europe/Riga"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def test_the_config_is_printed_and_the_receipt_goes_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path, "openclaw.json", ONE_AGENT)
    code, out, err = run(capsys, "openclaw", source)
    assert code == 0
    path = write(tmp_path, "config.yaml", out)
    assert main(["check", "-c", str(path)]) == 0
    assert out.startswith(f"# Imported by `heartbeatd config import openclaw` from {source}.\n")
    assert f"kept     {source}:1 agents.defaults.heartbeat.every -> agents.main.heartbeat.interval\n" in err
    assert "receipt: 3 values: 3 kept, 0 changed, 0 dropped" in err


def test_several_files_become_one_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "openclaw", write(tmp_path, "openclaw.json", ONE_AGENT), write(tmp_path, "jobs.json", ONE_JOB))
    assert code == 0
    assert "agents:\n  main:\n" in out
    assert "cron:\n  brief:\n" in out
    assert "jobs[0].schedule.expr -> cron.brief.schedule" in err


def test_the_receipt_as_json_has_every_value(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "openclaw", OPENCLAW / "openclaw.json", OPENCLAW / "jobs.json", "--format", "json")
    found = json.loads(out)
    assert (code, err) == (1, "")  # one of the jobs sends to Slack
    by_key = {entry["key"]: entry for entry in found["receipt"]}
    assert by_key["jobs[0].payload.timeoutSeconds"] | {"file": "", "line": 0} == {
        "file": "",
        "line": 0,
        "key": "jobs[0].payload.timeoutSeconds",
        "status": "changed",
        "as": ["cron.Morning-brief.timeout"],
        "from": 300,
        "to": "5m",
    }
    assert by_key["jobs[0].state.lastRunStatus"]["loss"] is False
    assert by_key["jobs[0].payload.thinking"] | {"file": ""} == {
        "file": "",
        "line": 9,
        "key": "jobs[0].payload.thinking",
        "status": "kept",
        "as": ["cron.Morning-brief.effort"],
    }
    assert found["variables"]["TELEGRAM_BOT_TOKEN"] == "channels.telegram.botToken"
    assert found["config"].startswith("# Imported by")
    assert found["problems"] == []


def test_into_a_config_only_adds_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"# mine\n{SMALL}# the end\n"
    path = write(tmp_path, "config.yaml", text)
    path.chmod(0o640)
    code, out, err = run(
        capsys, "openclaw", write(tmp_path, "a.json", ONE_AGENT), write(tmp_path, "jobs.json", ONE_JOB), "--into", path
    )
    assert (code, err) == (0, "")
    assert f"{path}: 1 agent, 1 job added" in out
    after = path.read_text("utf-8")
    lines = iter(after.splitlines())
    assert all(line in lines for line in text.splitlines())
    assert oct(path.stat().st_mode)[-3:] == "640"
    assert main(["check", "-c", str(path)]) == 0


def test_importing_the_same_files_again_adds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "config.yaml", SMALL)
    files = (OPENCLAW / "openclaw.json", OPENCLAW / "jobs.json", OPENCLAW / "ops" / "HEARTBEAT.md")
    assert run(capsys, "openclaw", *files, "--into", path)[0] == 1  # one of the jobs sends to Slack
    before = path.read_bytes()
    code, out, _ = run(capsys, "openclaw", *files, "--into", path)
    assert code == 1
    assert "nothing to add" in out
    assert path.read_bytes() == before
    there = sum(map(before.decode().count, ("    workspace: ", "    schedule: ", "    at: ", "    every: ")))
    more = write(tmp_path, "jobs.json", ONE_JOB)
    assert f": 1 job added, {there} already there\n" in run(capsys, "openclaw", *files, more, "--into", path)[1]


def test_an_entry_with_a_name_that_is_taken_gets_another_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path, "config.yaml", "agents:\n  main:\n    runner: {kind: command, argv: [echo]}\n    heartbeat: {interval: 1h}\n"
    )
    code, out, _ = run(
        capsys, "openclaw", write(tmp_path, "a.json", ONE_AGENT), write(tmp_path, "jobs.json", ONE_JOB), "--into", path
    )
    assert code == 0
    assert "agents.defaults.heartbeat.every -> agents.main-2.heartbeat.interval" in out
    assert "    agent: main-2\n" in path.read_text("utf-8")


def test_a_job_gets_the_outputs_of_the_job_whose_name_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path, "config.yaml", "cron:\n  news: {every: 1h, command: ./news.sh}\n  brief: {every: 2h, command: ./x.sh}\n"
    )
    job = {"prompt": "Go.", "schedule": "0 7 * * *", "deliver": "local"}
    store = {"jobs": [{"name": "brief", "context_from": ["news", "self"], **job}, {"name": "news", **job}]}
    assert run(capsys, "hermes", write(tmp_path, "jobs.json", json.dumps(store)), "--into", path)[0] == 0
    assert "    previous: [news-2, brief-2]\n" in path.read_text("utf-8")


def test_every_job_follows_the_channel_whose_name_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = 'channels:\n  telegram-1: {kind: webhook, url: "https://example.org/"}\n'
    path = write(tmp_path, "config.yaml", mine + SMALL)
    recipients = "telegram:1, telegram:2", "telegram:1", "telegram:1"
    store = {"jobs": [{"name": "a", "schedule": "0 7 * * *", "prompt": "Go.", "deliver": each} for each in recipients]}
    files = write(tmp_path, "jobs.json", json.dumps(store)), write(tmp_path, ".env", "TELEGRAM_BOT_TOKEN=1:a")
    assert run(capsys, "hermes", *files, "--into", path)[::2] == (0, "")
    found = [line.strip() for line in path.read_text("utf-8").splitlines() if line.startswith("    deliver: ")]
    assert found == ["deliver: [telegram-1-2, telegram-2]", "deliver: telegram-1-2", "deliver: telegram-1-2"]


def test_a_job_wakes_the_agent_whose_name_was_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "config.yaml", SMALL.replace("one:", "main:"))
    event = ONE_JOB.replace('"message": "Go."', '"text": "Look."')
    files = write(tmp_path, "a.json", ONE_AGENT), write(tmp_path, "jobs.json", event)
    assert run(capsys, "openclaw", *files, "--into", path)[0] == 0
    assert "    wake_heartbeat: main-2\n" in path.read_text("utf-8")


def test_an_agent_is_called_through_its_own_provider_if_the_name_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path,
        "config.yaml",
        'providers:\n  goclaw: {kind: openai, base_url: "http://127.0.0.1:1/v1", api_key: "${KEY}"}\n' + SMALL,
    )
    beats = write(tmp_path, "heartbeats.json", '[{"agentKey": "main", "enabled": true, "intervalSec": 900}]')
    assert run(capsys, "goclaw", beats, "--into", path)[0] == 0
    assert "provider: goclaw-2" in path.read_text("utf-8")


def test_the_model_that_decides_keeps_its_provider_if_the_config_has_another_one_of_this_name(tmp_path: Path) -> None:
    source, path = tmp_path / "config.json", tmp_path / "config.yaml"
    source.write_text('{"agents": {"defaults": {"model": "openai/gpt-5"}}, "providers": {"openai": {"apiKey": "sk-1"}}}')
    path.write_text(
        "providers: {openai: {kind: openai, api_key: '${MINE}'}}\n"
        "agents:\n  a: {runner: {kind: openai}, model: m, heartbeat: {interval: 1h, deliver: log}}\n"
    )
    main(["config", "import", "nanobot", str(source), "--into", str(path)])
    assert "decide: {model: gpt-5, provider: openai-2}" in path.read_text()


def test_the_model_of_claw0_keeps_its_provider_if_the_config_has_another_one_of_this_name(tmp_path: Path) -> None:
    path = write(tmp_path, "config.yaml", SMALL + "providers: {anthropic: {api_key: '${MINE}'}}\n")
    source = write(tmp_path, ".env", "ANTHROPIC_API_KEY=sk-ant-1\nMODEL_ID=claude-haiku-4-5\nHEARTBEAT_INTERVAL=1800\n")
    for _ in range(2):
        main(["config", "import", "claw0", str(source), "--into", str(path)])
    assert "runner: {kind: anthropic, provider: anthropic-2}" in path.read_text("utf-8")
    assert 'anthropic-2: {api_key: "${ANTHROPIC_API_KEY}", kind: anthropic}' in path.read_text("utf-8")
    assert "main-2" not in path.read_text("utf-8")


def test_importing_again_what_got_other_names_adds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = "channels:\n  telegram-1: {kind: webhook, url: 'https://example.org/'}\n" + SMALL.replace("one:", "main:")
    mine += "cron:\n  news: {every: 1h, command: ./news.sh}\n  brief: {every: 2h, command: ./x.sh}\n"
    path = write(tmp_path, "config.yaml", mine)
    job = {"prompt": "Go.", "schedule": "0 7 * * *", "deliver": "telegram:1"}
    store = {"jobs": [{"name": "brief", "context_from": ["news", "self"], **job}, {"name": "news", **job}]}
    files = write(tmp_path, "jobs.json", json.dumps(store)), write(tmp_path, ".env", "TELEGRAM_BOT_TOKEN=1:a")
    assert "1 channel, 1 agent, 2 jobs added" in run(capsys, "hermes", *files, "--into", path)[1]
    before = path.read_text("utf-8")
    assert ("main-2:" in before, "telegram-1-2:" in before, "brief-2:" in before) == (True, True, True)
    assert "nothing to add" in run(capsys, "hermes", *files, "--into", path)[1]
    assert path.read_text("utf-8") == before


def test_of_two_jobs_with_one_name_the_second_is_not_added_again_after_the_first_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "config.yaml", SMALL)
    rent, milk, bins = ({"name": "Reminder", "schedule": "0 7 * * *", "prompt": each} for each in ("Rent", "Milk", "Bins"))
    for jobs in [rent, milk], [milk, bins]:
        source = write(tmp_path, "jobs.json", json.dumps({"jobs": jobs}))
        assert run(capsys, "hermes", source, "--into", path)[0] == 0
    assert sorted(re.findall("prompt: (.*)", path.read_text("utf-8"))) == ["Bins", "Milk", "Rent"]


def test_a_new_job_does_not_take_the_place_of_an_imported_one_with_the_same_times_and_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "config.yaml", SMALL)
    one, two = ({"name": name, "schedule": "0 7 * * *", "prompt": "Go.", "model": name} for name in ("one", "two"))
    for jobs in [two], [one, two]:
        source = write(tmp_path, "jobs.json", json.dumps({"jobs": jobs}))
        assert run(capsys, "hermes", source, "--into", path)[0] == 0
    assert re.findall("^  (one|two.*):$", path.read_text("utf-8").partition("cron:")[2], re.MULTILINE) == ["two", "one"]
    assert re.findall("model: (one|two)", path.read_text("utf-8")) == ["two", "one"]


def test_importing_again_after_edits_adds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "config.yaml", SMALL)
    job = {"prompt": "Go.", "schedule": "0 7 * * *", "deliver": "telegram:1"}
    store = {"jobs": [{"name": "brief", **job}, {"name": "news", "context_from": ["brief"], **job}]}
    files = write(tmp_path, "jobs.json", json.dumps(store)), write(tmp_path, ".env", "TELEGRAM_BOT_TOKEN=1:a")
    assert "1 channel, 1 agent, 2 jobs added" in run(capsys, "hermes", *files, "--into", path)[1]
    text = path.read_text("utf-8")
    for old, new in (
        ("telegram-1", "phone"), ("brief", "morning"), ("ok_match: anywhere", "ok_match: exact"), ("interval: none", "interval: 2h"),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, "utf-8")
    assert "has all of this already" in run(capsys, "hermes", *files, "--into", path)[1]
    assert path.read_text("utf-8") == text


def test_a_channel_that_no_new_agent_or_job_uses_is_not_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "config.yaml", SMALL)
    job = {"prompt": "Go.", "schedule": "0 7 * * *", "deliver": "telegram:1"}
    env = write(tmp_path, ".env", "TELEGRAM_BOT_TOKEN=1:a")
    run(capsys, "hermes", write(tmp_path, "jobs.json", json.dumps({"jobs": [{"name": "brief", **job}]})), env, "--into", path)
    text = re.sub("(?s)channels:\n.*?\n(?=\\w|$)", "", path.read_text("utf-8")).replace("telegram-1", "log")
    path.write_text(text, "utf-8")
    new = {"name": "new", "prompt": "New.", "schedule": "0 8 * * *", "deliver": "local"}
    source = write(tmp_path, "jobs.json", json.dumps({"jobs": [{"name": "brief", **job}, new]}))
    assert run(capsys, "hermes", source, env, "--into", path)[0] == 0
    assert re.findall("prompt: (.*)", path.read_text("utf-8")) == ["Go.", "New."]
    assert "tgram" not in path.read_text("utf-8")


def test_what_the_new_agents_and_jobs_inherit_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    night = '{model: m, heartbeat: {active_hours: {start: "22:00", end: "23:00"}}, cron: {stagger: 10m}}'
    path = write(tmp_path, "config.yaml", f"{SMALL}defaults: {night}\n")
    agent, job = write(tmp_path, "a.json", ONE_AGENT), write(tmp_path, "jobs.json", ONE_JOB)
    of_agents = "hint: the new agents inherit from defaults: model, heartbeat.active_hours\n"
    assert run(capsys, "openclaw", agent, "--into", path)[2] == of_agents
    assert run(capsys, "openclaw", agent, job, "--into", path)[2] == "hint: the new jobs inherit from defaults: cron.stagger\n"
    assert run(capsys, "openclaw", agent, job, "--into", path)[2] == ""


def test_into_a_config_with_errors_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "config.yaml", SMALL + "nonsense: 1\n")
    before = path.read_bytes()
    code, _, err = run(capsys, "openclaw", write(tmp_path, "a.json", ONE_AGENT), "--into", path)
    assert code == 2
    assert "nonsense" in err
    assert path.read_bytes() == before


def test_into_a_config_without_a_place_for_agents_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "agents: {\n  a: {runner: {kind: command, argv: [echo]}, heartbeat: {interval: 1h}}}\n"
    path = write(tmp_path, "config.yaml", text)
    code, _, err = run(capsys, "openclaw", write(tmp_path, "a.json", ONE_AGENT), "--into", path)
    assert code == 2
    assert "config.yaml:1: agents." in err
    assert "in brackets over several lines" in err
    assert path.read_text("utf-8") == text


def test_into_a_missing_config_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "openclaw", write(tmp_path, "a.json", ONE_AGENT), "--into", tmp_path / "none.yaml")
    assert code == 2
    assert "none.yaml cannot be read: No such file or directory" in err


def test_strict_writes_nothing_if_a_setting_would_be_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "config.yaml", SMALL)
    code, out, err = run(capsys, "openclaw", OPENCLAW / "openclaw.json", "--into", path, "--strict")
    assert code == 2
    assert "settings would be lost; nothing was written" in err
    assert "added," not in out
    assert path.read_text("utf-8") == SMALL
    code, out, err = run(capsys, "openclaw", OPENCLAW / "openclaw.json", "--strict")
    assert (code, out) == (2, "")
    code, out, err = run(capsys, "openclaw", write(tmp_path, "a.json", ONE_AGENT), tmp_path / "none.json", "--strict")
    assert (code, out) == (2, "")


def test_strict_accepts_records_and_empty_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ONE_JOB.replace('"name"', '"id": "x", "createdAtMs": 1, "state": {"lastStatus": "ok"}, "description": null, "name"')
    code, out, _ = run(capsys, "openclaw", write(tmp_path, "jobs.json", job), "--strict")
    assert code == 0
    assert "brief:" in out


def test_a_damaged_file_is_used_as_far_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (OPENCLAW / "jobs.json").read_text("utf-8")
    source = write(tmp_path, "jobs.json", whole[: whole.index('"Inbox"')])
    code, out, err = run(capsys, "openclaw", source)
    assert code == 1
    assert "Morning-brief:" in out
    assert "Reminder:" in out
    line = whole[: whole.index('"Inbox"')].count("\n") + 1
    assert f"{source}:{line}: the file ends here; the rest of the file was left out" in err


def test_files_that_cannot_be_read_are_named_and_the_others_are_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    huge = write(tmp_path, "huge.json", "[" + " " * MAX_BYTES + "]")
    code, out, err = run(
        capsys, "openclaw", tmp_path / "none.json", tmp_path / "pipe", tmp_path, huge, write(tmp_path, "a.json", ONE_AGENT)
    )
    assert code == 1
    assert "agents:\n  main:" in out
    assert "none.json: cannot be read: No such file or directory" in err
    assert "pipe: cannot be read: not a regular file" in err
    assert f"{huge}: is larger than 4 MiB and was not read" in err


@loop_over(
    "content",
    [
        "",
        "\0\0\0",
        "[" * 100_000,
        "{" * 100_000,
        '{"a":' * 100_000,
        "a: " * 5000,
        "- " * 5000,
        "[[[[",
        "{agents: {list: 5, defaults: [1]}, channels: 7, jobs: 3}",
        '{"jobs": [null, 1, [], {}, {"schedule": {}}, {"schedule": {"kind": "cron", "expr": "x"}}, {"schedule": {"atMs": 1e300}}]}',
        '{"agents": {"list": [{"id": {"a": 1}, "heartbeat": {"every": "\\u0000", "activeHours": "night"}}]}}',
        "a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nd: &d [*c, *c, *c, *c]\ne: [*d, *d, *d, *d]\n",
        "\u202e\x1b[31mred: 1",
        "not a config at all",
    ],
)
@loop_over("name", ["x.json", "x.yaml", "x.toml", ".env", "HEARTBEAT.md", "x"])
def test_no_content_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str) -> None:
    code, out, err = run(capsys, "openclaw", write(tmp_path, name, content))
    assert code in (0, 1)
    assert "Traceback" not in err
    assert not set(out + err) & set("\x00\x1b\u202e")


@loop_over("system", foreign_system.SYSTEM_NAMES)
def test_a_file_of_another_kind_has_nothing_to_import(tmp_path: Path, capsys: pytest.CaptureFixture[str], system: str) -> None:
    source = write(tmp_path, "x.yaml", "services:\n  web: {image: nginx}\nvolumes: []\n")
    code, out, err = run(capsys, system, source)
    assert (code, out) == (1, "")
    assert "there is nothing to import in these files" in err
    assert f"{source}:2 services.web.image" in err


def test_slow_patterns_are_not_given_long_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of these takes minutes if a pattern tries all ways to divide the spaces."""
    size = 1_000_000
    for name, content in (
        ("x", "\n" * size),
        ("x.toml", "[" + " " * size),
        ("H.md", "tasks:\n- " + " " * size + "x\n1. " + " " * size),
    ):
        assert run(capsys, "openclaw", write(tmp_path, name, content))[0] in (0, 1)


def test_aliases_are_limited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 6))
    code, _, err = run(capsys, "openclaw", write(tmp_path, "x.yaml", f"a0: &a0 [1]\n{levels}"))
    assert code == 1
    assert "the file has more than 20,000 values; the rest was left out" in err


def test_no_more_lines_of_json_are_kept_than_values_are_read() -> None:
    value, lines, errors = read_json5(f"[[[{'0,' * 1000}]]]", max_depth=64, max_lines=100)
    assert (value, len(lines), errors) == ([[[0] * 1000]], 100, [])


def test_an_unknown_system_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "clawd", "x.json")
    assert code == 2
    assert "unknown system 'clawd'; did you mean claw0?" in err


def test_the_example_in_the_documentation_gives_the_receipt_shown_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (HOME / "docs" / "coming-from.md").read_text("utf-8")
    (shown,) = re.findall(r"```json5\n(.*?)```", page, re.DOTALL)
    (receipt,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    source = write(tmp_path, "openclaw.json", shown)
    assert main(["config", "import", "openclaw", str(source), "--timezone", "Europe/Berlin"]) == 0
    assert capsys.readouterr().err.replace(f"{tmp_path}/", "") == receipt


def test_the_time_zone_of_the_command_comes_before_the_default_of_a_system(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = '{"jobs": [{"name": "a", "schedule": {"kind": "cron", "expr": "0 7 * * *"}, "payload": {"message": "Go."}}]}'
    files = write(tmp_path, "config.json", '{"agents": {"defaults": {"workspace": "/w"}}}'), write(tmp_path, "jobs.json", job)
    for options, zone in (([], "UTC"), (["--timezone", "Europe/Riga"], "Europe/Riga")):
        main(["config", "import", "nanobot", *map(str, files), *options])
        assert f"    timezone: {zone}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--timezone", "Europe/Riga"], "Europe/Riga (set with --timezone)"),
        ([], "(the time zone of this host; --timezone sets another)"),
    ],
)
def test_the_receipt_names_the_source_of_a_time_zone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    hours = ONE_AGENT.replace('every: "1h"', 'every: "1h", activeHours: {start: "08:00", end: "22:00"}')
    source = write(tmp_path, "openclaw.json", hours)
    assert main(["config", "import", "openclaw", str(source), *options]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "active_hours.timezone" in line]
    assert line.endswith(reason)


def test_the_documentation_names_every_system() -> None:
    page = (HOME / "docs" / "coming-from.md").read_text("utf-8")
    assert [name for name in foreign_system.SYSTEM_NAMES if f"| `{name}` |" not in page] == []
