"""JSON types of the Anthropic Messages API, with the field names of its documentation."""

from typing import Any

Event = dict[str, Any]
"""One event of a message stream; the key ``type`` is always present."""

Message = dict[str, Any]
"""A complete message: id, type, role, model, content, stop_reason, stop_sequence, usage."""

MessagesRequest = dict[str, Any]
"""A validated request body; only ``parse_messages_request`` and similar functions return one."""
