"""The wheel is complete: installed in an empty environment, or by the steps of the Dockerfile, every command works without the checkout."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import required_programs
from checkout import HOME
from dockerfile_parse import DockerfileParser
from patience import PATIENCE
from test_documented_examples import USER_PAGES

pytestmark = [pytest.mark.process, pytest.mark.ci]

INSTALL_TIMEOUT = 800  # seconds, with the download of all dependencies, on a busy machine


def run(
    *command: str | Path, folder: Path, timeout: float = INSTALL_TIMEOUT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, without the variables that lead Python to the checkout.

    pip compiles nothing, because the installed programs use only a few of the modules.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=kept | {"PIP_COMPILE": "0"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def need_index(ended: subprocess.CompletedProcess[str]) -> None:
    """Skip the test if no package index can be reached. Fails for any other error of an installer."""
    unreachable = ("NewConnectionError", "Temporary failure", "Failed to fetch", "No matching distribution", "ConnectTimeout")
    if ended.returncode and any(words in ended.stderr for words in unreachable):
        pytest.skip("needs a package index for the dependencies")
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, HOME]
    built = run(*build, folder=folder)
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_the_client_is_installed_without_the_daemon(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path]
    built = run(*build, HOME / "packaging/client", folder=tmp_path)
    assert built.returncode == 0, built.stderr
    (found,) = tmp_path.glob("heartbeatd_client-*.whl")
    assert run(sys.executable, "-m", "venv", tmp_path / "venv", folder=tmp_path).returncode == 0
    need_index(run(tmp_path / "venv/bin/pip", "install", "--quiet", found, folder=tmp_path, timeout=INSTALL_TIMEOUT))
    code = "import heartbeatd; heartbeatd.Client(state='.').get_status()"
    used = run(tmp_path / "venv/bin/python", "-c", code, folder=tmp_path)
    assert "heartbeatd.errors.HeartbeatdError: no daemon runs with the database" in used.stderr
    missing = run(tmp_path / "venv/bin/python", "-c", "import scheduler", folder=tmp_path)
    assert "No module named 'scheduler'" in missing.stderr


@pytest.fixture(scope="module")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the steps of the Dockerfile have been run, in place of the root of an image."""
    root = tmp_path_factory.mktemp("image")
    (root / "wheels").mkdir()
    shutil.copy(wheel, root / "wheels")
    (root / "etc").mkdir()
    parser = DockerfileParser(str(HOME / "packaging" / "compose"))
    for step in parser.structure:
        if step["instruction"] != "RUN":
            continue
        script = re.sub(r"(?<=\s)/(?=opt/|wheels/|var/)", f"{root}/", step["value"])
        if os.geteuid() == 0:
            (root / "etc/passwd").touch()
            (root / "etc/group").touch()
            script = script.replace("useradd ", f"useradd --prefix {root} ")
        else:  # only root can create users and give files to them
            script = re.sub(r"useradd .*?&& ", "", script).replace("-o 10001 -g 10001", "")
        python = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"  # useradd; after `su` it may be missing in PATH
        need_index(run("sh", "-eu", "-c", script, folder=root, timeout=INSTALL_TIMEOUT, PATH=python))
    return root


@pytest.fixture(scope="module")
def program(image: Path) -> Path:
    """The command `heartbeatd` of an environment that contains only the wheel and its dependencies."""
    return image / "opt/heartbeatd/bin/heartbeatd"


def test_the_wheel_contains_the_documentation_and_no_tests(wheel: Path) -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    names = {line.split()[0] for line in listed.stdout.splitlines()[1:]}
    shipped = {str(page.relative_to(HOME)) for page in USER_PAGES}
    assert {f"scheduler/shipped/{page}" for page in shipped} <= names
    page = {f"scheduler/web/page/{name}" for name in ("templates/base.html", "static/style.css", "static/htmx.min.js")}
    assert page <= names
    assert any(name.endswith("share/man/man1/heartbeatd.1") for name in names)
    assert {"heartbeatd/__init__.py", "heartbeatd/py.typed"} <= names
    assert [name for name in names if name.startswith(("tests/", "bench/", "agents/", "heartbeatd/generate"))] == []


def test_the_image_has_the_user_and_its_folder(image: Path) -> None:
    assert (image / "var/lib/heartbeatd").stat().st_mode & 0o777 == 0o700
    if os.geteuid() == 0:
        assert re.search(r"^heartbeatd:[^:]*:10001:10001:", (image / "etc/passwd").read_text(), re.MULTILINE)
        assert (image / "var/lib/heartbeatd").stat().st_uid == 10001


def test_the_environment_has_no_development_tools(program: Path) -> None:
    installed = {path.name.split("-")[0] for path in program.parents[1].glob("lib/python*/site-packages/*.dist-info")}
    assert "heartbeatd" in installed
    assert installed & {"pytest", "mypy", "ruff", "hypothesis", "pip"} == set()


def test_a_new_user_comes_to_a_first_run(program: Path, tmp_path: Path) -> None:
    """Without the checkout: `init`, `check`, `run`, and a run in the history."""
    folder = tmp_path / "first"
    assert run(program, "init", folder, folder=tmp_path).returncode == 0
    for words in ("check", "run --once", "run --for 5s"):
        ended = run(program, *words.split(), folder=folder)
        assert ended.returncode == 0, ended.stderr
    shown = run(program, "runs", folder=folder)
    assert (shown.returncode, "assistant" in shown.stdout) == (0, True), shown.stdout + shown.stderr


@pytest.mark.parametrize("command", ["systemd", "compose", "grafana"])
def test_the_installed_program_writes_the_same_files_as_the_checkout(command: str, program: Path, tmp_path: Path) -> None:
    of_wheel = run(program, "files", command, "--out", "wheel", folder=tmp_path)
    of_checkout = run(
        sys.executable, "-m", "scheduler", "files", command, "--out", "checkout", folder=tmp_path, PYTHONPATH=str(HOME)
    )
    assert (of_wheel.returncode, of_checkout.returncode) == (0, 0), of_wheel.stderr + of_checkout.stderr
    names = {str(path.relative_to(tmp_path / "wheel")) for path in (tmp_path / "wheel").rglob("*") if path.is_file()}
    assert names
    for name in names - {"secrets/alertmanager_token", "heartbeatd.service"}:  # a random token, the path of the program
        assert (tmp_path / "wheel" / name).read_bytes() == (tmp_path / "checkout" / name).read_bytes()


def test_the_installed_program_prints_every_page(program: Path, tmp_path: Path) -> None:
    listed = run(program, "docs", folder=tmp_path)
    topics = [line.split()[0] for line in listed.stdout.splitlines()[1:]]
    assert len(topics) == len([*USER_PAGES, HOME / "CHANGELOG.md"])
    assert run(program, "docs", "time", folder=tmp_path).stdout == (HOME / "docs/time.md").read_text("utf-8")
    wrong = run(program, "docs", "tmie", folder=tmp_path)
    assert (wrong.returncode, wrong.stderr) == (2, "heartbeatd: there is no page 'tmie'; did you mean time?\n")


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of installers that put their programs into folders of this test."""
    yield {
        "HOME": str(tmp_path),
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"),
        "PIPX_DEFAULT_PYTHON": sys.executable,
        "UV_TOOL_DIR": str(tmp_path / "uv"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
        "UV_PYTHON": sys.executable,
    }


@pytest.mark.parametrize("installer", ["pipx install", "uv tool install"])
def test_pipx_and_uv_install_the_program(installer: str, wheel: Path, tmp_path: Path, tools: dict[str, str]) -> None:
    name, *words = shlex.split(installer)
    path = required_programs.need(name)
    need_index(run(path, *words, wheel, folder=tmp_path, timeout=INSTALL_TIMEOUT, **tools))
    shown = run(tmp_path / "bin/heartbeatd", "docs", "money", folder=tmp_path)
    assert shown.stdout.startswith("# Cost\n"), shown.stderr
