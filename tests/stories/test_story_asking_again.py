"""A mediocre model: other keys, forgotten findings, prose and wrong severities, and what users are sent all the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Any

import pytest
from brief import brief
from loops import loop_over
from servers.messages import message, text, tool
from simulation import size
from world import AgentCall, MakeWorld, World

from heartbeat.runners import HttpReply
from scheduler.engine.delivery import Delivery
from scheduler.model.message import DeliveryResult
from scheduler.store import problems

CONFIG = """
providers: {{p: {{kind: anthropic, api_key: "${{KEY}}"}}}}
prices: {{m: {{input: 1.0, output: 5.0}}}}
channels: {{phone: {{kind: webhook, url: "http://127.0.0.1:9/phone", allow_private: true}}}}
agents:
  ops:
    runner: {{kind: anthropic, provider: p}}
    model: m
    heartbeat: {{interval: 15m, stagger: 0s, checklist: "- look\\n", deliver: phone{more}}}
"""
PRECHECK = ", precheck: {command: ./check.sh, unchanged: skip}"
VAR, VAR_WORSE, HOME, NGINX = (
    "nearly full: /var 91 %",
    "nearly full: /var 97 %",
    "nearly full: /home 92 %",
    "nginx.service failed",
)
Findings = list[tuple[str, str, str]]


class Model:
    """A model that gives these answers, one per call, and the last one from then on: findings, or prose as a text."""

    def __init__(self, *answers: Findings | str) -> None:
        self.answers = list(answers)
        self.prompts: list[str] = []
        self.usage = {"input_tokens": 400, "output_tokens": 60}

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply:
        self.prompts.append(json.loads(body)["messages"][-1]["content"])
        given = self.answers[min(len(self.prompts), len(self.answers)) - 1]
        if isinstance(given, str):
            answer = message(text(given), usage=self.usage)
        else:
            found = [dict(zip(("key", "text", "severity"), each, strict=True)) | {"resolved": False} for each in given]
            answer = message(tool("report_findings", {"findings": found}), stop_reason="tool_use", usage=self.usage)
        return HttpReply(200, {"content-type": "application/json"}, json.dumps(answer).encode())


def played(
    make_world: MakeWorld, folder: Path, printed: list[str] | None, *answers: Findings | str, more: str = ""
) -> tuple[World, Model]:
    """A world in which the precheck prints these outputs, one per run, and the last one from then on."""
    model = Model(*answers)
    outputs = list(printed or [])

    def precheck(_: AgentCall) -> Any:
        return outputs.pop(0) if len(outputs) > 1 else outputs[0]

    config = CONFIG.format(more=(PRECHECK if printed else "") + more)
    return make_world(config, folder, http=model, environ={"KEY": "k"}, prechecks={"ops": precheck}), model


def sent(world: World) -> list[str]:
    return [line for _, _, words in world.delivered for line in brief(words).splitlines()]


DISK, WEB = ("disk:/var", "/var is 91 % full", "warning"), ("nginx", "nginx does not run", "warning")


@loop_over(
    ("printed", "answers", "expected", "calls"),
    [
        # another key at each run, and two open conditions whose lines share words
        ([f"{VAR}\n{HOME}", f"{VAR}\n{HOME}\n{NGINX}"],
         [[DISK, ("home", "/home fills up", "warning")], [("x", "/home fills", "warning"), ("y", "/var fills", "warning"), WEB]],
         ["[disk:/var] /var is 91 % full", "[home] /home fills up", "[nginx] nginx does not run"], 2),
        # a generic key for two things
        ([f"{VAR}\n{HOME}"], [[("disk", "/var is full", "warning"), ("disk", "/home is full", "warning")]],
         ["[disk] /var is full", "[disk 2] /home is full"], 1),
        # two lines that differ only in figures
        (["port 12 is down\nport 24 is down"], [[("port-24", "port 24 has no link", "warning"), ("port-12", "port 12 has no link", "warning")]],
         ["[port-24] port 24 has no link", "[port-12] port 12 has no link"], 1),
        # a line is forgotten in the first answer
        ([f"{VAR}\n{NGINX}"], [[DISK], [DISK, WEB]], ["[disk:/var] /var is 91 % full", "[nginx] nginx does not run"], 2),
        # a line is left out on purpose: it is asked for twice, and twice in the next run
        ([f"{VAR}\n{NGINX}"], [[DISK]], ["[disk:/var] /var is 91 % full"], 6),
        # prose, and then findings
        ([VAR], ["I looked, and /var fills up.", [DISK]], ["[disk:/var] /var is 91 % full"], 2),
        # only prose: the line that it names is sent, and not the prose
        ([f"{VAR}\n{NGINX}"], ["I looked: nginx has failed, the service."], ["[nginx.service failed] nginx.service failed"], 6),
        ([VAR], [[("summary", "/var is nearly full", "info")]], ["[nearly full] /var: nearly full: /var 91 %"], 3),
        # an invented finding is not said again
        ([VAR], [[DISK, ("fan", "a fan is loud", "warning")], [DISK]], ["[disk:/var] /var is 91 % full"], 3),
        # a finding without a line is said again
        ([VAR], [[DISK, ("fan", "a fan is loud", "warning")]], ["[disk:/var] /var is 91 % full", "[fan] a fan is loud"], 2),
        # a higher severity with other figures, and without
        ([VAR, VAR_WORSE], [[DISK], [("disk:/var", "97 %", "critical")]],
         ["[disk:/var] /var is 91 % full", "[disk:/var] CRITICAL, was warning: 97 %"], 2),
        ([VAR, f"{VAR}\n{NGINX}"], [[DISK], [("disk:/var", "bad", "critical"), WEB], [DISK, WEB]],
         ["[disk:/var] /var is 91 % full", "[nginx] nginx does not run"], 4),
        # and one that the further answers do not mention
        ([VAR, f"{VAR}\n{NGINX}"], [[DISK], [("disk:/var", "bad", "critical"), WEB], [WEB]],
         ["[disk:/var] /var is 91 % full", "[disk:/var] CRITICAL, was warning: bad", "[nginx] nginx does not run"], 4),
        # the line has the last word about the severity
        ([f"critical: {NGINX}"], [[("nginx", "nginx does not run", "info")]], ["[nginx] CRITICAL: nginx does not run"], 1),
        # an end that lasts for one look only is none, and the end of one line ends no other
        ([f"{VAR}\n{NGINX}", VAR, f"{VAR}\n{NGINX}"], [[DISK, WEB]], ["[disk:/var] /var is 91 % full", "[nginx] nginx does not run"], 3),
        # the same line comes back within a day
        ([NGINX, "NO_WORK", "NO_WORK", NGINX], [[WEB], [("web", "nginx is down", "warning")]],
         ["[nginx] nginx does not run", "[nginx] over after 30m, its lines are gone",
          "[nginx] nginx is down"], 2),
        ([NGINX, "NO_WORK", "NO_WORK", NGINX], [[("nginx", "nginx does not run", "info")]], ["[nginx] nginx does not run"], 2),
    ],
)  # fmt: skip
def test_a_mediocre_model_makes_no_noise(
    make_world: MakeWorld, tmp_path: Path, printed: list[str], answers: list[Findings | str], expected: list[str], calls: int
) -> None:
    world, model = played(make_world, tmp_path, printed, *answers)
    world.run(hours=1)
    assert (sent(world), len(model.prompts)) == (expected, calls)


def test_a_line_that_was_left_out_once_is_asked_about_again_after_it_was_reported(make_world: MakeWorld, tmp_path: Path) -> None:
    printed = [NGINX, NGINX, f"{NGINX}\n{VAR}", "NO_WORK", "NO_WORK", NGINX]
    world, model = played(make_world, tmp_path, printed, *[[]] * 6, [WEB, DISK], [], [WEB])
    world.run(hours=1, minutes=20)
    assert len(model.prompts) == 9
    assert [line.partition("]")[0] for line in sent(world) if "over" not in line] == ["[nginx", "[disk:/var", "[nginx"]


def test_the_second_prompt_names_what_is_missing(make_world: MakeWorld, tmp_path: Path) -> None:
    world, model = played(make_world, tmp_path, [f"{VAR}\n{NGINX}"], [DISK], [DISK, WEB])
    world.run(minutes=1)
    first, second = model.prompts
    assert second.startswith(first.strip())
    question = second.removeprefix(first.strip())
    assert f'Line 2 of the check has no finding: "{NGINX}"' in question
    assert "Line 1" not in question


def test_an_agent_that_words_its_keys_anew_at_each_run_is_reported_once(make_world: MakeWorld, tmp_path: Path) -> None:
    keys = ("disk", "storage", "var-full", "fs", "space", "partition", "volume")
    runs = [[(f"{keys[run % 7]}-{run}", f"/var is {run % 9 + 90} % full", "warning")] for run in range(400)]
    world, _ = played(make_world, tmp_path, None, *runs)
    world.run(hours=26)
    assert len([line for line in sent(world) if "reminder" not in line]) == 1


SYNONYMS = (
    ("disk", "storage", "volume", "partition", "filesystem", "drive"),
    ("/var", "var", "/var/log", "the log area", "logs"),
    ("full", "out of space", "running low", "exhausted", "saturated", "at capacity", "filling up", "nearly used up"),
)


def random_words(chance: Random) -> tuple[str, str, str]:
    """A finding that says nothing that another one has said."""
    words = ["".join(chance.choices(ascii_lowercase, k=8)) for _ in range(7)]
    return f"{words[0]}-{words[1]}", " ".join(words[2:]), chance.choices(("warning", "critical"), (39, 1))[0]


def synonyms(chance: Random) -> tuple[str, str, str]:
    """A finding about the same thing in other words."""
    thing, place, state = (chance.choice(each) for each in SYNONYMS)
    key = f"{chance.choice(SYNONYMS[0])}{chance.choice(':-_/ ')}{chance.choice(SYNONYMS[1] + SYNONYMS[2])}"
    return (
        key,
        f"{chance.choice(('The', 'Our', 'Note: the'))} {thing} {place} is {state} ({chance.randrange(80, 99)} %)",
        "warning",
    )


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("wording", "is_model", "repeats", "has_precheck", "minutes"),
    [
        (random_words, False, 0.0, False, 15),
        (random_words, False, 0.0, False, 120),  # each run comes after an hour without a new problem
        (random_words, False, 0.0, True, 15),
        (random_words, True, 0.5, False, 15),
        (synonyms, False, 0.0, False, 15),
        (synonyms, True, 0.0, False, 15),
        (synonyms, True, 0.5, False, 15),
    ],
)
def test_an_agent_that_words_everything_anew_at_each_run_sends_few_messages(
    make_world: MakeWorld,
    tmp_path: Path,
    wording: Callable[[Random], tuple[str, str, str]],
    is_model: bool,
    repeats: float,
    has_precheck: bool,
    minutes: int,
) -> None:
    chance, runs = Random(1), size(60, 165)
    config = CONFIG.format(more=PRECHECK if has_precheck else "").replace("15m", f"{minutes}m")
    if not is_model:
        config = config.replace("{kind: anthropic, provider: p}", "{kind: command, argv: [agent]}").replace("    model: m\n", "")
    config += config.partition("agents:\n")[2].replace("ops", "web", 1)  # another agent, at the same time

    def answer(_: object = None) -> str:
        return json.dumps({"findings": [dict(zip(("key", "text", "severity"), wording(chance), strict=True))]})

    class Wordy(Model):
        last: tuple[datetime, Findings] | None = None

        async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply:
            is_repeated = self.last is not None and self.last[0] == world.clock.now and chance.random() < repeats
            given = self.last[1] if is_repeated and self.last else [wording(chance)]
            self.last, self.answers = (world.clock.now, given), [given]
            return await super().post(url, headers, body, seconds)

    world = make_world(
        config, tmp_path, http=Wordy([]), environ={"KEY": "k"}, scripts={"ops": answer, "web": answer},
        prechecks=dict.fromkeys(("ops", "web"), lambda _: f"nearly full: /var {chance.randrange(90, 99)} %"),
    )  # fmt: skip
    world.run(minutes=runs * minutes)
    names = [re.search(r"\w+ +(ops|web)", text)[1] for _, _, text in world.delivered]
    assert max(names.count("ops"), names.count("web")) <= 5


def test_two_problems_in_place_of_two_others_are_called_what_they_are(make_world: MakeWorld) -> None:
    config = CONFIG.format(more="").replace("{kind: anthropic, provider: p}", "{kind: command, argv: [agent]}")
    said = iter(["[disk] full\n[raid] degraded\n[mail] stuck"] * 4)
    world = make_world(
        config.replace("    model: m\n", ""),
        environ={"KEY": "k"},
        scripts={"ops": lambda _: next(said, "[disk] full\n[cert] expires\n[dns] slow")},
    )
    world.run(hours=1, minutes=2)
    flood = world.problem("heartbeatd:new-problems")
    assert flood.found.text == (
        "5 new problems within a day. 2 of them were not mentioned again, or came in place of such. More without evidence are sent"
        " only if they are critical and two runs report them, until fewer than 2 in a day are like that. All: heartbeatd problems ops"
    )
    assert {each["key"]: each["effect"] for each in world.records()[-1]["findings"]} == {
        "disk": "known", "cert": "opened", "dns": "opened", "heartbeatd:new-problems": "opened", "raid": "cleared", "mail": "cleared",
    }  # fmt: skip


@loop_over(("limit", "number", "span"), [(3, 3, "an hour"), (10, 30, "a day")])
def test_more_new_problems_than_the_limit_are_one_message(
    make_world: MakeWorld, tmp_path: Path, limit: int, number: int, span: str
) -> None:
    names = (f"k{first}{second}" for first in ascii_lowercase for second in ascii_lowercase)
    config = CONFIG.format(more="").replace("{kind: anthropic, provider: p}", "{kind: command, argv: [agent]}")
    config = f"limits: {{new_problems: {limit}}}\n" + config.replace("    model: m\n", "")
    calm_after = 40

    found: list[str] = []

    def agent(_: AgentCall) -> str:
        run = len(world.calls)
        if run > calm_after:
            return "HEARTBEAT_OK"
        found.append(f"[{next(names)}!] worse {next(names)}" if run == calm_after else f"[{next(names)}] {next(names)}")
        return "\n".join(found)

    world = make_world(config, tmp_path, environ={"KEY": "k"}, scripts={"ops": agent})
    world.run(minutes=15 * calm_after)
    opened = [line for line in sent(world) if "] over" not in line]
    assert [line.partition("]")[0] for line in opened[:3]] == ["[kaa", "[kac", "[kae"]
    assert opened[number].startswith(f"[heartbeatd:new-problems] {number + 1} new problems within {span}.")
    assert [line.partition(" ")[2] for line in opened[number + 1 :]] == ["CRITICAL: worse kdb"]
    world.run(hours=2)
    assert [each.key for each in problems.open_reports_of(world.store.connection, "ops")] == []


UNITS = [f"{letter * 3}.service failed" for letter in ascii_lowercase[:11]]
FAN, SWAP = ("fan", "a fan is loud", "warning"), ("swap", "pages move", "warning")


@loop_over(
    ("printed", "answers", "expected"),
    [
        # there are too many already
        ([VAR, VAR_WORSE, f"{VAR}\n{NGINX}"], [*[[DISK, FAN]] * 2, *[[DISK, SWAP]] * 2, [DISK, WEB]],
         ["[disk:/var", "[fan", "[heartbeatd:new-problems", "[nginx"]),
        # there would be too many with this one
        ([VAR, f"{VAR}\n{NGINX}"], [*[[DISK, FAN, SWAP]] * 2, [DISK, WEB]], ["[disk:/var", "[fan", "[swap", "[nginx"]),
        # and there are too many, whatever the agent invents
        (["\n".join([VAR, *UNITS[:number]]) for number in (0, 10, 11)],
         [*[[DISK, FAN, SWAP]] * 2, *[[DISK, *((unit, unit, "warning") for unit in UNITS[:number])] for number in (10, 11)]],
         ["[disk:/var", "[fan", "[swap", *(f"[{unit}" for unit in UNITS[:10]), "[heartbeatd:new-problems"]),
    ],
)  # fmt: skip
def test_a_new_line_is_reported_at_once_although_the_agent_forgets_what_it_invents(
    make_world: MakeWorld, tmp_path: Path, printed: list[str], answers: list[Findings | str], expected: list[str]
) -> None:
    world, _ = played(make_world, tmp_path, printed, *answers)
    world.run(minutes=50)
    assert [line.partition("]")[0] for line in sent(world) if "] over" not in line] == expected


def test_while_there_are_too_many_new_problems_a_new_recipient_gets_none_that_only_another_one_knows(
    make_world: MakeWorld,
) -> None:
    mail = 'mail: {kind: webhook, url: "http://127.0.0.1:9/mail", allow_private: true}'
    config = CONFIG.format(more="").replace("{kind: anthropic, provider: p}", "{kind: command, argv: [agent]}")
    config = "limits: {new_problems: 3}\n" + config.replace("    model: m\n", "").replace("channels: {", f"channels: {{{mail}, ")
    words = ("[disk] full", "[cert] expires", "[queue] grows", "[raid] degraded")

    world = make_world(config, environ={"KEY": "k"}, scripts={"ops": lambda _: "\n".join(words[: len(world.calls)])})
    got: dict[str, list[str]] = {"phone": [], "mail": []}

    def send(delivery: Delivery) -> DeliveryResult:
        got[delivery.channel.name] += brief(delivery.message.text).splitlines()
        return DeliveryResult("delivered")

    world.send = send
    world.run(minutes=50)
    world.reload(config.replace("deliver: phone", "deliver: [phone, mail]"))
    world.run(minutes=15)
    assert [line.partition("]")[0] for line in got["phone"]] == ["[disk", "[cert", "[queue", "[heartbeatd:new-problems"]
    assert [line.partition("]")[0] for line in got["mail"]] == ["[heartbeatd:new-problems"]


def test_without_a_precheck_a_problem_that_is_left_out_is_asked_for(make_world: MakeWorld, tmp_path: Path) -> None:
    world, model = played(make_world, tmp_path, None, [DISK], [DISK], [], [DISK], [])
    world.run(minutes=20)
    assert len(model.prompts) == 4
    assert "[disk:/var] is open, and has no finding" in model.prompts[3]
    world.run(hours=1)
    assert [line.partition(",")[0] for line in sent(world)] == ["[disk:/var] /var is 91 % full", "[disk:/var] over after 45m"]


@loop_over(
    ("more", "used", "calls"),
    [
        ("", 1900, 2),
        (", ask_again: 0", 60, 1),
        (", max_input_tokens: 800", 60, 2),
        (", max_input_tokens: 400", 60, 1),  # the first prompt fits, and the question with the first answer does not
        (", budget: {usd_per_day: 1}", 1900, 2),  # the reservation is enough for two short calls
        (", budget: {tokens_per_try: 4600}", 60, 2),
        (", budget: {tokens_per_try: 4600}", 1900, 1),  # and here for one
        (", budget: {usd_per_try: 0.013}", 60, 2),
        (", budget: {usd_per_try: 0.013}", 1900, 1),
        (", budget: {usd_per_day: 1}", 0, 1),  # a report of no tokens is not believed
    ],
)
def test_further_calls_stay_within_the_settings_and_the_reservation(
    make_world: MakeWorld, tmp_path: Path, more: str, used: int, calls: int
) -> None:
    world, model = played(make_world, tmp_path, [f"{VAR}\n{NGINX}"], [DISK], [DISK, WEB], more=more)
    model.usage = {"input_tokens": 400 if used else 0, "output_tokens": used}
    world.run(minutes=1)
    assert len(model.prompts) == calls


def test_a_further_call_that_fails_leaves_the_first_answer(make_world: MakeWorld) -> None:
    class Failing(Model):
        async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply:
            answered = await super().post(url, headers, body, seconds)
            return answered if len(self.prompts) != 2 else HttpReply(529, {}, b"{}")

    model = Failing([DISK])
    world = make_world(
        CONFIG.format(more=PRECHECK), http=model, environ={"KEY": "k"}, prechecks={"ops": lambda _: f"{VAR}\n{NGINX}"}
    )
    world.run(minutes=1)
    assert sent(world) == ["[disk:/var] /var is 91 % full"]
    assert [row["result"] for row in world.records()] == ["alert"]
