"""Imports configs of other heartbeat systems: reads their files, converts them, and lists the result for each value."""
