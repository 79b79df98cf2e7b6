"""What is left of the budget of an attempt that sends several requests to a model."""

from __future__ import annotations

import pytest

from heartbeat.runners import Tokens, TurnBudget
from heartbeat.runners.tool_loop import TurnUsage
from heartbeat.spec import PromptLimit


@pytest.mark.parametrize(
    "budget",
    [
        TurnBudget(None, 1_000, input_price=0.0, output_price=0.0),
        TurnBudget(0.001, None, input_price=1.0, output_price=1.0),
        TurnBudget(0.001, 2_000, input_price=1.0, output_price=1.0),
        TurnBudget(0.002, 1_000, input_price=1.0, output_price=1.0),
    ],
)
def test_earlier_requests_and_the_longest_answer_count_against_each_limit(budget: TurnBudget) -> None:
    usage = TurnUsage(PromptLimit(9_000), budget, max_output=100)
    assert (usage.fits(900), usage.fits(901)) == (True, False)
    usage.add(Tokens(input=200, output=300))
    assert (usage.fits(400), usage.fits(401)) == (True, False)
