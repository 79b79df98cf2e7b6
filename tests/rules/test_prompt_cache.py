"""When a provider is asked to keep the part of a prompt that is the same in each run, as tables of its last calls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from heartbeat.runners import CachePlan, CacheTtl
from scheduler.model.budget import Price
from scheduler.model.prompt_cache import CacheLook, plan_cache, why_not_kept

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HARDLY_WORTH_IT = Price(1.0, 5.0, 0.1, 1.3, 9.0)
NOT_WORTH_IT = Price(1.0, 5.0, 0.1, 1.4, 9.0)


def look(
    ago: float, digest: str = "x", ttl: CacheTtl | None = "5m", read: int = 0, written: int = 0, calls: int = 1
) -> CacheLook:
    """A call so many minutes ago."""
    return CacheLook(NOW - ago * MINUTE, digest, ttl, read, written, calls)


def planned(
    *looks: CacheLook, expected: float | None = None, price: Price | None = None, asked: tuple[CacheLook, ...] = ()
) -> CacheTtl | None:
    return plan_cache(looks, asked, NOW, None if expected is None else expected * MINUTE, price).ttl


@pytest.mark.parametrize(("minutes", "ttl"), [(4, "5m"), (5, "1h"), (57, "1h"), (58, None), (None, None)])
def test_before_there_are_any_calls_the_interval_decides(minutes: float | None, ttl: CacheTtl | None) -> None:
    assert planned(expected=minutes) == ttl


def test_the_price_of_writing_is_a_multiple_of_what_a_budget_reserves() -> None:
    plans = [plan_cache((), (), NOW, minutes * MINUTE, None) for minutes in (4, 30, 90)]
    assert plans == [CachePlan("5m", 1.0, 1), CachePlan("1h", 2.0 / 1.25, 1), CachePlan()]
    assert plan_cache([look(1, calls=3), look(2), look(3)], (), NOW, None, None).turns == 2, "the usual number of turns"


def test_a_part_that_is_still_kept_is_used_again_for_the_same_time() -> None:
    same, other = look(40, ttl=None), look(40, "y", ttl=None)
    for warm in (look(30, ttl="1h", read=9), look(30, ttl="1h", written=9)):
        assert planned(warm, same, expected=90) == "1h"
        assert planned(warm, other, expected=90) is None, "it changes from run to run"
    assert planned(look(30, ttl="1h"), same, expected=90) is None, "nothing was kept"
    assert planned(look(58, ttl="1h", read=9), look(200), expected=90) is None
    assert planned(look(5, ttl="5m", read=9), look(200), expected=90) is None


def test_a_part_is_written_if_the_calls_after_it_are_likely_to_save_more_than_that_costs() -> None:
    assert planned(look(1), look(2), price=HARDLY_WORTH_IT) == "5m"
    assert planned(look(1), look(2), price=NOT_WORTH_IT) is None
    assert planned(look(1), look(2, "y"), price=HARDLY_WORTH_IT) is None
    assert planned(look(30), look(60), look(90), look(120)) == "1h"
    assert planned(look(30), look(60, "y"), look(90), look(120, "y")) is None


def test_a_provider_that_lacked_the_part_twice_is_not_asked_for_a_day() -> None:
    day = 24 * 60
    for last, is_asked in ((1, False), (day - 5, False), (day, True)):
        lacking = tuple(look(last + minutes, written=9) for minutes in (0, 4, 8))
        assert (planned(expected=4, asked=lacking) is not None) is is_asked
    first, second, third = (look(minutes, written=9) for minutes in (1, 5, 9))
    for asked in (
        (first, second), (look(1, read=1, written=9), second, third), (look(1), second, third), (look(1, "y", written=9), second, third),
        (first, look(6, written=9), third),
    ):  # fmt: skip
        assert planned(expected=4, asked=asked) == "5m", asked


def test_why_a_part_is_not_kept() -> None:
    lacking = tuple(look(minutes, written=9) for minutes in (1, 5, 9))
    assert "did not have it 2 times in a row" in why_not_kept(lacking, lacking, NOW)
    assert why_not_kept([look(1), look(2, "y")], (), NOW) == "because it changes from run to run"
    assert why_not_kept([look(1), look(59)], (), NOW) == "because the next call comes too late to use it"
    for looks in ([look(1)], [look(1), look(58)]):
        assert why_not_kept(looks, (), NOW).startswith("because too few calls use it in time")
