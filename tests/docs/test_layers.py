"""Imports only point to lower layers, and each third-party library is imported by one module."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from checkout import HOME

FILES = sorted(path for package in ("scheduler", "heartbeat", "cron", "heartbeatd") for path in (HOME / package).rglob("*.py"))

DOORS = {
    "croniter": {"cron/job_schedules.py"},
    "dotenv": {"scheduler/config/settings/secrets.py"},
    "rich": {"scheduler/cli/output.py"},
    "sqlite_utils": {"scheduler/store/migrations.py"},
    "prometheus_client": {"scheduler/telemetry/metrics.py", "scheduler/telemetry/gauges.py"},
    "aiohttp": {"scheduler/net/http_client.py"},
    "anthropic": {"heartbeat/runners/anthropic.py"},
    "genai_prices": {"scheduler/config/settings/listed_prices.py"},
    "httpx2": {
        "heartbeat/runners/anthropic.py",
        "scheduler/extras/mcp/mcp_client.py",
        "heartbeatd/client.py",
        "heartbeatd/errors.py",
    },
    "apprise": {"scheduler/channels/apprise.py"},
    "icalendar": {"scheduler/work/calendar_events.py"},
    "imaplib": {"scheduler/work/mailbox.py"},
    "opentelemetry": {"scheduler/extras/traces/traces.py"},
    "jinja2": {"scheduler/web/page/rendering.py"},
    "procrastinate": {"scheduler/extras/cluster/job_queue.py"},
    "psycopg": {"scheduler/extras/cluster/job_queue.py", "scheduler/extras/cluster/postgresql.py"},
    "mcp": {"scheduler/extras/mcp/mcp_server.py", "scheduler/extras/mcp/mcp_stdio.py", "scheduler/extras/mcp/mcp_client.py"},
    "subprocess": {"scheduler/system/process.py"},
    "fcntl": {"scheduler/system/files.py", "scheduler/system/file_limits.py", "heartbeatd/state_folder.py"},
}
ROOMS = {
    "click": ("scheduler/cli/", "scheduler/extras/"),
    "starlette": ("scheduler/web/", "scheduler/extras/"),
    "uvicorn": ("scheduler/web/",),
    "pydantic": (
        "scheduler/config/",
        "heartbeatd/",
        "scheduler/extras/cluster/payloads.py",
        "scheduler/web/alertmanager.py",
        "scheduler/web/openapi.py",
    ),
}

# The files that may read each real clock: the app, which passes it on, and code that waits in real time.
CLOCKS = {
    "scheduler/app.py",
    "scheduler/extras/cluster/worker.py",
    "scheduler/foresight/own_process.py",
    "scheduler/system/boot_clock.py",
    "scheduler/system/orphans.py",
    "scheduler/system/file_watch.py",
    "scheduler/system/log.py",
}


@dataclass(frozen=True)
class Source:
    """What the rules of this file read of a source file, which is parsed once."""

    text: str
    docstring: str | None
    is_empty: bool
    imports: tuple[str, ...]
    builds_statements: bool


def name_of(path: Path) -> str:
    return str(path.relative_to(HOME))


@cache
def source(path: Path) -> Source:
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    return Source(text, ast.get_docstring(tree), not tree.body, tuple(_imports(nodes)), any(map(_builds_statement, nodes)))


def _imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _builds_statement(node: ast.AST) -> bool:
    is_execute = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.startswith("execute")
    return is_execute and bool(node.args) and isinstance(node.args[0], ast.JoinedStr)


def test_a_file_imports_only_the_libraries_allowed_for_its_package() -> None:
    foreign = {
        "heartbeat": {"scheduler", "cron"},
        "cron": {"scheduler", "heartbeat"},
        "heartbeatd": {"heartbeat", "cron", "scheduler"},
    }
    wrong = []
    for path in FILES:
        name = name_of(path)
        known = {module.split(".")[0] for module in source(path).imports}
        wrong += [f"{name}: {package}" for package in known & foreign.get(name.split("/")[0], set())]
        wrong += [f"{name}: {library}" for library, doors in DOORS.items() if library in known and name not in doors]
        wrong += [f"{name}: {library}" for library, rooms in ROOMS.items() if library in known and not name.startswith(rooms)]
    assert wrong == []


def modules() -> dict[str, Path]:
    return {name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in FILES}


def test_there_are_no_import_cycles() -> None:
    known = modules()
    graph = {
        module: {name for name in source(path).imports if name in known and name != module} for module, path in known.items()
    }
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
    "foresight",
    "web",
    "cli",
    "extras",
)


def room_of(path: Path) -> str | None:
    package, *rest = path.relative_to(HOME).parts
    return rest[0] if package == "scheduler" and len(rest) > 1 else None


def test_a_package_imports_only_the_packages_below_it() -> None:
    wrong = []
    for path in FILES:
        if room := room_of(path):
            above = tuple(f"scheduler.{higher}." for higher in ROOMS_FROM_THE_GROUND[ROOMS_FROM_THE_GROUND.index(room) + 1 :])
            wrong += [f"{name_of(path)}: {name}" for name in source(path).imports if name.startswith(above)]
    assert wrong == []


def test_extras_are_only_named_by_entry_points() -> None:
    """Nothing outside imports from extras/, and no extra imports from another one."""
    wrong = []
    for path in FILES:
        own = ".".join(path.relative_to(HOME).parts[:3]) if room_of(path) == "extras" else "-"
        others = [name for name in source(path).imports if name.startswith("scheduler.extras.") and not name.startswith(own)]
        wrong += [f"{name_of(path)}: {name}" for name in others]
    assert wrong == []
    assert [name_of(path) for path in FILES if room_of(path) != "extras" and "scheduler.extras." in source(path).text] == []


def test_config_reads_text_then_checks_keys_then_builds_settings() -> None:
    """Inside config/ the imports point from settings/ to keys/ to file/, and never the other way."""
    above = {"file": ("keys", "settings"), "keys": ("settings",)}
    wrong = []
    for path in FILES:
        for folder, forbidden in above.items():
            if name_of(path).startswith(f"scheduler/config/{folder}/"):
                parts = tuple(f"scheduler.config.{part}" for part in forbidden)
                wrong += [f"{name_of(path)}: {name}" for name in source(path).imports if name.startswith(parts)]
    assert wrong == []


def test_only_the_app_reads_the_clock() -> None:
    readings = ("datetime.now(", "time.time(", "time.monotonic(", "datetime.utcnow(", "date.today(")
    reading = {name_of(path) for path in FILES if any(word in source(path).text for word in readings)}
    assert {name for name in reading - CLOCKS if not name.startswith("scheduler/cli/")} == set()


def test_every_file_begins_with_a_one_sentence_docstring() -> None:
    without = [
        name_of(path)
        for path in FILES
        if not source(path).is_empty and not (source(path).docstring or "").partition("\n")[0].endswith(".")
    ]
    assert without == []


def test_sql_is_never_built_from_user_input() -> None:
    """Statements are literals, or built from literals in the five places that give the reason."""
    assert {name_of(path) for path in FILES if source(path).builds_statements} <= {
        "scheduler/store/entries.py",
        "scheduler/store/migrations.py",
        "scheduler/store/database.py",
        "scheduler/extras/cluster/postgresql.py",
        "scheduler/extras/cluster/transfer.py",
    }


def _waits_for_ever(node: ast.Call) -> bool:
    """Whether a call waits for a thread, a process or an event without a timeout."""
    given = {keyword.arg for keyword in node.keywords}
    if not isinstance(node.func, ast.Attribute):
        return False
    if isinstance(node.func.value, ast.Name) and node.func.value.id == "subprocess":
        return node.func.attr in {"run", "call", "check_call", "check_output"} and not given & {"timeout", None}
    return node.func.attr in {"wait", "join", "communicate"} and not node.args and "timeout" not in given


def test_no_test_waits_without_a_timeout() -> None:
    """A hanging test must fail with its position while the others go on."""
    waiting = [
        f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted((HOME / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and _waits_for_ever(node)
    ]
    assert waiting == []
