"""Invisible characters of untrusted text become visible."""

import json
import unicodedata

from proxy.ledger.transcripts.visible_text import escape_invisible_json, show_invisible
from tests.for_each import for_each

BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@for_each(
    ("text", "shown"),
    [
        ("invoice\u202efdp.exe", "invoice[U+202E]fdp.exe"),
        ("a\u200bb\ufeffc", "a[U+200B]b[U+FEFF]c"),
        ("\x1b[31mred\x07\x00", "[U+001B][31mred[U+0007][U+0000]"),
        ("x\U000e0041\U000e0042", "x[U+E0041][U+E0042]"),
        ("a\u2028b\u0085", "a[U+2028]b[U+0085]"),
        ("line\n\ttab\r\n", "line\n\ttab\r\n"),
        ("\U0001f469\u200d\U0001f4bb \u2764\ufe0f\u200d\U0001f525", "\U0001f469\u200d\U0001f4bb \u2764\ufe0f\u200d\U0001f525"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
        ("pass\u200dword \u200c", "pass[U+200D]word [U+200C]"),
        ("", ""),
    ],
)  # fmt: skip
def test_invisible_characters_are_shown_as_code_points(text, shown):
    assert show_invisible(text) == shown


def test_no_format_or_control_character_remains_except_white_space_and_signs_of_scripts():
    every = [chr(code) for code in range(0x110000)]
    hidden = [c for c in every if unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp"}]

    left = {c for c in hidden if show_invisible(c) == c} - {*"\t\n\r"}

    # Marks that fonts draw, such as the Arabic number sign, and Egyptian hieroglyph joiners
    assert {f"{ord(c):X}" for c in left} <= VISIBLE
    assert not {*BIDIRECTIONAL} & left


def test_json_keeps_its_values_when_invisible_characters_are_escaped():
    text = json.dumps({"name": "a\u202eb\U000e0041"}, ensure_ascii=False)

    escaped = escape_invisible_json(text)

    assert escaped == '{"name": "a\\u202eb\\udb40\\udc41"}'
    assert json.loads(escaped) == json.loads(text)


VISIBLE = {
    *(f"{code:X}" for code in range(0x600, 0x606)),
    "6DD", "70F", "890", "891", "8E2", "110BD", "110CD",
    *(f"{code:X}" for code in range(0x13430, 0x13440)),
    *(f"{code:X}" for code in range(0x1BCA0, 0x1BCA4)),
}  # fmt: skip
