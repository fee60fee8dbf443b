"""Errors of OpenAI-like upstreams, for every dialect that hears them."""

from .fields import ErrorFields, error_aside, read_error
from .places import told_in_ours
from .verdicts import inner_status, map_error, told_of

__all__ = [
    "ErrorFields",
    "error_aside",
    "inner_status",
    "map_error",
    "read_error",
    "told_in_ours",
    "told_of",
]
