"""Budgets in the database, and what an attempt may cost: two entries, days, months, zones, models and prices."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from zoneinfo import ZoneInfo

import pytest
from heartbeat_specs import AGENT
from world import utc

from heartbeat.runners import Call, Tokens
from heartbeat.spec import Decide, Fallback, ModelRunner, Provider, Tools
from scheduler.model import budget
from scheduler.model.budget import (
    ALL_ENTRIES,
    Allowance,
    Amount,
    AttemptUsage,
    Budget,
    BudgetDay,
    ModelCallLimit,
    Price,
    PriceVariant,
    Spent,
)
from scheduler.model.outcome import Kind
from scheduler.model.timestamps import to_millis
from scheduler.store import spend
from scheduler.store.transaction import Transaction

OPS, NIGHT, JOB = ("heartbeat", "ops"), ("heartbeat", "night"), ("cron", "ops")
UTC_ZONE, BERLIN, KIRITIMATI = ZoneInfo("UTC"), ZoneInfo("Europe/Berlin"), ZoneInfo("Pacific/Kiritimati")  # UTC+14
NANO = budget.NANO


def use(tx: Transaction, day: str, scope: tuple[str, str], usd: float, limits: Budget, tokens: int = 0, runs: int = 1) -> None:
    """Reserve an amount on one day."""
    amount = Amount(round(usd * NANO), tokens, runs)
    spend.reserve_amount(tx, [(BudgetDay(date.fromisoformat(day), scope), limits)], amount)


def test_each_day_and_entry_is_summed_by_itself_and_a_month_ends_with_its_last_day(tx: Transaction) -> None:
    month = Budget(UTC_ZONE, usd_per_month=9.0)
    for day, scope in (("2026-03-01", OPS), ("2026-03-31", OPS), ("2026-02-28", OPS), ("2026-04-01", OPS), ("2026-03-31", NIGHT)):
        use(tx, day, scope, 1, month, tokens=5)
    use(tx, "2026-03-31", OPS, 2, month, tokens=7), use(tx, "2026-03-31", JOB, 4, month)
    spend.adjust_reservation(tx, [BudgetDay(date(2026, 3, 31), JOB)], Amount(-NANO, 3, -1))
    now = utc("2026-03-31 12:00")
    for scope, day_usd, month_usd in ((OPS, 3, 4), (NIGHT, 1, 1), (JOB, 3, 3), (ALL_ENTRIES, 0, 0)):
        day, ends_at, spent = spend.open_budget_day(tx.db, scope, month, now)
        assert (day, ends_at) == (date(2026, 3, 31), utc("2026-04-01 00:00"))
        assert (spent.day.usd, spent.month.usd) == (day_usd, month_usd), scope
        assert spend.spent_today(tx.db, now, {scope: month})[scope].spent == spent
    assert spend.open_budget_day(tx.db, OPS, Budget(UTC_ZONE), now)[2] == Spent(Amount(3 * NANO, 12, 2))


@pytest.mark.parametrize(
    ("now", "zone", "day"),
    [
        ("2026-03-01 09:59", KIRITIMATI, "2026-03-01"),
        ("2026-03-01 10:00", KIRITIMATI, "2026-03-02"),
        ("2026-03-28 22:59", BERLIN, "2026-03-28"),
        ("2026-03-29 21:59", BERLIN, "2026-03-29"),  # the clock went forward: this day has 23 hours
        ("2026-03-29 22:00", BERLIN, "2026-03-30"),
        ("2026-10-25 22:59", BERLIN, "2026-10-25"),  # this day has 25 hours
    ],
)
def test_a_day_begins_and_ends_by_the_clock_of_its_budget(tx: Transaction, now: str, zone: ZoneInfo, day: str) -> None:
    limits, instant = Budget(zone, usd_per_day=1.0), utc(now)
    for _ in range(2):  # before and after the first try of the day
        found, ends_at, _ = spend.open_budget_day(tx.db, OPS, limits, instant)
        assert (found.isoformat(), ends_at.astimezone(zone).strftime("%H:%M")) == (day, "00:00")
        assert spend.spent_today(tx.db, instant, {OPS: limits})[OPS].day == found
        use(tx, day, OPS, 1, limits)
    assert spend.open_budget_day(tx.db, OPS, limits, ends_at)[0] == found + timedelta(days=1)


def test_the_month_is_that_of_the_day_which_is_open_also_at_its_end(tx: Transaction) -> None:
    west = Budget(ZoneInfo("America/New_York"), usd_per_month=9.0)
    use(tx, "2026-03-05", OPS, 1, west)
    use(tx, "2026-03-05", NIGHT, 4, Budget(UTC_ZONE)), use(tx, "2026-03-31", NIGHT, 8, Budget(UTC_ZONE))
    for scope, zone, now, day, usd in (
        (OPS, west.zone, "2026-04-01 03:59", "2026-03-31", 1), (OPS, west.zone, "2026-04-01 04:00", "2026-04-01", 2),
        (NIGHT, KIRITIMATI, "2026-03-31 12:00", "2026-03-31", 12),
    ):  # fmt: skip
        limits, instant = replace(west, zone=zone), utc(now)
        if day == "2026-04-01":
            use(tx, day, scope, 2, limits)
        of_all = spend.spent_today(tx.db, instant, {scope: limits})[scope]
        found, _, spent = spend.open_budget_day(tx.db, scope, limits, instant)
        assert (found.isoformat(), spent.month.usd, of_all.day, of_all.spent.month.usd) == (day, usd, found, usd)


def test_a_day_that_has_begun_stays_open_until_its_end_in_the_former_and_in_the_present_zone(tx: Transaction) -> None:
    east, west = Budget(KIRITIMATI, usd_per_day=1.0), Budget(UTC_ZONE, usd_per_day=1.0)
    tx.now = utc("2026-03-01 09:00")
    use(tx, "2026-03-01", OPS, 1, east), use(tx, "2026-03-01", NIGHT, 1, west)
    for scope, limits in ((OPS, west), (OPS, east)):
        use(tx, "2026-03-01", scope, 0, limits, runs=0)  # the later end counts
    for limits in (west, east):
        spend.record_budgets_in_force(tx, [(OPS, limits, [OPS]), (NIGHT, limits, [NIGHT])])
    ends = {tuple(row[:2]): row[2] for row in tx.db.execute("select kind, name, ends_at from spend")}
    assert ends == {OPS: to_millis(utc("2026-03-02 00:00")), NIGHT: to_millis(utc("2026-03-02 00:00"))}
    now = utc("2026-03-01 12:00")  # 2 March in the new zone
    use(tx, "2026-03-02", OPS, 2, east)
    for found in (spend.open_budget_day(tx.db, OPS, east, now), spend.spent_today(tx.db, now, {OPS: east})[OPS]):
        day, ends_at, spent = found if isinstance(found, tuple) else (found.day, found.ends_at, found.spent)
        assert (day, ends_at, spent.day.usd) == (date(2026, 3, 1), utc("2026-03-02 00:00"), 1)
    assert spend.open_budget_day(tx.db, OPS, east, utc("2026-03-02 00:00"))[0] == date(2026, 3, 2)
    use(tx, "2026-03-02", JOB, 1, east)  # since 10:00 UTC on 1 March
    assert spend.open_budget_day(tx.db, JOB, west, now)[:2] == (date(2026, 3, 2), utc("2026-03-02 10:00"))
    of_all = spend.spent_today(tx.db, now, {JOB: west})[JOB]
    assert (of_all.day, of_all.ends_at) == (date(2026, 3, 2), utc("2026-03-02 10:00"))
    use(tx, "2026-03-04", ALL_ENTRIES, 1, west)  # before the clock was set back
    assert spend.spent_today(tx.db, now, {ALL_ENTRIES: west})[ALL_ENTRIES].day == date(2026, 3, 1)
    assert spend.open_budget_day(tx.db, ALL_ENTRIES, west, now)[0] == date(2026, 3, 1)


def test_the_budget_of_all_names_who_has_used_most_on_the_day_or_in_the_month(tx: Transaction) -> None:
    for day, scope, usd, runs in (
        ("2026-03-02", OPS, 2, 1),
        ("2026-03-02", NIGHT, 1, 9),
        ("2026-03-02", JOB, 0, 3),
        ("2026-03-31", JOB, 9, 0),
    ):
        days = [BudgetDay(date.fromisoformat(day), each) for each in (scope, ALL_ENTRIES)]
        for _ in range(2):
            spend.add_to_share(tx, days, scope, Amount(usd * NANO, 5, runs))
        spend.add_to_share(tx, days[:1], scope, Amount(NANO))
    spend.add_to_share(tx, [BudgetDay(date(2026, 4, 1), ALL_ENTRIES)], NIGHT, Amount(99 * NANO))
    day = date(2026, 3, 2)
    largest = {key: [scope for scope, _ in spend.largest_shares(tx, day, key, 2)] for key in budget.LIMITS}
    assert largest == {
        "usd_per_day": [OPS, NIGHT], "runs_per_day": [NIGHT, JOB], "tokens_per_day": [NIGHT, OPS], "usd_per_month": [JOB, OPS],
    }  # fmt: skip
    spend.add_to_share(tx, [BudgetDay(day, ALL_ENTRIES)], ("cron", "idle"), Amount(0, 0, 1))
    tx.month_shares = None
    assert [scope for scope, _ in spend.largest_shares(tx, day, "usd_per_month", 9)] == [JOB, OPS, NIGHT]
    assert spend.shares_of_period(tx.db, day, "usd_per_day")[JOB] == Amount(0, 10, 6)
    assert spend.shares_of_period(tx.db, day, "usd_per_month")[JOB] == Amount(18 * NANO, 20, 6)


def test_budgets_in_use_were_used_today_or_in_the_month_that_they_limit(tx: Transaction) -> None:
    limits = {
        OPS: Budget(UTC_ZONE, usd_per_month=1.0),
        NIGHT: Budget(UTC_ZONE, usd_per_day=1.0),
        JOB: Budget(UTC_ZONE, runs_per_day=1),
    }
    spend.record_budgets_in_force(
        tx, [(scope, each, [scope]) for scope, each in limits.items()] + [(ALL_ENTRIES, limits[OPS], [])]
    )
    use(tx, "2026-03-01", OPS, 1, limits[OPS]), use(tx, "2026-03-01", NIGHT, 1, limits[NIGHT])
    assert [*spend.budgets_in_force(tx.db)] == [ALL_ENTRIES, NIGHT, OPS, JOB]
    assert {*spend.budgets_in_use(tx.db, tx.now)} == {OPS}
    use(tx, "2026-03-02", JOB, 0, limits[JOB])
    assert {*spend.budgets_in_use(tx.db, tx.now)} == {OPS, JOB}


def test_unknown_costs_are_those_of_open_runs_and_of_the_runs_of_the_period(tx: Transaction) -> None:
    add = "insert into run (kind, name, slot, trigger, state, finished_at, charged_nanos, cost_usd) values (?, ?, ?, 'manual', ?, ?, ?, ?)"
    for number, (scope, state, ended, usd, cost) in enumerate((
        (OPS, "running", None, 4, None), (OPS, "closed", "2026-03-02 00:00", 2, 1.5), (OPS, "closed", "2026-03-01 23:59", 8, None),
        (NIGHT, "waiting", None, 16, None), (OPS, "closed", "2026-03-02 01:00", 1, 3.0), (JOB, "closed", "2026-02-28 12:00", 64, None),
    )):  # fmt: skip
        tx.db.execute(add, (*scope, number, state, ended and to_millis(utc(ended)), usd * NANO, cost))
    limits, unknown = Budget(UTC_ZONE, usd_per_day=9.0), spend.UnknownCosts(tx.db)
    today = BudgetDay(date(2026, 3, 2), OPS)
    assert (unknown.of_period(today, limits, "usd_per_day"), unknown.of_period(today, limits, "usd_per_month")) == (4.5, 12.5)
    spend.add_to_share(tx, [BudgetDay(today.day, ALL_ENTRIES)], NIGHT, Amount(NANO))
    common = replace(today, scope=ALL_ENTRIES)
    assert unknown.of_period(common, limits, "usd_per_day") == 16, "of those that have used this budget"
    assert spend.unknown_usd(tx, today, limits, Spent(), "usd_per_month") == 12.5
    assert spend.unknown_usd(tx, today, limits, Spent(), "usd_per_day") == 4.5
    tx.db.execute(add, (*OPS, 99, "closed", to_millis(utc("2026-03-02 02:00")), 32 * NANO, None))
    assert spend.unknown_usd(tx, today, limits, Spent(), "usd_per_month") == 12.5, "nothing was charged since"
    assert spend.unknown_usd(tx, today, limits, Spent(Amount(1)), "usd_per_month") == 44.5


def test_all_tries_of_a_run_are_charged_to_it(tx: Transaction) -> None:
    tx.db.execute("insert into run (kind, name, slot, trigger, state) values ('cron', 'ops', 1, 'every', 'running')")
    assert not spend.is_charged(tx, 1)
    for _ in range(2):
        spend.record_charge(tx, 1, Amount(5, 7, 1))
    assert [*tx.db.execute("select charged_nanos, charged_tokens from run").fetchone()] == [10, 14]
    assert spend.is_charged(tx, 1)


def test_a_limit_is_exceeded_by_more_than_it_and_each_counts_its_own_part() -> None:
    limits = Budget(UTC_ZONE, usd_per_day=1.0, tokens_per_day=10, runs_per_day=0, usd_per_month=5.0)
    spent = Spent(Amount(NANO // 2, 4, 0), Amount(4 * NANO, 99, 99))
    assert limits.exceeded_limits(spent, Amount(NANO // 2, 6, 0)) == []
    assert limits.exceeded_limits(spent, Amount(NANO // 2 + 1, 7, 1)) == ["usd_per_day", "tokens_per_day", "runs_per_day"]
    assert replace(limits, usd_per_day=9.0).exceeded_limits(spent, Amount(NANO + 1)) == ["usd_per_month"]
    amounts = (0.5, 100.0, 0.000001, 1234.5, 1000000)
    assert [budget.format_amount(each) for each in amounts] == ["0.5", "100", "0.000001", "1,234.5", "1,000,000"]
    assert (
        budget.exceeded_text("tokens_per_day", 7, 10, 4, 0.5) == "tokens_per_day: 7 of 10 tokens are used, and one try may use 4"
    )
    assert "(0.5 of it is reserved for runs of unknown cost)" in budget.exceeded_text("usd_per_day", 1.0, 2.0, 1.0, 0.5)
    assert [bool(budget.describe_unknown(usd)) for usd in (0.0000009, 0.000001)] == [False, True]
    assert budget.exceeded_text("runs_per_day", 3, 3, 1, 0.5) == "runs_per_day: 3 of 3 are used"


BIG, SMALL = ModelCallLimit("big", 100, 10.0, 50.0), ModelCallLimit("small", 1000, 1.0, 2.0)
UNPRICED = ModelCallLimit("local", 10, None, None)


def test_the_dearest_of_the_agent_and_its_fallbacks_decides_what_a_try_may_use() -> None:
    own = AttemptUsage((SMALL,), 0, 1000, fallbacks=((BIG,), None, (UNPRICED,)))
    assert own.max_usage == Amount(round((1000 * 10 + 100 * 50) / 1e6 * NANO), 2000, 1)
    assert (own.priced, replace(own, fallbacks=((BIG,), None)).priced) == (False, True)
    programs = replace(own, programs=2, usd_per_try=0.5, model_calls=(), fallbacks=())
    assert (programs.max_usage.usd, programs.has_unknown_usage) == (1.0, True)


def test_a_model_with_tools_may_use_what_is_left_of_a_try_but_at_least_one_turn() -> None:
    tools = replace(SMALL, turns=10)  # a turn: 2,000 tokens and 0.003 USD
    usage = AttemptUsage((tools,), 0, 1000)
    for usd, tokens, most in (
        (None, None, (0.03, 20_000)), (0.01, 5000, (0.01, 5000)), (0.001, 50, (0.003, 2000)), (9.0, 99_000, (0.03, 20_000)),
    ):  # fmt: skip
        found = replace(usage, usd_per_try=usd, tokens_per_try=tokens).max_usage
        assert (found.usd, found.tokens) == most
    one_turn = replace(usage, model_calls=(SMALL,), usd_per_try=0.0001, tokens_per_try=1)
    assert (one_turn.max_usage.usd, one_turn.max_usage.tokens) == (0.003, 2000), "it is not limited by what a try may use"
    local = replace(usage, model_calls=(replace(UNPRICED, turns=3),), usd_per_try=0.5)
    assert (local.max_usage.usd, local.turn_budgets[0]) == (0.0, budget.TurnBudget(None, 3030, 0.0, 0.0))
    partly = replace(local, model_calls=(tools, UNPRICED), usd_per_try=0.01)
    assert partly.max_usage.usd == 0.03, "without all prices, nothing stops it at an amount"


def test_the_usage_of_an_agent_counts_its_decision_its_fallbacks_and_its_programs() -> None:
    here = Provider("here", "openai", None, None)
    model, decider = ModelRunner(here, 100), ModelRunner(here, 10)
    prices = {"big": Price(10.0, 50.0, 1.0, 12.0, 20.0), "here/small": Price(1.0, 2.0, 1.0, 1.0, 1.0)}
    fallbacks = (
        Fallback("program", AGENT.runner, None), Fallback("first", model, "small"), Fallback("other", AGENT.runner, None),
        Fallback("last", replace(model, tools=Tools((), 3)), "big"),
    )  # fmt: skip
    agent = replace(AGENT, runner=model, model="big", decide=Decide(decider, "small"), fallbacks=fallbacks, max_input_tokens=1000)
    small, decision, big = (
        ModelCallLimit("small", 100, 1.0, 2.0), ModelCallLimit("small", 10, 1.0, 2.0), ModelCallLimit("big", 100, 12.0, 50.0),
    )  # fmt: skip
    found = budget.attempt_usage(agent, prices, 0.5, None)
    assert found == AttemptUsage(
        (decision, big), 2, 1000, 0.5, None, (None, (decision, small), None, (decision, replace(big, turns=3)))
    )
    own, common = Budget(UTC_ZONE), Budget(BERLIN)
    allowance = Allowance(own, common, Amount(), None)
    assert [*allowance.budgets(Kind.HEARTBEAT, "ops")] == [(OPS, own), (ALL_ENTRIES, common)]


def test_a_model_that_decides_first_and_programs_have_their_own_part_of_what_a_try_may_use() -> None:
    deciding = AttemptUsage((SMALL, BIG), 1, 1000, usd_per_try=0.25, fallbacks=((SMALL, SMALL), None))
    agent, fallback, program = deciding.turn_budgets
    most = deciding.max_usage
    assert most == Amount(round((0.25 + 0.003 + 0.015) * NANO), 4000, 1)
    assert agent == budget.TurnBudget(pytest.approx(0.015), 2000, 10.0, 50.0)
    assert fallback == budget.TurnBudget(pytest.approx(0.015), 2000, 1.0, 2.0)
    assert program is None
    assert AttemptUsage((ModelCallLimit("m", 0, 0.0000007, 0.0),), 0, 1000).max_usage.nanos == 1, "rounded up"


def test_the_longest_prompt_is_that_which_the_dearest_and_the_longest_answers_leave() -> None:
    usage = AttemptUsage((SMALL,), 0, 1000, tokens_per_try=5000, fallbacks=((BIG,), (SMALL, BIG), None))
    assert usage.input_tokens_within(0.05) == int((0.05 * 1e6 - 1000 * 2 - 100 * 50) / 11)
    assert usage.input_tokens_within_run == (5000 - 1100) // 2
    assert replace(usage, model_calls=(UNPRICED,), fallbacks=()).input_tokens_within(0.05) is None


NIGHTLY = Price(9.0, 3.0, 0.5, 1.0, 7.0)
LONG = Price(2.0, 30.0, 0.1, 2.5, 4.0)
LISTED = Price(1.0, 5.0, 0.1, 1.25, 2.0, (PriceVariant(LONG, above=100), PriceVariant(NIGHTLY, since=date(2026, 4, 1))))


def test_the_highest_of_all_prices_that_may_apply_is_reserved_and_the_last_that_applies_is_charged() -> None:
    assert LISTED.highest(100) == Price(9.0, 5.0, 0.5, 1.25, 7.0)
    assert LISTED.highest(101) == Price(9.0, 30.0, 0.5, 2.5, 7.0)
    march, april = date(2026, 3, 31), date(2026, 4, 1)
    found = [LISTED.of_request(tokens, day) for tokens, day in ((100, march), (101, march), (100, april), (101, april))]
    assert [each.input for each in found] == [1.0, 2.0, 9.0, 9.0]
    highest = [
        budget.highest_input_price(Price(*each, 0.0))
        for each in ((3.0, 9.0, 1.0, 2.0), (1.0, 9.0, 3.0, 2.0), (1.0, 9.0, 2.0, 3.0))
    ]
    assert highest == [3.0, 3.0, 3.0]


def test_a_call_costs_its_tokens_by_kind_at_the_price_for_its_whole_input() -> None:
    prices = {"here/big": LISTED, "big": Price(100.0, 100.0, 100.0, 100.0, 100.0), "listed": replace(LISTED, listed=True)}
    tokens = Tokens(input=40, output=1000, cache_read=30, cache_write=31, cache_write_1h=11)  # 101 tokens of input
    call, day = Call("here", "big", tokens=tokens), date(2026, 3, 31)
    expected = 40 * 2.0 + 1000 * 30.0 + 30 * 0.1 + 20 * 2.5 + 11 * 4.0
    assert budget.call_cost(prices, call, day) == pytest.approx(expected / 1e6)
    saved = 30 * (2.0 - 0.1) + 20 * (2.0 - 2.5) + 11 * (2.0 - 4.0)
    assert budget.cache_saving(prices, call, day) == pytest.approx(saved / 1e6)
    only_written = replace(call, tokens=Tokens(input=1, output=1000, cache_write=20))
    assert budget.cache_saving(prices, only_written, day) == pytest.approx(20 * (1.0 - 1.25) / 1e6)
    assert budget.call_cost(prices, replace(call, cost_usd=0.0), day) == 0.0
    keys = (("here", "big"), ("there", "big"), (None, "big"), ("here", "listed"), ("here", "new"))
    found = [budget.find_price(prices, *key) for key in keys]
    assert found == [LISTED, prices["big"], prices["big"], None, None]
