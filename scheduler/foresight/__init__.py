"""Plays a config in virtual time, before it is in force."""
