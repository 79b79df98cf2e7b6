"""The features of other heartbeat systems, the tests that show each of them here, and the parts that are still missing.

python tests/extras/importers/parity.py > docs/parity.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Row:
    """One feature of a system. `elsewhere` names tests in other files that show it, `waits` the part that is still missing."""

    does: str
    elsewhere: tuple[str, ...] = ()
    waits: str = ""


SYSTEMS: dict[str, tuple[Row, ...]] = {
    "claw0": (
        Row("The heartbeat is on while the file exists, and off after it is deleted."),
        Row("Several checks run in order, and each gives a reason."),
        Row("Headings and empty checkboxes do not count as content."),
        Row("The user has priority: a heartbeat runs only if the agent's lock is free, but the user waits for the lock.", ("test_story_lanes.py::test_a_run_waits_while_a_user_talks_to_the_agent_and_starts_soon_after",)),
        Row("HEARTBEAT_OK is suppressed, even with up to 5 more characters"),
        Row("Repeated text is suppressed for 24 h. It is compared by a SHA-256 of the stripped, lower-cased text."),
        Row("single turn, no tools", ("test_runner_anthropic.py::test_one_turn_is_requested_without_tools_and_with_a_token_limit",)),
        Row("agent function in the same process"),
        Row("status and manual trigger", ("test_status_data.py::test_each_entry_is_listed_with_its_state_its_next_time_and_its_last_run", "test_story_explain.py::test_explain_now_shows_the_last_slot_each_check_and_the_next_slot")),
        Row("one lock for output, so that the output of a heartbeat run and of the chat are not mixed", ("test_channels.py::test_a_long_text_arrives_in_parts_and_in_order",)),
    ),
    "GoClaw": (
        Row("the keys of a heartbeat: interval, prompt, provider, model, session, context, retries, hours, channel, ack_max_chars"),
        Row("The list of due agents is polled every 30 s."),
        Row("A run is started by the ticker, a manual test, an RPC test or cron."),
        Row("Each agent has a fixed delay from a hash of its name, at most 10 % of the interval."),
        Row("Outside the active hours, a run waits for the next scheduled time. If the queue is busy (`queue_busy`), the run stays due.", ("test_story_lanes.py::test_a_lane_locked_over_two_slots_is_one_busy_record_and_then_a_run",)),
        Row("A run with an empty checklist is skipped. The start of a run is an event. Retries follow after 1 s and 2 s. Suppressed answers are counted, and alerts are delivered.", ("test_event_stream.py::test_a_run_with_an_alert_is_started_ended_said_and_delivered",)),
        Row("HEARTBEAT_OK at any position suppresses the answer."),
        Row("cheaper model or provider for heartbeats only", ("test_story_models.py::test_the_heartbeats_model_overrides_the_agents_and_an_answer_by_another_model_is_reported",)),
        Row("With light context, the prompt contains only the checklist."),
        Row("Delivery targets are suggested from the session history.", ("test_channels.py::test_a_channel_of_every_kind_is_declared_in_one_line", "test_web_activity.py::test_a_gateway_reports_the_target_of_an_agent_and_its_waiting_work")),
        Row("agent tool with status, get, set, toggle, set_checklist, get_checklist, test and logs. Permissions are checked in this order: deny list, allow list, owner, system.", ("test_mcp.py::test_the_tools_that_a_token_may_use_are_listed", "test_mcp.py::test_every_tool_works_for_its_own_agent_and_no_other", "test_web_api.py::test_a_token_has_only_its_own_permissions", "test_checklist_file.py::test_a_token_to_read_or_operate_may_not_edit")),
        Row("RPC calls get, set, toggle and test a heartbeat, read its log, get and set its checklist, and list its targets.", ("test_web_activity.py::test_a_gateway_reports_the_target_of_an_agent_and_its_waiting_work", "test_web_config.py::test_an_edit_is_written_and_applied", "test_web_config.py::test_without_the_permission_the_answer_has_the_lines_to_write", "test_web_api.py::test_one_agent_can_be_requested", "test_web_api.py::test_a_wake_can_be_followed_to_its_run", "test_checklist_file.py::test_the_list_is_read_and_written_back")),
        Row("A web page contains a card for each agent, a config dialog in five sections, and a log table with duration, tokens and text.", ("test_page_browser.py::test_problems_come_first", "test_page_agent.py::test_a_wrong_value_is_named_at_its_field_and_the_right_one_is_written", "test_page_agent_forms.py::test_runs_come_with_text_prompt_parts_and_time")),
        Row("An agent can also have many cron jobs (at, every, cron), without suppression.", ("test_story_prompt_jobs.py::test_no_answer_to_a_job_is_suppressed",)),
    ),
    "PicoClaw": (
        Row("enabled and interval, which can also be set in the environment"),
        Row("If the file is missing, a template is written, and this run is skipped."),
        Row("prompt with heading, current time, instructions, whole file"),
        Row("The first run follows soon after the start."),
        Row("stateless runs, each with its own session key"),
        Row("the same tools as in chat"),
        Row("A result is one of: none, error, async, silent, user-visible.", ("test_story_async_results.py::test_an_async_result_is_classified_and_sent_once",)),
        Row("Messages go to the last channel of a user (`platform:id`), and never to an internal channel.", ("test_story_deliver_last.py::test_a_message_goes_to_the_last_target",)),
        Row("heartbeat.log, and tool calls in the log", ("test_log.py::test_an_event_is_one_line_with_its_fields_in_order", "test_program_output.py::test_the_events_before_a_report_show_which_tools_were_used_and_how_long")),
        Row("clean stop", ("test_daemon.py::test_a_stop_waits_for_runs_in_progress_and_exits_cleanly",)),
    ),
    "MisterMorph": (
        Row("The interval `0m` disables the heartbeat, and the path of the checklist can begin with `~`."),
        Row("A run is skipped if the queue is full or another run is in progress."),
        Row("A run gets as metadata: trigger, source, scheduled_at, failures, last success, last error, queue, pending approvals."),
        Row("An answer is `ALERT: ...` or exactly HEARTBEAT_OK."),
        Row("After OK, no message is sent or kept. An alert is sent once and kept."),
        Row("After repeated failures, `ALERT: heartbeat_failed` is sent with the last error."),
        Row("A run uses the agent's main session."),
        Row("With a missing or empty checklist, the agent looks at its recent memory and takes one small step.", ("test_story_checklists_and_prechecks.py::test_an_agent_without_a_checklist_gets_its_memory_in_the_prompt",)),
        Row("alerts of a daemon without a chat go to the log"),
        Row("per-chat heartbeats"),
        Row("an HTTP endpoint for monitors", ("test_web_api.py::test_health_needs_no_token", "test_web_api.py::test_metrics_need_no_token_and_contain_no_text")),
    ),
    "nanobot": (
        Row("In phase 1, a model must call a virtual tool with `{action, tasks}`. In phase 2, the agent executes the tasks. Then the user is notified.", ("test_story_models.py::test_a_decision_to_run_passes_its_tasks_to_the_agents_own_runner",)),
        Row("The file contains the sections `## Active Tasks` and `## Completed`."),
        Row("callbacks on_execute, on_notify", ("test_library.py::test_a_decision_to_run_gives_its_tasks_to_on_execute_or_else_to_the_agent",)),
        Row("The scheduler sets the time of a run, and the heartbeat checks whether the agent is called.", ("test_layers.py::test_a_file_imports_only_the_libraries_allowed_for_its_package",)),
        Row("The file can be edited by a user, an agent or a skill."),
    ),
    "OpenClaw": (
        Row("The token can be inside HTML or Markdown, with up to `ackMaxChars` other characters."),
        Row("cron-timed heartbeats", ("test_story_schedules.py::test_a_heartbeat_runs_by_its_schedule_in_its_own_time_zone",)),
        Row("A heartbeat does not run while the queue (the lane) is not empty.", ("test_story_lanes.py::test_a_gateway_holds_a_lane_for_a_limited_time",)),
        Row("wake now or at the next heartbeat"),
        Row("per-channel visibility", waits="`show_ok` and `show_alerts` are set per agent, not per channel."),
        Row("per-task intervals", ("test_story_checklists_and_prechecks.py::test_an_item_stays_due_until_a_run_with_it_succeeds",)),
    ),
    "ZeroClaw": (
        Row(
            "priorities and paused items",
            (
                "test_due_items.py::test_high_items_come_first_and_low_ones_last_in_their_section",
                "test_due_items.py::test_a_paused_item_is_never_in_the_prompt_not_even_with_everything",
            ),
        ),
        Row("dead man's switch", ("test_deadman.py::test_a_killed_or_stopped_daemon_sends_no_pings",)),
        Row("adaptive interval"),
    ),
}  # fmt: skip

SHOWN: dict[tuple[str, int], list[str]] = {}


def row(system: str, number: int) -> Callable[[Test], Test]:
    """Mark a test as showing a row of a system; rows are numbered from 1, in the order of `SYSTEMS`."""
    assert SYSTEMS[system][number - 1]

    def note(test: Test) -> Test:
        SHOWN.setdefault((system, number), []).append(f"test_parity.py::{test.__name__}")
        return test

    return note


def shown_by(system: str, number: int) -> list[str]:
    """All tests that show a row."""
    return [*SHOWN.get((system, number), ()), *SYSTEMS[system][number - 1].elsewhere]


def page() -> str:
    """The text of docs/parity.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Parity"
    yield ""
    yield "This page lists the features of seven other heartbeat systems. For each feature, the page lists the tests that prove it, and the parts that are missing."
    yield "[coming-from.md](coming-from.md) lists the settings of these systems with their names in heartbeatd."
    yield "The page is generated by `python tests/extras/importers/parity.py > docs/parity.md`."
    for system, rows in SYSTEMS.items():
        yield from ("", f"## {system}", "", "| | feature | tests | missing part |", "|---|---|---|---|")
        for number, each in enumerate(rows, 1):
            shown = "<br>".join(f"`{name}`" for name in shown_by(system, number))
            yield f"| {number} | {each.does} | {shown} | {each.waits} |"


if __name__ == "__main__":
    import parity  # the module that test_parity notes its rows in, which this script is not
    import test_parity

    assert test_parity
    sys.stdout.write(parity.page())
