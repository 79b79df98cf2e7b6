"""Configures all tests: which of them run, in which order, and a summary of missing programs at the end."""

from __future__ import annotations

import gc
import os
import signal
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path

import pytest
import required_programs
import simulation
from checkout import HOME

# The files whose tests take longest, the longest first. They begin first, because a long file that begins last keeps one worker busy
# while the others have nothing to do. Those that need the CPU are between those that wait, so that both take place at the same time.
LONGEST = (
    "test_installation", "test_workers", "test_story_silence", "test_secret_canary", "test_leadership", "test_story_simulation",
    "test_failover", "test_story_sources", "test_story_random_messages", "test_page_agent", "test_daemon", "test_story_explain",
    "test_documented_examples", "test_disk_full", "test_story_asking_again", "test_page_views", "test_client",
    "test_story_reported_problems", "test_postgresql_faults", "test_metrics", "test_story_provider_problems",
    "test_postgresql_store", "test_alert_rules", "test_page_foresight", "test_dashboard_faults", "test_story_jobs_and_problems",
    "test_mcp", "test_openapi",
    "test_story_replay", "test_page_agent_forms", "test_traces", "test_story_simulator", "test_daemon_models", "test_migrate",
    "test_story_month", "test_power_cuts", "test_readme", "test_story_breakers", "test_page_browser", "test_prometheus",
    "test_cron_oracle", "test_access", "test_required_programs", "test_hanging_calls", "test_extra_commands", "test_lanes_of_clusters",
    "test_story_history", "test_mailbox", "test_previous_schema", "test_file_limits", "test_story_daily_maximum",
)  # fmt: skip

# A shell starts `make test &` with SIGINT ignored, and nohup ignores SIGHUP. Processes to which tests send them would inherit that.
for ignored, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(ignored) == signal.SIG_IGN:
        signal.signal(ignored, usual)


def pytest_configure(config: pytest.Config) -> None:
    """Load the shared fixtures, and stop at once if the entry points in pyproject.toml are not those that are installed.

    The process that only distributes tests to workers needs no fixtures. It starts the workers two seconds earlier without them.
    """
    if config.getoption("dist", "no") == "no":
        config.pluginmanager.import_plugin("shared_fixtures")
    groups = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    written = {(group, name, place) for group, found in groups.items() for name, place in found.items()}
    installed = {(each.group, each.name, each.value) for each in distribution("heartbeatd").entry_points}
    if written != {each for each in installed if each[0] in groups}:
        pytest.exit("the entry points in pyproject.toml have changed; run `make .venv/ready`", 2)


def pytest_collection(session: pytest.Session) -> None:
    """Import the files with tests, in each worker from another one on, before all workers collect them in the same order.

    The first worker that imports a file compiles it for the others. In the same order, each would compile nearly all of them.
    """
    if not required_programs.is_worker():
        return
    paths = [Path(argument.partition("::")[0]) for argument in session.config.args]
    files = [file for path in paths for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    worker, number = os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"), os.environ["PYTEST_XDIST_WORKER_COUNT"]
    first = len(files) * int(worker) // int(number)
    for file in files[first:] + files[:first]:
        with suppress(Exception, pytest.skip.Exception):  # collecting the file raises it again
            import_module(file.stem)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests with the mark `long_simulation` only in `make simulate`, and those with `ci` only with HEARTBEATD_TEST_CI=1.

    The longest files come first, then those with the most tests. In PostgreSQL, run only tests that have a database, each with the first of its parameter sets; in `make simulate` with all.
    Tests with the marks `sqlite_file` and `long_on_server` are skipped, and the summary names their reasons. With
    HEARTBEATD_TEST_ALL=1 tests with the mark `long_on_server` are run, and all parameter sets are run.
    """
    if not simulation.IS_LONG:
        _deselect(config, items, lambda item: item.get_closest_marker("long_simulation") is not None)
    if not os.environ.get("HEARTBEATD_TEST_CI"):
        _deselect(config, items, lambda item: item.get_closest_marker("ci") is not None)
    if not (HOME / "scheduler" / "extras").is_dir():
        _deselect(config, items, lambda item: item.get_closest_marker("extras") is not None)
    tests_of = Counter(item.path for item in items)
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (ranks.get(item.path.stem, len(ranks)), -tests_of[item.path]))
    if os.environ.get("HEARTBEATD_TEST_STORE") != "postgresql":
        return
    run_all = bool(os.environ.get("HEARTBEATD_TEST_ALL"))
    seen: set[str] = set()
    kept: set[pytest.Item] = set()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if (name in seen and not (run_all or simulation.IS_LONG)) or "database_of" not in getattr(item, "fixturenames", ()):
            continue
        seen.add(name)
        kept.add(item)
        if mark := item.get_closest_marker("sqlite_file"):
            item.add_marker(pytest.mark.skip(reason=f"not with PostgreSQL: {mark.args[0]}"))
        elif (mark := item.get_closest_marker("long_on_server")) and not run_all:
            item.add_marker(pytest.mark.skip(reason=f"with PostgreSQL only by `make test-postgresql ALL=1`: {mark.args[0]}"))
    _deselect(config, items, lambda item: item not in kept)


def pytest_collection_finish() -> None:
    """Search the objects that all tests share never for garbage, and those of tests less often: that saves a twentieth of the CPU."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def _deselect(config: pytest.Config, items: list[pytest.Item], is_out: Callable[[pytest.Item], bool]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if is_out(item)])
    items[:] = [item for item in items if not is_out(item)]


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the reporter's own, so that it comes last
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Print which tests were skipped because a program is missing, and where to get it."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and not required_programs.is_worker():
        skipped = [(report.nodeid, report.longrepr[2]) for report in reporter.stats.get("skipped", ())]  # path, line, reason
        for line in required_programs.summarize_skipped(skipped):
            reporter.write_line(line)
