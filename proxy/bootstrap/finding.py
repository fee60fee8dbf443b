"""The result of one check of ``doctor``."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ``ok``: whether the check passed; None: information only."""

    subject: str
    ok: bool | None
    text: str
    hint: str = ""
