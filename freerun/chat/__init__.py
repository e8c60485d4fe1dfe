"""Conversations with the policy: messages, templates, tool calls, and the tree of a session's tokens."""
