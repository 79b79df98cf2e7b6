"""The view of one agent without a browser: what it shows, whom it shows it to, and what its forms change or keep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_agents import CONFIG, TOKENS, form_fields, start_daemon, user_of
from page_user import Answer, PageUser
from patience import PATIENCE
from test_cli_reading import add_run
from test_story_slots import agent
from web_daemon import WebDaemon
from world import MakeWorld, utc

from scheduler.engine.tick_items import Tick
from scheduler.model.config_changes import ConfigDiff, ConfigEvent, KeyChange
from scheduler.model.message import DeliveryResult
from scheduler.store import config_history, run_history
from scheduler.store.run_history import RunFilter
from scheduler.store.wakes import list_reminders
from scheduler.web.page import agent_config, agent_view, rendering
from scheduler.web.page.time_axis import TimeAxis

OPS = "/page/agents/ops"
ACT = "/page/do/agents/ops"
ANY_VALUE = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.sampled_from(
        [
            "[",
            "{a: ",
            "[[[[1]]]]",
            "{<<: *x}",
            "&a [*a]",
            "!!python/object:os.system x",
            "|",
            "- x",
            "#",
            "a: b",
            "0",
            "-1",
            "1e999",
            ",",
            "true",
            "[" * 3000,
            "9" * 400,
            "\u2028",
            "\x00",
            "'",
            '"',
            "null",
            "~",
            "2026-01-01",
            "08:00-22:00",
            "{start: 8}",
            "*/5 * * * *",
        ]
    ),
)


@pytest.fixture(scope="module")
def kept_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDaemon]:
    """A daemon that no test changes."""
    with start_daemon(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    with start_daemon(tmp_path, hours=0.5) as running:
        yield running


def actions(answer: Answer) -> set[str]:
    """The last words of the paths to which the forms of a page lead."""
    found = {each.attributes["action"] for each in answer.elements if each.tag == "form" and each.attributes["method"] == "post"}
    return {path.rpartition("/")[2] for path in found} - {"logout"}


# --- what the page shows --------------------------------------------------------------------------------------------------


def test_each_slot_of_the_day_is_a_mark_that_leads_to_its_run(kept_daemon: WebDaemon) -> None:
    found = user_of(kept_daemon).get(OPS)
    marks = [each for each in found.elements if each.tag == "rect"]
    kinds = [each.attributes["class"] for each in marks]
    assert (kinds.count("fill-note"), kinds.count("fill-bad"), kinds.count("fill-late")) == (2, 1, 1)
    assert "span" not in kinds  # the picture begins with the first slot, and not with the time before the agent existed
    assert [marks[0].attributes[key] for key in ("x", "y", "height")] == ["0.0%", "22", "26"]  # 09:00 in Berlin
    assert "9 ran, quiet" in found.text and "The day as a table" in found.text


def test_the_days_before_and_after_can_be_shown(kept_daemon: WebDaemon) -> None:
    user = user_of(kept_daemon)
    links = [each.attributes["href"] for each in user.get(OPS).elements if each.tag == "a" and "?on=" in each.attributes["href"]]
    assert links == [f"{OPS}?on=2026-03-01", f"{OPS}?on=2026-03-03"]
    assert "There are no runs in the history." in user.get(links[0]).text
    assert "28 to come" in user.get(links[1]).text
    assert "Today" in user.get(f"{OPS}?on=2026-03-01").text


def test_the_runs_of_a_day_that_has_passed_are_listed(daemon: WebDaemon) -> None:
    daemon.do(lambda: daemon.world.clock.advance(timedelta(days=1)))
    found = user_of(daemon).get(f"{OPS}?on=2026-03-02")
    assert "Runs up to this day" in found.text
    assert "/page/runs/1" in [each.attributes.get("href") for each in found.elements if each.tag == "a"]
    assert "There are no runs in the history." not in found.text


def test_the_usual_ends_of_a_pause_are_those_of_the_local_clock_and_the_next_one_comes_first() -> None:
    """The clocks of Berlin go forward on 29 March 2026 at 01:00 UTC."""
    ends = rendering.quick_ends(utc("2026-03-28 09:30"), ZoneInfo("Europe/Berlin"))
    assert [end[1:] for end in ends[1:]] == [("2026-03-28T11:00:00Z", "until 12:00"), ("2026-03-29T06:00:00Z", "until 08:00")]


@pytest.mark.parametrize("day", ["soon", "2026-02-30", "9999-12-31", "0001-01-01", "2030-01-01"])
def test_a_day_that_cannot_be_shown_is_an_error(day: str, kept_daemon: WebDaemon) -> None:
    found = user_of(kept_daemon).get(f"{OPS}?on={day}")
    assert (found.status, "on: " in found.text) == (400, True)


def test_runs_come_with_text_prompt_parts_and_time(kept_daemon: WebDaemon) -> None:
    found = user_of(kept_daemon).get(OPS).text
    assert "The disk /srv is 92 % full." in found
    assert re.search(r"checklist 18 \d+ %", found)
    assert "ran, failed: exit" in found and "no checklist" in found


def test_a_run_of_a_model_has_its_tokens_and_cost_and_its_worker(daemon: WebDaemon) -> None:
    tokens = {"input": 1200, "output": 34, "cache_read": 5600, "cache_write": 0}
    run = daemon.do(
        lambda: add_run(
            daemon.world.store,
            daemon.now + timedelta(minutes=1),
            text="All is well.",
            model_used="claude-haiku-5-5",
            cost_usd=0.0123,
            tokens=json.dumps(tokens),
            worker="gpu-1",
        )
    )
    for path in (OPS, f"/page/runs/{run}"):
        found = user_of(daemon).get(path).text
        assert "6,800 tokens in, 34 out, $0.0123, on gpu-1" in found
        assert "Worker gpu-1" in found
        assert "Tokens of claude-haiku-5-5 Input From the cache Into the cache Output Spent 1,200 5,600 0 34 $0.0123" in found


def test_the_next_run_is_shown_with_the_time_until_it(kept_daemon: WebDaemon) -> None:
    assert "Next run: 15:30 ( in 30m )" in user_of(kept_daemon).get(OPS).text


def test_older_runs_are_on_further_pages(daemon: WebDaemon) -> None:
    daemon.do(lambda: daemon.world.run(hours=59.5))
    user, seen, path, pages = user_of(daemon), [], OPS, 0
    while path:
        found, pages = user.get(path), pages + 1
        seen += map(int, re.findall(r'href="/page/runs/(\d+)"', found.body.partition('id="agent-runs"')[2]))
        older = [each.attributes["href"] for each in found.elements if each.tag == "a" and "cursor=" in each.attributes["href"]]
        path = older[0] if older else ""
    assert pages > 1
    assert seen == sorted((each["id"] for each in daemon.do(lambda: daemon.world.records("ops"))), reverse=True)
    assert user.get(f"{OPS}?cursor=x").status == 400
    hrefs = [each.attributes.get("href") or "" for each in user.get(f"{OPS}?on=2026-03-03").elements]
    assert ["&on=2026-03-03" in each for each in hrefs if "cursor=" in each] == [True]


def test_nothing_that_an_agent_says_becomes_part_of_the_page(kept_daemon: WebDaemon) -> None:
    user = user_of(kept_daemon)
    run = next(
        each for each in kept_daemon.do(lambda: kept_daemon.world.records("ops")) if each["text"] and "script" in each["text"]
    )
    for path in (OPS, f"/page/runs/{run['id']}"):
        found = user.get(path)
        assert "alert(1)" in found.text
        assert all(each.attributes.get("src", "").startswith("/page/static/") for each in found.elements if each.tag == "script")
        assert not [name for each in found.elements for name in each.attributes if name.startswith("on")]
        assert not [each for each in found.elements if each.tag == "img" or "style" in each.attributes]
        assert "\u202e" not in found.body and "\\x202e" in found.body


def test_findings_in_json_are_shown_as_lines(daemon: WebDaemon) -> None:
    """Also on a card, which shows only the beginning of an answer."""
    found = {"findings": [{"key": "disk:/var", "text": "92 %"}, {"key": "note", "text": "word " * 100, "severity": "info"}]}
    daemon.world.scripts = {"ops": lambda _: f"```json\n{json.dumps(found)}\n```"}
    daemon.do(lambda: daemon.world.run(hours=0.5))
    user = user_of(daemon)
    pages = [user.get(OPS)]
    pages += [
        user.get(each.attributes["href"])
        for each in pages[0].elements
        if each.attributes.get("href", "").startswith("/page/runs/")
    ][:1]
    for page in (*pages, user.get("/")):
        assert "[disk:/var] 92 %" in page.text
        assert '"findings"' not in page.text


def test_a_long_answer_is_cut_with_a_link_to_the_whole(daemon: WebDaemon) -> None:
    daemon.world.scripts = {"ops": lambda _: "word " * 3000 + "end"}
    daemon.do(lambda: daemon.world.run(hours=0.5))
    user = user_of(daemon)
    found = user.get(OPS)
    assert "The whole text of 15,003 characters" in found.text and "word end" not in found.text
    link = next(each.attributes["href"] for each in found.elements if each.attributes.get("href", "").startswith("/page/runs/"))
    assert "word end" in user.get(link).text


def test_waiting_wakes_are_shown_with_what_they_wait_for(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    user.submit(f"{ACT}/pause", next=OPS)
    found = user.submit(f"{ACT}/wake", next=OPS, text="look at <b>this</b>")
    assert "is queued; it waits: the agent is paused" in found.text
    assert "Waiting wakes" in found.text and "look at <b>this</b>" in found.text


def test_an_unknown_agent_and_an_unknown_run_are_not_found(kept_daemon: WebDaemon) -> None:
    user = user_of(kept_daemon)
    for path in ("/page/agents/nobody", "/page/agents/nobody/config", "/page/agents/nobody/checklist", "/page/runs/99999"):
        assert user.get(path).status == 404


# --- whom it is shown to --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "overview", "checklist", "button"),
    [
        ("reader", set(), set(), "Show the lines to write"),
        ("waker", {"wake"}, set(), "Show the lines to write"),
        ("self", set(), {"checklist"}, "Check the changes"),
        ("all", {"wake", "pause", "mute"}, {"checklist"}, "Check the changes"),
    ],
)
def test_a_token_gets_only_the_buttons_that_it_may_use(
    token: str, overview: set[str], checklist: set[str], button: str, kept_daemon: WebDaemon
) -> None:
    user = user_of(kept_daemon, token)
    assert actions(user.get(OPS)) == overview
    found = user.get(f"{OPS}/checklist")
    assert ("Your token may not edit it." in found.text) is (not checklist)
    assert button in user.get(f"{OPS}/config").text
    message = user.get("/page/outbox/1")
    assert ("Message 1" in message.text, actions(message)) == (True, set())  # it is delivered


def test_a_token_that_may_only_read_gets_its_text_back(kept_daemon: WebDaemon) -> None:
    found = user_of(kept_daemon, "reader").submit(f"{ACT}/wake", text="hello")
    assert (found.status, "the token 'reader' may not" in found.text) == (403, True)
    assert "Your text was not sent: hello" in found.text


# --- buttons --------------------------------------------------------------------------------------------------------------


def state(daemon: WebDaemon) -> dict[str, Any]:
    return daemon.get("/api/v1/agents/ops", daemon.token).data  # type: ignore[no-any-return]


def test_a_wake_starts_a_run_with_the_text(daemon: WebDaemon) -> None:
    found = user_of(daemon).submit(f"{ACT}/wake", next=OPS, text="look at the disk")
    assert "wake 1 for agent/ops is queued" in found.text
    assert "look at the disk" in daemon.world.calls[-1].stdin


def test_an_agent_is_paused_for_a_time_and_resumed(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    assert (
        "agent/ops is paused until 2026-03-02 11:30:00 Europe/Berlin"
        in user.submit(f"{ACT}/pause", next=OPS, **{"for": "2h"}).text
    )
    assert (state(daemon)["state"], state(daemon)["paused_until"]) == ("paused", "2026-03-02T10:30:00Z")
    found = user.get(OPS)
    assert "resume" in actions(found) and "pause" not in actions(found)
    assert "agent/ops is resumed" in user.submit(f"{ACT}/resume", next=OPS).text
    assert state(daemon)["state"] == "active"


def test_an_agent_is_muted_and_unmuted(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    assert "agent/ops is muted until something changes" in user.submit(f"{ACT}/mute", next=OPS, until_changed="true").text
    assert state(daemon)["muted"]["until_changed"] is True
    found = user.get(OPS)
    assert "unmute" in actions(found) and "mute" not in actions(found)
    assert "agent/ops is unmuted; messages of 0 runs were suppressed" in user.submit(f"{ACT}/unmute", next=OPS).text
    assert state(daemon)["muted"] is None


def test_a_reminder_is_set_shown_and_cancelled(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    found = user.submit(f"{ACT}/wake", next=OPS, text="has the <i>backup</i> ended?", **{"in": "2h"})
    assert "Reminders" in found.text and "has the <i>backup</i> ended?" in found.text
    (reminder,) = daemon.do(lambda: list_reminders(daemon.world.store.connection))
    cancelled = user.submit(f"/page/do/wakes/{reminder.wake}/cancel", next=OPS)
    assert f"wake {reminder.wake} for agent/ops is cancelled" in cancelled.text
    assert "Reminders" not in cancelled.text


def test_a_refused_wake_keeps_its_text(daemon: WebDaemon) -> None:
    found = user_of(daemon).submit("/page/do/agents/off/wake", text="a long text\nof two lines")
    assert (found.status, "disabled" in found.text) == (409, True)
    assert form_fields(found, "/page/do/agents/off/wake")["text"] == "a long text\r\nof two lines"


def test_a_wrong_duration_is_named_at_its_field_and_kept(daemon: WebDaemon) -> None:
    found = user_of(daemon).submit(f"{ACT}/pause", **{"for": "soon"})
    assert (found.status, "'soon' is not a duration" in found.text) == (400, True)
    (field,) = (each for each in found.elements if "aria-invalid" in each.attributes)
    assert (field.attributes["id"], field.attributes["value"]) == ("pause-for", "soon")
    assert state(daemon)["state"] == "active"


def forms_with_a_text(user: PageUser) -> Iterator[tuple[str, dict[str, str]]]:
    """Each form in which a user writes, filled in, as a browser sends it."""
    yield f"{ACT}/wake", form_fields(user.get(OPS), f"{ACT}/wake") | {"text": "my text"}
    yield f"{OPS}/checklist", form_fields(user.get(f"{OPS}/checklist"), f"{OPS}/checklist") | {"text": "my text"}
    yield f"{OPS}/config", opened_form(user) | {"heartbeat.prompt": "my text", "step": "check"}


def test_a_form_of_an_earlier_login_is_shown_again_with_its_text(daemon: WebDaemon) -> None:
    user, before = user_of(daemon), daemon.rows()
    for path, sent in list(forms_with_a_text(user)):
        found = user_of(daemon).post(path, sent)
        assert (found.status, "you have logged in again" in found.text) == (403, True)
        kept = form_fields(found, path)
        assert "my text" in kept.values() and kept["form_code"] != sent["form_code"]
    assert (daemon.rows(), daemon.config.read_text()) == (before, CONFIG)


def test_after_the_end_of_a_login_a_form_says_how_to_keep_its_text(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    for path, sent in list(forms_with_a_text(user)):
        found = PageUser(daemon).post(path, sent)
        assert (found.status, "log in in another tab, and then load this page again" in found.text) == (403, True)


# --- the checklist --------------------------------------------------------------------------------------------------------


def checklist_of(daemon: WebDaemon) -> Path:
    return Path(daemon.world.folder / "agents/ops/HEARTBEAT.md")


def edit_checklist(user: PageUser, text: str, opened: Answer | None = None) -> Answer:
    sent = form_fields(opened or user.get(f"{OPS}/checklist"), f"{OPS}/checklist") | {"text": text}
    return user.submit(f"{OPS}/checklist", **sent)


def test_a_checklist_is_saved(daemon: WebDaemon) -> None:
    found = edit_checklist(user_of(daemon), "- one\r\n- two\r\n")
    assert "The checklist is saved." in found.text
    assert checklist_of(daemon).read_text() == "- one\n- two\n"
    assert "It has no items" in edit_checklist(user_of(daemon), "").text


def test_opening_and_saving_a_checklist_changes_no_byte(daemon: WebDaemon) -> None:
    for text in ("\n\n- begins with empty lines\n", "- no line break at the end", "- <b>&amp; 'quotes' \"\n"):
        checklist_of(daemon).write_text(text)
        user = user_of(daemon)
        user.submit(f"{OPS}/checklist", **form_fields(user.get(f"{OPS}/checklist"), f"{OPS}/checklist"))
        assert checklist_of(daemon).read_text() == text
    assert undo_links(user.get("/page/changes?of=ops")) == []


def test_of_two_editors_the_second_keeps_both_texts(daemon: WebDaemon) -> None:
    user, other = user_of(daemon), user_of(daemon)
    opened = user.get(f"{OPS}/checklist")
    edit_checklist(other, "- by the other\n")
    refused = edit_checklist(user, "- mine\n", opened)
    assert (refused.status, "Somebody else has changed the checklist" in refused.text) == (412, True)
    assert "-- by the other +- mine" in refused.text
    assert form_fields(refused, f"{OPS}/checklist")["text"] == "- mine\r\n"
    assert checklist_of(daemon).read_text() == "- by the other\n"
    edit_checklist(user, "- mine\n- by the other\n", refused)
    assert checklist_of(daemon).read_text() == "- mine\n- by the other\n"


def test_a_checklist_that_does_not_exist_is_created(daemon: WebDaemon) -> None:
    checklist_of(daemon).unlink()
    user = user_of(daemon)
    assert "Saving creates it." in user.get(f"{OPS}/checklist").text
    edit_checklist(user, "- new\n")
    assert checklist_of(daemon).read_text() == "- new\n"
    assert len(undo_links(user.get("/page/changes?of=ops"))) == 1


def test_a_checklist_that_is_too_large_is_kept_in_the_form(daemon: WebDaemon) -> None:
    text = "- " + "x" * 70_000
    refused = edit_checklist(user_of(daemon), text)
    assert (refused.status, "at most 64 KiB" in refused.text) == (413, True)
    assert form_fields(refused, f"{OPS}/checklist")["text"] == text


def test_a_checklist_is_kept_in_the_form_while_the_config_cannot_be_read(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    opened, before = user.get(f"{OPS}/checklist"), checklist_of(daemon).read_text()
    daemon.config.write_text("agents: [")
    refused = edit_checklist(user, "- mine\n", opened)
    assert (refused.status, "the config file is not valid YAML" in refused.text) == (409, True)
    assert form_fields(refused, f"{OPS}/checklist")["text"] == "- mine\r\n"
    assert checklist_of(daemon).read_text() == before


def test_a_checklist_in_the_config_leads_to_the_config(kept_daemon: WebDaemon) -> None:
    found = user_of(kept_daemon).get("/page/agents/web/checklist")
    assert "This checklist is a text in the config." in found.text and "- look" in found.text
    assert actions(found) == set()


# --- the config -----------------------------------------------------------------------------------------------------------


def opened_form(user: PageUser, name: str = "ops") -> dict[str, str]:
    return form_fields(user.get(f"/page/agents/{name}/config"), f"/page/agents/{name}/config")


def send(user: PageUser, sent: dict[str, str], step: str = "check", name: str = "ops") -> Answer:
    return user.submit(f"/page/agents/{name}/config", **sent, step=step)


def test_a_change_is_shown_before_it_is_written(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    shown = send(user, opened_form(user) | {"heartbeat.interval": "1h", "heartbeat.show_ok": "true"})
    assert "Nothing is written yet." in shown.text
    assert "+ interval: 1h # twice an hour" in shown.text and "show_ok: true" in shown.text
    assert daemon.config.read_text() == CONFIG
    written = send(user, form_fields(shown, f"{OPS}/config"), "write")
    assert "Written and applied. agent/ops: heartbeat.interval 30m -> 1h" in written.text
    assert daemon.config.read_text() == CONFIG.replace("interval: 30m   ", "interval: 1h    ").replace(
        "budget: {runs_per_day: 200}\n", "budget: {runs_per_day: 200}\n      show_ok: true\n"
    )
    assert daemon.settings.heartbeats["ops"].interval.total_seconds() == 3600


def test_back_to_the_form_keeps_the_changes(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    shown = send(user, opened_form(user) | {"heartbeat.interval": "1h"})
    again = form_fields(send(user, form_fields(shown, f"{OPS}/config"), "edit"), f"{OPS}/config")
    assert (again["heartbeat.interval"], again["seen:heartbeat.interval"]) == ("1h", "30m")


def test_a_form_without_changes_changes_nothing(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    assert "Nothing is changed" in send(user, opened_form(user)).text
    assert "Nothing is changed" in send(user, opened_form(user), "write").text
    assert daemon.config.read_text() == CONFIG


def test_an_emptied_field_removes_its_key(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    shown = send(user, opened_form(user) | {"heartbeat.active_hours": ""})
    send(user, form_fields(shown, f"{OPS}/config"), "write")
    assert daemon.config.read_text() == CONFIG.replace('      active_hours: "08:00-22:00"\n', "")


def test_a_key_that_is_left_out_of_a_map_is_removed(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    for hours in ('{start: "08:00", end: "22:00", days: mon-fri}', '{start: "08:00", end: "22:00"}'):
        shown = send(user, opened_form(user) | {"heartbeat.active_hours": hours})
        send(user, form_fields(shown, f"{OPS}/config"), "write")
        assert daemon.config.read_text() == CONFIG.replace('active_hours: "08:00-22:00"', f"active_hours: {hours}")


def test_errors_are_at_their_fields_and_everything_is_kept(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    wrong = {"heartbeat.interval": "1 fortnight", "heartbeat.retries": "many", "heartbeat.prompt": "Two\r\nlines", "model": "big"}
    found = send(user, opened_form(user) | wrong)
    assert (found.status, "Nothing was written: the config would have 2 errors." in found.text) == (422, True)
    invalid = {each.attributes["name"]: each.attributes for each in found.elements if "aria-invalid" in each.attributes}
    assert set(invalid) == {"heartbeat.interval", "heartbeat.retries"}
    assert "heartbeat-interval-error" in invalid["heartbeat.interval"]["aria-describedby"]
    assert "'1 fortnight' is not a duration" in found.text
    kept = form_fields(found, f"{OPS}/config")
    assert {key: kept[key] for key in wrong} == wrong
    opened = [each.attributes["id"] for each in found.elements if each.tag == "details" and "open" in each.attributes]
    assert opened == ["interval-and-hours", "model", "checklist-and-context"]
    assert daemon.config.read_text() == CONFIG


def test_all_errors_of_a_field_are_shown_at_it(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    found = send(user, opened_form(user) | {"heartbeat.active_hours": '[{start: "25:00", end: "26:00"}]'})
    assert [each.attributes["name"] for each in found.elements if "aria-invalid" in each.attributes] == ["heartbeat.active_hours"]
    assert [f"'{clock}' is not a time" in found.text for clock in ("25:00", "26:00")] == [True, True]


def test_an_error_elsewhere_is_above_the_form(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    found = send(user, opened_form(user) | {"heartbeat.deliver": "nowhere, chat"})
    assert found.status == 422
    assert [each.attributes["name"] for each in found.elements if "aria-invalid" in each.attributes] == ["heartbeat.deliver"]


def test_of_two_editors_the_second_learns_what_has_changed(daemon: WebDaemon) -> None:
    user, other = user_of(daemon), user_of(daemon)
    mine = opened_form(user) | {"heartbeat.interval": "2h"}
    theirs = opened_form(other) | {"heartbeat.interval": "1h", "heartbeat.timeout": "9m"}
    send(other, form_fields(send(other, theirs), f"{OPS}/config"), "write")
    before = daemon.config.read_text()
    refused = send(user, mine)
    assert (refused.status, "The config file has changed since you opened this form" in refused.text) == (412, True)
    assert "The value in the file: 1h" in refused.text
    kept = form_fields(refused, f"{OPS}/config")
    assert (kept["heartbeat.interval"], kept["heartbeat.timeout"]) == ("2h", "9m")
    assert daemon.config.read_text() == before
    send(user, form_fields(send(user, kept), f"{OPS}/config"), "write")
    assert daemon.config.read_text() == before.replace("interval: 1h", "interval: 2h")


def test_a_file_that_changes_before_the_confirmation_is_not_overwritten(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    shown = send(user, opened_form(user) | {"heartbeat.interval": "1h"})
    daemon.config.write_text(CONFIG + "# another editor was here\n")
    refused = send(user, form_fields(shown, f"{OPS}/config"), "write")
    assert (refused.status, form_fields(refused, f"{OPS}/config")["heartbeat.interval"]) == (412, "1h")
    assert daemon.config.read_text() == CONFIG + "# another editor was here\n"


def test_a_file_with_errors_is_named_and_the_form_is_kept(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    mine = opened_form(user) | {"heartbeat.prompt": "a long text"}
    daemon.config.write_text(CONFIG.replace("stagger: 0s\n      active", "stagger: never\n      active"))
    refused = send(user, mine)
    assert (refused.status, "The config file has errors." in refused.text) == (409, True)
    assert form_fields(refused, f"{OPS}/config")["heartbeat.prompt"] == "a long text"
    daemon.config.write_text("agents: [")
    assert form_fields(send(user, mine), f"{OPS}/config")["heartbeat.prompt"] == "a long text"


@pytest.mark.parametrize("name", ["web", "copy"])
def test_a_value_behind_an_anchor_gets_the_lines_to_write(name: str, daemon: WebDaemon) -> None:
    user = user_of(daemon)
    found = send(user, opened_form(user, name) | {"heartbeat.interval": "1h"}, name=name)
    assert (found.status, "This change cannot be made here: config.yaml:" in found.text) == (409, True)
    assert f"agents: {name}: heartbeat: interval: 1h" in found.text
    assert form_fields(found, f"/page/agents/{name}/config")["heartbeat.interval"] == "1h"


@pytest.mark.parametrize(
    ("key", "value", "lines"),
    [
        ("context", "NOTES.md, TODO.md", "context: [NOTES.md, TODO.md]"),
        ("heartbeat.precheck", "check-mails", "precheck: check-mails"),
        ("runner", "{kind: command, argv: [sh]}", "runner: {kind: command, argv: [sh]}"),
        ("workspace", "/elsewhere", "workspace: /elsewhere"),
    ],
)
def test_a_protected_key_gets_the_lines_to_write(key: str, value: str, lines: str, daemon: WebDaemon) -> None:
    user = user_of(daemon)
    found = send(user, opened_form(user) | {key: value}, "write")
    assert (found.status, "cannot be changed over HTTP" in found.text, lines in found.text) == (409, True, True)
    assert form_fields(found, f"{OPS}/config")[key] == value
    assert daemon.config.read_text() == CONFIG


def test_a_token_without_the_permission_gets_the_lines_to_write(daemon: WebDaemon) -> None:
    user = user_of(daemon, "reader")
    found = send(user, opened_form(user) | {"heartbeat.interval": "1h"}, "write")
    assert "agents: ops: heartbeat: interval: 1h" in found.text
    assert daemon.config.read_text() == CONFIG


def test_a_limited_token_changes_its_interval_and_not_its_budget(daemon: WebDaemon) -> None:
    user = user_of(daemon, "self")
    found = send(user, opened_form(user) | {"heartbeat.budget.runs_per_day": "900"}, "write")
    assert "is limited to some agents and may not change this key" in found.text
    shown = send(user, opened_form(user) | {"heartbeat.interval": "1h"})
    send(user, form_fields(shown, f"{OPS}/config"), "write")
    assert "interval: 1h" in daemon.config.read_text() and "runs_per_day: 200" in daemon.config.read_text()


@pytest.fixture(scope="module")
def kept_form(kept_daemon: WebDaemon) -> tuple[PageUser, dict[str, str]]:
    user = user_of(kept_daemon)
    return user, opened_form(user)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.sampled_from(agent_config.all_keys()), ANY_VALUE, min_size=1, max_size=4))
def test_whatever_is_written_in_a_field_is_answered_and_kept(
    kept_form: tuple[PageUser, dict[str, str]], fields: dict[str, str]
) -> None:
    user, sent = kept_form
    found = user.post(f"{OPS}/config", sent | fields | {"step": "check"})
    assert found.status in (200, 400, 409, 422)
    kept = form_fields(found, f"{OPS}/config")
    for key, text in fields.items():
        if text.isprintable():
            assert kept[key].strip() == text.strip()


def test_the_history_of_a_removed_agent_can_be_read(daemon: WebDaemon) -> None:
    without = CONFIG.replace("  copy: *web\n", "")
    daemon.do(lambda: daemon.world.reload(without))
    user = user_of(daemon)
    found = user.get("/page/agents/copy")
    assert (found.status, "removed" in found.text, actions(found)) == (200, True, set())
    assert user.get("/page/agents/copy/config").status == 404


def test_forms_of_an_agent_that_was_removed_meanwhile_keep_what_was_written(daemon: WebDaemon) -> None:
    user = user_of(daemon)
    opened, mine = user.get(f"{OPS}/checklist"), opened_form(user) | {"heartbeat.prompt": "a long text"}
    renamed = CONFIG.replace("  ops:  ", "  operations:  ").replace("agents: [ops]", "agents: [web]")
    daemon.do(lambda: daemon.world.reload(renamed))
    for refused in (send(user, mine), edit_checklist(user, "- a long text\n", opened)):
        assert (refused.status, "there is no agent" in refused.text, "a long text" in refused.text) == (404, True, True)
    assert form_fields(refused, f"{OPS}/checklist")["text"] == "- a long text\r\n"


def test_all_keys_of_the_form_exist_and_are_described() -> None:
    for key in agent_config.all_keys():
        assert agent_config.form_of_key(key).description[0]
        assert "](" not in "".join(agent_config.form_of_key(key).description)
    assert len(set(agent_config.all_keys())) == len(agent_config.all_keys())


def test_each_field_has_a_label_of_its_own(kept_daemon: WebDaemon) -> None:
    labels = re.findall(r"<label for=.*?>(.*?)</label>", user_of(kept_daemon).get(f"{OPS}/config").body)
    assert len(labels) == len(set(labels)) == len(agent_config.all_keys())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("heartbeat.interval", "1h30m"),
        ("heartbeat.enabled", False),
        ("heartbeat.schedule", "*/5 * * * *"),
        ("heartbeat.active_hours", "08:00-22:00"),
        ("heartbeat.active_hours", ["08:00-12:00", "14:00-15:00"]),
        ("heartbeat.deliver", [{"to": "chat", "hours": "08:00-12:00"}, "log"]),
        ("heartbeat.active_hours", [{"start": "08:00", "end": "12:00", "days": "mon-fri"}, "14:00-15:00"]),
        ("heartbeat.skip_on", ["holidays", "summer"]),
        ("heartbeat.max_output_tokens", "2k"),
        ("heartbeat.max_output_tokens", 1500),
        ("heartbeat.budget.usd_per_day", 0.5),
        ("heartbeat.deliver", "none"),
        ("heartbeat.deliver", ["chat", "log"]),
        ("heartbeat.prompt", "Look.\nThen answer: [ok]\n"),
        ("heartbeat.checklist", "- look\n"),
        ("heartbeat.model", "claude-haiku-5-5"),
        ("context", ["NOTES.md"]),
    ],
)
def test_a_value_of_the_file_is_read_back_from_its_field(key: str, value: Any) -> None:
    found = agent_config.parse_field(key, agent_config.field_text(value))
    assert found == value or [found] == value  # a list of one name may be written without brackets


def test_equal_runs_share_a_line_and_the_picture_of_the_day_begins_with_its_first_slot(
    kept_daemon: WebDaemon,
) -> None:
    user = user_of(kept_daemon)
    text = user.get(OPS).text
    assert "ran, quiet 4 times, Mon 02 Mar 2026 13:30:00 to 15:00" in text
    assert "The disk /srv is 92 % full." in text  # an alert has a line of its own
    assert "00:00" not in text.partition("Today, ")[2].partition("planned runs:")[0]


def test_an_hour_that_a_clock_change_repeats_has_one_label() -> None:
    """The clocks of the Azores go back to midnight on 25 October 2026."""
    axis = TimeAxis(utc("2026-10-25 00:00"), utc("2026-10-26 01:00"), ZoneInfo("Atlantic/Azores"))
    assert [f"{each.local:%H %Z}" for each in axis.labels(6)] == ["00 +00", "06 -01", "12 -01", "18 -01"]


def test_two_alerts_in_a_row_have_a_line_each(make_world: MakeWorld) -> None:
    world = make_world(agent(), scripts={"ops": lambda call: f"The disk is full since {call.at:%H:%M}."})
    world.run(minutes=31)
    found = run_history.list_runs(world.store.connection, RunFilter(name="ops"), limit=9)
    folded = agent_view.fold_runs([agent_view.shown_run(run) for run in found])
    assert [run.preview for run, _ in folded] == ["The disk is full since 08:30.", "The disk is full since 08:00."]


def test_two_failed_runs_with_different_errors_have_a_line_each(make_world: MakeWorld) -> None:
    world = make_world(agent(retries="0"), scripts={"ops": lambda call: 1 if call.at.minute else 2})
    world.run(minutes=31)
    found = run_history.list_runs(world.store.connection, RunFilter(name="ops"), limit=9)
    folded = agent_view.fold_runs([agent_view.shown_run(run) for run in found])
    assert [run.preview for run, _ in folded] == ["exit code 1", "exit code 2"]


def test_a_run_shows_each_recipient_that_its_message_has_not_reached(make_world: MakeWorld) -> None:
    channels = (
        "channels: {one: {kind: webhook, url: 'https://example.org/1'}, two: {kind: webhook, url: 'https://example.org/2'}}\n"
    )
    world = make_world(channels + agent(deliver="[one, two]"), scripts={"ops": lambda call: "The disk is full."})
    world.send = lambda each: DeliveryResult("delivered" if each.channel.name == "one" else "dead", "gone")
    world.run(minutes=1)
    (run,) = run_history.list_runs(world.store.connection, RunFilter(name="ops"), limit=9)
    assert agent_view.shown_run(run).undelivered == "accepted for two, not delivered (given up after 1 try, gone)"


# --- undo -----------------------------------------------------------------------------------------------------------------


def undo_links(answer: Answer) -> list[str]:
    return [each.attributes["href"] for each in answer.elements if each.tag == "a" and "undo=" in each.attributes["href"]]


def test_an_edit_of_the_config_is_undone_from_the_first_page_after_a_preview(daemon: WebDaemon) -> None:
    user, before = user_of(daemon), daemon.config.read_text()
    sent = opened_form(user) | {"heartbeat.interval": "1h", "heartbeat.budget.runs_per_day": "", "heartbeat.show_ok": "true"}
    user.submit(f"{OPS}/config", **sent, step="write")
    assert "interval: 1h " in daemon.config.read_text() and "runs_per_day" not in daemon.config.read_text()
    first = user.get("/")
    assert "Last edit 0s ago by token all: agent/ops: " in first.text
    preview = user.get(undo_links(first)[0])
    assert "Nothing is written yet." in preview.text and "+ interval: 30m # twice an hour" in preview.text
    assert "show_ok" not in before and "- show_ok: true" in preview.text
    assert "Written and applied." in user.submit(f"{OPS}/config", **form_fields(preview, f"{OPS}/config"), step="write").text
    assert daemon.config.read_text() == before
    assert "Nothing is changed" in user.get(undo_links(first)[0]).text


def test_an_edit_of_a_checklist_is_undone_and_both_edits_are_in_the_history(daemon: WebDaemon) -> None:
    user, before = user_of(daemon), checklist_of(daemon).read_text()
    edit_checklist(user, "- mine\n")
    preview = user.get(undo_links(user.get("/"))[0])
    assert "Saving this text undoes the edit:" in preview.text and "-- mine +- Is the disk full?" in preview.text
    user.submit(f"{OPS}/checklist", **form_fields(preview, f"{OPS}/checklist"))
    assert checklist_of(daemon).read_text() == before
    history = user.get("/page/changes?of=ops")
    assert len(undo_links(history)) == 2
    assert "agent/ops: HEARTBEAT.md 2 lines -> 1 line" in history.text
    assert undo_links(user.get("/page/changes?of=web")) == []
    assert daemon.get("/api/v1/status", TOKENS["all"]).data["reload"]["last"] is None  # no reload of the config
    daemon.do(lambda: daemon.world.clock.advance(timedelta(hours=25)))
    assert undo_links(user_of(daemon).get("/")) == []


def test_the_older_changes_of_an_agent_are_on_a_further_page(daemon: WebDaemon) -> None:
    def record(tick: Tick) -> None:
        for number in range(100, 133):
            diff = ConfigDiff(changes=(KeyChange("retries", "0", "1", ("agent/web" if number in (100, 132) else "agent/ops",)),))
            config_history.record_config_event(tick.tx, ConfigEvent("applied", f"user {number}", diff))

    daemon.ask(record).result(PATIENCE)
    user = user_of(daemon)
    first = user.get("/page/changes?of=ops")
    (older,) = [each.attributes["href"] for each in first.elements if each.attributes.get("rel") == "next"]
    pages = [re.findall(r"user (1\d\d)", page.text) for page in (first, user.get(older))]
    assert pages == [[str(number) for number in range(131, 101, -1)], ["101"]]


def test_only_those_who_may_edit_an_agent_undo_its_edits(daemon: WebDaemon) -> None:
    edit_checklist(user_of(daemon), "- mine\n")
    (link,) = undo_links(user_of(daemon, "self").get("/"))
    assert undo_links(user_of(daemon, "reader").get("/")) == []
    other = link.replace("/ops/", "/web/")
    assert user_of(daemon, "self").get(other).status == 403
    assert user_of(daemon).get(other).status == 404
    user = user_of(daemon)
    user.submit("/page/agents/off/config", **opened_form(user, "off") | {"heartbeat.interval": "2h"}, step="write")
    assert "agent/off" in user.get("/page/changes").text
    assert "Active config" in user.get("/page/changes").text
    limited = user_of(daemon, "self").get("/page/changes").text
    assert "agent/off" not in limited and "Active config" not in limited


def test_the_form_shows_no_password_of_a_mailbox(daemon: WebDaemon) -> None:
    box = "precheck: {imap: imap.example.org, user: anna, password: canary-4711}"
    changed = daemon.config.read_text().replace("    heartbeat:\n", f"    heartbeat:\n      {box}\n", 1)
    assert box in changed
    daemon.config.write_text(changed)
    shown = opened_form(user_of(daemon))["heartbeat.precheck"]
    assert "imap.example.org" in shown
    assert "canary" not in shown


def test_an_edit_that_the_form_cannot_undo_names_the_lines_to_write(daemon: WebDaemon) -> None:
    for budget in ("unlimited", {"runs_per_day": 10}):
        version = daemon.get("/api/v1/agents/ops/config", TOKENS["all"]).data["hash"]
        body = {"changes": {"heartbeat": {"budget": budget}}, "hash": version}
        assert daemon.send("PATCH", "/api/v1/agents/ops/config", body, TOKENS["all"]).status == 200
    user = user_of(daemon)
    shown = user.get(undo_links(user.get("/"))[0])
    assert "This edit cannot be undone here" in shown.text and "budget: unlimited" in shown.text
    assert "Nothing is written yet." not in shown.text


def test_an_edit_of_another_agent_is_not_undone_although_ones_own_has_changed_with_it(daemon: WebDaemon) -> None:
    """Somebody has changed the file, and the edit applies this too."""
    daemon.config.write_text(daemon.config.read_text().replace("retries: 0", "retries: 1", 1))
    user = user_of(daemon)
    user.submit("/page/agents/off/config", **opened_form(user, "off") | {"heartbeat.interval": "4h"}, step="write")
    assert len(undo_links(user.get("/page/changes"))) == 1
    shown = user_of(daemon, "self").get("/page/changes")
    assert "retries" in shown.text and undo_links(shown) == []


def test_an_edit_that_has_replaced_a_secret_is_not_undone_as_the_secret_is_not_kept(daemon: WebDaemon) -> None:
    for prompt in ("look with token=canary-4711", "look"):
        version = daemon.get("/api/v1/agents/ops/config", TOKENS["all"]).data["hash"]
        body = {"changes": {"heartbeat": {"prompt": prompt}}, "hash": version}
        assert daemon.send("PATCH", "/api/v1/agents/ops/config", body, TOKENS["all"]).status == 200
    assert len(undo_links(user_of(daemon).get("/page/changes?of=ops"))) == 1  # of the first edit
