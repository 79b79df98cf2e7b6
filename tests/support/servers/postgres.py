"""A real PostgreSQL server on a unix socket in a temporary folder, started as an ordinary user."""

from __future__ import annotations

import itertools
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import required_programs
from patience import PATIENCE

from scheduler.store.locations import open_for_writing

USERS = ("postgres", "nobody")  # root cannot run the server; the first of these that exists does
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "fsync": "off",  # tests do not cut the power
    "log_min_messages": "fatal",
}


class PostgresServer:
    """One server. `database()` creates a new, empty database in it and returns its connection string.

    `prefix` is put before the command of the server, for example to start it in a network namespace; only root can do that.
    Its folder is made in `parent`.
    `settings` override those of `SETTINGS`. Raises FileNotFoundError if PostgreSQL is not installed.
    """

    def __init__(
        self, *, prefix: Sequence[str] = (), parent: Path | None = None, copy_of: PostgresServer | None = None, **settings: str
    ) -> None:
        self._programs = Path(required_programs.find("initdb") or _not_installed()).parent
        self._user = next((name for name in USERS if _exists(name)), None) if os.getuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="heartbeatd-postgres-", dir=parent))
        if self._user:
            shutil.chown(self.folder, self._user)
        self._settings = {**SETTINGS, **settings, "unix_socket_directories": str(self.folder)}
        self._names = (f"test{number}" for number in itertools.count(1))
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix = [*prefix, "setpriv", f"--reuid={self._user}", "--clear-groups"] if prefix else []
        if copy_of is not None:
            self._call("pg_basebackup", "--no-sync", "-cfast", f"-h{copy_of.folder}", "-Uheartbeatd", f"-D{self._data}")
            (self._data / "standby.signal").touch()
            return
        self._call(
            "initdb", "--no-sync", "--auth=trust", "--username=heartbeatd", "--encoding=UTF8", "--locale=C", f"-D{self._data}"
        )

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def accept_from(self, network: str) -> None:
        """Accept connections over TCP from these addresses, without a password, from the next start on."""
        with (self._data / "pg_hba.conf").open("a", encoding="ascii") as file:
            file.write(f"host all all {network} trust\n")
        self._settings["listen_addresses"] = "*"

    def start(self) -> PostgresServer:
        """Start the server, and wait until it accepts connections."""
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            [*self._prefix, self._programs / "postgres", f"-D{self._data}", *options], stdout=log, stderr=log,
            stdin=subprocess.DEVNULL, cwd="/", user=None if self._prefix else self._user, env=self._environment(), start_new_session=True,
        )  # fmt: skip
        log.close()
        deadline = time.monotonic() + PATIENCE
        while subprocess.run(
            [self._programs / "pg_isready", "-q", f"-h{self.folder}", "-dpostgres", "-Uheartbeatd"],
            env=self._environment(), timeout=PATIENCE, check=False,
        ).returncode:  # fmt: skip
            assert time.monotonic() < deadline and self._process.poll() is None, (self.folder / "log").read_text(
                "utf-8", "replace"
            )
            time.sleep(0.02)
        return self

    def standby(self) -> PostgresServer:
        """Start a copy of this server as its read-only standby, which receives nothing more from it."""
        return PostgresServer(copy_of=self, **self._settings).start()

    def promote(self) -> None:
        """Let a standby be written from now on."""
        self._call("pg_ctl", "promote", "--wait", f"-D{self._data}")

    def stop(self) -> None:
        """Stop the server: connections are closed at once, and everything is written down."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server with all of its processes, as a crash of the machine would. It recovers at its next start.

        Returns when all of them have ended: a new server refuses to start while one still has the shared memory of the old one.
        """
        if self._process is None:
            return
        pid = self._process.pid
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # from here on it starts no more processes
        with ExitStack() as stack:
            children = []
            for each in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
                children.append(os.pidfd_open(int(each)))
                stack.callback(os.close, children[-1])
                signal.pidfd_send_signal(children[-1], signal.SIGKILL)
            self._end(signal.SIGKILL)
            for each in children:
                assert select.select([each], [], [], PATIENCE)[0], "a process of a killed server has not ended"

    def restart(self) -> None:
        """Stop and start the server."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and remove its files."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def database(self) -> str:
        """Create an empty database; returns its connection string."""
        name = next(self._names)
        self._call("createdb", f"-h{self.folder}", "-Uheartbeatd", name)
        return self.dsn_of(name)

    def dsn_of(self, name: str) -> str:
        """The connection string of a database."""
        return f"postgresql://heartbeatd@/{name}?host={self.folder}"

    def query(self, dsn: str, statement: str) -> str:
        """The output of psql for one statement: a line per row, with | between the columns."""
        return self._call("psql", "-XAtq", "-vON_ERROR_STOP=1", dsn, f"-c{statement}").strip()

    @contextmanager
    def locked(self, dsn: str, *statements: str) -> Iterator[None]:
        """A transaction of another program, which holds the locks that these statements take."""
        with psycopg.connect(dsn) as db:
            for statement in statements:
                db.execute(statement.encode())
            yield
            db.rollback()

    def _end(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(timeout=PATIENCE)
        self._process = None

    def _call(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [self._programs / program, *arguments], capture_output=True, text=True, cwd="/", user=self._user,
            env=self._environment(), timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC", "PGPORT": self._settings.get("port", "5432")}


EMPTY = """
do $$ declare found record; begin
  for found in select tablename from pg_tables where schemaname = 'heartbeatd' and left(tablename, 1) <> '_' loop
    execute format('delete from heartbeatd.%I', found.tablename);
  end loop;
  for found in select sequencename from pg_sequences where schemaname = 'heartbeatd' and last_value is not null loop
    perform setval(format('heartbeatd.%I', found.sequencename), 1, false);
  end loop;
  update heartbeatd._leader set epoch = 0, until_at = '-infinity', holder = null, host = null, former_host = null;
end $$
"""
# A row, to see whether a transaction was committed.
ONE_BOOT = "insert into boot (instance, pid, version, tzdata, started_at, last_tick_at) values ('a', 1, '0', '0', 1, 1)"


def delete_all_rows(url: str) -> None:
    """Delete the rows of all tables of heartbeatd, let new rows have the first ids again, and let no daemon lead."""
    with suppress(KeyError, psycopg.OperationalError):  # the server may have been restarted
        _connections[url].execute(EMPTY)
        return
    _connections[url] = psycopg.connect(url, autocommit=True)
    _connections[url].execute(EMPTY)


_connections: dict[str, psycopg.Connection] = {}  # they stay open, because a new one takes the server 10 ms of CPU


class EmptyDatabases:
    """Databases with the tables of heartbeatd. Worlds in the same folder share one; the next test gets it without rows."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._free: list[str] = []
        self._used: dict[Path, str] = {}

    def borrow(self, folder: Path) -> str:
        """The database of the worlds in this folder."""
        if folder not in self._used:
            self._used[folder] = self._free.pop() if self._free else self._create()
        return self._used[folder]

    def take_back(self) -> None:
        """Delete all rows, for the next test."""
        for url in self._used.values():
            delete_all_rows(url)
        self._free += self._used.values()
        self._used = {}

    def _create(self) -> str:
        url = self._server.database()
        open_for_writing(url).close()
        return url


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _not_installed() -> str:
    raise FileNotFoundError("PostgreSQL is not installed; Debian: apt-get install postgresql")
