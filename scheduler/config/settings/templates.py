"""The texts that heartbeatd writes into a config: the files of `init`, and the templates of agents and jobs of `config add`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_QUIET = {"skip": True, "max_age": "24h"}  # what was reported once is not put into a prompt again on the same day

# {target} and {host} are quoted for the shell. A check prints what is to be done. It fails if it cannot look.
_DISK = (
    """df -P -- {target} | awk 'NR > 1 && $5 + 0 >= 85 {{ print $6 " is " $5 " full"; full = 1 }}"""
    """ END {{ if (NR < 2) exit 2; exit full }}'"""
)
_CERTIFICATE = (
    "cert=$(openssl s_client -connect {target} -servername {host} </dev/null 2>/dev/null)"
    '; end=$(echo "$cert" | openssl x509 -noout -enddate) || exit 2'
    '; if echo "$cert" | openssl x509 -noout -checkend 1209600 >/dev/null; then {none}'
    '; else echo "the certificate of" {host} "expires in less than 14 days: $end"{found}; fi'
)
_REPOSITORY = (
    "git -C {target} fetch --quiet || exit 2; new=$(git -C {target} log --oneline --max-count=50 HEAD..@{{upstream}}) || exit 2"
    '; if [ "$new" ]; then echo "$new"{found}; else {none}; fi'
)
_MAIL = (
    "cd {target}/new || exit 2; new=$(find . -type f | sort | while read -r mail; do"
    " sed -n -e '/^$/q' -e '/^[Ff]rom:/p' -e '/^[Ss]ubject:/p' \"$mail\"; done)"
    '; if [ "$new" ]; then echo "$new"{found}; else {none}; fi'
)


@dataclass(frozen=True, slots=True)
class Template:
    """What to watch: how an agent or a job looks, how often, and the checklist of an agent that gets the output.

    `source` are the keys of a built-in precheck. Where none has the same meaning, an agent has the shell command `command`. A
    job has only commands. `target` is watched if nothing else is named; None: it must be named. `checks_files`: the target is a
    path. `fails`: a job with this command fails if there is something to do.
    """

    interval: str
    checklist: str
    target: str | None
    command: str = ""
    source: Mapping[str, str] | None = None
    checks_files: bool = True
    fails: bool = False


TEMPLATES: Mapping[str, Template] = {
    "mail": Template(
        "15m", "- Is one of the new mails urgent, or from a person who waits for an answer? Name sender and subject.\n",
        "~/Maildir", _MAIL,
    ),
    "disk": Template(
        "30m", "- A disk is at least 85 % full. Say which, and what usually fills it.\n", "/", _DISK,
        {"disk": "85%", "path": "{target}"}, fails=True,
    ),
    "repository": Template(
        "30m", "- There are commits that are not pulled yet. Summarise them, and say whether one looks dangerous.\n",
        ".", _REPOSITORY, fails=True,
    ),
    "certificate": Template(
        "24h", "- A certificate expires soon. Say which, when, and how it is renewed.\n", None, _CERTIFICATE, checks_files=False,
        fails=True,
    ),
    "feed": Template(
        "1h", "- The feed has new titles. Report those that concern our software, above all security releases.\n", None,
        source={"rss": "{target}"}, checks_files=False,
    ),
}  # fmt: skip
JOB_TEMPLATES = tuple(name for name, template in TEMPLATES.items() if template.fails)


class NoTarget(ValueError):
    """The template needs a target; the message says what to write."""


def agent_keys(
    name: str, target: str | None, interval: str | None, shared: Mapping[str, object], *, has_interval: bool
) -> dict[str, object]:
    """The keys of an agent from the template `name`. `shared` are keys such as `runner` that it has in common with other agents.

    With `has_interval`, the interval of the template is left out, because `defaults` set one. Raises NoTarget.
    """
    template = TEMPLATES[name]
    times = {} if has_interval else {"interval": interval or template.interval}
    beat = {**times, "precheck": _make_precheck(template, _find_target(name, target))}
    given = shared.get("heartbeat")
    return {**shared, "heartbeat": {**beat, **(given if isinstance(given, Mapping) else {})}}


def job_keys(name: str, target: str | None, interval: str | None, *, has_interval: bool) -> dict[str, object]:
    """The keys of a job that fails if there is something to do, so that its output is in the failure notification.

    With `has_interval`, the interval of the template is left out, because `defaults` set one. Raises NoTarget.
    """
    template = TEMPLATES[name]
    times = {} if has_interval else {"every": interval or template.interval}
    return {**times, "command": _check_command(template, _find_target(name, target), found="; exit 1", none=":")}


def _find_target(name: str, target: str | None) -> str:
    named = target or TEMPLATES[name].target
    if named is None:
        raise NoTarget(f"the template {name} needs --target {'HOST or HOST:PORT' if name == 'certificate' else 'URL'}")
    if TEMPLATES[name].checks_files:
        return str(Path(named).expanduser().absolute())
    return f"{named}:443" if name == "certificate" and ":" not in named else named


def _make_precheck(template: Template, target: str) -> dict[str, object]:
    if template.source is not None:
        return {key: text.format(target=target) for key, text in template.source.items()}
    return {"command": _check_command(template, target, found="", none="echo NO_WORK"), "unchanged": _QUIET}


def _check_command(template: Template, target: str, *, found: str, none: str) -> str:
    host = target.partition(":")[0]
    return template.command.format(target=shlex.quote(target), host=shlex.quote(host), found=found, none=none)


ECHO_ADVICE = "This program gets the prompt on stdin and prints the answer. Write your agent here, e.g. runner: claude-code."
STARTER_CONFIG = f"""\
# The config of heartbeatd. `heartbeatd check` reports errors in it. `heartbeatd docs reference` describes every key.
timezone: UTC                          # for active hours and schedules, e.g. Europe/Berlin

# channels:                            # where messages are sent. Without a channel, they go to the log
#   phone: "tgram://${{TG_TOKEN}}/${{TG_CHAT}}"
#   hook: {{kind: webhook, url: "${{HOOK_URL}}"}}

# providers: {{anthropic: {{api_key: "${{ANTHROPIC_API_KEY}}"}}}}     # for runners of kind anthropic

agents:
  assistant:                           # its checklist is agents/assistant/HEARTBEAT.md
    # {ECHO_ADVICE}
    # To call a model, write model: claude-haiku-5-5 in place of runner, and uncomment the line of providers.
    runner: {{kind: command, argv: [echo, HEARTBEAT_OK]}}
    heartbeat:
      interval: 30m
      active_hours: always             # or "08:00-22:00"
      deliver: log
      # budget: {{usd_per_day: 0.50}}    # the maximum cost of its runs per day

# cron:
#   nightly:
#     schedule: "0 3 * * *"
#     command: ./backup.sh
#     wake_heartbeat: assistant        # wakes the agent, with the job's result in the prompt
#     wake_on: failure
"""

_STARTER_CHECKLIST = """\
# Heartbeat

<!-- One line for each thing to check. If the list is empty, the run is skipped and costs nothing. -->
- Is there anything in the inbox that cannot wait?
"""

STARTER_FILES = {PurePosixPath("config.yaml"): STARTER_CONFIG, PurePosixPath("agents/assistant/HEARTBEAT.md"): _STARTER_CHECKLIST}
"""The files of a new folder by their path in it."""
