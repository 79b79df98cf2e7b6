"""What is left of the budget of an attempt that sends several requests to a model."""

from __future__ import annotations

import pytest

from heartbeat.runners import Tokens, TurnLimits
from heartbeat.runners.tool_loop import TurnUsage
from heartbeat.spec import PromptLimit


@pytest.mark.parametrize(
    "limits",
    [
        TurnLimits(PromptLimit(9_000), tokens=1_000),
        TurnLimits(PromptLimit(9_000), usd=0.001, input_price=1.0, output_price=1.0),
        TurnLimits(PromptLimit(9_000), usd=0.001, tokens=2_000, input_price=1.0, output_price=1.0),
        TurnLimits(PromptLimit(9_000), usd=0.002, tokens=1_000, input_price=1.0, output_price=1.0),
    ],
)
def test_earlier_requests_and_the_longest_answer_count_against_each_limit(limits: TurnLimits) -> None:
    usage = TurnUsage(limits, max_output=100)
    assert (usage.fits(900), usage.fits(901)) == (True, False)
    usage.add(Tokens(input=200, output=300))
    assert (usage.fits(400), usage.fits(401)) == (True, False)
