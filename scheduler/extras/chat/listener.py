"""What the core calls for buttons below messages: `ButtonListener` in scheduler/engine/delivery.py."""

from __future__ import annotations

from scheduler.extras.chat.button_poller import make_poller
from scheduler.extras.chat.buttons import buttons_of, delete_old_uses

__all__ = ["buttons_of", "delete_old_uses", "make_poller"]
