"""README.md, CHANGELOG.md and all pages are written in plain English: four habits that made them hard to read stay rare."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import HOME
from loops import loop_over

GENERATED = {"reference.md", "parity.md"}
OUTSIDE = [
    HOME / name
    for name in ("README.md", "CHANGELOG.md", "ARCHITECTURE.md", "grafana/README.md", "bench/README.md", "tests/README.md")
]
PAGES = [page for page in (*OUTSIDE, *sorted((HOME / "docs").glob("*.md"))) if page.name not in GENERATED]

CLAUSE_AS_SUBJECT = re.compile(
    r"^(?:"
    r"(?:What(?! to)|Whatever|Who|Whoever|Whom|Whichever)\b(?!.*\?$)"
    r"|How (?:often|long|much|many|far|late|soon|well|big)\b(?!.*\?$)"
    r"|That (?:an?|the|its?|no|each|every|all|one|some|nothing|nobody|they|CODE|[A-Z])\b"
    r"|(?:When|Where|Why|Whether|How) to\b"
    r"|(?:When|Where|Why|Whether|How)\b[^,:?]*$"  # a clause of time or place has its comma: "When it is due, ..."
    r")"
)
TOLD = re.compile(r"\b(?:tells?|told|telling)\b", re.IGNORECASE)
LITERARY = re.compile(
    r"\b(?:anew|oftener|dear|dearer|dearest|heed\w*|unheeded|whom|whoever|whomever|meanwhile|thereby|thereof|therein"
    r"|thereupon|whereby|wherein|whereupon|herein|hereby|henceforth|hitherto|lest|albeit|naught|aught|nay|ere|whilst|amongst|unto"
    r"|upon|wont|ails?|abides?|beget\w*|bespeaks?|forthwith|erstwhile|shall"
    r"|but for|for want of|stands?(?! for)|stood|gives? back|gave back|given back|becom(?:es?|ing) of|came of|heard"
    r"|of (?:ours|theirs)|at most so (?:many|much|long)|told of|lies in wait|so as)\b"
    r"|^Of (?!course)",  # a fronted "of": "Of a long stream the end is read"
    re.IGNORECASE,
)
SEMICOLON = re.compile(";")

# At most this share of all sentences; about twice the share of well-written manuals of such software.
LIMITS = {
    "begins with a clause as its subject": (CLAUSE_AS_SUBJECT, 0.005),
    "tell or told (sent? reported? put into the prompt?)": (TOLD, 0.004),
    "an archaic or literary word": (LITERARY, 0.004),
    "a semicolon": (SEMICOLON, 0.008),
}

ENDS = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*]*[A-Z0-9])")


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, list items and table cells of a page of Markdown, each in one line."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "\n", text, flags=re.MULTILINE | re.DOTALL)
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        starts = re.match(r"\s*(?:[-*]|\d+\.)\s+(?=\S)", line)
        is_row = line.lstrip().startswith("|")
        if starts or is_row or not line.strip() or line.startswith("#"):
            yield " ".join(lines)
            lines = []
        if is_row:
            yield from re.split(r"(?<!\\)\|", line.strip())[1:-1]
        elif not line.startswith("#"):
            lines.append(line[starts.end() if starts else 0 :].strip())


def plain(block: str) -> str:
    """A block without code, targets of links and emphasis."""
    block = re.sub(r"(`+).+?\1", "CODE", block)
    block = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", block)
    return block.replace("**", "").strip(" *")


def sentences(text: str) -> list[str]:
    """The sentences of a page; cells and items count from three words on."""
    found = [sentence for block in blocks(text) for sentence in ENDS.split(plain(block))]
    return [sentence for sentence in found if len(re.findall(r"[A-Za-z]+", sentence)) >= 3]


def offences(pattern: re.Pattern[str]) -> list[str]:
    return [f"{page.name}: {each}" for page in PAGES for each in sentences(page.read_text("utf-8")) if pattern.search(each)]


@pytest.mark.parametrize("habit", LIMITS)
def test_hard_sentences_are_rare(habit: str) -> None:
    pattern, limit = LIMITS[habit]
    total = sum(len(sentences(page.read_text("utf-8"))) for page in PAGES)
    found = offences(pattern)
    assert len(found) <= limit * total, "\n".join([f"{len(found)} of {total} sentences: {habit}", *found])


@loop_over(
    ("sentence", "pattern"),
    [
        ("What is not reported costs the limit.", CLAUSE_AS_SUBJECT),
        ("Whoever comes later waits.", CLAUSE_AS_SUBJECT),
        ("That an item was checked counts at the end.", CLAUSE_AS_SUBJECT),
        ("How often Alertmanager repeats itself says its setting.", CLAUSE_AS_SUBJECT),
        ("When to call it is yours.", CLAUSE_AS_SUBJECT),
        ("Nobody is told.", TOLD),
        ("The file is read anew.", LITERARY),
        ("All but for the last one are kept.", LITERARY),
        ("Of a long stream the end is read.", LITERARY),
        ("It runs; then it ends.", SEMICOLON),
    ],
)
def test_a_hard_sentence_is_marked(sentence: str, pattern: re.Pattern[str]) -> None:
    assert pattern.search(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "What is a wake?",
        "When no item is due, the run is skipped.",
        "Where several reasons apply, the first one is recorded.",
        "That setting has no default.",
        "`a; told` stands for code.",
    ],
)
def test_a_plain_sentence_is_not_marked(sentence: str) -> None:
    assert [habit for habit, (pattern, _) in LIMITS.items() if pattern.search(plain(sentence))] == []


def test_code_and_headings_are_left_out_and_cells_and_items_are_sentences() -> None:
    page = "# One; two\n\nA page of `code;` here. And a [link to it](a;b.md).\n\n```sh\nfoo; bar baz\n```\n\n- An item\n  of two lines.\n"
    assert sentences(page + "\n| key | what it does here |\n|---|---|\n") == [
        "A page of CODE here.",
        "And a link to it.",
        "An item of two lines.",
        "what it does here",
    ]


# What is wrong is a problem, and it is unstable, over, acknowledged or not delivered.
FORMER_WORDS = re.compile(r"\b(?:conditions?|incidents?|outages?|dead[ -]letters?|flapp?(?:s|ing|ed))\b", re.IGNORECASE)
OF_OTHER_SYSTEMS = {"coming-from.md", "CHANGELOG.md"}
NAMES_OF_FORMER_VERSIONS = {"migrations.py", "routes.py", "main.py", "transaction.py"}
SHOWN_FILES = ("*.py", "*.html", "*.yml")


def shown_texts(path: Path) -> Iterator[str]:
    """The texts of a file that a user may see: of a Python file, all of its strings but the docstrings and single words."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        yield text
        return
    tree = ast.parse(text)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docs = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs and " " in node.value:
            yield node.value


def test_what_is_wrong_is_called_a_problem_in_all_texts_for_users() -> None:
    pages = [page for page in [*PAGES, HOME / "docs" / "reference.md"] if page.name not in OF_OTHER_SYSTEMS]
    found = [f"{page.name}: {each}" for page in pages for each in sentences(page.read_text("utf-8")) if FORMER_WORDS.search(each)]
    for folder in ("heartbeat", "heartbeatd", "cron", "scheduler", "grafana", "agents", "examples"):
        for path in sorted(each for shape in SHOWN_FILES for each in (HOME / folder).rglob(shape)):
            if "importers" not in path.parts and path.name not in NAMES_OF_FORMER_VERSIONS:
                found += [f"{path.name}: {word}" for text in shown_texts(path) for word in FORMER_WORDS.findall(text)]
    assert found == []


@loop_over(
    ("text", "is_found"),
    [
        ("an open condition", True),
        ("two dead letters", True),
        ("it flaps", True),
        ("an overlapping run", False),
        ("a problem is over", False),
    ],
)
def test_a_former_word_is_found(text: str, is_found: bool) -> None:
    assert bool(FORMER_WORDS.search(text)) == is_found
