"""Imports configs of other heartbeat systems: reads their files, converts them, and lists what became of each key."""
