"""Draws pictures of the dashboards from a simulated bad night in a real Prometheus, for docs/pictures/.

`pip install matplotlib`, then `python grafana/pictures.py`. It needs prometheus and promtool, and five minutes. The pictures
are our own drawing of the panels. Queries, colours, texts and layout come from the dashboard files, but no Grafana is involved.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from metrics_page import Page
from prometheus_server import LABELS, Prometheus
from servers.messages import Models, error_answer, message, text
from servers.scripted import Act, Request, reply
from world import Clock, Delayed, World, utc

from scheduler.engine.delivery import Delivery
from scheduler.model.message import DeliveryResult
from scheduler.model.outcome import Kind

HOME = Path(__file__).parent.parent
TARGET = HOME / "docs" / "pictures"
START, END = utc("2026-03-01 18:00"), utc("2026-03-02 08:00")
SCRAPE = timedelta(minutes=1)
NAMES = ("backups", "billing", "builds", "certs", "deploys", "dns", "inbox", "logs", "metrics", "oncall", "orders", "sales")
EVERYTHING = {"job": ".*", "instance": ".*", "kind": ".*", "name": ".*"}

# The night. Agents are numbered; every group of twelve has the same troubles.
MODELS = {1: "runner: {kind: anthropic}, model: claude-haiku-5-5, ", 4: "runner: {kind: anthropic}, model: claude-sonnet-5, "}
FAILING, MISSING, SLOW, STORM, PAUSED = 0, 3, 6, 9, 11


def config(agents: int, model: str) -> str:
    """The config of this many agents. A third of them call a model, the others run a command."""
    lines = [
        f'limits: {{concurrency: {agents}}}\nproviders: {{anthropic: {{api_key: k, base_url: "{model}"}}}}',
        "prices: {claude-haiku-5-5: {input: 1.0, output: 5.0}, claude-sonnet-5: {input: 3.0, output: 15.0}}",
        'channels: {hook: {kind: webhook, url: "http://127.0.0.1:9/x", allow_private: true}}',
        "defaults: {runner: {kind: command, argv: [agent]}, heartbeat: {interval: 30m, deliver: hook}}",
        "agents:",
    ]
    for number, name in enumerate(names(agents)):
        runner = MODELS.get(number % 6, "")
        kind = number % 12
        hours = ', active_hours: "06:00-22:00"' if kind in (2, 8) else ""
        checklist = "HEARTBEAT.md" if kind == MISSING else '"- look\\n"'
        lines.append(f"  {name}: {{{runner}heartbeat: {{checklist: {checklist}{hours}}}}}")
    return "\n".join(lines) + "\ncron:\n  report: {every: 1h, command: report}\n"


def names(agents: int) -> list[str]:
    return [NAMES[number % 12] + (f"-{number // 12 + 1}" if agents > 12 else "") for number in range(agents)]


def night(folder: Path, agents: int) -> Iterator[tuple[datetime, str]]:
    """The scrapes of a bad night: a provider, a channel and the daemon fail for some time, and single agents have troubles."""
    with Models(answer_well) as model:
        every = names(agents)
        for name in every[MISSING::12]:
            (folder / "agents" / name).mkdir(parents=True)
            (folder / "agents" / name / "HEARTBEAT.md").write_text("- look\n")
        world = World(folder, config(agents, model.url), start=START.strftime("%Y-%m-%d %H:%M"))
        now = world.clock
        for number, name in enumerate(every):
            if number % 12 == FAILING:
                world.scripts[name] = lambda _, now=now: 3 if now.now > utc("2026-03-01 23:00") else "HEARTBEAT_OK"
            if number % 12 == SLOW:
                world.scripts[name] = lambda _, now=now: slow(now)
            if number % 12 == STORM:
                world.scripts[name] = lambda _, now=now: storm(now)
        world.send = lambda delivery: sent(delivery, now)
        page = Page(world)
        started = START
        while now.now < END:
            if now.now == utc("2026-03-01 20:00"):
                for name in every[PAUSED::12]:
                    world.pause((Kind.HEARTBEAT, name))
            if now.now == utc("2026-03-02 00:00"):
                for name in every[MISSING::12]:
                    (folder / "agents" / name / "HEARTBEAT.md").unlink()
            if now.now == utc("2026-03-02 02:00"):
                model.answer = lambda _: error_answer(529, "overloaded_error", "overloaded")
            if now.now == utc("2026-03-02 03:30"):
                model.answer = answer_well
            if now.now == utc("2026-03-02 04:00"):
                for _ in range(40):
                    now.advance(SCRAPE)
                    yield now.now, ""
                world.kill()
                world.boot()
                page, started = Page(world), now.now
            world.run(seconds=SCRAPE.total_seconds())
            page.running = Counter(claim.entry.kind.value for claim in world.runs.inflight().values())
            page_text = re.sub(
                r"(?m)^process_start_time_seconds .*$", f"process_start_time_seconds {started.timestamp()}", page.scrape()
            )
            yield now.now, page_text


def answer_well(request: Request) -> Act:
    """The requested model has nothing to report."""
    return reply(message(text("HEARTBEAT_OK"), model=request.json["model"]))


def slow(now: Clock) -> Any:
    """From 22:00 on, the model is slower than its interval."""
    return Delayed("HEARTBEAT_OK", timedelta(minutes=50)) if now.now > utc("2026-03-01 22:00") else "HEARTBEAT_OK"


def storm(now: Clock) -> str:
    """From 05:00 on, each answer is a new alert."""
    return f"[disk:{now.now:%H%M}] Disk {now.now:%H%M} is full." if now.now > utc("2026-03-02 05:00") else "HEARTBEAT_OK"


def sent(_: Delivery, now: Clock) -> DeliveryResult:
    """The channel does not answer from 05:30 to 07:00."""
    broken = utc("2026-03-02 05:30") < now.now < utc("2026-03-02 07:00")
    return DeliveryResult("retry", "no route") if broken else DeliveryResult("delivered")


def fill(folder: Path, scrapes: Iterator[tuple[datetime, str]]) -> None:
    """Write the scrapes into a Prometheus database. An empty text is a scrape without an answer."""
    path = folder / "scrapes.txt"
    with path.open("w") as out:
        for when, page in scrapes:
            stamp = f" {when.timestamp():.0f}\n"
            out.write(f"up{{{LABELS}}} {int(bool(page))}{stamp}")
            for line in page.splitlines():
                if line and not line.startswith("#"):
                    name, _, value = line.rpartition(" ")
                    metric, brace, labels = name.partition("{")
                    out.write(f"{metric}{{{LABELS}{',' + labels if brace else '}'} {value}{stamp}")
        out.write("# EOF\n")
    promtool("create-blocks-from", "openmetrics", str(path), str(folder / "tsdb"))


def promtool(*arguments: str) -> None:
    subprocess.run(["promtool", "tsdb", *arguments], check=True, capture_output=True, timeout=600)


def open_prometheus(folder: Path) -> Prometheus:
    """A Prometheus over this database. The recording rules are computed for its last hour."""
    config = folder / "prometheus.yml"
    config.write_text("{}")
    it = Prometheus(folder, config)
    it.wait_until(lambda: it.query_api("status/buildinfo"))
    rules = HOME / "grafana" / "prometheus" / "rules.yml"
    if "record:" in rules.read_text():
        begin = str(int((END - timedelta(minutes=30)).timestamp()))
        url = it._api.removesuffix("/api/v1")
        more = ("--start", begin, "--end", str(int(END.timestamp())), "--url", url, "--eval-interval", "1m")
        promtool("create-blocks-from", "rules", *more, "--output-dir", str(folder / "tsdb"), str(rules))
        it.stop()
        it = Prometheus(folder, config)
        it.wait_until(lambda: it.query_api("status/buildinfo"))
    return it


# Drawing. Colours and texts come from the dashboard file, as Grafana would use them.

BACK, INK, FAINT = "#181b1f", "#d8d9da", "#8e8e8e"


def draw(board: dict[str, Any], it: Prometheus, chosen: dict[str, str], target: Path, rows: tuple[str, ...]) -> None:
    """Draw the panels of these rows of a dashboard."""
    panels, inside = [], False
    for panel in board["panels"]:
        if panel["type"] == "row":
            inside = panel["title"] in rows
        if inside:
            panels.append(panel)
    top = min(panel["gridPos"]["y"] for panel in panels)
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) - top
    unit = 0.28  # inches for a line of Grafana's grid
    figure = plt.figure(figsize=(15, (lines + 1) * unit), facecolor="#111217")
    heading = f"{board['title']}   {START:%-d %B, %H:%M} to {END:%-d %B, %H:%M}"
    figure.text(0.006, 1 - 0.6 / (lines + 1), heading, color=INK, fontsize=11, weight="bold")
    for panel in panels:
        place = panel["gridPos"]
        bottom = 1 - (place["y"] - top + place["h"] + 1) / (lines + 1)
        box = (place["x"] / 24, bottom, place["w"] / 24, place["h"] / (lines + 1))
        if panel["type"] == "row":
            figure.text(box[0] + 0.006, bottom + 0.3 / (lines + 1), panel["title"], color=INK, fontsize=10, weight="bold")
            continue
        pad_x, pad_y = 0.0025, 0.12 / (lines + 1)
        corner, size_x, size_y = (box[0] + pad_x, box[1] + pad_y), box[2] - 2 * pad_x, box[3] - 2 * pad_y
        frame = Rectangle(corner, size_x, size_y, transform=figure.transFigure, facecolor=BACK, edgecolor="#2c2f36", zorder=-1)
        figure.add_artist(frame)
        figure.text(box[0] + 0.008, box[1] + box[3] - 0.8 / (lines + 1), panel["title"], color=INK, fontsize=8.5, weight="bold")
        DRAW[panel["type"]](figure, panel, box, 1 / (lines + 1), Answers(it, panel, chosen))
    figure.savefig(target, dpi=80, facecolor=figure.get_facecolor())
    plt.close(figure)
    Image.open(target).convert("RGB").quantize(200, dither=Image.Dither.NONE).save(target, optimize=True)


class Answers:
    """The results of the queries of a panel."""

    def __init__(self, it: Prometheus, panel: dict[str, Any], chosen: dict[str, str]) -> None:
        self._it, self._panel, self._chosen = it, panel, chosen

    def now(self) -> list[tuple[str, dict[str, str], float]]:
        """Name, labels and value of each series at the end."""
        return [(name, labels, values[-1][1]) for name, labels, values in self._ask("query", time=END.timestamp())]

    def over_time(self) -> list[tuple[str, dict[str, str], list[tuple[float, float]]]]:
        """Name, labels, times and values of each series."""
        return self._ask("query_range", start=START.timestamp(), end=END.timestamp(), step=self.step)

    @property
    def step(self) -> float:
        least = {"5m": 300, "30m": 1800}.get(self._panel.get("interval", ""), 120)
        return float(least)

    def _ask(self, path: str, **when: float) -> list[tuple[str, dict[str, str], list[tuple[float, float]]]]:
        found = []
        for target in self._panel["targets"]:
            window = f"{max(self.step + 60, 240):.0f}s"
            expr = target["expr"].replace("$__rate_interval", window).replace("$__range", f"{(END - START).total_seconds():.0f}s")
            for name, value in self._chosen.items():
                expr = expr.replace(f"${name}", value)
            for each in self._it.query_api(path, query=expr, **when)["result"]:
                labels = each["metric"]
                legend = re.sub(r"{{(\w+)}}", lambda match, labels=labels: labels.get(match[1], ""), target["legendFormat"])
                values = each.get("values") or [each["value"]]
                found.append((legend.strip(), labels, [(at, float(value)) for at, value in values]))
        return found


def color_of(panel: dict[str, Any], name: str, value: float | None, index: int = 0) -> str:
    """The colour of a series or value, as the dashboard file defines it."""
    defaults = panel["fieldConfig"]["defaults"]
    steps = defaults["thresholds"]["steps"]
    for override in panel["fieldConfig"]["overrides"]:
        matcher = override["matcher"]
        hit = re.search(matcher["options"].strip("/"), name) if matcher["id"] == "byRegexp" else matcher["options"] == name
        for change in override["properties"] if hit else ():
            if change["id"] == "color":
                return str(change["value"]["fixedColor"])
            if change["id"] == "thresholds":
                steps = change["value"]["steps"]
    for mapping in defaults["mappings"]:
        if value is None and mapping["type"] == "special":
            return str(mapping["options"]["result"]["color"])
        if value is not None and mapping["type"] == "value" and f"{value:g}" in mapping["options"]:
            return str(mapping["options"][f"{value:g}"]["color"])
    if defaults["color"]["mode"].startswith("palette"):
        return str(mpl.colors.to_hex(mpl.colormaps["tab20"](index % 20)))
    return str([step["color"] for step in steps if value is None or step["value"] is None or value >= step["value"]][-1])


def text_of(panel: dict[str, Any], value: float | None) -> str:
    """A value as text in the unit of the panel."""
    defaults = panel["fieldConfig"]["defaults"]
    for mapping in defaults["mappings"]:
        if value is None and mapping["type"] == "special":
            return str(mapping["options"]["result"]["text"])
        if value is not None and mapping["type"] == "value" and f"{value:g}" in mapping["options"]:
            return str(mapping["options"][f"{value:g}"]["text"])
    if value is None:
        return str(defaults.get("noValue", "no data"))
    return UNITS.get(defaults["unit"], lambda number: f"{number:.3g}")(value)


def seconds(value: float) -> str:
    size = abs(value)
    sign = "-" if value < 0 else ""
    for limit, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if size >= limit:
            return f"{sign}{size / limit:.1f} {unit}"
    return f"{sign}{size:.0f} s" if size >= 1 or not size else f"{sign}{size * 1000:.0f} ms"


def size(value: float) -> str:
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(value) >= limit:
            return f"{value / limit:.1f} {unit}"
    return f"{value:.0f} B"


UNITS = {
    "s": seconds,
    "bytes": size,
    "percentunit": lambda value: f"{value * 100:.1f} %",
    "currencyUSD": lambda value: f"${value:.3g}",
}


def axes(figure: Figure, box: tuple[float, ...], line: float, left: float = 0.032, below: float = 2.2) -> Axes:
    there = figure.add_axes((box[0] + left, box[1] + below * line, box[2] - left - 0.01, box[3] - (below + 1.35) * line))
    there.set_facecolor(BACK)
    there.tick_params(colors=FAINT, labelsize=7, length=0)
    for spine in there.spines.values():
        spine.set_color("#2c2f36")
    return there


def stat(figure: Figure, panel: dict[str, Any], box: tuple[float, ...], line: float, answers: Answers) -> None:
    found: list[tuple[str, float | None]] = [(name, value) for name, _, value in answers.now()] or [("", None)]
    width = (box[2] - 0.012) / len(found)
    for number, (name, value) in enumerate(found):
        x = box[0] + 0.006 + number * width
        height = box[3] - 1.5 * line
        face = color_of(panel, name, value)
        figure.add_artist(
            Rectangle((x, box[1] + 0.35 * line), width - 0.002, height, transform=figure.transFigure, facecolor=face)
        )
        shown = name if panel["options"].get("textMode") == "name" else text_of(panel, value)
        big = 15 if len(shown) < 9 and len(found) < 3 else 11
        middle = (x + width / 2, box[1] + 0.35 * line + height * 0.58)
        figure.text(*middle, shown, color="white", ha="center", va="center", fontsize=big, weight="bold")
        if name and shown != name and (len(found) > 1 or "{{" in panel["targets"][0]["legendFormat"]):
            figure.text(x + width / 2, box[1] + 0.75 * line, name, color="white", ha="center", va="center", fontsize=7)


def timeseries(figure: Figure, panel: dict[str, Any], box: tuple[float, ...], line: float, answers: Answers) -> None:
    there = axes(figure, box, line)
    found = answers.over_time()
    is_bars = panel["fieldConfig"]["defaults"]["custom"]["drawStyle"] == "bars"
    sums: dict[float, float] = {}
    legend = []
    for index, (name, _, values) in enumerate(found):
        color = color_of(panel, name, None, index)
        legend.append((name, color))
        times = [(at - START.timestamp()) / 3600 for at, _ in values]
        if is_bars:
            below = [sums.get(at, 0) for at, _ in values]
            there.bar(times, [value for _, value in values], width=answers.step / 3600 * 0.9, bottom=below, color=color)
            for at, value in values:
                sums[at] = sums.get(at, 0) + value
        else:
            gaps = with_gaps(values, answers.step)
            there.plot(
                [(at - START.timestamp()) / 3600 for at, _ in gaps], [value for _, value in gaps], color=color, linewidth=1.2
            )
    draw_times(there)
    there.set_ylim(bottom=0)
    there.grid(axis="y", color="#2c2f36", linewidth=0.5)
    there.yaxis.set_major_formatter(lambda value, _: text_of(panel, value))
    there.locator_params(axis="y", nbins=4)
    if not found:
        nothing = panel["fieldConfig"]["defaults"].get("noValue", "no data")
        there.text(0.5, 0.5, nothing, color=FAINT, ha="center", va="center", transform=there.transAxes, fontsize=9)
        there.set_yticks([])
    write_legend(figure, box, line, legend)


def draw_times(there: Axes) -> None:
    hours = int((END - START).total_seconds() / 3600)
    there.set_xlim(0, hours)
    there.set_xticks(range(0, hours + 1, 2), [f"{(START + timedelta(hours=hour)):%H:%M}" for hour in range(0, hours + 1, 2)])


def with_gaps(values: list[tuple[float, float]], step: float) -> list[tuple[float, float]]:
    """The values with a gap wherever one is missing."""
    shown: list[tuple[float, float]] = []
    for at, value in values:
        if shown and at - shown[-1][0] > 1.5 * step:
            shown.append((at - step, float("nan")))
        shown.append((at, value))
    return shown


def write_legend(figure: Figure, box: tuple[float, ...], line: float, legend: list[tuple[str, str]]) -> None:
    x = box[0] + 0.01
    for name, color in legend:
        width = 0.008 + 0.0042 * len(name) + 0.008
        if x + width > box[0] + box[2]:
            figure.text(x, box[1] + 0.5 * line, "...", color=FAINT, fontsize=7)
            return
        figure.add_artist(Rectangle((x, box[1] + 0.62 * line), 0.006, 0.22 * line, transform=figure.transFigure, facecolor=color))
        figure.text(x + 0.008, box[1] + 0.5 * line, name, color=INK, fontsize=7)
        x += width


def ranking(figure: Figure, panel: dict[str, Any], box: tuple[float, ...], line: float, answers: Answers) -> None:
    there = axes(figure, box, line, 0.085, 0.6)
    there.axis("off")
    found = sorted(answers.now(), key=lambda each: -each[2])[:10]
    if not found:
        nothing = panel["fieldConfig"]["defaults"].get("noValue", "no data")
        there.text(0.4, 0.5, nothing, color=FAINT, ha="center", va="center", fontsize=9)
        return
    most = panel["fieldConfig"]["defaults"].get("max", max(value for *_, value in found))
    for row, (name, _, value) in enumerate(found):
        there.barh(row, value, height=0.75, color=color_of(panel, name, value))
        there.text(-0.02 * most, row, name, color=INK, ha="right", va="center", fontsize=7)
        there.text(value + 0.01 * most, row, text_of(panel, value), color=INK, va="center", fontsize=7)
    there.set_xlim(0, most * 1.18)
    there.set_ylim(9.6, -0.6)


def timeline(figure: Figure, panel: dict[str, Any], box: tuple[float, ...], line: float, answers: Answers) -> None:
    there = axes(figure, box, line, 0.1)
    found = answers.over_time()
    for row, (name, _, values) in enumerate(found):
        for at, value in values:
            begin = (at - answers.step - START.timestamp()) / 3600
            there.add_patch(
                Rectangle((begin, row + 0.08), answers.step / 3600, 0.84, color=color_of(panel, name, value), linewidth=0)
            )
    draw_times(there)
    there.set_ylim(max(len(found), 1), 0)
    there.set_yticks([row + 0.5 for row in range(len(found))], [name for name, *_ in found])
    there.tick_params(axis="y", colors=INK, labelsize=7)
    states = panel["fieldConfig"]["defaults"]["mappings"][0]["options"].values()
    write_legend(figure, box, line, [(state["text"], state["color"]) for state in states])


def table(figure: Figure, _: dict[str, Any], box: tuple[float, ...], line: float, answers: Answers) -> None:
    found = sorted(answers.now(), key=lambda each: each[2])[:7]
    for row, (_, labels, value) in enumerate(found):
        y = box[1] + box[3] - (1.9 + 0.85 * row) * line
        due = seconds(value / 1000 - END.timestamp())
        figure.text(box[0] + 0.01, y, f"{labels.get('kind', '')}   {labels.get('name', '')}", color="#6e9fff", fontsize=7.5)
        figure.text(box[0] + box[2] * 0.7, y, f"in {due}", color=INK, fontsize=7.5)


DRAW = {"stat": stat, "timeseries": timeseries, "bargauge": ranking, "state-timeline": timeline, "table": table}


def main() -> None:
    """Draw the Fleet dashboard with 12 and with 100 agents, and the other two with 12."""
    boards = {path.stem: json.loads(path.read_text()) for path in (HOME / "grafana" / "dashboards").glob("*.json")}
    TARGET.mkdir(exist_ok=True)
    for agents in (12, 100):
        with tempfile.TemporaryDirectory() as folder:
            fill(Path(folder), night(Path(folder), agents))
            it = open_prometheus(Path(folder))
            rows = ("Service levels", "Now", "Planned runs", "Top ten")
            draw(boards["fleet"], it, EVERYTHING, TARGET / f"fleet-{agents}.png", rows)
            if agents == 12:
                one = EVERYTHING | {"kind": "heartbeat", "name": "backups"}
                draw(boards["agent"], it, one, TARGET / "agent.png", ("Now", "Planned runs", "Answers and wakes"))
                rows = ("The daemon", "Queue and lateness", "Providers", "Deliveries")
                draw(boards["operations"], it, EVERYTHING, TARGET / "operations.png", rows)
            it.stop()
    print(f"drawn: {sorted(path.name for path in TARGET.iterdir())}")


if __name__ == "__main__":
    main()
