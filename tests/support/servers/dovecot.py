"""Dovecot, the IMAP server, as an ordinary user on free ports of 127.0.0.1, with TLS and one user, anna."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from patience import PATIENCE, wait_until

CERTIFICATE = Path(__file__).with_name("localhost.pem")
PASSWORD = "hunter2-Käse"
CONFIG = """\
base_dir = {folder}/run
state_dir = {folder}/state
log_path = {folder}/log
protocols = imap
default_internal_user = {user}
default_internal_group = {group}
default_login_user = {user}
ssl = yes
ssl_cert = <{folder}/localhost.pem
ssl_key = <{folder}/localhost.pem
disable_plaintext_auth = no
auth_mechanisms = {mechanisms}
auth_failure_delay = 0
mail_location = maildir:{folder}/mail
first_valid_uid = 1
passdb {{
  driver = passwd-file
  args = scheme=PLAIN {folder}/users
}}
userdb {{
  driver = static
  args = uid={user} gid={group} home={folder}
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    address = 127.0.0.1
    port = {plain}
  }}
  inet_listener imaps {{
    address = 127.0.0.1
    port = {tls}
    ssl = yes
  }}
}}
service anvil {{
  unix_listener anvil-auth-penalty {{
    mode = 0
  }}
  chroot =
}}
"""


@dataclass
class Mailbox:
    """The mailbox of anna. `host` and `plain_host` are HOST:PORT with TLS, and without or with STARTTLS."""

    folder: Path
    host: str
    plain_host: str
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def deliver(self, sender: str, subject: str, *, folder: str = "", is_read: bool = False) -> Path:
        """Put a message into the mailbox, or into a folder of it."""
        number = next(self._numbers)
        place = self.folder / "mail" / (f".{folder}" if folder else "")
        for name in ("cur", "new", "tmp"):
            (place / name).mkdir(parents=True, exist_ok=True)
        _open_to_all(place)
        file = place / ("cur" if is_read else "new") / f"17000000{number:02}.M{number}.host{':2,S' if is_read else ''}"
        file.write_bytes(f"From: {sender}\r\nSubject: {subject}\r\n\r\nHello.\r\n".encode())
        file.chmod(0o666)
        return file


@contextmanager
def running_dovecot(mechanisms: str = "plain login") -> Iterator[Mailbox]:
    """A server with an empty mailbox. It refuses to run as root, so it is started as nobody then."""
    is_root = os.geteuid() == 0
    user, group = ("nobody", "nogroup") if is_root else (_name("-un"), _name("-gn"))
    folder = Path(tempfile.mkdtemp(prefix="heartbeatd-imap-"))
    ports = _free_port(), _free_port()
    program = shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "dovecot"
    try:
        shutil.copy(CERTIFICATE, folder)
        (folder / "users").write_text(f"anna:{PASSWORD}\n", "utf-8")
        places = {"folder": folder, "user": user, "group": group, "mechanisms": mechanisms, "plain": ports[0], "tls": ports[1]}
        (folder / "dovecot.conf").write_text(CONFIG.format(**places), "utf-8")
        (folder / "mail").mkdir()
        _open_to_all(folder)
        as_user = {"user": user, "group": group, "extra_groups": []} if is_root else {}
        server = subprocess.Popen([program, "-F", "-c", str(folder / "dovecot.conf")], **as_user)  # type: ignore[call-overload]
        try:
            wait_until(lambda: all(map(_accepts, ports)))
            yield Mailbox(folder, f"localhost:{ports[1]}", f"127.0.0.1:{ports[0]}")
        finally:
            server.terminate()
            server.wait(PATIENCE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _open_to_all(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        with suppress(PermissionError):  # the server has made it
            path.chmod(0o777 if path.is_dir() else 0o666)


def _name(option: str) -> str:
    return subprocess.run(["id", option], capture_output=True, text=True, check=True, timeout=PATIENCE).stdout.strip()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
