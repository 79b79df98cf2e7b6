"""Converts the jobs of other systems: their names, times, prompts, commands and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.extras.importers import value_converters
from scheduler.extras.importers.config_draft import Draft, Part, Rule
from scheduler.extras.importers.source_files import MISSING, Node
from scheduler.extras.importers.value_converters import Converter, NotUsable

PHASE_MATTERS = 3600  # seconds; from this interval on, a job that was counted from an anchor keeps its times, or is disabled

# The key of a job in the new config, by the kind of its schedule, and the keys of the other systems for it.
_SCHEDULE_KINDS = {"cron": "schedule", "every": "every", "interval": "every", "at": "at", "once": "at"}
SCHEDULE_KEYS = {
    "schedule": ("expr", "cron", "expression"),
    "every": ("everyMs", "everySeconds", "minutes", "every"),
    "at": ("atMs", "atTime", "runAt", "at"),
}
_WAKE_MODES = {"now": "now", "next-heartbeat": "next", "next_heartbeat": "next", "next": "next"}


@dataclass(frozen=True, slots=True)
class JobShape:
    """Where a job of a system has its parts. Each part lists keys of which the first with a value is used.

    A `prompt` is sent to the agent as a run of its own. An `event` is text for the agent's next heartbeat. A `command` is for the
    shell, and `command_form` converts it. A `message` is sent as it is, without an agent. `naive_zone` is the zone of a single
    time without an offset, and empty for the zone of the host. `fallback_name` is the name of a job without one. `seconds_last`
    and `both_days` say how the system reads cron expressions (`value_converters.cron_expression`).
    """

    prompt: Sequence[str] = ()
    event: Sequence[str] = ()
    command: Sequence[str] = ()
    message: Sequence[str] = ()
    command_form: Converter = value_converters.text
    agent: Sequence[str] = ("agentId", "agent")
    name: Sequence[str] = ("name", "id", "jobId")
    zone: Sequence[str] = ("timezone", "tz")
    rules: Sequence[Rule] = ()
    naive_zone: str = ""
    fallback_name: str = ""
    seconds_last: bool = False
    both_days: bool = False


def add_job(draft: Draft, node: Node, shape: JobShape) -> Part | None:
    """A job for a job of the other system; None if its meaning cannot be kept, and it was left out."""
    named = node.first(*shape.name)
    job = draft.part(f"cron.{draft.free_name('cron', named.text or shape.fallback_name, 'job')}")
    draft.set_value(job.path, {})
    draft.note_entry(node, job)
    job.apply((Rule("enabled", "enabled", value_converters.boolean, decides=True),), node)
    if draft.jobs_off:
        job.put("enabled", draft.jobs_off, False)
    try:
        _put_schedule(job, node, shape)
        _put_action(job, node, shape)
    except NotUsable as error:
        draft.leave_out(job.path, str(error), node)
        draft.receipt.drop(node, f"it was left out: {error}")
        return None
    if named:
        job.put_name(named)
    job.apply(shape.rules, node)
    for key in ("model", "effort", "fallbacks"):
        if "prompt" not in job and key in job:
            draft.remove(f"{job.path}.{key}", "only jobs with a prompt have this setting")
    return job


def _put_schedule(job: Part, node: Node, shape: JobShape) -> None:
    receipt = job.draft.receipt
    schedule = node.get("schedule") or (node if node.first("cron", "at") else MISSING)
    if not schedule.children and not schedule.text:
        raise NotUsable("it has no schedule")
    zone = schedule.first(*shape.zone) or node.first(*shape.zone)
    zone_name = value_converters.zone(zone) if zone.text else job.draft.zone
    if schedule.is_container:
        used = _put_times(job, schedule, zone_name, shape)
    else:
        used = _put_schedule_text(job, schedule, zone_name, shape)
    for other in (schedule.get(key) for way, keys in SCHEDULE_KEYS.items() if way != used for key in keys):
        if schedule is not node and not receipt.is_decided(other):
            receipt.drop(other, "the schedule is of another kind", is_loss=False)
    job.keep(schedule.first("kind", "type"), used)
    if used != "schedule" or "timezone" in job:
        receipt.keep(zone, job.path, "needed only to read the time")
    elif zone:
        job.put("timezone", zone, zone_name)
    else:
        job.add_zone()
    if schedule.get("staggerMs").value:
        job.apply((Rule("staggerMs", "stagger", value_converters.duration("ms", zero="0s")),), schedule)


def _put_times(job: Part, schedule: Node, zone: str, shape: JobShape) -> str:
    """The times of a schedule that is a map; our key for them."""
    word = schedule.first("kind", "type").text.lower()
    if word not in ("", *_SCHEDULE_KINDS):
        raise NotUsable(f"a schedule of the kind {word[:30]} has no times that heartbeatd could keep")
    ways = [_SCHEDULE_KINDS[word]] if word else list(SCHEDULE_KEYS)
    way, found = next(((way, found) for way in ways if (found := schedule.first(*SCHEDULE_KEYS[way]))), ("", MISSING))
    if way == "schedule":
        _put_expression(job, found, zone, shape)
    elif way == "at":
        job.put(way, found, value_converters.moment(found, shape.naive_zone or zone))
    elif way == "every":
        return _put_interval(job, found, schedule.first("anchorMs", "anchor"), shape.naive_zone or zone)
    else:
        raise NotUsable("its schedule has no expression, interval or time")
    return way


def _put_expression(job: Part, node: Node, zone: str, shape: JobShape) -> None:
    """A cron expression. heartbeatd, as cron, runs on days that match one of two restricted day fields."""
    found = value_converters.cron_expression(node, zone, seconds_last=shape.seconds_last, both_days=shape.both_days)
    job.put("schedule", node, found)
    days = found.split()[2::2]
    if shape.both_days and days and not any(field.startswith("*") for field in days):
        job.disable(f"{' and '.join(days)} both restrict the day; in {job.draft.title} both must match, here one is enough")


def _put_interval(job: Part, node: Node, anchor: Node, naive_zone: str) -> str:
    """An interval. With the time of one run (`anchor`), it becomes a schedule, if one has the same times."""
    unit = {"everyms": "ms", "minutes": "m"}.get(str(node.steps[-1]).replace("_", "").lower(), "s")
    every = value_converters.positive_duration(unit)(node)
    schedule = value_converters.anchored_schedule(node, unit, anchor, naive_zone) if anchor else None
    if schedule:
        job.put("schedule", node, schedule, "the same times")
        job.change(anchor, "schedule")
        job.add("timezone", "UTC", "the zone of these times")
        return "schedule"
    job.put("every", node, every)
    if anchor and value_converters.to_seconds(node, unit) >= PHASE_MATTERS:
        job.disable(f"no cron expression has the times of {every} from {anchor.text} on")
    return "every"


def _put_schedule_text(job: Part, node: Node, zone: str, shape: JobShape) -> str:
    """A schedule written as text: a cron expression, `every 2h`, or a time; our key for it."""
    if value_converters.looks_like_cron(node):
        _put_expression(job, node, zone, shape)
        return "schedule"
    if node.text.lower().startswith(("every ", "@every ")):
        short = node.with_text(node.text.partition(" ")[2])
        job.put("every", node, value_converters.positive_duration("m")(short))
        return "every"
    job.put("at", node, value_converters.moment(node, shape.naive_zone or zone))
    return "at"


def _put_action(job: Part, node: Node, shape: JobShape) -> None:
    command, event, prompt, message = (node.first(*keys) for keys in (shape.command, shape.event, shape.prompt, shape.message))
    wanted = node.first(*shape.agent)
    if command.text or command.children or message.text:
        if command.text or command.children:
            job.put("command", command, shape.command_form(command))
        else:
            words = ["printf", "%s\n", value_converters.text(message)]
            job.put("command", message, words, "the text is sent without an agent")
        job.draft.receipt.drop(wanted, "a command needs no agent", is_loss=False)
        _keep_kind(job, node, "command")
        return
    found, key, caller = (event, "wake_text", "wake_heartbeat") if event else (prompt, "prompt", "agent")
    _keep_kind(job, node, key)
    if not found.text:
        raise NotUsable("it has no prompt, event or command that heartbeatd could run")
    agent = job.draft.find_agent(wanted.text).name
    job.put(key, found, value_converters.text(found))
    mode = node.get("wakeMode")
    if event and (word := _WAKE_MODES.get(mode.text.lower())):
        job.put("wake_mode", mode, word)
    if wanted.text:
        job.put(caller, wanted, agent)
    else:
        job.add(caller, agent, "the default agent")


def _keep_kind(job: Part, node: Node, key: str) -> None:
    """Record the values of OpenClaw and its descendants that say what kind of job it is."""
    for kind in (node.get("payload.kind"), node.get("sessionTarget")):
        if kind.text.lower() not in ("current", "") and not kind.text.startswith("session:"):
            job.keep(kind, key)
