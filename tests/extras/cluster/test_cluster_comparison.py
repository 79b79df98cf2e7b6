"""The comparison of a cluster's records with what its agents did finds each loss and each repetition without a cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_comparison import Beat, Comparison, Fault, Message, lease_losses_without_a_fault

ENTRY = {"kind": "heartbeat", "name": "ops", "anchor": 0, "settled_until": 5_999}
BEATS = [Beat("ops", number, f"s{number}", "one", 2.0 * number + 0.1, 2.0 * number + 0.3) for number in range(3)]
MESSAGES = [Message(f"key{number}", b"{}", "one", 2.0 * number + 0.5) for number in range(3)]
CUT = Fault(2.2, 3.0, "cut", "one")


def run(number: int) -> dict[str, Any]:
    return {
        "id": number, "kind": "heartbeat", "name": "ops", "trigger": "interval", "slot": 2_000 * number, "slots": 1,
        "state": "closed", "outcome": "alert", "reason": None, "started_at": 2_000 * number, "error": None,
        "finished_at": 2_000 * number + 400, "text": f"ALERT ops run {number} beat s{number}",
    }  # fmt: skip


def message(number: int) -> dict[str, Any]:
    return {"key": f"key{number}", "run_id": number, "notice": None, "state": "delivered"}


ALL: dict[str, Any] = {
    "entries": [ENTRY], "runs": [run(number) for number in range(3)], "outbox": [message(number) for number in range(3)],
    "beats": BEATS, "messages": MESSAGES, "faults": [], "every": {"ops": 2.0},
}  # fmt: skip


def compare(**changed: Any) -> Comparison:
    return Comparison(**{**ALL, **changed})


def test_a_cluster_without_faults_has_neither_losses_nor_repetitions() -> None:
    found = compare()
    assert (found.lost, found.doubled, found.counted["slots"], found.counted["beats"]) == ([], [], 3, 3)


@pytest.mark.parametrize(
    ("changed", "kind", "problem"),
    [
        ({"runs": ALL["runs"][:2], "beats": BEATS[:2], "outbox": ALL["outbox"][:2], "messages": MESSAGES[:2]}, "lost", "slot 2 of 3"),
        ({"beats": BEATS[:2]}, "lost", "run 2 of ops is alert without its own answer"),
        ({"messages": MESSAGES[:2]}, "lost", "message key2 of run 2"),
        ({"outbox": ALL["outbox"][:2], "messages": MESSAGES[:2]}, "lost", "run 2 of ops: no message of its answer"),
        ({"runs": [*ALL["runs"][:2], {**run(2), "outcome": "abandoned"}]}, "lost", "run 2 of ops is abandoned None without a fault"),
        ({"runs": [*ALL["runs"], {**run(2), "id": 3}]}, "doubled", "slot 2 is in 2 records"),
        ({"beats": [*BEATS, replace(BEATS[1], begun=2.5, ended=2.7, serial="other")]}, "doubled", "beats on one and one, 0.40 s apart"),
        ({"beats": [*BEATS, replace(BEATS[1], begun=2.2, serial="other")]}, "doubled", "two beats at the same time"),
        ({"messages": [*MESSAGES, MESSAGES[1]]}, "doubled", "message key1 after 0.00 s, without a fault"),
        ({"messages": [*MESSAGES, replace(MESSAGES[1], body=b"[]")], "faults": [CUT]}, "doubled", "message key1 with several bodies"),
    ],
)  # fmt: skip
def test_what_is_missing_is_lost_and_what_came_twice_without_a_fault_is_doubled(
    changed: dict[str, Any], kind: str, problem: str
) -> None:
    assert any(problem in each for each in getattr(compare(**changed), kind))


def test_a_beat_and_a_message_that_a_fault_has_repeated_are_counted() -> None:
    again = replace(BEATS[1], begun=2.5, ended=2.7, serial="other")
    found = compare(beats=[*BEATS, again], messages=[*MESSAGES, MESSAGES[1]], faults=[CUT])
    assert (found.lost, found.doubled) == ([], [])
    assert found.counted["beats repeated after a fault"] == 1
    assert found.counted["messages repeated with their key after a fault"] == 1


def test_a_fault_on_another_host_or_at_another_time_is_no_cause() -> None:
    again = replace(BEATS[1], begun=2.5, ended=2.7, serial="other")
    assert compare(beats=[*BEATS, again], faults=[replace(CUT, host="two")]).doubled
    assert compare(beats=[*BEATS, again], faults=[replace(CUT, begin=9.0, end=9.5)]).doubled


def test_a_loss_of_the_lease_that_no_fault_has_caused_is_a_fault_by_itself() -> None:
    """On a machine that is too slow, a leader does not renew its lease in time. The runs that this interrupts are recorded."""
    log = '1970-01-01T00:00:05Z ERROR leadership_lost problem="it does not answer"\n1970-01-01T00:00:06Z INFO standby\n'
    (loss,) = lease_losses_without_a_fault(log, "one", [replace(CUT, host="two"), replace(CUT, begin=90.0, end=91.0)])
    assert (loss.kind, loss.host) == ('loss of the lease without a fault: "it does not answer"', "one")
    interrupted = [*ALL["runs"][:2], {**run(2), "outcome": "abandoned"}]
    assert (len(compare(runs=interrupted).lost), compare(runs=interrupted, faults=[loss]).lost) == (1, [])
    for cause in (CUT, replace(CUT, host=None)):
        assert lease_losses_without_a_fault(log, "one", [cause]) == []


def test_a_run_that_the_end_of_a_daemon_has_interrupted_has_a_fault_before_the_next_boot() -> None:
    """By its record, it ended with the last commit before the fault, which on a busy machine was several seconds earlier."""
    stopped = {**run(2), "outcome": "abandoned", "error": "the daemon stopped during this run"}
    runs, boots = [*ALL["runs"][:2], stopped], [{"started_at": 0}, {"started_at": 20_000}]
    for begin, has_cause in ((12.0, True), (22.0, False)):
        cut = Fault(begin, begin + 1, "cut", "one")
        assert (compare(runs=runs, boots=boots, faults=[cut]).lost == []) is has_cause


def test_an_agent_that_does_not_beat_within_its_interval_and_ten_seconds_of_a_takeover_is_late() -> None:
    found = compare()
    found.check_takeovers([("cut", 0.0, 1.0, "two")], [60.0])
    assert found.late == []
    found.check_takeovers([("cut", 20.0, 21.0, "two")], [30.0, 60.0])  # they were stopped before the agent was late
    assert found.late == []
    found.check_takeovers([("cut", 20.0, 21.0, "two")], [60.0])
    assert found.late == ["ops beats inf s after the takeover of cut at 21"]
