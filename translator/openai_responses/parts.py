"""How input parts of the Responses API are spelt."""

from typing import Final

from translator.parts import Block, Parts

from .types import CacheBreakpoint, InputFile, InputImage, InputPart, InputText


class InputParts(Parts[InputPart]):
    def text(self, text: str) -> InputText:
        return {"type": "input_text", "text": text}

    def image(self, url: str) -> InputImage:
        return {"type": "input_image", "detail": "auto", "image_url": url}

    def file(self, name: str, data_url: str) -> InputFile:
        return {"type": "input_file", "filename": name, "file_data": data_url}

    def file_at(self, url: str) -> InputFile:
        return {"type": "input_file", "file_url": url}

    def mark(self, part: InputPart, cache_control: Block) -> None:
        """Servers without the capability end a cached prefix without being told."""
        mark: CacheBreakpoint = {"mode": "explicit"}
        if cache_control.get("ttl") == "1h":
            mark["ttl"] = "12h"
        part["prompt_cache_breakpoint"] = mark


PARTS: Final = InputParts()
