"""Authentication by gateway key or staff session, and the permission classes of the reports."""

import ipaddress
import time
from typing import Any, Final

from django.contrib.auth.models import AnonymousUser
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed, ParseError, PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from proxy.decode_errors import MANAGED
from proxy.models import ApiKey, Scope
from proxy.models.setup.config_row_validation import is_readable
from proxy.permissions.key_rehash import rehash
from proxy.permissions.key_validity import INVALID, MESSAGES, RELATED, ends_of, refusal
from proxy.permissions.row_permissions import (
    Reader,
    config_reader_of_key,
    reader_of_key,
    reader_of_user,
)
from proxy.permissions.write_permissions import REVOKE, has_permission, has_write_permission
from proxy.secrets import digest_of, old_digests_of

from .exception_handler import Conflict

MAX_KEY_LENGTH: Final = 512  # characters; a generated gateway key has 49


class KeyAuthentication(BaseAuthentication):
    """Authenticate by a gateway key in ``x-api-key`` or ``Authorization: Bearer``.

    A request with two different keys gets a 400.
    """

    def authenticate(self, request: Request) -> tuple[AnonymousUser, ApiKey] | None:
        presented = presented_key(request)
        if not presented:
            return None
        rows = ApiKey.objects.select_related(*RELATED)
        digest = digest_of(presented)
        key = rows.filter(digest=digest).first()
        for old in old_digests_of(presented.encode()) if key is None else ():
            if (key := rows.filter(digest=old).first()) is not None:
                rehash(key.pk, old, digest)
                break
        if key is None or not all(map(is_readable, filter(None, (key, key.successor)))):
            raise AuthenticationFailed(INVALID)
        if reason := refusal(ends_of(key), time.time()):
            raise AuthenticationFailed(MESSAGES[reason])
        if key.ip_allow and not _is_in_networks(request.META.get("REMOTE_ADDR", ""), key.ip_allow):
            raise PermissionDenied("this gateway key may not be used from this address")
        return AnonymousUser(), key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def presented_key(request: Request) -> str:
    """Return the gateway key in the request's headers, or an empty string."""
    from_header = request.headers.get("x-api-key", "").strip()
    scheme, _, from_bearer = request.headers.get("authorization", "").strip().partition(" ")
    from_bearer = from_bearer.strip() if scheme.lower() == "bearer" else ""
    if from_header and from_bearer and from_header != from_bearer:
        raise ParseError("x-api-key and Authorization contain different keys; send one")
    presented = from_header or from_bearer
    if len(presented) > MAX_KEY_LENGTH or not presented.isascii():
        raise AuthenticationFailed(INVALID)
    return presented


def _is_in_networks(address: str, networks: list[str]) -> bool:
    try:
        client_address = ipaddress.ip_address(address)
        return any(client_address in ipaddress.ip_network(one, strict=False) for one in networks)
    except ValueError:
        return False


AUTHENTICATION: Final = (KeyAuthentication, SessionAuthentication)


def reader_of(request: Request) -> Reader:
    """Return the caller's Reader (the rows it may read); an anonymous caller may read none."""
    if isinstance(request.auth, ApiKey):
        return reader_of_key(request.auth)
    if request.user.is_authenticated:
        return reader_of_user(request.user)
    return Reader()


def caller_of(request: Request) -> Any:
    """Return the gateway key of the request, else its user."""
    return request.auth if isinstance(request.auth, ApiKey) else request.user


def config_reader_of(request: Request) -> Reader:
    """Return which rows of the configuration the caller may see."""
    if isinstance(request.auth, ApiKey):
        return config_reader_of_key(request.auth)
    return reader_of(request)


class IsKeyOrStaff(BasePermission):
    """Allow any valid gateway key and any staff session. The views' querysets limit the rows."""

    def has_permission(self, request: Request, view: Any) -> bool:
        return isinstance(request.auth, ApiKey) or bool(
            request.user.is_authenticated and getattr(request.user, "is_staff", False)
        )


class MayReport(IsKeyOrStaff):
    """Require a key with scope ``reports`` or ``admin``, or a session with ``view_exchange``."""

    message = "this needs a key with the scope 'reports' or 'admin'"

    def has_permission(self, request: Request, view: Any) -> bool:
        return super().has_permission(request, view) and reader_of(request).may_report


class MayReadTranscripts(IsKeyOrStaff):
    """Require the scope ``admin`` or ``transcripts:read``, or the permission to view them."""

    message = "reading transcripts needs a key with the scope 'admin' or 'transcripts:read'"

    def has_permission(self, request: Request, view: Any) -> bool:
        if not super().has_permission(request, view):
            return False
        if isinstance(request.auth, ApiKey):
            return bool({Scope.ADMIN, Scope.TRANSCRIPTS_READ} & set(request.auth.scopes))
        return bool(request.user.has_perm("proxy.view_transcript"))


class ReadsConfig(IsKeyOrStaff):
    """Require the permission to view the rows of the view's model.

    A user must also see all rows of the ledger, or, of tables whose rows belong to teams, the rows
    of a team.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        names = view.queryset.model._meta  # noqa: SLF001 - documented by Django
        self.message = view.refusal
        if not super().has_permission(request, view):
            return False
        if not isinstance(request.auth, ApiKey):
            reader = reader_of(request)
            if not (reader.everything or (view.of_teams and reader.may_report)):
                return False
        return has_permission(caller_of(request), f"{names.app_label}.view_{names.model_name}")


class WritesConfig(ReadsConfig):
    """Require the permission to read the rows, and for writing, the one for the view's action.

    Raise Conflict (409) for a row that bridge.toml declares, because only the file may change it.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        action = view.write_actions.get(view.action)
        if action is None:
            return super().has_permission(request, view)
        if not super().has_permission(request, view):
            return False
        return has_write_permission(caller_of(request), action, view.queryset.model)

    def has_object_permission(self, request: Request, view: Any, obj: Any) -> bool:
        action = view.write_actions.get(view.action)
        if action is None:
            return True
        if action != REVOKE and getattr(obj, "managed", False):
            raise Conflict(MANAGED.format(obj))
        return has_write_permission(caller_of(request), action, type(obj), obj)


class MayReadAuditLog(IsKeyOrStaff):
    """Require a key with scope ``reports`` or ``admin``, or a session with ``view_auditentry``."""

    message = "reading the audit log needs a key with the scope 'reports' or 'admin'"

    def has_permission(self, request: Request, view: Any) -> bool:
        if not super().has_permission(request, view):
            return False
        if isinstance(request.auth, ApiKey):
            return reader_of(request).may_report
        return bool(request.user.has_perm("proxy.view_auditentry"))


class ReaderThrottle(SimpleRateThrottle):
    """Limit the report requests per minute of each gateway key or user."""

    scope = "reports"
    rate = "600/min"

    def get_cache_key(self, request: Request, view: Any) -> str:
        label = reader_of(request).label or self.get_ident(request)
        return self.cache_format % {"scope": self.scope, "ident": label}
