"""A server of the Messages API that keeps parts of prompts, and counts what it kept and used, as Anthropic documents it.

- A part is kept up to a block with `cache_control`, for five minutes or an hour (`ttl`), counted from its last use.
- It is used if a later request begins with the same model, tools, choice of tools and blocks. The server looks at the blocks with
  a mark, and at up to 20 blocks before each.
- A part shorter than the model's minimum is not kept, and costs nothing more.
- A request has at most four marks, and those for an hour come first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from servers.messages import Models, error_answer, message
from servers.scripted import Act, Request, reply

LEAST = {"claude-sonnet-4-5": 1024, "claude-sonnet-4-6": 2048, "claude-3-5-haiku-latest": 2048}  # all others: 4,096 tokens
LIVES = {"5m": timedelta(minutes=5), "1h": timedelta(hours=1)}
MOST_MARKS = 4
BLOCKS_BACK = 20
OUTPUT = 30  # tokens of each answer


@dataclass(frozen=True)
class Block:
    """A block of a request: the digest of everything up to its end, the tokens up to there, and the `ttl` of its mark."""

    digest: str
    tokens: int
    ttl: str | None


@dataclass
class Bill:
    """The tokens of all requests by kind."""

    input: int = 0
    output: int = 0
    read: int = 0
    written_5m: int = 0
    written_1h: int = 0

    def usd(self, price: float, output: float) -> float:
        """The bill at a price of input, in USD per million tokens."""
        write = 1.25 * self.written_5m + 2 * self.written_1h
        return ((self.input + 0.1 * self.read + write) * price + self.output * output) / 1e6

    def usd_without_cache(self, price: float, output: float) -> float:
        return ((self.input + self.read + self.written_5m + self.written_1h) * price + self.output * output) / 1e6


@dataclass
class _Kept:
    until: datetime
    ttl: str


class CachingModels(Models):
    """`now` is the time of the server. `content` gives the blocks of the answer to a request. `forgets`: nothing is found again.
    `knows_marks` False: it refuses them.
    """

    def __init__(self, content: Callable[[Request], list[dict[str, Any]]]) -> None:
        super().__init__(self._answer)
        self.content = content
        self.now: Callable[[], datetime]
        self.forgets = False
        self.knows_marks = True
        self.bytes_per_token = 4
        self.bills: dict[str, Bill] = {}
        self.marks: list[list[str]] = []
        self._kept: dict[str, _Kept] = {}

    def _answer(self, request: Request) -> Act:
        blocks = list(_blocks(request.json, self.bytes_per_token))
        marks = [block.ttl for block in blocks if block.ttl]
        if (marks and not self.knows_marks) or len(marks) > MOST_MARKS or marks != sorted(marks):  # "1h" sorts before "5m"
            return error_answer(400, "invalid_request_error", f"cache_control: {marks}")
        self.marks.append(marks)
        content = self.content(request)
        usage = self._usage(blocks, LEAST.get(request.json["model"], 4096))
        bill = self.bills.setdefault(_who(request), Bill())
        created = usage["cache_creation"]
        bill.input += usage["input_tokens"]
        bill.output += OUTPUT
        bill.read += usage["cache_read_input_tokens"]
        bill.written_5m += created["ephemeral_5m_input_tokens"]
        bill.written_1h += created["ephemeral_1h_input_tokens"]
        stop = "tool_use" if content[-1]["type"] == "tool_use" else "end_turn"
        return reply(message(*content, model=request.json["model"], usage=usage, stop_reason=stop))

    def _usage(self, blocks: list[Block], least: int) -> dict[str, Any]:
        marked = [number for number, block in enumerate(blocks) if block.ttl]
        looked_at = {number - back for number in marked for back in range(BLOCKS_BACK + 1) if number >= back}
        read = 0
        for number in sorted(looked_at, reverse=True):
            kept = self._kept.get(blocks[number].digest)
            if kept is not None and kept.until > self.now() and not self.forgets:
                kept.until = self.now() + LIVES[kept.ttl]
                read = blocks[number].tokens
                break
        done, written = read, {"5m": 0, "1h": 0}
        for number in marked:
            block = blocks[number]
            assert block.ttl is not None
            if block.tokens > done and block.tokens >= least:
                written[block.ttl] += block.tokens - done
                done = block.tokens
                self._kept[block.digest] = _Kept(self.now() + LIVES[block.ttl], block.ttl)
        return {
            "input_tokens": blocks[-1].tokens - done,
            "output_tokens": OUTPUT,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": sum(written.values()),
            "cache_creation": {f"ephemeral_{ttl}_input_tokens": tokens for ttl, tokens in written.items()},
        }


def _blocks(body: dict[str, Any], bytes_per_token: int) -> Iterator[Block]:
    digest, tokens = sha256(body["model"].encode()), 0
    listed = [(tool, "") for tool in body.get("tools", ())]
    choice = json.dumps(body.get("tool_choice"))
    for each in body["messages"]:
        content = each["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        listed += [(part, f"{choice} {each['role']}") for part in parts]
    for part, place in listed:
        text = json.dumps({key: value for key, value in part.items() if key != "cache_control"})
        digest.update(f"{place} {text}".encode())
        tokens += -(-len(part.get("text") or text) // bytes_per_token)
        yield Block(
            digest.hexdigest(), tokens, part.get("cache_control", {}).get("ttl", "5m") if "cache_control" in part else None
        )


def _who(request: Request) -> str:
    """The agent of a request: its context file says `I am NAME.`"""
    _, _, name = request.body.decode().partition("I am ")
    return name.partition(".")[0]
