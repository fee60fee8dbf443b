"""Money: integer nano-dollars inside, exact decimal strings of dollars outside."""

from decimal import Decimal
from typing import Final, overload

NANO: Final = 10**9
"""Nano-dollars in a dollar."""


@overload
def usd(nanousd: int) -> str: ...
@overload
def usd(nanousd: None) -> None: ...
@overload
def usd(nanousd: int | None) -> str | None: ...
def usd(nanousd: int | None) -> str | None:
    """Return nano-dollars as an exact decimal string of dollars: ``1.5``; None for unknown."""
    return None if nanousd is None else _decimal(nanousd, 9)


def cents(nanousd: Decimal | int | None) -> str | None:
    """Return nano-dollars as an exact decimal string of cents, as Anthropic's cost report does."""
    return None if nanousd is None else _decimal(nanousd, 7)


def nanousd_of(usd: Decimal) -> int:
    """Return dollars as nano-dollars; parts below a nano-dollar are cut."""
    return int(usd.scaleb(9))


def _decimal(amount: Decimal | int, places: int) -> str:
    text = f"{Decimal(amount).scaleb(-places):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
