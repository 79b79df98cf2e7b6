"""Builds the daemon's settings from the checked data of config.yaml."""
