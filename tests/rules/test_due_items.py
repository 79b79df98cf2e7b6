"""Which items of a checklist are due, and what of the checklist goes into the prompt."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from loops import loop_over

from heartbeat.checklist import HIGH, LOW, NORMAL, Progress, count_boxes, parse_checklist, parse_list_line

EIGHT = datetime(2026, 11, 20, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)


def due(text: str, **asked_before: int) -> str:
    """The items that are due at eight if all items were last checked `hours` before."""
    known = parse_checklist(text).select_due_items(EIGHT, {}).recurring_items
    before = dict.fromkeys(known, EIGHT - asked_before["hours"] * HOUR) if asked_before else {}
    return parse_checklist(text).select_due_items(EIGHT, before).text


@loop_over(
    ("line", "every", "priority", "paused", "plain"),
    [
        ("- look", None, NORMAL, False, "- look"),
        ("- [every 6h] look", 6 * HOUR, NORMAL, False, "- look"),
        ("- [ ] [every 90s] look", timedelta(seconds=90), NORMAL, False, "- [ ] look"),
        ("- [every 1h30m] [ ] look", HOUR * 1.5, NORMAL, False, "- [ ] look"),
        ("* [High] [ ] [EVERY 2d] look", 48 * HOUR, HIGH, False, "* [ ] look"),
        ("1. [low] look", None, LOW, False, "1. look"),
        ("  + [ paused ] look", None, NORMAL, True, "  + look"),
        ("- [paused] [low] [every 1h] look", HOUR, LOW, True, "- look"),
        ("- [high] [low] look", None, LOW, False, "- look"),
        ("- [low|paused] look", None, LOW, True, "- look"),
        ("- [High | active] look", None, HIGH, False, "- look"),
        ("- [medium] look", None, NORMAL, False, "- look"),
        ("- [high|every 6h] look", 6 * HOUR, HIGH, False, "- look"),
        ("- [completed] look", None, NORMAL, False, "- [x] look"),
        ("- [low|completed] look", None, LOW, False, "- [x] look"),
        ("- [ ] [completed] look", None, NORMAL, False, "- [x] look"),
        ("- [low|someday] look", None, NORMAL, False, "- [low|someday] look"),
        ("- [someday|low] look", None, NORMAL, False, "- [someday|low] look"),
        ("- [low|] look", None, NORMAL, False, "- [low|] look"),
        ("- [urgent] look", None, NORMAL, False, "- [urgent] look"),
        ("- [urgent] [high] look", None, NORMAL, False, "- [urgent] [high] look"),
        ("- [every day] look", None, NORMAL, False, "- [every day] look"),
        ("- [every 6] look", None, NORMAL, False, "- [every 6] look"),
        ("- [every 0h] look", None, NORMAL, False, "- [every 0h] look"),
        ("- [every 99999d] look", None, NORMAL, False, "- [every 99999d] look"),
        ("- [high](https://example.org) look", None, NORMAL, False, "- [high](https://example.org) look"),
        ("- look [high]", None, NORMAL, False, "- look [high]"),
        ("- [ ] [ ] look", None, NORMAL, False, "- [ ] [ ] look"),
    ],
)
def test_marks_may_come_before_or_after_a_box_and_unknown_marks_are_text(
    line: str, every: timedelta | None, priority: int, paused: bool, plain: str
) -> None:
    found = parse_list_line(line)
    assert found is not None
    assert (found.every, found.priority, found.paused, found.without_marks) == (every, priority, paused, plain)


def test_zeroclaws_marks_for_completed_and_paused_items_work() -> None:
    assert due("- [low] a\n- [low|paused] b\n- [high] c") == "- [high] c\n- a"
    assert not parse_checklist("- [completed] look").has_work
    assert due("- [low|paused] b\n- [completed] c") == ""
    assert count_boxes("- [completed] a\n- [ ] b") == Progress(open=1, done=1)


@loop_over(
    ("text", "expected"),
    [
        ("- [every 30] look", ["[every 30]"]),
        ("- [ ] [high] [every 2 hours] look", ["[every 2 hours]"]),
        ("- [high|every 30] look", ["[high|every 30]"]),
        ("- [low|someday] look", ["[low|someday]"]),
        ("- [every 30] a\n- [every 30] b\n- [every 6] c", ["[every 30]", "[every 6]"]),
        ("tasks:\n\n- name: mail\n  interval: 30m\n  prompt: look", ["`tasks:`"]),
        ("# Mine\n\nTasks:\n  - name: mail\n    prompt: look", ["`tasks:`"]),
        ("```yaml\ntasks:\n- interval: 2h\n```", ["`tasks:`"]),
    ],
)
def test_text_that_looks_like_a_mark_or_a_tasks_block_gets_a_remark(text: str, expected: list[str]) -> None:
    found = parse_checklist(text).remarks
    assert len(found) == len(expected)
    assert all(words in remark for words, remark in zip(expected, found, strict=True))
    assert parse_checklist(text).select_due_items(EIGHT, {}).remarks == found


@loop_over(
    "text",
    [
        "- [every 30m] look",
        "- [urgent] look",
        "- [every 6](https://example.org) look",
        "- look [every 30]",
        "every 30 minutes: look",
        "```\n- [every 30] code\n```",
        "# Completed\n- [every 30] look",
        "tasks: none today",
        "tasks:\n- look at the mail\n- look at the disk",
        "My tasks:\n- name the dog",
    ],
)
def test_ordinary_text_gets_no_remark(text: str) -> None:
    assert parse_checklist(text).remarks == ()


@pytest.mark.parametrize("line", ["look", "# - look", "-look", "[high] look", "", "--- [high]"])
def test_only_list_items_have_marks(line: str) -> None:
    assert parse_list_line(line) is None


@pytest.mark.parametrize(
    ("hours", "asked_again"),
    [(0, False), (5, False), (6, True), (7, True), (-1, True)],
    ids=["at this slot", "too soon", "just now", "long ago", "in a future that a clock set back has left"],
)
def test_an_item_is_due_when_its_time_has_passed_from_slot_to_slot(hours: int, asked_again: bool) -> None:
    assert due("- [every 6h] look", hours=hours) == ("- look" if asked_again else "")


def test_an_item_without_every_or_never_prompted_is_due() -> None:
    assert due("- look", hours=0) == "- look"
    assert due("- [every 6h] look") == "- look"


def test_a_paused_item_is_never_in_the_prompt_not_even_with_everything() -> None:
    assert parse_checklist("- [paused] look").select_due_items(EIGHT, {}).text == ""
    assert parse_checklist("- [paused] look\n- see").select_due_items(EIGHT, {}, everything=True).text == "- see"


def test_everything_selects_items_that_are_not_due() -> None:
    text = "- [every 6h] look"
    known = parse_checklist(text).select_due_items(EIGHT, {}).recurring_items
    found = parse_checklist(text).select_due_items(EIGHT, dict.fromkeys(known, EIGHT), everything=True)
    assert (found.text, found.prompted_items) == ("- look", known)


def test_high_items_come_first_and_low_ones_last_in_their_section() -> None:
    text = "# Mail\n- [low] a\n- b\n- [high] c\n- d\n## Disk\n- e\n- [high] f"
    assert due(text) == "# Mail\n- [high] c\n- b\n- d\n- a\n## Disk\n- [high] f\n- e"


def test_lines_indented_below_an_item_belong_to_it() -> None:
    text = "- [every 6h] mail\n  - [ ] inbox\n\n  More of it.\n```\ncode\n```\n- disk\n  and\nits inodes"
    assert due(text, hours=1) == "- disk\n  and\nits inodes"


def test_a_heading_without_a_due_item_is_left_out_and_one_above_a_due_item_stays() -> None:
    text = "# Daily\n- [every 1d] report\n\n# Always\n## Mail\n- look\n## Disk\n- [every 1d] clean\n# Later\n- [ ]"
    assert due(text, hours=1) == "# Always\n## Mail\n- look"


def test_other_text_belongs_to_the_items_of_its_section_and_is_always_in_the_prompt_if_there_are_none() -> None:
    assert due("# Daily\nThese things:\n\n- [every 1d] report", hours=1) == ""
    assert due("# Daily\nThese things:\n\n- [every 1d] report", hours=24) == "# Daily\nThese things:\n\n- report"
    assert due("# Always\nLook at the mail.\n# Daily\n- [every 1d] report", hours=1) == "# Always\nLook at the mail."


def test_done_and_completed_items_are_not_selected() -> None:
    text = "- [x] [every 6h] old\n- [every 6h] look\n# Completed\n- [every 1h] older"
    assert len(parse_checklist(text).select_due_items(EIGHT, {}).recurring_items) == 1
    assert due(text, hours=1) == ""


@pytest.mark.parametrize(
    "other",
    ["- [every 8h] look at it\n  - [x] part", "- [ ] [high] look  at it\n    - [ ] part", "* look at it\n  * part"],
    ids=["another interval and a ticked box", "other marks and blanks", "another bullet"],
)
def test_an_item_keeps_its_hash_while_its_text_is_the_same(other: str) -> None:
    text = "- [every 6h] look at it\n  - [ ] part"
    marked = other if "every" in other else other.replace("look", "[every 6h] look", 1)
    assert (
        parse_checklist(text).select_due_items(EIGHT, {}).recurring_items
        == parse_checklist(marked).select_due_items(EIGHT, {}).recurring_items
    )


def test_an_item_with_another_text_has_another_hash() -> None:
    assert (
        not parse_checklist("- [every 6h] look").select_due_items(EIGHT, {}).recurring_items
        & parse_checklist("- [every 6h] look twice").select_due_items(EIGHT, {}).recurring_items
    )


def test_code_is_neither_heading_nor_item() -> None:
    text = "- look\n\n```\n# no heading\n- [paused] no item\n```"
    assert due(text) == text


@pytest.mark.parametrize("text", ["- [high] [ ]", "- [every 6h]", "- [paused] [x] done", "- [x] [low] done"])
def test_marks_alone_and_marked_items_that_are_done_are_no_work(text: str) -> None:
    assert not parse_checklist(text).has_work


def test_boxes_are_counted_including_done_ones_under_completed() -> None:
    text = "- [ ] a\n- [high] [ ] b\n- [ ]\n- [x] c\n```\n- [ ] code\n```\n# Completed\n- [X] d\n- [ ] e"
    assert count_boxes(text) == Progress(2, 2)
    assert count_boxes(text, "1. [ ] f") == Progress(3, 2)


@pytest.mark.parametrize("line", ["- [every 6h] x\n", "# a\n", "- x\n\n", "###### a\n- [high] x\n", "- [", "[[[["])
def test_the_largest_checklist_is_parsed_quickly(line: str) -> None:
    text = line * (64 * 1024 // len(line))
    begun = time.process_time()
    parse_checklist(text).select_due_items(EIGHT, {})
    assert time.process_time() - begun < 2


def test_items_of_all_sections_are_prompted_and_told_apart_by_all_their_lines() -> None:
    parsed = parse_checklist("# A\n- [every 6h] look\n  - mail\n# B\n- [every 6h] look\n  - disk\n- [every 1h] see")
    first = parsed.select_due_items(EIGHT, {})
    assert (len(first.recurring_items), first.prompted_items) == (3, first.recurring_items)
    later = parsed.select_due_items(EIGHT + HOUR, dict.fromkeys(first.recurring_items, EIGHT))
    assert (later.text, len(later.prompted_items), later.recurring_items) == ("# B\n- see", 1, first.recurring_items)


def test_two_items_with_the_same_text_are_checked_each_at_its_own_time() -> None:
    parsed = parse_checklist("# Web\n- [every 1h] Is the disk full?\n# Backup\n- [every 1d] Is the disk full?\n")
    before: dict[str, datetime] = {}
    shown = []
    for hour in range(26):
        slot = EIGHT + hour * HOUR
        selected = parsed.select_due_items(slot, before)
        before |= dict.fromkeys(selected.prompted_items, slot)
        shown += [hour] if "# Backup" in selected.text else []
    assert shown == [0, 24]
