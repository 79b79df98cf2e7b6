"""Looks at the source of a precheck: what is new in a mailbox, at a URL, in a repository, in files, or on the disks.

A look gets the state of the last one and returns a text and the next state. It changes nothing at the source. The caller keeps
the next state only after an agent has seen the news, so that a failed run shows it again.
"""

from __future__ import annotations

import asyncio
import glob
import json
import os
import re
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urljoin, urlsplit
from xml.etree import ElementTree as ET
from xml.parsers import expat
from zoneinfo import ZoneInfo

from heartbeat.precheck import MAX_PROMPT_OUTPUT
from heartbeat.runners import Failure, HttpReply, Sight, StartProcess
from heartbeat.runners.call_errors import CallError, describe_failure
from heartbeat.runners.redaction import Redactor, reveal_secret
from heartbeat.spec import Source
from heartbeat.threads import in_daemon_thread
from heartbeat.words import format_count, format_duration, squeeze
from heartbeatd.secret import Secret
from scheduler.net.address_guard import AddressRefused
from scheduler.net.http_client import HttpClient
from scheduler.work import calendar_events, mailbox

MAX_LINE = 250  # characters
MAX_TEXT = MAX_PROMPT_OUTPUT - 200  # characters of all lines, so that the line with the rest fits too
MAX_REDIRECTS = 3
MAX_SEEN = 2000  # lines of a page, or entries of a feed, that are remembered
MAX_ENTITY = 20  # characters for which a short name of XML may stand
MAX_FILES = 2000
MAX_COMMITS = 50
MAX_ICS = 4 * 1024 * 1024  # bytes of a calendar file
OVER_BELOW = 2  # percent below the limit, at which a disk still counts as full: otherwise one byte more or less is news
LEVELS = (95, 99)  # percent, at which a full disk is news again
NOT_A_DISK = frozenset({"squashfs", "iso9660", "overlay", "tmpfs"})

_OTHER_REPOSITORY = "heartbeatd://repository"
_LOGIN_HELPER = """!f() { printf 'username=%s\\npassword=%s\\n' "$HEARTBEATD_USER" "$HEARTBEATD_PASSWORD"; }; f"""
_SCP = re.compile(r"[\w.-]+@[\w.-]+:.+")
_STEP = re.compile(r"\[(\d+|\*)\]")

State = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """What a look has found: a line for each thing that is new, the state for the next look, and what counts as seen after the
    first one.

    `names` are those of the events that the lines are about. An event happens once, so that each is reported as a problem of its
    own: a mail, an entry of a feed, a commit, a date of a calendar, a new version of a file. Without names, the lines are about
    states, which change and come back: full disks, and the lines of a page.
    """

    lines: Sequence[str]
    state: State
    first: str = ""
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a source. `state` is that of the last look, None: this is the first. `ends_at` is a time of the event loop."""

    source: Source
    state: State | None
    workspace: Path
    now: datetime
    zone: ZoneInfo
    ends_at: float

    @property
    def seconds(self) -> float:
        """The time that is left."""
        return max(self.ends_at - asyncio.get_running_loop().time(), 0.01)

    @property
    def address(self) -> str:
        """The place of the source, in plain text."""
        return reveal_secret(self.source.place)

    def path(self, text: str) -> Path:
        """A path in the config: relative to the workspace, or to the home folder with ~/."""
        return self.workspace / Path(text).expanduser()


@dataclass(frozen=True, slots=True)
class SourceReader:
    """A `LookAtSource` with the programs and the HTTP client of one attempt. `ca_file` is that of `network`."""

    start: StartProcess
    http: HttpClient
    ca_file: Callable[[], Path | None]

    async def __call__(
        self, source: Source, state: str | None, *, workspace: Path, now: datetime, zone: ZoneInfo, timeout: timedelta
    ) -> Sight:
        """See `LookAtSource`."""
        before: dict[str, Any] = json.loads(state) if state else {}
        is_first = before.get("source") != source.identity
        ends_at = asyncio.get_running_loop().time() + timeout.total_seconds()
        look = Look(source, None if is_first else before["seen"], workspace, now, zone, ends_at)
        kinds: Mapping[str, Callable[[Look], Awaitable[Found]]] = {
            "imap": self._look_at_mailbox,
            "http": self._look_at_page,
            "rss": self._look_at_feed,
            "git": self._look_at_repository,
            "calendar": self._look_at_calendar,
            "files": lambda look: _in_thread(look, look_at_files, look),
            "disk": lambda look: _in_thread(look, look_at_disks, look),
        }
        secrets = (source.place, source.user, source.password, *source.headers.values())
        redactor = Redactor([each.reveal() for each in secrets if isinstance(each, Secret)])
        try:
            found = await kinds[source.kind](look)
        except TimeoutError:
            raise CallError(Failure.TIMEOUT, f"no answer within {format_duration(timeout)}") from None
        except AddressRefused:
            raise CallError(Failure.CONNECT, "it redirects to a private address of another host") from None
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise CallError(Failure.BAD_ANSWER, squeeze(redactor.redact(reason), 300)) from None
        since = now.isoformat() if is_first or found.lines else before["since"]
        after = json.dumps({"source": source.identity, "since": since, "seen": found.state})
        if found.lines:
            events = join_equal(found)
            lines = fit_lines(events or found.lines)
            names = tuple(digest(f"{source.title} {events.get(line, line)}") for line in lines) if events else ()
            return Sight("\n".join(lines), after, has_news=True, events=names)
        when = datetime.fromisoformat(since).astimezone(zone)
        nothing = f"nothing new in {source.title} since {when:%Y-%m-%d %H:%M}"
        return Sight(f"first look at {source.title}: {found.first}" if is_first else nothing, after, has_news=False)

    async def _look_at_mailbox(self, look: Look) -> Found:
        args = look.source, look.state, self.ca_file(), look.seconds
        return Found(*await _in_thread(look, mailbox.read_unread, *args))

    async def _fetch(self, look: Look, url: str, headers: Mapping[str, str]) -> HttpReply:
        """The page, after at most MAX_REDIRECTS redirects. Raises CallError.

        Headers, which may have a key, go to the first origin alone. Another host must be a public one.
        """
        sent = {name: reveal_secret(value) for name, value in look.source.headers.items()} | dict(headers)
        first = urlsplit(url)
        is_first_host = True
        for _ in range(MAX_REDIRECTS + 1):
            reply = await self.http.get(url, sent, look.seconds, public_only=not is_first_host)
            if reply.status not in (301, 302, 303, 307, 308) or not reply.headers.get("location"):
                break
            url = urljoin(url, reply.headers["location"])
            to = urlsplit(url)
            if (to.scheme, to.hostname, to.port) != (first.scheme, first.hostname, first.port):
                sent = {}
            elif first.username is not None and to.username is None:  # an absolute redirect has lost the login
                url = to._replace(netloc=first.netloc).geturl()
            is_first_host = to.hostname == first.hostname
        if not 200 <= reply.status < 300 and reply.status != 304:
            why = f"it redirects more than {MAX_REDIRECTS} times" if 300 < reply.status < 400 else f"it answered {reply.status}"
            raise CallError(Failure.BAD_ANSWER, why)
        return reply

    async def _fetch_changed(self, look: Look) -> HttpReply | None:
        """The page, None if its server says that it has not changed since the last look."""
        known = (look.state or {}).get("validators", {})
        reply = await self._fetch(look, look.address, known)
        return None if reply.status == 304 else reply

    async def _look_at_page(self, look: Look) -> Found:
        reply = await self._fetch_changed(look)
        if reply is None:
            return Found((), look.state or {})
        text = reply.body.decode(errors="replace")
        lines = select_values(text, look.source.json_path) if look.source.json_path else text.splitlines()
        lines = [line for each in lines if (line := squeeze(each))]  # compared as a whole, although only MAX_LINE are shown
        if len(lines) > MAX_SEEN:
            raise ValueError(f"it has more than {MAX_SEEN:,} lines; compare a part of it with json, or print it with a command")
        digests = [digest(line) for line in lines]
        seen = frozenset((look.state or {}).get("lines", ()))
        news = [line for line, name in zip(lines, digests, strict=True) if name not in seen]
        if look.state and seen > set(digests):
            news = [f"({format_count(len(seen - set(digests)), 'line')} of the last look left)"]
        return Found(news, {"validators": validators(reply), "lines": [*dict.fromkeys(digests)]}, "it was empty")

    async def _look_at_feed(self, look: Look) -> Found:
        reply = await self._fetch_changed(look)
        if reply is None:
            return Found((), look.state or {})
        entries = read_feed(reply.body)
        before: list[str] = (look.state or {}).get("entries", [])
        seen = frozenset(before)
        news = {name: line for name, line in entries.items() if name not in seen} if look.state else {}
        kept = [*(name for name in before if name not in entries), *entries][-MAX_SEEN:]
        state = {"validators": validators(reply), "entries": kept}
        return Found([*news.values()], state, f"its entries ({len(entries)}) are seen", [*news])

    async def _look_at_calendar(self, look: Look) -> Found:
        address = look.address.replace("webcal://", "https://", 1)
        if "://" in address:
            data = (await self._fetch(look, address, {})).body
        else:
            data = await _in_thread(look, _read_file, look.path(address))
        shown = (look.state or {}).get("events", {})
        span = look.now, look.now + look.source.ahead
        events = await _in_thread(look, calendar_events.list_events, data, *span, look.zone)
        news = [f"changed: {line}" if name in shown else line for name, line in events.items() if shown.get(name) != line]
        gone = {name: line for name, line in shown.items() if name not in events}
        # The beginning of a line is its local time. An event of this minute has begun.
        now = f"{look.now.astimezone(look.zone):%Y-%m-%d %H:%M}"
        news += [f"moved or cancelled: {line}" for line in gone.values() if line[: len(now)] > now]
        return Found(news, {"events": events}, "no event is ahead", news)

    async def _look_at_repository(self, look: Look) -> Found:
        """What is new on a branch: of a folder as it is there, or of a server."""
        address, redactor = look.address, Redactor([look.address] if isinstance(look.source.place, Secret) else [])
        is_remote = "://" in address or _SCP.fullmatch(address) is not None
        repository = _OTHER_REPOSITORY if is_remote else str(look.path(address))
        branch = look.source.branch
        name = f"refs/heads/{branch}" if branch else "HEAD"
        # The workspace may be a repository whose settings name programs, and the agent may write there.
        with tempfile.TemporaryDirectory(prefix="heartbeatd-git-") as folder:
            git = partial(self._run_git, look, address if is_remote else None, redactor, cwd=Path(folder))
            listed = await git("ls-remote", "--", repository, name)
            tip = next((line.split()[0] for line in listed.splitlines() if line.endswith(f"\t{name}")), None)
            if tip is None:
                raise ValueError(f"it has no branch {branch}" if branch else "it has no commits")
            before = (look.state or {}).get("tip")
            state = {"tip": tip}
            if before is None or before == tip:
                return Found((), state, f"its commits up to {tip[:9]} are seen")
            if is_remote:
                await git("init", "--quiet", "--bare", "--", folder)
                # Commits alone, without files. The shallow history is enough for their titles.
                fetch = ("fetch", "--quiet", f"--depth={MAX_COMMITS + 1}", "--filter=tree:0", "--no-tags", "--", repository)
                await git(*fetch, name)
                with suppress(CallError):  # the server may have deleted it after the history was rewritten
                    await git(*fetch, before)
            lines = await self._list_commits(git, Path(folder if is_remote else repository), before, tip, is_whole=not is_remote)
            return Found(lines, state, names=lines)

    async def _list_commits(
        self, git: Callable[..., Awaitable[str]], folder: Path, before: str, tip: str, *, is_whole: bool
    ) -> list[str]:
        """One line for each commit after `before`, the newest first; not `is_whole`: older ones than MAX_COMMITS are unknown."""
        log = ("log", "--format=%h %an: %s", f"--max-count={MAX_COMMITS}")
        try:
            new = (await git(*log, f"{before}..{tip}", "--", cwd=folder)).splitlines()
            total = int(await git("rev-list", "--count", f"{before}..{tip}", "--", cwd=folder))
        except CallError:
            new = (await git(*log, tip, "--", cwd=folder)).splitlines()
            return [*new, f"(the commit {before[:9]} of the last look is not among these: the history is longer, or rewritten)"]
        count = format_count(total - len(new), "older commit") if is_whole else "older commits"
        more = [f"(and {count})"] if total > len(new) else []
        return [*new, *more] or [f"the branch was set back to {tip[:9]}"]

    async def _run_git(self, look: Look, remote: str | None, redactor: Redactor, *argv: str, cwd: Path) -> str:
        """The output of git, which asks for no password. All users of the machine see the arguments of git and of the programs
        that it starts. So the address is no argument of git, and the login in it comes from a helper.
        """
        env: dict[str, object] = {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",  # from where, and with which program, the settings of the repository would say
        }
        settings: list[tuple[object, str]] = []
        if remote is not None:
            server = urlsplit(remote)
            if server.scheme in ("http", "https") and server.username:
                host = server.netloc.rpartition("@")[2]
                remote = server._replace(netloc=host).geturl()
                settings = [("credential.helper", ""), (f"credential.{server.scheme}://{host}.helper", _LOGIN_HELPER)]
                env["HEARTBEATD_USER"] = Secret(unquote(server.username))
                env["HEARTBEATD_PASSWORD"] = Secret(unquote(server.password or ""))
            settings.append((Secret(f"url.{remote}.insteadOf"), _OTHER_REPOSITORY))
        for number, (key, value) in enumerate(settings):
            env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        env["GIT_CONFIG_COUNT"] = str(len(settings))
        ended = await self.start(
            ("git", "-c", "core.fsmonitor=false", "-c", "log.showSignature=false", *argv),
            stdin=b"",
            env=env,
            cwd=cwd,
            keep=MAX_PROMPT_OUTPUT,
            timeout=timedelta(seconds=look.seconds),
        )
        if ended.ended_by not in (None, "timeout"):
            raise CallError(Failure.EXIT, "was interrupted")
        if ended.timed_out:
            raise TimeoutError
        error = describe_failure(ended, redactor, "")
        if error is not None:
            raise CallError(Failure.BAD_ANSWER, squeeze(error, 300))
        return ended.output_text


def fit_lines(lines: Iterable[str]) -> list[str]:
    """The lines that fit into a prompt, each as one line of at most MAX_LINE characters, and how many there are besides."""
    short = [line for each in lines if (line := squeeze(each, MAX_LINE))]
    fitting, size = 0, 0
    while fitting < len(short) and size + len(short[fitting]) < MAX_TEXT:
        size += len(short[fitting]) + 1
        fitting += 1
    more = len(short) - fitting
    return [*short[:fitting], f"(and {format_count(more, 'more line')}, which did not fit)"] if more else short


def join_equal(found: Found) -> dict[str, str]:
    """The lines of events, each with its name. Equal lines become one, with a name of its own for these events."""
    names: dict[str, list[str]] = {}
    for line, name in zip(found.lines, found.names, strict=False):  # without names, there is none
        names.setdefault(squeeze(line, MAX_LINE), []).append(name)
    events = {}
    for line, own in names.items():
        shown = line if len(own) == 1 else squeeze(f"{len(own)} times: {line}", MAX_LINE)
        events[shown] = " ".join(own)
    return events


def digest(text: str) -> str:
    """A short digest, by which a line or an entry is known again."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def validators(reply: HttpReply) -> dict[str, str]:
    """The headers by which the next request asks whether the page has changed."""
    named = {"if-none-match": reply.headers.get("etag"), "if-modified-since": reply.headers.get("last-modified")}
    return {name: value for name, value in named.items() if value and value.isascii() and len(value) < 500}


def select_values(text: str, path: str) -> list[str]:
    """The values at a path in JSON such as `items[*].title`, each as text. Raises ValueError without such a value.

    `*` stands for each element of a list, which may be empty, or each value of a map.
    """
    try:
        values = [json.loads(text)]
    except (ValueError, RecursionError):
        raise ValueError("its answer is not JSON") from None
    has_many = False
    for step in _STEP.sub(r".\1", path).removeprefix(".").split("."):
        if step == "*":
            has_many = True
            values = [part for each in values for part in _children(each)]
            continue
        found = [_child(each, step) for each in values]
        values = [each for each in found if each is not _MISSING]
        if len(values) < len(found) and not (has_many and values):
            raise ValueError(f"its answer has no {step!r} on the path {path}")
    texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in values]
    return texts if has_many else [f"{path}: {each}" for each in texts]


_MISSING = object()


def _children(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _child(value: object, step: str) -> object:
    if isinstance(value, dict):
        return value.get(step, _MISSING)
    if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
        return value[int(step)]
    return _MISSING


def read_feed(data: bytes) -> dict[str, str]:
    """The entries of an RSS or Atom feed: a line for each, by a digest of its id. Raises ValueError if it is no feed.

    The standard parser is enough for titles and links. feedparser would add the repair of broken feeds, and 5,000 lines.
    """
    try:
        declarations = expat.ParserCreate()
        declarations.EntityDeclHandler = _refuse_growth
        declarations.Parse(data, True)
        root = ET.fromstring(data)  # noqa: S314 (its entities are short, and the client limits the size)
    except (ET.ParseError, expat.ExpatError) as error:
        raise ValueError(f"it is not a feed ({error})") from None
    nodes = [node for node in root.iter() if _local_name(node) in ("item", "entry")]
    if not nodes and _local_name(root) not in ("rss", "feed", "RDF"):
        raise ValueError(f"it is not a feed, but {_local_name(root)}")
    if len(nodes) > MAX_SEEN:
        raise ValueError(f"it has more than {MAX_SEEN:,} entries; print the newest ones with a command")
    entries: dict[str, str] = {}
    for node in nodes:
        parts = {_local_name(part): (part.text or part.get("href") or "").strip() for part in reversed(node)}
        title, link = parts.get("title", ""), parts.get("link", "")
        name = parts.get("guid") or parts.get("id") or link or title
        if name:
            entries[digest(name)] = squeeze(f"{title} {link}", MAX_LINE) or squeeze(name, MAX_LINE)
    return entries


def _refuse_growth(name: str, _is_parameter: bool, value: str | None, *_: object) -> None:
    """ValueError for an entity that is more than a name for a character. expat alone lets 4 MiB grow to 400."""
    if value is not None and (len(value) > MAX_ENTITY or "&" in value):
        raise ValueError(f"it is not a feed (it declares the entity {name}, which may make it much larger)")


def _local_name(node: ET.Element) -> str:
    return node.tag.rpartition("}")[2] if isinstance(node.tag, str) else ""


def look_at_files(look: Look) -> Found:
    """The files of a pattern that are new, or whose size or time has changed."""
    pattern = str(Path(look.address).expanduser())
    files: dict[str, str] = {}
    lines: dict[str, str] = {}
    names: dict[str, str] = {}
    before: Mapping[str, str] = (look.state or {}).get("files", {})
    for path in _matching_paths(look.workspace, pattern):
        try:
            found = (look.workspace / path).stat()
        except OSError:  # it was deleted, or is a broken link
            continue
        if not stat.S_ISREG(found.st_mode):
            continue
        if len(files) == MAX_FILES:
            raise ValueError(f"the pattern matches more than {MAX_FILES:,} files; write a narrower one")
        name, version = digest(path), digest(f"{found.st_size} {found.st_mtime_ns}")
        files[name] = version
        if before.get(name) != version:
            lines[path] = f"{'changed' if name in before else 'new'}: {path} ({format_count(found.st_size, 'byte')})"
            names[path] = name + version
    new = sorted(lines) if look.state is not None else []
    first = f"{format_count(len(files), 'file')}, none new"
    return Found([lines[path] for path in new], {"files": files}, first, [names[path] for path in new])


def _matching_paths(folder: Path, pattern: str) -> Iterator[str]:
    """As `glob.iglob` finds them, but each folder below `**` once: with links in a circle, the other way would never end."""
    before, stars, after = f"/{pattern}/".partition("/**/")
    if not stars:
        yield from glob.iglob(pattern, root_dir=folder)  # noqa: PTH207 (takes an absolute pattern too)
        return
    for base in _matching_paths(folder, before[1:]) if before[1:] else [""]:
        for below in _folders_below(folder / base):
            for path in _matching_paths(folder / base / below, after.strip("/") or "*"):
                yield os.path.normpath(os.path.join(base, below, path))  # noqa: PTH118 (keeps a path relative)


def _folders_below(top: Path) -> Iterator[str]:
    """The folder itself and all below it, relative to it, also behind links. Hidden ones are left out, as `*` does it."""
    seen: set[tuple[int, int]] = set()
    for folder, names, _ in os.walk(top, followlinks=True):
        names[:] = sorted(name for name in names if not name.startswith("."))
        with suppress(OSError):  # it was deleted
            found = os.stat(folder)  # noqa: PTH116
            if (found.st_dev, found.st_ino) in seen:
                names.clear()
                continue
            seen.add((found.st_dev, found.st_ino))
            yield os.path.relpath(folder, top)


def _percent_used(path: str) -> int:
    """As `df` shows it: the share of the space that ordinary users may use, rounded up."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    used = found.f_blocks - found.f_bfree
    return -(-100 * used // max(used + found.f_bavail, 1))


def look_at_disks(look: Look, measure: Callable[[str], int] = _percent_used) -> Found:
    """The disks that are full to the limit or more, if one of them has reached the limit or a further level, or is over."""
    source, before = look.source, (look.state or {}).get("levels", {})
    levels: dict[str, int] = {}
    full, over = [], []
    for path in source.paths or folders_of_disks(_mounts()):
        percent = measure(path)
        known = before.get(path, 0)
        if percent >= source.limit:
            reached = max(level for level in (source.limit, *LEVELS) if level <= percent)
            levels[path] = max(known, reached)
            full.append(f"{path} is {percent} % full")
        elif known and percent >= source.limit - OVER_BELOW:
            levels[path] = known
        elif known:
            over.append(f"{path} is below {source.limit} % again: {percent} %")
    has_changed = over or any(level > before.get(path, 0) for path, level in levels.items())
    return Found([*full, *over] if has_changed else (), {"levels": levels}, f"no disk is {source.limit} % full")


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text("utf-8", errors="replace")
    except OSError:  # another system than Linux
        return ""


def folders_of_disks(mounts: str) -> list[str]:
    """The root folder, and where each other device is mounted for writing, as far as this user can reach it."""
    by_device: dict[str, str] = {}
    for line in mounts.splitlines():
        device, place, kind, options = line.split(" ")[:4]
        is_disk = device.startswith("/dev/") and kind not in NOT_A_DISK and "ro" not in options.split(",")
        folder = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), place)
        # A single file may be mounted in a container. `Path.is_dir` would raise an error below a private folder.
        if is_disk and os.path.isdir(folder):  # noqa: PTH112
            by_device.setdefault(device, folder)
    return [*dict.fromkeys(["/", *by_device.values()])]


async def _in_thread(look: Look, function: Callable[..., T], *args: object) -> T:
    """Call a function that may block. After the time of the look the thread may continue, but nothing waits for it."""
    async with asyncio.timeout(look.seconds):
        return await in_daemon_thread(function, *args)


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_ICS + 1)
    if len(data) > MAX_ICS:
        raise ValueError(f"{path.name} is larger than {MAX_ICS // 1024**2} MiB")
    return data
