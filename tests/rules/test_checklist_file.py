"""Reading and writing checklists over HTTP: a write replaces the whole file, and only the version that the client has read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from web_daemon import CONFIG, TOKENS, Reply, WebDaemon

from heartbeat.checklist_file import MAX_BYTES, CannotWrite, ChecklistVersion, VersionChanged, read_checklist, write_checklist

EDITOR, READER, CHIEF, OPSMAN = (TOKENS[name] for name in ("editor", "reader", "chief", "opsman"))
PATH = "/api/v1/agents/ops/checklist"
IN_A_FILE = CONFIG.replace('checklist: "- look\\n"', "checklist: HEARTBEAT.md", 1)
NAME = "HEARTBEAT.md"


def known(text: str) -> str:
    return sha256(text.encode()).hexdigest()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    with WebDaemon(tmp_path, IN_A_FILE) as daemon:
        daemon.world.write(f"ops/{NAME}", "- look\n")
        yield daemon


def put(daemon: WebDaemon, body: Any, token: str = EDITOR, path: str = PATH, **headers: str) -> Reply:
    return daemon.send("PUT", path, body, token, {name.replace("_", "-"): value for name, value in headers.items()})


def test_the_list_is_read_and_written_back(daemon: WebDaemon) -> None:
    found = daemon.get(PATH, READER).data
    assert found == {"file": NAME, "text": "- look\n", "hash": known("- look\n"), "has_work": True}
    text = "- [ ] größer \u2028\n# done\n"
    assert put(daemon, {"text": text, "hash": found["hash"]}).data["hash"] == known(text)
    assert daemon.get(PATH, READER).data["text"] == text
    again = put(daemon, {"text": ""}, If_Match=f'"{known(text)}"')
    assert (again.data["has_work"], daemon.get(PATH, READER).data["text"]) == (False, "")


def test_a_write_against_another_version_changes_nothing(daemon: WebDaemon) -> None:
    reply = put(daemon, {"text": "mine", "hash": known("- look\n")})
    late = put(daemon, {"text": "theirs", "hash": known("- look\n")})
    assert (reply.status, late.status, late.code) == (200, 412, "changed")
    assert put(daemon, {"text": "theirs"}, If_None_Match="*").status == 412
    assert daemon.get(PATH, READER).data["text"] == "mine"


def test_a_missing_checklist_can_be_created(daemon: WebDaemon) -> None:
    file = daemon.world.folder / "agents" / "ops" / NAME
    file.unlink()
    file.parent.rmdir()
    reply = daemon.get(PATH, READER)
    assert (reply.status, reply.code) == (404, "not_found")
    assert put(daemon, {"text": "- x", "hash": known("- look\n")}).status == 412
    assert put(daemon, {"text": "- x"}, If_None_Match="*").status == 200
    assert file.read_text() == "- x"


def test_a_write_must_name_a_version(daemon: WebDaemon) -> None:
    reply = put(daemon, {"text": "x"})
    assert (reply.status, reply.code) == (428, "version_wanted")
    assert "If-Match" in reply.data["error"]["message"]
    assert put(daemon, {"text": "x"}, If_Match="*").status == 400


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"text": 7}, 400),
        ({"text": "a\0b"}, 400),
        ({"text": "a\ud800b"}, 400),
        ({"txt": "x"}, 400),
        ({"text": "x" * (MAX_BYTES + 1)}, 413),
        ({"text": "ü" * (MAX_BYTES // 2 + 1)}, 413),
        ({"text": "x" * 600_000}, 413),
    ],
)
def test_a_text_that_cannot_be_a_checklist_is_rejected(daemon: WebDaemon, body: Any, status: int) -> None:
    assert put(daemon, body, If_Match=known("- look\n")).status == status
    assert daemon.get(PATH, READER).data["text"] == "- look\n"


def test_the_largest_checklist_is_accepted_however_it_is_escaped(daemon: WebDaemon) -> None:
    text = "ü" * (MAX_BYTES // 2)
    assert put(daemon, {"text": text}, If_Match=known("- look\n")).status == 200
    assert daemon.get(PATH, READER).data["text"] == text


def test_a_token_to_read_or_operate_may_not_edit(daemon: WebDaemon) -> None:
    body = {"text": "x", "hash": known("- look\n")}
    assert [put(daemon, body, token).status for token in (READER, CHIEF, OPSMAN)] == [403] * 3
    assert put(daemon, body, path="/api/v1/agents/nobody/checklist").status == 404
    assert daemon.get(PATH).status == 401


def test_a_list_that_is_text_in_the_config_is_shown_and_not_changed_here(daemon: WebDaemon) -> None:
    path = "/api/v1/agents/web/checklist"
    assert daemon.get(path, READER).data == {"file": None, "text": "- look\n", "hash": None, "has_work": True}
    reply = put(daemon, {"text": "x", "hash": known("- look\n")}, path=path)
    line = IN_A_FILE[: IN_A_FILE.index("- look")].count("\n") + 1
    assert (reply.status, reply.code) == (409, "in_config")
    assert f"edit agents.web.heartbeat.checklist at config.yaml:{line}" in reply.data["error"]["message"]
    assert daemon.config.read_text() == IN_A_FILE


@pytest.mark.parametrize("made", ["link", "fifo", "folder", "large"])
def test_only_small_regular_files_are_read_or_replaced(daemon: WebDaemon, made: str) -> None:
    file, secret = daemon.world.folder / "agents" / "ops" / NAME, daemon.world.folder / "secret"
    secret.write_text("canary")
    file.unlink()
    make = {
        "link": lambda: file.symlink_to(secret),
        "fifo": lambda: os.mkfifo(file),
        "folder": file.mkdir,
        "large": lambda: file.write_text("x" * 70_000),
    }
    make[made]()
    found = daemon.get(PATH, READER)
    assert (found.status, b"canary" in found.body) == (409, False)
    assert put(daemon, {"text": "x", "hash": known("canary")}).status == 409
    assert put(daemon, {"text": "x"}, If_None_Match="*").status == 409
    assert secret.read_text() == "canary"


def test_a_checklist_that_is_not_utf_8_is_neither_returned_nor_replaced(daemon: WebDaemon) -> None:
    """An editor would get the é of a Latin-1 file as a replacement character, and would write that back."""
    file, data = daemon.world.folder / "agents" / "ops" / NAME, b"- look\n- caf\xe9 at noon\n"
    file.write_bytes(data)
    where = "the byte 0xe9 in line 2, column 6 is not UTF-8; save the file as UTF-8"
    found = daemon.get(PATH, READER)
    assert (found.status, found.code) == (409, "checklist_not_utf8")
    assert found.data["error"]["message"] == f"HEARTBEAT.md of ops cannot be shown: {where}"
    reply = put(daemon, {"text": "- look\n", "hash": sha256(data).hexdigest()})
    assert (reply.status, reply.code) == (409, "unwritable")
    assert reply.data["error"]["message"] == f"HEARTBEAT.md of ops cannot be written: {where}"
    assert file.read_bytes() == data


def test_reading_and_writing_back_keeps_every_byte(daemon: WebDaemon) -> None:
    """A mark of byte order, as editors on Windows write it, is no content of the list and stays all the same."""
    file, data = daemon.world.folder / "agents" / "ops" / NAME, b"\xef\xbb\xbf# Title\r\n\r\n"
    file.write_bytes(data)
    found = daemon.get(PATH, READER).data
    assert not found["has_work"]
    assert put(daemon, {"text": found["text"], "hash": found["hash"]}).data["has_work"] is False
    assert file.read_bytes() == data


def test_a_write_keeps_the_mode_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    file = tmp_path / NAME
    file.write_text("a")
    file.chmod(0o640)
    write_checklist(tmp_path, NAME, "b", known("a"))
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode), sorted(path.name for path in tmp_path.iterdir())) == (
        "b",
        0o640,
        [NAME],
    )


def test_a_reader_sees_the_old_or_the_new_version_but_never_a_part(tmp_path: Path) -> None:
    file = tmp_path / NAME
    file.write_text("a" * 1000)
    with file.open() as old:
        write_checklist(tmp_path, NAME, "b" * 1000, known("a" * 1000))
        assert old.read() == "a" * 1000
    assert read_checklist(tmp_path, NAME) == ChecklistVersion("b" * 1000, known("b" * 1000))


def test_a_name_that_leads_outside_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "out").symlink_to(tmp_path)
    for name in ("../x.md", "/tmp/x.md", "out/x.md", "nowhere/x.md"):
        with pytest.raises(CannotWrite):
            write_checklist(tmp_path / "inside", name, "x", None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inside"]


def test_a_file_without_write_permission_is_kept(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("a")
    with pytest.raises(VersionChanged):
        write_checklist(tmp_path, NAME, "b", None)
    with pytest.raises(CannotWrite, match="larger than 64 KiB"):
        write_checklist(tmp_path, NAME, "b" * (MAX_BYTES + 1), known("a"))
    assert (tmp_path / NAME).read_text() == "a"
