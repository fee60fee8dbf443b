"""Say what a verification proves, and what it does not prove."""

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import Final, NamedTuple

from proxy.encryption.bodies import MissingBodyKey
from proxy.ledger.posting.audit_links import last_linked
from proxy.models import AuditEntry, Exchange, HashChainLink, State

from .published_heads import PublishedHead
from .verifier import EVERYTHING, Checkpoint

NEVER: Final = (
    (
        "what was changed in a request before it ended, or that it was made up before then: "
        "its first link has the row as it was at its end"
    ),
    "that no entry of the audit log was made up, changed or deleted before its link was written",
    (
        "commands and purges that the gateway was made to run: their links name audit entries, "
        "which somebody must read"
    ),
    (
        "tables that are not in the chain: configuration, accounts, search index, outcomes of "
        "sessions, webhooks"
    ),
    "anything, if somebody else has the secret key",
)
"""What no verification proves."""


class Claims(NamedTuple):
    """What is proven, and what is not, in one sentence each."""

    proven: list[str]
    not_proven: list[str]


def claims_of(state: Checkpoint, heads: Sequence[PublishedHead]) -> Claims:
    """Return the claims of a complete verification. A finding ends the claims of its kind."""
    claims = Claims([], [])
    wrong = {finding.what for finding in state.findings}
    for text, is_checked, kinds in _claims(state, heads):
        if not is_checked:
            claims.not_proven.append(f"{text}: not checked")
        elif wrong & set(kinds):
            claims.not_proven.append(f"{text}: see the findings")
        else:
            claims.proven.append(text)
    claims.not_proven.extend([*_limits(state, heads), *NEVER])
    return claims


def _claims(
    state: Checkpoint, heads: Sequence[PublishedHead]
) -> Iterator[tuple[str, bool, tuple[str, ...]]]:
    """Yield each claim, whether it was checked, and the kinds of findings that refute it."""
    chain = ("chain", "signature", "head")
    yield f"{state.links} links follow one another, and this gateway signed them", True, chain
    yield "no closed request is missing or was added", True, (*chain, "lost", "unsealed")
    yield (
        (
            "all columns of the closed requests are those of their links; amendments changed only "
            "columns of their kind, and name an entry of the audit log"
        ),
        True,
        (*chain, "row", "amendment", "cause"),
    )
    yield (
        "transcripts and raw streams are as they were stored, or their deletion is recorded",
        state.bodies,
        (*chain, "body", "cause"),
    )
    yield (
        (
            "the sums are those of the requests, in all tables (all dimensions; caller; request; "
            "session; stop reason), with counts, tokens, money and histograms"
        ),
        state.sums,
        (*chain, "row", "lost", "unsealed", "sum"),
    )
    yield "entries of the audit log that have a link are as they were written", True, (
        *chain, "audit",
    )  # fmt: skip
    if heads:
        last = heads[-1]
        yield (
            (
                f"links 1 to {last.sequence} are those published at {_minute(last)} UTC, "
                "so none of them was cut off, and no older database was put in place"
            ),
            True,
            ("head",),
        )


def _limits(state: Checkpoint, heads: Sequence[PublishedHead]) -> Iterator[str]:
    """Yield what this verification does not prove, with the numbers of this ledger."""
    if heads:
        yield f"that no link after {heads[-1].sequence} was cut off: it is not published yet"
    else:
        yield "that no link was cut off: no head is published"
    if state.days != EVERYTHING:
        yield "the links of other days"
    for key, count in state.encrypted.items():
        yield f"{count} transcripts not checked: {MissingBodyKey(key)}"
    if state.unproven:
        yield (
            f"which columns {state.unproven} amendments changed, as they are of requests of "
            "version 1.0 or in archived months"
        )
    if old := HashChainLink.objects.filter(kind="").count():
        yield f"that version 1.0 wrote its {old} links, which have no signature"
    if waiting := Exchange.objects.filter(state=State.OPEN).count():
        yield f"{waiting} requests that have not ended"
    if unlinked := AuditEntry.objects.filter(pk__gt=last_linked()).count():
        yield f"{unlinked} entries of the audit log, which get their links within an hour"


def _minute(head: PublishedHead) -> str:
    return f"{head.at.astimezone(UTC):%Y-%m-%d %H:%M}"
