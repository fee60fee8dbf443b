"""Convert a LiteLLM ``config.yaml`` into a bridge.toml, and report what was not converted."""

from .load import Imported, read, read_file
from .report import Finding

__all__ = ["Finding", "Imported", "read", "read_file"]
