"""The commands `files systemd`, `files compose` and `files grafana` write files that the programs concerned accept.

data/compose-spec.json is the schema of the Compose specification (github.com/compose-spec/compose-spec, Apache License 2.0) of
October 2021. No container is built or started here, because this needs a Docker daemon.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import required_programs
from checkout import HOME
from dockerfile_parse import DockerfileParser
from patience import PATIENCE
from ruamel.yaml import YAML

from scheduler.cli import shipped_files
from scheduler.cli.main import main

BESIDE_PYTHON = Path(sys.executable).parent


def write(command: str, folder: Path, *more: str) -> int:
    return main(["files", command, "--out", str(folder), *more])


def parse(file: Path) -> Any:
    return YAML(typ="safe", pure=True).load(file)


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `heartbeatd files compose`."""
    folder = tmp_path_factory.mktemp("box")
    assert write("compose", folder) == 0
    return folder


@pytest.fixture(scope="module")
def services(box: Path) -> dict[str, Any]:
    found: dict[str, Any] = parse(box / "compose.yaml")["services"]
    return found


# --- all commands -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["systemd", "compose", "grafana"])
def test_files_are_written_once_and_foreign_content_is_kept(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert write(command, tmp_path) == 0
    output = capsys.readouterr().out
    assert {f"{tmp_path}/{name}" for name in written(tmp_path)} == set(re.findall(r"^wrote (.*)$", output, re.MULTILINE))
    assert "\nnext:\n  " in output
    assert write(command, tmp_path) == 0
    assert "wrote" not in capsys.readouterr().out
    changed = min(
        path for path in tmp_path.rglob("*.*") if path.suffix in {".service", ".yaml", ".json"} and "config" not in path.parts
    )
    before = changed.read_text()
    changed.write_text("mine")
    assert write(command, tmp_path) == 2
    assert capsys.readouterr().err == f"heartbeatd: {changed} exists and differs; nothing was written; --force replaces it\n"
    assert write(command, tmp_path, "--force") == 0
    assert changed.read_text() == before


def test_force_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "heartbeatd.service").symlink_to(tmp_path / "precious")
    assert write("systemd", tmp_path / "out", "--force") == 0
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "out" / "heartbeatd.service").is_symlink()


def test_a_config_and_a_token_for_containers_are_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write("compose", tmp_path) == 0
    token = (tmp_path / "secrets/alertmanager_token").read_text()
    (tmp_path / "config/config.yaml").write_text("mine")
    assert write("compose", tmp_path, "--force") == 0
    assert (tmp_path / "secrets/alertmanager_token").read_text() == token
    assert (tmp_path / "config/config.yaml").read_text() == "mine"
    assert f"kept {tmp_path}/config/config.yaml\n" in capsys.readouterr().out


# --- systemd ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    assert write("systemd", tmp_path) == 0
    return tmp_path / "heartbeatd.service"


def test_the_unit_starts_this_installation(unit: Path) -> None:
    command = re.search(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    assert command is not None
    # systemd splits quoted words as a shell does
    assert shlex.split(command[1]) == [f"{BESIDE_PYTHON}/heartbeatd", "-c", "/etc/heartbeatd/config.yaml", "run"]


def test_the_unit_of_the_system_is_not_written_for_another_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for before, after in ((["-c", "mine.yaml"], []), ([], ["-c", "mine.yaml"])):
        assert main([*before, "files", "systemd", "--out", str(tmp_path / "units"), *after]) == 2
        advice = "write --user for one that runs mine.yaml, or leave out -c"
        assert capsys.readouterr().err == f"heartbeatd: this unit runs /etc/heartbeatd/config.yaml; {advice}\n"
    assert not (tmp_path / "units").exists()
    assert write("systemd", tmp_path / "units", "-c", "/etc/heartbeatd/config.yaml") == 0


def test_the_warning_about_home_folders_has_the_command_of_the_documentation() -> None:
    documented = (HOME / "docs/operations.md").read_text("utf-8")
    assert f"\n{shipped_files.INSTALL_FOR_ALL_USERS} ./heartbeatd\n" in documented
    # `test_installation` runs pipx with these two variables
    assert {"PIPX_HOME=/opt/pipx", f"PIPX_BIN_DIR={Path(shipped_files.PROGRAM).parent}"} <= set(
        shipped_files.INSTALL_FOR_ALL_USERS.split()
    )


def test_a_path_with_a_blank_or_an_apostrophe_is_quoted_for_systemd() -> None:
    assert shipped_files._quote_for_systemd("/home/o'brien/run") == '"/home/o\'brien/run"'
    assert shipped_files._quote_for_systemd("/srv/my apps/100%/run") == '"/srv/my apps/100%%/run"'
    assert shipped_files._quote_for_systemd("/usr/bin/run") == "/usr/bin/run"


@required_programs.needs("systemd-analyze")
def test_the_unit_of_a_user_starts_this_installation_with_the_config_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert write("systemd", tmp_path / "units", "--user") == 2
    assert (
        capsys.readouterr().err == "heartbeatd: there is no config.yaml; change to the folder of your config, or write -c FILE\n"
    )
    (tmp_path / "my 100%").mkdir()
    (tmp_path / "my 100%/config.yaml").touch()
    monkeypatch.setenv("PATH", '/home/anna/a "b" 5%/bin:/usr/bin')
    assert write("systemd", tmp_path / "units", "--user", "-c", "my 100%/config.yaml") == 0
    assert "systemctl --user enable --now heartbeatd" in capsys.readouterr().out
    unit = tmp_path / "units/heartbeatd.service"
    assert [path.name for path in unit.parent.iterdir()] == ["heartbeatd.service"]
    text = unit.read_text().replace("%%", "%")
    started = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert started is not None
    assert shlex.split(started[1]) == [f"{BESIDE_PYTHON}/heartbeatd", "-c", f"{tmp_path}/my 100%/config.yaml", "run"]
    programs = re.search(r"^Environment=(.*)$", text, re.MULTILINE)
    assert programs is not None
    assert shlex.split(programs[1]) == ['PATH=/home/anna/a "b" 5%/bin:/usr/bin']
    command = ["systemd-analyze", "verify", "--user", unit]
    monkeypatch.undo()
    verified = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    ours = [line for line in verified.stderr.splitlines() if "heartbeatd" in line]
    assert (verified.returncode, ours) == (0, []), verified.stderr


@required_programs.needs("systemd-analyze")
@pytest.mark.parametrize("comment", ["", "# "], ids=["with a credential", "as shipped"])
def test_systemd_verifies_the_unit_silently(unit: Path, comment: str) -> None:
    shipped = unit.read_text()
    assert "\n# LoadCredential=" in shipped and '"${file:$CREDENTIALS_DIRECTORY/anthropic_key}"' in shipped
    unit.write_text(shipped.replace("# LoadCredential=", f"{comment}LoadCredential="))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=PATIENCE, check=False)
    ours = [line for line in verified.stderr.splitlines() if "heartbeatd" in line]  # other units of this machine may have faults
    assert (verified.returncode, verified.stdout, ours) == (0, "", [])


@required_programs.needs("systemd-analyze")
def test_systemd_rates_the_unit_as_hardened(unit: Path) -> None:
    """The exposure is between 0 (confined) and 10 (a service without settings has 9.6)."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit]
    rated = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if "unrecognized option" in rated.stderr:
        pytest.skip("this systemd-analyze cannot rate a file")
    assert rated.returncode == 0, rated.stdout[-300:]


@required_programs.needs("systemd-analyze")
def test_systemd_sysusers_reads_the_user(unit: Path, tmp_path: Path) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    command = ["systemd-sysusers", "--dry-run", f"--root={tmp_path / 'root'}", unit.with_name("heartbeatd.sysusers")]
    read = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (read.returncode, "heartbeatd" in read.stderr) == (0, True), read.stderr


# --- containers ---------------------------------------------------------------------------------------------------------------


def test_the_compose_file_follows_the_schema(box: Path) -> None:
    schema = json.loads((HOME / "tests/data/compose-spec.json").read_text("utf-8"))
    jsonschema.Draft7Validator(schema).validate(parse(box / "compose.yaml"))


def test_every_mounted_file_exists(box: Path, services: dict[str, Any]) -> None:
    mounts = [mount.split(":")[0] for service in services.values() for mount in service.get("volumes", ())]
    named = parse(box / "compose.yaml")["volumes"]
    secrets = [secret["file"] for secret in parse(box / "compose.yaml")["secrets"].values()]
    for path in [mount for mount in mounts if mount not in named] + secrets + services["heartbeatd"]["env_file"]:
        assert (box / path).exists(), path


def test_all_files_can_be_read_by_the_users_of_the_containers(box: Path) -> None:
    for path in box.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o644 if path.is_file() else 0o700 if path.name == "secrets" else 0o755), path


def test_ports_are_published_on_this_machine_only(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_daemon_runs_without_privileges(box: Path, services: dict[str, Any]) -> None:
    daemon = services["heartbeatd"]
    assert (daemon["read_only"], daemon["cap_drop"], daemon["security_opt"]) == (True, ["ALL"], ["no-new-privileges:true"])
    steps = instructions(box)
    assert [value for name, value in steps if name == "USER"] == ["10001"]
    assert any(name == "HEALTHCHECK" for name, _ in steps)


def test_the_config_for_containers_is_accepted_with_the_settings_of_the_compose_file(
    box: Path, services: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in services["heartbeatd"]["environment"].items():
        monkeypatch.setenv(name, value.replace("$$", "$").replace("/run/secrets", str(box / "secrets")))
    monkeypatch.setenv("HEARTBEATD_SET__state", str(tmp_path / "heartbeatd.db"))
    assert main(["-c", str(box / "config/config.yaml"), "check", "--strict"]) == 0, capsys.readouterr().err


@required_programs.needs("promtool")
def test_prometheus_accepts_its_config_and_scrapes_the_daemon(box: Path) -> None:
    file = box / "prometheus/prometheus.yml"
    subprocess.run(["promtool", "check", "config", file], check=True, capture_output=True, timeout=PATIENCE)
    (job,) = parse(file)["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["heartbeatd:7857"]}]
    assert parse(file)["alerting"]["alertmanagers"][0]["static_configs"] == [{"targets": ["alertmanager:9093"]}]


@required_programs.needs("amtool")
def test_alertmanager_accepts_its_config_and_wakes_the_agent_of_the_config(box: Path) -> None:
    file = box / "alertmanager/alertmanager.yml"
    subprocess.run(["amtool", "check-config", file], check=True, capture_output=True, timeout=PATIENCE)
    (hook,) = parse(file)["receivers"][0]["webhook_configs"]
    (agent,) = parse(box / "config/config.yaml")["agents"]
    assert hook["url"] == f"http://heartbeatd:7857/api/v1/agents/{agent}/wake"


def test_grafana_reads_prometheus_of_the_compose_file(box: Path) -> None:
    (source,) = parse(box / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    for name in ("fleet", "agent", "operations"):
        assert (box / f"grafana/dashboards/{name}.json").read_text() == (HOME / f"grafana/dashboards/{name}.json").read_text()


def test_grafana_files_for_this_machine_are_the_files_of_the_checkout(tmp_path: Path) -> None:
    assert write("grafana", tmp_path) == 0
    for name in written(tmp_path) - {"kubernetes/prometheusrule.yaml"}:
        assert (tmp_path / name).read_bytes() == (HOME / "grafana" / name).read_bytes()


def instructions(box: Path) -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their values, in order."""
    parser = DockerfileParser(str(box / "Dockerfile"))
    return [(step["instruction"], step["value"]) for step in parser.structure]


def test_hadolint_finds_nothing_in_the_dockerfile(box: Path) -> None:
    linter = BESIDE_PYTHON / "hadolint"
    found = subprocess.run(
        [linter, "--no-color", box / "Dockerfile"], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_the_entry_point_and_the_health_check_of_the_image_are_commands_of_it(box: Path) -> None:
    steps = dict(instructions(box))
    assert (json.loads(steps["ENTRYPOINT"]), json.loads(steps["CMD"])) == (["heartbeatd"], ["run"])
    check = shlex.split(steps["HEALTHCHECK"].split("CMD", 1)[1].replace("[", "").replace("]", "").replace('", "', '" "'))
    compile(check[-1], "HEALTHCHECK", "exec")
