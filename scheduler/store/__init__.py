"""Reads and writes the SQLite database. All SQL is here."""
