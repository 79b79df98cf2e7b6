"""Tests of the lists of verbs and questions: their schemas, their errors, and that each has exactly one place that performs it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Literal

import click
import pytest
from loops import loop_over
from pydantic import Field

from heartbeatd import questions, verbs
from heartbeatd.answers import Done
from heartbeatd.operations import Endpoint, Operation, description_of, keys_of, parse_operation
from heartbeatd.questions import QUESTIONS, Explain, GetPlan, ListProblems, ListRuns
from heartbeatd.verbs import VERBS, Ack, Ask, HoldLock, Mute, Pause, ReportResult, SetChecklist, SetConfig, Verb
from scheduler.cli import main
from scheduler.cli.operation_commands import OperationCommand
from scheduler.engine.effects import COMMAND_LINE, EFFECTS
from scheduler.web import routes
from scheduler.web.alertmanager import wake_from_alerts
from scheduler.web.api_request import parse_sent
from scheduler.web.http_errors import HttpError
from scheduler.web.page.rendering import Input, VerbForm, forms_of
from scheduler.web.perform import ENDPOINTS, HANDLERS


def test_each_operation_is_performed_in_one_place() -> None:
    assert routes.HANDLER_MODULES
    assert EFFECTS.keys() & HANDLERS.keys() == set()
    assert EFFECTS.keys() | HANDLERS.keys() == {*VERBS, *QUESTIONS}
    assert EFFECTS.keys() <= {*VERBS}


def test_the_answer_of_each_verb_has_a_sentence_for_people() -> None:
    """The command line, the page and chat print it. An edit of a file is answered with the file."""
    edits = (SetConfig, SetChecklist)
    assert [verb for verb in VERBS if verb not in edits for each in verb.answers() if "says" not in each.model_fields] == []


def test_each_field_with_a_sentence_is_an_option_of_the_command_and_an_input_of_the_page() -> None:
    def made(group: click.Group, context: click.Context) -> Iterator[click.Command]:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, OperationCommand):
                yield command.made()
            elif isinstance(command, click.Group):
                yield from made(command, context)

    commands = {each.name: each for each in made(main.commands, click.Context(main.commands))}
    titled = {
        asked: {name: field.title for name, field in asked.model_fields.items() if field.title} for asked in (*VERBS, *QUESTIONS)
    }
    assert titled[Mute].keys() == {"for_", "until_changed"}
    assert titled[Explain].keys() == {"at", "on", "since"}
    for asked, found in titled.items():
        command = commands.get({ListRuns: "runs", GetPlan: "plan"}.get(asked, asked.__name__.lower()))
        options = {each.name: str(each.help) for each in command.params if isinstance(each, click.Option)} if command else {}
        assert [name for name, title in found.items() if not options[name].startswith(str(title))] == []
        own = [each for each in command.params if each.name in found] if command else []
        assert [each.name for each in own if each.get_default(click.Context(command))] == [], "only what was given is sent"
    for each in (form for subject in ("agent", "job", "run", "message", "problem") for form in forms_of(subject)):
        assert {shown.key: f"{shown.label}." for shown in each.inputs} == {
            name.rstrip("_"): title for name, title in titled[each.verb].items()
        }


class Choose(Verb[Done]):
    """Choose a size."""

    size: Literal["small", "large"] = Field(default="small", title="The size.")


def test_a_field_with_fixed_words_is_a_choice_on_the_page() -> None:
    form = VerbForm(Endpoint("choose", "/api/v1/choose", Choose), Choose)
    assert form.inputs == [Input("size", "The size", "text", ("small", "large"))]


def test_each_class_has_a_request_and_names_are_unique() -> None:
    for module, listed in ((verbs, VERBS), (questions, QUESTIONS)):
        named = [each for name, each in vars(module).items() if name[0].isupper() and name.isidentifier()]
        classes = {each for each in named if isinstance(each, type) and issubclass(each, Operation)}
        assert classes - {Operation, verbs.Verb, questions.Question} == set(listed)
    assert len({(each.method, each.path) for each in ENDPOINTS.values()}) == len(ENDPOINTS)


@loop_over("operation", (*VERBS, *QUESTIONS))
def test_each_operation_has_a_summary_an_answer_and_a_schema_with_its_keys(operation: type[Operation]) -> None:
    schema = operation.model_json_schema()
    assert list(schema["properties"]) == list(keys_of(operation))
    assert schema["additionalProperties"] is False
    assert operation.answers()
    assert all(description_of(field) for field in operation.model_fields.values())
    assert all(each.describes[0] for each in ENDPOINTS.values() if each.operation is operation)


def test_a_schema_describes_what_the_daemon_checks() -> None:
    hold = HoldLock.model_json_schema()
    assert hold["required"] == ["id", "for"]
    assert hold["properties"]["id"]["pattern"] == "^[A-Za-z0-9._:/@+-]{1,100}$"


ONE_RESULT = "write either text or error, as a string in quotes, or findings, as a list"


@loop_over(
    ("operation", "sent", "message"),
    [
        (Pause, {"for": None}, "for: null is not a duration; write 90s, 30m or 1h30m"),
        (Pause, {"for": "0m"}, "for: '0m' is zero; write 90s, 30m or 1h30m"),
        (Pause, {"for": "999999999d"}, "for: '999999999d' is more than ten years; write at most 3660d"),
        (Pause, {"for": "x" * 1000}, "for: this is not a duration; write 90s, 30m or 1h30m"),
        (Pause, {"for_": "1h"}, "'for_' is not allowed here; write for, until"),
        (Pause, {"fro": "1h", "for": 3}, "'fro' is not allowed here; write for, until"),
        (Pause, {"\ud800": "1h"}, "a key of the body is not a string; write for, until"),
        (Pause, {"for": "1h", "until": "2027-03-28T01:00:00Z"}, "write either for or until"),
        (Pause, {"for": ["2h"]}, "for: ['2h'] is not a duration; write 90s, 30m or 1h30m"),
        (Mute, {"until": "2027-03-28T01:00:00"}, "until: write a time with its zone, as in 2027-03-28T01:00:00Z"),
        (Mute, {"until": "0001-01-01T00:00:00+23:59"}, "until: write a time with its zone, as in 2027-03-28T01:00:00Z"),
        (Mute, {"until": 7}, "until: write a time with its zone, as in 2027-03-28T01:00:00Z"),
        (Mute, {"until_changed": "true"}, "until_changed: write true or false"),
        (Ask, {"text": "Go?", "options": ["Yes", " yes "]}, "options: write 1 to 8 different answers, such as yes,no"),
        (ReportResult, {}, ONE_RESULT),
        (ReportResult, {"findings": [], "error": "x"}, ONE_RESULT),
        (ReportResult, {"findings": {}}, "findings: write a list of objects with key, text, severity and resolved"),
        (ReportResult, {"text": "x", "truncated": 1}, "truncated: write true or false"),
        (ReportResult, {"text": 5}, "text: write a string in quotes"),
        (HoldLock, {"id": "chat\n", "for": "2m"}, "id: write 1 to 100 of A-Z a-z 0-9 . _ : / @ + -, as in chat:4711"),
        (HoldLock, {"id": "chat"}, "for: write 90s, 30m or 1h30m"),
        (HoldLock, {"for": "2m"}, "id: write 1 to 100 of A-Z a-z 0-9 . _ : / @ + -, as in chat:4711"),
        (Ack, {"agent": "ops"}, "'agent' is not allowed here; write no key"),
        (ListRuns, {"limit": "0"}, "limit: write a number from 1 to 1000"),
        (ListRuns, {"limit": "1001"}, "limit: write a number from 1 to 1000"),
        (ListRuns, {"limit": "9" * 5000}, "limit: write a number from 1 to 1000"),
        (ListRuns, {"since": "yesterday"}, "since: write a time with its zone, as in 2027-03-28T01:00:00Z"),
        (ListRuns, {"limit": "5.0"}, "limit: write a number from 1 to 1000"),
        (ListRuns, {"limit": "1_0"}, "limit: write a number from 1 to 1000"),
        (GetPlan, {"from_": "2027-03-28T01:00:00Z"}, "'from_' is not allowed here; write for, from, name, kind, all"),
        (ListRuns, {"sort": "name"}, "sort: write id or cost"),
        (ListRuns, {"kind": "job"}, "kind: write agent or cron"),
        (GetPlan, {"all": "yes"}, "all: write true or false"),
        (ListProblems, {"state": "closed"}, "state: write open or all"),
    ],
)
def test_wrong_keys_are_rejected_with_advice(operation: type[Operation], sent: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_operation(operation, sent, is_query=operation.method == "GET")
    assert str(refused.value) == message


@loop_over(
    ("sent", "message"),
    [
        ({"version": "4", "alerts": ["x"]}, "alerts: write a list of at least one alert"),
        ({"version": "3", "alerts": [{}]}, 'version: write "4": only this version of Alertmanager\'s webhook body is supported'),
    ],
)
def test_a_wrong_notification_is_rejected_with_advice(sent: dict[str, object], message: str) -> None:
    with pytest.raises(HttpError) as refused:
        wake_from_alerts(sent, COMMAND_LINE)
    assert str(refused.value) == message


def test_an_operation_is_sent_as_it_is_read() -> None:
    def again(verb: Verb) -> Verb:
        return parse_operation(type(verb), verb.as_json())

    for verb in (
        Pause(for_=timedelta(hours=1.5)),
        Pause(for_=timedelta(days=3660)),
        Mute.of(until="2027-03-28T01:00:00+02:00", until_changed=True),
        Pause(),
    ):
        assert again(verb) == verb


def test_the_texts_of_a_form_are_read_as_the_values_that_they_mean() -> None:
    assert parse_sent(Mute, {"for": "2h", "until_changed": "true"}, are_texts=True) == Mute(
        for_=timedelta(hours=2), until_changed=True
    )
    with pytest.raises(HttpError, match="for: 'soon' is not a duration"):
        parse_sent(Mute, {"for": "soon"}, are_texts=True)


def test_buttons_in_chats_with_one_name_are_the_same_and_each_has_its_own_letter() -> None:
    buttons = {verb.in_chat.name: verb.in_chat for verb in VERBS if issubclass(verb, Verb) and verb.in_chat}
    assert all(verb.in_chat in (None, *buttons.values()) for verb in VERBS if issubclass(verb, Verb))
    assert len({button.letter for button in buttons.values()}) == len(buttons)
    assert sorted(buttons) == ["acknowledge", "mute", "resume", "run"]
