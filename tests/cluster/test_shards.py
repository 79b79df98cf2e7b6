"""Each agent and job belongs to exactly one of the daemons that share a config, and stays there."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_file import SMALL, complaints, read, warnings
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine import shard_moves
from scheduler.model.outcome import Kind
from scheduler.model.settings import own_part
from scheduler.model.shards import assign_shards, shard_of_group
from scheduler.model.state_address import address_file, schema_of, shard_address, shard_file

NAMES = st.text("abcdefgh", min_size=1, max_size=3)
FLEETS = st.tuples(st.sets(NAMES, min_size=1), st.dictionaries(NAMES, st.sets(NAMES, max_size=3)))

FLEET = """\
shard: {of: 3}
limits: {budget: {usd_per_day: 6.0, runs_per_day: 7}}
defaults:
  agent: {runner: {kind: command, argv: [cat]}}
  heartbeat: {interval: 30m, deliver: log, budget: {usd_per_run: 0.1}}
agents: {a: {}, b: {}, c: {}, d: {}, e: {}, f: {}}
cron:
  wake-a: {every: 1h, command: x, wake_heartbeat: a}
  both: {every: 1h, command: x, wake_heartbeat: [b, e]}
  ask: {every: 1h, prompt: x, agent: c, deliver: log, budget: {usd_per_run: 0.1}}
  lone: {every: 1h, command: x}
"""


def kinds(agents: set[str], jobs: dict[str, set[str]]) -> tuple[list[str], dict[str, list[str]]]:
    return sorted(agents), {job: sorted(named & agents) for job, named in jobs.items()}


@given(fleet=FLEETS, of=st.integers(1, 9))
def test_each_entry_is_in_one_shard_and_a_job_is_in_the_shard_of_its_agents(
    fleet: tuple[set[str], dict[str, set[str]]], of: int
) -> None:
    agents, jobs = kinds(*fleet)
    found = assign_shards(agents, jobs, of)
    assert found.keys() == {*((Kind.HEARTBEAT, name) for name in agents), *((Kind.CRON, name) for name in jobs)}
    assert all(0 <= index < of for index in found.values())
    assert all(found[Kind.HEARTBEAT, agent] == found[Kind.CRON, job] for job, joined in jobs.items() for agent in joined)


@given(fleet=FLEETS, new=st.text("xyz", min_size=1), of=st.integers(1, 9))
def test_a_new_agent_and_a_new_job_leave_the_others_where_they_are(
    fleet: tuple[set[str], dict[str, set[str]]], new: str, of: int
) -> None:
    agents, jobs = kinds(*fleet)
    before = assign_shards(agents, jobs, of)
    after = assign_shards([new, *agents], {**jobs, f"wake-{new}": [new], f"lone-{new}": []}, of)
    assert before.items() <= after.items()


@given(fleet=FLEETS, of=st.integers(1, 9))
def test_one_more_shard_takes_entries_over_and_moves_none_between_the_others(
    fleet: tuple[set[str], dict[str, set[str]]], of: int
) -> None:
    agents, jobs = kinds(*fleet)
    before, after = assign_shards(agents, jobs, of), assign_shards(agents, jobs, of + 1)
    assert all(after[key] in (index, of) for key, index in before.items())


def test_the_order_of_the_file_does_not_matter() -> None:
    jobs = {"x": ["a", "b"], "y": ["c", "b"], "z": ["d", "c"]}
    assert assign_shards("abcd", jobs, 7) == assign_shards("dcba", dict(reversed(jobs.items())), 7)


def test_groups_are_spread_evenly_and_the_same_in_every_release() -> None:
    numbers = [0] * 4
    for number in range(10_000):
        numbers[shard_of_group(f"agent/agent-{number}", 4)] += 1
    assert all(2350 < number < 2650 for number in numbers)
    found = assign_shards("abcdefgh", dict.fromkeys("abcdefgh", ()), 4)
    assert [found[Kind.HEARTBEAT, name] for name in "abcdefgh"] == SHARDS_OF_AGENTS
    assert [found[Kind.CRON, name] for name in "abcdefgh"] == SHARDS_OF_JOBS


SHARDS_OF_AGENTS = [1, 3, 0, 2, 2, 1, 0, 0]
SHARDS_OF_JOBS = [0, 2, 2, 0, 3, 0, 3, 1]


def test_each_shard_has_its_own_database_port_and_share_of_the_budget(tmp_path: Path) -> None:
    shards = [own_part(read(tmp_path, FLEET, {"HEARTBEATD_SHARD": str(index)}).settings) for index in range(3)]
    assert [shard.state.name for shard in shards] == [f"heartbeatd-shard-{index}.db" for index in range(3)]
    assert [shard.server.port for shard in shards] == [7857, 7858, 7859]
    assert sorted(name for shard in shards for name in shard.heartbeats) == list("abcdef")
    assert sorted(name for shard in shards for name in shard.jobs) == ["ask", "both", "lone", "wake-a"]
    assert sorted(name for shard in shards for name in shard.job_agents) == ["ask"]
    for shard in shards:
        budget = shard.limits.budget
        assert budget is not None
        assert (budget.usd_per_day, budget.runs_per_day) == (2.0, 2)
        assert all(allowance.shared == budget for allowance in shard.allowances.values())
        assert {name for kind, name in shard.allowances if kind is Kind.HEARTBEAT} == shard.heartbeats.keys()


def test_without_an_index_the_settings_are_those_of_all_shards(tmp_path: Path) -> None:
    whole = read(tmp_path, FLEET, {}).settings
    assert own_part(whole) is whole
    assert whole.shard is not None and whole.shard.addresses == tuple(f"http://127.0.0.1:{port}" for port in (7857, 7858, 7859))
    assert whole.limits.budget is not None and whole.limits.budget.usd_per_day == 6.0


@pytest.mark.parametrize(
    ("environ", "line", "index"),
    [
        ({"HEARTBEATD_SHARD": "2"}, "shard: {of: 3}", 2),
        ({"HEARTBEATD_SHARD": "2"}, "shard: {of: 3, index: 0}", 2),
        ({}, "shard: {of: 3, index: 0}", 0),
        ({"POD": "1"}, "shard: {of: 3, index: '${POD}'}", 1),
        ({"HEARTBEATD_SET__shard__index": "1"}, "shard: {of: 3, index: 0}", 1),
    ],
)
def test_the_environment_takes_precedence_over_the_index_of_the_file(
    tmp_path: Path, environ: dict[str, str], line: str, index: int
) -> None:
    shard = read(tmp_path, FLEET.replace("shard: {of: 3}", line), environ).settings.shard
    assert shard is not None and shard.index == index


@pytest.mark.parametrize(
    ("line", "environ", "problem"),
    [
        ("shard: {}", {}, "shard.of: is missing; write of: 2"),
        ("shard: {of: 0}", {}, "shard.of: 0 is out of range; write 1 or more"),
        ("shard: {of: 3, index: 3}", {}, "shard.index: 3 is not the number of a shard; write a number from 0 to 2"),
        ("shard: {of: 3, index: -1}", {}, "shard.index: -1 is not the number of a shard; write 0 or ${HEARTBEATD_SHARD}"),
        (
            "shard: {of: 3}",
            {"HEARTBEATD_SHARD": "x"},
            "shard.index: x (the value of HEARTBEATD_SHARD) is not the number of a shard; write a number from 0 to 2",
        ),
        (
            "shard: {of: 3, addresses: ['http://a', 'http://b']}",
            {},
            "shard.addresses: there are 3 shards and 2 addresses; write one address for each shard",
        ),
        (
            "shard: {of: 2, addresses: [a, 'http://b']}",
            {},
            'shard.addresses[0]: this is not the address of a server; write "http://HOST:PORT"',
        ),
        (
            'shard: {of: 100}\nserver: {listen: "127.0.0.1:65500"}',
            {},
            "shard: the last shard would listen on port 65599; write a port up to 65436 in server.listen",
        ),
        (
            "shard: {of: 2}\nlimits: {budget: {runs_per_day: 1}}",
            {},
            "limits.budget.runs_per_day: each of 2 shards may use an equal part of it, which is less than one run; write 2",
        ),
        (
            'shard: {of: 2}\nchannels: {tg: {kind: telegram, url: "telegram://1:x/2", buttons: true}}',
            {},
            "channels.tg.buttons: only one daemon can receive the buttons of a bot, and there are several shards; remove buttons",
        ),
    ],
)
def test_shards_that_cannot_work_are_rejected(tmp_path: Path, line: str, environ: dict[str, str], problem: str) -> None:
    assert problem in "\n".join(complaints(tmp_path, f"{line}\n{SMALL}", environ))


def test_a_dead_mans_switch_of_all_shards_is_a_warning(tmp_path: Path) -> None:
    found = warnings(tmp_path, f"shard: {{of: 2}}\ndeadman: {{url: 'https://example.org/x'}}\n{SMALL}")
    assert any("all shards ping this URL, so nobody notices when one of them stops" in each for each in found)


def test_a_shard_has_its_own_schema_on_a_server() -> None:
    assert schema_of(shard_address("postgresql:///beats", 2)) == "heartbeatd_shard_2"
    other = shard_address("postgresql://me@db/beats?host=/run/pg&options=-csearch_path%3Dours%20-cwork_mem%3D8MB", 2)
    assert other == "postgresql://me@db/beats?host=/run/pg&options=-cwork_mem%3D8MB%20-csearch_path%3Dours_shard_2"


def test_a_shard_has_its_own_files() -> None:
    assert shard_file(Path("/x/h.db"), 3) == Path("/x/h-shard-3.db")
    assert address_file(Path("/x/h-shard-3.db")) == Path("/x/daemon-shard-3.json")
    assert address_file(Path("/x/h.db")) == Path("/x/daemon.json")


def test_a_reload_that_moves_an_agent_is_refused(tmp_path: Path) -> None:
    before = read(tmp_path, FLEET, {"HEARTBEATD_SHARD": "0"}).settings
    joined = FLEET.replace("wake_heartbeat: a}", "wake_heartbeat: [a, d]}")
    after = read(tmp_path, joined, {"HEARTBEATD_SHARD": "0"}).settings
    problem = shard_moves.find_reload_problem(before, after)
    assert problem is not None and "agent/d from shard" in problem
    more = read(tmp_path, FLEET.replace("f: {}", "f: {}, g: {}"), {"HEARTBEATD_SHARD": "0"}).settings
    assert shard_moves.find_reload_problem(before, more) is None
    four = read(tmp_path, FLEET.replace("of: 3", "of: 4"), {"HEARTBEATD_SHARD": "0"}).settings
    assert "the number of shards cannot change while the daemons run" in str(shard_moves.find_reload_problem(before, four))


def test_the_address_of_a_shard_keeps_the_form_of_the_address() -> None:
    for address, expected in (
        ("postgresql:///beats", "postgresql:///beats?options=-csearch_path%3Dheartbeatd_shard_1"),
        ("postgresql://a@db:5432/beats", "postgresql://a@db:5432/beats?options=-csearch_path%3Dheartbeatd_shard_1"),
        ("postgresql:///beats?host=/run", "postgresql:///beats?host=/run&options=-csearch_path%3Dheartbeatd_shard_1"),
    ):
        assert shard_address(address, 1) == expected
