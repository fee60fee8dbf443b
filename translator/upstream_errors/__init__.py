"""Errors of OpenAI-compatible upstreams, for Responses and Chat Completions."""

from .body_parser import ErrorFields, read_error, vendor_error
from .mapping import http_status_message, map_error, status_of_error
from .paths import map_error_paths

__all__ = [
    "ErrorFields",
    "http_status_message",
    "map_error",
    "map_error_paths",
    "read_error",
    "status_of_error",
    "vendor_error",
]
