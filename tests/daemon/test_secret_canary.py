"""A secret in every place of the config that can have one never appears in any output, file or message of the daemon."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
from patience import PATIENCE
from servers.messages import text_answer
from servers.scripted import Act, Request, Server, raw, reply, reset
from test_daemon_models import Equipped, running

from scheduler.cli.main import main

pytestmark = [pytest.mark.process, pytest.mark.extras]  # models with tools and traces get secrets too

# The search is for the part that no escaping changes. Around it are characters that URLs, HTML and base64 change.
CORE = "Kanarienvogel7Zq9Xw3"
SECRET = f"k>~{CORE}?/+=&%:@'"
QUOTED = quote(SECRET, safe="")
PLAIN = f"{CORE}-_"  # for tokens of bots and webhooks, which have no other characters

HOW = ("200", "200-html", "301", "401", "401-html", "401-text", "429", "500", "garbled", "reset")
EXAMPLES = ("200", "401-html")


@dataclass
class Parrot(Server):
    """A server that refuses every request by the first part of its path and repeats its content in several encodings."""

    script: list[Act] = field(default_factory=list)

    def _next(self, request: Request) -> Act:
        with self._lock:
            self.requests.append(request)
        how, text = request.path.split("/")[1], "\n".join(spellings(request))
        status, _, form = how.partition("-")
        if form == "html":
            return reply(f"<html><body><pre>{text}</pre></body></html>".encode(), int(status), "text/html")
        if form == "text":
            return reply(text.encode(), int(status), "text/plain")
        if how == "200":
            return text_answer("HEARTBEAT_OK")
        if how == "garbled":
            return raw(b"HTTP/1.1 " + text.encode())
        if how == "reset":
            return reset()
        words = {"error": {"message": text}, "message": text, "description": text, "ok": False, "error_code": int(status)}
        return reply(words, int(status), location=f"/{quote(text)}", retry_after=quote(text))


def spellings(request: Request) -> Iterator[str]:
    """The head of a request as servers repeat it: unchanged, decoded, encoded twice, in base64."""
    credentials = [request.headers.get(name, "") for name in ("authorization", "x-api-key", "x-key")]
    for word in (request.path, *filter(None, credentials)):
        yield from (word, unquote(word), quote(word, safe=""), quote(word).lower(), b64encode(word.encode()).decode())
        if word.startswith("Basic "):
            yield b64decode(word.removeprefix("Basic ")).decode()


def needles() -> list[bytes]:
    """The secret in plain text, in hex, and in base64 at any offset."""
    found = {CORE, CORE.encode().hex()}
    for before in range(3):
        text = b64encode(b"\0" * before + CORE.encode()).decode().rstrip("=")
        whole = text[(0, 2, 3)[before] : -1 if (before + len(CORE)) % 3 else None]
        found |= {whole, whole.replace("+", "-").replace("/", "_")}
    return [needle.lower().encode() for needle in found]


NEEDLES = needles()


def leaks(evidence: bytes) -> list[str]:
    """The surroundings of each place where the secret appears."""
    known, pattern = evidence.lower(), re.compile(b"|".join(map(re.escape, NEEDLES)))
    return [evidence[max(hit.start() - 150, 0) : hit.end() + 30].decode(errors="replace") for hit in pattern.finditer(known)]


@pytest.mark.parametrize("spell", [
    lambda secret: secret,
    str.upper,
    partial(quote, safe=""),
    lambda secret: json.dumps({"x": secret}),
    lambda secret: b64encode(secret.encode()).decode(),
    lambda secret: b64encode(f"u:{secret}".encode()).decode(),
    lambda secret: b64encode(f"xy:{secret}:z".encode()).decode(),
    lambda secret: b64encode(f"Bearer {secret}".encode()).decode(),
])  # fmt: skip
def test_the_search_finds_the_secret_in_every_encoding(spell: Callable[[str], str]) -> None:
    assert leaks(f"before {spell(SECRET)} after".encode())


def config(server: Server, ways: Sequence[str] = HOW) -> dict[str, Any]:
    """A config with a secret in every possible place, and these kinds of refusals for each."""
    host = f"127.0.0.1:{server.port}"
    lent = f"http://u:${{QUOTED}}@{host}"
    providers = {
        **{
            f"m-{how}": {"kind": "anthropic", "api_key": "${KEY}", "base_url": f"http://{host}/{how}/${{QUOTED}}"} for how in ways
        },
        **{f"o-{how}": {"kind": "openai", "api_key": "${file:key.txt}", "base_url": f"http://{host}/{how}"} for how in ways},
        **{f"l-{how}": {"kind": "openai", "base_url": f"{lent}/{how}/${{QUOTED}}"} for how in ways},
        "m-literal": {"kind": "anthropic", "api_key": SECRET, "base_url": f"http://{host}/401"},
    }
    posts = {
        **{f"h-{how}": {"url": f"{lent}/{how}/${{QUOTED}}?t=${{QUOTED}}", "headers": {"X-Key": "${KEY}"}} for how in ways},
        **{f"b-{how}": {"url": f"http://{host}/{how}", "headers": {"Authorization": "Bearer ${KEY}"}} for how in ways},
    }
    channels = {
        **{
            f"w-{how}": {"kind": "webhook", "url": f"{lent}/{how}/${{QUOTED}}?t=${{QUOTED}}", "allow_private": True}
            for how in ways
        },
        **{f"t-{how}": _chat("tgram://12:${PLAIN}/-100", f"{lent}/{how}/${{QUOTED}}") for how in ways},
        **{f"d-{how}": _chat("discord://42/${PLAIN}", f"{lent}/{how}/${{QUOTED}}") for how in ways},
        "private": {"kind": "webhook", "url": f"{lent}/${{QUOTED}}"},
        "gone": {"kind": "webhook", "url": "http://u:${QUOTED}@127.0.0.1:9/${QUOTED}", "allow_private": True},
        "foreign": f"json://u:${{QUOTED}}@{host}/401/${{QUOTED}}",
    }
    lending = {"TOKEN": "${KEY}"}
    agents = {
        **{
            name: {"runner": {"kind": part["kind"], "provider": name}, "model": "claude-haiku-5-5"}
            for name, part in providers.items()
        },
        **{name: {"runner": {"kind": "http", **part}} for name, part in posts.items()},
        **{
            f"s-{how}": _tooled({"url": f"{lent}/{how}/${{QUOTED}}?t=${{QUOTED}}", "headers": {"X-Key": "${KEY}"}})
            for how in ways
        },
        "speaks": _tooled({"command": ["sh", "-c", 'env >&2; echo "$TOKEN"; exit 3'], "env": lending}),
        "names": {
            "runner": _command("cut -z -d= -f1 /proc/self/environ | tr '\\0' ' '; echo $TOKEN; env | base64 -w 0", lending),
            "heartbeat": {"deliver": list(channels)},
        },
        "fails": {"runner": _command("printf 'no entry for %s' \"$TOKEN\" >&2; env >&2; exit 3", lending)},
        "reports": {
            "runner": _command("""printf '{"is_error": true, "result": "no: %s", "log": "%s"}' "$PLAIN" "$PLAIN" """, PLAINLY)
        },
        "sleeps": {"runner": _command("exec sleep 600", lending)},
        "lost": {"runner": {"kind": "command", "argv": ["./no-such-program"], "env": lending}},
        "raises": {"runner": {"kind": "python", "call": "agent:ask"}},
        "within": {"runner": {"kind": "python", "call": "agent:fail", "in_process": True}},
    }
    return {
        "state": "state/h.db",
        "env_file": ".env",
        "deadman": {"url": f"{lent}/401-html/${{QUOTED}}?t=${{QUOTED}}", "every": "1s", "allow_private": True},
        "server": {"listen": "127.0.0.1:0", "tokens": {"bot": {"value": "${KEY}", "may": ["read", "wake", "operate"]}}},
        "limits": {"concurrency": 100, "wake_gap": "1s", "min_interval": "1m", "shutdown_grace": "0s"},
        "prices": {"claude-haiku-5-5": {"input": 1.0, "output": 5.0}},
        "providers": providers,
        "channels": channels,
        "defaults": {
            "workspace": ".",
            "heartbeat": {"interval": "1h", "stagger": "0s", "retries": 0, "checklist": "- look\n", "deliver": "log"},
        },
        "agents": agents,
        "cron": {
            "bare": {"schedule": "@reboot", "command": "env"},
            "lent": {"schedule": "@reboot", "command": "env; env >&2; exit 3", "env": lending, "wake_heartbeat": "names"},
            "gone": {"schedule": "@reboot", "command": ["./no-such-program"], "env": lending},
            "stays": {"schedule": "@reboot", "command": "exec sleep 600", "env": lending},
        },
    }


PLAINLY = {"PLAIN": "${PLAIN}"}


def yaml(config: dict[str, Any]) -> str:
    """The config as text with a line for each part. JSON is YAML."""
    lines = [
        f"{key}:\n" + "".join(f"  {json.dumps(name)}: {json.dumps(part)}\n" for name, part in value.items())
        if isinstance(value, dict)
        else f"{key}: {value}\n"
        for key, value in config.items()
    ]
    return "".join(lines)


def _chat(url: str, base: str) -> dict[str, Any]:
    return {"url": url, "base_url": base, "allow_private": True}


def _tooled(server: dict[str, Any]) -> dict[str, Any]:
    """An agent whose model may use a tool of this server."""
    tools = {"mcp": [{"name": "s", "allow": "t", **server}]}
    return {"runner": {"kind": "anthropic", "provider": "m-200", "tools": tools}, "model": "claude-haiku-5-5"}


def _command(script: str, env: dict[str, str]) -> dict[str, Any]:
    return {"kind": "command", "argv": ["sh", "-c", f"cat > /dev/null; {script}"], "env": env}


AGENT = """\
import os

def ask(run):
    raise RuntimeError(dict(os.environ))

def fail(run):
    raise RuntimeError(f"{run['agent']} has failed")
"""
PAGES = ("/metrics", "/healthz", "/readyz", *(f"/api/v1/{name}" for name in ("status", "agents", "cron", "runs?limit=1000")))
STAY = {"sleeps", "stays"}  # runs until the end of the test


class Bird(Equipped):
    """A daemon that gets the secret from its environment, from an env_file and from a file."""

    def __init__(self, folder: Path, server: Server, form: str, ways: Sequence[str] = HOW) -> None:
        (folder / "agent.py").write_text(AGENT)
        (folder / "key.txt").write_text(SECRET + "\n")
        (folder / ".env").write_text(f"QUOTED={QUOTED}\nPLAIN={PLAIN}\n")
        (folder / ".env").chmod(0o600)
        debugging = {"ANTHROPIC_LOG": "debug", "HTTPX_LOG_LEVEL": "debug", "PYTHONASYNCIODEBUG": "1"}
        options = ("--log-level", "debug", "--log-format", form)
        self.declared = config(server, ways)
        self.examples = folder / "examples.yaml"  # one entry of each form. The others differ only in what their server answers
        self.examples.write_text(yaml(config(server, EXAMPLES)))
        super().__init__(folder, yaml(self.declared), {"KEY": SECRET, **debugging}, options)

    def start(self) -> None:
        """Log to a file, because a full pipe that is not read would block the daemon."""
        log = self.folder / "daemon.log"
        with log.open("wb") as end:
            command = [sys.executable, "-m", "scheduler", "-c", str(self.config), "run", *self.options]
            self.process = subprocess.Popen(command, cwd=self.folder, env=self.environ, stderr=end, stdin=subprocess.DEVNULL)
        self.process.stderr = log.open("rb")
        self.wait_until(lambda: "started" in log.read_text() and (self.folder / "state" / "daemon.json").exists())

    def rows(self) -> dict[str, dict[str, Any]]:
        """The last run record of each entry."""
        return {row["name"]: row for row in reversed(self.runs())}

    def is_through(self) -> bool:
        """Whether every entry has run once and every channel was tried."""
        closed = {name for name, row in self.rows().items() if row["result"]}
        tried = set(re.findall(r'deliveries_total{channel="([^"]+)",result="\w+"} [1-9]', self.metrics()))
        return closed >= self.entries() - STAY and tried >= self.declared["channels"].keys()

    def entries(self) -> set[str]:
        return {*self.declared["agents"], *self.declared["cron"]}

    def is_example(self, name: str) -> bool:
        """Whether the entry is not only one of several that differ in what their server answers."""
        return name.partition("-")[2] in ("", "401-html", "literal")

    def get(self, path: str) -> bytes:
        """The answer of the HTTP API to a request with the token."""
        address = urlsplit(json.loads((self.folder / "state" / "daemon.json").read_text())["url"]).netloc
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {SECRET}"})
            answer = connection.getresponse()
            assert answer.status == 200
            return answer.read()
        finally:
            connection.close()

    def family(self) -> Iterator[Path]:
        """The /proc folders of the daemon's descendants."""
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        for pid in parents:
            ancestor = pid
            while ancestor in parents and ancestor != self.process.pid:
                ancestor = parents[ancestor]
            if ancestor == self.process.pid != pid:
                yield Path("/proc") / str(pid)


def command_output(*arguments: str) -> bytes:
    """The output of a command run in this process."""
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        main(arguments)
    return output.getvalue().encode()


def broken(good: str) -> Iterator[str]:
    """The config with every kind of error at the secrets."""
    yield good.replace("${QUOTED}", "${KEY}").replace("Bearer ${KEY}", "${KEY}\\n")
    literal = good.replace("${KEY}", SECRET).replace("${QUOTED}", QUOTED).replace("${PLAIN}", PLAIN)
    yield literal.replace('"url"', '"urll"').replace('"api_key"', '"apikey"').replace('"value"', '"valu"')
    yield literal.replace(f'"{SECRET}"', f'["{SECRET}"]')
    yield literal.replace("tgram://", "tgrm://").replace("http://", "htp://").replace("discord://", "discord:")
    yield literal.replace(f'"TOKEN": "{SECRET}"', f'"TOKEN={SECRET}"')
    yield literal.replace(f'"X-Key": "{SECRET}"', f'"X-Key={SECRET}"')
    yield literal[: literal.index(CORE) + len(CORE)]
    yield literal.replace(f'"{SECRET}"', SECRET)
    yield literal.replace('"TOKEN": "', '"TOKEN": "\\0')


def outside(it: Bird) -> Iterator[tuple[str, bytes]]:
    """All output of the HTTP API and of the commands while the daemon runs."""
    for path in PAGES:
        yield path, it.get(path)
    for row in it.runs():  # `show` prints what runs/ID has
        yield "runs/ID", it.get(f"/api/v1/runs/{row['id']}")
        if it.is_example(row["name"]):
            shown = command_output("-c", str(it.config), "show", str(row["id"]))
            assert b"started by" in shown
            yield "show", shown
    for command in ("check", "status", "runs", "doctor", "reload", "ping"):
        done = it.run_command(command)
        yield command, (done.stdout + done.stderr).encode()
    for name in filter(it.is_example, it.entries()):
        effective = command_output("-c", str(it.examples), "check", "--effective", name)
        assert b"built in" in effective
        yield f"check --effective {name}", effective


def refusals(it: Bird) -> Iterator[tuple[str, bytes]]:
    """The error messages for a broken config and a broken env_file."""
    good = it.examples.read_text()
    for index, bad in enumerate(broken(good)):
        assert bad != good
        it.examples.write_text(bad)
        output = command_output("-c", str(it.examples), "check")
        assert output.count(b"\n") > 0
        yield f"check of fault {index}", output
        yield f"json of fault {index}", command_output("-c", str(it.examples), "check", "--format", "json")
    good = it.config.read_text()
    it.config.write_text(next(broken(good)))
    for command in ("reload", "doctor", "run"):
        done = it.run_command(command)
        assert done.returncode
        yield f"{command} of a fault", (done.stdout + done.stderr).encode()
    it.config.write_text(good)
    for line in (SECRET, f"KEY {SECRET}", f"{QUOTED}={QUOTED}"):
        (it.folder / ".env").write_text(line)
        done = it.run_command("reload")
        assert done.returncode == 2
        yield f"reload with an env_file that holds {line}", (done.stdout + done.stderr).encode()


def variables(child: Path) -> Iterator[tuple[str, bytes]]:
    """The environment of a child."""
    for pair in (child / "environ").read_bytes().split(b"\0"):
        name, _, value = pair.partition(b"=")
        yield name.decode(), value


def kept(it: Bird) -> list[tuple[str, bytes]]:
    """The content of every file, including the log and the database, except the config and the sources of its secrets."""
    sources = {it.config, it.examples, it.folder / ".env", it.folder / "key.txt"}
    return [(path.name, path.read_bytes()) for path in it.folder.rglob("*") if path.is_file() and path not in sources]


def leaking(evidence: list[tuple[str, bytes]]) -> dict[str, list[str]]:
    """The pieces of evidence that contain the secret, with its surroundings."""
    return {name: hits for name, content in evidence if (hits := leaks(content))}


def check_everyone_got_and_repeated_it(requests: Sequence[Request], rows: Sequence[dict[str, Any]]) -> None:
    """Without this the tests could not fail: every recipient got the secret in some encoding, and repeated it in its refusal."""
    assert {request.path.split("/")[1] for request in requests} == set(HOW)
    assert all(leaks("\n".join(spellings(request)).encode()) for request in requests)
    assert len(requests) >= len(HOW) * 8
    assert any("PATH" in row["error"] for row in rows if row["name"] == "raises")
    assert any("TOKEN" in (row["text"] or "") for row in rows if row["name"] == "names")


@pytest.fixture
def server() -> Iterator[Parrot]:
    with Parrot() as parrot:
        yield parrot


def test_a_secret_appears_in_no_output_and_in_no_file(tmp_path: Path, server: Parrot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", SECRET)  # for the commands that run in this process
    with running(it := Bird(tmp_path, server, "text")):
        it.wait_until(it.is_through)
        check_everyone_got_and_repeated_it(server.requests[:], it.runs())
        evidence = [*outside(it), *refusals(it), *kept(it)]
        kin = list(it.family())
        lent = {name for child in kin for name, value in variables(child) if leaks(value)}
        argued = [(f"{child}/cmdline", (child / "cmdline").read_bytes()) for child in kin]
        it.stop()
    assert leaking(evidence + argued + kept(it)) == {}
    assert len(kin) >= len(STAY)
    assert lent == {"TOKEN"}


def test_a_secret_does_not_appear_in_a_json_log(tmp_path: Path, server: Parrot) -> None:
    """With fewer kinds of answers, because the format of the log is the same for all of them."""
    with running(it := Bird(tmp_path, server, "json", ("200", "401", "401-html", "garbled"))):
        it.wait_until(it.is_through)
        it.config.write_text(next(broken(it.config.read_text())))
        assert it.run_command("reload").returncode == 2
        it.stop()
    log = (tmp_path / "daemon.log").read_text()
    assert {json.loads(line)["event"] for line in log.splitlines()} >= {"run", "deliver", "breaker", "reload_refused"}
    assert leaking(kept(it)) == {}
