"""OpenTelemetry traces of the attempts."""

ADDS = {"listeners": {"otel": "scheduler.extras.traces.traces:Traces"}}
