"""Writes the log lines and the Prometheus metrics."""
