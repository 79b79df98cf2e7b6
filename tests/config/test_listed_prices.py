"""Models without an entry in `prices` have the price of the library's list, which is used as it was installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path

import pytest
from config_file import complaints, read, warnings, write

from heartbeat.runners import Call, Tokens
from scheduler.cli.main import main
from scheduler.config.settings.listed_prices import describe_list, find_listed_price
from scheduler.config.settings.load import load_config
from scheduler.model.budget import Price, PriceVariant, call_cost
from scheduler.model.outcome import Kind

ENVIRON = {"KEY": "sk-ant-canary-0123456789"}
RIGHT = """\
limits: {budget: {usd_per_month: 40}}
providers: {anthropic: {api_key: "${KEY}"}, local: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
agents:
  ops: {runner: {kind: anthropic}, model: claude-haiku-4-5, heartbeat: {interval: 30m, deliver: log}}
"""


def test_a_budget_needs_no_price_for_a_listed_model(tmp_path: Path) -> None:
    settings = read(tmp_path, RIGHT, ENVIRON).settings
    price = settings.prices["anthropic/claude-haiku-4-5"]
    assert (price.input, price.output, price.cache_read, price.cache_write, price.cache_write_1h) == (1.0, 5.0, 0.1, 1.25, 2.0)
    assert settings.allowances[Kind.HEARTBEAT, "ops"].max_usage.usd == pytest.approx((50_000 * 1.25 + 2000 * 5) / 1e6)


def test_the_price_in_the_config_is_used_instead(tmp_path: Path) -> None:
    own = read(tmp_path, "prices: {claude-haiku-4-5: {input: 2, output: 3}}\n" + RIGHT, ENVIRON).settings.prices
    assert own == {"claude-haiku-4-5": Price(2.0, 3.0, 2.0, 2.5, 4.0)}


def test_an_unknown_model_and_the_model_of_a_local_server_need_a_price(tmp_path: Path) -> None:
    unknown = 'limits.budget.usd_per_month cannot be enforced, because "claude-next" has no price; write prices: {claude-next: {input: 1.0, output: 5.0}}'
    (complaint,) = complaints(tmp_path, RIGHT.replace("claude-haiku-4-5", "claude-next"), ENVIRON)
    assert complaint.endswith(unknown)
    local = RIGHT.replace("{kind: anthropic}, model", "{kind: openai, provider: local}, model")
    (complaint,) = complaints(tmp_path, local, ENVIRON)
    assert 'because "claude-haiku-4-5" has no price' in complaint


TWO_PROVIDERS = (
    RIGHT.replace("limits: {budget: {usd_per_month: 40}}\n", "")
    + """\
  near: {runner: {kind: openai, provider: local}, model: claude-haiku-4-5, heartbeat: {interval: 30m, deliver: log}}
"""
)


def cost_at(prices: Mapping[str, Price], provider: str | None) -> float | None:
    """What a million tokens of input cost."""
    return call_cost(prices, Call(provider, "claude-haiku-4-5", tokens=Tokens(1_000_000)), date(2026, 11, 28))


def test_a_model_of_the_same_name_at_another_provider_does_not_have_the_listed_price(tmp_path: Path) -> None:
    """A local server may have a model of any name. Only the agent at Anthropic has a known cost."""
    found = read(tmp_path, TWO_PROVIDERS, ENVIRON)
    assert [each.path for each in found.warnings if "has no price" in each.message] == ["agents.near.model"]
    assert [cost_at(found.settings.prices, each) for each in ("anthropic", "local", None)] == [1.0, None, None]


def test_plans_and_simulations_which_resolve_no_secrets_use_the_same_prices(tmp_path: Path) -> None:
    found = load_config(write(tmp_path, TWO_PROVIDERS), {}, resolve_secrets=False)
    assert [cost_at(found.settings.prices, each) for each in ("anthropic", "local", None)] == [1.0, None, None]


def test_a_model_without_a_price_is_reported_for_each_of_its_providers(tmp_path: Path) -> None:
    found = read(tmp_path, TWO_PROVIDERS.replace("claude-haiku-4-5", "claude-next"), ENVIRON)
    assert [each.path for each in found.warnings if "has no price" in each.message] == ["agents.ops.model", "agents.near.model"]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_listed_price_is_not_that_of_a_model_whose_name_begins_with_the_provider(tmp_path: Path, is_first: bool) -> None:
    """Routers have models such as anthropic/claude-haiku-4-5."""
    head, _, ops = RIGHT.replace("limits: {budget: {usd_per_month: 40}}\n", "").partition("  ops:")
    near = "  near: {runner: {kind: openai, provider: local}, model: anthropic/claude-haiku-4-5, heartbeat: {interval: 30m, deliver: log}}\n"
    found = read(tmp_path, f"{head}{near}  ops:{ops}" if is_first else f"{head}  ops:{ops}{near}", ENVIRON)
    assert [each.path for each in found.warnings if "has no price" in each.message] == ["agents.near.model"]
    call = Call("local", "anthropic/claude-haiku-4-5", tokens=Tokens(1_000_000))
    assert call_cost(found.settings.prices, call, date(2026, 11, 28)) is None


def test_a_price_may_be_that_of_one_provider(tmp_path: Path) -> None:
    own = "prices: {local/claude-haiku-4-5: {input: 0, output: 0}, claude-haiku-4-5: {input: 2, output: 3}}\n"
    text = own + TWO_PROVIDERS.replace("deliver: log", "deliver: log, budget: {usd_per_day: 5}")
    settings = read(tmp_path, text, ENVIRON).settings
    assert [cost_at(settings.prices, each) for each in ("anthropic", "local", None)] == [2.0, 0.0, 2.0]
    reserved = [settings.allowances[Kind.HEARTBEAT, name].max_usage.usd for name in ("ops", "near")]
    assert reserved == [pytest.approx((50_000 * 2.5 + 2000 * 3) / 1e6), 0.0]


def test_a_model_of_another_provider_is_found_by_its_address(tmp_path: Path) -> None:
    text = RIGHT.replace("http://127.0.0.1:9/v1", "https://api.deepseek.com/v1").replace(
        "{kind: anthropic}, model: claude-haiku-4-5", "{kind: openai, provider: local}, model: deepseek-chat"
    )
    assert read(tmp_path, text, ENVIRON).settings.prices["local/deepseek-chat"].listed


def test_only_enabled_agents_that_call_a_model_load_the_list(tmp_path: Path) -> None:
    """The import takes a third of a second, which commands with `prices` or programs must not pay."""
    (tmp_path / "config.yaml").write_text("prices: {claude-haiku-4-5: {input: 2, output: 3}}\n" + RIGHT)
    code = f"""
import sys
from scheduler.config.settings.load import load_config
from pathlib import Path
load_config(Path({str(tmp_path / "config.yaml")!r}), {{"KEY": "sk"}})
sys.exit("genai_prices" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_call_costs_the_price_of_its_day_and_its_size() -> None:
    base = Price(1.0, 1.0, 1.0, 1.0, 1.0)
    price = Price(
        10.0, 0.0, 1.0, 12.5, 20.0,
        (PriceVariant(Price(20.0, 0.0, 2.0, 25.0, 40.0), above=1000), PriceVariant(base, since=date(2026, 6, 1))),
    )  # fmt: skip
    before, after = date(2026, 5, 31), date(2026, 6, 1)

    def cost(tokens: Tokens, day: date) -> float | None:
        return call_cost({"m": price}, Call("p", "m", tokens=tokens), day)

    assert cost(Tokens(input=1000), before) == pytest.approx(0.01)
    assert cost(Tokens(input=1, cache_read=1000), before) == pytest.approx(0.00202)
    assert cost(Tokens(input=1001), after) == pytest.approx(0.001001)
    assert price.highest(1000).input == 10.0
    assert price.highest(1001).input == 20.0


def test_the_list_has_prices_for_long_requests_and_by_date() -> None:
    opus = find_listed_price("claude-opus-4-6", "anthropic", None)
    assert opus is not None
    assert [opus.of_request(250_000, day).input for day in (date(2026, 3, 12), date(2026, 3, 13))] == [10.0, 5.0]
    assert opus.of_request(200_000, date(2026, 3, 12)).input == 5.0


def test_check_says_how_old_the_listed_prices_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "sk-ant-canary-0123456789")
    (tmp_path / "config.yaml").write_text(RIGHT)
    assert main(["check", "-c", str(tmp_path / "config.yaml")]) == 0
    assert "prices of claude-haiku-4-5: genai-prices 0." in (shown := capsys.readouterr().out)
    assert "its newest price is" in shown
    _, newest = describe_list(date(2026, 11, 28))
    assert describe_list(newest - timedelta(days=1))[1] < newest
    assert warnings(tmp_path, RIGHT, ENVIRON) == []
