"""Reads the files that come with heartbeatd: prints the documentation, and writes files for services, containers and Grafana."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from textwrap import indent
from urllib.parse import unquote, urlsplit

import click
from click.shell_completion import get_completion_class

from scheduler import __version__
from scheduler.cli.options import DEFAULT_CONFIG
from scheduler.cli.output import format_table
from scheduler.config.file.message_parts import did_you_mean
from scheduler.config.settings import templates
from scheduler.model.expected_error import InputError

FURTHER_PAGES = {"readme": "README.md", "changes": "CHANGELOG.md", "grafana": "grafana/README.md"}
CHECKOUT = Path(__file__).parents[2]  # without a wheel, the files are in the top-level folders of the checkout

PROGRAM = "/usr/local/bin/heartbeatd"  # the path in the shipped unit
SERVICE_CONFIG = Path("/etc/heartbeatd/config.yaml")  # likewise
# pipx 1.1.0 of Debian 12 has no option --global
INSTALL_FOR_ALL_USERS = "sudo env PIPX_HOME=/opt/pipx PIPX_BIN_DIR=/usr/local/bin pipx install"
HIDDEN_FOLDERS = ("/home/", "/root/", "/run/user/")  # `ProtectHome=yes` of the unit hides these

GRAFANA_FOLDERS = ("alertmanager", "dashboards", "kubernetes", "prometheus", "provisioning")
PROMETHEUS_RULE = """\
# The rules of rules.yml for the Prometheus Operator.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: heartbeatd
  labels:
    app.kubernetes.io/name: heartbeatd
spec:
"""

VARIABLE = "_HEARTBEATD_COMPLETE"  # click reads it: the script calls heartbeatd with this variable to get the completions


def locate(path: str) -> Traversable:
    """A shipped file or folder by its path in the checkout, such as `docs/time.md`. It may not exist."""
    installed = files("scheduler").joinpath("shipped")
    return (installed if installed.is_dir() else CHECKOUT).joinpath(*PurePosixPath(path).parts)


def read_text(path: str) -> str:
    """The text of a shipped file."""
    return locate(path).read_text("utf-8")


def list_files(folder: str) -> Iterator[str]:
    """The paths of all files in a shipped folder and its subfolders, sorted."""
    for child in sorted(locate(folder).iterdir(), key=lambda child: child.name):
        path = f"{folder}/{child.name}"
        if child.is_dir():
            yield from list_files(path)
        else:
            yield path


def print_page(topic: str | None) -> None:
    """Print a page of the documentation, or the titles of all pages. Raises InputError for an unknown page."""
    pages = {PurePosixPath(path).stem: path for path in list_files("docs") if path.endswith(".md")} | FURTHER_PAGES
    if topic is None:
        click.echo(format_table(("TOPIC", "TITLE"), [(name, _title(path)) for name, path in sorted(pages.items())]))
        return
    name = topic.removesuffix(".md").lower()
    if name not in pages:
        raise InputError(f"there is no page {topic!r}{did_you_mean(name, pages) or '; `heartbeatd docs` lists them'}")
    click.echo(read_text(pages[name]), nl=False)


def _title(path: str) -> str:
    return read_text(path).split("\n", 1)[0].removeprefix("# ")


def write_service_files(folder: Path, force: bool, for_user: bool, path: Path) -> None:
    """Write the systemd unit of this installation, and print the commands that install it.

    The unit `for_user` runs the config at `path` (InputError: there is none), and finds the programs that this shell finds. The
    other one runs the config in /etc (InputError: another one was named).
    """
    program = str(Path(sys.executable).parent / "heartbeatd")  # of this installation
    if for_user:
        _write_user_service(folder, force, program, path)
        return
    if path not in (DEFAULT_CONFIG, SERVICE_CONFIG):
        raise InputError(f"this unit runs {SERVICE_CONFIG}; write --user for one that runs {path}, or leave out -c")
    _write(
        folder,
        {
            "heartbeatd.service": read_text("packaging/heartbeatd.service").replace(PROGRAM, _quote_for_systemd(program)),
            "heartbeatd.sysusers": read_text("packaging/heartbeatd.sysusers"),
        },
        force=force,
    )
    place = shlex.quote(str(folder))
    if program.startswith(HIDDEN_FOLDERS):
        click.echo(
            f"warning: the service cannot run {program}, because it has no access to home folders; install heartbeatd for all"
            f" users with: {INSTALL_FOR_ALL_USERS} {shlex.quote(_own_source())};"
            f" then run: {PROGRAM} files systemd --force --out {place}",
            err=True,
        )
    _print_next(
        f"sudo install -m 644 {place}/heartbeatd.sysusers /etc/sysusers.d/heartbeatd.conf",
        "sudo systemd-sysusers",
        f"sudo {shlex.quote(program)} init /etc/heartbeatd",
        "echo 'state: /var/lib/heartbeatd/heartbeatd.db' | sudo tee -a /etc/heartbeatd/config.yaml",
        f"sudo install -m 644 {place}/heartbeatd.service /etc/systemd/system/",
        "sudo systemctl daemon-reload",
        "sudo systemctl enable --now heartbeatd",
        "journalctl -u heartbeatd -f",
    )


def _write_user_service(folder: Path, force: bool, program: str, path: Path) -> None:
    if not path.is_file():
        raise InputError(f"there is no {path}; change to the folder of your config, or write -c FILE")
    command = f"{_quote_for_systemd(program)} -c {_quote_for_systemd(str(path.absolute()))}"
    programs = _escape_for_systemd(os.environ.get("PATH", os.defpath))
    text = read_text("packaging/heartbeatd.user.service").replace(f"{PROGRAM} -c config.yaml", command)
    _write(folder, {"heartbeatd.service": text.replace('"PATH=/usr/bin"', f'"PATH={programs}"')}, force=force)
    _print_next(
        "systemctl --user daemon-reload",
        "systemctl --user enable --now heartbeatd",
        "loginctl enable-linger",
        "journalctl --user -u heartbeatd -f",
    )


def write_container_files(folder: Path, force: bool) -> None:
    """Write the files for containers. Those of the user are only written the first time."""
    shipped = {path.removeprefix("packaging/compose/"): path for path in list_files("packaging/compose")}
    shipped |= {path: path for part in ("dashboards", "provisioning/dashboards") for path in list_files(f"grafana/{part}")}
    shipped["prometheus/rules.yml"] = "grafana/prometheus/rules.yml"
    _write(
        folder,
        {path: read_text(source) for path, source in shipped.items()},
        force=force,
        first={
            "secrets/alertmanager_token": secrets.token_urlsafe(32) + "\n",
            "secrets/heartbeatd.env": "# Variables of config.yaml, one NAME=value in each line\n",
            **{f"config/{path}": text for path, text in templates.STARTER_FILES.items()},
        },
    )
    (folder / "secrets").chmod(0o700)  # the files in it are read by users of the containers
    wheel = f"pip wheel --no-deps --wheel-dir wheels {shlex.quote(_own_source())}"
    _print_next(
        f"cd {shlex.quote(str(folder))}", wheel, "docker compose up --detach", "docker compose exec heartbeatd heartbeatd status"
    )


def write_monitoring_files(folder: Path, force: bool) -> None:
    """Write the dashboards, and the files for Prometheus and Alertmanager."""
    shipped = [path for part in GRAFANA_FOLDERS for path in list_files(f"grafana/{part}")]
    texts = {path.removeprefix("grafana/"): read_text(path) for path in shipped}
    texts["kubernetes/prometheusrule.yaml"] = PROMETHEUS_RULE + indent(texts["prometheus/rules.yml"], "  ")
    _write(folder, texts, force=force)
    place = shlex.quote(str(folder))
    _print_next(
        f"prometheus --config.file={place}/prometheus/prometheus.yml",
        f"sudo cp -r {place}/provisioning /etc/grafana/",
        f"sudo install -D -m 644 -t /var/lib/grafana/dashboards/heartbeatd {place}/dashboards/*.json",
        "sudo systemctl restart grafana-server",
    )


def print_completion(shell: str) -> None:
    """Print the script of click that completes the commands in a shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.get_current_context().find_root().command, {}, "heartbeatd", VARIABLE).source())


def print_schema() -> None:
    """Print the JSON schema of config.yaml."""
    from scheduler.config.keys.models import config_schema  # the other commands need no model of the config

    click.echo(json.dumps(config_schema(), indent=2))


def _write(folder: Path, texts: Mapping[str, str], *, force: bool, first: Mapping[str, str] | None = None) -> None:
    """Write files, and print the path of each. Those in `first` are only written if they do not exist.

    Raises InputError, before anything is written, if a file exists with another content and `force` is not set.
    """
    files = {folder / path: text for path, text in texts.items()}
    for path, text in files.items():
        if os.path.lexists(path) and not force and not _has_text(path, text):
            raise InputError(f"{path} exists and differs; nothing was written; --force replaces it")
    of_user = {folder / path: text for path, text in (first or {}).items()}
    for path, text in (files | of_user).items():
        if path in of_user and os.path.lexists(path):
            click.echo(f"kept {path}")
        elif _has_text(path, text):
            click.echo(f"unchanged {path}")
        else:
            _replace(path, text)
            click.echo(f"wrote {path}")


def _has_text(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def _quote_for_systemd(program: str) -> str:
    """A path as systemd reads it in ExecStart (systemd.service(5), command lines), quoted if it has a blank or an apostrophe."""
    escaped = _escape_for_systemd(program).replace("$", "$$")
    return f'"{escaped}"' if " " in program or "'" in program else escaped


def _escape_for_systemd(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _replace(path: Path, text: str) -> None:
    """Write a file with mode 0644, whatever the umask is: the users of the service and of the containers read it."""
    missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir()
        folder.chmod(0o755)
    path.unlink(missing_ok=True)  # writes no other file through a link
    path.write_text(text, "utf-8")
    path.chmod(0o644)


def _print_next(*lines: str) -> None:
    click.echo("next:")
    for line in lines:
        click.echo(f"  {line}")


def _own_source() -> str:
    """The requirement from which pip can build a wheel of this version: a folder, file or URL, or the name with the version."""
    try:
        recorded = distribution("heartbeatd").read_text("direct_url.json")  # absent after an installation from an index
    except PackageNotFoundError:
        recorded = None
    url = json.loads(recorded)["url"] if recorded else ""
    if url.startswith("file://"):
        return unquote(urlsplit(url).path)
    return f"heartbeatd @ {url}" if url else f"heartbeatd=={__version__}"
