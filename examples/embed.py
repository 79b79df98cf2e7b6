"""A heartbeat inside your own program, without daemon, database or API key. Run it: .venv/bin/python examples/embed.py"""

from datetime import UTC, datetime, timedelta

from heartbeat import Spec, beat

CHECKLIST = """\
## Active tasks
- [ ] Is the disk nearly full? Say how full.
"""

disk = {"used": 41}  # percent, checked by the agent below


def ask(prompt: str) -> str:
    """Your agent: it takes the prompt and returns the answer. In this example a rule replaces the model."""
    assert "nearly full" in prompt
    return f"ALERT: the disk is {disk['used']} % full." if disk["used"] > 90 else "HEARTBEAT_OK"


def decide(question: str) -> dict[str, str]:
    """A small model that decides first whether there is something to do, and what."""
    assert "nearly full" in question
    return {"action": "run", "tasks": "Say how full the disk is."} if disk["used"] > 90 else {"action": "skip", "tasks": ""}


def main() -> None:
    now = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)  # your program passes datetime.now(UTC)
    spec = Spec(
        ask=ask,
        checklist=CHECKLIST,  # or Path("HEARTBEAT.md"), which is read at each run
        active_hours="08:00-22:00",
        timezone="UTC",
        on_notify=lambda text: print(f"  sent: {text}"),
    )
    last = None
    for used in (41, 97, 97, 50):
        disk["used"] = used
        last = beat(spec, now=now, last=last)
        print(f"{now:%H:%M} {last.result} {last.why or ''}".rstrip())
        now += timedelta(minutes=30)

    disk["used"] = 98
    deciding = Spec(checklist=CHECKLIST, decide=decide, on_execute=lambda tasks: f"{tasks} It is 98 % full.")
    decided = beat(deciding, now=now)
    print(f"{now:%H:%M} {decided.result}: {decided.text}")

    night = beat(spec, now=now.replace(hour=23))
    print(f"23:00 {night.result} {night.why}")


if __name__ == "__main__":
    main()
