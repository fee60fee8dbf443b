"""Who asks: a gateway key in either header, or a staff session. Default deny."""

import ipaddress
import time
from typing import Any, Final

from django.contrib.auth.models import AnonymousUser
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed, ParseError, PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from proxy.key_validity import INVALID, MESSAGES, RELATED, ends_of, refusal
from proxy.models import ApiKey
from proxy.secrets import digest_of
from proxy.soundness import complaint, has_lost_instant
from proxy.visibility import Reader, reader_of_key, reader_of_user

LONGEST_KEY: Final = 512  # characters; ours have 49


class KeyAuthentication(BaseAuthentication):
    """``x-api-key`` or ``Authorization: Bearer``; both may be there if they are the same key."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, ApiKey] | None:
        presented = presented_key(request)
        if not presented:
            return None
        rows = ApiKey.objects.select_related(*RELATED)
        key = rows.filter(digest=digest_of(presented)).first()
        if key is None or not (_is_readable(key) and _is_readable(key.successor)):
            raise AuthenticationFailed(INVALID)
        if reason := refusal(ends_of(key), time.time()):
            raise AuthenticationFailed(MESSAGES[reason])
        if key.ip_allow and not _inside(request.META.get("REMOTE_ADDR", ""), key.ip_allow):
            raise PermissionDenied("this gateway key may not be used from this address")
        return AnonymousUser(), key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def _is_readable(key: ApiKey | None) -> bool:
    """Return whether the row can be relied on, as the gateway judges it; else it opens nothing."""
    return key is None or not (complaint(key) or has_lost_instant(key))


def presented_key(request: Request) -> str:
    """The key in the headers, or ""."""
    plain = request.headers.get("x-api-key", "").strip()
    scheme, _, bearer = request.headers.get("authorization", "").strip().partition(" ")
    bearer = bearer.strip() if scheme.lower() == "bearer" else ""
    if plain and bearer and plain != bearer:
        raise ParseError("x-api-key and Authorization carry different keys; send one")
    presented = plain or bearer
    if len(presented) > LONGEST_KEY or not presented.isascii():
        raise AuthenticationFailed(INVALID)
    return presented


def _inside(address: str, networks: list[str]) -> bool:
    try:
        asked = ipaddress.ip_address(address)
        return any(asked in ipaddress.ip_network(one, strict=False) for one in networks)
    except ValueError:
        return False


AUTHENTICATION: Final = (KeyAuthentication, SessionAuthentication)


def reader_of(request: Request) -> Reader:
    """The caller's rights; nobody's are empty."""
    if isinstance(request.auth, ApiKey):
        return reader_of_key(request.auth)
    if request.user.is_authenticated:
        return reader_of_user(request.user)
    return Reader()


class IsKnown(BasePermission):
    """Any valid key, or any staff session; what they see is their own rows."""

    def has_permission(self, request: Request, view: Any) -> bool:
        return isinstance(request.auth, ApiKey) or bool(
            request.user.is_authenticated and getattr(request.user, "is_staff", False)
        )


class MayReport(IsKnown):
    """Scope ``reports`` or ``admin``; in a session the permission ``view_exchange``."""

    message = "this needs a key with the scope 'reports' or 'admin'"

    def has_permission(self, request: Request, view: Any) -> bool:
        return super().has_permission(request, view) and reader_of(request).may_report


class MayReadTranscripts(IsKnown):
    """Scope ``admin``; in a session the permission ``view_transcript``, for the rows one sees."""

    message = "reading transcripts needs a key with the scope 'admin'"

    def has_permission(self, request: Request, view: Any) -> bool:
        if not super().has_permission(request, view):
            return False
        if isinstance(request.auth, ApiKey):
            return reader_of(request).everything
        return bool(request.user.has_perm("proxy.view_transcript"))


class ReaderThrottle(SimpleRateThrottle):
    """Reports are cheap, but not free: so many a minute for each key or user."""

    scope = "reports"
    rate = "600/min"

    def get_cache_key(self, request: Request, view: Any) -> str:
        label = reader_of(request).label or self.get_ident(request)
        return self.cache_format % {"scope": self.scope, "ident": label}
