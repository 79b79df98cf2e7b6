"""The list of agents on the status page, without a browser: pages, search and groups with 1,000 agents, and problems above them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from page_user import Answer, PageUser
from test_cli_reading import add_run
from web_daemon import CONFIG, TOKENS, WebDaemon

from scheduler.model.message import DeliveryResult

CHIEF = TOKENS["chief"]
SERVER = f'server: {{listen: "127.0.0.1:0", tokens: {{chief: {{value: "{CHIEF}", may: [read]}}}}}}\n'
MANY = (
    f"{SERVER}defaults: {{runner: {{kind: command, argv: [agent]}}, heartbeat: {{enabled: false, interval: 1h, deliver: log}}}}\nagents:\n"
    '  works: {heartbeat: {enabled: true, interval: 30m, stagger: 0s, checklist: "- look\\n"}}\n'
    + "".join(f"  a{number:03}: {{model: {'large' if number % 100 == 7 else 'small'}}}\n" for number in range(1000))
)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageUser]:
    """A user of a daemon with 1,000 disabled agents and one that fails."""
    with WebDaemon(tmp_path_factory.mktemp("many"), MANY) as daemon:
        daemon.world.scripts["works"] = lambda call: 1
        daemon.do(lambda: daemon.world.run(minutes=31))
        found = PageUser(daemon)
        found.log_in(CHIEF)
        yield found


def names(answer: Answer) -> list[str]:
    return [
        each.attributes["id"].removeprefix("card-")
        for each in answer.elements
        if each.attributes.get("id", "").startswith("card-")
    ]


def test_all_agents_are_on_pages_with_problems_first(user: PageUser) -> None:
    first = user.get("/")
    assert "1,001 of 1,001 agents, page 1 of 21" in first.text
    assert names(first) == ["works", *(f"a{number:03}" for number in range(47))]
    assert names(user.get("/?page=2"))[0] == "a047"
    assert names(user.get("/?page=21")) == [f"a{number:03}" for number in range(959, 1000)]
    assert names(user.get("/?page=99999")) == names(user.get("/?page=21"))
    assert names(user.get("/?page=x")) == names(first)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=a77", [f"a77{digit}" for digit in range(10)]),
        ("q=LARGE", [f"a{hundred}07" for hundred in range(10)]),
        ("q=large+a3", ["a307"]),
        ("q=failing", ["works"]),
        ("show=problems", ["works"]),
        ("show=problems&q=a1", []),
        ("q=%22%3E%3Cscript%3E", []),
    ],
)  # fmt: skip
def test_agents_are_found_by_their_words_and_groups(query: str, found: list[str], user: PageUser) -> None:
    answer = user.get(f"/?{query}")
    assert (answer.status, names(answer)) == (200, found)


def test_the_groups_have_numbers_and_keep_the_search(user: PageUser) -> None:
    answer = user.get("/?q=a7&show=off")
    assert "Not ok 0" in answer.text
    assert "Off 100" in answer.text
    targets = [each.attributes["href"] for each in answer.elements if each.attributes.get("id", "").startswith("filter-")]
    assert all("q=a7" in target for target in targets)


def test_compact_rows_show_400_agents_on_a_page_and_keep_the_search_and_the_group(user: PageUser) -> None:
    first = user.get("/?as=rows")
    assert "1,001 of 1,001 agents, page 1 of 3" in first.text
    assert names(first) == ["works", *(f"a{number:03}" for number in range(399))]
    targets = [each.attributes["href"] for each in user.get("/?as=rows&q=a7&show=off").elements if each.tag == "a"]
    assert "/?show=problems&as=rows&q=a7" in targets
    assert "/?show=off&q=a7" in targets  # back to the cards


def test_the_first_line_is_the_verdict_of_the_status(user: PageUser) -> None:
    status = user.daemon.get("/api/v1/status", CHIEF).data["verdict"]
    assert (status["level"], status["failing"], status["last_run_at"]) == ("bad", 1, "2026-03-02T08:30:00Z")
    assert status["says"] == "1 failing; last run 08:30"
    assert "1 failing ; last run 08:30" in user.get("/").text


def test_an_unknown_group_is_an_error_that_names_the_groups(user: PageUser) -> None:
    answer = user.get("/?show=nonsense")
    assert (answer.status, "show: write problems, alerts, running, quiet, off" in answer.text) == (400, True)


def test_problems_of_the_config_and_of_channels_are_above_the_agents(tmp_path: Path) -> None:
    yaml = CONFIG.replace("deliver: log", "deliver: phone").replace(
        "agents:\n", "channels: {phone: {kind: command, argv: [send]}}\nagents:\n", 1
    )
    with WebDaemon(tmp_path, yaml) as daemon:
        daemon.world.send = lambda sent: DeliveryResult("dead", "the number does not exist")
        daemon.world.scripts["ops"] = lambda call: "another disk is full"
        daemon.do(lambda: daemon.world.run(minutes=31))
        daemon.config.write_text(yaml.replace("interval: 30m", "interval: soon"), "utf-8")
        daemon.post("/-/reload", {}, daemon.token)
        chief, limited = PageUser(daemon), PageUser(daemon)
        chief.log_in(CHIEF)
        limited.log_in(TOKENS["opsman"])
        text = chief.get("/").text
        assert re.search("daemon config since .*'soon' is not a duration", text)
        assert re.search("[0-9]+ messages? for phone (was|were) given up. Outbox", text)
        assert re.search(
            "bad channel channel/phone has taken no messages since .*the number does not exist", chief.get("/page/doctor").text
        )
        assert "1 channel dead" in chief.get("/").text and "channel" not in limited.get("/").text.partition("Search")[0]
        assert "given up. Outbox" not in limited.get("/").text
        assert "'soon' is not a duration" not in limited.get("/").text
        applied = "/page/changes?result=applied"
        assert "'soon' is not a duration" in chief.get(applied).text
        daemon.config.write_text(yaml, "utf-8")
        daemon.post("/-/reload", {}, daemon.token)
        assert "'soon' is not a duration" not in chief.get(applied).text


def test_the_cost_of_today_counts_from_midnight_in_the_zone_of_the_agent(tmp_path: Path) -> None:
    yaml = CONFIG.replace("deliver: log}", "deliver: log, timezone: Asia/Tokyo}", 1)
    with WebDaemon(tmp_path, yaml, start="2026-03-02 16:00") as daemon:  # 01:00 in Tokyo
        for hours, cost in ((2, 4.0), (0.5, 0.25)):
            daemon.do(lambda: add_run(daemon.world.store, daemon.now - timedelta(hours=hours), cost_usd=cost))  # noqa: B023
        user = PageUser(daemon)
        user.log_in(CHIEF)
        assert "Cost today $0.25 " in user.get("/page/cards/ops").text


def test_a_spent_budget_is_a_warning_and_no_failure(tmp_path: Path) -> None:
    with WebDaemon(tmp_path, CONFIG.replace("deliver: log}", "deliver: log, budget: {runs_per_day: 1}}", 1)) as daemon:
        daemon.do(lambda: daemon.world.run(minutes=65))
        user = PageUser(daemon)
        user.log_in(CHIEF)
        first = user.get("/")
        assert "1 stopped ; last run 09:00" in first.text
        assert '<span class="badge late">budget spent</span>' in first.body
        assert "ops runs per day 1 1 spent" in user.get("/page/costs").text


def test_a_card_shows_a_budget_of_which_nothing_is_left_as_spent(tmp_path: Path) -> None:
    budget = "budget: {usd_per_day: 0.25, usd_per_try: 0.25}"
    with WebDaemon(tmp_path, CONFIG.replace("deliver: log}", f"deliver: log, {budget}}}", 1)) as daemon:
        daemon.do(lambda: daemon.world.run(minutes=1))
        user = PageUser(daemon)
        user.log_in(CHIEF)
        assert '<span class="late">budget $0.25 of $0.25, spent</span>' in user.get("/page/cards/ops").body
