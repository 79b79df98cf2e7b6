"""Imports only point to lower layers, and each third-party library is imported by one module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import HOME

FILES = sorted(path for package in ("scheduler", "heartbeat", "cron", "heartbeatd") for path in (HOME / package).rglob("*.py"))

DOORS = {
    "croniter": {"cron/job_schedules.py"},
    "_ruamel_yaml": {"scheduler/config/file/marked_yaml.py", "scheduler/config/file/value_editing.py"},
    "dotenv": {"scheduler/config/build/secrets.py"},
    "rich": {"scheduler/cli/output.py"},
    "sqlite_utils": {"scheduler/store/database.py", "scheduler/store/migrations.py"},
    "prometheus_client": {"scheduler/telemetry/metrics.py", "scheduler/telemetry/gauges.py"},
    "aiohttp": {"scheduler/net/http_client.py"},
    "anthropic": {"heartbeat/runners/anthropic.py"},
    "httpx2": {
        "heartbeat/runners/anthropic.py",
        "scheduler/net/mcp_client.py",
        "heartbeatd/async_client.py",
        "heartbeatd/sync_client.py",
        "heartbeatd/http_messages.py",
        "heartbeatd/errors.py",
        "heartbeatd/events.py",
    },
    "apprise": {"scheduler/channels/apprise.py"},
    "opentelemetry": {"scheduler/telemetry/traces.py"},
    "jinja2": {"scheduler/web/page/rendering.py"},
    "procrastinate": {"scheduler/store/job_queue.py"},
    "psycopg": {"scheduler/store/job_queue.py", "scheduler/store/postgresql.py"},
    "mcp": {"scheduler/web/mcp_server.py", "scheduler/cli/mcp_stdio.py", "scheduler/net/mcp_client.py"},
    "subprocess": {"scheduler/system/process.py"},
    "fcntl": {"scheduler/system/file_locks.py", "scheduler/system/file_limits.py"},
}
ROOMS = {
    "click": ("scheduler/cli/",),
    "starlette": ("scheduler/web/",),
    "uvicorn": ("scheduler/web/",),
    "pydantic": (
        "scheduler/config/",
        "heartbeatd/",
        "scheduler/web/request_bodies.py",
        "scheduler/web/response_bodies.py",
        "scheduler/web/openapi.py",
    ),
}

# The files that may read each real clock: the app, which passes it on, and code that waits in real time.
CLOCKS = {
    "scheduler/app.py",
    "scheduler/system/orphans.py",
    "scheduler/system/file_watch.py",
    "scheduler/system/log.py",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(HOME))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_imports_only_the_libraries_allowed_for_its_package(path: Path) -> None:
    package = name_of(path).split("/")[0]
    known = {name.split(".")[0] for name in imports(path)}
    foreign = {"heartbeat": {"scheduler", "cron"}, "cron": {"scheduler", "heartbeat"}, "heartbeatd": {"heartbeat", "cron"}}
    assert not known & foreign.get(package, set())
    for library, doors in DOORS.items():
        assert library not in known or name_of(path) in doors, f"{library} has another door: {doors}"
    for library, rooms in ROOMS.items():
        assert library not in known or name_of(path).startswith(rooms), f"{library} lives in {rooms}"


def modules() -> dict[str, Path]:
    return {name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in FILES}


def test_there_are_no_import_cycles() -> None:
    known = modules()
    graph = {module: {name for name in imports(path) if name in known and name != module} for module, path in known.items()}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for following in graph[module]:
                visit(following, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


# The packages of the daemon, lowest first. Each may import those before it and none after it.
ROOMS_FROM_THE_GROUND = (
    "model",
    "system",
    "store",
    "net",
    "channels",
    "config",
    "work",
    "engine",
    "telemetry",
    "insight",
    "web",
    "cli",
)


def room_of(path: Path) -> str | None:
    package, *rest = path.relative_to(HOME).parts
    return rest[0] if package == "scheduler" and len(rest) > 1 else None


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path)], ids=name_of)
def test_a_package_imports_only_the_packages_below_it(path: Path) -> None:
    above = ROOMS_FROM_THE_GROUND[ROOMS_FROM_THE_GROUND.index(str(room_of(path))) + 1 :]
    assert not [name for name in imports(path) if name.startswith(tuple(f"scheduler.{room}." for room in above))]


def test_config_reads_text_then_checks_keys_then_builds_settings() -> None:
    """Inside config/ the imports point from importers/ to build/ to keys/ to file/, and never the other way."""
    above = {"file": ("keys", "build", "importers"), "keys": ("build", "importers"), "build": ("importers",)}
    for folder, forbidden in above.items():
        for path in FILES:
            if name_of(path).startswith(f"scheduler/config/{folder}/"):
                assert not [
                    name for name in imports(path) if name.startswith(tuple(f"scheduler.config.{part}" for part in forbidden))
                ]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_the_app_reads_the_clock(path: Path) -> None:
    text = path.read_text("utf-8")
    reads = any(word in text for word in ("datetime.now(", "time.time(", "time.monotonic(", "datetime.utcnow(", "date.today("))
    assert not reads or name_of(path) in CLOCKS or name_of(path).startswith("scheduler/cli/")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_begins_with_a_one_sentence_docstring(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    docstring = ast.get_docstring(tree)
    assert docstring or not tree.body
    assert not docstring or docstring.splitlines()[0].endswith(".")


def test_sql_is_never_built_from_user_input() -> None:
    """Statements are literals, or built from literals in the five places that give the reason."""
    made = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_execute = (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.startswith("execute")
            )
            if is_execute and node.args and isinstance(node.args[0], ast.JoinedStr):
                made.add(name_of(path))
    assert made <= {
        "scheduler/store/entries.py",
        "scheduler/store/migrations.py",
        "scheduler/store/database.py",
        "scheduler/store/postgresql_schema.py",
        "scheduler/store/transfer.py",
    }


def _waits_for_ever(node: ast.Call) -> bool:
    """Whether a call waits for a thread, a process or an event without a timeout."""
    given = {keyword.arg for keyword in node.keywords}
    name = ast.unparse(node.func)
    if name in {"subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output"}:
        return not given & {"timeout", None}
    is_wait = isinstance(node.func, ast.Attribute) and node.func.attr in {"wait", "join", "communicate"}
    return is_wait and not node.args and "timeout" not in given


@pytest.mark.parametrize("path", sorted((HOME / "tests").rglob("*.py")), ids=name_of)
def test_no_test_waits_without_a_timeout(path: Path) -> None:
    """A hanging test must fail with its position while the others go on."""
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    assert [f"line {node.lineno}: {ast.unparse(node)}" for node in calls if _waits_for_ever(node)] == []
