"""The config over HTTP: shown without secrets, and edited value by value, by those who may."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from web_daemon import Reply, WebDaemon

from scheduler.config.file.text_editing import nest_value
from scheduler.engine.config_reload import changed_lines

CONFIG = """\
timezone: UTC   # for all
server: {listen: "127.0.0.1:0", tokens: {
  reader: {value: "reader-token-with-enough-bits-in-it", may: [read]},
  editor: {value: "editor-token-with-enough-bits-in-it", may: [read, edit]},
  self: {value: "self-token-with-enough-bits-in-it-11", may: [read, edit], agents: [ops]}}}
agents:
  ops:                                    # watches the disk
    runner: {kind: command, argv: [agent, "--token=abcdefgh12345678"], env: {KEY: "sk-very-secret-key-1"}}
    heartbeat:
      interval: 30m                       # twice an hour
      stagger: 0s
      checklist: "- look\\n"
      deliver: log
  web: &web
    runner: {kind: command, argv: [agent]}
    heartbeat: {interval: 30m, stagger: 0s, checklist: "- look\\n", deliver: log}
  copy: *web
cron:
  measure: {every: 6h, command: measure}
"""
TOKENS = {
    "reader": "reader-token-with-enough-bits-in-it",
    "editor": "editor-token-with-enough-bits-in-it",
    "self": "self-token-with-enough-bits-in-it-11",
}
OPS = "/api/v1/agents/ops/config"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WebDaemon]:
    with WebDaemon(tmp_path, CONFIG) as running:
        yield running


def version(daemon: WebDaemon) -> str:
    return hashlib.sha256(daemon.config.read_bytes()).hexdigest()


def patch(daemon: WebDaemon, path: str, changes: dict[str, Any], token: str = "editor", **more: Any) -> Reply:
    body = {"changes": changes, "hash": version(daemon)} | more
    return daemon.send("PATCH", path, {key: value for key, value in body.items() if value is not None}, TOKENS[token])


def test_an_edit_is_written_and_applied(daemon: WebDaemon) -> None:
    reply = patch(daemon, OPS, {"heartbeat": {"interval": "1h"}})
    assert (reply.status, reply.data["written"], reply.data["hash"]) == (200, True, version(daemon))
    assert daemon.config.read_text() == CONFIG.replace(
        "interval: 30m                       #", "interval: 1h                        #"
    )
    assert reply.data["diff"] == [
        "@@ -10 +10 @@",
        "-      interval: 30m                       # twice an hour",
        "+      interval: 1h                        # twice an hour",
    ]
    assert [line.split(" ")[:2] for line in reply.data["lines"]] == [["agent/ops:", "heartbeat.interval"]]
    assert daemon.settings.heartbeats["ops"].interval.total_seconds() == 3600


def test_the_record_of_changes_names_the_token(daemon: WebDaemon) -> None:
    patch(daemon, OPS, {"heartbeat": {"interval": "1h"}}, "self")
    changed = daemon.do(lambda: daemon.world.store.connection.execute("select actor from config_event").fetchall())
    assert [row[0] for row in changed][-1] == "token self"


def test_the_diff_has_every_changed_line_also_one_that_looks_like_its_head() -> None:
    assert changed_lines("a: 1\n-- b\n", "a: 1\n") == ("@@ -2 +1,0 @@", "--- b")
    assert changed_lines("a: 1\n", "a: 1\n") == ()


def test_the_same_edit_again_changes_nothing(daemon: WebDaemon) -> None:
    patch(daemon, OPS, {"heartbeat": {"interval": "1h"}})
    before = daemon.config.stat()
    reply = patch(daemon, OPS, {"heartbeat": {"interval": "1h"}})
    assert (reply.data["written"], reply.data["diff"], reply.data["lines"]) == (False, [], ["nothing changed"])
    assert (daemon.config.stat().st_ino, daemon.config.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_dry_run_only_shows_the_change(daemon: WebDaemon) -> None:
    reply = patch(daemon, OPS, {"heartbeat": {"interval": "1h"}}, dry_run=True)
    assert (reply.data["written"], len(reply.data["diff"]), len(reply.data["lines"])) == (False, 3, 1)
    assert daemon.config.read_text() == CONFIG
    assert daemon.settings.heartbeats["ops"].interval.total_seconds() == 1800


def test_jobs_and_top_level_values_can_be_changed_too(daemon: WebDaemon) -> None:
    assert patch(daemon, "/api/v1/cron/measure/config", {"every": "12h"}).data["written"] is True
    assert patch(daemon, "/api/v1/config", {"timezone": "Europe/Berlin", "limits": {"concurrency": 2}}).data["written"] is True
    assert daemon.config.read_text() == CONFIG.replace("UTC   #", "Europe/Berlin #").replace("6h", "12h") + (
        "limits: {concurrency: 2}\n"
    )


def test_the_edit_of_an_older_version_is_refused(daemon: WebDaemon) -> None:
    read = version(daemon)
    daemon.config.write_text(CONFIG + "# another editor was here\n")
    reply = patch(daemon, OPS, {"heartbeat": {"interval": "1h"}}, hash=read)
    assert (reply.status, reply.code) == (412, "changed")
    assert "interval: 1h" not in daemon.config.read_text()


def test_a_token_that_may_not_reload_applies_no_changes_of_others(daemon: WebDaemon) -> None:
    daemon.config.write_text(pending := CONFIG.replace("every: 6h", "every: 7h"))
    reply = patch(daemon, OPS, {"heartbeat": {"interval": "1h"}})
    assert (reply.status, daemon.config.read_text()) == (409, pending), reply.data


def test_an_edit_without_a_version_is_refused(daemon: WebDaemon) -> None:
    assert patch(daemon, OPS, {"heartbeat": {"interval": "1h"}}, hash=None).status == 428
    reply = patch(daemon, OPS, {"heartbeat": {"interval": "1h"}}, hash="new")
    assert (reply.status, "GET the config" in reply.data["error"]["message"]) == (400, True)


def test_changes_that_are_nested_hundreds_of_levels_deep_are_rejected(daemon: WebDaemon) -> None:
    for token in ("editor", "reader"):
        reply = patch(daemon, OPS, nest_value(["heartbeat"] * 400, 1), token)
        assert (reply.status, reply.data["error"]["message"]) == (400, "changes: these are nested too deeply")


def test_a_version_in_if_match_is_enough(daemon: WebDaemon) -> None:
    body = {"changes": {"heartbeat": {"interval": "1h"}}}
    reply = daemon.send("PATCH", OPS, body, TOKENS["editor"], {"If-Match": f'"{version(daemon)}"'})
    assert reply.data["written"] is True


def test_errors_of_an_edit_have_line_and_column_and_write_nothing(daemon: WebDaemon) -> None:
    reply = patch(daemon, OPS, {"heartbeat": {"interval": "1 fortnight"}})
    assert reply.status == 422
    (error,) = reply.data["errors"]
    assert (error["line"], error["path"]) == (10, "agents.ops.heartbeat.interval")
    assert daemon.config.read_text() == CONFIG


def test_an_edit_that_breaks_the_reference_of_another_entry_is_refused(daemon: WebDaemon) -> None:
    assert patch(daemon, "/api/v1/cron/measure/config", {"wake_heartbeat": ["ops"]}).status == 200
    before = daemon.config.read_text()
    reply = patch(daemon, "/api/v1/config", {"agents": {"ops": None}})
    paths = [error["path"] for error in reply.data["errors"]]
    assert (reply.status, paths) == (422, ["server.tokens.self.agents[0]", "cron.measure.wake_heartbeat[0]"])
    assert daemon.config.read_text() == before


@pytest.mark.parametrize(("name", "line"), [("web", 14), ("copy", 17)])
def test_a_value_behind_an_anchor_is_refused_with_its_line(daemon: WebDaemon, name: str, line: int) -> None:
    reply = patch(daemon, f"/api/v1/agents/{name}/config", {"heartbeat": {"interval": "1h"}})
    assert (reply.status, reply.code) == (409, "edit_refused")
    assert reply.data["error"]["message"].startswith(f"config.yaml:{line}: agents.{name}: its value")


def test_without_the_permission_the_answer_has_the_lines_to_write(daemon: WebDaemon) -> None:
    reply = patch(daemon, OPS, {"heartbeat": {"interval": "1h"}}, "reader")
    assert reply.data == {
        "written": False,
        "reason": "the token 'reader' may not edit; add edit to server.tokens.reader.may, or write the lines yourself",
        "yaml": "agents:\n  ops:\n    heartbeat:\n      interval: 1h\n",
    }
    assert daemon.config.read_text() == CONFIG


@pytest.mark.parametrize(
    "changes",
    [
        {"agents": {"ops": {"runner": {"kind": "command", "argv": ["sh", "-c", "evil"]}}}},
        {"agents": {"ops": {"heartbeat": {"precheck": {"command": "evil"}}}}},
        {"agents": {"ops": {"runner": None}}},
        {"cron": {"evil": {"every": "1m", "command": "evil"}}},
        {"defaults": {"cron": {"shell": "evil"}}},
        {"channels": {"mine": "https://evil.example"}},
        {"server": {"tokens": {"mine": {"value": "a-token-with-enough-bits-in-it-11", "may": ["edit"]}}}},
        {"x-anything": {"runner": 1}},
    ],
)
def test_nobody_can_change_over_http_what_runs_programs_or_sends_data(daemon: WebDaemon, changes: dict[str, Any]) -> None:
    reply = patch(daemon, "/api/v1/config", changes)
    assert (reply.status, reply.data["written"], "cannot be changed over HTTP" in reply.data["reason"]) == (200, False, True)
    assert daemon.config.read_text() == CONFIG


def test_an_agent_may_have_the_name_of_a_protected_key(tmp_path: Path) -> None:
    with WebDaemon(
        tmp_path,
        CONFIG.replace("agents:\n", "agents:\n  memory: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 2h}}\n"),
    ) as daemon:
        path = "/api/v1/agents/memory/config"
        assert patch(daemon, path, {"heartbeat": {"interval": "1h"}}).data["written"] is True
        assert patch(daemon, path, {"runner": None}).data["written"] is False


def test_an_unknown_key_is_named_with_the_closest_known_one(daemon: WebDaemon) -> None:
    for token in ("self", "reader"):
        for changes, says in (
            ({"heartbeat": {"intervall": "1h"}}, "agents.ops.heartbeat.intervall: unknown key; did you mean interval?"),
            ({"interval": "1h"}, "agents.ops.interval: unknown key here; it belongs under agents.ops.heartbeat"),
            ({"heartbeat": {"budget": {"usd_a_day": 1}}}, "agents.ops.heartbeat.budget.usd_a_day: unknown key"),
        ):
            reply = patch(daemon, OPS, changes, token)
            assert (reply.status, reply.data["error"]["message"].startswith(f"changes: {says}")) == (400, True), reply.data
    assert daemon.config.read_text() == CONFIG


@pytest.mark.parametrize(
    "changes",
    [
        {"heartbeat": {"budget": {"usd_per_day": 1000}}},
        {"heartbeat": {"deliver": "log"}},
        {"heartbeat": None},
        {"model": "big"},
        {"heartbeat": {"enabled": False, "problems": {"after": None}}},
    ],
)
def test_a_token_for_its_own_agent_cannot_lift_its_limits(daemon: WebDaemon, changes: dict[str, Any]) -> None:
    reply = patch(daemon, OPS, changes, "self")
    assert (reply.status, reply.data["written"], "is limited to some agents" in reply.data["reason"]) == (200, False, True)
    assert daemon.config.read_text() == CONFIG


def test_a_token_for_an_agent_reaches_no_other(daemon: WebDaemon) -> None:
    edits = [patch(daemon, path, {"timezone": "UTC"}, "self") for path in ("/api/v1/config", "/api/v1/cron/measure/config")]
    reads = [daemon.get(path, TOKENS["self"]) for path in ("/api/v1/config", "/api/v1/agents/web/config")]
    assert [reply.status for reply in (*edits, *reads)] == [403] * 4


def test_the_config_is_shown_without_secrets(daemon: WebDaemon) -> None:
    whole, one = daemon.get("/api/v1/config", TOKENS["reader"]), daemon.get(OPS, TOKENS["self"])
    assert (whole.data["hash"], one.data["hash"]) == (version(daemon), version(daemon))
    assert whole.data["declared"]["agents"]["ops"] == one.data["declared"]
    assert one.data["declared"]["heartbeat"]["interval"] == "30m"
    values = {row["key"]: (row["value"], row["origin"]) for row in one.data["values"]}
    assert (values["heartbeat.interval"], values["heartbeat.retries"]) == (("30m", "config.yaml:10"), ("2", "built in"))
    for secret in (*TOKENS.values(), "sk-very-secret-key-1", "abcdefgh12345678"):
        assert secret.encode() not in whole.body + one.body


SECRET_CONFIG = """\
server: {listen: "127.0.0.1:0", tokens: {
  editor: {value: "editor-token-with-enough-bits-in-it", may: [read, operate, edit]},
  reader: {value: "reader-token-with-enough-bits-in-it", may: [read]},
  self: {value: "self-token-with-enough-bits-in-it-11", may: [read, edit], agents: [ops, one]}}}
x-secret: &shared sk-very-secret-key-5
agents:
  ops: {runner: {kind: command, argv: [agent, --token, secret-of-argv], env: {KEY: sk-very-secret-key-1, OTHER: *shared}}, heartbeat: {
    interval: 30m, prompt: "call https://me:sk-very-secret-key-2@host", deliver: log, stagger: 0s}}
  one: {runner: {kind: command, argv: [agent], env: {KEY: short}}, heartbeat: {interval: 30m, deliver: log}}
  web: {runner: {kind: command, argv: [agent], env: {KEY: sk-very-secret-key-3}}, heartbeat: {interval: 30m, deliver: log}}
"""


def test_the_lines_of_an_edit_show_no_secret_and_nothing_of_others(tmp_path: Path) -> None:
    """Also those of a dry run, over MCP and on the page: the same function makes them."""
    secrets = ("sk-very-secret", "secret-of-argv", "KEY: short")
    with WebDaemon(tmp_path, SECRET_CONFIG) as daemon:
        for name, key, value in (("ops", "stagger", "1m"), ("ops", "prompt", "look"), ("one", "interval", "1h")):
            for token, dry in (("self", True), ("editor", True), ("self", False)):
                reply = patch(daemon, f"/api/v1/agents/{name}/config", {"heartbeat": {key: value}}, token, dry_run=dry)
                found = (reply.status, reply.data["written"], [secret for secret in secrets if secret in reply.body.decode()])
                assert found == (200, not dry, []), (name, token, reply.data)
        assert all(secret in daemon.config.read_text() for secret in ("sk-very-secret-key-1", "KEY: short"))


# Each secret and each comment has the word canary. `ops` and `web` share a line and an anchor.
CANARIES = """\
server: {listen: "127.0.0.1:0", tokens: {
  editor: {value: "canary-editor-token-with-enough-bits", may: [read, operate, edit]},
  self: {value: "canary-self-token-with-enough-bits-1", may: [read, edit], agents: [ops]}}}
x-secret: &shared canary-shared-first-1   # was canary-shared-1
channels:
  hook: {kind: webhook, url: "https://example.org/canary-first", secret: canary-first-secret-1}
  phone: "tgram://123:canary-first/{target}"
  pipe: {kind: command, argv: [send, --token, canary-first]}
providers: {anthropic: {api_key: canary-first-key}, local: {kind: openai, base_url: "https://me:canary-first@example.org"}}
deadman: {url: "https://hc.example.org/canary-first"}
network: {proxy: "http://me:canary-first@proxy.example.org:3128"}
agents: {ops: {runner: {kind: command, argv: [a], env: {KEY: *shared, OTHER: canary-first-2}}, heartbeat: {interval: 30m, prompt: look, deliver: log}},
  web: {runner: {kind: http, url: "https://u:canary-first@example.org/", headers: {X: canary-first}}, heartbeat: {interval: 30m, prompt: look, deliver: log}}}
cron:
  one: {every: 6h, command: "curl -H 'Authorization: Bearer canary-first' https://me:canary-first@example.org"}
  two: {every: 6h, command: "DB_PASSWORD=canary-first backup", env: {TOKEN: canary-first}, stdin: canary-shared-first-1}
"""


def test_no_secret_of_a_reload_is_in_the_database_or_in_an_answer(tmp_path: Path) -> None:
    tokens = "canary-editor-token-with-enough-bits", "canary-self-token-with-enough-bits-1"
    pages = ("status", "config", "explain", "agents/ops/explain", "agents/ops/config", "cron/two/explain")
    versions = (
        (CANARIES, 200, 0),
        (CANARIES.replace("first", "second"), 200, 16),
        (CANARIES.replace("first", "third").replace("interval: 30m", "interval: 15m"), 200, 16),
        (CANARIES.replace("30m", "soon"), 422, 0),
        (CANARIES.replace("ops: {runner", "ops2: {runner").replace("[ops]", "[ops2]").replace("first", "third"), 200, 0),
    )
    with WebDaemon(tmp_path, CANARIES) as daemon:
        for number, (text, status, secrets) in enumerate(versions):
            daemon.config.write_text(text)
            reloads = [daemon.post("/-/reload", {"dry_run": dry}, tokens[0]) for dry in (True, False)]
            assert [reply.status for reply in reloads] == [status, status], (number, reloads[0].body)
            assert [reply.body.count(b"another value") for reply in reloads] == [secrets, secrets], (number, reloads[0].data)
            answers = [daemon.get(f"/api/v1/{page}", token) for page in pages for token in tokens]
            assert [reply.body for reply in (*reloads, *answers) if b"canary" in reply.body] == [], number

        def values() -> list[Any]:
            db = daemon.world.store.connection
            tables = [row["name"] for row in db.execute("select name from sqlite_master where type = 'table'")]
            return [value for table in tables for row in db.execute(f"select * from {table}") for value in row]

        stored = str([zlib.decompress(each) if isinstance(each, bytes) else each for each in daemon.do(values)])
    assert ("${REDACTED}" in stored, "another value" in stored, "canary" in stored) == (True, True, False)


def test_a_token_for_an_agent_does_not_change_a_line_that_it_shares_with_others(tmp_path: Path) -> None:
    one_line = (
        SECRET_CONFIG.replace("log}}\n  web:", "log}},  web:").replace("0s}}\n", "0s}},\n").replace("agents:\n", "agents: {\n")
        + "  }\n"
    )
    with WebDaemon(tmp_path, one_line) as daemon:
        for dry in (True, False):
            reply = patch(daemon, "/api/v1/agents/one/config", {"heartbeat": {"interval": "1h"}}, "self", dry_run=dry)
            assert (reply.status, reply.code, b"sk-very" in reply.body) == (409, "edit_refused", False)
            assert "this line also has values of others" in reply.data["error"]["message"]
        reply = patch(daemon, "/api/v1/agents/one/config", {"heartbeat": {"interval": "1h"}})
        assert (reply.status, "in brackets over several lines" in reply.data["error"]["message"]) == (409, True)
        assert daemon.config.read_text() == one_line


def test_an_agent_whose_name_begins_with_that_of_another_stays_hidden_from_its_token(tmp_path: Path) -> None:
    """Also if the rest of its name begins with a key of the other."""
    longer = "  ops.model-2: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 30m, deliver: log}}\n"
    text = CONFIG.replace("cron:\n", f"{longer}cron:\n")
    with WebDaemon(tmp_path, text) as daemon:
        daemon.config.write_text(text.replace("interval: 30m, deliver: log}}\ncron", "interval: dusk, deliver: log}}\ncron"))
        reply = daemon.get(OPS, TOKENS["self"])
        assert (reply.status, b"model-2" in reply.body, b"dusk" in reply.body) == (200, False, False), reply.data
        daemon.config.write_text(text.replace("interval: 30m   ", "interval: dawn  "))
        errors = daemon.get(OPS, TOKENS["self"]).data["errors"]
        assert [error["path"] for error in errors] == ["agents.ops.heartbeat.interval"]


def test_a_token_for_an_agent_gets_the_errors_at_its_agent_and_one_line_for_those_of_others(daemon: WebDaemon) -> None:
    daemon.config.write_text(CONFIG.replace("30m   ", "dawn  ").replace("30m, ", "dusk, "))
    reply = daemon.get(OPS, TOKENS["self"])
    own, others = reply.data["errors"]
    assert (reply.status, own["path"], others["path"]) == (422, "agents.ops.heartbeat.interval", "")
    assert "errors in parts that this token may not see" in others["message"]
    assert b"dusk" in daemon.get(OPS, TOKENS["reader"]).body
    daemon.config.write_text(CONFIG.replace("deliver: log\n", "deliver: nowhere\n"))
    errors = {token: daemon.get(OPS, TOKENS[token]).data for token in ("self", "reader")}
    assert {token: (len(data["errors"]), bool(data["warnings"])) for token, data in errors.items()} == {
        "self": (1, False),
        "reader": (1, True),
    }


CHECKLIST_CONFIG = """\
server: {listen: "127.0.0.1:0", tokens: {editor: {value: "editor-token-with-enough-bits-in-it", may: [read, edit]},
  self: {value: "self-token-with-enough-bits-in-it-11", may: [read, edit], agents: [job]}}}
agents:
  checklist: {runner: {kind: command, argv: [sh, tasks.md]}, heartbeat: {interval: 30m, deliver: log, checklist: tasks.md}}
  ops: {runner: {kind: command, argv: [sh, my tasks.md]}, heartbeat: {interval: 30m, deliver: log, checklist: my tasks.md}}
  job: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 30m, deliver: log, checklist: tasks.sh}}
  free: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 30m, deliver: log, prompt: read tasks, checklist: tasks}}
cron:
  prompt: {every: 6h, command: sh agents/job/tasks.sh}
"""


def test_no_checklist_is_written_that_anything_else_names(tmp_path: Path) -> None:
    """Also if an agent or a job has the name of a key, and if the name of the file has a space."""
    with WebDaemon(tmp_path, CHECKLIST_CONFIG) as daemon:
        for name, expected in (("checklist", 409), ("ops", 409), ("job", 409), ("free", 200)):
            path, version_sent = f"/api/v1/agents/{name}/checklist", {"If-None-Match": "*"}
            reply = daemon.send("PUT", path, {"text": "#!/bin/sh\n"}, TOKENS["editor"], version_sent)
            found = (reply.status, reply.status == 200 or reply.code)
            assert found == (expected, expected == 200 or "used_elsewhere"), (name, reply.data)
        for token, place in (("editor", "cron.prompt.command"), ("self", "another part of the config")):
            path = "/api/v1/agents/job/checklist"
            reply = daemon.send("PUT", path, {"text": "#!/bin/sh\n"}, TOKENS[token], {"If-None-Match": "*"})
            assert f"is also used by {place};" in reply.data["error"]["message"]
        # The daemon still runs the job, because the changed file is not applied yet.
        daemon.config.write_text(CHECKLIST_CONFIG.partition("cron:")[0])
        reply = daemon.send("PUT", path, {"text": "#!/bin/sh\n"}, TOKENS["editor"], {"If-None-Match": "*"})
        assert (reply.status, reply.data["error"]["message"].count("is also used by cron.prompt;")) == (409, 1)
        daemon.config.write_text(
            CHECKLIST_CONFIG.replace(
                "[agent]}, heartbeat: {interval: 30m, deliver: log, prompt",
                "[agent, ../job/tasks.sh]}, heartbeat: {interval: 30m, deliver: log, prompt",
            )
        )
        for token, place in (("editor", "agents.free.runner.argv"), ("self", "another part of the config;")):
            reply = daemon.send("PUT", path, {"text": "#!/bin/sh\n"}, TOKENS[token], {"If-None-Match": "*"})
            assert f"is also used by {place}" in reply.data["error"]["message"]


def test_what_protects_an_agent_is_not_removed_with_the_map_around_it(tmp_path: Path) -> None:
    """The agent would go on without them, by the interval of `defaults`."""
    text = CONFIG.replace(
        "deliver: log\n  web", "deliver: log\n      precheck: {command: look}\n      budget: {runs_per_day: 9}\n  web"
    )
    text += "defaults: {heartbeat: {interval: 1h, precheck: {command: look}}}\n"
    changes: list[dict[str, Any]] = [
        {"agents": {"ops": {"heartbeat": None}}},
        {"agents": {"ops": {"heartbeat": "x"}}},
        {"agents": {"ops": {"heartbeat": {"precheck": None}}}},
        {"defaults": None},
        {"defaults": {"heartbeat": None}},
        {"defaults": {"heartbeat": []}},
    ]
    with WebDaemon(tmp_path, text) as daemon:
        for change in changes:
            reply = patch(daemon, "/api/v1/config", change)
            assert (reply.status, reply.data["written"], "cannot be changed over HTTP" in reply.data["reason"]) == (
                200,
                False,
                True,
            )
        own = [patch(daemon, OPS, {"heartbeat": value}, "self").data["written"] for value in (None, {"budget": None})]
        assert (own, daemon.config.read_text() == text) == ([False, False], True)
        assert patch(daemon, "/api/v1/config", {"cron": {"measure": None}}).data["written"] is True


@pytest.mark.parametrize("body", [{}, {"changes": {}}, {"changes": []}, {"changes": {"heartbeat": {}}, "hash": 1}, {"change": 1}])
def test_a_malformed_edit_is_rejected(daemon: WebDaemon, body: dict[str, Any]) -> None:
    assert daemon.send("PATCH", OPS, body, TOKENS["editor"]).status == 400
    assert daemon.config.read_text() == CONFIG


def test_changes_that_cannot_be_written_as_yaml_are_rejected_also_for_a_caller_who_may_not_write(daemon: WebDaemon) -> None:
    reply = daemon.send("PATCH", OPS, {"changes": {"\0": {}, "": []}}, TOKENS["reader"])
    assert (reply.status, reply.code) == (400, "bad_request")


@pytest.mark.parametrize("name", ["nobody", "op%00s"])
def test_an_unknown_agent_is_404(daemon: WebDaemon, name: str) -> None:
    assert patch(daemon, f"/api/v1/agents/{name}/config", {"heartbeat": {"interval": "1h"}}).status == 404
