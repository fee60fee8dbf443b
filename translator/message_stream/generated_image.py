"""What stands for a generated image: Anthropic's assistant messages have none."""

from typing import Final

from translator.notes import Note

IMAGE: Final = "[an image was generated that cannot be shown here]"
"""This text is sent in place of an image."""
REPLACED_IMAGE: Final = Note("content", "emulated", "a generated image is replaced by text")
