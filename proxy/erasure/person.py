"""The person whose data is erased, and the columns of that person's requests without the data."""

import hashlib
import hmac
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final, Self

from django.db.models import Q

from proxy.ledger.posting.exchange_columns import AnyRow
from proxy.models import (
    ApiKey,
    AuditEntry,
    FormerName,
    Identity,
    NameKind,
    SavedReport,
    ledger_names,
)
from proxy.secrets import derive

MARK: Final = "erased-"
"""The start of each pseudonym."""
PURPOSE: Final = "pseudonyms of erased users"
REVOKED_WITHIN: Final = timedelta(minutes=1)
EMPTIED: Final[Mapping[str, Any]] = {
    "ip": None,
    "user_agent": "",
    "traceparent": "",
    "tags": {},
    "betas": [],
    "preview": "",
    "prompt": "",
    "error_message": "",
    "notes": [],
    "upstream_request_id": "",
}
"""The columns of a request that are emptied, with their new values."""
RENAMED: Final = ("session_id", "agent_id", "parent_agent_id")
"""The columns that get a pseudonym, so that requests of one session stay together."""


def digest_of(text: str, root: str | None = None) -> str:
    """Return a keyed digest of a name, as 64 hexadecimal digits.

    ``root``: the SECRET_KEY (default: the current one). Only its owner can test whether a digest
    belongs to a name.
    """
    return hmac.digest(derive(PURPOSE, root), text.encode(), hashlib.sha256).hex()


def pseudonym_of(text: str) -> str:
    """Return the pseudonym that replaces a name or an id; "" for ""."""
    return f"{MARK}{digest_of(text)[:16]}" if text and not text.startswith(MARK) else text


@dataclass(frozen=True)
class Person:
    """A user, whose account may be deleted already, with the user's keys."""

    id: str
    """The id in the ledger, see ``ledger_names``."""
    name: str
    until: datetime
    """Only older data is erased: a user of 1.0 may have got the name, and so the id, later."""
    user_id: int | None
    keys: Mapping[int, str]
    """The keys that belong to the user: id -> ``team/name``."""
    email: str
    own: frozenset[tuple[str, str]]
    """Rows about the person, as in the audit log: kind of the object and its id."""
    texts: tuple[str, ...]
    """What is replaced in texts: user names, the id, e-mail address, full name."""

    @classmethod
    def load(cls, ident: str, until: datetime | None = None) -> Self:
        """Load the account and its keys; without an account, only the name is known.

        Without ``until``, requests count that begin before the revoked keys stop working.
        """
        until = until or datetime.now(UTC) + REVOKED_WITHIN
        account = ledger_names.Person.objects.filter(pk=ident, user__date_joined__lte=until)
        known = account.select_related("user").first()
        if known is None:
            former = FormerName.objects.filter(kind=NameKind.USER, ident=ident).first()
            name = former.name if former is not None else ident
            known_as = tuple(dict.fromkeys((name, ident)))
            return cls(ident, name, until, None, {}, "", frozenset(), known_as)
        user, name = known.user, known.user.get_username()
        keys = ApiKey.objects.filter(user=user).select_related("team")
        texts = [name, ident, *_earlier_names(user), user.email]
        if user.first_name and user.last_name:
            texts.append(f"{user.first_name} {user.last_name}")
        return cls(
            ident,
            name,
            until,
            user.pk,
            {key.pk: str(key) for key in keys},
            user.email,
            frozenset(_rows_about(user)),
            tuple(dict.fromkeys(text for text in texts if text)),
        )

    @cached_property
    def pseudonym(self) -> str:
        return pseudonym_of(self.id)

    def is_owner(self, user: str, key_id: int | None) -> bool:
        """Whether a request with this user and key is the person's.

        A row without a user is the person's if the key is; another user's row never is.
        """
        return user == self.id or (not user and key_id in self.keys)

    @property
    def is_of_person(self) -> Q:
        """The condition of ``is_owner`` for tables with the columns ``user`` and ``key_id``."""
        return Q(user=self.id) | Q(user="", key_id__in=list(self.keys))

    def dimensions(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the new values of those columns that also are dimensions of the sums."""
        changed: dict[str, Any] = {"user": self.pseudonym}
        if values.get("key_name"):
            changed["key_name"] = key_name_of(values.get("key_id"))
        for column in RENAMED:
            if column in values:
                changed[column] = pseudonym_of(values[column])
        return changed

    def columns(self, row: AnyRow) -> dict[str, Any]:
        """Return the new columns of a request of the person."""
        attempts = [
            {**attempt, "error": ""} if isinstance(attempt, dict) and attempt.get("error")
            else attempt for attempt in row.attempts
        ]  # fmt: skip
        return {**EMPTIED, **self.dimensions(vars(row)), "attempts": attempts}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return _pattern_of((*self.texts, *self.keys.values()))

    @cached_property
    def _replacements(self) -> dict[str, str]:
        return {
            **{text.casefold(): self.pseudonym for text in _spellings(self.texts)},
            **{name.casefold(): new_name_of(pk, name) for pk, name in self.keys.items()},
        }

    def replace_in(self, value: Any, *, key_id: int | None = None) -> Any:
        """Return a text, or JSON with texts at any depth, with the person's names replaced.

        ``key_id``: the key that the value is about; its name without the team is replaced too.
        """
        if isinstance(value, str):
            text = self._pattern.sub(lambda found: self._replacements[found[0].casefold()], value)
            name = self.keys.get(key_id, "").partition("/")[2] if key_id is not None else ""
            return _pattern_of((name,)).sub(key_name_of(key_id), text) if name else text
        if isinstance(value, dict):
            return {name: self.replace_in(each, key_id=key_id) for name, each in value.items()}
        if isinstance(value, list):
            return [self.replace_in(each, key_id=key_id) for each in value]
        return value


def _earlier_names(user: Any) -> Iterator[str]:
    """Yield the user names before each change, except those that another user has now."""
    entries = AuditEntry.objects.filter(model="user", object_id=str(user.pk))
    names = {
        changes["username"]["before"]
        for changes in entries.values_list("changes", flat=True)
        if changes.get("username", {}).get("before")
    }
    others = ledger_names.Person.objects.filter(user__username__in=names).exclude(user=user)
    yield from names - set(others.values_list("user__username", flat=True))


def _rows_about(user: Any) -> Iterator[tuple[str, str]]:
    """Yield the account, its identities at sign-in providers, and its saved reports."""
    yield "user", str(user.pk)
    for model in (Identity, SavedReport):
        kind = str(model._meta.verbose_name)  # noqa: SLF001 - documented by Django
        rows = model._default_manager.filter(user=user)  # noqa: SLF001 - documented by Django
        for pk in rows.values_list("pk", flat=True):
            yield kind, str(pk)


def key_name_of(key_id: int | None) -> str:
    """Return the new name of a key within its team."""
    return f"{MARK}{key_id}" if key_id is not None else MARK.rstrip("-")


def new_name_of(key_id: int, name: str) -> str:
    return f"{name.partition('/')[0]}/{key_name_of(key_id)}"


def _spellings(texts: Iterable[str]) -> list[str]:
    """Return the texts as they are and as in a URL."""
    quoted = [(text, urllib.parse.quote(text), urllib.parse.quote_plus(text)) for text in texts]
    return [each for some in quoted for each in some]


def _pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Match each of the texts where it is not a part of a longer name or address."""
    longest_first = sorted(set(_spellings(texts)), key=len, reverse=True)
    names = "|".join(map(re.escape, longest_first))
    return re.compile(rf"(?<![\w@+-])(?<!\w\.)(?:{names})(?![\w@+-])(?!\.\w)", re.IGNORECASE)
