"""Built-in prechecks end to end: a look at a mailbox, a page or files decides whether an agent is called."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from required_programs import needs
from servers.dovecot import PASSWORD, Mailbox, running_dovecot
from servers.scripted import Server, reply
from test_story_asking_again import CONFIG as ASKED
from test_story_asking_again import Model
from test_story_slots import agent
from world import AgentCall, Delayed, MakeWorld, World

from heartbeatd.verbs import ReportResult
from scheduler.cli.main import main
from scheduler.engine.effects import VerbRequest

needs_dovecot = needs("dovecot")
ENVIRON = {"MAIL_PASSWORD": PASSWORD}
FILES = '{files: "inbox/*.txt"}'


@pytest.fixture
def box() -> Iterator[Mailbox]:
    with running_dovecot() as running:
        yield running


def mailbox(box: Mailbox, **keys: str) -> str:
    """The config of an agent with this mailbox."""
    place = f'imap: "{box.plain_host}", user: anna, password: "${{MAIL_PASSWORD}}", encryption: none'
    return agent(precheck=f"{{{place}}}", active_hours='"08:00-22:00"', **keys)


def told(world: World) -> list[str]:
    """The time of each call and what its prompt says of the precheck."""
    found = [re.search(r"<(data-\w+)>\n(.*?)\n</\1>", call.stdin, re.DOTALL) for call in world.calls]
    return [f"{call.at:%H:%M} {text[2] if text else ''}" for call, text in zip(world.calls, found, strict=True)]


def put(world: World, name: str) -> None:
    """Put a file into the inbox of the agent `ops`."""
    world.write(f"ops/inbox/{name}.txt", name)


@needs_dovecot
def test_a_day_of_a_mailbox_costs_a_call_for_each_look_with_new_mail(make_world: MakeWorld, box: Mailbox) -> None:
    """From 8 to 22 there are 28 looks. Three mails come, two of them together, and one is read before the look."""
    box.deliver("Old <old@example.org>", "from last week")
    world = make_world(mailbox(box), environ=ENVIRON)
    world.run_until("2026-03-02 09:10")
    box.deliver("Anna <anna@example.org>", "today?")
    box.deliver("Bank <bank@example.org>", "your card")
    box.deliver("Shop <shop@example.org>", "read on the phone", is_read=True)
    world.run_until("2026-03-02 15:40")
    box.deliver("Carl <carl@example.org>", "call me")
    world.run_until("2026-03-03 07:00")
    assert told(world) == [
        "09:30 Anna <anna@example.org>: today?\nBank <bank@example.org>: your card",
        "16:00 Carl <carl@example.org>: call me",
    ]
    looks = [row for row in world.records() if row["why"] == "precheck"]
    assert sum(row["planned_runs"] for row in looks) == 26


@needs_dovecot
def test_the_password_of_a_mailbox_is_in_no_view_and_not_in_the_database(
    make_world: MakeWorld, box: Mailbox, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(mailbox(box), environ=ENVIRON)
    world.run(minutes=1)
    box.deliver("Anna <anna@example.org>", "today?")
    world.run(minutes=40)
    monkeypatch.setenv("MAIL_PASSWORD", PASSWORD)
    for command in (["show", "2"], ["check", "--effective", "ops"], ["explain", "ops"], ["runs"]):
        assert main([*command, "-c", str(world.config)]) == 0
    out = capsys.readouterr().out + json.dumps(world.records()) + repr(world.all_rows())
    assert "today?" in out
    assert PASSWORD not in out


@needs_dovecot
def test_a_mailbox_that_cannot_be_read_is_a_problem_and_no_call_of_the_agent(make_world: MakeWorld, box: Mailbox) -> None:
    world = make_world(mailbox(box), environ={"MAIL_PASSWORD": "wrong-4711"})
    world.run_until("2026-03-02 10:10")
    error = f"imap {box.plain_host}: [AUTHENTICATIONFAILED] Authentication failed."
    assert {(row["why"], row["error"]) for row in world.records()} == {("precheck_failed", error)}
    assert world.calls == []
    (notice,) = [text for _, _, text in world.delivered]
    assert error in notice
    world.environ = ENVIRON
    box.deliver("Anna <anna@example.org>", "today?")
    world.reload(mailbox(box))
    world.run_until("2026-03-02 11:10")
    assert "over" in world.delivered[-1][2]


def test_news_is_shown_again_after_a_failed_run(make_world: MakeWorld) -> None:
    world = make_world(agent(precheck=FILES, retries="0"))
    world.run(minutes=1)
    put(world, "a")
    world.scripts["ops"] = lambda _: 1
    world.run(minutes=30)
    world.scripts["ops"] = lambda _: "HEARTBEAT_OK"
    put(world, "b")
    world.run(minutes=30)
    put(world, "c")
    world.run(minutes=30)
    world.run(minutes=30)
    a, b, c = (f"new: inbox/{name}.txt (1 byte)" for name in "abc")
    assert told(world) == [f"08:30 {a}", f"09:00 {a}\n{b}", f"09:30 {c}"]


@pytest.mark.parametrize("before", [[], [("mail:a", "new: inbox/a.txt is urgent", "warning")]])
def test_news_that_is_answered_in_prose_is_shown_once_more_also_while_a_problem_is_open(
    make_world: MakeWorld, before: list[tuple[str, str, str]]
) -> None:
    model = Model(before, "I have looked.")
    world = make_world(ASKED.format(more=f", precheck: {FILES}"), http=model, environ={"KEY": "k"})
    for name in "ab":
        world.run(minutes=1)
        put(world, name)
        world.run(minutes=14)
    world.run(minutes=31)
    assert [row["why"] for row in world.records()][2:] == ["no_findings", "no_findings", "precheck"]
    assert len(world.delivered) == len(before)


def test_a_run_that_a_crash_has_interrupted_shows_its_news_again(make_world: MakeWorld) -> None:
    world = make_world(agent(precheck=FILES))
    world.run(minutes=1)
    put(world, "a")
    world.scripts["ops"] = lambda _: Delayed("HEARTBEAT_OK", timedelta(minutes=5))
    world.run_until("2026-03-02 08:32")
    world.downtime(minutes=1)
    world.run_until("2026-03-02 09:31")
    assert {line.partition(" ")[2] for line in told(world)} == {"new: inbox/a.txt (1 byte)"}
    assert len(world.calls) == 2


def test_an_answer_that_comes_later_counts_the_news_as_seen_when_it_has_come(make_world: MakeWorld) -> None:
    with Server([reply({}, 202)]) as server:
        config = agent(precheck=FILES).replace("kind: command, argv: [agent]", f'kind: http, url: "{server.url}"')
        world = make_world(config)
        world.run(minutes=1)
        put(world, "a")
        world.run(minutes=30)
        run = world.records()[-1]
        assert run["result"] == "async"
        before = world.store.connection.execute("select source_state from entry").fetchone()[0]
        world.request(VerbRequest(ReportResult(text="HEARTBEAT_OK"), run["id"]))
        after = world.store.connection.execute("select source_state from entry").fetchone()[0]
        assert len(json.loads(before)["seen"]["files"]) + 1 == len(json.loads(after)["seen"]["files"])
        world.run(minutes=30)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answers", "shown"),
    [
        ({"a": "HEARTBEAT_OK", "b": "HEARTBEAT_OK"}, ["a", "b", "c"]),
        ({"b": "HEARTBEAT_OK", "a": "HEARTBEAT_OK"}, ["a", "b", "c"]),
        ({"a": "HEARTBEAT_OK", "b": None}, ["a", "b", "bc"]),
        ({"a": None}, ["a", "b", "abc"]),
        ({"a": None, "b": "HEARTBEAT_OK"}, ["a", "b", "abc"]),
        ({"b": "HEARTBEAT_OK", "a": None}, ["a", "b", "abc"]),
        ({"b": "HEARTBEAT_OK"}, ["a", "b", "c", "abc"]),
    ],
    ids=["both", "b first", "b fails", "a fails", "a fails, then b", "b, then a fails", "a never comes"],
)
def test_news_is_shown_again_only_after_the_answer_to_it_has_failed_or_was_not_in_time(
    make_world: MakeWorld, answers: dict[str, str | None], shown: list[str]
) -> None:
    """The file a is shown at 8:30, b at 9:30, and c is there at 10:00. Each answer is awaited for 110 minutes."""
    with Server([reply({}, 202)]) as server:
        config = agent(precheck=FILES, retries="0", async_timeout="110m")
        config = config.replace("kind: command, argv: [agent]", f'kind: http, url: "{server.url}"')
        world = make_world(config, through_payloads=True)
        for name, until in (("a", "08:31"), ("b", "09:31")):
            world.run_until(f"2026-03-02 {until[:2]}:01")
            put(world, name)
            world.run_until(f"2026-03-02 {until}")
        runs = {name: run["id"] for name, run in zip("ab", world.records(result="async"), strict=True)}
        for name, text in answers.items():
            world.request(VerbRequest(ReportResult(text=text, error=None if text else "it broke"), runs[name]))
        put(world, "c")
        world.run_until("2026-03-02 10:31")
        found = [re.findall(r"new: inbox/(\w)\.txt", request.json["prompt"]) for request in server.requests]
        assert ["".join(names) for names in found] == shown


def test_an_answer_that_comes_after_a_change_of_the_source_loses_no_news_of_the_new_one(make_world: MakeWorld) -> None:
    with Server([reply({}, 202)]) as server:
        config = agent(precheck=FILES).replace("kind: command, argv: [agent]", f'kind: http, url: "{server.url}"')
        world = make_world(config)
        world.run(minutes=1)
        put(world, "a")
        world.run(minutes=30)
        run = world.records()[-1]
        world.reload(config.replace(FILES, '{files: "inbox/*"}'))
        world.run(minutes=30)
        put(world, "b")
        world.request(VerbRequest(ReportResult(text="HEARTBEAT_OK"), run["id"]))
        world.run(minutes=30)
        assert [b"inbox/b.txt" in request.body for request in server.requests] == [False, True]


def test_two_agents_with_the_same_source_have_their_own_states_also_on_workers(make_world: MakeWorld) -> None:
    folder = "agents/ops"
    ops = agent(precheck=FILES, retries="0").replace("ops:\n", f"ops:\n    workspace: {folder}\n")
    world = make_world(ops + ops.partition("\n")[2].replace("ops:\n", "mail:\n", 1), through_payloads=True)
    world.run(minutes=1)
    put(world, "a")
    world.scripts["mail"] = lambda call: 1 if call.at.hour == 8 else "HEARTBEAT_OK"
    world.run(minutes=91)
    news = "new: inbox/a.txt (1 byte)"
    assert sorted(f"{call.name} {line}" for call, line in zip(world.calls, told(world), strict=True)) == [
        f"mail 08:30 {news}",
        f"mail 09:00 {news}",
        f"ops 08:30 {news}",
    ]


def test_a_wake_calls_the_agent_although_nothing_is_new(make_world: MakeWorld) -> None:
    world = make_world(agent(precheck=FILES))
    world.run(minutes=1)
    world.wake("ops", "look now")
    world.run(minutes=1)
    (call,) = world.calls
    assert "nothing new in files inbox/*.txt since 2026-03-02 08:00" in call.stdin
    put(world, "a")
    world.run(minutes=30)
    assert told(world)[-1] == "08:30 new: inbox/a.txt (1 byte)"


def test_another_source_starts_anew_and_a_password_does_not(make_world: MakeWorld) -> None:
    world = make_world(agent(precheck=FILES))
    world.run(minutes=1)
    put(world, "a")
    world.reload(agent(precheck='{files: "inbox/*"}'))
    world.run(minutes=30)
    put(world, "b")
    world.run(minutes=30)
    assert told(world) == ["09:00 new: inbox/b.txt (1 byte)"]


def test_a_job_with_a_prompt_has_a_source_too(make_world: MakeWorld) -> None:
    heartbeat = agent(interval="none")
    job = f"cron:\n  sort: {{every: 30m, agent: ops, prompt: Sort it., precheck: {FILES}}}\n"
    world = make_world(heartbeat + job)
    world.run(minutes=31)
    put(world, "a")
    world.run(minutes=61)
    assert told(world) == ["09:00 new: inbox/a.txt (1 byte)"]


def test_a_mailbox_is_never_opened_by_a_simulation_or_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server([reply(b"news")]) as server:
        monkeypatch.setenv("MAIL_PASSWORD", PASSWORD)
        place = server.url.removeprefix("http://")
        imap = f'{{imap: "{place}", user: anna, password: "${{MAIL_PASSWORD}}", encryption: none}}'
        for precheck in (imap, f'{{http: "{server.url}"}}'):
            (tmp_path / "config.yaml").write_text(agent(precheck=precheck))
            for command in (["simulate", "--for", "1d"], ["plan", "--worst"], ["check"]):
                assert main([*command, "-c", str(tmp_path / "config.yaml")]) == 0
        assert server.connections == 0
    assert "prechecks: 100% find something new" in capsys.readouterr().out


def test_a_problem_is_not_over_because_its_news_is_not_repeated(make_world: MakeWorld) -> None:
    finding = {"key": "mail:a", "text": "new: inbox/a.txt is urgent", "severity": "warning"}
    world = make_world(agent(precheck=FILES, answer="structured"))
    world.run(minutes=1)
    put(world, "a")
    world.scripts["ops"] = lambda _: json.dumps({"findings": [finding]})
    world.run(hours=4)
    assert len(world.calls) == 1
    assert world.problem("mail:a").is_open
    assert len(world.delivered) == 1


@pytest.mark.parametrize("severity", ["info", "warning"])
def test_each_news_is_reported_although_it_has_most_words_of_another_and_is_mentioned_only_once(
    make_world: MakeWorld, severity: str
) -> None:
    world = make_world(agent(precheck=FILES, answer="structured"))

    def report(call: AgentCall) -> str:
        found = [
            {"key": name, "text": f"A new bill of May: {name}", "severity": severity}
            for name in re.findall(r"bill-\w+", call.stdin)
        ]
        return json.dumps({"findings": found[-1:]})

    world.scripts["ops"] = report
    world.run(minutes=1)
    for name in ("bank", "gas", "water", "tax"):
        put(world, f"bill-{name}")
        world.run(hours=1)
    opened = [re.findall(rf"{severity} .* A new bill of May: (\S+)", words) for _, _, words in world.delivered]
    assert [found for found in opened if found] == [["bill-bank"], ["bill-gas"], ["bill-water"], ["bill-tax"]]
