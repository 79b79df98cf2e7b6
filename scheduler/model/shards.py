"""Assigns each agent and job to one shard, and names the database of each shard."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from scheduler.model.outcome import Kind
from scheduler.model.state_address import shard_address, shard_file

IDS_PER_SHARD = 10**12  # the ids of shard 1 begin at this number, those of shard 2 at twice this number: they never collide


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of the agents and jobs that one daemon runs, of `of` parts.

    `index` counts from 0. It is None if it was left open, as for commands that concern all shards. `addresses` are the URLs at
    which the daemons of the shards can be reached, by index. `database` is the value of `state` for all shards together.
    `shard_of` is the shard of each agent and job of the config.
    """

    index: int | None
    of: int
    addresses: tuple[str, ...]
    database: Path | str
    shard_of: Mapping[tuple[Kind, str], int]

    def database_of(self, index: int) -> Path | str:
        """The database of one shard: a file, or the address of a server with the schema of the shard."""
        return shard_file(self.database, index) if isinstance(self.database, Path) else shard_address(self.database, index)

    def owns(self, kind: Kind, name: str) -> bool:
        """Whether this shard runs the agent or job."""
        return self.shard_of.get((kind, name)) == self.index

    def __str__(self) -> str:
        return f"shard {self.index} of {self.of}"


def assign_shards(agents: Iterable[str], agents_of_job: Mapping[str, Collection[str]], of: int) -> dict[tuple[Kind, str], int]:
    """The shard of each agent and job. `agents_of_job` are the agents that a job wakes or calls.

    A job is in the shard of its agents, so all agents of one job are in the same shard: that of the agent whose name comes first
    in the alphabet. A new agent changes the shard of another one only if a job wakes or calls both.
    """
    leader = {name: name for name in agents}

    def find(name: str) -> str:
        while (above := leader.setdefault(name, name)) != name:
            leader[name] = leader[above]
            name = above
        return name

    for joined in agents_of_job.values():
        roots = {find(name) for name in joined}
        for root in roots:
            leader[root] = min(roots)
    shard = {name: shard_of_group(f"agent/{name}", of) for name in leader if find(name) == name}
    found = {(Kind.HEARTBEAT, name): shard[find(name)] for name in leader}
    for job, joined in agents_of_job.items():
        found[Kind.CRON, job] = shard[find(next(iter(joined)))] if joined else shard_of_group(f"cron/{job}", of)
    return found


def shard_of_group(group: str, of: int) -> int:
    """The shard of a group of agents and jobs, by the jump consistent hash of its name.

    With one more shard, only the groups that move to the new shard change theirs. Source: Lamping and Veach, "A Fast, Minimal
    Memory, Consistent Hash Algorithm" (arXiv:1406.2294).
    """
    key = int.from_bytes(sha256(group.encode()).digest()[:8], "big")
    found, following = -1, 0
    while following < of:
        found = following
        key = (key * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        following = int((found + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return found
