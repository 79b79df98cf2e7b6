"""How long a prompt may be, and how its tokens are counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The longest prompt in tokens: `own` by the config, and `reserved` by a budget, None if no budget depends on it."""

    own: int
    reserved: int | None = None

    @property
    def tokens(self) -> int:
        return self.own if self.reserved is None else self.reserved

    def count(self, *texts: str) -> int:
        """The tokens of these texts: an estimate, or an upper bound if a budget depends on it."""
        return estimate_tokens(*texts) if self.reserved is None else max_tokens(*texts)

    def __str__(self) -> str:
        if self.reserved is not None and self.reserved < self.own:
            return f"its budget allows {self.reserved:,}"
        return f"max_input_tokens is {self.own:,}"

    def describe(self, size: int, *, by_provider: bool = False) -> str:
        """The size of a prompt and its limit. `by_provider`: the size is not from `count`, but from the provider."""
        if by_provider:
            return f"{size:,} tokens as its provider counts them, and {self}"
        if self.reserved is None:
            return f"about {size:,} tokens, and {self}"
        return f"{size:,} bytes, counted as tokens because a budget applies, and {self}"


def estimate_tokens(*texts: str) -> int:
    """An estimate of the tokens in these texts that is rarely too low: three ASCII characters are one token, any
    other character is one.

    Plain English needs fewer, about one per four characters, so a prompt that passes this limit is not rejected for its length.
    """
    plain = sum(len(text.encode("ascii", errors="ignore")) for text in texts)
    return -(-plain // 3) + sum(map(len, texts)) - plain


def max_tokens(*texts: str) -> int:
    """An upper limit for the number of tokens in these texts: one per byte, which no byte-level tokenizer exceeds."""
    return sum(len(text.encode(errors="replace")) for text in texts)
