"""Reading a checklist: only inside the workspace, without ever hanging, and what of it counts as work."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from loops import loop_over
from patience import PATIENCE

from heartbeat.checklist import parse_checklist
from heartbeat.checklist_file import CHECKLIST_TEMPLATE, MAX_BYTES, FileProblem, create_checklist, read_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    return folder


def test_a_file_is_read_unchanged(root: Path) -> None:
    (root / "HEARTBEAT.md").write_bytes(b"\xef\xbb\xbf# Heute\r\n- gr\xc3\xbcn\n")
    assert read_file(root, "HEARTBEAT.md") == "# Heute\r\n- grün\n"


def test_a_file_in_a_folder_of_the_workspace_is_read(root: Path) -> None:
    (root / "notes" / "deep").mkdir(parents=True)
    (root / "notes" / "deep" / "MEMORY.md").write_text("x")
    assert read_file(root, "notes/deep/MEMORY.md") == "x"


def test_bytes_that_are_not_utf_8_are_replaced(root: Path) -> None:
    (root / "HEARTBEAT.md").write_bytes(b"- gr\xfcn")
    assert read_file(root, "HEARTBEAT.md") == "- gr\ufffdn"


def test_an_empty_file_is_read_as_empty(root: Path) -> None:
    (root / "HEARTBEAT.md").touch()
    assert read_file(root, "HEARTBEAT.md") == ""


@pytest.mark.parametrize("name", ["HEARTBEAT.md", "notes/HEARTBEAT.md"])
def test_a_file_that_does_not_exist_is_missing(root: Path, name: str) -> None:
    assert read_file(root, name) is FileProblem.MISSING
    assert read_file(root / "nowhere", name) is FileProblem.MISSING


def test_64_kib_are_read_and_one_byte_more_is_too_large(root: Path) -> None:
    (root / "HEARTBEAT.md").write_bytes(b"x" * MAX_BYTES)
    assert read_file(root, "HEARTBEAT.md") == "x" * MAX_BYTES
    (root / "HEARTBEAT.md").write_bytes(b"x" * (MAX_BYTES + 1))
    assert read_file(root, "HEARTBEAT.md") is FileProblem.TOO_LARGE


@pytest.mark.parametrize("name", ["../secret", "notes/../../secret", "/etc/hostname", "", ".", "HEARTBEAT.md\0", "x" * 5000])
def test_a_name_outside_the_workspace_is_unreadable(root: Path, name: str) -> None:
    (root / "notes").mkdir()
    assert read_file(root, name) is FileProblem.UNREADABLE


@pytest.mark.parametrize("target", ["../secret", "/proc/self/environ", "inside.md", "nowhere", "HEARTBEAT.md"])
def test_a_link_is_unreadable_wherever_it_leads(root: Path, target: str) -> None:
    (root / "inside.md").write_text("inside")
    (root / "HEARTBEAT.md").symlink_to(target)
    assert read_file(root, "HEARTBEAT.md") is FileProblem.UNREADABLE


def test_a_folder_that_is_a_link_is_not_entered(root: Path) -> None:
    (root / "notes").symlink_to(root.parent)
    assert read_file(root, "notes/secret") is FileProblem.UNREADABLE


def test_the_workspace_itself_may_be_a_link(root: Path) -> None:
    (root / "HEARTBEAT.md").write_text("x")
    (root.parent / "link").symlink_to(root)
    assert read_file(root.parent / "link", "HEARTBEAT.md") == "x"


def test_a_hard_link_is_the_file_itself(root: Path) -> None:
    (root / "HEARTBEAT.md").hardlink_to(root.parent / "secret")
    assert read_file(root, "HEARTBEAT.md") == "secret"


def test_a_folder_a_fifo_and_a_socket_are_unreadable_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "folder").mkdir()
    os.mkfifo(root / "fifo")
    monkeypatch.chdir(root)  # a socket's path is at most 108 bytes long
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert [read_file(root, name) for name in ("folder", "fifo", "socket")] == [FileProblem.UNREADABLE] * 3


def test_devices_and_files_of_proc_are_unreadable() -> None:
    assert read_file(Path("/dev"), "zero") is FileProblem.UNREADABLE
    assert read_file(Path(f"/proc/{os.getpid()}"), "environ") is FileProblem.UNREADABLE


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user who is not root, as root may read everything")
def test_a_file_without_permission_is_unreadable(root: Path) -> None:
    (root / "HEARTBEAT.md").write_text("x")
    (root / "HEARTBEAT.md").chmod(0)
    assert read_file(root, "HEARTBEAT.md") is FileProblem.UNREADABLE


def test_running_out_of_file_descriptors_is_not_reported_as_an_unreadable_file(
    root: Path, no_open_files: Callable[[], AbstractContextManager[None]]
) -> None:
    """A run that is skipped because of its checklist is not retried. A run that fails is retried."""
    (root / "HEARTBEAT.md").write_text("- look")
    with no_open_files(), pytest.raises(OSError, match="Too many open files"):
        read_file(root, "HEARTBEAT.md")
    assert read_file(root, "HEARTBEAT.md") == "- look"


def test_a_file_as_folder_is_unreadable(root: Path) -> None:
    (root / "notes").write_text("x")
    assert read_file(root, "notes/HEARTBEAT.md") is FileProblem.UNREADABLE


def test_a_link_swapped_in_at_any_moment_is_never_followed(root: Path) -> None:
    def swap() -> None:
        while not done.is_set():
            (root / "plain").write_text("plain")
            (root / "plain").replace(root / "HEARTBEAT.md")
            (root / "link").symlink_to("../secret")
            (root / "link").replace(root / "HEARTBEAT.md")

    (root / "HEARTBEAT.md").write_text("plain")
    done = Event()
    found: Counter[str] = Counter()
    swapping = Thread(target=swap)
    swapping.start()
    deadline = time.monotonic() + PATIENCE
    try:
        # On a busy machine one of the two threads may stand still for as long as the other takes for thousands of rounds.
        while found.total() < 20_000 or (len(found) < 2 and time.monotonic() < deadline):
            found[read_file(root, "HEARTBEAT.md")] += 1
    finally:
        done.set()
        swapping.join(20)
    assert set(found) == {"plain", FileProblem.UNREADABLE}


def test_every_file_is_closed_again(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "HEARTBEAT.md").write_text("x")
    (root / "link").symlink_to("HEARTBEAT.md")
    before = _open_files()
    for name in ("folder", "HEARTBEAT.md", "link", "folder/x", "HEARTBEAT.md/x", "none", "../secret"):
        read_file(root, name)
        with suppress(OSError, ValueError):
            create_checklist(root, name)
    assert _open_files() == before


def test_the_template_is_written_if_there_is_no_file(root: Path) -> None:
    assert create_checklist(root, "HEARTBEAT.md")
    assert read_file(root, "HEARTBEAT.md") == CHECKLIST_TEMPLATE
    assert (root / "HEARTBEAT.md").stat().st_mode & 0o777 == 0o644 & ~_umask()


def test_the_template_never_replaces_a_file_and_leaves_no_temporary_files(root: Path) -> None:
    (root / "HEARTBEAT.md").write_text("mine")
    (root / "dangling").symlink_to("../outside")
    assert not any(create_checklist(root, name) for name in ("HEARTBEAT.md", "dangling"))
    with pytest.raises(ValueError, match="outside"):
        create_checklist(root, "../outside")
    assert (root / "HEARTBEAT.md").read_text() == "mine"
    assert not (root.parent / "outside").exists()


def test_missing_folders_are_created_and_links_are_not_followed(root: Path) -> None:
    workspace = root / "agents" / "new"
    assert create_checklist(workspace, "lists/HEARTBEAT.md")
    assert read_file(workspace, "lists/HEARTBEAT.md") == CHECKLIST_TEMPLATE
    (workspace / "away").symlink_to(root)
    with pytest.raises(OSError, match="away"):
        create_checklist(workspace, "away/HEARTBEAT.md")
    assert not (root / "HEARTBEAT.md").exists()


def test_a_partly_written_template_is_removed(root: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            create_checklist(root, "HEARTBEAT.md")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert list(root.iterdir()) == []


def test_the_template_has_no_work() -> None:
    assert not parse_checklist(CHECKLIST_TEMPLATE).has_work


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@loop_over(
    "text",
    [
        "",
        " \n\t\r\n",
        "# Heartbeat",
        "#",
        "   ###### Deep ######",
        "-",
        "- ",
        "* [ ]",
        "+ []",
        "1.",
        "2) [ ]",
        "[ ]",
        "    - [ ] ",
        "- [x] water the plants",
        "* [X] done",
        "1. [x] done",
        "[x] done",
        "---",
        "* * *",
        "<!-- look at the disk -->",
        "<!-- look\n- at the disk\n-->",
        "- <!-- nothing yet -->",
        "```\n\n```",
        "```bash\n```",
        "~~~\n  \n~~~",
        "- list\n".replace("list", "") + "  ```\n  ```",
        "## Completed\n- [ ] look at the disk",
        "## completed:\nlook",
        "## **Completed** ##\n### More\nlook",
    ],
)
def test_these_texts_have_no_work(text: str) -> None:
    assert not parse_checklist(text).has_work


@loop_over(
    "text",
    [
        "look at the disk",
        "#TODO",
        "#TODO look",
        "####### seven",
        "- look",
        "- [ ] look",
        "1. look",
        "-5 degrees",
        "[x](https://example.org)",
        "- [y] look",
        "```\ncurl localhost\n```",
        "```\n# a comment of the shell\n```",
        "```\n<!-- -->\n```",
        "```\n- [ ]\n```",
        "<!-- a --> look <!-- b -->",
        "<!-- never closed\nlook",
        "--> look",
        "## Completed\nold\n## Active\nlook",
        "### Completed\nold\n## Active\nlook",
        "## Completed orders\nlook",
        "```\n## Completed\n```\nlook",
        "## Completed\n```\n# Active\n```\n# Active\nlook",
    ],
)
def test_these_texts_have_work(text: str) -> None:
    assert parse_checklist(text).has_work


def test_tasks_leave_out_comments_and_completed_items() -> None:
    text = "# List\n<!-- not\nthis -->\n- mail <!-- twice -->\n## Completed\n- old\n### Even older\n- x\n## Active\n- disk\n"
    assert parse_checklist(text).open_text == "# List\n- mail \n## Active\n- disk"


def test_tasks_keep_code_as_it_is() -> None:
    text = "- run\n```html\n<!-- shown -->\n## Completed\n```\n- done?"
    assert parse_checklist(text).open_text == text


@pytest.mark.parametrize(
    "text", ["<!--" * 16_000, "<!---->" * 9_000, "<!--\n" * 13_000 + "-->", "- " * 32_000, "`" * 65_000, "#" * 65_000]
)
def test_hostile_lists_take_linear_time(text: str) -> None:
    begun = time.process_time()
    parsed = parse_checklist(text)
    _ = parsed.has_work, parsed.open_text
    assert time.process_time() - begun < 1
