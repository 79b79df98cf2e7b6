"""The command line as a whole: the list of commands, exit codes, and error messages."""

import errno
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from checkout import HOME
from config_file import SMALL, write
from loops import loop_over
from patience import PATIENCE

from heartbeatd.state_folder import read_state_path
from scheduler import __main__
from scheduler.cli.commands import SECTIONS
from scheduler.cli.main import FORMER_COMMANDS, commands, main
from scheduler.store.database import Store

NO_SHARDS = "was removed together with shards; several machines share one database on a PostgreSQL server, and one lease (docs/scaling.md)"
SERVER = ("starlette", "uvicorn", "aiohttp", "prometheus_client", "sqlite_utils")
READS_ONLY = (*SERVER, "rich.table", "anthropic", "asyncio", "croniter", "httpx2", "scheduler.config.keys.models")


def python(*arguments: str, cwd: Path = HOME) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_the_daemon_runs_with_closed_standard_streams(tmp_path: Path, closed: str) -> None:
    write(tmp_path, f'state: {tmp_path}/h.db\nserver: {{listen: "127.0.0.1:0"}}\n{SMALL}')
    command = f"{shlex.quote(sys.executable)} -m scheduler -c {tmp_path}/config.yaml run --for 1s {closed}"
    ended = subprocess.run(["sh", "-c", command], cwd=HOME, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, "Error" in ended.stderr) == (0, False), ended.stderr


def test_help_lists_the_commands_in_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^([A-Z][a-z ]+):$", shown, re.MULTILINE) == ["Options", *SECTIONS]
    assert re.findall(r"^  ([a-z]+) ", shown.partition("Look:")[2], re.MULTILINE) == commands.list_commands(
        click.Context(commands)
    )


@pytest.mark.extras
def test_a_former_command_names_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    for name, rest in FORMER_COMMANDS.items():
        assert main([name, "--out", "x"]) == 2
        assert capsys.readouterr().err == f"heartbeatd: the command {name!r} {rest}; see `heartbeatd --help`\n"
        for new in re.findall(r"`heartbeatd ([^`]*)`", rest):
            assert main([*new.split(), "--help"]) == 0
            assert f"Usage: heartbeatd {new} " in capsys.readouterr().out


@loop_over("name", commands.list_commands(click.Context(commands)))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"Usage: heartbeatd {name}" in capsys.readouterr().out


@loop_over(
    ("arguments", "error"),
    [
        (["nap"], "heartbeatd: unknown command 'nap'; see `heartbeatd --help`"),
        (["stat"], "heartbeatd: unknown command 'stat'; did you mean status?; see `heartbeatd --help`"),
        (["runs", "--format", "xml"], "'xml' is not one of 'text', 'json'"),
        (
            ["runs", "--since", "soon"],
            "'soon' is not a time; write 2026-11-20T03:00, 2026-11-20T03:00:00Z, today, yesterday, or 2h for two hours ago",
        ),
        *(
            (
                ["wake", "ops", "--at", given],
                f"'--at': '{given}' is not a time; write 2026-11-20T03:00 or 2026-11-20T03:00:00Z; see",
            )
            for given in ("tomorrow", "yesterday", "2h")
        ),
        (["pause", "ops", "--for", "2"], "'2' is not a duration; write 90s, 30m or 1h30m"),
        (["pause"], "heartbeatd: name an agent or a job, or use --all"),
        (["resume", "ops", "--all"], "heartbeatd: name an agent or a job, or use --all"),
        (["wake", "cron/backup"], "heartbeatd: 'cron/backup' is not agent/NAME; `heartbeatd cron run` runs jobs"),
        (["cron", "run", "agent/ops"], "heartbeatd: 'agent/ops' is not cron/NAME; `heartbeatd wake` wakes agents"),
        (["wake", ""], "heartbeatd: '' is not agent/NAME; `heartbeatd status` lists the names"),
        (["wake", "agent/"], "heartbeatd: 'agent/' is not agent/NAME; `heartbeatd status` lists the names"),
        (["cron", "run", ""], "heartbeatd: '' is not cron/NAME; `heartbeatd status` lists the names"),
        (["run", "--once", "--for", "3s"], "heartbeatd: --once ends by itself; remove --for"),
        (["ack", "p12"], "heartbeatd: the command 'ack' is now `heartbeatd problems ack`; see `heartbeatd --help`"),
        (["reshard"], f"heartbeatd: the command 'reshard' {NO_SHARDS}; see `heartbeatd --help`"),
        (["--shard", "0", "status"], f"heartbeatd: the option --shard {NO_SHARDS}; see `heartbeatd --help`"),
        (["runs", "--outcome", "ok"], "heartbeatd: the option --outcome is now --result; see `heartbeatd runs --help`"),
        (["run", "--shard=1"], f"heartbeatd: the option --shard {NO_SHARDS}; see `heartbeatd run --help`"),
        (["run", "--drain"], f"heartbeatd: the option --drain {NO_SHARDS}; see `heartbeatd run --help`"),
    ],
)
def test_wrong_usage_prints_one_line_on_stderr_and_exits_with_2(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert error in err
    assert err.startswith("heartbeatd: ")
    assert err.count("\n") == 1


def test_the_variable_of_shards_is_an_error_before_any_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTBEATD_SHARD", "1")
    assert main(["status"]) == 2
    assert capsys.readouterr().err == f"heartbeatd: the variable HEARTBEATD_SHARD {NO_SHARDS}\n"


def test_without_a_command_the_help_is_shown_and_the_exit_code_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Set up:" in capsys.readouterr().err


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    heartbeatd = f"{shlex.quote(sys.executable)} -m scheduler"
    shell = f"{heartbeatd} files schema | head -c 1 >/dev/null"
    ended = subprocess.run(["/bin/sh", "-c", shell], cwd=HOME, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.stderr == ""


@pytest.mark.parametrize(
    ("commands", "unneeded"),
    [
        (("status", "runs", "show 1"), READS_ONLY),
        (("check",), ("scheduler.engine.tick", "asyncio", "croniter", *SERVER)),
        (("plan", "explain nosuch", "wake nosuch"), SERVER),
    ],
)
def test_a_command_imports_no_library_that_it_does_not_need(
    commands: tuple[str, ...], unneeded: tuple[str, ...], tmp_path: Path
) -> None:
    """One process runs several commands: starting it takes most of the time."""
    path = write(tmp_path, SMALL)
    state = read_state_path(path, {})
    state.parent.mkdir(mode=0o700, exist_ok=True)
    Store.open(state).close()
    calls = [["-c", str(path), *command.split()] for command in commands]
    code = f"import sys; from scheduler.cli.main import main; [(main(each), print('loaded', each[2], {_loaded(*unneeded)})) for each in {calls!r}]"
    loaded = [line for line in python("-c", code).stdout.splitlines() if line.startswith("loaded ")]
    assert loaded == [f"loaded {command.split()[0]} []" for command in commands]


def _loaded(*names: str) -> str:
    return f"[name for name in {names!r} if name in sys.modules]"


HEAVY_FOR_HELP = ["pydantic", "aiohttp", "starlette", "_ruamel_yaml", "sqlite3", "rich", "asyncio", "croniter", "heartbeat"]


def test_help_imports_no_library_but_click() -> None:
    """So that help and a shell prompt answer at once: pydantic, aiohttp and the like cost more than the whole help.

    The help of a verb or a question is made from its class.
    """
    code = f"""
import click, sys
from scheduler.cli.main import commands, main
from scheduler.cli.operation_commands import OperationCommand

def show_help(command, *words):
    main([*words, "--help"])
    assert (found := [name for name in {HEAVY_FOR_HELP} if name in sys.modules]) == [], (words, found)
    for name in command.list_commands(click.Context(command)) if isinstance(command, click.Group) else ():
        if not isinstance(command.get_command(click.Context(command), name), OperationCommand):
            show_help(command.get_command(click.Context(command), name), *words, name)

show_help(commands)
for name in ("runs", "wake"):
    main([name, "--help"])
assert [name for name in ("sqlite3", "scheduler.store", "scheduler.cli.verb_work") if name in sys.modules] == []
"""
    ended = python("-c", code)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_help_of_a_command_of_the_core_does_not_look_for_extras() -> None:
    """The search imports importlib.metadata and reads a file of each installed package, which costs as much as the help."""
    code = "import sys; from scheduler.cli.main import main; main(['wake', '--help']); print('importlib.metadata' in sys.modules)"
    assert python("-c", code).stdout.splitlines()[-1] == "False"


def test_our_packages_are_found_in_one_folder() -> None:
    assert __main__.find_stray_package() is None


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ({"heartbeat": Path("/usr/lib/other")}, "the package heartbeat/ comes from /usr/lib/other, not"),
        ({"cron": None}, "the package cron/ is missing next to"),
    ],
)
def test_a_package_from_another_folder_is_reported(found: dict[str, Path | None], error: str) -> None:
    problem = __main__.find_stray_package(lambda package: found.get(package, __main__.INSTALL_FOLDER))
    assert problem is not None
    assert error in problem


def test_a_package_from_another_folder_prevents_the_start(tmp_path: Path) -> None:
    (tmp_path / "cron").mkdir()
    (tmp_path / "cron" / "__init__.py").touch()
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(HOME)!r}]; from scheduler.__main__ import main; sys.exit(main())"
    ended = python("-c", code, cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"heartbeatd: the package cron/ comes from {tmp_path}, not {HOME}")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("mib", [28, 30])  # with a little more memory, a library in C or Rust may abort the process
def test_too_little_address_space_is_reported_in_one_sentence(tmp_path: Path, mib: int) -> None:
    write(tmp_path, SMALL)
    limited = f"ulimit -v {mib * 1024}; exec {shlex.quote(sys.executable)} -m scheduler check"
    ended = subprocess.run(
        ["sh", "-c", limited], cwd=tmp_path, env={"PYTHONPATH": str(HOME)}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"heartbeatd: there is not enough memory: its address space is limited to {mib} MiB; allow")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (MemoryError(), True),
        (RuntimeError("can't start new thread"), True),
        (ImportError("libsqlite3.so.0: failed to map segment from shared object"), True),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), True),
        (SystemError("error return without exception set"), True),
        (RuntimeError("dictionary changed size"), False),
        (ImportError("No module named x"), False),
    ],
)
def test_errors_that_mean_a_lack_of_memory_are_recognized(error: Exception, short: bool) -> None:
    assert (__main__.describe_memory_shortage(error) is not None) is short
