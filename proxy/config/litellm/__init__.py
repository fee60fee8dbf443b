"""A LiteLLM ``config.yaml`` as a bridge.toml, and a list of what did not carry over."""

from .reading import Imported, read, read_file
from .report import Finding

__all__ = ["Finding", "Imported", "read", "read_file"]
