"""The engine: what becomes of everything that is due, in one transaction at a time."""
