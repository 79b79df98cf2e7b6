"""Decides which problem each finding belongs to, by the lines of the precheck and by failed jobs, and what an answer lacks.

The key of a finding is a name that a model chooses anew. What it saw is not: a line of the precheck, or a job that failed. So a
finding belongs to the line whose words it shares most, and to its key only if it shares no word with any line.

A line about an event, such as a new mail, is about another problem than all lines before it, however equal their words are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from hashlib import sha256

from heartbeat.findings import Finding, Report, Severity, comparable_key, merge_two

MAX_LINES = 200  # lines of a precheck's output that are compared
MAX_FORMS = 2  # a line with more forms moves by itself, so that another form is no evidence of a higher severity
CATCH_ALL_KEYS = frozenset(("summary", "status", "report", "overview", "note"))
NAMED_SHARE = 0.5  # of the weight of a line's words: a text with as many of them is about the line
SAME_SHARE = 0.5  # of the words of the shorter of two texts: with more in common, both are about the same thing

_ORDINARY_TEXT = """
    a about after all an and any are as at be been but by can could currently do does for from had has have i if in into is it its
    just last look looks may more most much need needs no not note now of off on only or other out over please see seems should
    since so some still than that the their them then there these they this to too up was we were what when which while will with
    would you your
"""
_ORDINARY_WORDS = frozenset(_ORDINARY_TEXT.split())
_WORD = re.compile(r"/[\w.-]*|[^\W_]+")
_FIGURES = re.compile(r"(?<![^\W\d])\d+(?:[.,:]\d+)*")  # no figures inside a name: md0, web1
_UNIT = r"(?:[kmgt]i?b?|b|ms|s|sec(?:ond)?s?|m|min(?:ute)?s?|h|hours?|d|days?|weeks?)\b"
_VARYING = re.compile(rf"{_FIGURES.pattern}(?:\s?{_UNIT})?|\b(?:warn(?:ing)?|crit(?:ical)?)\b", re.IGNORECASE)
_SEVERITY = re.compile(r"(info|warning|critical):\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TrackedLine:
    """A line that is evidence of an open problem: digests of it without and with its figures, and how many forms it has had."""

    name: str
    form: str
    forms: int = 1


@dataclass(frozen=True, slots=True)
class Event:
    """What a source of a precheck shows as new: its line, and a name that only it has, and that stays when it is shown again."""

    name: str
    line: str


@dataclass(frozen=True, slots=True)
class OpenProblem:
    """An open problem, as the prompt lists it and as findings are compared with it.

    `reported_at` is when a recipient was last notified; None if not yet. `keys` are other keys that the agent has used for it.
    `lines`, `events` and `jobs` are its evidence. With `senders` it came with their wakes.
    """

    label: str
    severity: Severity
    text: str
    since: datetime
    reported_at: datetime | None = None
    keys: tuple[str, ...] = ()
    lines: tuple[TrackedLine, ...] = ()
    jobs: frozenset[str] = frozenset()
    senders: frozenset[str] = frozenset()
    events: tuple[Event, ...] = ()

    @property
    def forms(self) -> frozenset[str]:
        """The forms of its lines at the last look, and the names of its events."""
        return frozenset((*(tracked.form for tracked in self.lines), *(event.name for event in self.events)))

    def has_key(self, key: str) -> bool:
        return key == comparable_key(self.label) or key in self.keys


@dataclass(frozen=True)
class Line:
    """A line of the precheck's output. `place` is its number in the output. Its own severity is not part of its text.

    `event` is the name of the event that it is about, if it is about one.
    """

    place: int
    text: str
    severity: Severity | None = None
    event: str = ""

    @cached_property
    def name(self) -> str:
        """The digest of the line without its figures, their units, and severities, as in `DISK WARNING - /var 1.2G`."""
        return self.event or _digest(_VARYING.sub("0", self.text))

    @cached_property
    def form(self) -> str:
        """The digest of the line with its figures, and with its severity. Of a line about an event, its name."""
        return self.event or _digest(f"{self.severity or ''}{self.text}")

    @cached_property
    def words(self) -> frozenset[str]:
        return words_of(self.text)

    @property
    def label(self) -> str:
        """A key for a problem that no finding has named."""
        return " ".join(_FIGURES.sub("", self.text).split()).replace("[", "(").replace("]", ")")[:60].strip(" :%-") or "line"


@dataclass(frozen=True, slots=True)
class Topic:
    """What a finding is about: an open problem, a line that belongs to none, a failed job, or nothing that is known."""

    problem: OpenProblem | None = None
    line: Line | None = None
    job: str | None = None

    @property
    def is_known(self) -> bool:
        return self != Topic()


@dataclass(frozen=True)
class Look:
    """What a run sees besides the agent's answer: open problems, the lines of the precheck, and failed jobs.

    `lines` is None if no precheck ran, or if it failed. `left_out` are names of lines that the agent left out on purpose before.
    `source_has_news`: the precheck shows only what is new, so that words in common with an open problem prove nothing. `ended`
    are problems about events that are over and were sent as `info`: an agent with a memory may still repeat them.
    """

    problems: Sequence[OpenProblem] = ()
    lines: Sequence[Line] | None = None
    jobs: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()
    source_has_news: bool = False
    ended: Sequence[OpenProblem] = ()

    @cached_property
    def owners(self) -> Mapping[int, OpenProblem]:
        """The open problem to which each line belongs, by the line's place.

        A line belongs to the problem that had it with the same figures, or else to one that had it with other figures which are
        gone. So two lines that differ only in figures are two problems. A line about an event has the problem of that event.
        """
        lines = self.lines or ()
        forms = {line.form for line in lines}
        exact = {form: problem for problem in self.problems for form in problem.forms}
        moved = [(tracked.name, problem) for problem in self.problems for tracked in problem.lines if tracked.form not in forms]
        owners = {line.place: exact[line.form] for line in lines if line.form in exact}
        for line in lines:
            found = next((each for each in moved if each[0] == line.name), None) if line.place not in owners else None
            if found is not None:
                moved.remove(found)
                owners[line.place] = found[1]
        return owners

    @property
    def free_lines(self) -> list[Line]:
        """The lines that belong to no open problem."""
        return [line for line in self.lines or () if line.place not in self.owners]

    def lines_of(self, problem: OpenProblem) -> list[Line]:
        """The lines of a problem. It may have changed since, but not its key."""
        owners = ((line, self.owners.get(line.place)) for line in self.lines or ())
        return [line for line, owner in owners if owner is not None and owner.label == problem.label]

    def is_present(self, problem: OpenProblem) -> bool:
        """Whether a line of the problem is printed, or a job that it is about still fails."""
        forms = {line.form for line in self.lines or ()}
        has_line = any(tracked.form in forms for tracked in problem.lines) or bool(self.lines_of(problem))
        return has_line or not problem.jobs.isdisjoint(self.jobs)

    def has_new_form(self, problem: OpenProblem) -> bool:
        """Whether a line of the problem has other figures than at the last look."""
        return any(line.form not in problem.forms for line in self.lines_of(problem))

    def proves_severity(self, problem: OpenProblem) -> bool:
        """Whether a higher severity has evidence: a line says it, or has a new form and has not moved by itself before."""
        forms = {tracked.name: tracked.forms for tracked in problem.lines}
        return any(
            line.severity is not None or (line.form not in problem.forms and forms.get(line.name, 1) < MAX_FORMS)
            for line in self.lines_of(problem)
        )

    def tracked_lines(self, problem: OpenProblem) -> tuple[TrackedLine, ...]:
        """The lines of the problem after this look. A line that is not printed stays as it was."""
        printed = {line.name: line for line in self.lines_of(problem)}
        names = {line.form: line.name for line in printed.values()}
        after = []
        for tracked in problem.lines:
            name = names.get(tracked.form, tracked.name)  # an earlier version may have named it otherwise
            line = printed.pop(name, None)
            is_new = line is not None and line.form != tracked.form
            after.append(TrackedLine(name, line.form, tracked.forms + 1) if line and is_new else replace(tracked, name=name))
        return tuple(after)

    def assign(self, findings: Sequence[Finding]) -> list[tuple[Topic, Finding]]:
        """Each finding with what it is about. Findings about the same problem, line or job become one."""
        assigned: dict[object, tuple[Topic, Finding]] = {}
        for topic, finding in zip(self._topics_of(findings), findings, strict=True):
            about = topic.problem or (topic if topic.is_known else finding.key)
            before = assigned.get(about)
            assigned[about] = (topic, finding) if before is None else (before[0], merge_two(before[1], finding))
        return list(assigned.values())

    def _topics_of(self, findings: Sequence[Finding]) -> list[Topic]:
        """What each finding is about.

        1. The key of a failed job (`job:NAME`): that job.
        2. A line or a failed job whose words it shares most: the open problem with this line, or the free line. If the line is
           about an event, and the finding repeats a problem about an earlier one: that problem.
        3. A known key: that problem. If it repeats a problem about an event that is over: that one.
        4. An open problem without lines, which no finding mentions, and most of whose words it shares, unless the look has news.
        """
        found = [self._topic_of(finding) for finding in findings]
        mentioned = {topic.problem for topic in found}
        left_out = [
            problem for problem in self.problems if problem not in mentioned and not problem.lines and not self.source_has_news
        ]
        if not left_out:
            return found
        for place, finding in enumerate(findings):
            if found[place].is_known or finding.resolved:
                continue
            words = finding_words(finding)
            shares = [share_in_common(words, words_of(f"{problem.label}\n{problem.text}")) for problem in left_out]
            if max(shares, default=0.0) > SAME_SHARE:
                found[place] = Topic(left_out.pop(shares.index(max(shares))))
        return found

    def _topic_of(self, finding: Finding) -> Topic:
        known = next((problem for problem in self.problems if problem.has_key(finding.key)), None)
        if finding.resolved:
            return Topic(known)
        job = next((job for job in self.jobs if finding.key == comparable_key(f"job:{job}")), None)
        if job is not None:
            return self._topic_of_job(job, known)
        best = self._best_evidence(finding, known)
        if isinstance(best, str):
            return self._topic_of_job(best, known)
        if best is None:
            return Topic(known or self._repeated(finding, frozenset()))
        owner = self.owners.get(best.place)
        if owner is not None:
            return Topic(owner)
        if best.event:
            repeated = self._repeated(finding, best.words)
            return Topic(repeated) if repeated else Topic(line=best)
        if known is not None and not known.lines and not known.jobs:
            return Topic(known, best)  # it was opened before its line was printed
        return Topic(line=best)

    def _repeated(self, finding: Finding, others: frozenset[str]) -> OpenProblem | None:
        """The problem that a finding with its key repeats. `others` are the words of the line that it may be about instead."""
        known = (*self.problems, *(self.ended if finding.severity is Severity.INFO else ()))
        return next((each for each in known if each.has_key(finding.key) and _is_repeated(finding, each, others)), None)

    def _topic_of_job(self, job: str, known: OpenProblem | None) -> Topic:
        """The problem that is about a job, or else the one with the finding's key, unless it is about lines."""
        about = next((problem for problem in self.problems if job in problem.jobs), None)
        return Topic(about or (known if known is not None and not known.lines else None), job=job)

    def _best_evidence(self, finding: Finding, known: OpenProblem | None) -> Line | str | None:
        """The line, or the failed job, whose words are shared most, weighted by how few have them.

        Among equals the text decides, then the figures, then the key, or for events which of them belongs to no problem, and then
        which has fewer other words.
        """
        evidence: list[tuple[Line | str, frozenset[str]]] = [(line, line.words) for line in self.lines or ()]
        evidence += [(job, words_of(job)) for job in sorted(self.jobs)]
        if not evidence:
            return None
        weights = _weights(each for _, each in evidence)
        words, text = finding_words(finding), words_of(finding.text)
        figures = set(_FIGURES.findall(finding.text))
        best, most = None, (0.0, 0.0, 0, False, 0.0)
        for each, own in evidence:
            shared, whole = _weight_of(words & own, weights), _weight_of(own, weights)
            owner = self.owners.get(each.place) if isinstance(each, Line) else None
            is_likely = isinstance(each, Line) and (owner is None if each.event else known is not None and owner == known)
            shared_figures = len(figures.intersection(_FIGURES.findall(each.text))) if isinstance(each, Line) else 0
            score = (shared, _weight_of(text & own, weights), shared_figures, is_likely, shared / whole if whole else 0.0)
            if shared and score > most:
                best, most = each, score
        return best

    def named_lines(self, text: str) -> list[Line]:
        """The free lines that a text is about, because it has most of their words."""
        weights, words = _weights(line.words for line in self.lines or ()), words_of(text)
        return [
            line
            for line in self.free_lines
            if line.words and _weight_of(line.words & words, weights) >= NAMED_SHARE * _weight_of(line.words, weights)
        ]


@dataclass(frozen=True, slots=True)
class Missing:
    """What an answer lacks, so that the agent is asked again."""

    lines: tuple[Line, ...] = ()  # belong to no problem, and no finding names them
    changed: tuple[OpenProblem, ...] = ()  # have a line with new figures, and no finding mentions them
    unproven: tuple[Finding, ...] = ()  # belong to nothing that is known
    risen: tuple[Finding, ...] = ()  # are more severe than before, without evidence
    unmentioned: tuple[OpenProblem, ...] = ()  # are open, and only the agent can see whether they still hold
    is_prose: bool = False  # the answer has no findings, but a text

    def __bool__(self) -> bool:
        return self.is_prose or any((self.lines, self.changed, self.unproven, self.risen, self.unmentioned))

    @property
    def question(self) -> str:
        """What the agent is asked, one line for each thing."""
        texts = ["- The answer has no findings. Report each thing as a finding of its own."] if self.is_prose else []
        texts += [f'- Line {line.place} of the check has no finding: "{line.text}". Repeat its words.' for line in self.lines]
        texts += [f"- [{problem.label}] has other figures, and no finding." for problem in self.changed]
        texts += [f"- [{problem.label}] is open, and has no finding. Does it still hold?" for problem in self.unmentioned]
        texts += [f"- [{finding.label}] belongs to no line of the check. Is it so?" for finding in self.unproven]
        texts += [f"- [{finding.label}] was less severe before. Is it {finding.severity} now?" for finding in self.risen]
        return "\n".join(texts)


@dataclass(slots=True)
class _Group:
    """What the answers of a run say about one topic: for each answer, the finding."""

    topic: Topic
    said: dict[int, Finding] = field(default_factory=dict)

    @property
    def is_confirmed(self) -> bool:
        return len(self.said) > 1


@dataclass
class Answers:
    """The answers of one run to the same look: the first one, and those to the questions about what it lacks."""

    look: Look
    findings: list[tuple[Finding, ...]] = field(default_factory=list)  # of each answer that is no prose
    prose: list[str] = field(default_factory=list)

    def add(self, report: Report | None, text: str) -> None:
        """Add an answer: its report, or its text if it has none. A single finding under a catch-all key is prose, too."""
        findings = report.findings if report else ()
        if len(findings) == 1 and findings[0].key in CATCH_ALL_KEYS and not findings[0].resolved:
            self.prose.append(findings[0].text)
        elif report is None and text:
            self.prose.append(text)
        else:
            self.findings.append(findings)

    @property
    def was_asked_again(self) -> bool:
        return len(self.findings) + len(self.prose) > 1

    @property
    def missing(self) -> Missing:
        """What the answers lack."""
        look, groups = self.look, self._groups()
        named = {group.topic.line for group in groups}
        mentioned = {group.topic.problem for group in groups}
        silent = [problem for problem in look.problems if problem not in mentioned]
        is_first = look.lines is None and not self.was_asked_again
        return Missing(
            tuple(line for line in look.free_lines if line not in named and line.name not in look.left_out),
            tuple(problem for problem in silent if look.has_new_form(problem)),
            tuple(self._finding_of(group) for group in groups if not group.topic.is_known and not group.is_confirmed),
            tuple(self._finding_of(group) for group in groups if self._rises_without_evidence(group)),
            tuple(problem for problem in silent if is_first and not problem.senders and not problem.jobs),
            is_prose=not self.findings,
        )

    @property
    def report(self) -> Report | None:
        """What the answers say together. None if all of them are prose, and it names no line.

        What only one of several answers says about nothing that is known is left out. A higher severity that only one of them
        gives, without evidence, does not count if another one gives a lower severity: to omit a finding contradicts nothing. A
        line that only prose names is reported as it is.
        """
        kept, unconfirmed = [], []
        groups = self._groups()
        for group in groups:
            finding, problem = self._finding_of(group), group.topic.problem
            if not group.topic.is_known and not group.is_confirmed and not finding.resolved:
                unconfirmed.append(finding)
            elif problem is not None and group.is_confirmed and self._rises_without_evidence(group):
                kept.append(replace(finding, severity=problem.severity))
            else:
                kept.append(finding)
        named = {group.topic.line for group in groups}
        lines = dict.fromkeys(line for text in self.prose for line in self.look.named_lines(text) if line not in named)
        kept += [Finding(line.label, line.text, line.severity or Severity.WARNING) for line in lines]
        return Report(tuple(kept), unconfirmed=tuple(unconfirmed)) if self.findings or kept else None

    def _finding_of(self, group: _Group) -> Finding:
        """The first finding of a group. Without evidence it has the highest severity that two answers give."""
        severities = sorted((finding.severity for finding in group.said.values()), key=lambda severity: -severity.rank)
        problem = group.topic.problem
        has_evidence = problem is not None and self.look.proves_severity(problem)
        return replace(next(iter(group.said.values())), severity=severities[0 if has_evidence else min(1, len(severities) - 1)])

    def _groups(self) -> list[_Group]:
        """The findings of all answers, by what they are about.

        A finding about nothing that is known joins those with its key. So what is known is grouped first.
        """
        groups: list[_Group] = []
        assigned = [(number, *each) for number, findings in enumerate(self.findings) for each in self.look.assign(findings)]
        for number, topic, finding in sorted(assigned, key=lambda each: not each[1].is_known):
            group = next((each for each in groups if _is_same(each, topic, finding)), None)
            if group is None:
                groups.append(group := _Group(topic))
            before = group.said.get(number)
            group.said[number] = finding if before is None else merge_two(before, finding)
        return groups

    def _rises_without_evidence(self, group: _Group) -> bool:
        """Whether only one of the answers gives a higher severity than before, and no line proves it."""
        problem = group.topic.problem
        if problem is None or self.look.proves_severity(problem):
            return False
        higher = [each for each in group.said.values() if each.severity.rank > problem.severity.rank and not each.resolved]
        return len(higher) == 1


def _is_same(group: _Group, topic: Topic, finding: Finding) -> bool:
    if topic.problem is not None:
        return group.topic.problem == topic.problem
    if topic.is_known:
        return group.topic == topic
    if any(other.key == finding.key for other in group.said.values()):
        return True
    other = next(iter(group.said.values()))
    return not group.topic.is_known and share_in_common(finding_words(other), finding_words(finding)) > SAME_SHARE


def _is_repeated(finding: Finding, known: OpenProblem, others: frozenset[str]) -> bool:
    """Whether a finding with the key of a problem is about the event of that problem, and not about a line with these words.

    Agents repeat what is open, and use its key for other events, too. So the words decide that only one of the two lines has. A
    problem of an earlier version has no event: it is repeated by its own words.
    """
    words = finding_words(finding)
    if not known.events:
        return words <= words_of(f"{known.label}\n{known.text}")
    lines = [words_of(event.line) for event in known.events]
    return any(words & own - others and not words & others - own for own in lines)


def read_lines(output: str, events: Sequence[str] = ()) -> tuple[Line, ...]:
    """The lines of a precheck's output, without empty ones. A line that begins with `critical:` has this severity.

    `events` are the names of the events that the lines are about. Strangers write such lines, so these have no severity.
    """
    lines: list[Line] = []
    for text in output.splitlines():
        plain, place = " ".join(text.split()), len(lines)
        event = events[place] if place < len(events) else ""
        severity = None if event else _SEVERITY.match(plain)
        plain = plain[severity.end() :] if severity else plain
        if plain and place < MAX_LINES:
            lines.append(Line(place + 1, plain, Severity(severity[1].lower()) if severity else None, event))
    return tuple(lines)


def words_of(text: str) -> frozenset[str]:
    """The words of a text by which it is compared: without figures, ordinary words and an s at their ends."""
    words = {word.rstrip(".-") for word in _WORD.findall(text.casefold())}
    words |= {word[1:] for word in words if word.startswith("/") and "/" not in word[1:]}
    plain = {word.removesuffix("s") if len(word) > 3 else word for word in words - _ORDINARY_WORDS}
    return frozenset(word for word in plain if word == "/" or (len(word) > 1 and not word.isdigit()))


def finding_words(finding: Finding) -> frozenset[str]:
    return words_of(f"{finding.label}\n{finding.text}")


def share_in_common(first: frozenset[str], second: frozenset[str]) -> float:
    """How many words two texts have in common, as a share of the words of the shorter one."""
    return len(first & second) / min(len(first), len(second)) if first and second else 0.0


def _weights(texts: Iterable[frozenset[str]]) -> Mapping[str, float]:
    """The weight of each word: the fewer texts have it, the more it weighs."""
    counts = Counter(word for words in texts for word in words)
    return Counter({word: 1 / number for word, number in counts.items()})


def _weight_of(words: Iterable[str], weights: Mapping[str, float]) -> float:
    return sum(weights[word] for word in words)


def _digest(text: str) -> str:
    return sha256(text.casefold().encode(errors="replace")).hexdigest()[:12]
