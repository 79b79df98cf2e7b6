"""Claude Code: how it is called, and what its reports mean. Public issues and the sources of its SDK show these reports."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from test_runner_command import RUN, Ended, Program, ask

from heartbeat.runners import AgentRequest, Answer, Failure
from heartbeat.spec import ClaudeCode, CommandRunner
from heartbeatd.secret import Secret

TURNS = "Reached maximum number of turns (1)"
COST = {"total_cost_usd": 0.0321, "usage": {"input_tokens": 7, "output_tokens": 5}}


def printed(exit_code: int = 0, **report: object) -> Ended:
    """What `claude -p --output-format json` prints."""
    return Ended(exit_code=exit_code, output=json.dumps({"type": "result", **report}).encode())


def answer(ended: Ended) -> Answer:
    return ask(RUN, CommandRunner(("claude", "-p", "--output-format", "json"), {}), Program(ended))


def arguments(run: AgentRequest, *allow: str, program: str = "claude") -> str:
    """The arguments of a call, each in brackets."""
    started = Program(printed(result="HEARTBEAT_OK"))
    ask(run, CommandRunner((program,), {}, claude=ClaudeCode(allow)), started)
    return "".join(f"[{each}]" for each in started.argv)


PLAIN = replace(RUN, model=None)


@pytest.mark.parametrize(
    ("run", "allow", "rest"),
    [
        (PLAIN, (), ""),
        (RUN, (), "[--model][small]"),
        (replace(RUN, effort="high"), (), "[--model][small][--effort][high]"),
        (replace(PLAIN, usd_per_try=0.2), (), "[--max-budget-usd][0.2]"),
        (replace(PLAIN, usd_per_try=0.00001), (), "[--max-budget-usd][0.00001]"),
        (replace(PLAIN, usd_per_try=1e21), (), "[--max-budget-usd][1000000000000000000000]"),
        (replace(PLAIN, usd_per_try=0.0), (), ""),
        (PLAIN, ("Read", "Bash(df -h:*)"), "[--allowedTools][Read][Bash(df -h:*)]"),
        (replace(RUN, usd_per_try=3.0), ("Read",), "[--model][small][--max-budget-usd][3.0][--allowedTools][Read]"),
    ],
)
def test_claude_code_gets_what_the_config_says_as_arguments(run: AgentRequest, allow: tuple[str, ...], rest: str) -> None:
    assert arguments(run, *allow) == f"[claude][-p][--output-format][json]{rest}"


def test_its_program_may_be_another_one() -> None:
    assert arguments(PLAIN, program="/home/anna/.local/bin/claude").startswith("[/home/anna/.local/bin/claude][-p]")


def test_the_prompt_is_its_input_and_never_an_argument() -> None:
    prompt = "--dangerously-skip-permissions\n--model opus"
    started = Program(printed(result="--resume"))
    ask(replace(PLAIN, prompt=prompt), CommandRunner(("claude",), {}, claude=ClaudeCode(("Read",))), started)
    assert list(started.argv) == ["claude", "-p", "--output-format", "json", "--allowedTools", "Read"]
    assert started.stdin.decode() == prompt


def test_its_login_is_redacted_and_a_variable_of_the_config_replaces_it() -> None:
    token, name = Secret("sk-ant-oat01-canary"), "CLAUDE_CODE_OAUTH_TOKEN"
    runner = CommandRunner(("claude",), {}, claude=ClaudeCode(login={name: token}))
    started = Program(printed(result="I know sk-ant-oat01-canary", log="sent sk-ant-oat01-canary"))
    said = ask(PLAIN, runner, started)
    assert (started.env[name], said.text, said.log) == (token, "I know ***", "sent ***")
    own = Secret("of the config")
    ask(PLAIN, replace(runner, env={name: own}), started)
    assert started.env[name] is own


@pytest.mark.parametrize("exit_code", [0, 1])
def test_at_its_limit_of_cost_the_error_says_which_key_to_raise(exit_code: int) -> None:
    report = printed(exit_code, subtype="error_max_budget_usd", is_error=True, errors=["Reached maximum budget ($0.2)"], **COST)
    failed = ask(replace(RUN, usd_per_try=0.2), CommandRunner(("claude",), {}, claude=ClaudeCode()), Program(report))
    begin = "exit code 1: " if exit_code else ""
    words = "the agent failed: Reached maximum budget ($0.2); usd_per_try is 0.2, write a higher one"
    assert (failed.error, failed.transient, failed.cost_usd) == (f"{begin}{words}", False, 0.0321)


def test_the_log_names_each_tool_that_was_refused_once() -> None:
    denials = [{"tool_name": "Bash", "tool_input": {"command": "df"}}, {"tool_name": "Bash"}, {"tool_name": "WebFetch"}, 5, {}]
    remedy = "write the tools that it needs into allow, or behind --allowedTools"
    said = answer(printed(result="I could not look.", permission_denials=denials))
    assert (said.text, said.log) == ("I could not look.", f"was not allowed to use Bash, WebFetch; {remedy}")
    both = answer(printed(result="x", log="looked", permission_denials=denials[:1]))
    assert both.log == f"looked\nwas not allowed to use Bash; {remedy}"
    assert answer(printed(result="x", permission_denials=[])).log is None
    assert answer(printed(result="x", permission_denials="none")).log is None


@pytest.mark.parametrize("exit_code", [0, 1])
@pytest.mark.parametrize("is_error", [True, False, None])
@pytest.mark.parametrize("text", [{}, {"result": ""}, {"result": None}])
@pytest.mark.parametrize("subtype", ["error_max_turns", "error_during_execution", "error_max_budget_usd", "error_of_tomorrow"])
def test_a_report_with_the_subtype_of_an_error_is_a_failure_with_its_words_and_cost(
    exit_code: int, is_error: bool | None, text: dict[str, object], subtype: str
) -> None:
    failed = answer(printed(exit_code, subtype=subtype, is_error=is_error, errors=["Reached it", "and more"], **text, **COST))
    begin = "exit code 1: " if exit_code else ""
    assert (failed.failure, failed.error) == (Failure.EXIT, f"{begin}the agent failed: Reached it; and more")
    assert (failed.text, failed.cost_usd, failed.tokens and failed.tokens.output) == ("", 0.0321, 5)
    would_cost_the_same_again = subtype in ("error_max_turns", "error_max_budget_usd")
    assert failed.transient is not would_cost_the_same_again


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"errors": [TURNS]}, TURNS),
        ({"errors": [TURNS], "error": "out of luck", "result": "I stop here."}, "out of luck"),
        ({"errors": [TURNS], "result": "I stop here."}, TURNS),
        ({"errors": [], "result": "I stop here."}, "I stop here."),
        ({"errors": [{"message": TURNS}, 5]}, TURNS),
        ({"errors": "none", "result": ""}, "error max turns"),
        ({}, "error max turns"),
    ],
)
def test_the_words_of_a_failed_report_are_its_errors_or_its_text_or_its_subtype(report: dict[str, object], words: str) -> None:
    assert answer(printed(subtype="error_max_turns", **report)).error == f"the agent failed: {words}"


def test_a_stream_of_events_ends_with_such_a_report_too() -> None:
    events = [{"type": "system"}, {"type": "result", "subtype": "error_max_turns", "is_error": False, "errors": [TURNS], **COST}]
    failed = answer(Ended(output="\n".join(map(json.dumps, events)).encode()))
    assert (failed.error, failed.cost_usd) == (f"the agent failed: {TURNS}", 0.0321)


def test_only_a_report_that_says_so_has_failed() -> None:
    assert answer(printed(subtype="success", is_error=False, result="HEARTBEAT_OK", errors=[])).text == "HEARTBEAT_OK"
    other = b'{"type": "event", "subtype": "error_rate", "count": 7}'  # JSON of another program
    assert answer(Ended(output=other)).text == other.decode()


def test_a_failure_of_the_process_with_a_successful_report_is_retried_as_before() -> None:
    failed = answer(printed(1, subtype="success", is_error=False, result="HEARTBEAT_OK", **COST))
    assert (failed.failure, failed.error, failed.transient, failed.cost_usd) == (Failure.EXIT, "exit code 1", True, 0.0321)
