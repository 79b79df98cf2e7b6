"""A user closes a problem, and a run records in one word what it did to each problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from brief import brief
from test_story_reported_problems import effects
from world import MakeWorld, World

from heartbeatd.verbs import Ack, CloseProblem, Mute
from scheduler.engine.delivery import Delivery
from scheduler.engine.effects import VerbRequest
from scheduler.engine.tick_items import Refused
from scheduler.model.events import ProblemChanged
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind
from scheduler.model.problem import Subject
from scheduler.store import problems

CONFIG = """
channels: {phone: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}
agents:
  ops:
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 15m, stagger: 0s, checklist: "- look\\n", deliver: phone}
"""


def answers(*texts: str) -> dict[str, Any]:
    """A script in which the agent gives these answers, one per run, and the last one from then on."""
    said: Iterator[str] = iter(texts)
    last = texts[-1]
    return {"ops": lambda _: next(said, last)}


def sent(world: World) -> list[str]:
    return [brief(text) for _, _, text in world.delivered]


def test_a_run_records_in_one_word_what_became_of_each_finding(make_world: MakeWorld) -> None:
    world = make_world(
        CONFIG,
        scripts=answers(
            "[disk:/var] 92 %\n[mail] resolved",
            "[disk:/var] 93 %\n[backup] late",
            "[disk:/var!] 97 %\n[backup] resolved",
            "HEARTBEAT_OK",
        ),
    )
    world.run(minutes=65)
    assert effects(world) == [
        ["disk:/var opened", "mail ignored"],
        ["disk:/var known", "backup opened"],
        ["disk:/var worsened", "backup resolved"],
        [],
        ["disk:/var cleared"],
    ]


def test_a_run_records_that_it_sent_a_reminder(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers("[disk:/var] 92 % full"))
    world.run(hours=24, minutes=16)
    recorded = effects(world)
    assert recorded[:2] == [["disk:/var opened"], ["disk:/var known"]]
    assert recorded[-2:] == [["disk:/var reminded"], ["disk:/var known"]]
    assert sent(world)[1:] == ["[disk:/var] reminder: 92 % full"]


def test_an_agent_with_many_closed_problems_leaves_those_of_others_alone(make_world: MakeWorld) -> None:
    """Also those of a job with its name."""
    calm = CONFIG.partition("agents:\n")[2].replace("ops", "calm")
    job = "cron: {ops: {every: 15m, prompt: Read the mail., agent: calm, answer: structured, deliver: phone}}\n"
    noise = answers(*("\n".join(f"[item{run}-{number}] broken" for number in range(50)) for run in range(12)), "HEARTBEAT_OK")[
        "ops"
    ]
    of_calm, of_job = iter(["[disk] full", "[disk] resolved"]), iter(["[mail] full", "[mail] resolved"])
    world = make_world(
        CONFIG.replace("deliver: phone", "deliver: phone, problems: {clear_after: 1}") + calm + job,
        scripts={
            "ops": lambda call: next(of_job, "HEARTBEAT_OK") if "Read the mail." in call.stdin else noise(call),
            "calm": lambda _: next(of_calm, "HEARTBEAT_OK"),
        },
    )
    world.run(hours=4)
    over = [each for each in problems.all_problems(world.store.connection) if each.over_at and each.is_reported]
    assert Counter(each.subject.label for each in over) == {"agent/ops": problems.MAX_KEPT, "agent/calm": 1, "cron/ops": 1}


def test_a_problem_ends_while_other_agents_have_more_open_ones_than_a_tick_reads_at_once(make_world: MakeWorld) -> None:
    agent = CONFIG.partition("agents:\n")[2]
    many = "\n".join(f"[item{number}] broken" for number in range(problems.MAX_RECALLED // 2 + 1))
    said = iter(["[disk] full"])
    scripts = {"ops": lambda _: many, "pay": lambda _: many, "web": lambda _: next(said, "HEARTBEAT_OK")}
    world = make_world(CONFIG + agent.replace("ops", "pay") + agent.replace("ops", "web"), scripts=scripts)
    world.run(minutes=10)
    assert sum(each.is_open for each in problems.all_problems(world.store.connection)) > problems.MAX_RECALLED
    world.run(hours=2)
    assert [text for text in sent(world) if "disk" in text] == ["[disk] full", "[disk] over after 30m, no longer mentioned"]


def test_a_user_closes_a_problem_without_a_message(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers("[disk:/var] 92 %", "[disk:/var] 93 %", "HEARTBEAT_OK"))
    world.run(minutes=20)
    assert world.request(VerbRequest(CloseProblem(), world.problem("disk:/var").id)).key == "disk:/var"
    assert world.events_of(ProblemChanged) == [ProblemChanged("p1", "agent/ops", "disk:/var", "closed", "command")]
    closed = world.problem("disk:/var")
    assert (closed.is_open, closed.ended_by, [each.kind for each in closed.notices.values()]) == (False, "user", ["over"])
    assert len(problems.unsettled_problems(world.store.connection)) == 0
    world.run(hours=2)
    assert sent(world) == ["[disk:/var] 92 %"]


def test_a_problem_that_opens_again_and_again_after_a_user_has_closed_it_is_unstable(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers(*(f"[disk:/var] {number} %" for number in range(90, 97)), "HEARTBEAT_OK"))
    for _ in range(5):
        world.run(minutes=20)
        world.request(VerbRequest(CloseProblem(), world.problem("disk:/var").id))
    reported = ["[disk:/var] 90 %", "[disk:/var] 92 %", "[disk:/var] unstable: 93 %"]
    assert sent(world) == reported
    assert {effect for effect, *_ in effects(world)} == {"disk:/var opened", "disk:/var known"}
    assert len(problems.unsettled_problems(world.store.connection)) == 1  # it flaps, so it is not settled
    world.run(hours=30)
    assert sent(world) == reported
    assert len(problems.unsettled_problems(world.store.connection)) == 0


def test_a_problem_that_was_closed_while_it_was_unstable_and_muted_is_sent_when_it_is_found_the_next_day(
    make_world: MakeWorld,
) -> None:
    """Its recipient got it once, and neither its end nor that it is unstable."""
    replies = iter(["[disk:/var!] full", "[disk:/var] resolved", "[disk:/var] full", "[disk:/var] resolved"])
    world = make_world(CONFIG, scripts={"ops": lambda _: next(replies, "[disk:/var] full again")})
    world.run(minutes=5)
    world.request(VerbRequest(Mute.of(until=world.clock.now + timedelta(hours=3)), (Kind.HEARTBEAT, "ops")))
    world.run(hours=2, minutes=5)
    world.request(VerbRequest(CloseProblem(), world.problem("disk:/var").id))
    world.downtime(hours=26)
    world.run(minutes=30)
    assert sent(world) == ["[disk:/var] CRITICAL: full", "[disk:/var] full again"]


def test_a_message_that_is_lost_after_its_problem_was_closed_is_no_lost_end(make_world: MakeWorld) -> None:
    """The problem opens and ends once more during a mute, so nothing is sent about that either."""
    replies = iter(["[disk] full", "[disk!] full", "[disk] full", "[disk] resolved"])
    world = make_world(CONFIG, scripts={"ops": lambda _: next(replies, "HEARTBEAT_OK")})
    world.run(minutes=10)
    world.send = lambda _: DeliveryResult("retry", "busy")
    world.run(minutes=5, seconds=10)
    world.request(VerbRequest(CloseProblem(), world.problem("disk").id))
    world.send = lambda _: DeliveryResult("dead", "refused")
    world.run(minutes=2)
    world.request(VerbRequest(Mute.of(until=world.clock.now + timedelta(minutes=35)), (Kind.HEARTBEAT, "ops")))
    world.send = lambda _: DeliveryResult("delivered")
    world.run(hours=2)
    assert [text for text in sent(world) if "disk" in text] == ["[disk] full"]


def test_closing_one_problem_keeps_the_count_of_the_others(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers("[disk] full\n[mail] late"))
    world.run(minutes=5)
    world.request(VerbRequest(CloseProblem(), world.problem("disk").id))
    assert len(problems.unsettled_problems(world.store.connection)) == 1


def test_a_problem_that_cannot_be_closed_is_named_in_one_line(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers("[disk] full\n[mail] late"))
    world.run(minutes=5)
    mail = world.problem("mail").id
    world.request(VerbRequest(CloseProblem(), mail))
    for number, code, said in (
        (mail, "closed", f"problem p{mail} (agent/ops mail) is over already"),
        (99, "not_found", "no problem p99; `heartbeatd problems` lists them"),
    ):
        with pytest.raises(Refused) as refused:
            world.request(VerbRequest(CloseProblem(), number))
        assert (refused.value.code, str(refused.value)) == (code, said)


def test_a_failure_can_be_closed_and_opens_again_when_it_goes_on(make_world: MakeWorld) -> None:
    replies: Iterator[object] = iter([1] * 6)
    yaml = CONFIG.replace("deliver: phone", "deliver: phone, retries: 0")
    world = make_world(yaml, scripts={"ops": lambda _: next(replies, "HEARTBEAT_OK")})
    world.run(minutes=50)
    world.request(VerbRequest(CloseProblem(), world.problem("failed").id))
    world.run(hours=2)
    assert [text.partition(" (")[0].splitlines()[0] for text in sent(world)] == [
        "warning  ops failed: exit code 1",
        "warning  ops failed: exit code 1",
        "over     ops failed: after 30m   p1",
    ]


TWO_AGENTS = CONFIG.replace("  ops:", "  web: &ops").replace("deliver: phone}", "deliver: phone}\n  ops: *ops")


def open_keys(world: World, agent: str) -> list[str]:
    return [each.key for each in problems.open_reports_of(world.store.connection, agent)]


def test_what_a_removed_agent_has_reported_is_closed_without_a_message_and_opens_again_with_the_agent(
    make_world: MakeWorld,
) -> None:
    world = make_world(TWO_AGENTS, scripts=dict.fromkeys(("web", "ops"), lambda _: "[disk] full"))
    world.run(minutes=5)
    world.reload(TWO_AGENTS.replace("\n  ops: *ops", ""))
    world.run(hours=1)
    assert (open_keys(world, "ops"), open_keys(world, "web")) == ([], ["disk"])
    assert len(sent(world)) == 2
    world.reload(TWO_AGENTS)
    world.run(minutes=16)
    assert open_keys(world, "ops") == ["disk"]
    assert len(sent(world)) == 3


@pytest.mark.parametrize("edit", [("  ops:", "  web:"), ("{interval", "{enabled: false, interval")], ids=["removed", "disabled"])
@pytest.mark.parametrize(("key", "answer", "worse"), [("disk", "[disk] full", "[disk!] full"), ("failed", 7, None)])
def test_an_acknowledgement_lasts_although_an_edit_takes_its_agent_away_for_a_minute(
    make_world: MakeWorld, key: str, answer: str | int, worse: str | None, edit: tuple[str, str]
) -> None:
    config = CONFIG.replace("deliver: phone", "deliver: phone, retries: 0, problems: {after: 1}")
    world = make_world(config, scripts={"ops": lambda _: answer})
    world.run(minutes=5)
    world.request(VerbRequest(Ack(), world.problem(key).id))
    world.reload(config.replace(*edit))
    world.run(minutes=1)
    world.reload(config)
    world.run(hours=30)
    known = world.problem(key)
    assert (known.is_open, known.state(world.clock.now)) == (True, "acknowledged")
    assert len(sent(world)) == 1
    if worse:
        world.scripts["ops"] = lambda _: worse
        world.run(minutes=16)
        assert [text.startswith("[disk] CRITICAL") for text in sent(world)[1:]] == [True]


def test_an_acknowledgement_ends_if_its_agent_is_away_for_more_than_a_day(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers("[disk] full"))
    world.run(minutes=5)
    world.request(VerbRequest(Ack(), world.problem("disk").id))
    world.reload(CONFIG.replace("  ops:", "  web:"))
    world.run(hours=25)
    world.reload(CONFIG)
    world.run(minutes=16)
    assert sent(world)[-1] == "[disk] full"
    assert world.problem("disk").state(world.clock.now) == "open"


def test_a_disabled_agent_keeps_what_it_has_reported(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers("[disk] full"))
    world.run(minutes=5)
    world.reload(CONFIG.replace("{interval", "{enabled: false, interval"))
    world.reload(CONFIG)
    world.run(minutes=16)
    assert open_keys(world, "ops") == ["disk"]
    assert len(sent(world)) == 1


def test_the_findings_of_a_run_that_ends_after_its_agent_was_removed_are_sent_and_closed(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers("[disk] full"), durations={"ops": timedelta(minutes=1)})
    world.run(seconds=30)
    world.reload(CONFIG.replace("  ops:", "  web:"))
    world.run(minutes=2)
    assert len(sent(world)) == 1
    assert open_keys(world, "ops") == []


@pytest.mark.parametrize("edit", [("  ops:", "  web:"), ("{interval", "{enabled: false, interval")], ids=["removed", "disabled"])
@pytest.mark.parametrize(("last", "news"), [("[disk] full", ["over"]), (7, [])])
def test_a_run_that_ends_after_its_agent_was_taken_out_of_service_sends_no_known_problem_again(
    make_world: MakeWorld, edit: tuple[str, str], last: str | int, news: list[str]
) -> None:
    """The agent fails in its second run, and is removed or disabled during the third."""
    config = CONFIG.replace("deliver: phone", "deliver: phone, retries: 0, problems: {after: 1}")
    said = iter(["[disk] full", 7, last])
    world = make_world(config, scripts={"ops": lambda _: next(said)}, durations={"ops": timedelta(minutes=1)})
    world.run(minutes=30, seconds=30)
    assert len(sent(world)) == 2
    world.reload(config.replace(*edit))
    world.run(minutes=2)
    assert [text.split()[0] for text in sent(world)[2:]] == news
    assert problems.problems_of(world.store.connection, Subject(Kind.HEARTBEAT, "ops")) == []


def test_what_a_removed_agent_has_reported_is_closed_after_a_crash_during_its_last_run(make_world: MakeWorld) -> None:
    world = make_world(CONFIG, scripts=answers("[disk] full"), durations={"ops": timedelta(minutes=1)})
    world.run(minutes=15, seconds=30)
    world.reload(CONFIG.replace("  ops:", "  web:"))
    assert open_keys(world, "ops") == ["disk"]
    world.kill()
    world.boot()
    world.run(minutes=2)
    assert open_keys(world, "ops") == []
    assert len(sent(world)) == 1


def test_a_problem_that_a_user_has_closed_is_over_after_as_many_answers_as_a_new_one(make_world: MakeWorld) -> None:
    """It had been mentioned again after its end, so before it was closed it would have needed twice as many."""
    replies = iter(["[disk] full", "HEARTBEAT_OK", "HEARTBEAT_OK", "[disk] full", "[disk] full"])
    world = make_world(
        CONFIG.replace("deliver: phone", "deliver: phone, problems: {clear_after: 2}"),
        scripts={"ops": lambda _: next(replies, "HEARTBEAT_OK")},
    )
    world.run(minutes=50)
    world.request(VerbRequest(CloseProblem(), world.problem("disk").id))
    world.run(hours=1)
    assert effects(world)[3:] == [["disk opened"], ["disk opened"], [], ["disk cleared"], []]


def test_a_problem_that_is_as_bad_as_once_before_is_no_worse_for_its_recipient(make_world: MakeWorld) -> None:
    """The reminder in between had a lower severity."""
    replies = iter(["[disk!] full", *["[disk] full"] * 5])
    world = make_world(CONFIG.replace("15m", "5h"), scripts={"ops": lambda _: next(replies, "[disk!] full")})
    world.run(hours=31)
    assert sent(world) == ["[disk] CRITICAL: full", "[disk] reminder: full"]


def test_a_recipient_that_was_removed_from_deliver_gets_no_end(make_world: MakeWorld) -> None:
    second = CONFIG.replace(
        "agents:", '  desk: {kind: webhook, url: "http://127.0.0.1:9/y", allow_private: true}\nagents:'
    ).replace("channels: {phone: {", "channels:\n  phone: {")
    config = second.replace("allow_private: true}}", "allow_private: true}", 1)
    got: list[tuple[str, str]] = []

    def send(delivery: Delivery) -> DeliveryResult:
        got.append((delivery.channel.name, delivery.message.text.split()[0]))
        return DeliveryResult("delivered")

    replies = iter(["[disk] full", "[disk] full"])
    script = {"ops": lambda _: next(replies, "[disk] resolved")}
    world = make_world(config.replace("deliver: phone", "deliver: [phone, desk]"), send=send, scripts=script)
    world.run(minutes=20)
    world.reload(config)
    world.run(minutes=15)
    assert got == [("phone", "warning"), ("desk", "warning"), ("phone", "over")]
