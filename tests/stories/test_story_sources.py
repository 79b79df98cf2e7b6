"""Built-in prechecks end to end: a look at a mailbox, a page or files decides whether an agent is called."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from brief import brief
from required_programs import needs
from servers.dovecot import PASSWORD, Mailbox, running_dovecot
from servers.messages import Models, message, tool
from servers.scripted import Act, Request, Server, reply
from test_story_asking_again import CONFIG as ASKED
from test_story_asking_again import Model
from test_story_slots import agent
from world import AgentCall, Delayed, MakeWorld, World

from heartbeatd.verbs import Ack, CloseProblem, Mute, ReportResult, Unmute
from scheduler.cli.main import main
from scheduler.engine.effects import VerbRequest
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.store import problems

needs_dovecot = needs("dovecot")
ENVIRON = {"MAIL_PASSWORD": PASSWORD}
OPS = (Kind.HEARTBEAT, "ops")
FILES = '{files: "inbox/*.txt"}'
PLACE = 'imap: "{}", user: anna, password: "${{MAIL_PASSWORD}}", encryption: none'


@pytest.fixture
def box() -> Iterator[Mailbox]:
    with running_dovecot() as running:
        yield running


def mailbox(box: Mailbox, **keys: str) -> str:
    """The config of an agent with this mailbox."""
    return agent(precheck=f"{{{PLACE.format(box.plain_host)}}}", active_hours='"08:00-22:00"', **keys)


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


# --- each event is reported, also with the words of an earlier one ---------------------------------------------------------

HI = ("Anna <anna@example.org>", "today?")
NEW_LINES = re.compile(r"The check before this run found this\..*?<(data-\w+)>\n(.*?)\n</\1>", re.DOTALL)


def news_of(call: AgentCall) -> list[str]:
    found = NEW_LINES.search(call.stdin)
    return found[2].splitlines() if found else []


def label(line: str) -> str:
    return line.replace(":", "")[:40]


def report_each(severity: str = "info", key: str = "", text: str = "") -> Callable[[AgentCall], str]:
    """An agent that reports each new line under a key of its own, or under this one, in its words, or in these."""

    def answer(call: AgentCall) -> str:
        found = [{"key": key or label(line), "text": text or line, "severity": severity} for line in news_of(call)]
        return json.dumps({"findings": found})

    return answer


def arrived(world: World) -> list[str]:
    """The time of each message, and what it says."""
    return [f"{at:%H:%M} {line}" for at, _, words in world.delivered for line in brief(words).splitlines() if "] " in line]


def reader(box: Mailbox, severity: str = "info", **keys: str) -> str:
    """The config of an agent that reads this mailbox, and reports each mail."""
    return mailbox(box, answer="structured", **keys).replace('"- look\\n"', f'"- report each mail as {severity}\\n"')


@needs_dovecot
@pytest.mark.parametrize("severity", ["info", "warning", "critical"])
def test_a_second_mail_with_the_same_sender_and_subject_is_reported_like_the_first(
    make_world: MakeWorld, box: Mailbox, severity: str
) -> None:
    world = make_world(reader(box), environ=ENVIRON, scripts={"ops": report_each(severity)})
    world.run(minutes=1)
    for _ in range(5):
        box.deliver(*HI)
        world.run(minutes=30)
    opened = [each for each in arrived(world) if "over after" not in each]
    assert [each[:5] for each in opened] == ["08:30", "09:00", "09:30", "10:00", "10:30"]
    assert all(each.endswith("Anna <anna@example.org>: today?") for each in opened)


@needs_dovecot
@pytest.mark.parametrize("between", ["acknowledged", "closed", "over", "over at night", "over in a mute", "muted"])
def test_a_second_equal_mail_is_reported_whatever_became_of_the_first(make_world: MakeWorld, box: Mailbox, between: str) -> None:
    world = make_world(reader(box), environ=ENVIRON, scripts={"ops": report_each()})
    world.run(minutes=1)
    box.deliver(*HI)
    world.run(minutes=30)
    first = world.problem("Anna <anna@example.org> today?")
    if between == "acknowledged":
        world.request(VerbRequest(Ack(), first.id))
    if between == "closed":
        world.request(VerbRequest(CloseProblem(), first.id))
    if between.endswith("mute"):
        world.request(VerbRequest(Mute(for_=timedelta(minutes=61)), OPS))
    for subject in ("lunch", "dinner") if between.startswith("over") else ():
        box.deliver("Bank <bank@example.org>", subject)
        world.run(minutes=30)
    if between == "over at night":
        world.run(hours=23)
    if between == "muted":
        world.request(VerbRequest(Mute(for_=timedelta(minutes=45)), OPS))
    box.deliver(*HI)
    world.run(minutes=31)
    world.run(minutes=31)
    found = [each for each in arrived(world) if "today?" in each]
    assert len(found) == 2, found


@needs_dovecot
def test_what_is_still_true_is_sent_by_a_look_without_news(make_world: MakeWorld, box: Mailbox) -> None:
    """A mail of a muted hour, and a day later its reminder, although no further mail comes."""
    world = make_world(reader(box), environ=ENVIRON, scripts={"ops": report_each("warning")})
    world.run(minutes=1)
    world.request(VerbRequest(Mute(for_=timedelta(minutes=61)), OPS))
    box.deliver(*HI)
    world.run_until("2026-03-03 12:00")
    text = "Anna <anna@example.org>: today?"
    assert arrived(world) == [f"09:30 [{label(text)}] {text}", f"09:30 [{label(text)}] reminder: {text}"]
    assert len(world.calls) == 1


@needs_dovecot
@pytest.mark.parametrize(
    ("ends", "clear_after", "earlier"),
    [("by itself", 2, []), ("unmuted", 2, []), ("by itself", 1, []), ("by itself", 2, ["today?", "one", "two"])],
    ids=["by itself", "unmuted", "clear_after 1", "after an equal mail that is over"],
)
def test_each_mail_of_a_mute_is_sent_after_it_although_the_agent_mentions_each_only_once(
    make_world: MakeWorld, box: Mailbox, ends: str, clear_after: int, earlier: list[str]
) -> None:
    """A mail does not stop being true because the next look is about other mails."""
    config = reader(box, problems=f"{{clear_after: {clear_after}}}")
    world = make_world(config, environ=ENVIRON, scripts={"ops": report_each()})
    world.run(minutes=1)

    def deliver(*subjects: str) -> list[str]:
        """The subjects of the messages that are sent meanwhile."""
        before = len(arrived(world))
        for subject in subjects:
            box.deliver("Anna <anna@example.org>", subject)
            world.run(minutes=30)
        return sorted(each.rpartition(": ")[2] for each in arrived(world)[before:])

    assert deliver(*earlier) == sorted(earlier)
    world.request(VerbRequest(Mute(for_=timedelta(minutes=135 if ends == "by itself" else 900)), OPS))
    assert deliver("today?", "lunch", "dinner", "call me") == []
    if ends == "unmuted":
        world.request(VerbRequest(Unmute(), OPS))
    before = len(arrived(world))
    world.run(minutes=30)
    assert sorted(each.rpartition(": ")[2] for each in arrived(world)[before:]) == ["call me", "dinner", "lunch", "today?"]
    assert deliver("three", "four", "five") == ["five", "four", "three"]
    assert {each.found.text.rpartition(": ")[2] for each in problems.open_reports_of(world.store.connection, "ops")} <= {
        "four",
        "five",
    }


@needs_dovecot
@pytest.mark.parametrize("answer", ["warning", "resolved"])
def test_what_is_over_in_a_mute_is_not_sent_if_it_is_more_than_news_or_if_its_agent_says_so(
    make_world: MakeWorld, box: Mailbox, answer: str
) -> None:
    line = f"{HI[0]}: {HI[1]}"
    over = json.dumps({"findings": [{"key": label(line), "text": "", "severity": "info", "resolved": True}]})
    report = report_each("warning" if answer == "warning" else "info")
    world = make_world(reader(box), environ=ENVIRON)
    world.scripts["ops"] = lambda call: over if answer == "resolved" and len(world.calls) > 1 else report(call)
    world.run(minutes=1)
    world.request(VerbRequest(Mute(for_=timedelta(minutes=105)), OPS))
    for mail in (HI, ("Bank <bank@example.org>", "lunch"), ("Bank <bank@example.org>", "dinner")):
        box.deliver(*mail)
        world.run(minutes=30)
    world.run(minutes=60)
    assert [each for each in arrived(world) if "today?" in each] == []


@needs_dovecot
def test_three_equal_mails_a_day_are_not_unstable_although_each_is_over_before_the_next(
    make_world: MakeWorld, box: Mailbox
) -> None:
    world = make_world(reader(box), environ=ENVIRON, scripts={"ops": report_each()})
    world.run(minutes=1)
    for number in range(4):
        box.deliver(*HI)
        world.run(minutes=30)
        for subject in ("lunch", "dinner"):
            box.deliver("Bank <bank@example.org>", f"{subject} {'abcd'[number] * 3}")
            world.run(minutes=30)
    found = [each for each in arrived(world) if "today?" in each]
    assert found == [
        f"{time} [Anna <anna@example.org> today?] Anna <anna@example.org>: today?"
        for time in ("08:30", "10:00", "11:30", "13:00")
    ]


@needs_dovecot
def test_mails_under_one_key_are_each_reported_and_what_is_repeated_is_not(make_world: MakeWorld, box: Mailbox) -> None:
    """The prompt lists what is open, so an agent repeats it, under the key that it uses for all mails of a sender."""
    known: list[dict[str, str]] = []

    def answer(call: AgentCall) -> str:
        before = [*known]
        known.extend(
            {"key": "mail:anna", "text": f"Anna writes: {line.partition(': ')[2]}", "severity": "info"} for line in news_of(call)
        )
        return json.dumps({"findings": [*before, *known[len(before) :]]})

    world = make_world(reader(box), environ=ENVIRON, scripts={"ops": answer})
    world.run(minutes=1)
    for subjects in (["today?"], ["call me"], ["lunch tomorrow", "invoice for May"]):
        for subject in subjects:
            box.deliver(HI[0], subject)
        world.run(minutes=30)
    assert arrived(world) == [
        "08:30 [mail:anna] Anna writes: today?",
        "09:00 [mail:anna 2] Anna writes: call me",
        "09:30 [mail:anna 3] Anna writes: lunch tomorrow",
        "09:30 [mail:anna 4] Anna writes: invoice for May",
    ]


FIRST = {"key": "mail:anna", "text": "Anna asks: today?", "severity": "info"}


def remembers(first: dict[str, str], from_call: int = 2) -> Callable[[AgentCall], str]:
    """An agent with a session: it reports the first event, and mentions it again from this call on, besides what is new."""
    calls = 0

    def answer(call: AgentCall) -> str:
        nonlocal calls
        calls += 1
        new = [{"key": label(line), "text": line, "severity": "info"} for line in news_of(call)]
        return json.dumps({"findings": [FIRST] if calls == 1 else [first, *new] if calls >= from_call else new})

    return answer


@needs_dovecot
@pytest.mark.parametrize("ended_by", ["user", "silence"])
def test_an_info_event_that_is_over_is_not_sent_again_because_the_agent_still_mentions_it(
    make_world: MakeWorld, box: Mailbox, ended_by: str
) -> None:
    is_closed = ended_by == "user"
    world = make_world(reader(box), environ=ENVIRON, scripts={"ops": remembers(FIRST, 2 if is_closed else 4)})
    world.run(minutes=1)
    box.deliver(*HI)
    world.run(minutes=30)
    if is_closed:
        world.request(VerbRequest(CloseProblem(), world.problem("mail:anna").id))
    for number in range(52):  # for more than a day, each half hour
        box.deliver("Bank <bank@example.org>", f"account {'abcdefgh'[number // 8]}{'abcdefgh'[number % 8]}")
        world.run(minutes=30)
    assert [each for each in arrived(world) if "mail:anna" in each] == ["08:30 [mail:anna] Anna asks: today?"]
    assert not world.problem("mail:anna").is_open
    assert [each["effect"] for each in world.records()[-1]["findings"] if each["key"] == "mail:anna"] == ["repeated"]


@needs_dovecot
@pytest.mark.parametrize("what", ["worse", "wake", "another mail", "lost"])
def test_what_is_more_than_a_repetition_of_an_event_that_is_over_is_sent(make_world: MakeWorld, box: Mailbox, what: str) -> None:
    again = {**FIRST, "severity": "warning"} if what == "worse" else FIRST
    channels = 'channels: {phone: {kind: webhook, url: "http://127.0.0.1:9/phone", allow_private: true}}\n'
    world = make_world(channels + reader(box, deliver="phone"), environ=ENVIRON, scripts={"ops": remembers(again)})
    world.run(minutes=1)
    box.deliver(*HI)
    if what == "lost":
        world.send = lambda _: DeliveryResult("dead", "refused")
    world.run(minutes=30)
    world.send = lambda _: DeliveryResult("delivered")
    world.request(VerbRequest(CloseProblem(), world.problem("mail:anna").id))
    if what == "wake":
        world.wake("ops", "Anna asks on the phone: today?", sender="phone")
    box.deliver(*(HI if what == "another mail" else ("Bank <bank@example.org>", "your account")))
    world.run(minutes=30)
    assert len([each for each in arrived(world) if "[mail:anna]" in each]) == (1 if what == "lost" else 2)


@needs_dovecot
def test_equal_mails_of_one_look_are_one_line_that_says_how_many(make_world: MakeWorld, box: Mailbox) -> None:
    world = make_world(reader(box), environ=ENVIRON, scripts={"ops": report_each()})
    world.run(minutes=1)
    box.deliver(*HI)
    box.deliver(*HI)
    world.run(minutes=30)
    box.deliver(*HI)
    box.deliver(*HI)
    world.run(minutes=30)
    line = "2 times: Anna <anna@example.org>: today?"
    assert arrived(world) == [f"08:30 [{label(line)}] {line}", f"09:00 [{label(line)} 2] {line}"]


@needs_dovecot
@pytest.mark.parametrize("through_payloads", [False, True])
def test_a_mail_that_is_shown_again_after_a_failed_run_is_reported_once_and_an_equal_one_besides_it_too(
    make_world: MakeWorld, box: Mailbox, *, through_payloads: bool
) -> None:
    """Its agent reports it, but the proof of the work of the run is missing. So the next run shows the mail again."""
    config = reader(box, postcheck="{file: done.txt, fresher_than: 10m}", retries="0", problems="{after: none}")
    world = make_world(
        config,
        environ=ENVIRON,
        scripts={"ops": report_each(key="anna", text="Anna asks: today?")},
        through_payloads=through_payloads,
    )
    world.run(minutes=1)
    box.deliver(*HI)
    world.run(minutes=60)
    assert [news_of(call) for call in world.calls] == [["Anna <anna@example.org>: today?"]] * 2
    box.deliver(*HI)
    world.run(minutes=30)
    assert news_of(world.calls[-1]) == ["2 times: Anna <anna@example.org>: today?"]
    world.run(minutes=30)
    assert arrived(world) == ["08:30 [anna] Anna asks: today?", "09:30 [anna 2] Anna asks: today?"]


@pytest.mark.parametrize("through_payloads", [False, True])
def test_an_agent_that_repeats_an_event_that_is_over_is_not_asked_about_it(
    make_world: MakeWorld, *, through_payloads: bool
) -> None:
    anna, bank = (("mail:" + name, f"/{name}.txt came", "info") for name in ("anna", "bank"))
    model = Model([anna], [bank, anna])
    config = ASKED.format(more=f", precheck: {FILES}")
    world = make_world(config, http=model, environ={"KEY": "k"}, through_payloads=through_payloads)
    for name in ("anna", "bank"):
        world.run(minutes=1)
        put(world, name)
        world.run(minutes=14)
        world.request(VerbRequest(CloseProblem(), world.problem(f"mail:{name}").id))
    assert len(model.prompts) == 2
    effects = {each["key"]: each["effect"] for each in world.records()[-1]["findings"]}
    assert effects == {"mail:bank": "opened", "mail:anna": "repeated"}


@pytest.mark.parametrize(("again", "messages"), [("info", 1), ("warning", 1), ("critical", 2)])
def test_an_event_that_a_user_has_closed_stays_closed_when_a_failed_run_shows_it_again(
    make_world: MakeWorld, again: str, messages: int
) -> None:
    proof = "{file: done.txt, fresher_than: 10m}"
    config = agent(precheck=FILES, answer="structured", postcheck=proof, retries="0", problems="{after: none}")
    world = make_world(config, scripts={"ops": report_each("info" if again == "info" else "warning", "file")})
    world.run(minutes=1)
    put(world, "a")
    world.run(minutes=30)
    world.request(VerbRequest(CloseProblem(), world.problem("file").id))
    world.scripts["ops"] = report_each(again, "file")
    world.run(minutes=30)
    assert len(world.calls) == 2
    assert len(arrived(world)) == messages
    assert world.problem("file").is_open is (messages == 2)


def test_news_is_reported_once_although_a_run_has_failed_and_one_was_interrupted(make_world: MakeWorld) -> None:
    world = make_world(agent(precheck=FILES, answer="structured", retries="0"))
    world.run(minutes=1)
    put(world, "a")
    put(world, "b")
    whole = report_each()
    world.scripts["ops"] = lambda call: Delayed(whole(call), timedelta(minutes=2)) if len(world.calls) > 1 else 1
    world.run_until("2026-03-02 09:01")
    world.downtime(minutes=1)
    world.run_until("2026-03-02 10:31")
    a, b = (f"new: inbox/{name}.txt (1 byte)" for name in "ab")
    assert sorted(arrived(world), key=lambda each: each[6:]) == [f"09:04 [{label(each)}] {each}" for each in (a, b)]


def test_news_that_a_cut_answer_has_reported_is_not_reported_again_by_the_next_run(make_world: MakeWorld) -> None:
    """The answer about a is cut, so the next run shows it again, besides b. Both have the same key."""

    def answer(request: Request) -> Act:
        shown = re.findall(r"new: inbox/(\w)\.txt", request.json["messages"][-1]["content"].partition("found this")[2])
        found = [
            {"key": "file", "text": f"A file came: inbox/{name}.txt", "severity": "info", "resolved": False} for name in shown
        ]
        return reply(
            message(tool("report_findings", {"findings": found}), stop_reason="max_tokens" if shown == ["a"] else "tool_use")
        )

    with Models(answer) as server:
        provider = f'providers: {{p: {{kind: anthropic, api_key: k, base_url: "{server.url}"}}}}\n'
        config = agent(precheck=FILES, retries="0", ask_again="0").replace(
            "kind: command, argv: [agent]", "kind: anthropic, provider: p"
        )
        world = make_world(provider + config.replace("heartbeat:", "model: m\n    heartbeat:"))
        world.run(minutes=1)
        for name in "ab":
            put(world, name)
            world.run(minutes=30)
        world.run(minutes=31)
    assert len(server.requests) == 2
    assert arrived(world) == ["08:30 [file] A file came: inbox/a.txt", "09:00 [file 2] A file came: inbox/b.txt"]


@needs_dovecot
def test_two_agents_and_a_job_on_one_mailbox_report_each_mail(make_world: MakeWorld, box: Mailbox) -> None:
    ops = reader(box)
    job = f"cron:\n  sort: {{every: 30m, agent: ops, prompt: Sort it., answer: structured, deliver: log, precheck: {{{PLACE.format(box.plain_host)}}}}}\n"
    config = ops + ops.partition("\n")[2].replace("ops:\n", "mail:\n", 1) + job
    world = make_world(config, environ=ENVIRON, scripts=dict.fromkeys(("ops", "mail", "sort"), report_each()))
    world.run(minutes=31)
    for _ in range(2):
        box.deliver(*HI)
        world.run(minutes=30)
    assert sorted(name for _, name, words in world.delivered if "today?" in words) == [
        "mail",
        "mail",
        "ops",
        "ops",
        "sort",
        "sort",
    ]


def feed(*names: str) -> Act:
    items = "".join(f"<item><guid>{name}</guid><title>Outage</title><link>http://status</link></item>" for name in names)
    return reply(f"<rss><channel>{items}</channel></rss>".encode())


def test_entries_of_a_feed_with_equal_titles_are_each_reported(make_world: MakeWorld) -> None:
    with Server([feed("a")]) as server:
        world = make_world(
            agent(precheck=f'{{rss: "{server.url}"}}', answer="structured"), scripts={"ops": report_each("warning")}
        )
        world.run(minutes=1)
        for names in ("ab", "abc", "abcde"):
            server.script[:] = [feed(*names)]
            world.run(minutes=30)
    line, two = "Outage http://status", "2 times: Outage http://status"
    opened = [each for each in arrived(world) if "over after" not in each]
    assert opened == [f"08:30 [{label(line)}] {line}", f"09:00 [{label(line)} 2] {line}", f"09:30 [{label(two)}] {two}"]


def test_the_lines_of_a_page_are_states_so_that_a_changed_value_is_the_same_problem(make_world: MakeWorld) -> None:
    with Server([reply({"queue": 90})]) as server:
        world = make_world(
            agent(precheck=f'{{http: "{server.url}", json: queue}}', answer="structured"),
            scripts={"ops": report_each("warning", key="queue")},
        )
        for number in (90, 91, 92, 93):
            server.script[:] = [reply({"queue": number})]
            world.run(minutes=30)
    assert arrived(world) == ["08:00 [queue] queue: 90"]


def test_an_answer_that_comes_later_is_compared_with_the_events_that_its_run_has_shown(make_world: MakeWorld) -> None:
    """The answer to a comes after that to b. Then a file with the words of a comes: it is another one."""
    with Server([reply({}, 202)]) as server:
        config = agent(precheck=FILES, retries="0", answer="structured").replace(
            "kind: command, argv: [agent]", f'kind: http, url: "{server.url}"'
        )
        world = make_world(config, through_payloads=True)
        for name, until in (("a", "08:31"), ("b", "09:01")):
            world.run_until(f"2026-03-02 {until[:2]}:01" if until < "09" else "2026-03-02 08:40")
            put(world, name)
            world.run_until(f"2026-03-02 {until}")
        text = '{"findings": [{"key": "file", "text": "new: inbox/%s.txt", "severity": "info"}]}'
        runs = {name: run["id"] for name, run in zip("ab", world.records(result="async"), strict=True)}
        for name in "ba":
            world.request(VerbRequest(ReportResult(text=text % name), runs[name]))
        world.run(minutes=1)
    assert [each[6:] for each in arrived(world)] == ["[file] new: inbox/b.txt", "[file 2] new: inbox/a.txt"]


def test_news_that_is_shown_again_because_another_later_answer_failed_is_reported_once(make_world: MakeWorld) -> None:
    with Server([reply({}, 202)]) as server:
        config = agent(precheck=FILES, retries="0", answer="structured", problems="{after: none}")
        world = make_world(config.replace("kind: command, argv: [agent]", f'kind: http, url: "{server.url}"'))
        world.run(minutes=1)
        for name in "ab":
            put(world, name)
            world.run(minutes=30)
        text = '{"findings": [{"key": "%s", "text": "new: inbox/%s.txt", "severity": "warning"}]}'
        first, second = (run["id"] for run in world.records(result="async"))
        world.request(VerbRequest(ReportResult(text=text % ("mail", "b")), second))
        world.request(VerbRequest(ReportResult(error="it broke"), first))
        world.run(minutes=30)
        assert b"inbox/b.txt" in server.requests[-1].body
        both = json.dumps({"findings": [json.loads(text % (key, name))["findings"][0] for key, name in (("x", "a"), ("y", "b"))]})
        world.request(VerbRequest(ReportResult(text=both), world.records(result="async")[-1]["id"]))
        world.run(minutes=1)
    assert [each[6:] for each in arrived(world)] == ["[mail] new: inbox/b.txt", "[x] new: inbox/a.txt"]


def test_an_event_with_the_key_of_one_that_is_over_is_over_as_soon_as_that(make_world: MakeWorld) -> None:
    """It was right that the agent mentioned the first one only once."""
    keys = iter(("file", "x", "y", "file", "v", "w"))
    world = make_world(agent(precheck=FILES, answer="structured"))
    world.scripts["ops"] = lambda call: report_each(key=next(keys))(call)
    world.run(minutes=1)
    is_open = []
    for name in ("invoice", "letter", "photo", "contract", "ticket", "poster"):
        put(world, name)
        world.run(minutes=30)
        is_open.append(world.problem("file").is_open)
    assert is_open == [True, True, False, True, True, False]


def test_a_flood_of_equal_events_is_one_message_that_says_so(make_world: MakeWorld) -> None:
    world = make_world(
        agent(precheck=FILES, answer="structured", interval="5m"),
        scripts={"ops": report_each(key="file", text="A new file came.")},
    )
    world.run(minutes=1)
    for number in range(14):
        put(world, f"file{number}")
        world.run(minutes=5)
    assert len(world.delivered) == 11
    assert "heartbeatd:new-problems" in world.delivered[-1][2]


def test_events_that_nobody_is_sent_are_over_after_a_flood_as_before_it(make_world: MakeWorld) -> None:
    keys = {"precheck": FILES, "answer": "structured", "interval": "5m", "show_alerts": "false", "show_ok": "true"}
    world = make_world("limits: {new_problems: 3}\n" + agent(**keys), scripts={"ops": report_each()})
    world.run(minutes=1)
    for name in ("invoice", "letter", "photo", "contract", "ticket", "poster"):
        put(world, name)
        world.run(minutes=5)
    assert world.problem("heartbeatd:new-problems").is_open
    world.run(minutes=70)
    for name in ("manual", "recipe", "survey"):
        put(world, name)
        world.run(minutes=5)
    assert {each.found.text for each in problems.open_reports_of(world.store.connection, "ops")} == {
        f"new: inbox/{name}.txt (6 bytes)" for name in ("recipe", "survey")
    }


def test_each_event_of_a_flood_is_sent_after_it_although_the_agent_mentions_each_only_once(make_world: MakeWorld) -> None:
    world = make_world(agent(precheck=FILES, answer="structured", interval="5m"), scripts={"ops": report_each()})
    world.run(minutes=1)
    for number in range(14):
        put(world, f"file{number:02}")
        world.run(minutes=5)
    assert "heartbeatd:new-problems" in world.delivered[-1][2]
    world.run(minutes=70)
    assert [f"file{number:02}" in world.delivered[-1][2] for number in range(14)] == [False] * 10 + [True] * 4
    assert len(world.delivered) == 12
