"""Finds what is missing for enabled entries: files, folders and programs.

It also finds prompts whose files leave no room, and models that Claude Code would ignore.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from cron.job import Job
from heartbeat.checklist import parse_checklist
from heartbeat.checklist_file import MAX_BYTES, FileProblem, read_file
from heartbeat.prompt import Prompt, PromptFacts, compose_prompt, compose_task
from heartbeat.runners.redaction import reveal_secret
from heartbeat.spec import Agent, CommandRunner, Fallback, Heartbeat, ModelRunner, Precheck, PromptLimit, Runner
from scheduler.config.keys.value_types import END_CHECKLIST
from scheduler.config.settings.config_node import Fault
from scheduler.model.outcome import Kind
from scheduler.model.settings import Settings
from scheduler.model.timestamps import EPOCH
from scheduler.system import extras

KeyProblem = tuple[tuple[str | int, ...], str]
"""The steps to the key, and the message."""

NEAR_LIMIT = 0.8  # the share of the limit above which a prompt is reported: the output of a precheck and wakes need room too
SHELLS = ("sh", "dash", "bash", "ash", "ksh", "zsh")
_FIRST_WORD = re.compile(r"\s*([A-Za-z0-9_./+-]+)(?=$|[\s;|&<>])")
_WORDS = (
    ". : alias bg break builtin case cd command continue declare do done echo elif else esac eval exec exit export false "
    "fc fg fi for function getopts hash if in jobs kill let local printf pwd read readonly return select set shift shopt "
    "source test then time times trap true type typeset ulimit umask unalias unset until wait while "
)
_SHELL_WORDS = frozenset(_WORDS.split())


def find_missing_files(settings: Settings) -> Iterator[Fault]:
    """What is missing for enabled entries."""
    runners_of = {name: [each.runner for _, each in _called(beat)] for name, beat in settings.heartbeats.items()}
    prompted = {job.agent for job in settings.jobs.values() if job.enabled and job.prompt is not None}
    for name, beat in settings.heartbeats.items():
        if beat.enabled:
            for inside, message in _check_agent(beat, beat.context if name in prompted else beat.context_files):
                yield "agents", name, inside, message
    for name, job in settings.jobs.items():
        if job.enabled and job.command is not None:
            for inside, message in _check_job(job):
                yield "cron", name, inside, message
        called = settings.job_agents.get(name)
        if called is None or not job.enabled:
            continue
        for key, why in _check_precheck(called.precheck, called.workspace) if called.precheck else ():
            yield "cron", name, ("precheck", key), why
        for inside, message in _check_runners(called, (called.runner, *runners_of[called.name])):
            yield "cron", name, inside, message
    for name, channel in settings.channels.items():
        if channel.argv and (problem := _check_program(channel.argv[0], channel.folder, {})):
            yield "channels", name, ("argv",), problem


def _check_agent(beat: Heartbeat, context: tuple[str, ...]) -> Iterator[KeyProblem]:
    has_list = "\n" not in beat.checklist
    # A wake starts a run without a checklist too, and an agent without planned runs has no others.
    needs_list = has_list and beat.on_missing == "skip" and (beat.interval or beat.schedule) is not None
    folder = beat.workspace
    is_missing = needs_list and not os.path.lexists(folder / beat.checklist)
    if is_missing and " " in beat.checklist:  # rather a text than a name; then a missing folder does not matter
        missing = _explain_refusal(folder, beat.checklist, FileProblem.MISSING)
        yield ("heartbeat", "checklist"), f"{missing}, so its planned runs are skipped; {END_CHECKLIST}"
    elif not folder.is_dir():
        if needs_list or context:
            yield ("workspace",), _missing_folder(folder)
    else:
        refusal = read_file(folder, beat.checklist) if has_list else ""
        if isinstance(refusal, FileProblem) and (refusal is not FileProblem.MISSING or needs_list):
            which = "planned runs" if refusal is FileProblem.MISSING else "runs"
            yield ("heartbeat", "checklist"), f"{_explain_refusal(folder, beat.checklist, refusal)}, so its {which} are skipped"
        for index, name in enumerate(context):
            if isinstance(refusal := read_file(folder, name), FileProblem):
                yield ("context", index), f"{_explain_refusal(folder, name, refusal)}, so it is left out of the prompt"
    yield from _check_runners(beat)
    for key, problem in _check_precheck(beat.precheck, beat.workspace) if beat.precheck else ():
        yield ("heartbeat", "precheck", key), problem


def _check_runners(agent: Agent, checked: Iterable[Runner] = ()) -> Iterator[KeyProblem]:
    """What is missing for the runner of an agent and for those of its fallbacks, without those that were `checked` before."""
    seen = [*checked]
    for inside, runner in ((inside, each.runner) for inside, each in _called(agent) if each.runner not in seen):
        seen.append(runner)
        for key, problem in _check_runner(runner, agent.workspace):
            yield (*inside, "runner", *(() if inside else key)), problem  # the keys of a fallback's runner are in `runners`


def _check_runner(runner: Runner, folder: Path) -> Iterator[KeyProblem]:
    if isinstance(runner, CommandRunner) and (problem := _check_program(runner.argv[0], folder, runner.env)):
        yield ("program" if runner.claude else "argv",), problem
    if isinstance(runner, ModelRunner) and runner.tools:
        for index, server in enumerate(runner.tools.servers):
            if server.command and (problem := _check_program(server.command[0], folder, server.env)):
                yield ("tools", "mcp", index, "command"), problem


def _called(agent: Agent) -> list[tuple[tuple[str | int, ...], Agent | Fallback]]:
    """What has a runner: the agent, and its fallbacks, each with the steps to its keys."""
    return [((), agent), *((("fallbacks", index), each) for index, each in enumerate(agent.fallbacks))]


def _check_precheck(check: Precheck, workspace: Path) -> Iterator[tuple[str, str]]:
    """The key and the reason, if a program or a library of a precheck is missing."""
    kind = check.source.kind if check.source else "command"
    problem: str | None = None
    if kind == "command":
        problem = _check_first_word(check.command, workspace, {})
    elif kind == "git":
        problem = _check_program("git", workspace, {})
    elif kind == "calendar" and find_spec("icalendar") is None:
        problem = extras.how_to_install("calendar")
    if problem:
        yield kind, problem


def _check_job(job: Job) -> Iterator[KeyProblem]:
    if not job.workdir.is_dir():
        yield ("workdir",), _missing_folder(job.workdir)
        return
    if isinstance(job.command, tuple):
        if problem := _check_program(job.command[0], job.workdir, job.env):
            yield ("command",), problem
    elif problem := _check_program(job.shell, job.workdir, job.env):
        yield ("shell",), problem
    elif Path(job.shell).name in SHELLS and (problem := _check_first_word(job.command or "", job.workdir, job.env)):
        yield ("command",), problem


def _missing_folder(folder: Path) -> str:
    return f"the folder {folder} does not exist; do: mkdir -p {shlex.quote(str(folder))}"


def _explain_refusal(workspace: Path, name: str, refusal: FileProblem) -> str:
    """Why a file of the workspace cannot be read."""
    path = workspace / name
    if refusal is FileProblem.MISSING:
        return f"{path} does not exist"
    if refusal is FileProblem.TOO_LARGE:
        return f"{path} is larger than {MAX_BYTES // 1024} KiB"
    parts = [workspace.joinpath(*Path(name).parts[: end + 1]) for end in range(len(Path(name).parts))]
    link = next((part for part in parts if part.is_symlink()), None)
    if link is not None:
        outside = not path.resolve().is_relative_to(workspace.resolve())
        return f"{link} is a link{' that leads outside the workspace' if outside else ''}, and links are not followed"
    return f"{path} cannot be read" if path.is_file() else f"{path} is not a regular file"


def _check_program(program: str, folder: Path, env: Mapping[str, object]) -> str | None:
    """Why a program would not be found if it were started in this folder; None if it would be found."""
    if "/" in program:
        path = folder / program
        if not path.is_file():
            return f"there is no program {path}"
        return None if os.access(path, os.X_OK) else f"{path} is not executable; do: chmod +x {shlex.quote(str(path))}"
    places = env.get("PATH", os.environ.get("PATH", os.defpath))
    return None if shutil.which(program, path=reveal_secret(places)) else f"there is no program {program!r}; PATH is {places}"


def _check_first_word(line: str, folder: Path, env: Mapping[str, object]) -> str | None:
    """`_check_program` for the first word of a shell command, if it is certainly a program."""
    word = _FIRST_WORD.match(line)
    return _check_program(word[1], folder, env) if word and word[1] not in _SHELL_WORDS else None


def find_ignored_models(settings: Settings) -> Iterator[Fault]:
    """The models and efforts for Claude Code as a plain program. It does not read the variables in which it gets them."""
    for name, beat in settings.heartbeats.items():
        if beat.enabled:
            for inside, message in _ignored_models(beat):
                yield "agents", name, inside, message
    for name, agent in settings.job_agents.items():
        inherited = list(_ignored_models(settings.heartbeats[agent.name]))
        for inside, message in _ignored_models(agent) if settings.jobs[name].enabled else ():
            if (inside, message) not in inherited:
                yield "cron", name, inside[:-1], message


def _ignored_models(agent: Agent) -> Iterator[KeyProblem]:
    for inside, each in _called(agent):
        runner = each.runner
        if not isinstance(runner, CommandRunner) or runner.claude or Path(runner.argv[0]).name != "claude":
            continue
        for key, value in (("model", each.model), ("effort", each.effort)):
            problem = f"`claude` does not read HEARTBEATD_{key.upper()}, so {value} has no effect"
            if value:
                yield (*inside, "runner"), f"{problem}; write runner: claude-code"


def find_long_prompts(settings: Settings) -> Iterator[Fault]:
    """The prompts near their limit or above it.

    The prompt is composed as for a run, with its files, but without wakes, problems and the output of a precheck.
    """
    for name, beat in settings.heartbeats.items():
        if beat.enabled and (message := _problem(settings, Kind.HEARTBEAT, name, _prompt_of_beat(beat), beat.prompt_limit)):
            yield "agents", name, ("heartbeat", "checklist"), message
    for name, agent in settings.job_agents.items():
        job = settings.jobs[name]
        if job.enabled and (message := _problem(settings, Kind.CRON, name, _prompt_of_job(job, agent), agent.prompt_limit)):
            yield "cron", name, ("prompt",), message


def prompt_warnings(settings: Settings) -> Iterator[str]:
    """A line for each of them, without the source position that only `check` knows."""
    for section, name, inside, message in find_long_prompts(settings):
        yield f"warning: {'.'.join((section, name, *map(str, inside)))}: {message}"


def _problem(settings: Settings, kind: Kind, name: str, prompt: Prompt, limit: PromptLimit) -> str | None:
    allowance = settings.allowances.get((kind, name))
    limit = replace(limit, reserved=allowance.input_tokens if allowance else None)
    size = limit.count(prompt.text)
    if size <= NEAR_LIMIT * limit.tokens:
        return None
    effect = "its runs are skipped" if size > limit.tokens else "a wake or the output of a precheck may not fit"
    return f"the prompt with its files has {limit.describe(size)}, so {effect}; shorten the files or raise the limit"


def _prompt_of_beat(beat: Heartbeat) -> Prompt:
    checklist = beat.checklist if "\n" in beat.checklist else _text(beat.workspace, beat.checklist)
    facts = PromptFacts(
        EPOCH, checklist=parse_checklist(checklist).open_text, context=_context(beat.workspace, beat.context_files)
    )
    return compose_prompt(facts, beat)


def _prompt_of_job(job: Job, agent: Agent) -> Prompt:
    facts = PromptFacts(EPOCH, context=_context(agent.workspace, agent.context))
    return compose_task(job.name, job.prompt or "", agent, facts)


def _context(workspace: Path, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, _text(workspace, name)) for name in names)


def _text(workspace: Path, name: str) -> str:
    """The text of a file. One that cannot be read is left out of the prompt, or its runs are skipped for another reason."""
    found = read_file(workspace, name)
    return found if isinstance(found, str) else ""
