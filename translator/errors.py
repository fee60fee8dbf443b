"""Every error this package raises.

TranslatorError
├── BadRequest          the client's request breaks Anthropic's rules: 400, with the path
├── IllegalMove         a move that the Anthropic stream grammar forbids
└── BadUpstream         the upstream broke its own protocol

Any other exception that leaves this package is a bug of ours.
"""


class TranslatorError(Exception):
    """Base of every error this package raises."""


class BadRequest(TranslatorError):
    """The client's request cannot be served as it stands.

    ``path`` is where in the body (``messages.2.content.0.type``, empty for the whole body);
    ``status`` and ``error_type`` are hints for the answer; ``error_code`` goes into
    ``error.details`` where Anthropic defines one.
    """

    def __init__(
        self,
        path: str,
        message: str,
        *,
        status: int = 400,
        error_type: str = "invalid_request_error",
        error_code: str | None = None,
    ) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.status = status
        self.error_type = error_type
        self.error_code = error_code


class IllegalMove(TranslatorError):
    """A move that the Anthropic stream grammar forbids; ``feed`` decides whose fault."""


class BadUpstream(TranslatorError):
    """The upstream sent something that its own protocol does not allow."""
