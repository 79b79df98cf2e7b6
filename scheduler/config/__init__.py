"""Reads config.yaml into settings, or lists everything that is wrong with it. Imports configs of other systems."""
