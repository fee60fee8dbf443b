"""Search each pattern's worst texts and print those whose time grows faster than the text.

This is a separate program so that its CPU time can be limited. ``test_patterns`` sends JSON to stdin.
"""

import ast
import json
import re
import sys
import time
from typing import Any, Final

SIZES: Final = (16 * 1024, 64 * 1024)
GROWTH: Final = 9.0
"""Allowed growth for a text of four times the size: linear work takes 4, quadratic work 16."""
SHORT_S: Final = 0.02
"""Times below this for 64 KB are noise, so their growth is not checked."""
ATTEMPTS: Final = 5
"""Other load makes a time longer; a pattern whose work grows too fast exceeds GROWTH each time."""


def cpu_s(pattern: re.Pattern[Any], text: Any, *, searched: bool) -> float:
    began = time.process_time()
    if searched:
        for _found in pattern.finditer(text):
            pass
    else:
        pattern.match(text)
        pattern.fullmatch(text)
    return time.process_time() - began


def main() -> None:
    for each in json.load(sys.stdin):
        pattern = re.compile(ast.literal_eval(each["pattern"]), each["flags"])
        for pump in map(ast.literal_eval, each["pumps"]):
            texts = [pump * (size // len(pump)) for size in SIZES]
            for _ in range(ATTEMPTS):
                short, long = (cpu_s(pattern, text, searched=each["searched"]) for text in texts)
                if long <= SHORT_S or long <= GROWTH * short:
                    break
            else:
                sys.stdout.write(f"{pattern.pattern!r} on {pump!r}: {short} s, then {long} s\n")


if __name__ == "__main__":
    main()
