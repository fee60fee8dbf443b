"""Every error that this package raises.

TranslatorError
├── BadRequest          the client's request breaks Anthropic's rules: HTTP 400, with the path
├── IllegalMove         an event is not valid at this point of the Anthropic stream
└── BadUpstream         the upstream broke its own protocol

Any other exception that leaves this package is a bug in it.
"""


class TranslatorError(Exception):
    """Base of every error that this package raises."""


class BadRequest(TranslatorError):
    """The client's request is invalid or cannot be translated for the upstream.

    ``path`` locates the fault in the request body (``messages.2.content.0.type``; empty for the
    whole body). ``status`` and ``error_type`` suggest the error response; ``error_code`` is the
    value of ``error.details.error_code``, where Anthropic defines one.
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
    """An event that the order of Anthropic's stream events forbids at this point."""


class BadUpstream(TranslatorError):
    """The upstream sent data that its own protocol does not allow."""
