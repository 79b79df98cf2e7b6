"""Writes the log and the Prometheus metrics."""
