"""To which problem a finding belongs, and what an answer lacks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from loops import loop_over

from heartbeat.evidence import MAX_LINES, Answers, Event, Look, OpenProblem, TrackedLine, read_lines
from heartbeat.findings import Finding, Report, Severity

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
VAR, HOME, NGINX, POSTGRES = (
    "nearly full: /var 91 %",
    "nearly full: /home 92 %",
    "nginx.service failed",
    "postgres.service failed",
)


def problem(label: str, *lines: str, text: str = "", keys: tuple[str, ...] = (), forms: int = 1, **more: object) -> OpenProblem:
    """An open problem of severity warning with these lines as evidence."""
    tracked = tuple(TrackedLine(line.name, line.form, forms) for line in read_lines("\n".join(lines)))
    return OpenProblem(label, Severity.WARNING, text, NOW, None, keys, tracked, **more)  # type: ignore[arg-type]


def look(printed: str | None, *problems: OpenProblem, jobs: tuple[str, ...] = (), left_out: frozenset[str] = frozenset()) -> Look:
    return Look(problems, None if printed is None else read_lines(printed), frozenset(jobs), left_out)


TODAY, CALL, BANK = "Anna <anna@x.org>: today?", "Anna <anna@x.org>: call me", "Bank: your card"


def news(*lines: str, known: tuple[OpenProblem, ...] = ()) -> Look:
    """A look at new lines, whose events have the names e1, e2, ..."""
    events = [f"e{number}" for number in range(1, len(lines) + 1)]
    return Look(known, read_lines("\n".join(lines), events), source_has_news=True)


def after(*lines: str, ended: OpenProblem) -> Look:
    """A look at new lines after this problem about an event is over."""
    return replace(news(*lines), ended=(replace(ended, severity=Severity.INFO),))


def of_event(label: str, name: str, line: str) -> OpenProblem:
    return problem(label, events=(Event(name, line),))


def subject(seen: Look, key: str, text: str, severity: Severity = Severity.WARNING) -> str | None:
    """What a finding is about: the label of a problem, the text of a free line, or a job."""
    ((found, _),) = seen.assign([Finding(key, text, severity)])
    return found.problem.label if found.problem else found.line.text if found.line else found.job


BOTH = look(f"{VAR}\n{HOME}\n{NGINX}", problem("disk:/var", VAR), problem("web", NGINX))


@loop_over(
    ("seen", "key", "text", "about"),
    [
        (BOTH, "disk:/var", "/var is 95 % full", "disk:/var"),
        (BOTH, "storage", "the partition /var fills up", "disk:/var"),  # another key
        (BOTH, "disk:/var", "/home is 92 % full", HOME),  # a free line, although the key is in use
        (BOTH, "disk", "nearly full", "disk:/var"),  # two lines have these words alike: the one that is known by such words
        (BOTH, "web", "the site cannot be reached", "web"),  # no word of a line, but a known key
        (BOTH, "site", "the site cannot be reached", None),  # never the only free line by elimination
        (look(POSTGRES, problem("web", NGINX)), "db", "postgres is down", POSTGRES),
        (look(POSTGRES, problem("db")), "db", "postgres is down", "db"),  # it was open before its line was printed
        (look(f"{NGINX}\n{VAR}", jobs=("nightly-backup",)), "backup", "the nightly backup failed", "nightly-backup"),
        (look(VAR, problem("tar", jobs=frozenset({"backup"})), jobs=("backup", "mirror")), "x", "job mirror failed", "mirror"),
        (look(VAR, problem("tar", jobs=frozenset({"backup"})), jobs=("backup", "mirror")), "x", "job backup failed", "tar"),
        (look(VAR, jobs=("backup",)), "job:backup", "/var has no room", "backup"),
        (look(VAR, jobs=("backup",)), "web", "the job queue of nginx failed", None),  # no word of the job's name
        (news(TODAY, known=(of_event("anna", "e0", TODAY),)), "anna", "Anna asks: today?", TODAY),  # another mail with its words
        (news(TODAY, known=(of_event("anna", "e1", TODAY),)), "x", "Anna asks: today?", "anna"),  # the same mail, shown again
        (news(CALL, known=(of_event("anna", "e0", TODAY),)), "anna", "Anna asks: today?", "anna"),  # an agent repeats what is open
        (news(CALL, known=(of_event("anna", "e0", TODAY),)), "anna", "Anna wants a call", CALL),
        (news(CALL, known=(of_event("anna", "e0", TODAY),)), "anna", "Anna has written", CALL),
        (news(CALL, known=(problem("anna"),)), "anna", "Anna wants a call", CALL),
        (news(CALL, known=(of_event("anna", "e0", TODAY),)), "anna", "no answer yet", CALL),  # its key has a word of the line
        (news(CALL, known=(of_event("anna", "e0", "Anna: please answer today"),)), "anna", "Please answer her call today", CALL),
        (news(CALL, known=(problem("anna", text="Anna asks: today?"),)), "anna", "Anna asks: today?", "anna"),  # of an earlier version
        (news(BANK, known=(of_event("anna", "e0", TODAY),)), "anna", "no answer yet", "anna"),
        (news("alarm 5", "alarm 7", known=(of_event("alarm", "e1", "alarm 5"),)), "alarm", "an alarm", "alarm 7"),
        (look(None, problem("disk:/var", text="/var is 90 % full")), "storage-1", "/var is 95 % full", "disk:/var"),
        (look(None, problem("nginx", text="down")), "postgres", "down", None),
        (look(None, problem("nginx", text="down"), problem("disk", text="full")), "nginx-x", "nginx is down", "nginx"),
        (look(None, problem("nginx", text="down"), problem("disk", text="full")), "disk-x", "disk is full", "disk"),
        (look(None, problem("disk", text="The disk /var has filled up since the backup of the mail server")), "storage", "/var filled", "disk"),
        (look(None, problem("disk", keys=("storage",))), "storage", "97 %", "disk"),
        (look("mail waits", problem("disk:/var", VAR, text="/var is nearly full")), "storage", "/var is nearly full", None),  # its line decides
        (news(BANK, known=(problem("anna", text="Anna asks: today?"),)), "x", "Anna asks: today?", None),
        (news(BANK), "x", "no answer yet", None),
        (look(VAR, problem("copy"), jobs=("db-copy",)), "copy", "db-copy failed", "copy"),
        (look(VAR, problem("x", NGINX), jobs=("mirror",)), "x", "job mirror failed", "mirror"),  # that problem is about a line
        (look(VAR, problem("tar", jobs=frozenset({"backup"})), problem("x"), jobs=("backup",)), "x", "job backup failed", "tar"),
        (look(NGINX, problem("tar", jobs=frozenset({"backup"})), jobs=("backup",)), "tar", "nginx failed", NGINX),  # that one is about a job
        (look("nginx is slow\npostgres is slow"), "nginx", "postgres", "postgres is slow"),  # the text counts more than the key
        (look("the copy of /var is slow\n/var is slow"), "x", "/var", "/var is slow"),  # it has fewer other words
        (look("nearly full: / 91 %"), "disk", "/ fills up", "nearly full: / 91 %"),
        (look("10.0.0.1 is down\n10.0.0.2 is down", problem("host", "10.0.0.1 is down")), "ping", "10.0.0.2 is down", "10.0.0.2 is down"),
        (look("md0 is degraded\nmd1 is degraded", problem("raid", "md0 is degraded")), "raid", "md1 is degraded", "md1 is degraded"),
    ]
)  # fmt: skip
def test_a_finding_belongs_to_the_line_whose_words_it_shares_most(seen: Look, key: str, text: str, about: str | None) -> None:
    assert subject(seen, key, text) == about


@loop_over(
    ("seen", "key", "text", "severity", "about"),
    [
        (after(BANK, ended=of_event("anna", "e0", TODAY)), "anna", "Anna asks: today?", "info", "anna"),
        (after(CALL, ended=of_event("anna", "e0", TODAY)), "anna", "Anna asks: today?", "info", "anna"),
        (after(ended=of_event("anna", "e0", TODAY)), "anna", "Anna asks: today?", "info", "anna"),  # the run has no news
        (after(BANK, ended=of_event("anna", "e0", TODAY)), "anna", "Anna asks: today?", "warning", None),  # that is more
        (after(TODAY, ended=of_event("anna", "e0", TODAY)), "anna", "Anna asks: today?", "info", TODAY),  # another mail
        (after(CALL, ended=of_event("anna", "e0", TODAY)), "anna", "Anna wants a call", "info", CALL),
        (after(CALL, ended=of_event("anna", "e0", TODAY)), "anna", "Anna has written", "info", CALL),
        (after(BANK, ended=of_event("mail", "e0", TODAY)), "mail", "a letter about money", "info", None),  # no word of the event
        (after(BANK, ended=of_event("anna", "e0", TODAY)), "x", "Anna asks: today?", "info", None),
    ],
)  # fmt: skip
def test_a_finding_repeats_an_event_that_is_over_if_it_has_its_key_and_its_words(
    seen: Look, key: str, text: str, severity: str, about: str | None
) -> None:
    assert subject(seen, key, text, Severity(severity)) == about


def test_two_lines_that_differ_only_in_figures_belong_to_two_problems() -> None:
    seen = look("disk 1 is full\ndisk 2 is full", problem("one", "disk 1 is full"))
    assert [line.text for line in seen.free_lines] == ["disk 2 is full"]


def test_two_lines_that_differ_only_in_figures_keep_their_problems_when_all_figures_move() -> None:
    seen = look("disk 1: 91 %\ndisk 2: 92 %", problem("one", "disk 1: 81 %"), problem("two", "disk 2: 82 %"))
    assert [seen.owners[line.place].label for line in seen.lines or ()] == ["one", "two"]


def test_a_problem_keeps_the_line_that_is_not_printed_beside_the_one_that_is() -> None:
    both = problem("both", VAR, NGINX)
    assert look(VAR, both).tracked_lines(both) == both.lines
    assert look(f"{VAR}\n{NGINX}", both).free_lines == []
    assert look(NGINX.upper(), both).free_lines == []


def test_a_problem_keeps_two_lines_that_differ_only_in_figures_when_all_figures_move() -> None:
    disks, moved = problem("disks", "disk 1: 81 %", "disk 2: 82 %"), "disk 1: 91 %\ndisk 2: 92 %"
    after_move = replace(disks, lines=look(moved, disks).tracked_lines(disks))
    assert look(moved, after_move).free_lines == []
    assert sorted(each.forms for each in after_move.lines) == [1, 2]


def test_a_problem_is_present_if_its_first_line_is_printed_in_this_look() -> None:
    assert look(POSTGRES, problem("db")).is_present(problem("db", POSTGRES))


def test_an_end_is_only_about_a_known_key() -> None:
    open_problems = problem("disk:/var", VAR), problem("mail", text="40 mails wait")
    over = [Finding("storage", "/var has room", resolved=True), Finding("queue", "no mails wait", resolved=True)]
    assert [found.problem or found.line for found, _ in look(f"{VAR}\n{HOME}", *open_problems).assign(over)] == [None, None]


def test_a_problem_that_one_finding_is_about_is_not_that_of_another_with_its_words() -> None:
    seen = look(None, problem("disk:/var", text="/var is 90 % full"))
    for first in ("disk:/var", "volume"):
        found = seen.assign([Finding(first, "/var is 95 % full"), Finding("storage", "/var is 96 % full")])
        assert [about.problem is not None for about, _ in found] == [True, False]


def test_two_findings_about_one_problem_become_one_although_only_one_of_them_names_its_line() -> None:
    found = [Finding("db", "postgres is down"), Finding("db", "no answer")]
    assert len(look(POSTGRES, problem("db")).assign(found)) == 1


def test_lines_are_counted_without_empty_ones_up_to_a_limit() -> None:
    assert [line.place for line in read_lines(f"\n{VAR}\n \ncritical:\n{HOME}")] == [1, 2]
    assert len(read_lines("mail waits\n" * (MAX_LINES + 5))) == MAX_LINES


def test_a_line_that_an_earlier_version_named_otherwise_gets_its_present_name() -> None:
    mail = problem("mail", "oldest mail: 58 minutes ago")
    earlier = replace(mail, lines=tuple(replace(each, name="of-an-earlier-version") for each in mail.lines))
    assert look("oldest mail: 58 minutes ago", earlier).tracked_lines(earlier) == mail.lines


def test_a_line_keeps_its_problem_when_the_severity_in_it_rises() -> None:
    disk = problem("disk", "DISK WARNING - /srv 91% used")
    seen = look("DISK CRITICAL - /srv 97% used", disk)
    assert subject(seen, "storage", "/srv is nearly full") == "disk"
    assert seen.is_present(disk)
    assert seen.proves_severity(disk)


def test_a_line_keeps_its_problem_when_a_figure_gets_another_unit() -> None:
    mail = problem("mail", "oldest mail: 58 minutes ago, 980M in all")
    assert subject(look("oldest mail: 2 hours ago, 1.1G in all", mail), "queue", "mail is not sent") == "mail"
    assert subject(look("oldest mail: 2 letters ago, 1.1G in all", mail), "queue", "mail is not sent") != "mail"


def test_two_findings_about_one_line_become_one() -> None:
    seen = look(f"{VAR}\n{NGINX}")
    found = [
        Finding("disk", "/var fills up"),
        Finding("var", "/var has no room", Severity.CRITICAL),
        Finding("web", "nginx failed"),
    ]
    assert [(finding.label, finding.severity.value) for _, finding in seen.assign(found)] == [
        ("disk", "critical"),
        ("web", "warning"),
    ]


def asked(seen: Look, *answers: list[Finding] | str) -> Answers:
    """These answers to one look. A text is prose."""
    given = Answers(seen)
    for answer in answers:
        given.add(None if isinstance(answer, str) else Report(tuple(answer)), answer if isinstance(answer, str) else "")
    return given


DISK, WEB, FAN = Finding("disk:/var", "/var is 95 % full"), Finding("web", "nginx failed"), Finding("fan", "it is loud")
WORSE = Finding("disk:/var", "/var is 95 % full", Severity.CRITICAL)


@loop_over(
    ("seen", "answer", "named"),
    [
        (look(f"{VAR}\n{NGINX}"), [DISK], ["Line 2"]),
        (look(f"{VAR}\n{NGINX}", left_out=frozenset(line.name for line in read_lines(NGINX))), [DISK], []),
        (look("nearly full: /var 95 %", problem("disk:/var", VAR)), [], ["[disk:/var] has other figures"]),
        (look(VAR, problem("disk:/var", VAR)), [], []),  # nothing has changed
        (look(VAR, problem("disk:/var", VAR)), [FAN], ["[fan] belongs to no line"]),
        (look(VAR, problem("disk:/var", VAR)), [WORSE], ["[disk:/var] was less severe"]),
        (look("nearly full: /var 95 %", problem("disk:/var", VAR)), [WORSE], []),  # other figures are evidence
        (look("nearly full: /var 95 %", problem("disk:/var", VAR, forms=2)), [WORSE], ["[disk:/var] was less severe"]),
        (look("critical: nearly full: /var 91 %", problem("disk:/var", VAR)), [WORSE], []),  # the line says it
        (look("critical: nearly full: /var 91 %", problem("disk:/var", VAR, forms=2)), [WORSE], []),
        (look("critical: nearly full: /var 91 %", problem("disk:/var", f"warning: {VAR}")), [], ["[disk:/var] has other figures"]),
        (look(VAR, problem("disk:/var", VAR)), [replace(WORSE, resolved=True)], []),
        (look(VAR), "I looked. The disk /var fills up.", ["Line 1", "no findings"]),
        (look(VAR), "", ["Line 1"]),
        (look(VAR), [Finding("summary", "All is well.", resolved=True)], ["Line 1", "[summary] belongs to no line"]),
        (look(VAR), [Finding("summary", "All is well."), DISK], ["[summary] belongs to no line"]),
        (look(VAR), [Finding("summary", "All is well but /var.")], ["Line 1", "no findings"]),
        (look(None, problem("disk:/var"), problem("web")), [WEB], ["[disk:/var] is open"]),
        (look(None, problem("disk:/var", senders=frozenset({"api:bot"}))), [], []),
        (look(None, problem("tar", jobs=frozenset({"backup"}))), [], []),
        (look(None), [FAN], ["[fan] belongs to no line"]),
    ]
)  # fmt: skip
def test_the_second_question_names_what_is_missing(seen: Look, answer: list[Finding] | str, named: list[str]) -> None:
    question = asked(seen, answer).missing.question
    assert len(question.splitlines()) == len(named)
    assert all(text in question for text in named)


def test_only_a_second_answer_confirms_a_finding_without_evidence_and_a_rise() -> None:
    seen = look(VAR, problem("disk:/var", VAR))
    assert not asked(seen, [WORSE, FAN], [WORSE, FAN]).missing
    assert asked(seen, [WORSE, FAN], [WORSE, FAN]).report == Report((WORSE, FAN))
    first = Finding("disk:/var", WORSE.text, Severity.WARNING)
    assert asked(seen, [WORSE, FAN], [DISK]).report == Report((first,), unconfirmed=(FAN,))
    assert asked(seen, [WORSE], [DISK], [WORSE]).report == Report((WORSE,))
    assert asked(seen, [WORSE], []).report == Report((WORSE,)), "an answer without the finding contradicts nothing"
    other_figures = look("nearly full: /var 95 %", problem("disk:/var", VAR))
    assert asked(other_figures, [DISK], [WORSE]).report == Report((WORSE,))
    loud = replace(FAN, severity=Severity.CRITICAL)
    assert asked(look(None), [loud], [FAN]).report == Report((FAN,)), "the higher one of two that two answers give"
    over = Finding("x", "it works", resolved=True)
    assert asked(look(None), [over]).report == Report((over,))


def test_a_finding_about_nothing_known_is_the_same_as_another_by_its_words_or_by_any_of_its_keys() -> None:
    first, second, third = Finding("fan", "it is loud and hot"), Finding("noise", "it is loud and hot"), Finding("noise", "42 dB")
    assert asked(look(None), [first], [second], [third]).report == Report((first,))
    site = Finding("site", "nginx failed")
    known = look(None, problem("web", text="no answer"))
    assert asked(known, [WEB], [site]).report == Report((WEB,), unconfirmed=(site,)), "words alone do not make it a known problem"


def test_what_an_agent_was_asked_about_once_is_not_asked_again() -> None:
    for first in ([], "All is well."):
        assert not asked(look(None, problem("disk:/var")), first, []).missing


def test_findings_of_one_answer_with_the_same_words_become_one() -> None:
    report = asked(look(None), [FAN, Finding("fan-1", "it is loud and hot")], [FAN]).report
    assert report is not None
    assert [(each.label, each.text) for each in report.findings] == [("fan", "it is loud\nit is loud and hot")]


def test_a_key_without_evidence_is_about_the_line_that_another_answer_gives_this_key() -> None:
    basket, named = Finding("basket", "the basket page has an error"), Finding("basket", "GET /cart returns 500")
    seen = look("/cart -> 500")
    assert asked(seen, [basket], [basket], [named]).report == Report((named,))
    assert asked(seen, [named], [FAN, basket]).report == Report((named,), unconfirmed=(FAN,))


def test_prose_is_never_reported_but_the_lines_that_it_names() -> None:
    seen = look(f"{VAR}\ncritical: {NGINX}\n{HOME}")
    report = asked(seen, "nginx has failed, and /var is nearly full", "All is well otherwise").report
    assert report is not None
    assert [(finding.text, finding.severity.value) for finding in report.findings] == [(VAR, "warning"), (NGINX, "critical")]
    assert asked(seen, "I looked at everything", "All is well").report is None
    assert asked(look(VAR, problem("disk:/var", VAR)), "The disk /var is nearly full").report is None, "its problem is open"
    assert asked(look("42 %"), "All is well").report is None
    assert asked(look(VAR), [DISK], "The disk /var is nearly full").report == Report((DISK,))
    half = asked(look("alpha beta"), "alpha").report
    assert half is not None
    assert [each.text for each in half.findings] == ["alpha beta"]


def test_strangers_who_write_a_line_about_an_event_give_it_no_severity() -> None:
    (mail,) = read_lines("critical: Mallory: you have won", ["e1"])
    assert (mail.text, mail.severity) == ("critical: Mallory: you have won", None)


def test_an_event_that_is_shown_again_is_no_new_form_of_its_problem() -> None:
    seen = news(TODAY, known=(of_event("anna", "e1", TODAY),))
    assert not seen.has_new_form(seen.problems[0])
    assert not seen.proves_severity(seen.problems[0])
    assert seen.is_present(seen.problems[0])


def test_a_line_with_a_name_that_contains_a_figure_is_not_the_line_of_another_name() -> None:
    first, second = read_lines("md0 is degraded\nmd1 is degraded")
    assert first.name != second.name
    assert read_lines("disk 1 is full")[0].name == read_lines("disk 2 is full")[0].name
