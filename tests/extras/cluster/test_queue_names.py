"""Tests of the queues that a config names: how long their names are, and which queue a job has."""

from __future__ import annotations

from pathlib import Path

from config_file import SMALL, complaints, read

from scheduler.work.plan import make_plan


def test_the_name_of_a_queue_fits_with_that_of_the_cluster_into_what_postgresql_allows(tmp_path: Path) -> None:
    """PostgreSQL limits the name of the channel on which Procrastinate announces jobs."""
    yaml = "executor: {{kind: procrastinate, dsn: 'postgresql://db/q', queue: {cluster}}}\n{small}"
    routed = SMALL.replace("runner:", f"executor: {{queue: {'q' * 30}}}, runner:")
    assert complaints(tmp_path, yaml.format(cluster="heartbeatd", small=routed)) == [
        "config.yaml:2:34: agents.ops.executor.queue: this name has at most 29 characters, because executor.queue is 'heartbeatd'"
    ]
    assert complaints(tmp_path, yaml.format(cluster="c" * 41, small=routed)) == [
        "config.yaml:1:66: executor.queue: this name has at most 40 characters; write a shorter one, such as heartbeatd"
    ]
    assert complaints(tmp_path, yaml.format(cluster="c" * 39, small=routed)) == [
        "config.yaml:2:34: agents.ops.executor.queue: executor.queue leaves no room for this name; write a shorter one, such as heartbeatd"
    ]
    (error,) = complaints(tmp_path, yaml.format(cluster="a/b", small=SMALL))  # the queue of the workers `b` of a cluster `a`
    assert error.startswith("config.yaml:1:66: executor.queue: 'a/b' is not a name; ")
    served_by_default = routed.replace("q" * 30, "default")
    assert complaints(tmp_path, yaml.format(cluster="c" * 40, small=served_by_default)) == []


def test_a_job_with_a_prompt_has_the_queue_of_its_agent_unless_it_names_one(tmp_path: Path) -> None:
    job = "schedule: '@daily', prompt: look, agent: ops"
    yaml = (
        "executor: {kind: procrastinate, dsn: 'postgresql://db/q'}\n"
        + SMALL.replace("runner:", "executor: {queue: gpu}, runner:")
        + f"cron: {{a: {{{job}}}, b: {{{job}, executor: {{queue: default}}}}, c: {{every: 1h, command: x}}}}\n"
    )
    settings = read(tmp_path, yaml).settings
    entries = make_plan(settings).entries.values()
    assert {entry.name: entry.queue for entry in entries} == {"ops": "gpu", "a": "gpu", "b": "default", "c": "default"}
