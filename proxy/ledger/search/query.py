"""Parse what a user searches for: words, paths and quoted phrases, which a text must all contain.

There are no operators. Every character stands for itself, so no text can become a command of the
database's query language.
"""

import re
from dataclasses import dataclass
from typing import Final

from .terms import Condition, conditions_of

MAX_QUERY: Final = 200  # characters
MAX_PHRASES: Final = 8
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
TOO_SHORT: Final = (
    "the query is too short: it needs three letters or digits in a row, "
    "or one Chinese, Japanese or Korean character"
)


class InvalidQuery(ValueError):
    """The query cannot be searched; the message says why."""


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query. ``phrases`` are in lower case; a text matches if it contains all of them."""

    text: str
    phrases: tuple[str, ...]
    conditions: tuple[Condition, ...]


def parse_query(text: str) -> Query:
    """Parse a query. Raises InvalidQuery.

    Words are separated by spaces; ``"a phrase"`` in quotation marks contains spaces itself.
    """
    text = " ".join(text.split())
    if len(text) > MAX_QUERY:
        raise InvalidQuery(f"the query has {len(text)} characters; at most {MAX_QUERY} are allowed")
    if CONTROL.search(text):
        raise InvalidQuery("the query contains a control character")
    phrases = tuple(dict.fromkeys(phrase.lower() for phrase in _phrases(text)))
    if len(phrases) > MAX_PHRASES:
        raise InvalidQuery(
            f"the query has {len(phrases)} words and phrases; at most {MAX_PHRASES} are allowed"
        )
    conditions = tuple(dict.fromkeys(c for phrase in phrases for c in conditions_of(phrase)))
    if not conditions:
        raise InvalidQuery(TOO_SHORT)
    return Query(text, phrases, conditions)


def _phrases(text: str) -> list[str]:
    found, rest = [], text
    while rest:
        if rest[0] == '"':
            phrase, mark, rest = rest[1:].partition('"')
            if not mark:
                raise InvalidQuery('a quotation mark (") is not closed')
        else:
            phrase, _, rest = rest.partition(" ")
        rest = rest.lstrip()
        if phrase.strip():
            found.append(phrase)
    return found
