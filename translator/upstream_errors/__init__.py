"""Errors of OpenAI-compatible upstreams, for Responses and Chat Completions."""

from .body_parser import ErrorFields, read_error, vendor_error
from .mapping import http_status_message, map_error, status_of_error
from .paths import anthropic_path, map_error_paths, renumbered

__all__ = [
    "ErrorFields",
    "anthropic_path",
    "http_status_message",
    "map_error",
    "map_error_paths",
    "read_error",
    "renumbered",
    "status_of_error",
    "vendor_error",
]
