"""The precheck for a mailbox in docs/checklists.md reads a mailbox over IMAP."""

from __future__ import annotations

import re
import socketserver
import threading
from pathlib import Path
from typing import Any

import pytest
from checkout import HOME
from config_file import write

from scheduler.cli.main import main

PAGE = (HOME / "docs/checklists.md").read_text("utf-8")
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
HEADER = b"From: Anna <anna@example.org>\r\nSubject: =?utf-8?q?Caf=C3=A9?=\r\n today?\r\n\r\n"


class Mailbox(socketserver.StreamRequestHandler):
    """Answers the commands of the program as an IMAP4rev1 server does. Mail 2 and 3 are unread."""

    unread = b"2 3"

    def handle(self) -> None:
        self.wfile.write(b"* OK ready\r\n")
        for line in self.rfile:
            tag, command, *given = line.decode().split()
            answers = {
                "CAPABILITY": b"* CAPABILITY IMAP4rev1\r\n",
                "EXAMINE": b"* 3 EXISTS\r\n",
                "SEARCH": b"* SEARCH " + self.unread + b"\r\n",
                "FETCH": b"* %s FETCH (BODY[HEADER.FIELDS (FROM SUBJECT)] {%d}\r\n%s)\r\n" % (b"2", len(HEADER), HEADER),
                "LOGOUT": b"* BYE\r\n",
                "LOGIN": b"",
            }
            refused = command == "LOGIN" and given != ["anna", '"secret"']
            self.wfile.write(answers[command] + f"{tag} {'NO' if refused else 'OK'} done\r\n".encode())
            if command == "LOGOUT":
                return


def read_mailbox(folder: Path, mailbox: type[Mailbox]) -> list[str]:
    """What the program reads. The server has no certificate, so the program connects without TLS."""
    file = folder / "netrc"
    file.write_text("machine imap.example.org login anna password secret\n")
    file.chmod(0o600)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), mailbox) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        here = PROGRAM.replace("IMAP4_SSL(host,", f"IMAP4('127.0.0.1', {server.server_address[1]},")
        assert here != PROGRAM
        names: dict[str, Any] = {}
        exec(compile(here, "new_mail.py", "exec"), names)
        lines: list[str] = names["unread"]("imap.example.org", str(file))
        server.shutdown()
    return lines


def test_the_config_is_short_and_costs_at_most_50_cents_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (config,) = (block for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if "new_mail.py" in block)
    for name in ("TG_TOKEN", "TG_CHAT", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "4711")
    assert len(config.splitlines()) == 12
    assert main(["-c", str(write(tmp_path, config)), "plan", "--worst"]) == 0
    assert capsys.readouterr().out.endswith("all: at most 0.5000 USD a day\n")


def test_each_unread_mail_is_a_line(tmp_path: Path) -> None:
    assert read_mailbox(tmp_path, Mailbox) == ["Anna <anna@example.org>: Café today?"] * 2


def test_a_mailbox_without_unread_mail_has_no_lines(tmp_path: Path) -> None:
    class Read(Mailbox):
        unread = b""

    assert read_mailbox(tmp_path, Read) == []
