"""Buttons below messages in chats."""

ADDS = {"listeners": {"buttons": "scheduler.extras.chat.listener"}}
