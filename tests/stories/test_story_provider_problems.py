"""Problems of providers end to end: one message and one end for all agents of a failing provider, and one if it is unstable."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from servers.messages import Models, error_answer, text_answer
from servers.scripted import Act, Server, hang_up
from simulation import size
from test_story_breakers import FIVE, FORBIDDEN, KEY, LATER, NO_KEY, OK, by_model, count_outcomes, fleet
from test_story_notices import process_result
from test_story_slots import agent, job
from world import MakeWorld, World

from scheduler.engine.delivery import Delivery
from scheduler.insight.problem_list import list_problems
from scheduler.insight.status_data import read_status
from scheduler.model.message import DeliveryResult
from scheduler.store.problems import unsettled_problems

BUSY = error_answer(529, "overloaded_error", "Overloaded")


def notification_lines(world: World) -> list[str]:
    """The time and first line of each notification."""
    return [f"{when:%m-%d %H:%M} {text.splitlines()[0]}" for when, _, text in world.delivered]


def notification_kinds(world: World) -> list[str]:
    """The kind and channel of each notification."""
    rows = world.store.connection.execute("select notice, channel from outbox where notice is not null order by id")
    return [f"{row['notice'].split(' ')[0]} {row['channel']}" for row in rows]


def test_one_agent_with_a_forbidden_model_does_not_stop_four_others_of_its_provider(make_world: MakeWorld) -> None:
    """The other agents miss at most one run each, with one notification and one recovery."""
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        yaml = fleet(server.url, *FIVE, model_a="forbidden", **LATER)
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(hours=5, minutes=20)
        server.answer = lambda request: OK
        world.run(hours=18, minutes=40)
    assert [49 - count_outcomes(world, name)["ok"] <= 1 for name in FIVE[1:]] == [True] * 4
    assert notification_lines(world) == [
        (
            "03-02 08:00 warning  provider anthropic, model forbidden refused: does not allow the use of the model forbidden:"
            " HTTP 403 Forbidden: this key may not use that model (since 2026-03-02 08:00 UTC)   p1"
        ),
        "03-02 13:30 over     provider anthropic, model forbidden refused: after 5h30m   p1",
    ]


REMEDY = (
    "What to do: set a valid key in providers.anthropic.api_key, then run `heartbeatd reload`."
    " If it is in the environment, restart."
)


def test_the_notification_of_a_problem_has_status_error_affected_agents_and_advice(make_world: MakeWorld) -> None:
    with Models(lambda request: NO_KEY) as server:
        world = make_world(fleet(server.url, *FIVE, "idle", idle="enabled: false"), environ={"KEY": KEY})
        world.run(minutes=5)
    ((_, _, text),) = world.delivered
    assert text.splitlines() == [
        (
            "CRITICAL provider anthropic refused: the key is not valid: HTTP 401 Unauthorized: invalid x-api-key"
            " (since 2026-03-02 08:00 UTC)   p1"
        ),
        "Stops agent a, agent b, agent c, agent d, agent e. No calls are made except a trial call every 30 minutes.",
        REMEDY,
        "More: heartbeatd show 1",
    ]


def test_the_message_about_a_provider_does_not_wait_because_of_the_agent_that_failed_first(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    """Another agent of the provider has messages at any time. If all have hours, it waits, whoever else has this recipient."""
    night = 'deliver: {to: hook, hours: "07:00-22:00"}, problems: {after: 1}'
    job = "cron: {look: {schedule: '0 12 * * *', command: look, deliver: hook}}\n"
    for number, (web, arrives) in enumerate((("problems: {after: 1}", "03-02 23:00"), (night, "03-03 07:00"))):
        with Models(lambda request: BUSY) as server:
            yaml = fleet(server.url, "ops", "web", "off", ops=night, web=f"stagger: 10m, {web}", off="enabled: false") + job
            (folder := tmp_path / str(number)).mkdir()
            world = make_world(yaml, folder, environ={"KEY": KEY}, start="2026-03-02 23:00")
            world.run(hours=9)
        assert notification_lines(world)[0].startswith(f"{arrives} warning  provider anthropic unreachable"), web


def test_the_message_about_a_provider_that_a_job_has_found_is_sent_again_if_it_may_not_have_arrived(
    make_world: MakeWorld,
) -> None:
    """Only messages about the job itself are held."""
    job = "cron: {look: {every: 30m, prompt: Look., agent: ops, deliver: phone, retries: 0}}\n"
    results = iter([DeliveryResult("uncertain", "the connection broke")])
    with Models(lambda request: NO_KEY) as server:
        yaml = fleet(server.url, "ops", ops="interval: none").replace("channels: {", 'channels: {phone: {url: "tgram://1:a/2"}, ')
        world = make_world(yaml + job, environ={"KEY": KEY})
        world.send = lambda _: next(results, DeliveryResult("delivered"))
        world.run(minutes=40)
    assert [line[12:34] for line in notification_lines(world)] == ["CRITICAL provider anth"]


def test_a_failure_is_covered_only_by_a_problem_that_is_listed(make_world: MakeWorld) -> None:
    def listed(world: World) -> list[tuple[str, str, str | None]]:
        return [(each.subject, each.state, each.cause) for each in list_problems(world.store.connection, world.clock.now)]

    with Models(lambda request: BUSY) as server:
        world = make_world(fleet(server.url, "ops"), environ={"KEY": KEY})
        world.run(minutes=5)
        assert listed(world) == [("agent/ops", "seen", None), ("provider/anthropic", "seen", None)]
        world.run(minutes=30)
        assert listed(world) == [("agent/ops", "covered", "p1"), ("provider/anthropic", "open", None)]


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("act", "begins"),
    [
        (NO_KEY, "provider anthropic refused: the key is not valid"),
        (error_answer(402, "billing_error", "no credit"), "provider anthropic refused: no calls until the account is paid"),
        (
            error_answer(429, "rate_limit_error", "slow", retry_after="86400"),
            "provider anthropic unreachable: refuses calls because of its rate limit",
        ),
        (FORBIDDEN, "provider anthropic, model claude-haiku-5-5 refused: does not allow the use of the model"),
        (
            error_answer(404, "not_found_error", "what?"),
            "provider anthropic, model claude-haiku-5-5 refused: does not know the model",
        ),
        (BUSY, "provider anthropic unreachable: is overloaded"),
        (error_answer(500, "api_error", "broken"), "provider anthropic unreachable: answers with server errors"),
        (hang_up(), "provider anthropic unreachable: cannot be reached"),
    ],
)
def test_a_provider_that_fails_many_agents_for_hours_is_one_message_and_one_end(
    make_world: MakeWorld, act: Act, begins: str
) -> None:
    names = [f"a{number:02}" for number in range(15 if act is BUSY else size(5, 15))]
    more = {name: f"stagger: {place}m, problems: {{remind: 2d}}" for place, name in enumerate(names)}
    with Models(lambda request: act) as server:
        world = make_world(fleet(server.url, *names, **more), environ={"KEY": KEY})
        world.run(hours=size(3, 5))  # a critical problem is repeated after six
        server.answer = lambda request: OK
        world.run(hours=2)
    first, last = notification_lines(world)
    assert begins in first
    assert "over     provider anthropic" in last
    assert all(entry["failing"] is None for entry in read_status(world.store.connection, world.clock.now).as_data()["entries"])


def test_an_agent_with_a_different_error_has_its_own_notification(make_world: MakeWorld) -> None:
    with Models(by_model(own=error_answer(400, "invalid_request_error", "what?"), busy=BUSY)) as server:
        yaml = fleet(server.url, "a", "b", "c", model_a="busy", model_b="busy", model_c="own")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=65)
    assert sorted(line[12:] for line in notification_lines(world)) == [
        (
            "warning  c failed: bad_request: provider 'anthropic': HTTP 400 Bad Request: what?"
            " (2 times in a row since 2026-03-02 08:00 UTC)   p4"
        ),
        "warning  provider anthropic unreachable: is overloaded: HTTP 529: Overloaded (since 2026-03-02 08:00 UTC)   p1",
    ]


def test_a_short_problem_below_every_agents_threshold_is_not_reported(make_world: MakeWorld) -> None:
    with Models(lambda request: BUSY) as server:
        world = make_world(fleet(server.url, *FIVE), environ={"KEY": KEY})
        world.run(minutes=20)
        server.answer = lambda request: OK
        world.run(hours=2)
    assert (notification_lines(world), [row["result"] for row in world.records()].count("failed")) == ([], 5)
    assert world.store.connection.execute("select count(*) from problem where over_at is null").fetchone()[0] == 0


def test_a_problem_without_a_breaker_is_reported_when_one_agent_reaches_its_threshold(make_world: MakeWorld) -> None:
    with Models(lambda request: BUSY) as server:
        world = make_world(fleet(server.url, "a", "b", a="problems: {after: 9}", b="problems: {after: 3}"), environ={"KEY": KEY})
        world.run(minutes=59)
        assert notification_lines(world) == []
        world.run(minutes=2)
    assert [line[:11] for line in notification_lines(world)] == ["03-02 09:00"]


CHANNELS = "{hook: {kind: webhook, url: 'http://127.0.0.1:1/x', allow_private: true}, other: {kind: webhook, url: 'http://127.0.0.1:1/y', allow_private: true}}"


def with_two_channels(yaml: str) -> str:
    head, _, tail = yaml.partition("channels: ")
    return f"{head}channels: {CHANNELS}\n{tail.partition(chr(10))[2]}"


def test_each_channel_gets_one_notification_and_one_recovery(make_world: MakeWorld) -> None:
    with Models(lambda request: NO_KEY) as server:
        other = "deliver: other, stagger: 10m"
        world = make_world(with_two_channels(fleet(server.url, *FIVE, d=other, e=other)), environ={"KEY": KEY})
        world.run(hours=2)
        server.answer = lambda request: OK
        world.run(hours=1)
    assert sorted(notification_kinds(world)) == ["opened hook", "opened other", "over hook", "over other"]


def test_an_agent_without_notifications_causes_no_notification_of_a_problem(make_world: MakeWorld) -> None:
    with Models(lambda request: NO_KEY) as server:
        world = make_world(fleet(server.url, "a", a="problems: {after: none}"), environ={"KEY": KEY})
        world.run(hours=2)
    assert notification_lines(world) == []


def test_a_job_of_the_same_provider_is_listed_as_affected(make_world: MakeWorld) -> None:
    cron = 'cron: {digest: {every: 1h, prompt: "Write it.", agent: a, deliver: hook}}\n'
    with Models(lambda request: NO_KEY) as server:
        world = make_world(fleet(server.url, "web", "ops") + cron.replace("agent: a", "agent: web"), environ={"KEY": KEY})
        world.run(hours=3)
    assert len(notification_lines(world)) == 1
    assert "Stops agent ops, agent web, cron job digest." in world.delivered[0][2]


def test_a_problem_has_reminders_and_a_notification_for_a_different_error(make_world: MakeWorld) -> None:
    script = [NO_KEY] * 14 + [error_answer(402, "billing_error", "no credit")] * 3 + [OK]
    with Server(script) as server:
        world = make_world(fleet(server.url, "a"), environ={"KEY": KEY})
        world.run(hours=10)
    assert [f"{line[:20]}{''.join(re.findall('reminder|another error', line))}" for line in notification_lines(world)] == [
        "03-02 08:00 CRITICAL",
        "03-02 14:00 CRITICALreminder",
        "03-02 15:00 CRITICALanother error",
        "03-02 16:30 over    ",
    ]


def test_an_unreachable_provider_gets_reminders_at_the_interval_of_the_agent_and_a_message_for_a_wrong_certificate(
    make_world: MakeWorld,
) -> None:
    with Models(lambda request: BUSY) as busy, Server([], tls=True) as untrusted:
        yaml = fleet(busy.url, "a", a="problems: {remind: 8h}")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(hours=9)
        world.reload(yaml.replace(busy.url, untrusted.url))
        world.run(minutes=40)
    found = [line.removeprefix("03-02 ") for line in notification_lines(world)]
    assert [(line[:5], *re.findall("overloaded|not trusted|reminder|another error", line)) for line in found] == [
        ("08:30", "overloaded"), ("16:30", "overloaded", "reminder"), ("17:30", "not trusted", "not trusted", "another error"),
    ]  # fmt: skip


def test_while_no_call_is_made_a_provider_keeps_the_error_of_its_last_call(make_world: MakeWorld) -> None:
    """Its breaker was opened by another error."""
    with Server([NO_KEY, error_answer(529, "overloaded_error", "Overloaded", retry_after="900")]) as server:
        world = make_world(fleet(server.url, "a", a="interval: 10m"), environ={"KEY": KEY})
        world.run(minutes=45)
        assert count_outcomes(world, "a") == Counter(auth=1, overloaded=1, breaker_open=3)
    found = {each.subject: each.text for each in list_problems(world.store.connection, world.clock.now)}
    assert found["provider/anthropic"] == "HTTP 529: Overloaded"


def test_an_agent_whose_own_error_is_over_does_not_end_the_failure_of_its_provider_for_others(make_world: MakeWorld) -> None:
    own = error_answer(400, "invalid_request_error", "what?")
    with Models(by_model(own=own, busy=BUSY)) as server:
        once = "problems: {after: 1}"
        yaml = fleet(server.url, "a", "b", model_a="own", a=once, model_b="busy", b=f"stagger: 5m, {once}")
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=20)
        server.answer = by_model(busy=BUSY)
        world.run(minutes=20)
    first, second, end = (text.splitlines() for _, _, text in world.delivered)
    assert [line[0].partition(":")[0] for line in (first, second, end)] == [
        "warning  a failed", "warning  provider anthropic unreachable", "over     a failed",
    ]  # fmt: skip
    assert second[1] == "Stops agent b."


def test_a_restart_neither_repeats_nor_forgets_a_problem(make_world: MakeWorld) -> None:
    with Models(lambda request: NO_KEY) as server:
        world = make_world(fleet(server.url, *FIVE), environ={"KEY": KEY})
        world.run(minutes=45)
        world.downtime(minutes=5)
        world.run(minutes=45)
        server.answer = lambda request: OK
        world.downtime(minutes=5)
        world.run(minutes=45)
    assert notification_kinds(world) == ["opened hook", "over hook"]


def test_changing_the_model_of_an_agent_ends_the_problem_of_the_old_model(make_world: MakeWorld) -> None:
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        world = make_world(fleet(server.url, "a", model_a="forbidden"), environ={"KEY": KEY})
        world.run(minutes=5)
        world.reload(fleet(server.url, "a"))
        world.run(minutes=30)
    assert world.delivered[1][2].splitlines() == [
        "over     provider anthropic, model forbidden refused: after 30m   p1",
        "It was: does not allow the use of the model forbidden: HTTP 403 Forbidden: this key may not use that model",
        "Agent a uses another model now and works. No run waits for provider anthropic, model forbidden any longer.",
    ]
    assert world.store.connection.execute("select count(*) from problem where over_at is null").fetchone()[0] == 0


def test_removing_the_agent_ends_its_problem(make_world: MakeWorld) -> None:
    with Models(by_model(forbidden=FORBIDDEN)) as server:
        world = make_world(fleet(server.url, "a", "b", model_a="forbidden"), environ={"KEY": KEY})
        world.run(minutes=5)
        world.reload(fleet(server.url, "b"))
        world.run(minutes=30)
    assert read_status(world.store.connection, world.clock.now).problems == []
    assert len(notification_lines(world)) == 1


def test_an_agent_that_was_only_skipped_starts_counting_failures_after_the_recovery(make_world: MakeWorld) -> None:
    with Models(lambda request: NO_KEY) as server:
        world = make_world(fleet(server.url, "a", "c", c="interval: 1d, stagger: 20m", model_c="slow"), environ={"KEY": KEY})
        world.run(minutes=29)
        assert count_outcomes(world, "c") == Counter(breaker_open=1)
        server.answer = by_model(slow=BUSY)
        world.run(hours=24)
    assert count_outcomes(world, "c") == Counter(breaker_open=1, overloaded=1)
    assert notification_kinds(world) == ["opened hook", "over hook"]


def test_status_shows_the_problem_and_whether_it_was_reported(make_world: MakeWorld) -> None:
    with Models(lambda request: NO_KEY) as server:
        world = make_world(fleet(server.url, "a", "b"), environ={"KEY": KEY})
        world.run(minutes=5)
        seen = read_status(world.store.connection, world.clock.now).as_data()
        world.clock.now += timedelta(hours=2)
        world.run(seconds=10)
    keys = ("number", "subject", "key", "text", "since", "state", "unstable", "cause")
    error = "HTTP 401 Unauthorized: invalid x-api-key"
    assert [tuple(each[key] for key in keys) for each in seen["problems"]] == [
        ("p1", "provider/anthropic", "refused", error, "2026-03-02T08:00:00Z", "open", False, None),
        ("p2", "agent/a", "failed", error, "2026-03-02T08:00:00Z", "covered", False, "p1"),
        ("p3", "agent/b", "failed", error, "2026-03-02T08:00:00Z", "covered", False, "p1"),
    ]
    assert [entry["failing"]["told_at"] for entry in seen["entries"]] == ["2026-03-02T08:00:00Z"] * 2
    later = read_status(world.store.connection, world.clock.now).as_data()
    assert [each["delivered_at"] for each in later["problems"][0]["notices"]] == ["2026-03-02T08:00:00Z"]


def test_a_problem_is_reported_on_another_channel_if_its_channel_is_dead(make_world: MakeWorld) -> None:
    def send(delivery: Delivery) -> DeliveryResult:
        return DeliveryResult("dead", "gone") if delivery.channel.name == "hook" else DeliveryResult("delivered")

    with Models(lambda request: NO_KEY) as server:
        yaml = with_two_channels(fleet(server.url, "a", "b"))
        world = make_world(yaml, environ={"KEY": KEY}, send=send)
        world.run(hours=1)
    assert notification_kinds(world)[:2] == ["opened hook", "opened other"]


# --- unstable ---------------------------------------------------------------------------------------------------------


def flap(world: World, name: str, *spans: timedelta, error: str = "no") -> None:
    """Let an entry fail and succeed alternately for these spans, starting with a failure."""
    for place, span in enumerate(spans):
        fails = place % 2 == 0
        world.scripts[name] = lambda call, fails=fails: process_result(1, error) if fails else "HEARTBEAT_OK"
        world.run(seconds=max(span.total_seconds() - (not place), 0))  # one second before the slot at the end of the span


HOUR = timedelta(hours=1)


def words(world: World, first: int = 0) -> list[str]:
    """The time of each notification from `first` on, its severity or `over`, and whether it says that the problem is unstable."""
    lines = notification_lines(world)[first:]
    return [f"{line[:20].strip()}{' unstable' if '(unstable' in line else ''}" for line in lines]


def test_an_agent_that_fails_for_the_third_time_in_a_day_is_unstable_until_it_is_not(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    flap(world, "ops", *[HOUR] * 5, timedelta(hours=30))
    assert words(world) == [
        "03-02 08:30 warning", "03-02 09:00 over", "03-02 10:30 warning", "03-02 11:00 over", "03-02 12:30 warning unstable",
        "03-03 08:30 over",
    ]  # fmt: skip


def test_an_agent_that_is_unstable_for_a_day_causes_no_further_message(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0", problems="{after: 1, remind: 6h}"))
    flap(world, "ops", *[timedelta(minutes=30)] * 48)
    assert words(world) == [
        "03-02 08:00 warning", "03-02 08:30 over", "03-02 09:00 warning", "03-02 09:30 over", "03-02 10:00 warning unstable",
    ]  # fmt: skip


def test_an_unstable_agent_that_keeps_failing_gets_reminders_after_a_day(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    flap(world, "ops", HOUR, HOUR, HOUR, HOUR, timedelta(hours=26), timedelta(hours=1))
    assert words(world, 4) == ["03-02 12:30 warning unstable", "03-03 12:30 warning", "03-03 14:00 over"]
    assert "(reminder, " in notification_lines(world)[5]


def test_two_openings_within_a_day_are_not_unstable_and_older_ones_do_not_count(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    flap(world, "ops", *[HOUR, timedelta(hours=12)] * 3)
    assert [line for line in words(world) if "unstable" in line] == []
    assert len(words(world)) == 6


def test_an_unstable_problem_survives_a_restart(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    flap(world, "ops", *[HOUR] * 5)
    world.downtime(seconds=1)
    flap(world, "ops", timedelta(0), HOUR, HOUR, HOUR)
    assert words(world, 4) == ["03-02 12:30 warning unstable"]
    assert [each.unstable for each in list_problems(world.store.connection, world.clock.now)] == [True]


def test_an_unstable_job_is_reported_once(make_world: MakeWorld) -> None:
    world = make_world(job(every="30m", deliver="log"))
    numbers = count()
    world.scripts["measure"] = lambda call: 1 if next(numbers) % 2 == 0 else ""
    world.run(hours=5)
    assert ["unstable" in line for line in words(world)] == [False] * 4 + [True]


def test_an_unstable_provider_is_reported_once_until_it_is_stable(make_world: MakeWorld) -> None:
    with Models(lambda request: OK) as server:
        more = {name: f"{stagger}, problems: {{after: 1}}" for name, stagger in LATER.items()}
        world = make_world(fleet(server.url, *FIVE, **more), environ={"KEY": KEY})
        for number in range(10):
            fails = number % 2 == 0
            server.answer = lambda request, fails=fails: BUSY if fails else OK
            world.run(minutes=40)
        server.answer = lambda request: OK
        world.run(hours=23)
    found = [line.partition(" ")[2].partition(" ")[2] for line in words(world)]
    assert found == ["warning", "over", "warning", "over", "warning unstable", "over"]


@pytest.mark.parametrize(("others", "last"), [((), "03-02 11:00 over"), (("c",), "03-02 10:30 warning unstable")])
def test_the_problem_of_an_unstable_model_is_over_at_once_when_its_last_agent_uses_another_model(
    make_world: MakeWorld, others: tuple[str, ...], last: str
) -> None:
    """Not while its circuit breaker stops another agent, although that has not run yet."""
    with Models(lambda request: OK) as server:
        more = {"c": "interval: none", "model_c": "forbidden"}
        world = make_world(fleet(server.url, "a", *others, model_a="forbidden", **more), environ={"KEY": KEY})
        for number in range(5):
            server.answer = by_model(forbidden=OK if number % 2 else FORBIDDEN)
            world.run(minutes=30)
        world.reload(fleet(server.url, "a", *others, **more))
        world.run(minutes=30)
    assert words(world)[-1] == last


def test_removing_an_unstable_agent_ends_its_problem(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"))
    flap(world, "ops", *[HOUR] * 5)
    world.reload(agent(retries="0", enabled="false"))
    world.reload(agent(retries="0"))
    flap(world, "ops", timedelta(0), timedelta(hours=30))
    assert len(notification_lines(world)) == 5


def test_an_inconclusive_failure_does_not_end_the_problem(make_world: MakeWorld) -> None:
    with Server([NO_KEY, error_answer(400, "invalid_request_error", "what?"), OK]) as server:
        world = make_world(fleet(server.url, "a"), environ={"KEY": KEY})
        world.run(minutes=40)
        assert notification_kinds(world) == ["opened hook", "opened hook"]
        world.run(minutes=25)
    assert notification_kinds(world)[2:] == ["over hook", "over hook"]


def test_a_provider_is_over_when_it_answers_and_no_entry_fails_because_of_it(make_world: MakeWorld, tmp_path: Path) -> None:
    """Also if the agent that it made fail then had another problem, or was changed or removed, and a second agent calls it."""
    table: list[tuple[str, Act, str]] = [
        ("its model is refused", FORBIDDEN, ""),
        ("an error of its own", error_answer(400, "invalid_request_error", "what?"), ""),
        ("removed", BUSY, "removed"),
        ("disabled", BUSY, "enabled: false"),
        ("its failures are not reported", BUSY, "problems: {after: none}"),
    ]
    for number, (case, later, change) in enumerate(table):
        (folder := tmp_path / str(number)).mkdir()
        with Models(by_model(own=BUSY)) as server:
            world = make_world(fleet(server.url, "a", "b", model_a="own", b="stagger: 5m"), folder, environ={"KEY": KEY})
            world.run(minutes=40)
            assert [line[12:47] for line in notification_lines(world)] == ["warning  provider anthropic unreach"], case
            server.answer = by_model(own=later)
            names = ("b",) if change == "removed" else ("a", "b")
            if change:
                world.reload(fleet(server.url, *names, model_a="own", a=change, b="stagger: 5m"))
            world.run(minutes=30)
            server.answer = lambda request: OK
            world.run(hours=1)
        ends = [line[12:] for line in notification_lines(world) if "over     provider anthropic unreachable" in line]
        assert len(ends) == 1, case
        assert [each for each in read_status(world.store.connection, world.clock.now).problems if each.kind is None] == [], case


def test_each_provider_that_an_agent_was_switched_from_is_over_when_the_agent_works(make_world: MakeWorld) -> None:
    with Models(lambda request: BUSY) as server:
        second = f'}}, second: {{kind: anthropic, api_key: "${{KEY}}", base_url: "{server.url}"}}}}\n'
        yaml = fleet(server.url, "a").replace("}}\n", second, 1)
        world = make_world(yaml, environ={"KEY": KEY})
        world.run(minutes=40)
        world.reload(yaml.replace("runner: {kind: anthropic}", "runner: {kind: anthropic, provider: second}"))
        world.run(hours=1)
        server.answer = lambda request: OK
        world.run(hours=1)
    assert [line.partition(" unreachable")[0] for line in notification_lines(world)] == [
        "03-02 08:30 warning  provider anthropic",
        "03-02 09:00 warning  provider second",
        "03-02 10:00 over     provider second",
        "03-02 10:00 over     provider anthropic",
    ]
    assert world.delivered[-1][2].endswith(
        "Agent a uses another model now and works. No run waits for provider anthropic any longer."
    )


def test_a_provider_is_not_over_while_it_answers_only_the_first_attempt_of_a_run(make_world: MakeWorld) -> None:
    """The first attempt gets an unusable answer, the second one none."""
    with Models(lambda request: BUSY) as server:
        server.answer = lambda request: BUSY if len(server.requests) % 2 == 0 else text_answer("")
        world = make_world(fleet(server.url, "a", a="retries: 1"), environ={"KEY": KEY})
        world.run(hours=2, minutes=50)
        assert (len(server.requests), len(notification_lines(world))) == (12, 1)


def test_an_agent_that_is_removed_during_a_run_that_fails_has_no_problem_any_more(make_world: MakeWorld) -> None:
    with Models(lambda request: BUSY) as server:
        yaml = fleet(server.url, "a", "b", a="timeout: 30m, problems: {after: 1}", b="stagger: 15m")
        world = make_world(yaml, environ={"KEY": KEY}, durations={"a": timedelta(minutes=10)})
        world.run(minutes=3)
        world.reload(fleet(server.url, "b", b="stagger: 15m"))
        world.run(minutes=8)
        server.answer = lambda request: OK
        world.run(hours=1)
    assert [line[12:20].strip() for line in notification_lines(world)] == ["warning", "over"]
    assert unsettled_problems(world.store.connection) == []
