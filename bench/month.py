"""Simulated months with forty events: how often each is reported, and how many calls of the agent that takes, by setup."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from month_simulation import DAYS, EVENTS, Month, Score, readme_config

PRECHECK = "      precheck: {command: ./check-host.sh, unchanged: {skip: true, max_age: 24h}}"
DECIDE = "      decide: {model: claude-haiku-5-5}\n"


@dataclass(frozen=True)
class Setup:
    """A config, and how the host behaves."""

    name: str
    config: str
    more: dict[str, Any] = field(default_factory=dict)


def setups() -> Iterator[Setup]:
    config = readme_config()
    line = next(line for line in config.splitlines(keepends=True) if line.startswith(PRECHECK))
    yield Setup("README", config)
    yield Setup("README, precheck prints `all quiet` in place of NO_WORK", config, {"says_no_work": False})
    yield Setup("README, and twenty unimportant mails a day in its output", config, {"mails_per_day": 20})
    yield Setup("`answer: text`", config.replace(line, f"{line}      answer: text\n"))
    yield Setup("with `decide`", config.replace(line, line + DECIDE))
    yield Setup("without precheck", config.replace(line, ""))
    yield Setup("without precheck, `clear_after: 6`", config.replace(line, "      conditions: {clear_after: 6}\n"))
    yield Setup("without precheck, with `decide`", config.replace(line, DECIDE))


def main() -> None:
    seeds = [int(word) for word in sys.argv[1:]] or [1, 2, 3]
    print(f"seeds {', '.join(map(str, seeds))}: {EVENTS * len(seeds)} events in {DAYS * len(seeds)} days")
    print("| setup | once | twice or more | never | late | wrong ends | calls | other messages a day | input tokens |")
    print("|---|---|---|---|---|---|---|---|---|")
    for setup in setups():
        print(_row(setup, [_play(setup, seed) for seed in seeds]), flush=True)


def _play(setup: Setup, seed: int) -> Score:
    with tempfile.TemporaryDirectory() as folder:
        month = Month(Path(folder), setup.config, seed, **setup.more)
        month.close()
        return month.score()


def _row(setup: Setup, scores: list[Score]) -> str:
    def total(name: str) -> int:
        return sum(getattr(score, name) for score in scores)

    share = sum(score.share for score in scores) / len(scores)
    others = sum(len(score.others) for score in scores) / DAYS / len(scores)
    tokens = sum(score.month.tokens for score in scores) // len(scores) // 1000
    counts = " | ".join(str(total(name)) for name in ("once", "repeated", "never", "late", "false_ends"))
    return f"| {setup.name} | {counts} | {share:.1%} | {others:.2f} | {tokens} k a month |"


if __name__ == "__main__":
    main()
