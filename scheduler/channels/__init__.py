"""Sends messages: one module for each kind of channel, listed in `registry`."""
