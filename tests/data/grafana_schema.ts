// The types that a dashboard must have, from which grafana_schema.json was derived. Not needed to run the tests. To derive it again:
//   npm install @grafana/schema@13.2.3 ts-json-schema-generator@2.4.0
//   npx ts-json-schema-generator --path grafana_schema.ts --type Board --no-type-check --expose none --no-top-ref \
//     --jsDoc none --minify -o grafana_schema.json
import * as g from '@grafana/schema';
import { Options as TimeSeriesOptions, FieldConfig as TimeSeriesFields } from './node_modules/@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/types.gen';
import { Options as StatOptions } from './node_modules/@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/types.gen';
import { Options as BarGaugeOptions } from './node_modules/@grafana/schema/dist/types/raw/composable/bargauge/panelcfg/x/types.gen';
import { Options as TimelineOptions, FieldConfig as TimelineFields } from './node_modules/@grafana/schema/dist/types/raw/composable/statetimeline/panelcfg/x/types.gen';
import { Options as TableOptions, FieldConfig as TableFields } from './node_modules/@grafana/schema/dist/types/raw/composable/table/panelcfg/x/types.gen';

// The query of Prometheus is not part of @grafana/schema 13; these fields are those of its version 11.6.
interface PrometheusQuery {
  refId: string; datasource: g.DataSourceRef; expr: string; legendFormat: string;
  instant: boolean; range: boolean; format: 'time_series' | 'table' | 'heatmap'; exemplar?: boolean;
}
interface DataLink { title: string; url: string; targetBlank?: boolean; [other: string]: unknown }
interface Fields<T> {
  defaults: Omit<g.FieldConfig, 'custom' | 'links'> & { custom?: Partial<T>; links?: DataLink[] };
  overrides: Array<{ matcher: g.MatcherConfig; properties: Array<{ id: string; value?: unknown }> }>;
}
type Base = Omit<g.Panel, 'type' | 'options' | 'fieldConfig' | 'targets' | 'links'>;
interface TimeSeriesPanel extends Base { type: 'timeseries'; options: Partial<TimeSeriesOptions>; fieldConfig: Fields<TimeSeriesFields>; targets: PrometheusQuery[] }
interface StatPanel extends Base { type: 'stat'; options: Partial<StatOptions>; fieldConfig: Fields<{}>; targets: PrometheusQuery[] }
interface BarGaugePanel extends Base { type: 'bargauge'; options: Partial<BarGaugeOptions>; fieldConfig: Fields<{}>; targets: PrometheusQuery[] }
interface TimelinePanel extends Base { type: 'state-timeline'; options: Partial<TimelineOptions>; fieldConfig: Fields<TimelineFields>; targets: PrometheusQuery[] }
interface TablePanel extends Base { type: 'table'; options: Partial<TableOptions>; fieldConfig: Fields<TableFields>; targets: PrometheusQuery[] }
type AnyPanel = TimeSeriesPanel | StatPanel | BarGaugePanel | TimelinePanel | TablePanel | g.RowPanel;

interface Annotation extends Omit<g.AnnotationQuery, 'target'> {
  // Fields of the Prometheus data source.
  expr: string; step: string; titleFormat: string; textFormat: string; useValueForTime: boolean;
}
interface Variable extends g.VariableModel {
  auto?: boolean; auto_count?: number; auto_min?: string; // written by the SDK for each variable
}
export interface Board extends Omit<g.Dashboard, 'panels' | 'annotations' | 'templating'> {
  panels: AnyPanel[];
  annotations: { list: Annotation[] };
  templating: { list: Variable[] };
}
