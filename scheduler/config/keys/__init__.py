"""Defines which keys and values config.yaml may have, and suggests the right ones for wrong ones."""
