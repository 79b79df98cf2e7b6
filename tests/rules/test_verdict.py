"""The verdict on an answer: quiet, almost quiet, or an alert."""

from __future__ import annotations

import time

import pytest
from loops import loop_over

from heartbeat.findings import read_report
from heartbeat.spec import OkMatch
from heartbeat.verdict import Suppression, Verdict, judge_answer, message_digest, normalise_text, without_cut_end


def alert(text: str) -> Verdict:
    return Verdict("alert", None, text)


def quiet(suppression: Suppression, text: str = "") -> Verdict:
    return Verdict("ok", suppression, text)


@loop_over(
    "answer",
    [
        "HEARTBEAT_OK",
        "  HEARTBEAT_OK\r\n",
        "HEARTBEAT_OK.",
        "HEARTBEAT_OK!!",
        "(HEARTBEAT_OK)",
        "... HEARTBEAT_OK",
        "**HEARTBEAT_OK**",
        "_HEARTBEAT_OK_",
        "__HEARTBEAT_OK__!",
        "~~HEARTBEAT_OK~~",
        "# HEARTBEAT_OK",
        "- HEARTBEAT_OK",
        "1. HEARTBEAT_OK",
        "HEARTBEAT\\_OK",
        "<p>HEARTBEAT_OK</p>",
        '<div class="a"><b>HEARTBEAT_OK</b><br/></div>',
        "&nbsp;HEARTBEAT_OK&nbsp;",
        "<!-- done -->HEARTBEAT_OK",
        "HEARTBEAT_OK HEARTBEAT_OK",
        "HEARTBEAT_OKHEARTBEAT_OK",
        "HEARTBEAT_OK\n\nHEARTBEAT_OK.",
        "\x1b[32mHEARTBEAT_OK\x1b[0m\n",
        "\x1b]0;title\x07HEARTBEAT_OK",
        "\x00HEARTBEAT_OK\x00",
        "\ufeffHEARTBEAT_OK\u200b",
    ],
)
def test_the_token_alone_is_quiet_however_it_is_wrapped(answer: str) -> None:
    assert judge_answer(answer, "edges", 0) == quiet(Suppression.HEARTBEAT_OK)


QUOTED_TOKENS = [
    "`HEARTBEAT_OK`",
    "`HEARTBEAT_OK`.",
    "``HEARTBEAT_OK``",
    "**`HEARTBEAT_OK`**",
    "```\nHEARTBEAT_OK\n```",
    "```text\nHEARTBEAT_OK\n```\n",
    "  ```\nHEARTBEAT_OK\n  ```",
    "~~~\nHEARTBEAT_OK\n~~~",
    "```HEARTBEAT_OK```",
    "```\nHEARTBEAT_OK",
    '"HEARTBEAT_OK"',
    '"HEARTBEAT_OK."',
    "'HEARTBEAT_OK'",
    "\u201cHEARTBEAT_OK\u201d",
    "\u201eHEARTBEAT_OK\u201c",
    "«HEARTBEAT_OK»",
    "「HEARTBEAT_OK」",
    "> HEARTBEAT_OK",
    "> `HEARTBEAT_OK`",
    "<code>HEARTBEAT_OK</code>",
    "<pre><code>HEARTBEAT_OK\n</code></pre>",
    "&quot;HEARTBEAT_OK&quot;",
]


@loop_over("answer", QUOTED_TOKENS)
@loop_over("match", ["edges", "anywhere"])
def test_the_token_alone_is_quiet_in_code_marks_a_fence_or_quotes_too(answer: str, match: OkMatch) -> None:
    assert judge_answer(answer, match, 5) == quiet(Suppression.HEARTBEAT_OK)


@loop_over("answer", QUOTED_TOKENS)
def test_exact_matches_only_the_token_without_quotes(answer: str) -> None:
    assert judge_answer(answer, "exact", 5).outcome == "alert"


SPELLINGS = [
    "heartbeat_ok",
    "heartbeat ok",
    "Heartbeat OK.",
    "HEARTBEAT OK",
    "Heartbeat_OK.",
    "heartbeat-ok",
    "Heartbeat‑OK!",
    "HeartbeatOK",
    "Heartbeat: OK",
    "heartbeat\\_ok",
    "heartbeat\u00a0ok",
    "HEART\u200bBEAT_OK",
    "HEARTBEAT\u00ad_OK",
    "\u202eheartbeat ok\u202c",
    "\x1b[1mheartbeat ok\x1b[0m",
    '"heartbeat ok"',
    "“Heartbeat OK.”",
    "`heartbeat ok`",
    "**Heartbeat OK**",
    "_heartbeat-ok_",
    "# Heartbeat OK",
    "- heartbeat ok",
    "> heartbeat ok",
    "```\nheartbeat_ok\n```",
    "```text\nheartbeat ok\n```\n",
    "~~~\nHeartbeat OK\n~~~",
    "<p>heartbeat ok</p>",
    "<code>heartbeat ok</code>",
    "heartbeat ok\n\nHeartbeat OK",
]


@loop_over("answer", SPELLINGS)
@loop_over("match", ["edges", "anywhere"])
def test_another_spelling_of_the_token_is_quiet_if_it_is_the_whole_answer(answer: str, match: OkMatch) -> None:
    assert judge_answer(answer, match, 0) == quiet(Suppression.HEARTBEAT_OK)


@loop_over("answer", SPELLINGS)
def test_another_spelling_of_the_token_beside_a_word_is_prose(answer: str) -> None:
    assert judge_answer(f"The disk is full.\n{answer}", "edges", 5).outcome == "alert"
    assert judge_answer(f"{answer}\nx", "edges", 5).outcome == "alert"


@loop_over("answer", SPELLINGS)
def test_exact_does_not_accept_another_spelling(answer: str) -> None:
    assert judge_answer(answer, "exact", 5).outcome == "alert"


@loop_over(
    "answer",
    [
        "heartbeat not ok",
        "no heartbeat, ok",
        "heartbeat\nok",
        "heartbeat okay",
        "heartbeat ok ok",
        "my heartbeat ok",
        "heartbeat ok 👍",
        "heartbeat ok.txt",
        "/tmp/heartbeat_ok",
        "heartbeat_ok_2",
        "heartbeat != ok",
        "herzschlag ok",
        '{"heartbeat": "ok"}',
    ],
)
def test_words_that_only_resemble_the_token_are_delivered(answer: str) -> None:
    assert judge_answer(answer, "edges", 5) == alert(answer)


@loop_over(
    "answer",
    [
        "`HEARTBEAT_OK` is what I would say, but the disk is full.",
        "`HEARTBEAT_OK` no",
        'The log says "HEARTBEAT_OK"',
        "```\nHEARTBEAT_OK\ndisk full\n```",
        "```\ndisk full\n```\n`HEARTBEAT_OK`",
        "```FAILED\nHEARTBEAT_OK\n```",
        "'HEARTBEAT_OK's",
        '""',
        "``",
        "HEART`BEAT_OK`",
    ],
)
def test_a_quoted_token_beside_anything_else_is_prose(answer: str) -> None:
    assert judge_answer(answer, "edges", 5) == alert(answer)


SILENT = ["[SILENT]", "[silent]\n", "**[SILENT]**", "[SILENT].", "`[SILENT]`", "```\n[SILENT]\n```", "NO_REPLY", "[NO_REPLY]"]


@loop_over("answer", [*SILENT, "[HEARTBEAT_OK]", "[heartbeat ok]", "> [SILENT]"])
def test_a_token_in_brackets_is_no_finding_and_is_quiet(answer: str) -> None:
    assert (read_report(answer), judge_answer(answer, "edges", 5)) == (None, quiet(Suppression.HEARTBEAT_OK))


def test_a_text_beside_a_token_in_brackets_is_delivered_without_the_token() -> None:
    assert read_report("[SILENT] The disk is full.") is None
    assert judge_answer("[SILENT] The disk is full.", "edges", 5) == alert("The disk is full.")
    report = read_report("[disk] full\n[SILENT]")
    assert report is not None
    assert [(found.label, found.text) for found in report.findings] == [("disk", "full")]


@loop_over("answer", ["", " \n\t ", "\x00\x00", "\x1b[0m", "\u200b\ufeff", "&nbsp;"])
@loop_over("match", ["edges", "anywhere", "exact"])
def test_an_answer_without_visible_characters_is_empty(answer: str, match: str) -> None:
    assert judge_answer(answer, match, 5) == quiet(Suppression.EMPTY)  # type: ignore[arg-type]


@loop_over(
    ("answer", "delivered"),
    [
        ("All servers down. HEARTBEAT_OK", "All servers down."),
        ("HEARTBEAT_OK All servers down.", "All servers down."),
        ("HEARTBEAT_OK All servers down. HEARTBEAT_OK", "All servers down."),
        ("HEARTBEAT_OK - disk at 91 %", "disk at 91 %"),
        ("HEARTBEAT_OK: disk at 91 %", "disk at 91 %"),
        ("disk at 91 % - HEARTBEAT_OK", "disk at 91 %"),
        ("Nothing to do today (HEARTBEAT_OK)", "Nothing to do today"),
        ("HEARTBEAT_OK (but look at the disk)", "(but look at the disk)"),
        ("**All is down.** HEARTBEAT_OK", "**All is down.**"),
        ("HEARTBEAT_OK **Disk** is full", "**Disk** is full"),
        ("**HEARTBEAT_OK** see **disk two**", "see **disk two**"),
        ("**HEARTBEAT_OK the disk is full**", "the disk is full"),
        ("**the disk is full HEARTBEAT_OK**", "the disk is full"),
        ("<p>HEARTBEAT_OK</p><p>the disk is full</p>", "the disk is full"),
        ("All down.\n\n# HEARTBEAT_OK", "All down."),
        ("All down.\n  * HEARTBEAT_OK", "All down."),
        ("HEARTBEAT_OK\n- disk full\n- swap full", "- disk full\n- swap full"),
        ("HEARTBEAT_OK <disk is full>", "<disk is full>"),
    ],
)
def test_more_than_a_few_characters_beside_the_token_are_delivered_without_it(answer: str, delivered: str) -> None:
    assert judge_answer(answer, "edges", 5) == alert(delivered)


@loop_over(
    "answer",
    [
        '"HEARTBEAT_OK" is what I say',
        "I say “HEARTBEAT_OK”",
        "'HEARTBEAT_OK' or not",
        "run `HEARTBEAT_OK`",
        "```\nHEARTBEAT_OK\n```\nThat was it.",
        "```\nHEARTBEAT_OK\nroot",
        "> a\n> HEARTBEAT_OK",
        "<code>HEARTBEAT_OK</code> it is",
        "<blockquote>HEARTBEAT_OK</blockquote> he said",
        'The mail says "all is fine. HEARTBEAT_OK"',
        "I will say HEARTBEAT_OK when the disk is repaired",
        "HEARTBEAT_OKAY",
        "HEARTBEAT_OK_2",
        "MY_HEARTBEAT_OK",
        "HEARTBEAT_OK.txt is gone",
        "/tmp/HEARTBEAT_OK",
    ],
)
def test_a_token_in_quotes_in_code_in_mid_sentence_or_in_a_longer_word_is_prose(answer: str) -> None:
    verdict = judge_answer(answer, "edges", 5)
    assert (verdict.outcome, verdict.suppression) == ("alert", None)
    assert "HEARTBEAT" in verdict.text.upper()


@pytest.mark.parametrize(
    ("answer", "rest"),
    [
        ("HEARTBEAT_OK 12345", "12345"),
        ("Fine. HEARTBEAT_OK", "Fine."),
        ("HEARTBEAT_OK 👍", "👍"),
        ("HEARTBEAT_OK **Fine.**", "**Fine.**"),
        ("一切正常HEARTBEAT_OK", "一切正常"),
    ],
)
def test_a_rest_of_at_most_five_characters_stays_quiet(answer: str, rest: str) -> None:
    assert judge_answer(answer, "edges", 5) == quiet(Suppression.SHORT_REMAINDER, rest)


def test_the_bound_of_the_rest_counts_code_points() -> None:
    assert judge_answer("HEARTBEAT_OK 123456", "edges", 5) == alert("123456")
    assert judge_answer("HEARTBEAT_OK 123456", "edges", 6).suppression is Suppression.SHORT_REMAINDER
    assert judge_answer("HEARTBEAT_OK ééééé", "edges", 5).suppression is Suppression.SHORT_REMAINDER
    assert judge_answer("HEARTBEAT_OK x", "edges", 0) == alert("x")


@pytest.mark.parametrize("answer", ["ok", "no", "👍", "...", "x"])
def test_a_short_answer_without_the_token_is_an_alert(answer: str) -> None:
    assert judge_answer(answer, "edges", 5) == alert(answer)


def test_a_token_in_mid_sentence_does_not_make_a_long_allowance_swallow_the_answer() -> None:
    assert judge_answer(" a HEARTBEAT_OK b", "edges", 100) == alert("a HEARTBEAT_OK b")


@loop_over("word", ["ALERT", "ERROR", "FAIL", "FAILED", "FAILURE"])
@loop_over("form", ["{} HEARTBEAT_OK", "**{}** HEARTBEAT_OK", "[{}] HEARTBEAT_OK", "HEARTBEAT_OK {}", "🚨 {} HEARTBEAT_OK"])
@loop_over("match", ["edges", "anywhere"])
def test_an_alarm_word_at_the_start_makes_an_alert_despite_the_token(word: str, form: str, match: str) -> None:
    verdict = judge_answer(form.format(word), match, 20)  # type: ignore[arg-type]
    assert verdict.outcome == "alert"
    assert word in verdict.text
    assert "HEARTBEAT_OK" not in verdict.text


@pytest.mark.parametrize(
    "answer",
    [
        "Fail HEARTBEAT_OK",
        "FAILS HEARTBEAT_OK",
        "fail HEARTBEAT_OK",
        "no FAIL HEARTBEAT_OK",
        "ERRORS0 HEARTBEAT_OK",
        "警报 FAIL HEARTBEAT_OK",
    ],
)
def test_only_the_exact_first_word_in_capitals_is_an_alarm(answer: str) -> None:
    assert judge_answer(answer, "edges", 10).suppression is Suppression.SHORT_REMAINDER


@pytest.mark.parametrize(
    "answer",
    [
        "All servers down. HEARTBEAT_OK",
        "so I say HEARTBEAT_OK to that",
        '"HEARTBEAT_OK"',
        "`HEARTBEAT_OK` is what I say",
        "> HEARTBEAT_OK",
    ],
)
def test_anywhere_silences_an_answer_with_the_token_in_any_place(answer: str) -> None:
    assert judge_answer(answer, "anywhere", 5) == quiet(Suppression.HEARTBEAT_OK)


def test_anywhere_delivers_an_answer_without_the_token() -> None:
    assert judge_answer("All servers down.", "anywhere", 5) == alert("All servers down.")
    assert judge_answer("HEARTBEAT_OKAY", "anywhere", 5) == alert("HEARTBEAT_OKAY")


@pytest.mark.parametrize("answer", ["**HEARTBEAT_OK**", "HEARTBEAT_OK.", "HEARTBEAT_OK HEARTBEAT_OK", "Fine. HEARTBEAT_OK"])
def test_exact_takes_only_the_token_alone(answer: str) -> None:
    assert judge_answer(answer, "exact", 5) == alert(answer)
    assert judge_answer(" HEARTBEAT_OK\n", "exact", 5) == quiet(Suppression.HEARTBEAT_OK)


@pytest.mark.parametrize(
    "answer",
    [
        "HEARTBEAT_OK " * 10_000,
        "HEARTBEAT_OK" * 10_000,
        "HEARTBEAT_OK" * 10_000 + "x",
        "<p" * 30_000,
        "<!--" * 16_000,
        "\x1b]" * 30_000,
        "\x1b[" + "0" * 65_000,
        " " * 65_000 + "x",
        "\n " * 32_000 + "x",
        "- " * 32_000,
        "```\n" * 16_000,
        "> HEARTBEAT_OK\n" * 4_000,
        "*_" * 32_000 + "HEARTBEAT_OK",
        "heartbeat" + " " * 65_000,
        "heartbeat  -  " * 5_000,
        "heartbeat ok " * 5_000,
        "\u200b" * 65_000 + "heartbeat",
    ],
)
def test_hostile_answers_take_linear_time(answer: str) -> None:
    begun = time.process_time()
    judge_answer(answer, "edges", 5)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    ("one", "other", "how", "same"),
    [
        ("Disk full", "  DISK\n\tfull ", "text", True),
        ("Straße", "STRASSE", "text", True),
        ("Disk at 91 %", "Disk at 92 %", "text", False),
        ("Disk at 91 %", "Disk at 9 %", "numbers", True),
        ("Disk at 91 %", "Swap at 91 %", "numbers", False),
    ],
)
def test_what_counts_as_the_same_message(one: str, other: str, how: str, same: bool) -> None:
    assert (message_digest(one, how) == message_digest(other, how)) is same  # type: ignore[arg-type]


def test_a_digest_is_sha_256_and_takes_any_text() -> None:
    assert normalise_text("  A\n B 12 ", "numbers") == "a b 0"
    assert message_digest("a", "text") == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    assert len(message_digest("\ud800", "text")) == 64


@loop_over(
    ("cut", "kept"),
    [
        ("HEARTB", ""),
        ('"', ""),
        ("**heart", ""),
        ("HEARTBEAT_OK", "HEARTBEAT_OK"),
        ("The heart", "The heart"),
        ("12 %", "12 %"),
        ("[disk] 92 %\n- **[mai", "[disk] 92 %"),
        ("[disk] 92 %", "[disk] 92 %"),
    ],
)
def test_the_end_of_a_cut_answer_that_says_nothing_is_removed(cut: str, kept: str) -> None:
    assert without_cut_end(cut) == kept
