"""Tests the runners, providers and prices of a config, and their errors."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from checkout import HOME
from config_file import complaints, read, warnings
from jsonschema import Draft202012Validator
from loops import loop_over

from heartbeat.spec import ClaudeCode, CommandRunner, Decide, Heartbeat, HttpRunner, ModelRunner, Precheck, PythonRunner
from heartbeatd.secret import Secret
from scheduler.config.file.diagnostics import ConfigError
from scheduler.config.keys.models import config_schema
from scheduler.config.settings import templates
from scheduler.config.settings.effective_values import list_effective_values
from scheduler.config.settings.load import load_config
from scheduler.model.budget import Price
from scheduler.model.outcome import Kind

KEY = "sk-canary-41d8"
ENVIRON = {"KEY": KEY}
SHIPPED = HOME / "config.yaml"

FLEET = """\
providers:
  anthropic: {api_key: "${KEY}"}
  local: {kind: openai, base_url: "http://127.0.0.1:11434/v1"}
  work: {kind: anthropic, api_key: "${KEY}", base_url: "https://models.example.org"}
prices: {claude-haiku-5-5: {input: 1, output: 5}, q: {input: 0, output: 0}}
defaults: {heartbeat: {interval: 30m, deliver: log, budget: unlimited}}
agents:
  ops:
    runner: {kind: anthropic}
    heartbeat:
      retries: 2
"""
RUNNER, BEAT = "runner: {kind: anthropic}", "retries: 2"


def fleet(runner: str = RUNNER, beat: str = BEAT) -> str:
    return FLEET.replace(RUNNER, runner).replace(BEAT, beat)


def ops(folder: Path, runner: str = RUNNER, beat: str = BEAT) -> Heartbeat:
    return read(folder, fleet(runner, beat), ENVIRON).settings.heartbeats["ops"]


def provider(beat: Heartbeat) -> str:
    assert isinstance(beat.runner, ModelRunner)
    return beat.runner.provider.name


def reveal(value: object) -> str:
    assert isinstance(value, Secret)
    return value.reveal()


def test_an_agent_without_keys_calls_the_default_model_of_anthropic(tmp_path: Path) -> None:
    beat = ops(tmp_path, "context: []")
    assert isinstance(beat.runner, ModelRunner)
    assert (beat.runner.provider.kind, beat.runner.max_output_tokens, beat.model) == ("anthropic", 2000, "claude-haiku-5-5")
    assert reveal(beat.runner.provider.api_key) == KEY
    assert beat.runner.provider.base_url is None
    assert (beat.decide, beat.session_keep) == (None, 0)


def test_a_gateway_is_called_by_url_with_headers(tmp_path: Path) -> None:
    runner = ops(
        tmp_path, 'runner: {kind: http, url: "http://10.0.0.1/${KEY}", headers: {Authorization: "Bearer ${KEY}"}}'
    ).runner
    assert isinstance(runner, HttpRunner)
    assert reveal(runner.url) == f"http://10.0.0.1/{KEY}"
    assert reveal(runner.headers["Authorization"]) == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("written", "runner"),
    [
        ("{kind: command, argv: [claude, -p]}", CommandRunner(("claude", "-p"), {}, "claude")),
        ('{kind: python, call: "pkg.mod:Class.method"}', PythonRunner("pkg.mod:Class.method", in_process=False)),
        ('{kind: python, call: "mod:fn", in_process: true}', PythonRunner("mod:fn", in_process=True)),
    ],
)
def test_a_command_and_a_callable_are_used_as_written(tmp_path: Path, written: str, runner: object) -> None:
    beat = ops(tmp_path, f"runner: {written}")
    assert (beat.runner, beat.model) == (runner, None)


CLAUDE = CommandRunner(("claude",), {}, "claude", claude=ClaudeCode())


@pytest.mark.parametrize(
    ("written", "runner"),
    [
        ("claude-code", CLAUDE),
        ("{kind: claude-code}", CLAUDE),
        ('{kind: claude-code, allow: "Bash(df:*)"}', replace(CLAUDE, claude=ClaudeCode(("Bash(df:*)",)))),
        (
            '{kind: claude-code, program: /opt/bin/claude-2, allow: [Read, "Bash(df:*)"], env: {A: b}, account: team}',
            CommandRunner(("/opt/bin/claude-2",), {"A": "b"}, "team", claude=ClaudeCode(("Read", "Bash(df:*)"))),
        ),
    ],
)
def test_claude_code_is_a_program_whose_arguments_follow_from_the_config(tmp_path: Path, written: str, runner: object) -> None:
    beat = ops(tmp_path, f"runner: {written}")
    assert (beat.runner, beat.model, beat.answer, beat.ask_again) == (runner, None, "structured", 0)


def test_the_kind_of_a_runner_may_be_written_in_place_of_it_wherever_a_runner_is(tmp_path: Path) -> None:
    text = """
defaults: {runner: claude-code, heartbeat: {interval: 30m, deliver: log}}
runners: {backup: claude-code}
agents:
  own: {}
  more: {runner: {allow: [Read]}}
  other: {runner: {kind: command, argv: [cat]}, fallbacks: [{runner: backup, model: opus}]}
  model: {runner: anthropic, heartbeat: {budget: unlimited}}
"""
    found = read(tmp_path, text).settings.heartbeats
    assert (found["own"].runner, found["more"].runner) == (CLAUDE, replace(CLAUDE, claude=ClaudeCode(("Read",))))
    assert found["other"].runner == CommandRunner(("cat",), {}, "cat")
    assert [(each.name, each.runner, each.model) for each in found["other"].fallbacks] == [("backup/opus", CLAUDE, "opus")]
    assert isinstance(found["model"].runner, ModelRunner)
    assert {name: beat.answer for name, beat in found.items()} == {
        "own": "structured", "more": "structured", "other": "text", "model": "structured",
    }  # fmt: skip


def test_only_claude_code_gets_the_limit_of_its_try(tmp_path: Path) -> None:
    text = """
runners: {backup: claude-code}
defaults: {heartbeat: {interval: 30m, deliver: log, budget: {usd_per_try: 0.2}}, cron: {every: 1h, prompt: look}}
agents:
  own: {runner: claude-code}
  none: {runner: claude-code, heartbeat: {budget: unlimited}}
  other: {runner: {kind: command, argv: [cat]}}
  later: {runner: {kind: command, argv: [cat]}, fallbacks: [{runner: backup}]}
cron: {one: {agent: own}, two: {agent: own, budget: {usd_per_try: 1.5}}, three: {agent: other, budget: {usd_per_try: 1.5}}}
"""
    settings = read(tmp_path, text).settings
    found = {**settings.heartbeats, **settings.job_agents}
    assert {name: agent.usd_per_try for name, agent in found.items() if agent.usd_per_try is not None} == {
        "own": 0.2, "later": 0.2, "two": 1.5,
    }  # fmt: skip


@pytest.mark.parametrize("place", ["environment", "env_file", "config"])
def test_claude_code_has_the_token_of_the_daemon(tmp_path: Path, place: str) -> None:
    name, runner, environ = "CLAUDE_CODE_OAUTH_TOKEN", "claude-code", dict(ENVIRON)
    text = fleet("runner: claude-code")
    if place == "environment":
        environ |= {name: "token-1"}
    if place == "env_file":
        (tmp_path / "secrets").write_text(f"{name}=token-1\n")
        (tmp_path / "secrets").chmod(0o600)
        text = f"env_file: secrets\n{text}"
    if place == "config":
        environ |= {name: "token-2", "MINE": "token-1"}
        text = fleet(f'runner: {{kind: claude-code, env: {{{name}: "${{MINE}}"}}}}')
    runner = read(tmp_path, text, environ).settings.heartbeats["ops"].runner
    assert isinstance(runner, CommandRunner)
    assert reveal(runner.variables[name]) == "token-1"
    assert not any("token-" in str(each) for each in (runner, runner.variables))


@pytest.mark.parametrize("environ", [{}, {"CLAUDE_CODE_OAUTH_TOKEN": ""}, {"ANTHROPIC_API_KEY": "sk-ant-api03-1"}])
def test_without_a_token_claude_code_uses_its_own_login_and_never_an_api_key(tmp_path: Path, environ: dict[str, str]) -> None:
    runner = read(tmp_path, fleet("runner: claude-code"), ENVIRON | environ).settings.heartbeats["ops"].runner
    assert isinstance(runner, CommandRunner)
    assert runner.variables == {}


def test_the_schema_for_editors_has_the_short_form_of_a_runner() -> None:
    schema = Draft202012Validator(json.loads(json.dumps(config_schema())))
    for runner, is_valid in (("claude-code", True), ({"kind": "claude-code", "allow": ["Read"]}, True), ("command", False)):
        for config in ({"agents": {"ops": {"runner": runner}}}, {"runners": {"backup": runner}}):
            assert schema.is_valid(config) == is_valid


def test_the_third_job_of_a_chain_calls_a_model_no_oftener_than_min_interval(tmp_path: Path) -> None:
    jobs = "tick: {every: 1m, command: look}, second: {after: tick, command: look}, third: {after: second, prompt: Look., agent: ops}"
    text = fleet("runner: {kind: anthropic}", "interval: 30m") + f"\ncron: {{{jobs}}}\n"
    (line,) = complaints(tmp_path, text, ENVIRON)
    assert line.endswith("cron.third.after: 1m is below limits.min_interval, which is 5m; write 5m or more, or lower the limit")


def test_each_of_two_providers_needs_its_key(tmp_path: Path) -> None:
    text = """
providers: {anthropic: {api_key: "${ONE}"}, work: {kind: anthropic, api_key: "${TWO}"}}
agents:
  ops: {runner: {kind: anthropic}, heartbeat: {interval: 30m, deliver: log}}
  web: {runner: {kind: anthropic, provider: work}, heartbeat: {interval: 30m, deliver: log}}
"""
    assert [line.split(": ")[2].split()[0] for line in complaints(tmp_path, text, {})] == ["ONE", "TWO"]


def test_a_budget_needs_the_price_of_a_fallback_too(tmp_path: Path) -> None:
    runner = "runner: {kind: anthropic}\n    fallbacks: [{model: claude-next}]"
    (line,) = complaints(tmp_path, fleet(runner, "budget: {usd_per_day: 1}"), ENVIRON)
    assert 'usd_per_day cannot be enforced, because "claude-next" has no price' in line


def test_a_min_interval_of_zero_allows_any_interval(tmp_path: Path) -> None:
    text = fleet("runner: {kind: anthropic}", "interval: 1s") + "\nlimits: {min_interval: 0s}\n"
    assert read(tmp_path, text, ENVIRON).settings.heartbeats["ops"].interval == timedelta(seconds=1)


@pytest.mark.parametrize(
    ("runner", "beat", "name"),
    [
        ("runner: {kind: anthropic}", "retries: 1", "anthropic"),
        ("runner: {kind: anthropic, provider: work}", "retries: 1", "work"),
        ("runner: {kind: openai, provider: local}", "model: q", "local"),
        ("runner: {kind: anthropic, provider: work}", "{provider: local, model: q}", "local"),
        ("runner: {kind: openai, provider: local}", "provider: work", "work"),
        ("runner: {kind: openai}", "provider: anthropic", "anthropic"),
    ],
)
def test_the_heartbeats_provider_overrides_the_runners_and_that_overrides_the_default(
    tmp_path: Path, runner: str, beat: str, name: str
) -> None:
    text = fleet(runner).replace("\n      retries: 2", f" {beat}" if beat.startswith("{") else f"\n      {beat}")
    assert provider(read(tmp_path, text, ENVIRON).settings.heartbeats["ops"]) == name


@pytest.mark.parametrize(
    ("runner", "beat", "model"),
    [
        ("model: a", "retries: 1", "a"),
        ("model: a", "model: b", "b"),
        ("runner: {kind: openai, provider: local}", "provider: work", "claude-haiku-5-5"),
        ("runner: {kind: command, argv: [cat]}", "model: b", "b"),
        ('runner: {kind: http, url: "http://a"}', "retries: 1", None),
    ],
)
def test_the_model_is_the_heartbeats_else_the_agents_else_the_default(
    tmp_path: Path, runner: str, beat: str, model: str | None
) -> None:
    assert ops(tmp_path, runner, beat).model == model


@pytest.mark.parametrize(
    ("runner", "decide", "name"),
    [
        ("runner: {kind: command, argv: [cat]}", "decide: {model: q}", "anthropic"),
        ("runner: {kind: command, argv: [cat]}", "decide: {model: q, provider: local}", "local"),
        ("runner: {kind: command, argv: [cat]}", "decide: {model: q}\n      provider: work", "work"),
        ("runner: {kind: openai, provider: local}\n    model: q", "decide: {model: q}", "local"),
        ("runner: {kind: anthropic}", "decide: {model: q}\n      provider: work", "work"),
        ("runner: {kind: anthropic}", "decide: {model: q, provider: local}\n      provider: work", "local"),
    ],
)
def test_a_decision_uses_its_own_provider_else_the_heartbeats_else_the_runners(
    tmp_path: Path, runner: str, decide: str, name: str
) -> None:
    found = ops(tmp_path, runner, f"{decide}\n      max_output_tokens: 1k").decide
    assert isinstance(found, Decide)
    assert (found.model, found.runner.provider.name, found.runner.max_output_tokens) == ("q", name, 1000)


def test_an_inherited_decision_is_disabled_with_a_word(tmp_path: Path) -> None:
    text = FLEET.replace("deliver: log", "deliver: log, decide: {model: q}")
    assert read(tmp_path, text, ENVIRON).settings.heartbeats["ops"].decide is not None
    assert read(tmp_path, text.replace(BEAT, "decide: none"), ENVIRON).settings.heartbeats["ops"].decide is None
    kept = read(tmp_path, text.replace(BEAT, "decide:"), ENVIRON).settings.heartbeats["ops"].decide
    assert kept is not None, "an empty map undoes nothing"


@loop_over(
    ("written", "precheck"),
    [
        ("precheck: ./look", Precheck("./look", "run", "run", timedelta(seconds=30))),
        ("timeout: 20s\n      precheck: ./look", Precheck("./look", "run", "run", timedelta(seconds=10))),
        (
            'precheck: {command: "a | b", unchanged: skip, on_error: skip, timeout: 2m}',
            Precheck("a | b", "skip", "skip", timedelta(minutes=2)),
        ),
        (
            "precheck: {command: ./look, unchanged: {skip: true, max_age: 6h}, confirm: 3}",
            Precheck("./look", "skip", "run", timedelta(seconds=30), max_age=timedelta(hours=6), confirm=3),
        ),
        (
            "precheck: {command: ./look, unchanged: {max_age: 6h}}",
            Precheck("./look", "skip", "run", timedelta(seconds=30), max_age=timedelta(hours=6)),
        ),
        ("precheck: {command: ./look, unchanged: {skip: false}}", Precheck("./look", "run", "run", timedelta(seconds=30))),
        ("precheck: none", None),
        (BEAT, None),
    ],
)
def test_a_precheck_is_a_command_or_a_map(tmp_path: Path, written: str, precheck: Precheck | None) -> None:
    assert ops(tmp_path, beat=written).precheck == precheck


def test_a_job_has_the_precheck_of_a_heartbeat_with_its_own_timeout(tmp_path: Path) -> None:
    def job(keys: str, more: str = "") -> str:
        return f"""
agents: {{ops: {{runner: {{kind: command, argv: [cat]}}, heartbeat: {{interval: none, deliver: log}}}}}}
defaults: {{cron: {{precheck: {{on_error: skip, command: ./default}}}}}}
cron: {{a: {{every: 1h, agent: ops, {keys}}}}}
{more}"""

    cases = {
        "prompt: Go.": Precheck("./default", "run", "skip", timedelta(seconds=30)),
        "prompt: Go., precheck: {command: ./look}": Precheck("./look", "run", "skip", timedelta(seconds=30)),
        "prompt: Go., timeout: 20s, precheck: {unchanged: skip}": Precheck("./default", "skip", "skip", timedelta(seconds=10)),
        "prompt: Go., precheck: none": None,
    }
    for keys, expected in cases.items():
        assert read(tmp_path, job(keys)).settings.job_agents["a"].precheck == expected, keys
    wrong = {
        "prompt: Go., precheck: {timeout: 10m}": "10m leaves the agent no time; write less than the whole timeout of 10m",
        "prompt: Go., precheck: {unchanged: {skip: false, max_age: 1h}}": "runs are not skipped here",
        "command: ls, precheck: ./look": "this key applies only to a prompt",
        "command: ls, ok_match: edges": "this key applies only to a prompt",
    }
    for keys, problem in wrong.items():
        assert problem in "".join(complaints(tmp_path, job(keys).replace("agent: ops, command", "command"))), keys


def test_a_precheck_is_inherited_key_by_key_and_disabled_with_a_word(tmp_path: Path) -> None:
    text = FLEET.replace("deliver: log", "deliver: log, precheck: {command: ./look, unchanged: skip}")
    own = read(tmp_path, text.replace(BEAT, "precheck: {on_error: skip}"), ENVIRON).settings.heartbeats["ops"].precheck
    assert own == Precheck("./look", "skip", "skip", timedelta(seconds=30))
    assert read(tmp_path, text.replace(BEAT, "precheck: none"), ENVIRON).settings.heartbeats["ops"].precheck is None


def test_the_two_forms_of_unchanged_replace_and_extend_each_other(tmp_path: Path) -> None:
    text = FLEET.replace("deliver: log", "deliver: log, precheck: {command: ./look, unchanged: {skip: true, max_age: 6h}}")

    def look(written: str) -> Precheck | None:
        return (
            read(tmp_path, text.replace(BEAT, f"precheck: {{unchanged: {written}}}"), ENVIRON).settings.heartbeats["ops"].precheck
        )

    kept = Precheck("./look", "skip", "run", timedelta(seconds=30), max_age=timedelta(hours=6))
    assert look("") == kept
    assert look("{max_age: 1h}") == replace(kept, max_age=timedelta(hours=1))
    assert look("skip") == replace(kept, max_age=None)
    assert look("run") == look("{skip: false}") == replace(kept, max_age=None, unchanged="run")


@loop_over(
    ("runner", "written", "answer"),
    [
        (RUNNER, BEAT, "structured"),
        ("runner: {kind: openai, provider: local}\n    model: q", BEAT, "structured"),
        (RUNNER, "answer: text", "text"),
        ("runner: {kind: command, argv: [cat]}", BEAT, "text"),
        ("runner: {kind: command, argv: [cat]}", "decide: {model: q}", "text"),
        ('runner: {kind: http, url: "http://a"}', BEAT, "text"),
        ('runner: {kind: python, call: "a:b"}', BEAT, "text"),
        ("runner: {kind: command, argv: [cat]}", "answer: structured", "structured"),
    ],
)
def test_a_model_answers_with_findings_and_other_runners_with_text(
    tmp_path: Path, runner: str, written: str, answer: str
) -> None:
    assert ops(tmp_path, runner, written).answer == answer


def test_problems_are_sent_and_end_as_configured(tmp_path: Path) -> None:
    def rules(written: str) -> tuple[int, timedelta, int, bool]:
        found = ops(tmp_path, beat=written)
        return found.problems_after, found.problems_remind, found.clear_after, found.show_resolved

    assert rules(BEAT) == (2, timedelta(hours=24), 2, True)
    text = "problems: {after: 3, remind: 3d, clear_after: 5}\n      show_resolved: false"
    assert rules(text) == (3, timedelta(days=3), 5, False)
    assert rules("problems: {after: none}")[0] == 0


def test_problems_are_inherited_key_by_key_and_set_by_the_environment(tmp_path: Path) -> None:
    text = FLEET.replace("deliver: log", "deliver: log, problems: {remind: 2d, clear_after: 4}, answer: text")
    environ = {**ENVIRON, "HEARTBEATD_SET__agents__ops__heartbeat__problems__after": "5"}
    found = read(tmp_path, text.replace(BEAT, "problems: {clear_after: 1}"), environ).settings.heartbeats["ops"]
    assert (found.problems_remind, found.problems_after, found.clear_after) == (timedelta(days=2), 5, 1)
    assert found.answer == "text"


@pytest.mark.parametrize(
    ("written", "advice", "rule"),
    [
        ("on_failure: {after: 4, remind: 6h}", "move its keys there: problems: {after: 4, remind: 6h}", (4, 6, 2)),
        ("on_failure: {deliver: [log]}", "move its keys there: problems: {deliver: [log]}", (2, 24, 2)),
        ("on_failure: none", "write problems: {after: none}", (0, 24, 2)),
        ("on_failure:", "write problems: {after: 2}", (2, 24, 2)),
        ("conditions: {remind: 2h, clear_after: 5}", "move its keys there: problems: {remind: 2h, clear_after: 5}", (2, 2, 5)),
        ("conditions: {remind_critical: 1h, clear_after: 3}", "move its keys there: problems: {clear_after: 3}", (2, 24, 3)),
        ("conditions: 12h", "write problems: {after: 2}", (2, 24, 2)),
    ],
)
def test_the_error_for_a_former_name_is_right_when_it_is_followed(
    tmp_path: Path, written: str, advice: str, rule: tuple[int, int, int]
) -> None:
    former = written.partition(":")[0]
    said = f"config.yaml:11:7: agents.ops.heartbeat.{former}: this key is called problems now; {advice}"
    assert complaints(tmp_path, fleet(beat=written), ENVIRON) == [said]
    found = ops(tmp_path, beat=advice[advice.index("problems") :])
    assert (found.problems_after, found.problems_remind, found.clear_after) == (rule[0], timedelta(hours=rule[1]), rule[2])


def test_each_former_name_is_named_once_where_it_is_written(tmp_path: Path) -> None:
    """Those in `defaults` are inherited, and those beside `problems` are to be joined with it."""
    text = FLEET.replace("deliver: log", "deliver: log, on_failure: {after: 4}").replace(BEAT, "problems: {remind: 2h}")
    found = complaints(tmp_path, text + "cron: {tick: {every: 1h, command: x, on_failure: {pause_after: 5}}}\n", ENVIRON)
    assert [each.partition(": ")[2] for each in found] == [
        "defaults.heartbeat.on_failure: this key is called problems now; move its keys there: problems: {after: 4}",
        "cron.tick.on_failure: this key is called problems now; move its keys there: problems: {pause_after: 5}",
    ]


def test_memory_and_the_length_of_a_prompt_are_read(tmp_path: Path) -> None:
    found = ops(tmp_path, beat="on_empty: run\n      memory: TODO.md\n      max_input_tokens: 8k")
    assert (found.memory, found.max_input_tokens) == (("TODO.md",), 8000)
    assert (ops(tmp_path).memory, ops(tmp_path).max_input_tokens) == ((), 50_000)


@pytest.mark.parametrize(
    ("beat", "keep"),
    [
        ("isolated_session: true", 0),
        ("isolated_session: false", 8),
        ("isolated_session: false\n      session_keep: 20", 20),
    ],
)
def test_only_a_session_that_is_not_isolated_keeps_messages(tmp_path: Path, beat: str, keep: int) -> None:
    assert ops(tmp_path, beat=beat).session_keep == keep


def test_an_inherited_key_without_effect_is_no_error(tmp_path: Path) -> None:
    shared = "provider: work, max_output_tokens: 8k, session_keep: 4, isolated_session: false"
    text = fleet("runner: {kind: command, argv: [cat]}").replace("deliver: log", f"deliver: log, {shared}")
    assert read(tmp_path, text, ENVIRON).warnings == ()


@pytest.mark.parametrize(("written", "amount"), [("1", 1), ("4096", 4096), ("2k", 2000), ("1m", 1_000_000)])
def test_an_amount_of_tokens_has_several_forms(tmp_path: Path, written: str, amount: int) -> None:
    runner = ops(tmp_path, beat=f"max_output_tokens: {written}").runner
    assert isinstance(runner, ModelRunner)
    assert runner.max_output_tokens == amount


@pytest.mark.parametrize(
    ("written", "price"),
    [
        ("{input: 2, output: 10}", Price(2.0, 10.0, 2.0, 2.5, 4.0)),
        ("{input: 2, output: 10, cache_read: 0.2}", Price(2.0, 10.0, 0.2, 2.5, 4.0)),
        ("{input: 2, output: 10, cache_write: 4}", Price(2.0, 10.0, 2.0, 4.0, 4.0)),
        ("{input: 2, output: 10, cache_read: 0, cache_write: 0}", Price(2.0, 10.0, 0.0, 0.0, 4.0)),
    ],
)
def test_cache_reads_cost_as_much_as_input_and_writes_a_quarter_more(tmp_path: Path, written: str, price: Price) -> None:
    text = FLEET.replace("{input: 1, output: 5}", written)
    assert read(tmp_path, text, ENVIRON).settings.prices["claude-haiku-5-5"] == price


# fmt: off
OWN = 'runner: {kind: command, argv: [cat]}\n    heartbeat:\n'
FAULTS = [
    # a text of the valid file, the text in its place, and the resulting error
    ('{kind: anthropic}\n', '{}\n', 'config.yaml:9:5: agents.ops.runner.kind: is missing; write kind: anthropic, openai, claude-code, command, http or python'),
    ('{kind: anthropic}\n', '\n', 'config.yaml:9:12: agents.ops.runner: this must be a map of keys with values; write {kind: anthropic}'),
    ('{kind: anthropic}\n', 'claude\n', "config.yaml:9:13: agents.ops.runner.kind: 'claude' is not allowed here; did you mean claude-code?"),
    ('{kind: anthropic}\n', 'my-agent\n', "config.yaml:9:13: agents.ops.runner.kind: 'my-agent' is not allowed here; write anthropic, openai, claude-code, command, http or python"),
    ('{kind: anthropic}\n', 'http\n', 'config.yaml:9:5: agents.ops.runner.url: is missing; write url: "https://..."'),
    ('{kind: anthropic}\n', '5\n', 'config.yaml:9:13: agents.ops.runner: this must be a map of keys with values; write {kind: anthropic}'),
    ('{kind: anthropic}\n', '{kind: claude-code, argv: [claude]}\n', 'config.yaml:9:33: agents.ops.runner.argv: unknown key here; argv is for kind: command'),
    ('{kind: anthropic}\n', '{kind: claude-code, allow: [--verbose]}\n', "config.yaml:9:41: agents.ops.runner.allow[0]: '--verbose' is not a rule of Claude Code; write Read, or Bash(df:*)"),
    ('{kind: anthropic}\n', 'claude-code\n    model: --verbose\n', "config.yaml:10:12: agents.ops.model: '--verbose' would be an option of Claude Code; write the name of a model"),
    ('{kind: anthropic}\n    heartbeat:\n', 'claude-code\n    heartbeat:\n      model: -x\n', "config.yaml:11:14: agents.ops.heartbeat.model: '-x' would be an option of Claude Code; write the name of a model"),
    ('{kind: anthropic}\n', 'claude-code\n    fallbacks: [-x]\n', "config.yaml:10:17: agents.ops.fallbacks[0]: '-x' would be an option of Claude Code; write the name of a model"),
    ('{kind: anthropic}\n', '{kind: claude}\n', "config.yaml:9:20: agents.ops.runner.kind: 'claude' is not allowed here; did you mean claude-code?"),
    ('{kind: anthropic}\n', '{kind: 5}\n', "config.yaml:9:20: agents.ops.runner.kind: '5' is not allowed here; write anthropic, openai, claude-code, command, http or python"),
    ('{kind: anthropic}\n', '{kind: anthropic, argv: [cat]}\n', 'config.yaml:9:31: agents.ops.runner.argv: unknown key here; argv is for kind: command'),
    ('{kind: anthropic}\n', '{kind: anthropic, povider: work}\n', 'config.yaml:9:31: agents.ops.runner.povider: unknown key; did you mean provider?'),
    ('{kind: anthropic}\n', '{kind: anthropic, provider: wrk}\n', "config.yaml:9:41: agents.ops.runner.provider: 'wrk' is not a declared provider; did you mean work?"),
    ('{kind: anthropic}\n', '{kind: anthropic, provider: local}\n', 'config.yaml:9:5: agents.ops.runner: the provider local is of kind openai; write runner: {kind: openai, provider: local}'),
    ('{kind: anthropic}\n', '{kind: openai}\n', 'config.yaml:9:5: agents.ops.runner: no provider openai is declared; write providers: {openai: {api_key: "${OPENAI_API_KEY}"}}'),
    ('{kind: anthropic}\n', '{kind: openai, provider: local}\n', 'config.yaml:8:3: agents.ops.model: is missing; write model: NAME, with a model of provider local'),
    (BEAT, 'provider: local', 'config.yaml:8:3: agents.ops.model: is missing; write model: NAME, with a model of provider local'),
    (BEAT, 'provider: lcal', "config.yaml:11:17: agents.ops.heartbeat.provider: 'lcal' is not a declared provider; did you mean local?"),
    ('heartbeat: {interval: 30m, deliver', 'heartbeat: {schedule: "*/2 * * * *", deliver', 'config.yaml:6:34: defaults.heartbeat.schedule: its shortest interval is 2m, but limits.min_interval is 5m; space the times out, or lower the limit'),
    (BEAT, 'interval: 1m', 'config.yaml:11:17: agents.ops.heartbeat.interval: 1m is below limits.min_interval, which is 5m; write 5m or more, or lower the limit'),
    (BEAT, 'session_keep: 8', 'config.yaml:11:21: agents.ops.heartbeat.session_keep: an isolated session keeps no messages; remove session_keep, or write isolated_session: false too'),
    (BEAT, 'isolated_session: false\n      session_keep: 7', 'config.yaml:12:21: agents.ops.heartbeat.session_keep: 7 is not a multiple of 2; write a number such as 8'),
    (BEAT, 'isolated_session: false\n      session_keep: 0', 'config.yaml:12:21: agents.ops.heartbeat.session_keep: 0 is out of range; write 2 or more'),
    (BEAT, 'max_output_tokens: 0', 'config.yaml:11:26: agents.ops.heartbeat.max_output_tokens: 0 is out of range; write 1 or more'),
    (BEAT, 'max_output_tokens: 2m', "config.yaml:11:26: agents.ops.heartbeat.max_output_tokens: '2m' is out of range; write 1000000 or less"),
    (BEAT, 'max_output_tokens: 2K', "config.yaml:11:26: agents.ops.heartbeat.max_output_tokens: '2K' is not an amount of tokens; write 2000, 200k or 1m"),
    (BEAT, 'max_output_tokens: 2.5', 'config.yaml:11:26: agents.ops.heartbeat.max_output_tokens: 2.5 is not an amount of tokens; write 2000, 200k or 1m'),
    (BEAT, 'max_output_tokens: true', 'config.yaml:11:26: agents.ops.heartbeat.max_output_tokens: true is not an amount of tokens; write 2000, 200k or 1m'),
    (BEAT, 'max_input_tokens: 0', 'config.yaml:11:25: agents.ops.heartbeat.max_input_tokens: 0 is out of range; write 1 or more'),
    (BEAT, 'memory: TODO.md', 'config.yaml:11:15: agents.ops.heartbeat.memory: memory files are read only in runs without a checklist, which are skipped here; remove memory, or write on_empty: run too'),
    (BEAT, 'memory: [../TODO.md]', "config.yaml:11:16: agents.ops.heartbeat.memory[0]: '../TODO.md' is outside the workspace; write the name of a file inside it"),
    (BEAT, 'precheck:', 'config.yaml:11:16: agents.ops.heartbeat.precheck.command: is missing; write command: ./new-mail.sh, or one of imap, http, rss, git, calendar, files, disk'),
    (BEAT, 'precheck: {unchanged: skip}', 'config.yaml:11:7: agents.ops.heartbeat.precheck.command: is missing; write command: ./new-mail.sh, or one of imap, http, rss, git, calendar, files, disk'),
    (BEAT, 'precheck: ""', 'config.yaml:11:17: agents.ops.heartbeat.precheck: the string is empty; write a value'),
    (BEAT, 'precheck: [./look]', 'config.yaml:11:17: agents.ops.heartbeat.precheck: this must be a map of keys with values; write {command: ./new-mail.sh}'),
    (BEAT, 'precheck: {command: x, unchanged: maybe}', "config.yaml:11:41: agents.ops.heartbeat.precheck.unchanged: 'maybe' is not allowed here; write skip or run"),
    (BEAT, 'precheck: {command: x, on_error: fail}', "config.yaml:11:40: agents.ops.heartbeat.precheck.on_error: 'fail' is not allowed here; write skip or run"),
    (BEAT, 'precheck: {command: x, timeout: soon}', "config.yaml:11:39: agents.ops.heartbeat.precheck.timeout: 'soon' is not a duration; write 90s, 30m or 1h30m"),
    (BEAT, 'timeout: 20s\n      precheck: {command: x, timeout: soon}', "config.yaml:12:39: agents.ops.heartbeat.precheck.timeout: 'soon' is not a duration; write 90s, 30m or 1h30m"),
    (BEAT, 'precheck: {command: x, timeout: 5m}', "config.yaml:11:39: agents.ops.heartbeat.precheck.timeout: 5m leaves the agent no time; write less than the whole timeout of 5m"),
    (BEAT, 'precheck: {command: x, unchanged: Skip}', "config.yaml:11:41: agents.ops.heartbeat.precheck.unchanged: 'Skip' is not allowed here; write skip or run"),
    (BEAT, 'precheck: {command: x, unchanged: 6h}', "config.yaml:11:41: agents.ops.heartbeat.precheck.unchanged: '6h' is not allowed here; write skip or run"),
    (BEAT, 'precheck: {command: x, unchanged: }', 'config.yaml:11:41: agents.ops.heartbeat.precheck.unchanged: this must be a map of keys with values; write {skip: true}'),
    (BEAT, 'precheck: {command: x, unchanged: {skip: no}}', "config.yaml:11:48: agents.ops.heartbeat.precheck.unchanged.skip: 'no' is not true or false; write true or false"),
    (BEAT, 'precheck: {command: x, unchanged: {max_age: 0s}}', "config.yaml:11:51: agents.ops.heartbeat.precheck.unchanged.max_age: '0s' is zero; write 90s, 30m or 1h30m"),
    (BEAT, 'precheck: {command: x, unchanged: {max_age: 6}}', 'config.yaml:11:51: agents.ops.heartbeat.precheck.unchanged.max_age: 6 has no unit; write 90s, 30m or 1h30m'),
    (BEAT, 'precheck: {command: x, unchanged: {skip: false, max_age: 6h}}', "config.yaml:11:64: agents.ops.heartbeat.precheck.unchanged.max_age: runs are not skipped here; remove max_age, or write skip: true"),
    (BEAT, 'precheck: {command: x, unchanged: skip, max_age: 6h}', 'config.yaml:11:47: agents.ops.heartbeat.precheck.max_age: unknown key here; it belongs under agents.ops.heartbeat.precheck.unchanged'),
    (BEAT, 'precheck: {command: x, max_age: 6h}', "config.yaml:11:30: agents.ops.heartbeat.precheck.max_age: unknown key here; it belongs under agents.ops.heartbeat.precheck.unchanged"),
    (BEAT, 'precheck: {command: x, unchanged: {at_least_every: 6h}}', 'config.yaml:11:42: agents.ops.heartbeat.precheck.unchanged.at_least_every: unknown key; write skip or max_age'),
    (BEAT, 'precheck: {command: x, confirm: 2}', "config.yaml:11:39: agents.ops.heartbeat.precheck.confirm: only runs that an unchanged output would skip are confirmed; remove confirm, or write unchanged: skip too"),
    (BEAT, 'precheck: {command: x, unchanged: skip, confirm: 4}', 'config.yaml:11:56: agents.ops.heartbeat.precheck.confirm: 4 is out of range; write 3 or less'),
    (BEAT, 'precheck: {command: x, unchanged: skip, confirm: true}', 'config.yaml:11:56: agents.ops.heartbeat.precheck.confirm: true is not a whole number; write a number such as 1'),
    (BEAT, 'answer: json', "config.yaml:11:15: agents.ops.heartbeat.answer: 'json' is not allowed here; write structured or text"),
    (BEAT, 'answer: strutured', "config.yaml:11:15: agents.ops.heartbeat.answer: 'strutured' is not allowed here; did you mean structured?"),
    (BEAT, 'answer: yes', "config.yaml:11:15: agents.ops.heartbeat.answer: 'yes' is not allowed here; write structured or text"),
    (BEAT, 'format: json', 'config.yaml:11:7: agents.ops.heartbeat.format: unknown key; `heartbeatd docs reference` lists all keys'),
    (BEAT, 'problems: {remind: 0s}', "config.yaml:11:26: agents.ops.heartbeat.problems.remind: '0s' is zero; write 90s, 30m or 1h30m"),
    (BEAT, 'problems: {remind_critical: 6}', 'config.yaml:11:18: agents.ops.heartbeat.problems.remind_critical: this key no longer exists; remove it; `remind` applies to critical problems too, up to 6h'),
    (BEAT, 'problems: {after: 0}', 'config.yaml:11:25: agents.ops.heartbeat.problems.after: 0 is not a number from 1 to 1,000; write 2 or none'),
    (BEAT, 'problems: {clear_after: 0}', 'config.yaml:11:31: agents.ops.heartbeat.problems.clear_after: 0 is out of range; write 1 or more'),
    (BEAT, 'problems: {clear_after: 10m}', "config.yaml:11:31: agents.ops.heartbeat.problems.clear_after: '10m' is not a whole number; write a number such as 2"),
    (BEAT, 'problems: {repeat_interval: 12h}', 'config.yaml:11:18: agents.ops.heartbeat.problems.repeat_interval: unknown key; write after, remind, deliver, clear_after or pause_after'),
    (BEAT, 'problems: {resolve_after: 3}', 'config.yaml:11:18: agents.ops.heartbeat.problems.resolve_after: unknown key; write after, remind, deliver, clear_after or pause_after'),
    (BEAT, 'problems: {show_resolved: false}', "config.yaml:11:18: agents.ops.heartbeat.problems.show_resolved: unknown key here; it belongs under agents.ops.heartbeat"),
    (BEAT, 'problem: {remind: 12h}', "config.yaml:11:7: agents.ops.heartbeat.problem: unknown key; did you mean problems?"),
    (BEAT, 'remind: 12h', "config.yaml:11:7: agents.ops.heartbeat.remind: unknown key here; it belongs under agents.ops.heartbeat.problems"),
    (BEAT, 'repeat_interval: 12h', 'config.yaml:11:7: agents.ops.heartbeat.repeat_interval: unknown key; `heartbeatd docs reference` lists all keys'),
    (BEAT, 'clear_after: 3', "config.yaml:11:7: agents.ops.heartbeat.clear_after: unknown key here; it belongs under agents.ops.heartbeat.problems"),
    (BEAT, 'resolve_after: 3', 'config.yaml:11:7: agents.ops.heartbeat.resolve_after: unknown key; `heartbeatd docs reference` lists all keys'),
    (BEAT, 'send_resolved: false', 'config.yaml:11:7: agents.ops.heartbeat.send_resolved: unknown key; `heartbeatd docs reference` lists all keys'),
    (BEAT, 'show_resolved: 0', 'config.yaml:11:22: agents.ops.heartbeat.show_resolved: 0 is not true or false; write true or false'),
    (BEAT, 'precheck: {command: x, timout: 5s}', 'config.yaml:11:30: agents.ops.heartbeat.precheck.timout: unknown key; did you mean timeout?'),
    (BEAT, 'decide:', 'config.yaml:11:14: agents.ops.heartbeat.decide.model: is missing; write model: claude-haiku-5-5'),
    (BEAT, 'decide: {provider: work}', 'config.yaml:11:7: agents.ops.heartbeat.decide.model: is missing; write model: claude-haiku-5-5'),
    (BEAT, 'decide: always', 'config.yaml:11:15: agents.ops.heartbeat.decide: this must be a map of keys with values; write {model: claude-haiku-5-5}'),
    (BEAT, 'decide: {model: q, povider: x}', 'config.yaml:11:26: agents.ops.heartbeat.decide.povider: unknown key; did you mean provider?'),
    (BEAT, 'decide: {model: q, provider: lcal}', "config.yaml:11:36: agents.ops.heartbeat.decide.provider: 'lcal' is not a declared provider; did you mean local?"),
    (RUNNER + '\n    heartbeat:\n', OWN + '      provider: work\n', 'config.yaml:11:17: agents.ops.heartbeat.provider: a runner of kind command calls no model; remove provider, or write runner: {kind: anthropic}'),
    (RUNNER + '\n    heartbeat:\n', OWN + '      provider: work\n      decide: {model: q, provider: work}\n', 'config.yaml:11:17: agents.ops.heartbeat.provider: a runner of kind command calls no model; remove provider, or write runner: {kind: anthropic}'),
    (RUNNER + '\n    heartbeat:\n', OWN + '      max_output_tokens: 1k\n', 'config.yaml:11:26: agents.ops.heartbeat.max_output_tokens: a runner of kind command calls no model and sets its own limits; remove max_output_tokens'),
    (RUNNER + '\n    heartbeat:\n', OWN + '      async_timeout: 10m\n', 'config.yaml:11:22: agents.ops.heartbeat.async_timeout: a runner of kind command answers immediately; remove async_timeout'),
    (BEAT, 'async_timeout: 25h', "config.yaml:11:22: agents.ops.heartbeat.async_timeout: '25h' is too long; write 24h or less"),
    (BEAT, 'async_timeout: 0s', "config.yaml:11:22: agents.ops.heartbeat.async_timeout: '0s' is zero; write 90s, 30m or 1h30m"),
    (BEAT, 'strip_reasoning: always', "config.yaml:11:24: agents.ops.heartbeat.strip_reasoning: 'always' is not true or false; write true or false"),
    (RUNNER + '\n    heartbeat:\n', OWN + '      isolated_session: false\n', 'config.yaml:11:25: agents.ops.heartbeat.isolated_session: a command keeps its own session and gets no earlier messages; remove isolated_session'),
    (RUNNER + '\n    heartbeat:\n', OWN + '      interval: 1m\n      decide: {model: q}\n', 'config.yaml:11:17: agents.ops.heartbeat.interval: 1m is below limits.min_interval, which is 5m; write 5m or more, or lower the limit'),
    ('{kind: anthropic}\n', '{kind: http}\n', 'config.yaml:9:5: agents.ops.runner.url: is missing; write url: "https://..."'),
    ('{kind: anthropic}\n', '{kind: http, url: host/run}\n', 'config.yaml:9:31: agents.ops.runner.url: this is not the address of a server; write http:// or https:// with a host'),
    ('{kind: anthropic}\n', '{kind: http, url: "${NOPE}"}\n', 'config.yaml:9:31: agents.ops.runner.url: NOPE is not set; export it before heartbeatd starts, or write it into the env_file'),
    ('{kind: anthropic}\n', '{kind: http, url: "http://a", headers: {X: "${NOPE}"}}\n', 'config.yaml:9:56: agents.ops.runner.headers.X: NOPE is not set; export it before heartbeatd starts, or write it into the env_file'),
    ('{kind: anthropic}\n', '{kind: http, url: "http://a", headers: [X]}\n', 'config.yaml:9:52: agents.ops.runner.headers: this must be a map of names with values; write {NAME: VALUE}'),
    ('{kind: anthropic}\n', '{kind: http, url: "http://a", headers: {a b: c}}\n', "config.yaml:9:53: agents.ops.runner.headers.a b: 'a b' is not the name of a header; write a name such as X-Token"),
    ('{kind: anthropic}\n', '{kind: http, url: "http://a", headers: {Host: c}}\n', 'config.yaml:9:53: agents.ops.runner.headers.Host: the daemon sets this header itself; remove it'),
    ('{kind: anthropic}\n', '{kind: http, url: "http://a", headers: {a: c, A: c}}\n', 'config.yaml:9:43: agents.ops.runner.headers: A is given twice; upper and lower case are the same; remove one of them'),
    ('{kind: anthropic}\n', '{kind: http, url: "http://a", headers: {a: 5}}\n', 'config.yaml:9:56: agents.ops.runner.headers.a: this is not read as text; put it in quotes'),
    ('{kind: anthropic}\n', '{kind: http, url: "http://a", headers: {a: "c\\nd"}}\n', 'config.yaml:9:56: agents.ops.runner.headers.a: a header can contain only ASCII letters, digits and punctuation, on one line'),
    ('{kind: anthropic}\n', '{kind: python}\n', 'config.yaml:9:5: agents.ops.runner.call: is missing; write call: "package.module:function"'),
    ('{kind: anthropic}\n', '{kind: python, call: answer}\n', 'config.yaml:9:34: agents.ops.runner.call: \'answer\' does not name a callable; write "package.module:function"'),
    ('{kind: anthropic}\n', '{kind: python, call: "a:b", in_process: 1}\n', 'config.yaml:9:53: agents.ops.runner.in_process: 1 is not true or false; write true or false'),
    ('kind: openai, ', '', 'config.yaml:3:3: providers.local.kind: is missing; write kind: openai or kind: anthropic, because the name is neither'),
    ('kind: openai', 'kind: ollama', "config.yaml:3:17: providers.local.kind: 'ollama' is not allowed here; write anthropic or openai"),
    ('https://models.', 'https://me:canary@models.', 'config.yaml:4:56: providers.work.base_url: this address contains a login and api_key is set too, but only one of them can be sent; keep one of them'),
    ('https://models.', 'https://:canary@models.', 'config.yaml:4:56: providers.work.base_url: this address contains a login and api_key is set too, but only one of them can be sent; keep one of them'),
    ('"http://127.0.0.1:11434/v1"', 'localhost', 'config.yaml:3:35: providers.local.base_url: this is not the address of a server; write http:// or https:// with a host'),
    ('api_key: "${KEY}"}', 'key: k}', 'config.yaml:2:15: providers.anthropic.key: unknown key; write kind, api_key or base_url'),
    ('api_key: "${KEY}"}', 'api_key: 5}', 'config.yaml:2:24: providers.anthropic.api_key: this is not read as text; put it in quotes'),
    ('api_key: "${KEY}"}', 'api_key: ""}', 'config.yaml:2:24: providers.anthropic.api_key: the string is empty; write a value'),
    ('api_key: "${KEY}"}', 'api_key: "${KEY"}', 'config.yaml:2:24: providers.anthropic.api_key: this contains an invalid reference; write ${NAME} or ${file:PATH}'),
    ('api_key: "${KEY}"}', 'api_key: "${NOPE}"}', 'config.yaml:2:24: providers.anthropic.api_key: NOPE is not set; export it before heartbeatd starts, or write it into the env_file'),
    ('api_key: "${KEY}"}', 'api_key: "${KEY} "}', 'config.yaml:2:24: providers.anthropic.api_key: a key is sent in a header; use only ASCII letters, digits and punctuation, no spaces'),
    ('  local:', '  lo cal:', "config.yaml:3:3: providers.lo cal: 'lo cal' is not a name; use 1 to 63 characters from A-Z a-z 0-9 . _ -, not starting with . or -"),
    ('{input: 0, output: 0}', '5', 'config.yaml:5:54: prices.q: this must be a map of keys with values; write {input: 1.0}'),
    ('input: 0, output: 0', 'input: 0', 'config.yaml:5:51: prices.q.output: is missing; write output: 5.0'),
    ('input: 0, output: 0', 'output: 0', 'config.yaml:5:51: prices.q.input: is missing; write input: 1.0'),
    ('input: 0, output: 0', 'input: 0, output: free', "config.yaml:5:73: prices.q.output: 'free' is not a number; write a number such as 5.0"),
    ('input: 0, output: 0', 'input: 0, output: -1', 'config.yaml:5:73: prices.q.output: -1 is out of range; write 0 or more'),
    ('input: 0, output: 0', 'input: 0, output: .inf', 'config.yaml:5:73: prices.q.output: inf is not a number; write a number such as 5.0'),
    ('input: 0, output: 0', 'input: 0, output: .nan', 'config.yaml:5:73: prices.q.output: nan is not a number; write a number such as 5.0'),
    ('input: 0, output: 0', 'input: 0, output: true', 'config.yaml:5:73: prices.q.output: true is not a number; write a number such as 5.0'),
    ('input: 0, output: 0', 'input: 0, output: 0, cached: 1', 'config.yaml:5:76: prices.q.cached: unknown key; did you mean cache_read?'),
]
WARNINGS = [
    ('  anthropic: {api_key: "${KEY}"}\n', '', 'config.yaml:8:5: agents.ops.runner: there is no key for anthropic, so its runs fail; write providers: {anthropic: {api_key: "${ANTHROPIC_API_KEY}"}}'),
    ('{api_key: "${KEY}"}', '{}', 'config.yaml:2:3: providers.anthropic: has no key, so its runs fail; write api_key: "${ANTHROPIC_API_KEY}"'),
    ('{api_key: "${KEY}"}', '{api_key: k}', 'config.yaml:2:24: providers.anthropic.api_key: this secret is written in the file itself; write ${NAME} or ${file:PATH} instead'),
    ('models.example.org', 'models.example.org/v1/', 'config.yaml:4:56: providers.work.base_url: /v1/messages is added to this address; remove the /v1 at its end'),
    ('work: {kind: anthropic, api_key: "${KEY}"', 'work: {kind: anthropic, api_key: "${NOPE}"', 'config.yaml:4:36: providers.work.api_key: NOPE is not set; export it before heartbeatd starts, or write it into the env_file'),
    (BEAT, 'model: large', 'config.yaml:11:14: agents.ops.heartbeat.model: this model has no price, so its cost is not counted; write prices: {large: {input: 1.0, output: 5.0}}, in USD per million tokens'),
    (BEAT, 'decide: {model: "a:1b"}', 'config.yaml:11:23: agents.ops.heartbeat.decide.model: this model has no price, so its cost is not counted; write prices: {"a:1b": {input: 1.0, output: 5.0}}, in USD per million tokens'),
    (BEAT, 'model: q\n      provider: openai', 'config.yaml:2:3: providers.openai: has no key, so its runs fail; write api_key: "${OPENAI_API_KEY}"'),
]
# fmt: on


def test_the_base_config_of_the_runner_tests_is_valid(tmp_path: Path) -> None:
    assert warnings(tmp_path, FLEET, ENVIRON) == []


@loop_over(("right", "wrong", "line"), FAULTS)
def test_an_error_has_its_position_and_advice(tmp_path: Path, right: str, wrong: str, line: str) -> None:
    assert right in FLEET
    assert "\n".join(complaints(tmp_path, FLEET.replace(right, wrong, 1), ENVIRON)) == line


@loop_over(("right", "wrong", "line"), WARNINGS)
def test_a_setting_that_will_fail_later_is_a_warning(tmp_path: Path, right: str, wrong: str, line: str) -> None:
    assert right in FLEET
    text = FLEET.replace(right, wrong, 1)
    if "providers.openai" in line:
        text = text.replace("providers:\n", "providers:\n  openai: {}\n")
    assert warnings(tmp_path, text, ENVIRON) == [line]


def test_the_provider_for_jobs_is_checked_also_if_that_of_the_heartbeat_is_wrong(tmp_path: Path) -> None:
    job = "cron: {report: {every: 1h, prompt: Report, agent: ops}}\n"
    assert complaints(tmp_path, fleet("runner: {kind: openai}\n    model: q", "provider: lcal") + job, ENVIRON) == [
        'config.yaml:9:5: agents.ops.runner: no provider openai is declared; write providers: {openai: {api_key: "${OPENAI_API_KEY}"}}',
        "config.yaml:12:17: agents.ops.heartbeat.provider: 'lcal' is not a declared provider; did you mean local?",
    ]


COSTLY = (
    "agents.ops.heartbeat.decide: without a precheck, this model gets no more facts than the agent's own model, and it is not"
    " cheaper; remove decide, add a precheck, or write a cheaper model"
)


@loop_over(
    ("runner", "beat", "is_costly"),
    [
        (RUNNER, "decide: {model: claude-haiku-5-5}", True),
        (RUNNER, "decide: {model: same}", True),
        (RUNNER, "decide: {model: dear}", True),
        (RUNNER, "decide: {model: claude-haiku-5-5, provider: work}", True),
        (f"{RUNNER}\n    context: [SOUL.md]", "decide: {model: same}\n      light_context: true", True),
        ("runner: {kind: openai, provider: local}\n    model: q", "decide: {model: q}", True),
        (RUNNER, "decide: {model: q}", False),
        (RUNNER, "decide: {model: same}\n      precheck: ./look", False),
        (RUNNER, "decide: {model: same}\n      prompt: Be brief.", False),
        (RUNNER, "decide: {model: same}\n      isolated_session: false", False),
        (RUNNER, "decide: {model: same}\n      enabled: false", False),
        (f"{RUNNER}\n    context: [SOUL.md]", "decide: {model: same}", False),
        ("runner: {kind: openai, provider: local}\n    model: q", "decide: {model: same, provider: local}", False),
        ("runner: {kind: command, argv: [cat]}\n    model: same", "decide: {model: same}", False),
    ],
)
def test_a_decision_that_costs_as_much_as_the_run_is_a_warning(tmp_path: Path, runner: str, beat: str, is_costly: bool) -> None:
    text = fleet(runner, beat).replace("prices: {", "prices: {same: {input: 1, output: 5}, dear: {input: 3, output: 15}, ")
    found = [line.partition(": ")[2] for line in warnings(tmp_path, text, ENVIRON) if ".decide: " in line]
    assert found == ([COSTLY] if is_costly else [])


def test_a_decision_with_a_model_without_prices_is_no_warning_about_its_cost(tmp_path: Path) -> None:
    (line,) = warnings(tmp_path, fleet(beat="decide: {model: new}"), ENVIRON)
    assert "this model has no price" in line
    both = warnings(tmp_path, fleet(beat="model: new\n      decide: {model: new}"), ENVIRON)
    assert sum("this model has no price" in line for line in both) == 1


def test_a_costly_decision_in_the_defaults_is_one_warning(tmp_path: Path) -> None:
    text = FLEET.replace("deliver: log", "deliver: log, decide: {model: claude-haiku-5-5}") + "  more: {}\n  night: {}\n"
    (line,) = warnings(tmp_path, text, ENVIRON)
    assert line == f"config.yaml:6:53: {COSTLY.replace('agents.ops', 'defaults')}"


def test_an_invalid_price_is_not_also_reported_as_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, FLEET.replace("{input: 1, output: 5}", "{input: -1, output: 5}"), ENVIRON)
    assert [complaint.path for complaint in refused.value.errors] == ["prices.claude-haiku-5-5.input"]
    assert refused.value.warnings == ()


def test_a_disabled_agent_needs_no_key_no_price_and_no_set_secret(tmp_path: Path) -> None:
    text = "agents:\n  a: {model: unknown-model, heartbeat: {interval: 30m, enabled: false, deliver: log}}\n"
    assert warnings(tmp_path, text, ENVIRON) == []
    text += '  b: {runner: {kind: http, url: "${NOPE}"}, heartbeat: {interval: 0m, deliver: log}}\n'
    assert [line.split(": ")[1] for line in warnings(tmp_path, text, ENVIRON)] == ["agents.b.runner.url"]


def test_a_key_that_many_agents_lack_is_reported_once(tmp_path: Path) -> None:
    text = "agents:\n" + "".join(
        f"  a{number}: {{model: next, heartbeat: {{interval: 30m, deliver: log}}}}\n" for number in range(3)
    )
    assert [line.split(": ")[1] for line in warnings(tmp_path, text, ENVIRON)] == [
        "agents",
        "agents.a0.runner",
        "agents.a0.model",
    ]


def test_the_minimum_interval_is_only_for_agents_that_call_a_model(tmp_path: Path) -> None:
    assert ops(tmp_path, "runner: {kind: command, argv: [cat]}", "interval: 10s").interval == timedelta(seconds=10)
    assert ops(tmp_path, 'runner: {kind: http, url: "http://a"}', "interval: 10s").interval == timedelta(seconds=10)


@pytest.mark.parametrize(
    ("fallback", "key"),
    [("{provider: anthropic, model: q}", "max_output_tokens: 8k"), ("{runner: later}", "async_timeout: 3h")],
)
def test_a_key_that_only_a_fallback_uses_is_no_error(tmp_path: Path, fallback: str, key: str) -> None:
    runner = f"runner: {{kind: command, argv: [cat]}}\n    fallbacks: {fallback}"
    text = fleet(runner, f"budget: unlimited\n      {key}") + 'runners: {later: {kind: http, url: "http://a"}}\n'
    assert read(tmp_path, text, ENVIRON).settings.heartbeats["ops"].fallbacks


def test_no_secret_of_a_provider_or_a_gateway_is_shown(tmp_path: Path) -> None:
    text = fleet('runner: {kind: http, url: "http://a/${KEY}", headers: {Authorization: "Bearer ${KEY}"}}', "decide: {model: q}")
    loaded = read(tmp_path, text, ENVIRON)
    rows = list_effective_values(tmp_path / "config.yaml", ENVIRON, (Kind.HEARTBEAT, "ops"))
    assert KEY not in f"{loaded!r} {rows}"
    shown = {row.key: row.value for row in rows}
    assert (shown["runner.url"], shown["runner.headers"]) == ("http://***", "{Authorization: Bearer ${KEY}}")


def test_reading_commands_need_no_key(tmp_path: Path) -> None:
    read(tmp_path, FLEET, ENVIRON)
    runner = load_config(tmp_path / "config.yaml", {}, resolve_secrets=False).settings.heartbeats["ops"].runner
    assert isinstance(runner, ModelRunner)
    assert reveal(runner.provider.api_key) == ""


@pytest.mark.parametrize(
    ("runner", "beat", "expected"),
    [
        (
            "context: []",
            BEAT,
            {
                "runner.kind": "anthropic",
                "runner.provider": "anthropic",
                "model": "claude-haiku-5-5",
                "heartbeat.session_keep": "8",
                "heartbeat.precheck": "none",
            },
        ),
        (
            RUNNER,
            "provider: local\n      model: q\n      decide: {model: q}",
            {"heartbeat.provider": "local", "heartbeat.decide.model": "q", "heartbeat.decide.provider": "local"},
        ),
        (RUNNER, "precheck: ./look", {"heartbeat.precheck": "./look"}),
        (
            RUNNER,
            "timeout: 40s\n      precheck: {command: ./look}",
            {"heartbeat.precheck.command": "./look", "heartbeat.precheck.unchanged": "run", "heartbeat.precheck.timeout": "20s"},
        ),
        (
            RUNNER,
            "precheck: {command: ./look, unchanged: {skip: true}}\n      problems: {remind: 2h}",
            {
                "heartbeat.answer": "structured",
                "heartbeat.ask_again": "2",
                "heartbeat.problems.remind": "2h",
                "heartbeat.problems.clear_after": "2",
                "heartbeat.show_resolved": "true",
                "heartbeat.precheck.unchanged.skip": "true",
                "heartbeat.precheck.unchanged.max_age": "none",
                "heartbeat.precheck.confirm": "1",
            },
        ),
        (
            "runner: {kind: command, argv: [cat]}",
            BEAT,
            {"heartbeat.answer": "text", "heartbeat.ask_again": "0", "heartbeat.problems.remind": "24h"},
        ),
        ("runner: claude-code", BEAT, {"runner.kind": "claude-code", "runner.allow": "[]", "heartbeat.answer": "structured"}),
        (
            'runner: {kind: python, call: "a:b"}',
            "isolated_session: false",
            {"runner.call": "a:b", "runner.in_process": "false", "heartbeat.session_keep": "8", "heartbeat.provider": "none"},
        ),
        (
            "runner: {kind: command, argv: [./ask], account: {max_runs: 5 per 1h}}\n    model: m\n    effort: high\n    fallbacks: {provider: local, model: q}",
            BEAT,
            {
                "runner.account.name": "ask",
                "fallbacks.effort": "none",
                "fallbacks.runner": "none",
                "heartbeat.model": "m",
                "heartbeat.effort": "high",
                "heartbeat.fallbacks": "[local/q]",
                "heartbeat.misfire.grace": "10m",
            },
        ),
    ],
)
def test_effective_values_show_the_runner_and_provider_of_an_agent(
    tmp_path: Path, runner: str, beat: str, expected: dict[str, str]
) -> None:
    ops(tmp_path, runner, beat)
    rows = {row.key: row.value for row in list_effective_values(tmp_path / "config.yaml", ENVIRON, (Kind.HEARTBEAT, "ops"))}
    assert expected.items() <= rows.items()


def test_the_schema_distinguishes_runners_by_kind() -> None:
    runner = config_schema()["$defs"]["Agent"]["properties"]["runner"]
    assert runner["discriminator"]["propertyName"] == "kind"
    assert sorted(runner["discriminator"]["mapping"]) == ["anthropic", "claude-code", "command", "http", "openai", "python"]


def test_the_shipped_config_is_valid_without_a_key_and_enabling_the_assistant_takes_two_lines(tmp_path: Path) -> None:
    shipped = load_config(SHIPPED, {})
    assert shipped.warnings == ()
    assert shipped.settings.heartbeats["assistant"].enabled is False
    assert (shipped.settings.heartbeats["assistant"].workspace / "HEARTBEAT.md").is_file()
    text = SHIPPED.read_text().replace("# providers:", "providers:").replace("enabled: false", "enabled: true")
    changed = read(tmp_path, text, {"ANTHROPIC_API_KEY": KEY})
    assert changed.warnings == ()
    assert changed.settings.heartbeats["assistant"].enabled is True


COMMENTED = [line for line in SHIPPED.read_text("utf-8").splitlines() if re.match(r" *# [a-z_]+: ", line)]
OF_COMMENTED = {"TG_TOKEN": "123456:ABC", "TG_CHAT": "4711", "HC_URL": "https://hc.example.org/ping/1", "ANTHROPIC_API_KEY": KEY}


@pytest.mark.extras  # one of these lines names people, who answer in a chat
@pytest.mark.parametrize("lines", [*([line] for line in COMMENTED), COMMENTED], ids=lambda lines: ", ".join(lines).strip()[:24])
def test_each_commented_line_of_the_shipped_config_is_valid_without_its_number_sign(tmp_path: Path, lines: list[str]) -> None:
    text = SHIPPED.read_text("utf-8")
    for line in lines:
        text = text.replace(f"{line}\n", f"{line.replace('# ', '', 1)}\n")
    assert read(tmp_path, text, OF_COMMENTED).warnings == ()


def test_the_shipped_config_names_the_keys_that_are_often_added() -> None:
    wanted = {"fallbacks", "account", "postcheck", "precheck", "people", "problems", "usd_per_month", "after"}
    assert wanted <= set(re.findall(r"\b(\w+): ", SHIPPED.read_text("utf-8")))


def test_the_config_that_init_writes_calls_a_model_with_the_lines_that_it_names(tmp_path: Path) -> None:
    text = templates.STARTER_CONFIG.replace("# providers", "providers").replace("# budget", "budget")
    text = text.replace("{kind: command, argv: [echo, HEARTBEAT_OK]}", "{kind: anthropic}")
    loaded = read(tmp_path, text, {"ANTHROPIC_API_KEY": KEY})
    assert loaded.warnings == ()
    assert provider(loaded.settings.heartbeats["assistant"]) == "anthropic"


def test_two_thousand_agents_that_call_models_load_in_less_than_a_millisecond_each(tmp_path: Path) -> None:
    agent = (
        "  agent-{n}:\n    runner: {{kind: anthropic, provider: work}}\n    heartbeat:\n      provider: local\n      model: q\n"
        "      decide: {{model: q, provider: anthropic}}\n      max_output_tokens: 4k\n      isolated_session: false\n"
    )
    text = FLEET + "".join(agent.format(n=number) for number in range(2000))
    began = time.process_time()
    assert len(read(tmp_path, text, ENVIRON).settings.heartbeats) == 2001
    assert time.process_time() - began < 2
