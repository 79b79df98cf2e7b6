"""Describes panels and turns them into dashboards of Grafana (classic model) with the grafana-foundation-sdk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from scheduler.model.outcome import PLANNED_SKIPS, Skip

SOURCE = options.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24  # columns of Grafana's grid

# Selectors. `instance` is a daemon. A query without one of these would mix the daemons of different jobs.
HERE = 'job=~"$job",instance=~"$instance"'
NAMED = f'{HERE},name=~"$name"'
SUBJECT = f'{HERE},subject=~".+/($name)(/.*)?"'  # of problems: agent/NAME, cron/NAME, provider/NAME/MODEL
KIND = f'{HERE},kind=~"$kind"'
ENTRY = f'{KIND},name=~"$name"'

# The colour of each meaning, for all dashboards and pictures.
GOOD, ALERT, WAITING, BAD = "#56A64B", "#3274D9", "#F2CC0C", "#E02F44"
UNKNOWN, NOTHING = "#8E6BBF", "#4D4D4D"
COLORS: Mapping[str, str] = {
    # runs by result
    "ok": GOOD,
    "alert": ALERT,
    "async": WAITING,
    "failed": BAD,
    "timeout": "#AD0317",
    "abandoned": "#FF7383",
    # planned runs
    "good": GOOD,
    "bad": BAD,
    "on_time": GOOD,
    "late": "#FF9830",
    "planned skip": "#8E8E8E",
    # runs skipped as planned: grey
    "active_hours": "#6E6E6E",
    "calendar": "#8E8E8E",
    "paused": "#A5A5A5",
    "disabled": "#4D4D4D",
    "nothing_due": "#BDBDBD",
    "precheck": "#7F8C8D",
    "precheck_unchanged": "#95A5A6",
    "not_shown": "#5D6D7E",
    "removed": "#3D3D3D",
    "superseded": "#CCCCCC",
    "predecessor": "#DDDDDD",
    "cancelled": "#EEEEEE",
    # runs skipped although they should have started: orange and red
    "missed": "#FF780A",
    "already_running": "#FFB357",
    "busy": "#FF9830",
    "budget": "#E0B400",
    "breaker_open": "#C4162A",
    "checklist_missing": "#FA6400",
    "checklist_empty": "#FFCB7D",
    "checklist_unreadable": "#D9480F",
    "checklist_too_large": "#A63C06",
    "precheck_failed": "#F2495C",
    "prompt_too_large": "#8F3B1B",
    # classes of provider errors: red needs an action, orange ends by itself
    "auth": "#AD0317",
    "payment": "#C4162A",
    "not_found": "#E02F44",
    "bad_request": "#F2495C",
    "too_large": "#FF7383",
    "rate": "#FFB357",
    "overloaded": "#FF9830",
    "server": "#FF780A",
    "connect": "#FA6400",
    "dns": "#D9480F",
    "tls": "#A63C06",
    "bad_answer": "#8F3B1B",
    "tool_use": "#FFA6B0",
    "exit": "#FFCB7D",
    # messages
    "delivered": GOOD,
    "retried": WAITING,
    "uncertain": "#FF9830",
    "dead": BAD,
    "pending": WAITING,
    # wakes
    "started": GOOD,
    "joined": "#96D98D",
    "deferred": WAITING,
    "expired": "#FF9830",
    "rejected": BAD,
    # severities of problems
    "info": "#8AB8FF",
    "warning": "#FF9830",
    "critical": BAD,
    # limits
    "limit": "#6E6E6E",
}
PLANNED_REASONS = "|".join(reason for reason in Skip if reason in PLANNED_SKIPS)  # for a regular expression

AGENT_URL = (
    "/d/heartbeatd-agent?${datasource:queryparam}&${job:queryparam}&${instance:queryparam}"
    "&var-kind=%s&var-name=%s&${__url_time_range}"
)
LABEL_KIND, LABEL_NAME = "${__field.labels.kind}", "${__field.labels.name}"
FROM_TABLE = AGENT_URL % ("${__data.fields.kind}", "${__data.fields.name}")

Kind = Literal["timeseries", "stat", "table", "timeline", "ranking"]


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `expressions` are its queries, by legend.

    A timeseries draws lines, or with `bars` stacked bars, where the queries in `lines` are still lines. A ranking is a list of
    bars, one for each series. A timeline has a row for each series, and `states` are the texts and colours of its values.
    A stat shows `states` in place of numbers, or its legend with `shows_legend`. Orange and red begin at `thresholds`, or red and
    orange end there with `more_is_better`. Without thresholds, everything has the colour `base`. `own_thresholds` are the lower
    bounds and colours of single series. `no_value` is shown while a query returns no data. `units` are the units of columns.
    With `entry`, a click opens the Agent dashboard: "labels" if the series have the labels `kind` and `name`, "agent" if they
    only have `name`.
    """

    title: str
    description: str
    expressions: Mapping[str, str]
    lines: Mapping[str, str] = field(default_factory=dict)
    kind: Kind = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    bars: bool = False
    thresholds: tuple[float, ...] = ()
    more_is_better: bool = False
    base: str = ALERT
    own_thresholds: Mapping[str, tuple[tuple[float | None, str], ...]] = field(default_factory=dict)
    maximum: float | None = None
    no_value: str = ""
    states: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    shows_legend: bool = False
    sort_by: tuple[str, bool] = ("", False)
    entry: Literal["", "labels", "agent"] = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A heading with its panels."""

    title: str
    panels: tuple[Panel, ...]


# Parts of queries.


def series(name: str, selector: str) -> str:
    """A metric with a label selector."""
    return f"heartbeatd_{name}{{{selector}}}"


def increase(name: str, selector: str, by: str = "") -> str:
    """The increase of a counter per step, summed by these labels. Series without an increase are left out."""
    return f"sum by ({by}) (increase(heartbeatd_{name}{{{selector}}}[$__rate_interval])) > 0"


def increase_in_range(name: str, selector: str, by: str = "") -> str:
    """The increase of a counter over the displayed time range, summed by these labels. Series without it are left out."""
    return f"sum by ({by}) (increase(heartbeatd_{name}{{{selector}}}[$__range])) > 0"


def quantile(level: float, name: str, selector: str, by: str) -> str:
    """A quantile (0 to 1) of a histogram, by these labels."""
    return f"histogram_quantile({level}, sum by ({by}, le) (rate(heartbeatd_{name}_bucket{{{selector}}}[$__rate_interval])))"


def top_ten(query: str) -> str:
    """The ten highest series."""
    return f"topk(10, {query})"


def while_up(query: str) -> str:
    """A query without labels that has no value while no daemon answers. The last known value would look healthy."""
    return f"({query}) and on () (sum(up{{{HERE}}}) > 0)"


def count_while_up(query: str) -> str:
    """The number of series of a query. 0 only while a daemon answers, so that a dead daemon does not look healthy."""
    return f"count({query}) or 0 * (sum(up{{{HERE}}}) > 0)"


# The dashboards.


def render(*, uid: str, title: str, description: str, rows: Sequence[Row], variables: Sequence[str], span: str = "24h") -> str:
    """The dashboard as the JSON text that Grafana imports. `variables` are those after `job` and `instance`."""
    built = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["heartbeatd"])
        .version(1)
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .timezone("browser")
        .time(f"now-{span}", "now")
        .refresh("1m")
        .variables([_source_variable(), _job_variable(), *(_variable(name, uid) for name in ("instance", *variables))])
        .annotations(list(_annotations()))
        .links(list(_links(uid)))
        .build()
    )
    built.panels = list(_laid_out(rows))
    return json.dumps(_cleaned(json.loads(json.dumps(built, cls=JSONEncoder))), indent=1, sort_keys=True) + "\n"


def _cleaned(part: Any) -> Any:
    """Without two values that the SDK always writes. `placement` would hide links and annotations in a menu of Grafana 13,
    and the option `footer` of tables no longer exists.
    """
    if isinstance(part, list):
        return [_cleaned(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _cleaned(value) for key, value in part.items() if (key, value) != ("placement", "inControlsMenu") and key != "footer"
    }


def _source_variable() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _job_variable() -> dashboard.CustomVariable:
    """The job of the scrape config. It is a fixed value and not a query, so that it remains while the daemon is down."""
    chosen = model.VariableOption(text="heartbeatd", value="heartbeatd", selected=True)
    return dashboard.CustomVariable("job").label("Job").values("heartbeatd").current(chosen).options([chosen])


def _variable(name: str, uid: str) -> dashboard.QueryVariable:
    """A variable for the values of a label. On the Agent dashboard one agent or job is selected, elsewhere all at first."""
    found = {
        "instance": 'up{job=~"$job"}',  # also exists for a daemon that is down
        "kind": f"heartbeatd_entry_state{{{HERE}}}",
        "name": f"heartbeatd_entry_state{{{KIND}}}",
    }[name]
    query = f"label_values({found}, {name})"
    built = (
        dashboard.QueryVariable(name)
        .label({"instance": "Daemon", "kind": "Kind", "name": "Agent or job"}[name])
        .datasource(SOURCE)
        .query({"query": query, "refId": name})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
    )
    if uid == "heartbeatd-agent" and name != "instance":
        return built.multi(False).include_all(False)
    everything = model.VariableOption(text=["All"], value=["$__all"], selected=True)
    return built.multi(True).include_all(True).all_value(".*").current(everything)


def _annotations() -> Iterator[dashboard.AnnotationQuery]:
    yield _annotation("Starts", "#37872D", f"process_start_time_seconds{{{HERE}}} * 1000", "{{instance}} started", at_value=True)
    reloaded = series("config_last_reload_success_timestamp_seconds", HERE)
    yield _annotation("Reloads", "#3274D9", f"{reloaded} * 1000", "{{instance}} uses a new config", at_value=True)
    build = series("build_info", HERE)
    yield _annotation(
        "Versions",
        "#8E6BBF",
        f"({build} unless on (instance, version, tzdata) last_over_time({build}[1d] offset 5m)) "
        f"and on (instance) last_over_time({build}[1d] offset 5m)",
        "{{instance}} now runs heartbeatd {{version}}, tzdata {{tzdata}}",
    )


def _annotation(name: str, color: str, query: str, text: str, *, at_value: bool = False) -> dashboard.AnnotationQuery:
    """A mark where the query has a value, or with `at_value` at the time that the value is (in milliseconds)."""
    built = dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color).expr(query)
    return built.title_format(name).text_format(text).step("60s").use_value_for_time(at_value)


def _links(uid: str) -> Iterator[dashboard.DashboardLink]:
    for other in ("Fleet", "Agent", "Operations"):
        if uid != f"heartbeatd-{other.lower()}":
            link = dashboard.DashboardLink(other).type(model.DashboardLinkType.LINK).url(f"/d/heartbeatd-{other.lower()}")
            yield link.include_vars(True).keep_time(True).icon("dashboard")


def _laid_out(rows: Sequence[Row]) -> Iterator[model.Panel | model.RowPanel]:
    """Rows one below the other. The panels of a row are placed from left to right, on as many lines as they need."""
    number = y = 0
    for row in rows:
        number += 1
        place = model.GridPos(x=0, y=y, w=WIDTH, h=1)
        yield dashboard.Row(row.title).id(number).collapsed(False).grid_pos(place).build()
        y, x, tallest = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                y, x, tallest = y + tallest, 0, 0
            number += 1
            built = _build(panel)
            built.id_val, built.grid_pos = number, model.GridPos(x=x, y=y, w=panel.width, h=panel.height)
            yield built
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest


def _build(panel: Panel) -> model.Panel:
    builder = _BUILDERS[panel.kind](panel)
    builder.title(panel.title).description(panel.description).datasource(SOURCE).unit(panel.unit)
    builder.thresholds(_thresholds(panel)).mappings(list(_mappings(panel)))
    for letter, (legend, query) in _letters(panel):
        builder.with_target(_target(panel, letter, legend, query))
    for override in _overrides(panel):
        builder.with_override(*override)
    if panel.kind not in ("stat", "timeline"):
        builder.min(0)
    if panel.maximum is not None:
        builder.max(panel.maximum)
    if panel.no_value:
        builder.no_value(panel.no_value)
    if panel.kind != "table" and panel.entry:
        kind = LABEL_KIND if panel.entry == "labels" else "heartbeat"
        builder.data_links([_data_link(AGENT_URL % (kind, LABEL_NAME))])
    if panel.bars:
        builder.interval("5m")  # in shorter intervals an increase is mostly zero
    if panel.kind == "timeline":
        builder.interval("30m")  # the usual interval of an agent: its cells touch each other
    return builder.build()


def _letters(panel: Panel) -> Iterator[tuple[str, tuple[str, str]]]:
    return zip("ABCDEFGHIJ", [*panel.expressions.items(), *panel.lines.items()], strict=False)


def _target(panel: Panel, letter: str, legend: str, query: str) -> prometheus.Dataquery:
    built = prometheus.Dataquery().ref_id(letter).datasource(SOURCE).expr(query).legend_format(legend or "__auto")
    built = built.range() if panel.kind in ("timeseries", "timeline") else built.instant()
    if "histogram_quantile" in query:
        built = built.exemplar(True)  # single runs and calls as dots, with the run id
    return built.format(PromQueryFormat.TABLE if panel.kind == "table" else PromQueryFormat.TIME_SERIES)


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    colors = (BAD, COLORS["late"], GOOD) if panel.more_is_better else (GOOD, COLORS["late"], BAD)
    steps = zip((None, *panel.thresholds), colors if panel.thresholds else (panel.base,), strict=False)
    return (
        dashboard.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=bound, color=color) for bound, color in steps])
    )


def _mappings(panel: Panel) -> Iterator[model.ValueMap | model.SpecialValueMap]:
    if panel.states:
        texts = enumerate(panel.states.items())
        yield model.ValueMap(
            {str(value): model.ValueMappingResult(text=text, color=color, index=index) for index, (value, (text, color)) in texts}
        )
    if panel.kind == "stat":
        color = NOTHING if panel.no_value else UNKNOWN
        nothing = model.ValueMappingResult(text=panel.no_value or "unknown", color=color, index=len(panel.states))
        yield model.SpecialValueMap(
            model.DashboardSpecialValueMapOptions(match=model.SpecialValueMatch.NULL_AND_NAN, result=nothing)
        )


Override = tuple[model.MatcherConfig, list[model.DynamicConfigValue]]


def _overrides(panel: Panel) -> Iterator[Override]:
    for name, unit in panel.units.items():
        yield _override("byName", name, {"unit": unit})
    for name, bounds in panel.own_thresholds.items():
        steps = [model.Threshold(value=bound, color=color) for bound, color in bounds]
        yield _override("byName", name, {"thresholds": model.ThresholdsConfig(model.ThresholdsMode.ABSOLUTE, steps)})
    if panel.kind == "table":
        yield _override("byName", "name", {"links": [_data_link(FROM_TABLE).build()]})
    if panel.kind != "timeseries":
        return
    for word in _possible_words(panel):
        yield _override("byRegexp", f"/(^|\\s){word}$/", {"color": {"mode": "fixed", "fixedColor": COLORS[word]}})
    for letter, (legend, _) in _letters(panel):
        if panel.bars and legend in panel.lines:
            yield _override("byFrameRefID", letter, {f"custom.{key}": value for key, value in LINES.items()})


def _possible_words(panel: Panel) -> Iterator[str]:
    """The coloured words that the legends of a panel can end with: values of the last label, or written out."""
    legends = [legend for _, (legend, _) in _letters(panel)]
    for words in LABEL_WORDS.values():
        yield from (word for word in words if any(legend.endswith(f" {word}") or legend == word for legend in legends))
    for legend in legends:
        label = legend.rpartition("{{")[2].removesuffix("}}") if legend.endswith("}}") else ""
        queries = " ".join(panel.expressions.values())
        words = LABEL_WORDS.get(label, ())
        yield from (word for word in words if label != "result" or _fits(word, queries))


ERROR_CLASSES = (
    *("auth", "payment", "not_found", "bad_request", "too_large", "rate", "overloaded", "server", "connect", "dns", "tls"),
    *("timeout", "bad_answer", "tool_use", "exit"),
)

# The values of labels that have colours. A legend that ends with such a label gets these colours.
LABEL_WORDS: Mapping[str, tuple[str, ...]] = {
    "outcome": ("ok", "alert", "async", "failed", "timeout", "abandoned"),
    "reason": (*PLANNED_REASONS.split("|"), "missed", "already_running", "busy", "budget", "breaker_open", "checklist_missing",
               "checklist_empty", "checklist_unreadable", "checklist_too_large", "precheck_failed", "prompt_too_large"),
    "severity": ("info", "warning", "critical"),
    "result": ("delivered", "retried", "uncertain", "dead", "started", "joined", "deferred", "expired", "rejected",
               "good", "bad", "on_time", "late", "ok", "failed", *ERROR_CLASSES),
    "other": ("pending", "limit"),
}  # fmt: skip
RESULTS_BY_METRIC = {
    "deliveries_total": ("delivered", "retried", "uncertain", "dead"),
    "wakes_total": ("started", "joined", "deferred", "expired", "rejected"),
    "slots_total": ("good", "bad"),
    "on_time_total": ("on_time", "late"),
    "provider_requests_total": ("ok", *ERROR_CLASSES),
    "deadman_pings_total": ("ok", "failed"),
}


def _fits(word: str, queries: str) -> bool:
    """Whether one of the metrics in the queries has this result."""
    return any(word in words for metric, words in RESULTS_BY_METRIC.items() if metric in queries)


def _override(matcher: str, what: str, properties: Mapping[str, Any]) -> Override:
    return model.MatcherConfig(matcher, what), [model.DynamicConfigValue(key, value) for key, value in properties.items()]


def _data_link(url: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink("Open the Agent dashboard").url(url)


LINES: Mapping[str, Any] = {
    "drawStyle": "line", "fillOpacity": 0, "lineWidth": 2, "stacking": {"mode": "none", "group": "A"},
}  # fmt: skip


def _timeseries(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().display_mode(options.LegendDisplayMode.LIST)
    legend = legend.placement(options.LegendPlacement.BOTTOM).show_legend(True)
    tooltip = (
        common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.DESCENDING).hide_zeros(True)
    )
    built = timeseries.Panel().legend(legend).tooltip(tooltip).span_nulls(False)
    built = built.color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    if panel.bars:
        stacked = common.StackingConfig().mode(options.StackingMode.NORMAL).group("A")
        return built.draw_style(options.GraphDrawStyle.BARS).fill_opacity(80).line_width(0).stacking(stacked)
    alone = common.StackingConfig().mode(options.StackingMode.NONE).group("A")
    built = built.draw_style(options.GraphDrawStyle.LINE).fill_opacity(10).line_width(1).stacking(alone)
    return built.show_points(options.VisibilityMode.AUTO)


def _stat(panel: Panel) -> stat.Panel:
    mode = options.BigValueTextMode.NAME if panel.shows_legend else options.BigValueTextMode.AUTO
    built = stat.Panel().color_mode(options.BigValueColorMode.BACKGROUND).graph_mode(options.BigValueGraphMode.NONE)
    built = built.text_mode(mode).reduce_options(_last_value()).color_scheme(_by_threshold())
    return built.orientation(options.VizOrientation.AUTO)


def _ranking(_: Panel) -> bargauge.Panel:
    built = bargauge.Panel().display_mode(options.BarGaugeDisplayMode.BASIC).show_unfilled(False)
    built = built.orientation(options.VizOrientation.HORIZONTAL).value_mode(options.BarGaugeValueMode.TEXT)
    return built.reduce_options(_last_value()).color_scheme(_by_threshold())


def _timeline(_: Panel) -> statetimeline.Panel:
    legend = common.VizLegendOptions().display_mode(options.LegendDisplayMode.LIST)
    legend = legend.placement(options.LegendPlacement.BOTTOM).show_legend(True)
    built = (
        statetimeline.Panel()
        .legend(legend)
        .merge_values(False)
        .show_value(options.VisibilityMode.NEVER)
        .row_height(0.85)
        .per_page(25)
    )
    return built.fill_opacity(100).line_width(0).color_scheme(_by_threshold())


def _table(panel: Panel) -> table.Panel:
    built = table.Panel().show_header(True).color_scheme(_by_threshold())
    if panel.sort_by[0]:
        built = built.sort_by([common.TableSortByFieldState().display_name(panel.sort_by[0]).desc(panel.sort_by[1])])
    names = {f"Value #{letter}": legend for letter, (legend, _) in _letters(panel)}
    if len(names) == 1:
        names = {"Value": next(iter(names.values()))}
    organized = {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": names}
    built = built.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    return built.with_transformation(model.DataTransformerConfig(id_val="organize", options=organized))


def _last_value() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False)


def _by_threshold() -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)


_BUILDERS: Mapping[Kind, Any] = {
    "timeseries": _timeseries,
    "stat": _stat,
    "table": _table,
    "timeline": _timeline,
    "ranking": _ranking,
}
