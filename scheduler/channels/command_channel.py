"""One message handed to a program: the text on its standard input, and its exit code says what became of it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from heartbeat.runners import StartProcess
from scheduler.channels.http_post import clean_reason
from scheduler.channels.message import DeliveryResult, Message

TOTAL = timedelta(seconds=30)


async def send(
    argv: tuple[str, ...], folder: Path, message: Message, start: StartProcess, *, total: timedelta = TOTAL
) -> DeliveryResult:
    """Hand `message` once to a program that is started in `folder`; waits for at most `total`.

    No word of the message is ever in `argv`. Beside the text it is told whose it is, and HEARTBEATD_KEY, which is the same when
    a message comes again. Exit 0 means that it was taken; of a program that is ended from outside nobody knows.
    """
    about = {"HEARTBEATD_KEY": message.key, "HEARTBEATD_KIND": message.kind, "HEARTBEATD_NAME": message.name}
    ended = await start(argv, stdin=message.text.encode(errors="replace"), env=about, cwd=folder, timeout=total)
    said = clean_reason(ended.errors.decode(errors="replace").strip(), ())
    if ended.exit_code is None:
        return DeliveryResult("retry", ended.problem or "it was not started, for the daemon stops")
    if ended.ended_by is not None:
        late = f"did not end within {total.total_seconds():.0f} s"
        return DeliveryResult(
            "uncertain", _told(argv, late if ended.ended_by == "timeout" else "was ended with the daemon", said)
        )
    if ended.problem is None and ended.exit_code == 0:
        return DeliveryResult("delivered")
    return DeliveryResult("retry", _told(argv, ended.problem or f"ended with exit code {ended.exit_code}", said))


def _told(argv: tuple[str, ...], what: str, said: str) -> str:
    return f"{Path(argv[0]).name} {what}" + (f": {said}" if said else "")
