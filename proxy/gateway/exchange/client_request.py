"""The parts of the client's request that admission, translation and the ledger need."""

import re
import time
from itertools import islice
from typing import Any, Final

from proxy.gateway.admission.client_options import PLAIN
from proxy.gateway.http.request_headers import RequestHeaders, printable
from translator.anthropic.usage import MAX_COUNT
from translator.errors import BadRequest
from translator.request.session_id import MAX_SESSION_ID, session_id_in

SESSION_HEADER: Final = b"x-claude-code-session-id"
SUMMARY_FIELDS: Final = (
    "stream", "max_tokens", "temperature", "top_p", "top_k", "speed", "inference_geo"
)  # fmt: skip
"""The request fields that stay in memory after translation, for the ledger row, the trace and the
live view."""
MAX_TAGS: Final = 16
MAX_TAG: Final = 200
TAG_NAME: Final = re.compile(r"[A-Za-z0-9_.:/=+@-]{1,64}")
"""The names of tags that Claude Code accepts for a billing group."""
MAX_OUTPUT_TOKENS: Final = 128_000
"""Assumed for a request without a valid limit: as many as a model can write in one response."""


class ClientRequest:
    """A request to /v1/messages.

    The class has ``__slots__``, because thousands of instances exist at the same time.
    """

    __slots__ = (
        "body",
        "created",
        "fault",
        "fields",
        "input_estimate",
        "model",
        "options",
        "rejected_body",
        "session_id",
        "size",
    )

    def __init__(self, headers: RequestHeaders) -> None:
        self.created = time.time()
        self.fields: dict[str, Any] = {}  # the decoded body
        self.body = b""  # the body as the client sent it
        self.rejected_body = b""  # the body as the client sent it, if the request is invalid
        # Why the request cannot be translated. An Anthropic upstream may accept it all the same.
        self.fault: BadRequest | None = None
        self.size = 0  # of the body, in bytes
        self.model = ""  # the model name in the client's request
        self.input_estimate = 0  # the input tokens by ``estimate_tokens``
        self.options = PLAIN  # the options set by headers and by the gateway key
        self.session_id = headers.text(SESSION_HEADER, MAX_SESSION_ID)
        """The id of the conversation; empty if the request has none."""

    def set_body(self, body: bytes, fields: dict[str, Any], input_estimate: int) -> None:
        self.body, self.fields, self.input_estimate = body, fields, input_estimate
        self.size = len(body)
        self.model = fields["model"]
        if not self.session_id and "metadata" in fields:
            self.session_id = session_id_in(fields["metadata"])

    def release_body(self) -> None:
        """Release the large parts of the request, once no further target needs them."""
        fields, self.body = self.fields, b""
        self.fields = {name: fields[name] for name in SUMMARY_FIELDS if name in fields}

    @property
    def max_tokens(self) -> int:
        """Return the limit of output tokens, for budgets.

        A request that the gateway could not check may have no valid limit. A larger limit than any
        model has is lowered, because a database cannot store its cost.
        """
        limit = self.fields.get("max_tokens")
        if not isinstance(limit, int | float) or limit < 0:
            return MAX_OUTPUT_TOKENS
        return int(min(limit, MAX_COUNT))

    @property
    def tags(self) -> dict[str, str]:
        """Return the field ``tags`` (beta ``request-tags-2026-08-21``), without invalid ones.

        Claude Code sends its billing group there.
        """
        sent = self.fields.get("tags")
        if not isinstance(sent, dict):
            return {}
        return {
            name: printable(value)
            for name, value in islice(sent.items(), MAX_TAGS)
            if TAG_NAME.fullmatch(name) and isinstance(value, str) and len(value) <= MAX_TAG
        }

    @property
    def streaming(self) -> bool:
        return self.fields.get("stream") is True
