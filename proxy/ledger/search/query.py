"""Parse what a user searches for, and make the terms by which a text is indexed and found.

A query is words, paths and quoted phrases, which a text must all contain. There are no operators.
Every character stands for itself, so no text can become a command of the database's query language.

A text is found by any part of it that has three letters or digits in a row, in the middle of a word
too. So each word is indexed by all of its endings: ``ledger`` as ``ledger``, ``edger``, ``dger``
and ``ger``. A phrase inside a word is then the beginning of a term. Chinese, Japanese and Korean
text has no spaces between words, so it is indexed by each character with the next one. The index
only narrows the search: the text itself is compared with the phrase afterwards.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

MAX_TERM: Final = 12
"""Characters of a term; the comparison with the text checks the rest of a longer word."""
MAX_WORD: Final = 32
"""A longer word, such as a hash, is indexed by its beginning only: its endings occur once."""
MIN_ENDING: Final = 3
MAX_CONDITIONS: Final = 24

CJK: Final = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\ua4cf\uac00-\ud7af\uf900-\ufaff\uff66-\uffdc"
    "\U00020000-\U0003ffff"
)
"""Ranges of Chinese, Japanese and Korean letters, for a character class."""
WORD: Final = re.compile(rf"[{CJK}]+|[^\W_{CJK}]+")
CJK_CHARACTER: Final = re.compile(f"[{CJK}]")


class Condition(NamedTuple):
    """A term that the index entry of a text must have; with ``prefix``, a term that begins so."""

    term: str
    prefix: bool


def terms_of(text: str) -> set[str]:
    """Return the terms of a text, without any order or position."""
    terms: set[str] = set()
    for word in set(WORD.findall(text.lower())):
        if CJK_CHARACTER.match(word):
            terms.update(word[at : at + 2] for at in range(len(word)))
        elif len(word) > MAX_WORD:
            terms.add(word[:MAX_TERM])
        else:
            endings = range(max(1, len(word) - MIN_ENDING + 1))
            terms.update(word[at : at + MAX_TERM] for at in endings)
    return terms


def conditions_of(phrase: str) -> list[Condition]:
    """Return conditions that every text with this phrase meets; empty if the phrase is too short.

    A word of the phrase may be a part of a longer word of the text where the phrase begins or ends;
    elsewhere it is a whole word.
    """
    lower = phrase.lower()
    found: dict[Condition, None] = {}
    for match in WORD.finditer(lower):
        begins, ends = match.start() == 0, match.end() == len(lower)
        conditions = _conditions_of_word(match[0], begins=begins, ends=ends)
        found.update(dict.fromkeys(conditions))
    return list(found)[:MAX_CONDITIONS]


def _conditions_of_word(word: str, *, begins: bool, ends: bool) -> Iterator[Condition]:
    if CJK_CHARACTER.match(word):
        if len(word) == 1:
            yield Condition(word, prefix=True)
        for at in range(len(word) - 1):
            yield Condition(word[at : at + 2], prefix=False)
    elif len(word) >= MIN_ENDING or not (begins or ends):
        yield Condition(word[:MAX_TERM], prefix=ends and len(word) < MAX_TERM)


def team_term(team: str) -> str:
    """Return the term of all texts of a team. It is longer than any term of a text."""
    return f"team{blake2b(team.encode(errors='replace'), digest_size=12).hexdigest()}"


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
