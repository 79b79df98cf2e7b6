"""How long the tests wait for something that takes moments on an idle machine. Only a test that hangs reaches it."""

from __future__ import annotations

PATIENCE = 600.0  # seconds; with 60 and with 200, whole files failed at a load of 30
