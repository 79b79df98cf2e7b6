"""Reads the text of config.yaml into plain data in which each value knows its line and column."""
