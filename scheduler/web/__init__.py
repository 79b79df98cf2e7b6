"""Serves the HTTP API, the metrics page and the health probes of the daemon."""
