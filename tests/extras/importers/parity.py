"""The features of other heartbeat systems, the tests that show each of them here, and the parts that are still missing.

python tests/extras/importers/parity.py > tests/parity.md
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
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
        Row("on only while the file exists", ("test_story_explain.py::test_explain_now_shows_the_last_slot_each_check_and_the_next_slot",)),
        Row("several checks in order, each with a reason", ("test_story_silence.py::test_what_the_config_causes",)),
        Row("headings and empty checkboxes are no content", ("test_checklist.py::test_these_texts_have_no_work", "test_checklist.py::test_these_texts_have_work")),
        Row("the user has priority: no heartbeat runs while a user talks to the agent", ("test_story_lanes.py::test_a_run_waits_while_a_user_talks_to_the_agent_and_starts_soon_after",)),
        Row("HEARTBEAT_OK is suppressed, with up to 5 more characters", ("test_verdict.py::test_a_rest_of_at_most_five_characters_stays_quiet", "test_verdict.py::test_the_bound_of_the_rest_counts_code_points")),
        Row("repeated text is suppressed for 24 h (SHA-256, stripped, lower case)", ("test_library.py::test_the_same_alert_is_delivered_once_within_its_window", "test_verdict.py::test_what_counts_as_the_same_message")),
        Row("single turn, no tools", ("test_runner_anthropic.py::test_one_turn_is_requested_without_tools_and_with_a_token_limit",)),
        Row("agent function in the same process", ("test_library.py::test_a_skipped_run_calls_no_function_and_an_alert_goes_to_on_notify",)),
        Row("status and manual trigger", ("test_story_wakes.py::test_an_agent_without_an_interval_runs_only_when_woken", "test_status_data.py::test_each_entry_is_listed_with_its_state_its_next_time_and_its_last_run", "test_story_explain.py::test_explain_now_shows_the_last_slot_each_check_and_the_next_slot")),
        Row("the parts of a long message arrive in order", ("test_channels.py::test_a_long_text_arrives_in_parts_and_in_order",)),
    ),
    "GoClaw": (
        Row("all keys of a heartbeat"),
        Row("due agents are found at once (there, within 30 s)"),
        Row("runs by ticker, manual test, RPC test or cron", ("test_story_wakes.py::test_cron_wakes_a_heartbeat_and_the_prompt_has_the_reason", "test_story_wakes.py::test_manual_wakes_neither_count_against_nor_obey_the_rate_limit")),
        Row("a fixed delay from a hash of the name, at most 10 % of the interval", ("test_interval_slots.py::test_a_stagger_is_whole_seconds_and_at_most_its_share", "test_story_slots.py::test_a_stagger_shifts_every_slot_and_stays_the_same_after_a_restart")),
        Row("outside the active hours, a run is skipped. While the agent is busy (`queue_busy`), it stays due", ("test_story_explain.py::test_a_night_outside_active_hours_is_explained", "test_story_lanes.py::test_a_lane_locked_over_two_slots_is_one_busy_record_and_then_a_run")),
        Row("retries after 1 s and 2 s, and an event for each step of a run", ("test_story_failures.py::test_a_failing_run_is_retried_within_its_slot_with_growing_delays", "test_story_failures.py::test_a_run_that_succeeds_at_the_second_attempt_is_one_record", "test_event_stream.py::test_a_run_with_an_alert_is_started_ended_said_and_delivered")),
        Row("HEARTBEAT_OK anywhere suppresses the answer", ("test_verdict.py::test_anywhere_silences_an_answer_with_the_token_in_any_place",)),
        Row("cheaper model or provider for heartbeats only", ("test_story_models.py::test_the_heartbeats_model_overrides_the_agents_and_an_answer_by_another_model_is_reported",)),
        Row("light context: only the checklist", ("test_story_models.py::test_light_context_leaves_out_the_context_files_and_the_record_lists_the_parts",)),
        Row("targets suggested from the session history", ("test_story_deliver_last.py::test_the_number_of_known_targets_is_limited_and_they_keep_their_titles", "test_channels.py::test_a_channel_of_every_kind_is_declared_in_one_line", "test_web_activity.py::test_a_gateway_reports_the_target_of_an_agent_and_its_waiting_work")),
        Row("an agent tool for status, settings, checklist, test and logs, with permissions", ("test_mcp.py::test_the_tools_that_a_token_may_use_are_listed", "test_mcp.py::test_every_tool_works_for_its_own_agent_and_no_other", "test_web_api.py::test_a_token_has_only_its_own_permissions", "test_checklist_file.py::test_a_token_to_read_or_operate_may_not_edit")),
        Row("RPC calls for settings, test, log, checklist and targets", ("test_web_activity.py::test_a_gateway_reports_the_target_of_an_agent_and_its_waiting_work", "test_web_config.py::test_an_edit_is_written_and_applied", "test_web_config.py::test_without_the_permission_the_answer_has_the_lines_to_write", "test_web_api.py::test_one_agent_can_be_requested", "test_web_api.py::test_a_wake_can_be_followed_to_its_run", "test_checklist_file.py::test_the_list_is_read_and_written_back")),
        Row("a web page with cards, a config dialog in five sections, and a log", ("test_page_browser.py::test_problems_come_first_and_a_card_says_each_fact_once", "test_page_agent.py::test_a_wrong_value_is_named_at_its_field_and_the_right_one_is_written", "test_page_agent_forms.py::test_runs_come_with_text_prompt_parts_and_time")),
        Row("many cron jobs per agent (at, every, cron), without suppression", ("test_story_wakes.py::test_the_output_of_a_job_is_delivered_to_its_channel", "test_story_prompt_jobs.py::test_no_answer_to_a_job_is_suppressed")),
    ),
    "PicoClaw": (
        Row("enabled and interval, also from the environment", ("test_config_load.py::test_an_override_sets_a_value_by_its_path_and_is_listed",)),
        Row("a missing file is written from a template, and this run is skipped", ("test_story_checklists_and_prechecks.py::test_a_missing_checklist_is_created_with_its_workspace",)),
        Row("prompt with time, instructions and the whole file", ("test_prompt.py::test_the_contract_says_when_to_be_quiet_and_when_not", "test_prompt.py::test_the_time_is_local_with_weekday_and_zone", "test_prompt.py::test_the_prompt_has_the_checklist_without_completed_sections")),
        Row("first run soon after the start", ("test_story_slots.py::test_a_stagger_shifts_every_slot_and_stays_the_same_after_a_restart",)),
        Row("stateless runs"),
        Row("the same tools as in chat", ("test_program_output.py::test_a_report_has_its_text_its_error_and_its_usage",)),
        Row("five results: none, error, async, silent, visible to the user", ("test_library.py::test_a_run_ends_as_it_would_in_the_daemon", "test_story_async_results.py::test_an_async_result_is_classified_and_sent_once")),
        Row("messages to the last channel of a user, never to an internal one", ("test_story_deliver_last.py::test_a_message_goes_to_the_last_target", "test_story_deliver_last.py::test_only_a_declared_channel_with_a_target_placeholder_is_accepted")),
        Row("heartbeat.log, and tool calls in the log", ("test_log.py::test_an_event_is_one_line_with_its_fields_in_order", "test_program_output.py::test_the_events_before_a_report_show_which_tools_were_used_and_how_long")),
        Row("clean stop", ("test_daemon.py::test_a_stop_waits_for_runs_in_progress_and_exits_cleanly",)),
    ),
    "MisterMorph": (
        Row("`0m` disables the heartbeat, and a path can begin with `~`"),
        Row("a run is skipped while another one is in progress", ("test_story_explain.py::test_slots_missed_because_of_a_long_run_are_explained",)),
        Row("metadata of a run: trigger, source, failures, last success, queue, pending approvals"),
        Row("`ALERT: ...` or exactly HEARTBEAT_OK", ("test_verdict.py::test_exact_takes_only_the_token_alone",)),
        Row("OK is not sent or kept, an alert is sent once and kept", ("test_library.py::test_a_run_ends_as_it_would_in_the_daemon", "test_story_explain.py::test_the_same_alert_all_day_is_explained_as_duplicates")),
        Row("repeated failures are reported with the last error", ("test_story_notices.py::test_the_same_failure_with_changing_numbers_is_reported_once_with_reminders",)),
        Row("the agent's main session"),
        Row("recent memory if the checklist is missing or empty", ("test_story_checklists_and_prechecks.py::test_an_agent_without_a_checklist_gets_its_memory_in_the_prompt",)),
        Row("alerts without a chat go to the log"),
        Row("per-chat heartbeats", ("test_config_load.py::test_anchors_aliases_and_merges_work",)),
        Row("an HTTP endpoint for monitors", ("test_web_api.py::test_health_needs_no_token", "test_web_api.py::test_metrics_need_no_token_and_contain_no_text")),
    ),
    "nanobot": (
        Row("a model decides with a forced call `{action, tasks}`, then the agent executes the tasks", ("test_library.py::test_a_decision_to_run_gives_its_tasks_to_on_execute_or_else_to_the_agent", "test_story_models.py::test_a_decision_to_run_passes_its_tasks_to_the_agents_own_runner")),
        Row("sections `## Active Tasks` and `## Completed`", ("test_checklist.py::test_tasks_leave_out_comments_and_completed_items", "test_checklist.py::test_these_texts_have_no_work")),
        Row("callbacks on_execute, on_notify", ("test_library.py::test_a_skipped_run_calls_no_function_and_an_alert_goes_to_on_notify", "test_library.py::test_a_decision_to_run_gives_its_tasks_to_on_execute_or_else_to_the_agent")),
        Row("the rules of heartbeats do not depend on the scheduler", ("test_layers.py::test_a_file_imports_only_the_libraries_allowed_for_its_package",)),
        Row("user, agent or skill may edit the file", ("test_story_explain.py::test_explain_now_shows_the_last_slot_each_check_and_the_next_slot",)),
    ),
    "OpenClaw": (
        Row("the token inside HTML or Markdown, with up to `ackMaxChars` other characters", ("test_verdict.py::test_the_token_alone_is_quiet_however_it_is_wrapped", "test_verdict.py::test_a_rest_of_at_most_five_characters_stays_quiet")),
        Row("cron-timed heartbeats", ("test_story_schedules.py::test_a_heartbeat_runs_by_its_schedule_in_its_own_time_zone",)),
        Row("no heartbeat while the lane is not empty", ("test_story_lanes.py::test_a_gateway_holds_a_lane_for_a_limited_time",)),
        Row("wake now or at the next heartbeat", ("test_story_wakes.py::test_cron_wakes_a_heartbeat_and_the_prompt_has_the_reason", "test_story_wakes.py::test_a_wake_with_mode_next_starts_no_run_of_its_own")),
        Row("per-channel visibility", ("test_story_failures.py::test_an_alert_with_show_alerts_off_is_recorded_and_not_sent", "test_library.py::test_a_run_ends_as_it_would_in_the_daemon"), waits="`show_ok` and `show_alerts` are set per agent"),
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
        Row("adaptive interval", ("test_story_schedules.py::test_each_failure_doubles_the_interval_up_to_eightfold_and_a_success_resets_it",)),
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
    """The text of tests/parity.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Parity"
    yield ""
    yield "Features of seven other systems. The tests show that heartbeatd has them too. [Coming from another system](../docs/coming-from.md) lists the settings."
    yield "This page is generated by `python tests/extras/importers/parity.py > tests/parity.md`."
    for system, rows in SYSTEMS.items():
        yield from ("", f"## {system}", "", "| | feature | tests |", "|---|---|---|")
        for number, each in enumerate(rows, 1):
            shown = "<br>".join(f"`{name}`" for name in shown_by(system, number))
            missing = f". Missing: {each.waits}" if each.waits else ""
            yield f"| {number} | {each.does}{missing} | {shown} |"


if __name__ == "__main__":
    home = Path(__file__).parents[3]
    settings = tomllib.loads((home / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    sys.path[:0] = [str(home / folder) for folder in settings["pythonpath"]]

    import parity  # the module that test_parity notes its rows in, which this script is not
    import test_parity

    assert test_parity
    sys.stdout.write(parity.page())
