"""Buttons below messages in chats."""
