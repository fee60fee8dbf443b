"""Wire types of the Anthropic Messages API, as its documentation spells them."""

from typing import Any

Event = dict[str, Any]
"""One event of a message stream; ``type`` is always there."""

Message = dict[str, Any]
"""A whole answer: id, type, role, model, content, stop_reason, stop_sequence, usage."""

MessagesRequest = dict[str, Any]
"""A checked request body; only ``parse_messages_request`` makes one."""
