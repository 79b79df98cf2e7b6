"""OpenTelemetry traces of the attempts."""
