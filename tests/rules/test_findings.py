"""The findings in an answer: read from the arguments of a tool, from JSON, and from lines of text, whatever is in them."""

from __future__ import annotations

import json
import random
import re
import time
from contextlib import suppress
from typing import Any

import pytest
from loops import loop_over

from heartbeat.findings import (
    MAX_FINDINGS,
    MAX_KEY,
    MAX_SIZE,
    MAX_TEXT,
    Finding,
    InvalidFindings,
    ReminderWish,
    Report,
    Severity,
    comparable_key,
    merge_by_key,
    merge_reports,
    parse_reminders,
    parse_report,
    read_report,
    readable_answer,
    with_text_around,
)

INFO, WARNING, CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL
DISK = {"key": "disk:/var", "text": "/var is 92 % full", "severity": "critical", "resolved": False}
FOUND = Finding("disk:/var", "/var is 92 % full", CRITICAL)
LOOK = ReminderWish("look", in_="2h")
JSON = json.dumps({"findings": [DISK]})


def lines(answer: str) -> list[str]:
    """The findings of an answer as lines of plain text; empty if it has none."""
    report = read_report(answer)
    return [finding.line for finding in report.findings] if report else []


# --- arguments of the tool, and JSON ----------------------------------------------------------------------------------


def test_a_finding_has_a_key_a_text_a_severity_and_may_be_resolved() -> None:
    over = {"key": "swap", "text": "back to 10 %", "severity": "info", "resolved": True}
    assert parse_report({"findings": [DISK, over]}) == Report((FOUND, Finding("swap", "back to 10 %", INFO, resolved=True)))
    assert str(parse_report({"findings": [DISK, over]})) == "[disk:/var!] /var is 92 % full\n[swap] resolved: back to 10 %"


def test_a_text_that_the_checklist_asks_for_is_kept_beside_the_findings() -> None:
    for name in ("text", "requested_text"):
        assert parse_report({"findings": [], name: " The week was calm. "}) == Report((), "The week was calm.")


@pytest.mark.parametrize(
    ("severity", "read"),
    [
        ("info", INFO),
        (" Critical ", CRITICAL),
        ("WARNING", WARNING),
        ("fatal", WARNING),
        (3, WARNING),
        (None, WARNING),
        ([], WARNING),
    ],
)
def test_an_unknown_severity_is_a_warning(severity: object, read: Severity) -> None:
    assert parse_report({"findings": [DISK | {"severity": severity}]}).findings[0].severity is read


@loop_over(
    ("resolved", "read"),
    [
        (True, True),
        ("true", True),
        (" TRUE ", True),
        ("yes", True),
        (False, False),
        ("false", False),
        ("no", False),
        (1, False),
        (None, False),
        ("2026-03-02", False),
        ([True], False),
        ({}, False),
    ],
)
def test_resolved_may_be_a_text(resolved: object, read: bool) -> None:
    assert parse_report({"findings": [DISK | {"resolved": resolved}]}).findings[0].resolved is read


def test_missing_and_extra_fields_are_no_error() -> None:
    found = parse_report({"findings": [{"key": "swap", "host": "a", "extra": {"deep": [1]}}], "thoughts": "hm", "version": 2})
    assert found == Report((Finding("swap", "swap"),))
    assert parse_report([{"key": "swap", "resolved": True}]).findings[0].line == "[swap] resolved"


@loop_over(
    "label",
    [
        "disk:/var",
        " Disk: /VAR ",
        "[disk:/var]",
        "[disk:/var!]",
        "`disk:/var`",
        "**disk:/var**",
        '"disk:/var"',
        "disk:/var!",
        "disk:\n/var",
        "disk:\u202e/var",
        "\ufeffdisk:/var\x00",
        "disk:\x1b /var",
        "**[disk:/var]**",
        "`**[disk:/var]**`",
    ],
)
def test_a_key_is_the_same_in_any_case_and_wrapping(label: str) -> None:
    assert [finding.key for finding in parse_report({"findings": [DISK | {"key": label}]}).findings] == ["disk:/var"]


def test_a_text_that_repeats_its_key_has_it_only_once() -> None:
    assert str(parse_report({"findings": [DISK | {"text": "[disk:/var] full"}]})) == "[disk:/var!] full"


@loop_over("key", ["", "  ", "\x00", "\u202e\u200b", "***", "[]", "🔥", "---", None, 7, True, [], {"key": "x"}])
def test_a_finding_without_a_usable_key_becomes_part_of_the_text(key: object) -> None:
    assert parse_report({"findings": [DISK | {"key": key}, {"key": "swap", "text": "full"}], "text": "Both:"}) == Report(
        (Finding("swap", "full"),), "Both:\n/var is 92 % full"
    )


def test_a_finding_of_an_unknown_form_is_kept_as_text() -> None:
    found = parse_report({"findings": [{"title": "Disk full"}, 92, "\n[swap] full", "The mail is down.", None, {}, DISK]})
    assert found == Report((Finding("swap", "full"), FOUND), '{"title": "Disk full"}\n92\nThe mail is down.')


@loop_over(
    "given",
    [
        None,
        7,
        True,
        "",
        "disk full",
        b"[]",
        {},
        {"findings": None},
        {"findings": DISK},
        {"findings": 3},
        {"findings": "full"},
        {"findings": '{"a"'},
        {"text": "x"},
        {"findings": [None]},
        {"findings": [{}, "", None]},
        {1: 2},
        '{"findings": [{"key"',
    ],
)
def test_data_without_readable_findings_is_refused_with_a_reason_in_one_line(given: object) -> None:
    with pytest.raises(InvalidFindings) as refused:
        parse_report(given)
    assert str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_list_and_arguments_may_be_written_as_a_text() -> None:
    assert parse_report(JSON) == parse_report({"findings": json.dumps([DISK])}) == Report((FOUND,))
    assert parse_report("[]") == Report(())
    assert parse_report(json.dumps(JSON)) == Report((FOUND,))


def test_all_that_an_answer_says_beside_its_findings_is_kept() -> None:
    whole = {
        "findings": [DISK],
        "text": "a",
        "requested_text": "b",
        "failed": "no access",
        "remind": [{"text": "look", "in": "2h"}],
    }
    assert parse_report(whole) == Report((FOUND,), "b", failed="no access", reminders=(LOOK,))
    assert parse_report(whole, is_cut=True).reminders == (), "the end of the list may be missing"
    assert read_report('{"failed": "no access"}') == Report((), failed="no access")
    assert parse_report([DISK, {"text": "it is over", "resolved": True}]) == Report((FOUND,))
    assert len(parse_reminders([{"text": "look"}] * (MAX_FINDINGS + 5))) == MAX_FINDINGS


def test_lines_with_keys_in_the_text_are_findings_if_there_are_no_others() -> None:
    assert parse_report({"findings": [], "text": "[disk:/var!] /var is 92 % full"}) == Report((FOUND,))


def test_the_quiet_token_is_no_text() -> None:
    assert parse_report({"findings": [DISK], "text": "Heartbeat OK."}) == Report((FOUND,))
    assert parse_report({"findings": [], "text": "HEARTBEAT_OK"}) == Report(())


def test_text_around_findings_is_cut_before_a_finding_is() -> None:
    report = with_text_around(Report((FOUND,)), "é" * MAX_SIZE)
    assert report.findings == (FOUND,)
    assert MAX_SIZE - 2 <= len(str(report).encode()) <= MAX_SIZE
    assert with_text_around(Report((FOUND,), "b"), "ALERT: a") == Report((FOUND,), "ALERT: a\nb")
    assert with_text_around(Report((FOUND,), loose="b"), "a") == Report((FOUND,), loose="a\nb")


def test_findings_with_the_same_key_are_one_for_a_caller_that_knows_only_keys() -> None:
    same = [{"key": "disk", "text": "a"}, {"key": "DISK", "text": "b", "severity": "critical"}, {"key": "d isk", "text": "a"}]
    assert merge_by_key(parse_report(same).findings) == (Finding("disk", "a\nb", CRITICAL),)
    over = parse_report([{"key": "disk", "resolved": True}, {"key": "Disk", "text": "full"}])
    assert merge_by_key(over.findings) == (Finding("Disk", "full"),)


def test_reports_of_several_calls_are_merged() -> None:
    parts = [Report((FOUND,), "a", "b", 1), Report((Finding("DISK: /VAR", "and slow"), Finding("swap", "x")), "c", "d", 2)]
    assert merge_reports(parts) == Report((FOUND, Finding("DISK: /VAR", "and slow"), Finding("swap", "x")), "a\nc", "b\nd", 3)
    last = Report((Finding("swap", "x"),) * MAX_FINDINGS, dropped=2, failed="no access", reminders=(LOOK,))
    merged = merge_reports([Report((FOUND,), reminders=(LOOK,)), last])
    assert (merged.dropped, merged.failed, merged.reminders) == (3, "no access", (LOOK, LOOK))


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_thousands_of_findings_are_counted() -> None:
    found = parse_report([{"key": f"disk:{number}", "text": "full"} for number in range(5000)])
    assert (len(found.findings), found.dropped) == (MAX_FINDINGS, 5000 - MAX_FINDINGS)
    read = read_report("\n".join(f"[disk:{number}] full" for number in range(5000)))
    assert read is not None
    assert (len(read.findings), read.dropped) == (MAX_FINDINGS, 5000 - MAX_FINDINGS)
    last = read_report("\n".join([*(f"[disk:{number}] full" for number in range(MAX_FINDINGS + 1)), "and slow"]))
    assert last is not None
    assert last.findings[-1].text == "full"


def test_huge_keys_and_texts_are_cut_and_different_keys_stay_different() -> None:
    one, other = (parse_report([{"key": "a" * 70_000 + end, "text": "b" * 70_000}]).findings[0] for end in ("1", "2"))
    assert (len(one.label), len(one.text)) == (MAX_KEY, MAX_TEXT + 3)
    assert one.key != other.key
    upper, whole = parse_report([{"key": "A" * 70_000 + "1"}, {"key": "a" * MAX_KEY, "text": "b" * MAX_TEXT}]).findings
    assert upper.key == one.key
    assert (whole.label, whole.text) == ("a" * MAX_KEY, "b" * MAX_TEXT)


def test_findings_that_exceed_the_size_of_an_answer_are_counted_and_the_most_serious_are_kept() -> None:
    many = [{"key": f"disk:{number}", "text": "é" * MAX_TEXT, "severity": "info"} for number in range(40)]
    found = parse_report([*many, DISK])
    assert found.findings[-1] == FOUND
    assert len(str(found).encode()) <= MAX_SIZE
    assert len(found.findings) + found.dropped == 41
    text = "x" * (MAX_SIZE - 5)
    for report in (parse_report({"findings": [DISK], "text": text}), merge_reports([Report((FOUND,), loose=text)])):
        assert (report.findings, report.dropped) == ((), 1)


def test_findings_above_the_number_and_above_the_size_are_counted_together() -> None:
    found = parse_report([{"key": f"disk:{number}", "text": "é" * MAX_TEXT} for number in range(MAX_FINDINGS + 10)])
    assert len(found.findings) < MAX_FINDINGS
    assert len(found.findings) + found.dropped == MAX_FINDINGS + 10


# --- JSON that was cut off --------------------------------------------------------------------------------------------


@loop_over("length", range(len(JSON)))
def test_of_arguments_that_were_cut_the_complete_findings_count(length: int) -> None:
    two = json.dumps({"text": 'see "findings": [1]', "findings": [DISK, DISK | {"key": "swap"}]})
    end_of_first = two.index("}") + 1
    for cut in (two[: end_of_first + length], two[: end_of_first + 1]):
        assert parse_report(cut, is_cut=True).findings[0] == FOUND
    if length < len(JSON) - 2:
        assert parse_report(JSON[:length], is_cut=True).findings == ()


def test_the_last_finding_of_an_object_that_was_cut_counts_only_with_all_its_fields() -> None:
    half = {"key": "swap:/de", "text": "th"}
    assert parse_report({"findings": [DISK, half]}, is_cut=True) == Report((FOUND,))
    assert parse_report({"findings": [half, DISK]}, is_cut=True).findings == (Finding("swap:/de", "th"), FOUND)


def test_of_a_text_with_json_that_was_cut_the_complete_findings_count() -> None:
    answer = f'Result:\n```json\n{{"findings": [{json.dumps(DISK)}, {{"key": "swa'
    assert read_report(answer, is_cut=True) == Report((FOUND,), loose="Result:")
    assert read_report(answer) is None
    assert read_report('{"findings": [{"key": "a', is_cut=True) is None
    assert read_report(f'"findings": [{json.dumps(DISK)}]\n{{"x": ', is_cut=True) is None


# --- JSON in a text ---------------------------------------------------------------------------------------------------


@loop_over(
    ("answer", "loose"),
    [
        (JSON, ""),
        (f"  {JSON}\n", ""),
        (json.dumps([DISK], indent=2), ""),
        (f'{{"findings":\n{json.dumps([DISK])}}}', ""),
        (f"```json\n{JSON}\n```", ""),
        (f"```\n{JSON}\n```\n", ""),
        (f"~~~ json\n{JSON}\n~~~", ""),
        (f"Here it is:\n\n```json\n{JSON}\n```\n\nThat was it.", "Here it is:\nThat was it."),
        (f"Here it is:\n{json.dumps({'findings': [DISK]}, indent=4)}\nThat was it.", "Here it is:\nThat was it."),
        (f"```json\n{JSON}", ""),
        (f"HEARTBEAT_OK\n{JSON}\nheartbeat ok", ""),
        (f"Result: {JSON}", ""),
        (f"I have looked.\n**Final result:** {JSON}", "I have looked."),
        (f'{{"day": 3}}\n{JSON}', '{"day": 3}'),
        (f"[ ] to do\n[x] done\n{JSON}", "[ ] to do\n[x] done"),
    ],
)
def test_json_is_read_alone_in_a_fence_or_with_text_around_it(answer: str, loose: str) -> None:
    assert read_report(answer) == Report((FOUND,), loose=loose)


def test_two_blocks_of_json_are_one_report() -> None:
    assert read_report(f'{JSON}\nand\n```\n[{{"key": "swap", "text": "full"}}]\n```') == Report(
        (FOUND, Finding("swap", "full")), loose="and"
    )


def test_text_around_json_that_begins_with_an_alarm_is_a_text_of_its_own() -> None:
    assert read_report(f"ALERT: look here\n{JSON}") == Report((FOUND,), "ALERT: look here")


@pytest.mark.parametrize("answer", ['{"findings": []}', "[]", "```json\n[]\n```", 'So:\n```json\n{"findings": []}\n```\n'])
def test_an_empty_list_is_a_report_without_findings(answer: str) -> None:
    report = read_report(answer)
    assert report is not None
    assert (report.findings, report.text) == ((), "")


@loop_over(
    "answer",
    [
        "",
        "{}",
        "[1, 2]",
        '{"findings": 3}',
        '{"finding": []}',
        '[{"name": "x"}]',
        '{"failed": "3", "passed": "7"}',
        '{"findings": [null]}',
        "[] is empty",
        "[[]]",
        'I could not write {"findings": []} because the disk is full.',
        "NaN",
        '"[disk] x"',
        '{"findings": [}',
        "[]\nThe disk is full.",
    ],
)
def test_other_json_is_plain_text(answer: str) -> None:
    assert read_report(answer) is None


# --- lines of text ----------------------------------------------------------------------------------------------------


@loop_over(
    ("answer", "read"),
    [
        ("[disk:/var] 92 % full", ["[disk:/var] 92 % full"]),
        ("[disk:/var!] 97 %", ["[disk:/var!] 97 %"]),
        ("[disk:/var]: 92 %", ["[disk:/var] 92 %"]),
        ("- [disk:/var] 92 %\n* [swap] full", ["[disk:/var] 92 %", "[swap] full"]),
        ("1. **[backup nightly]** failed", ["[backup nightly] failed"]),
        ("**[disk:/var] 92 %**", ["[disk:/var] 92 %"]),
        ("`[disk:/var]` 92 %", ["[disk:/var] 92 %"]),
        ("**[disk:/var]** it is **full**", ["[disk:/var] it is **full**"]),
        ("[backup of the wiki] late", ["[backup of the wiki] late"]),
        ("[disk:/var] resolved\nIt is calm.", ["[disk:/var] resolved"]),
        ("[disk:/var] 92 %\n```\n/dev/sda1 92%\n```\nand growing", ["[disk:/var] 92 %\n/dev/sda1 92%\nand growing"]),
        ("[disk:/var]", ["[disk:/var] disk:/var"]),
        ("[disk:/var] resolved", ["[disk:/var] resolved"]),
        ("[disk:/var] Resolved: back to 80 %", ["[disk:/var] resolved: back to 80 %"]),
        ("[disk:/var] 92 %\nand growing\n\nBye", ["[disk:/var] 92 %\nand growing"]),
        ("```\n[disk:/var] 92 %\nand growing\n```\nBye", ["[disk:/var] 92 %\nand growing"]),
        ("[disk:/var] 92 %\n```\n/dev/sda1 92%\n```", ["[disk:/var] 92 %\n/dev/sda1 92%"]),
        ("[disk:/var] 92 %\nHEARTBEAT_OK", ["[disk:/var] 92 %"]),
        ("[https://example.org] is down", ["[https://example.org] is down"]),
        ("[backup:s3] late", ["[backup:s3] late"]),
        ("[port 8080] closed", ["[port 8080] closed"]),
        ("[磁盘] 已满", ["[磁盘] 已满"]),
    ],
)
def test_a_line_that_begins_with_a_key_is_a_finding(answer: str, read: list[str]) -> None:
    assert lines(answer) == read


def test_the_quiet_token_beside_lines_with_keys_is_no_text() -> None:
    assert read_report("HEARTBEAT_OK\n[swap] full\n\n`heartbeat ok`") == Report((Finding("swap", "full"),))


ORDINARY_LINES = """\
[INFO] all is well
[error] disk full
[WARN ] x
[ERROR 503] x
[HTTP 503] x
[info|high] x
[Errno 2] no such file
[ ] look at the mail
[x] look at the mail
- [X] done
[-] x
[done] x
[low|paused] x
[every 30m] x
[docs](https://example.org) x
[docs][1] x
[docs]: https://example.org/a
[docs]: <https://example.org>
[1]: https://example.org
[^smith]: x
[!ABSTRACT] x
> [disk] x
[note] x
[Summary] x
[resolved] x
[n/a] x
[2026-03-02] x
[2026-03-02 08:00:00] x
[2026-03-02T08:00:00Z] x
[08:00] x
[08:00:00 web] x
[12:30 UTC] x
[Mar  2 08:00] x
[Mon 08:00] x
[02/Mar/2026:08:00:00 +0100] x
[   12.345678] usb
[today] x
[10m ago] x
[92%] x
[512MB] x
[1] x
[a] x
[1a2b3c4] fix
[1A2B3C4] fix
[b] x
[¹²] x
[<stdin>] x
[] x
[[disk]] x
[root@web ~]# df
[me@web /tmp]$ df
[this is a long phrase] x
[disk
disk] x
the [disk] x
[***] x
[🔥] x
[{"name": "x"}]
['a', 'b']"""


@loop_over("line", [*ORDINARY_LINES.split("\n"), f"[{'k' * 500}] x"])
def test_an_ordinary_line_in_brackets_stays_text(line: str) -> None:
    assert read_report(line) is None
    assert lines(f"{line}\n[swap] full") == ["[swap] full"]


# --- hostile data -----------------------------------------------------------------------------------------------------

HOSTILE_TEXTS = [
    "", " ", "\n", "\0", "x\0y", "a\nb", "\r\n", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\u202edlrow", "\u200b", "\ud800", "\udfff x",
    "[x]", "]", "[", "[[a]]", "](http://x)", "**", "`", "```", "<script>", "{}", "'; drop table run; --", "../..", "a" * 200_000,
    "\U0001f600" * 300, "é" * 5000, "HEARTBEAT_OK", "resolved", "true", "%s{0}", "\\", "\\u0000", "%00", "-" * 300, "\u2028", "\x85",
]  # fmt: skip


@loop_over("key", HOSTILE_TEXTS)
@loop_over("text", HOSTILE_TEXTS)
def test_hostile_texts_become_short_printable_keys_and_storable_texts(key: str, text: str) -> None:
    if not (key.strip("\0\n ") or text.strip("\0\n ")):
        return
    check_is_sane(parse_report({"findings": [{"key": key, "text": text, "severity": text, "resolved": key}], "text": text}))


def check_is_sane(report: Report) -> None:
    """The report can be stored, printed and sent, and its parts are as large as they may be."""
    assert len(report.findings) <= MAX_FINDINGS
    for finding in report.findings:
        assert finding.label.isprintable()
        assert 0 < len(finding.label) <= MAX_KEY
        assert "[" not in finding.label
        assert "]" not in finding.label
        assert finding.key == comparable_key(finding.label)
        assert len(finding.text) <= MAX_TEXT + 3
    str(report).encode()
    assert not re.search(r"[\x00\x1b\x7f\x9b]", "".join([report.text, *(finding.line for finding in report.findings)]))
    json.dumps([str(report), report.dropped])


def random_value(chance: random.Random, depth: int = 0) -> Any:
    """Data of any form, as a confused model may write it."""
    simple = [None, True, False, 0, -1, 1e308, float("nan"), *HOSTILE_TEXTS[:20], "disk:/var", "critical"]
    kind = chance.random()
    if depth > 3 or kind < 0.5:
        return chance.choice(simple)
    if kind < 0.7:
        return [random_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    names = ["key", "text", "severity", "resolved", "findings", "extra", ""]
    return {chance.choice(names): random_value(chance, depth + 1) for _ in range(chance.randrange(6))}


@loop_over("seed", range(20))
def test_data_of_any_form_is_a_report_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        value = chance.choice([random_value(chance), {"findings": random_value(chance)}, {"findings": [random_value(chance)]}])
        for is_cut in (False, True):
            with suppress(InvalidFindings):
                check_is_sane(parse_report(value, is_cut=is_cut))
        answer = json.dumps(value)
        for text in (answer, answer[: len(answer) // 2], f"```json\n{answer}\n```\nx"):
            for is_cut in (False, True):
                report = read_report(text, is_cut=is_cut)
                if report is not None:
                    check_is_sane(report)


@loop_over("deep", ["[" * 60_000, '{"findings": ' * 5_000, '{"findings": [' * 4_000, '[{"key": ' * 7_000])
@loop_over("is_cut", [False, True])
def test_deep_json_is_plain_text(deep: str, is_cut: bool) -> None:
    assert read_report(deep, is_cut=is_cut) is None
    with pytest.raises(InvalidFindings):
        parse_report(deep)


def test_a_deep_finding_is_kept_as_text() -> None:
    deep: Any = {"key": None}
    for _ in range(100_000):
        deep = {"a": deep}
    assert parse_report([deep]) == Report((), "a finding that cannot be read")


SIZE = 64 * 1024


@loop_over(
    "answer",
    [
        "[" * SIZE,
        "[a" * (SIZE // 2),
        "[disk] x\n" * (SIZE // 9),
        "[disk] x\n" + "y\n" * (SIZE // 2),
        "[disk]" + " " * SIZE,
        "[disk]" + "*" * SIZE,
        "- " * (SIZE // 2),
        "[every " + "1" * SIZE,
        "[" + "1:" * (SIZE // 2) + "]",
        "\n" * SIZE,
        " " * SIZE + "[",
        "```\n" * (SIZE // 4),
        "`" * SIZE,
        "```" + " " * SIZE,
        "~~~\n\n" * (SIZE // 5),
        '{"findings": ['.ljust(SIZE),
        '[{"a": 0},\n' * (SIZE // 11),
        '{"a": "\n' * (SIZE // 8),
        '[{"a": "\n' * (SIZE // 9),
        '{\n"' * (SIZE // 3),
        '{"findings": [' + "{}," * (SIZE // 3),
        '{"findings": [' + '{"key": "disk"},' * (SIZE // 16),
        '"findings" ' * (SIZE // 11),
        '{"\n' + '"findings":' * (SIZE // 11),
        "[disk] resolved" + "-" * SIZE,
        "*" * SIZE,
        "**[disk]" + "**" * (SIZE // 2),
        "heartbeat ok\n" * (SIZE // 13),
        "[disk] x\n" + "heartbeat" + " " * SIZE,
        "\u202e" * (SIZE // 3),
        "[" + "é" * 300 + "] x\n" * (SIZE // 4),
    ],
)
@loop_over("is_cut", [False, True])
def test_a_hostile_answer_of_full_size_is_read_in_linear_time(answer: str, is_cut: bool) -> None:
    begun = time.process_time()
    report = read_report(answer, is_cut=is_cut)
    assert time.process_time() - begun < 1
    if report is not None:
        check_is_sane(report)


@loop_over(
    ("answer", "shown"),
    [
        ({"findings": []}, "no findings"),
        (
            {"findings": [DISK, {**DISK, "key": "b", "severity": "warning"}]},
            "[disk:/var!] /var is 92 % full\n[b] /var is 92 % full",
        ),
        ({"findings": [{"key": "note", "text": "all is well", "severity": "info"}]}, "[note] info: all is well"),
        ({"findings": [{"key": "note", "severity": "info", "resolved": True}]}, "[note] resolved"),
        ({"findings": [], "remind": [{"text": "look again", "in": "2h"}]}, "no findings\nreminder in 2h: look again"),
        ({"findings": [DISK], "remind": [{"text": "x", "at": "2027-03-28"}]}, f"{FOUND.line}\nreminder at 2027-03-28: x"),
        ({"findings": [], "failed": "no mailbox", "remind": [{"text": "x"}]}, "failed: no mailbox\nreminder: x"),
    ],
)
def test_all_that_an_answer_in_json_says_is_shown_as_lines(answer: dict[str, object], shown: str) -> None:
    assert readable_answer(json.dumps(answer)) == shown
