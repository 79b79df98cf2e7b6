"""Tests the YAML parser: its limits, its positions, and its errors for any bytes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from config_file import SMALL, complaints
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import loop_over

from scheduler.config.file import marked_yaml
from scheduler.config.file.diagnostics import Diagnostics


def value(text: str) -> object:
    diagnostics = Diagnostics("config.yaml")
    found = marked_yaml.parse_yaml(f"a: {text}\n", diagnostics)
    diagnostics.raise_errors()
    return found["a"]


@loop_over(
    ("text", "expected"),
    [
        ("true", True), ("False", False), ("yes", "yes"), ("on", "on"), ("null", None), ("~", None), ("", None), ("5", 5), ("-5", -5),
        ("+5", 5), ("1.5", 1.5), ("1e3", 1000.0), (".inf", float("inf")), ("1.2.3", "1.2.3"), ("2026-12-25", "2026-12-25"),
        ("127.0.0.1:7857", "127.0.0.1:7857"), ("08:00-22:00", "08:00-22:00"), ('"5"', "5"), ("'true'", "true"), ("30m", "30m"),
    ],
)  # fmt: skip
def test_unquoted_words_follow_yaml_1_2(text: str, expected: object) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("text", ["22:00", "022", "1_000", "0x1F", "0o17", "12345678901234567890"])
def test_numbers_that_yaml_parsers_read_differently_are_marked(text: str) -> None:
    assert type(value(text)) is marked_yaml.AmbiguousText


def test_every_key_and_item_has_its_position() -> None:
    root = marked_yaml.parse_yaml("a:\n  b: [x, y]\nc: z\n", Diagnostics("config.yaml"))
    key, held = root["a"].marks["b"]
    assert ((key.line, key.column), (held.line, held.column)) == ((1, 2), (1, 5))
    assert [(mark.line, mark.column) for mark in root["a"]["b"].marks] == [(1, 6), (1, 9)]


def test_an_alias_bomb_is_rejected_quickly(tmp_path: Path) -> None:
    levels = ["x-0: &l0 [a, a, a, a, a, a, a, a, a]"]
    levels += [f"x-{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]
    began = time.process_time()
    (line,) = complaints(tmp_path, "\n".join(levels) + "\n" + SMALL)
    assert "aliases make this file more than 5,000,000 values long" in line
    assert time.process_time() - began < 1


def test_an_alias_bomb_of_merges_in_the_defaults_is_rejected_quickly(tmp_path: Path) -> None:
    levels = ["  x0: &l0 {a: 1, b: 2}"]
    levels += [f"  x{n}: &l{n} {{a: *l{n - 1}, b: *l{n - 1}, c: *l{n - 1}}}" for n in range(1, 12)]
    began = time.process_time()
    lines = complaints(tmp_path, "defaults:\n" + "\n".join(levels) + "\n" + SMALL)
    assert [line for line in lines if "unknown key" not in line] == []
    assert len(lines) == 12
    assert time.process_time() - began < 1


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "a:\n"])
def test_five_thousand_levels_are_rejected_quickly(tmp_path: Path, opening: str) -> None:
    text = "".join(" " * level + "a:\n" for level in range(5000)) if opening == "a:\n" else opening * 5000
    began = time.process_time()
    (line,) = complaints(tmp_path, text)
    assert "nested more than 64 deep" in line
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"a: 1\nb: \xff\n", "config.yaml:2:4: the byte 0xff is not UTF-8; save the file as UTF-8"),
        (b"a: \xc3\xa4 \xff\n", "config.yaml:1:6: the byte 0xff is not UTF-8; save the file as UTF-8"),
        ("a: 1\n".encode("utf-16"), "config.yaml:1:1: the byte 0xff is not UTF-8; save the file as UTF-8"),
        (b"a: 1\nb: x\0y\n", "config.yaml:2:5: the character U+0000 is not allowed in a config"),
        (b"a: \x1b[0m\n", "config.yaml:1:4: the character U+001B is not allowed in a config"),
        (b"a: \x0c\n", "config.yaml:1:4: the character U+000C is not allowed in a config"),
    ],
)
def test_invalid_utf_8_is_an_error_at_its_position(tmp_path: Path, content: bytes, line: str) -> None:
    assert complaints(tmp_path, content) == [line]


@loop_over("end", ["\r", "\r\n", "\n"])
@loop_over(
    ("wrong", "position"),
    [
        (b"\t", "a tab cannot indent; use spaces"),
        (b"\x1b", "the character U+001B is not allowed in a config"),
        (b"\xff", "the byte 0xff is not UTF-8; save the file as UTF-8"),
    ],
)
def test_lines_are_counted_as_in_editors(tmp_path: Path, end: str, wrong: bytes, position: str) -> None:
    assert complaints(tmp_path, f"# first{end}".encode() + wrong) == [f"config.yaml:2:1: {position}"]


@pytest.mark.parametrize("sign", ["\x85", "\u2028", "\u2029"])
def test_line_breaks_of_yaml_1_1_are_text(tmp_path: Path, sign: str) -> None:
    text = f"# a{sign}b\nx-a: one{sign}two\n{SMALL}"
    assert complaints(tmp_path, text.replace("30m", "soon"))[0].startswith("config.yaml:3:76: ")
    assert marked_yaml.parse_yaml(text, Diagnostics("config.yaml"))["x-a"] == f"one{sign}two"


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    assert complaints(tmp_path, b"\xef\xbb\xbf" + SMALL.encode()) == []


def test_a_file_above_64_mib_is_rejected(tmp_path: Path) -> None:
    assert complaints(tmp_path, b"#" * (64 * 1024**2 + 1)) == ["config.yaml: is larger than 64 MiB"]


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=300))
def test_random_bytes_are_accepted_or_rejected_without_a_crash(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    assert complaints(tmp_path_factory.getbasetemp(), content)


WORDS = ["agents", "ops", "heartbeat", "interval", ": ", ": ", "30m", "\n", "\n  ", "\n    ", "{", "}", "[", "]", "- ", "&a ", "*a", "<<: ",
         "cron", "defaults", "server", "channels", "x-a", ", ", "~", "5", "runner", "kind: command", "'", '"', "active_hours", "!t ", "08:00"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), max_size=40))
def test_random_words_are_accepted_or_rejected_without_a_crash(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    lines = complaints(tmp_path_factory.getbasetemp(), "".join(words))
    assert all(line.startswith("config.yaml:") for line in lines)


@settings(max_examples=150, deadline=None)
@given(held=st.recursive(st.sampled_from(["~", "5", "x", "true", '"08:00"', "22:00", "[]", "{}"]), lambda inner: st.builds("[{}, {}]".format, inner, inner), max_leaves=4),
       key=st.sampled_from(["interval", "active_hours", "deliver", "misfire", "dedup", "stagger", "retries", "timezone", "checklist", "prompt", "timeout"]))  # fmt: skip
def test_random_values_are_accepted_or_rejected_without_a_crash(
    tmp_path_factory: pytest.TempPathFactory, key: str, held: str
) -> None:
    text = f"agents: {{ops: {{runner: {{kind: command, argv: [cat]}}, heartbeat: {{{key}: {held}}}}}}}\n"
    lines = complaints(tmp_path_factory.getbasetemp(), text)
    assert all(line.startswith("config.yaml:1:") for line in lines)
