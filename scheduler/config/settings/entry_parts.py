"""Builds what the heartbeat of an agent and a job have in common: when they run, their precheck, and their recipients.

Errors are added at `node`, whose steps lead to the keys of the heartbeat or of the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache, reduce
from hashlib import sha256
from operator import or_
from typing import Any, cast
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from cron.job_schedules import CronSchedule, ScheduleError, parse_schedule
from heartbeat.hours import ALL_DAYS, EMPTY_CALENDAR, AllowedDays, Calendar, Hours, window
from heartbeat.slots import IntervalSlots, stagger_for
from heartbeat.spec import Ask, DeliverHours, Effort, Postcheck, Precheck, Runner, Source, SourceKind, may_be_asked_again
from heartbeat.words import format_count, format_duration
from heartbeatd.secret import Secret
from scheduler.channels.url_template import PLACEHOLDER
from scheduler.config.keys import models
from scheduler.config.keys.value_types import Share
from scheduler.config.settings.config_data import PRECHECK_KINDS
from scheduler.config.settings.config_node import ConfigNode, build_spec
from scheduler.model.local_days import A_DAY
from scheduler.model.settings import LAST_TARGET, LOG_CHANNEL

ALWAYS = Hours()
NO_TIME = timedelta(0)
LONGEST_PRECHECK = timedelta(seconds=30)
WEEKS = 4
SOME_MONDAY = datetime(2026, 1, 5, tzinfo=UTC)  # no clock changes in the four weeks from then on
SOME_WEEKS = (SOME_MONDAY - datetime.resolution, SOME_MONDAY + WEEKS * timedelta(days=7) - datetime.resolution)
GRID_STARTS = 12  # start times that are tried: an interval starts when its agent is first seen


def build_shared_fields(
    name: str,
    part: models.Heartbeat | models.Job,
    node: ConfigNode,
    *,
    zone: ZoneInfo,
    period: timedelta | None,
    longest_grace: timedelta,
    share: Share,
    speaks: bool,
) -> dict[str, Any]:
    """The fields of the spec that are computed in the same way for a heartbeat and a job.

    `period` is the shortest time between two runs, None if there is none. `share` is how much of it the stagger may be.
    `speaks`: the entry has an agent, so `last` may be a recipient.
    """
    grace = part.misfire.grace
    deliver = _default_channel(node, speaks=speaks) if part.deliver is None else _check_deliver(part.deliver, node, speaks=speaks)
    deliver_hours = tuple(_build_deliver_hours(part.deliver or (), zone, node))
    return {
        "name": name,
        "zone": zone,
        "stagger": _build_stagger(name, share, period, node),
        "grace": grace if grace is not None else min(period / 2, longest_grace) if period else longest_grace,
        "calendars": _build_days(part, zone, node),
        "deliver": deliver,
        "deliver_hours": deliver_hours,
        "problems_hours": (
            tuple(_build_deliver_hours(part.problems.deliver, zone, node.below("problems")))
            if part.problems.deliver
            else deliver_hours
        ),
        "problems_after": part.problems.after,
        "problems_remind": part.problems.remind,
        "clear_after": part.problems.clear_after,
        "pause_after": part.problems.pause_after,
        "postcheck": _build_postcheck(part, node),
        "ask": _build_ask(part.ask, node),
        "problems_deliver": _choose_problem_channels(part.problems, deliver, node, speaks=speaks),
    }


def build_schedule(text: str, zone: ZoneInfo, node: ConfigNode, *, calls_model: bool) -> CronSchedule | None:
    """The schedule of a cron expression; None after an error. `calls_model`: limits.min_interval applies to its times."""
    try:
        schedule = parse_schedule(text, zone)
    except ScheduleError as error:
        node.add_error(str(error), "schedule")
        return None
    for warning in schedule.warnings:
        node.add_warning(warning, "schedule")
    shortest = node.context.config.limits.min_interval
    if calls_model and schedule.shortest_period() < shortest:
        period, least = format_duration(schedule.shortest_period()), format_duration(shortest)
        problem = f"its shortest interval is {period}, but limits.min_interval is {least}"
        node.add_error(f"{problem}; space the times out, or lower the limit", "schedule")
    return schedule


def check_min_interval(interval: timedelta, node: ConfigNode, key: str) -> None:
    """Add an error for an interval below limits.min_interval."""
    shortest = node.context.config.limits.min_interval
    if interval < shortest:
        least = format_duration(shortest)
        problem = f"{format_duration(interval)} is below limits.min_interval, which is {least}"
        node.add_error(f"{problem}; write {least} or more, or lower the limit", key)


def check_interval_fits_hours(interval: timedelta, hours: Hours, node: ConfigNode) -> None:
    """Warn of an interval that does not fit the active hours, with the number of runs a week that are left."""
    runs = None if hours.always else _runs_per_week(interval, hours)
    if runs is None:
        return
    least, most = runs
    number = format_count(most, "run") if least == most else f"{least} to {format_count(most, 'run')}"
    when = "" if least == most else ", depending on when the agent is first seen"
    node.add_warning(
        f"{format_duration(interval)} does not fit the active hours, which allow {number} a week{when};"
        " change one of them, or write the times with schedule:",
        "interval",
    )


@lru_cache(maxsize=1024)  # many agents share their interval and their hours
def _runs_per_week(interval: timedelta, hours: Hours) -> tuple[int, int] | None:
    """The fewest and the most runs a week, depending on when the interval starts; None if interval and hours fit."""
    openings = list(hours.openings(*SOME_WEEKS))
    if not openings or interval > SOME_WEEKS[1] - SOME_WEEKS[0]:
        return None
    shortest = min(closes - opens for opens, closes in openings)
    if 3 * interval <= shortest:
        return None
    least, most = _slot_count_range(interval, hours)
    if interval < A_DAY:
        fits = interval <= shortest and most < 1.5 * least
    else:
        days = {opens.date() for opens, _ in openings}
        fits = least >= 0.9 * min((SOME_WEEKS[1] - SOME_WEEKS[0]) // interval, len(days))
    return None if fits else (round(least / WEEKS), round(most / WEEKS))


def _slot_count_range(interval: timedelta, hours: Hours) -> tuple[int, int]:
    """The fewest and the most planned times in the sample weeks, for intervals that started at different times."""
    start = SOME_MONDAY - max(1, timedelta(days=14) // interval) * interval
    grids = (
        IntervalSlots(start + number * interval / GRID_STARTS, interval, timedelta(), hours) for number in range(GRID_STARTS)
    )
    counts = [found.count if (found := grid.slots(*SOME_WEEKS)) else 0 for grid in grids]
    return min(counts), max(counts)


def choose_effort(*named: models.EffortOrNone | None) -> Effort | None:
    """The first effort that is set, of an entry and then of its agent; None if it is `none`, or if none is set."""
    found = next((each for each in named if each is not None), None)
    return None if found == "none" else found


def _build_stagger(name: str, share: Share, period: timedelta | None, node: ConfigNode) -> timedelta:
    """The delay of an entry after each planned time: by a hash of its name, and at most its `share` of the period."""
    if isinstance(share, float):
        return stagger_for(name, period * share) if period else NO_TIME
    if period and share > period:
        most = format_duration(period)
        node.add_error(f"{format_duration(share)} is more than the shortest interval, {most}; write {most} or less", "stagger")
    return stagger_for(name, share)


def _build_days(part: models.EntryKeys, zone: ZoneInfo, node: ConfigNode) -> AllowedDays:
    """The days of a time zone on which an entry may run."""
    if not (part.skip_on or part.only_on):
        return ALL_DAYS
    declared = node.context.calendars
    node.check_declared(part.skip_on, declared, "calendar", "skip_on")
    node.check_declared(part.only_on, declared, "calendar", "only_on")
    skip, only = (tuple(declared[name] for name in names if name in declared) for names in (part.skip_on, part.only_on))
    return _shared_days(zone, skip, only if part.only_on else None)


@lru_cache(maxsize=1024)
def _shared_days(zone: ZoneInfo, skip: tuple[Calendar, ...], only: tuple[Calendar, ...] | None) -> AllowedDays:
    return AllowedDays(zone, reduce(or_, skip, EMPTY_CALENDAR), None if only is None else reduce(or_, only, EMPTY_CALENDAR))


def further_calls(given: int | None, runner: Runner) -> int:
    """How often an agent is asked again in a run."""
    if given is not None:
        return given
    return 2 if may_be_asked_again(runner) else 0


def build_precheck(part: models.Precheck | None, most: timedelta, node: ConfigNode) -> Precheck | None:
    """Build a checked precheck. `most` is the timeout of the whole attempt."""
    if part is None:
        return None
    timeout = part.timeout or min(most / 2, LONGEST_PRECHECK)
    if timeout >= most:
        wrong = f"{format_duration(timeout)} leaves the agent no time"
        node.add_error(f"{wrong}; write less than the whole timeout of {format_duration(most)}", "precheck", "timeout")
    inside = node.below("precheck")
    kinds = [kind for kind in PRECHECK_KINDS if getattr(part, kind) is not None]
    if not kinds:
        others = ", ".join(PRECHECK_KINDS[1:])
        inside.add_error(f"is missing; write command: ./new-mail.sh, or one of {others}", missing="command")
        return None
    if len(kinds) > 1:
        inside.add_error(f"{' and '.join(kinds)} exclude each other; keep one of them")
        return None
    inside.report_unused(_find_keys_of_other_kinds(kinds[0]))
    if kinds != ["command"]:
        source = _build_source(cast("SourceKind", kinds[0]), part, inside)
        return Precheck("", "skip", part.on_error or "skip", timeout, confirm=0, source=source)
    unchanged = part.unchanged
    if not unchanged.skip:
        _check_keys_of_skipping(unchanged, inside)
    return Precheck(
        part.command or "",
        "skip" if unchanged.skip else "run",
        part.on_error or "run",
        timeout,
        max_age=unchanged.max_age if unchanged.skip else None,
        confirm=part.confirm,
    )


def _find_keys_of_other_kinds(kind: str) -> Iterator[tuple[str, str]]:
    """The keys of a precheck that have no effect with this kind, each with the error."""
    for key, form in models.definition("Precheck")["properties"].items():
        kinds = form.get("x-applies-to", kind)
        if kind not in kinds.split(" or "):
            yield key, f"{key} belongs to {kinds}, and this precheck looks at {kind}; remove {key}"


def _build_source(kind: SourceKind, part: models.Precheck, node: ConfigNode) -> Source:
    """The source of a checked precheck."""
    written = str(getattr(part, kind))
    place: object = written
    if kind in ("http", "rss", "git", "calendar"):
        is_page = kind in ("http", "rss") or "://" in written
        resolve = (
            node.resolve_address if is_page and kind != "git" and not written.startswith("webcal://") else node.resolve_secret
        )
        place = resolve(written, kind) or Secret("")
    if kind == "imap":
        for key in ("user", "password"):
            if getattr(part, key) is None:
                node.add_error(f'write {key}: "${{MAIL_{key.upper()}}}"', missing=key)
        node.warn_of_plain_secret(part.password, "password")
        if part.encryption == "none" and written.partition(":")[0] not in ("localhost", "127.0.0.1", "[::1]"):
            node.add_warning("the password is sent as plain text; write tls or starttls", "encryption")
    own = {name: text for name in (*PRECHECK_KINDS, *_SHOWN_NEWS) if (text := getattr(part, name)) is not None}
    return build_spec(
        part,
        Source,
        kind=kind,
        title=f"{kind} {_title(kind, written)}",
        identity=sha256(repr(sorted(own.items())).encode(errors="replace")).hexdigest()[:16],
        place=place,
        user=node.resolve_secret(part.user, "user"),
        password=node.resolve_secret(part.password, "password"),
        folder=part.folder or "INBOX",
        encryption=part.encryption or "tls",
        headers=node.build_environment(part.headers, "headers"),
        ahead=part.ahead or A_DAY,
        limit=part.disk or 0,
        paths=part.path,
    )


_SHOWN_NEWS = ("user", "folder", "json_path", "branch", "ahead", "path")  # another value shows other news


def _title(kind: str, written: str) -> str:
    """What names the source in texts: of a URL only the host, because the rest may be secret."""
    try:
        host = urlsplit(written).hostname if "://" in written else None
    except ValueError:  # a wrong address, such as http://[::1, has an error of its own
        host = None
    if kind == "disk":
        return f"{written}%"
    if kind in ("imap", "files"):
        return written
    if "://" in written:
        return host if host and "$" not in host else "of a URL"
    return "of a server" if "@" in written or "${" in written else written


def _build_postcheck(entry: models.Heartbeat | models.Job, node: ConfigNode) -> Postcheck | None:
    """Build the checked postcheck of an entry. It takes its time from the timeout of the whole attempt."""
    part, most = entry.postcheck, entry.timeout
    if part is None:
        return None
    timeout = part.timeout or min(most / 4, LONGEST_PRECHECK)
    before = (entry.precheck.timeout if entry.precheck else None) or NO_TIME
    if before < most <= timeout + before:
        rest = f"{format_duration(most - before)}, what the precheck leaves" if before else "the whole timeout"
        rest += f" of {format_duration(most)}"
        node.add_error(f"{format_duration(timeout)} leaves the run no time; write less than {rest}", "postcheck", "timeout")
    if part.retry and not entry.retries and "retry" in node.below("postcheck").own_keys:
        node.add_warning("retries is 0, so no further try follows; write retries: 1 beside postcheck", "postcheck", "retry")
    return build_spec(part, Postcheck, timeout=timeout)


def _check_keys_of_skipping(unchanged: models.Unchanged, node: ConfigNode) -> None:
    """Report keys of the entry's own precheck that have no effect, because an unchanged output does not skip the run."""
    own = node.below("unchanged").own_keys
    is_inherited = "skip" in own and "max_age" not in own
    if unchanged.max_age is not None and not is_inherited:
        problem = "runs are not skipped here; remove max_age, or write skip: true"
        node.add_error(problem, "unchanged", "max_age")
    if "confirm" in node.own_keys:
        problem = "only runs that an unchanged output would skip are confirmed"
        node.add_error(f"{problem}; remove confirm, or write unchanged: skip too", "confirm")


def _default_channel(node: ConfigNode, *, speaks: bool) -> tuple[str, ...]:
    """The only declared channel, else the log. A channel with {target} is only for agents, which have a last recipient."""
    declared, to_last = node.context.channels[1:], node.context.open_channels
    if len(declared) != 1 or (declared[0] in to_last and not speaks):
        return (LOG_CHANNEL,)
    return (LAST_TARGET,) if declared[0] in to_last else declared


def build_hours(windows: tuple[models.Window, ...], zone: ZoneInfo, node: ConfigNode, *inside: str | int) -> Hours:
    """The hours of these windows. `zone` is that of a window without one. Errors are added `inside` the node."""
    for index, part in enumerate(windows):
        if part.start == part.end:
            node.add_error(f"start and end are the same; write two different times, or {inside[-1]}: always", *inside, index)
            return ALWAYS
    return _shared_hours(tuple((part.start, part.end, frozenset().union(*part.days), part.timezone or zone) for part in windows))


@lru_cache(maxsize=1024)
def _shared_hours(windows: tuple[tuple[int, int, frozenset[int], ZoneInfo], ...]) -> Hours:
    return Hours(tuple(window(*parts) for parts in windows)) if windows else ALWAYS


def _build_deliver_hours(recipients: tuple[models.Recipient, ...], zone: ZoneInfo, node: ConfigNode) -> Iterator[DeliverHours]:
    """The hours of the recipients that have some."""
    for each in recipients:
        hours = build_hours(each.hours, zone, node, "deliver", "hours")
        if not each.to and "hours" in node.below("deliver").own_keys:
            node.add_warning("nothing is sent, so hours has no effect; remove it, or write to: CHANNEL", "deliver", "hours")
        if not hours.always:
            yield from (DeliverHours(name, hours, each.critical == "always") for name in each.to)


def _build_ask(part: models.Ask | None, node: ConfigNode) -> Ask | None:
    """Who answers questions. `check_ask` in load.py checks what depends on the kinds of the channels."""
    if part is None:
        return None
    offered = [name for name in node.context.channels if name not in node.context.open_channels]
    node.check_declared(part.to, node.context.channels, "channel", "ask", "to", offered=offered)
    for index, name in enumerate(part.to):
        if name in node.context.open_channels:
            problem = f"the URL of {name} holds {PLACEHOLDER}, and names no recipient; write a recipient in the URL"
            node.add_error(problem, "ask", "to", index)
    if not part.to:
        node.add_error("nobody would be asked; write the name of a channel, or ask: none", "ask")
    return build_spec(part, Ask, people=fold_people(part.people))


def fold_people(names: tuple[str, ...]) -> tuple[str, ...]:
    """People as answers name them: user names without the @ and in lower case, or numbers."""
    return tuple(name.removeprefix("@").casefold() for name in names)


def names_of(recipients: tuple[models.Recipient, ...] | None) -> tuple[str, ...]:
    """The channels of these recipients."""
    return tuple(name for each in recipients or () for name in each.to)


def _check_deliver(recipients: tuple[models.Recipient, ...], node: ConfigNode, *, speaks: bool) -> tuple[str, ...]:
    """The names in the `deliver` below a node. An error is added for each that has no recipient."""
    names = names_of(recipients)
    offered = [name for name in node.context.channels if name not in node.context.open_channels]
    offered += [LAST_TARGET] if speaks and node.context.open_channels else []
    node.check_declared(names, (*node.context.channels, LAST_TARGET), "channel", "deliver", offered=offered)
    for index, name in enumerate(names):
        if name in names[:index]:
            node.add_error(f"{name!r} is listed twice; remove one of them", "deliver", index)
        if problem := _deliver_problem(name, node, speaks=speaks):
            node.add_error(problem, "deliver", index)
    return names


def _deliver_problem(name: str, node: ConfigNode, *, speaks: bool) -> str | None:
    if name in node.context.open_channels:
        words = "write last, or a recipient in the URL" if speaks else "write a recipient in the URL"
        return f"the URL of {name} holds {PLACEHOLDER}, and names no recipient; {words}"
    if name != LAST_TARGET:
        return None
    if not speaks:
        return "last is the recipient who wrote to an agent last, and this job calls no agent; write the name of a channel"
    if not node.context.open_channels:
        example = f'channels: {{chat: "tgram://${{TOKEN}}/{PLACEHOLDER}"}}'
        return f"last needs a channel whose URL contains {PLACEHOLDER} in place of the recipient; write {example}"
    return None


def _choose_problem_channels(
    part: models.JobProblems, deliver: tuple[str, ...], node: ConfigNode, *, speaks: bool
) -> tuple[str, ...]:
    """Where the failures of an entry are sent; without channels of their own they are sent to its `deliver`."""
    if part.deliver == ():
        node.add_error("failures would not be sent to anyone; write after: none if that is intended", "problems", "deliver")
    if part.deliver:
        return _check_deliver(part.deliver, node.below("problems"), speaks=speaks)
    return _default_channel(node, speaks=speaks) if part.after and not deliver else ()
