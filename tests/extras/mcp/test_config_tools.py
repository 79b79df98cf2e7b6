"""Tests the tools of models in a config, and the errors of each key."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from config_file import complaints, read
from loops import loop_over
from missing_libraries import run_without

from heartbeat.spec import ModelRunner, Tools
from heartbeatd.secret import Secret
from scheduler.config.settings.effective_values import list_effective_values
from scheduler.model.outcome import Kind

KEY = "sk-canary-41d8"
ENVIRON = {"KEY": KEY}
CONFIG = """\
providers: {{anthropic: {{api_key: "${{KEY}}"}}}}
prices: {{claude-haiku-5-5: {{input: 1, output: 5}}}}
agents:
  ops:
    runner:
      kind: anthropic
      tools:
        {tools}
    heartbeat: {{interval: 30m, deliver: log, budget: {budget}}}
"""
DISK = '{name: disk, url: "https://mcp.example.org/mcp", allow: [free]}'


def config(tools: str, budget: str = "unlimited") -> str:
    return CONFIG.format(tools=tools.replace("\n", "\n        "), budget=budget)


def tools_of(folder: Path, text: str) -> Tools:
    runner = read(folder, text, ENVIRON).settings.heartbeats["ops"].runner
    assert isinstance(runner, ModelRunner)
    assert runner.tools is not None
    return runner.tools


def test_a_model_has_no_tools_by_default(tmp_path: Path) -> None:
    runner = read(tmp_path, config("mcp: []").replace("tools:\n        mcp: []", "tools: none"), ENVIRON)
    beat = runner.settings.heartbeats["ops"]
    assert isinstance(beat.runner, ModelRunner)
    assert (beat.runner.tools, beat.runner.max_turns) == (None, 1)


def test_servers_are_urls_or_programs(tmp_path: Path) -> None:
    text = config(
        'mcp:\n- {name: disk, url: "https://mcp.example.org/${KEY}", headers: {Authorization: "Bearer ${KEY}"}, allow: free}\n'
        '- {name: mail, command: [npx, mail-mcp], env: {TOKEN: "${KEY}"}, allow: [send], read_only: false, timeout: 1m}\n'
        "max_turns: 4"
    )
    tools = tools_of(tmp_path, text)
    disk, mail = tools.servers
    assert isinstance(disk.url, Secret)
    assert isinstance(disk.headers["Authorization"], Secret)
    assert isinstance(mail.env["TOKEN"], Secret)
    assert (disk.url.reveal(), disk.headers["Authorization"].reveal()) == (f"https://mcp.example.org/{KEY}", f"Bearer {KEY}")
    assert (mail.command, mail.env["TOKEN"].reveal(), mail.url) == (("npx", "mail-mcp"), KEY, None)
    assert (disk.allow, disk.read_only, disk.timeout, disk.max_result) == (("free",), True, timedelta(seconds=30), 16384)
    assert (mail.allow, mail.read_only, mail.timeout, tools.max_turns) == (("send",), False, timedelta(minutes=1), 4)
    assert (tools.may_change_things, Tools((disk,), 4).may_change_things) == (True, False)


def test_decide_gets_no_tools(tmp_path: Path) -> None:
    text = config(f"mcp: [{DISK}]").replace("interval: 30m", "interval: 30m, decide: {model: claude-haiku-5-5}")
    beat = read(tmp_path, text, ENVIRON).settings.heartbeats["ops"]
    assert beat.decide is not None
    assert beat.decide.runner.tools is None


@loop_over(
    ("tools", "place", "message"),
    [
        (
            "mcp: []",
            "8:14",
            '.mcp: no server is named; write mcp: [{name: disk, url: "https://...", allow: [free]}], or remove tools',
        ),
        (
            f"servers: [{DISK}]",
            "8:9",
            ".servers: unknown key; write mcp or max_turns",
        ),
        (
            'mcp: [{name: disk, url: "https://mcp.example.org/mcp", allow: [free]}]\nmax_turns: 1',
            "9:20",
            ".max_turns: 1 is out of range; write 2 or more",
        ),
        ("mcp: disk", "8:14", ".mcp: this must be a list, not a string; write [{name: disk}]"),
        ('mcp: [{name: disk, url: "https://a.example"}]', "8:15", ".mcp[0].allow: is missing; write allow: [TOOL, TOOL]"),
        (
            'mcp: [{name: disk, url: "https://a.example", allow: []}]',
            "8:61",
            ".mcp[0].allow: the list is empty; write at least one item",
        ),
        (
            'mcp: [{name: disk, url: "https://a.example", allow: "*"}]',
            "8:61",
            (".mcp[0].allow: '*' is not the name of a tool; use 1 to 64 characters from A-Z a-z 0-9 . / _ -"),
        ),
        (
            'mcp: [{name: my disk, url: "https://a.example", allow: free}]',
            "8:22",
            ".mcp[0].name: 'my disk' is not a name for a server; use 1 to 32 characters from A-Z a-z 0-9 _ -",
        ),
        (
            "mcp: [{name: disk, allow: free}]",
            "8:15",
            ('.mcp[0]: the server has neither a url nor a command; write url: "https://...", or command: [program, argument]'),
        ),
        (
            'mcp: [{name: disk, url: "https://a.example", command: [x], allow: free}]',
            "8:63",
            ".mcp[0].command: a server has a url or a command, but not both; remove one of them",
        ),
        (
            'mcp: [{name: disk, url: "ftp://a.example", allow: free}]',
            "8:33",
            ".mcp[0].url: this is not the address of a server; write http:// or https:// with a host",
        ),
        (
            "mcp: [{name: disk, command: [x], headers: {A: b}, allow: free}]",
            "8:42",
            ".mcp[0].headers: a program gets no headers; write env instead, or remove headers",
        ),
        (
            'mcp: [{name: disk, url: "https://a.example", env: {A: b}, allow: free}]',
            "8:54",
            ".mcp[0].env: a server at a url gets no variables; write headers instead, or remove env",
        ),
        (
            'mcp: [{name: disk, url: "https://a.example", headers: {A: "ü"}, allow: free}]',
            "8:67",
            ".mcp[0].headers.A: a header can contain only ASCII letters, digits and punctuation, on one line",
        ),
        (
            "mcp: [{name: disk, command: [x], allow: a}, {name: disk, command: [y], allow: b}]",
            "8:60",
            ".mcp[1].name: another server is named disk too; write a different name",
        ),
        (
            "mcp: [{name: disk, command: [x], allow: [a.b, a_b]}]",
            "8:55",
            (
                ".mcp[0].allow[1]: the model sees this tool as disk__a_b, and another tool too; write a different name of"
                " the server"
            ),
        ),
        (
            "mcp: [{name: disk, command: [x], allow: a__b}, {name: disk__a, command: [x], allow: b}]",
            "8:93",
            (".mcp[1].allow: the model sees this tool as disk__a__b, and another tool too; write a different name of the server"),
        ),
        (
            "mcp: [{name: disk, command: [x], allow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}]",
            "8:49",
            (
                ".mcp[0].allow: the model sees this tool as"
                " disk__aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, and a name can have 64 characters;"
                " write a shorter name of the server"
            ),
        ),
        (
            "mcp: [{name: disk, command: npx disk, allow: free}]",
            "8:37",
            ".mcp[0].command: this must be a list, not a string; write [program, argument]",
        ),
        (
            'mcp: [{name: disk, url: "https://a.example", allow: free, readonly: false}]',
            "8:67",
            ".mcp[0].readonly: unknown key; did you mean read_only?",
        ),
        (
            'mcp: [{name: disk, url: "https://a.example", allow: free, timeout: 5}]',
            "8:76",
            ".mcp[0].timeout: 5 has no unit; write 90s, 30m or 1h30m",
        ),
        (
            'mcp: [{name: disk, url: "https://a.example", allow: free, max_result: 1}]',
            "8:79",
            ".mcp[0].max_result: 1 is out of range; write 1000 or more",
        ),
        (
            'mcp: [{name: disk, url: "https://a.example/${NONE}", allow: free}]',
            "8:33",
            ".mcp[0].url: NONE is not set; export it before heartbeatd starts, or write it into the env_file",
        ),
        (
            'mcp: [{name: disk, url: "https://a.example", allow: [free, free]}]',
            "8:61",
            ".mcp[0].allow: 'free' is listed twice; remove one of them",
        ),
        (
            'mcp: [{name: disk, url: "https://a.example", allow: free, read_only: maybe}]',
            "8:78",
            ".mcp[0].read_only: 'maybe' is not true or false; write true or false",
        ),
        (
            "mcp: [{name: s0, command: [x], allow: a}, {name: s1, command: [x], allow: a}, {name: s2, command: [x], allow: a}, {name: s3, command: [x], allow: a}, {name: s4, command: [x], allow: a}, {name: s5, command: [x], allow: a}, {name: s6, command: [x], allow: a}, {name: s7, command: [x], allow: a}, {name: s8, command: [x], allow: a}, {name: s9, command: [x], allow: a}, {name: s10, command: [x], allow: a}, {name: s11, command: [x], allow: a}, {name: s12, command: [x], allow: a}, {name: s13, command: [x], allow: a}, {name: s14, command: [x], allow: a}, {name: s15, command: [x], allow: a}, {name: s16, command: [x], allow: a}, {name: s17, command: [x], allow: a}, {name: s18, command: [x], allow: a}, {name: s19, command: [x], allow: a}, {name: s20, command: [x], allow: a}]",
            "8:14",
            ".mcp: there are more than 20; remove some",
        ),
    ],
)
def test_an_error_names_the_key_and_what_to_write(tmp_path: Path, tools: str, place: str, message: str) -> None:
    assert complaints(tmp_path, config(tools), ENVIRON) == [f"config.yaml:{place}: agents.ops.runner.tools{message}"]


def test_without_the_library_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(config(f"mcp: [{DISK}]"))
    ended = run_without(tmp_path, ("mcp",), "check", "-c", str(tmp_path / "config.yaml"))
    missing = "this needs an extra that is not installed; run pipx install --force './heartbeatd[mcp]' in the parent folder"
    assert f"config.yaml:7:7: agents.ops.runner.tools: {missing}" in ended.stderr
    assert ended.returncode == 2


def test_the_secrets_of_servers_are_masked(tmp_path: Path) -> None:
    text = config(f'mcp: [{{name: disk, url: "https://a.example/{KEY}", headers: {{A: "{KEY}"}}, allow: free}}]')
    read(tmp_path, text, ENVIRON)
    shown = {
        value.key: value.value for value in list_effective_values(tmp_path / "config.yaml", ENVIRON, (Kind.HEARTBEAT, "ops"))
    }
    assert shown["runner.tools.mcp"] == "[{name: disk, url: https://***, headers: {A: ***}, allow: free}]"
    assert shown["runner.tools.max_turns"] == "10"


def reserved(folder: Path, budget: str, tools: str = f"mcp: [{DISK}]\nmax_turns: 4") -> tuple[float, int]:
    """The maximum cost in USD and the maximum number of tokens of one attempt."""
    allowance = read(folder, config(tools, budget), ENVIRON).settings.allowances[Kind.HEARTBEAT, "ops"]
    return allowance.max_usage.usd, allowance.max_usage.tokens


def test_the_maximum_of_an_attempt_is_that_of_all_its_turns(tmp_path: Path) -> None:
    """One turn: 50,000 tokens of input at 1.25 USD per million (written to a cache), and 2,000 of output at 5 USD."""
    assert reserved(tmp_path, "{usd_per_day: 5}") == (4 * 0.0725, 4 * 52_000)


def test_a_budget_of_a_run_limits_all_turns_together(tmp_path: Path) -> None:
    assert reserved(tmp_path, "{usd_per_day: 5, usd_per_try: 0.1}") == (0.1, 4 * 52_000)
    assert reserved(tmp_path, "{usd_per_day: 5, tokens_per_try: 100k}") == (4 * 0.0725, 100_000)


def test_a_day_that_is_too_short_for_all_turns_is_an_error(tmp_path: Path) -> None:
    assert complaints(tmp_path, config(f"mcp: [{DISK}]", "{usd_per_day: 0.5}"), ENVIRON) == [
        (
            'config.yaml:9:68: agents.ops.heartbeat.budget.usd_per_day: one try of agent/ops with "claude-haiku-5-5" may cost 0.725 USD (50,000 tokens in, 2,000'
            " out, in each of up to 10 turns with tools); write 0.725 or more, or a smaller usd_per_try"
        )
    ]


def test_tokens_per_run_limits_the_prompt_of_a_model_without_tools(tmp_path: Path) -> None:
    text = config("none", "{tokens_per_try: 10k}").replace("tools:\n        none", "tools: none")
    allowance = read(tmp_path, text, ENVIRON).settings.allowances[Kind.HEARTBEAT, "ops"]
    assert (allowance.input_tokens, allowance.max_usage.tokens) == (8_000, 10_000)
    assert complaints(tmp_path, text.replace("10k", "3k"), ENVIRON) == [
        (
            "config.yaml:8:71: agents.ops.heartbeat.budget.tokens_per_try: the answers alone may use all of it; write 4000 or"
            " more, or a smaller max_output_tokens"
        )
    ]


def test_tokens_per_run_cannot_be_enforced_for_a_program(tmp_path: Path) -> None:
    text = "agents: {ops: {runner: {kind: command, argv: [x]}, heartbeat: {interval: 1h, deliver: log, budget: {tokens_per_try: 9k}}}}"
    assert complaints(tmp_path, text) == [
        (
            "config.yaml:1:117: agents.ops.heartbeat.budget.tokens_per_try: tokens_per_try cannot be enforced, because the usage"
            " of its runner is unknown; write usd_per_try instead, the maximum cost of one try"
        )
    ]
