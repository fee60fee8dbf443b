"""Find out who acts: the user or key of the current HTTP request, or the current command.

The actor is a context variable, so code that writes a row need not pass it on. The lookup is lazy:
the views of the API authenticate a gateway key after the middleware has run.
"""

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware

from proxy.models import ApiKey
from proxy.models.audit import ActorKind
from proxy.models.ledger_names import person_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who acts."""

    kind: ActorKind
    user: str = ""
    """The id of a person, or the name of the operating-system user of a command."""
    key: str = ""
    command: str = ""
    address: str = ""


SYSTEM: Final = Actor(kind=ActorKind.SYSTEM)
"""The actor of changes outside of any request and command, such as the daily purge."""

_current: Final[ContextVar[HttpRequest | Actor]] = ContextVar("actor", default=SYSTEM)


def current_actor() -> Actor:
    current = _current.get()
    return current if isinstance(current, Actor) else actor_of_request(current)


def current_request() -> HttpRequest | None:
    """Return the HTTP request that is being handled; None in a command."""
    current = _current.get()
    return None if isinstance(current, Actor) else current


def actor_of_request(request: HttpRequest) -> Actor:
    """Return the key with its user, or the signed-in user, of a request, and the client's address.

    The server has replaced ``REMOTE_ADDR`` by the address in ``x-forwarded-for`` if the peer is
    one of BRIDGE_TRUSTED_PROXIES. A request without a user, such as a sign-in, is of the system.
    """
    address = str(request.META.get("REMOTE_ADDR") or "")[:45]
    key = getattr(request, "auth", None)
    if isinstance(key, ApiKey):
        return Actor(kind=ActorKind.KEY, user=person_id(key.user), key=str(key), address=address)
    signed_in = getattr(request, "user", None)
    if signed_in is not None and signed_in.is_authenticated:
        return Actor(kind=ActorKind.USER, user=person_id(signed_in), address=address)
    return Actor(kind=ActorKind.SYSTEM, address=address)


def actor_of_command(name: str) -> Actor:
    """Return the actor of a ``manage.py`` command: its name and the operating-system user."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the process has a user id without a name, as in some containers
        user = ""
    return Actor(kind=ActorKind.COMMAND, command=name, user=user[:150])


@contextmanager
def acting_as(actor: Actor | HttpRequest) -> Iterator[None]:
    """Attribute the entries that the ``with`` block records to this actor."""
    token = _current.set(actor)
    try:
        yield
    finally:
        _current.reset(token)


@sync_and_async_middleware
def actor_middleware(get_response: Any) -> Any:
    """Attribute the entries recorded during a request to its user or gateway key."""

    def handle(request: HttpRequest) -> Any:
        with acting_as(request):
            return get_response(request)

    async def handle_async(request: HttpRequest) -> Any:
        with acting_as(request):
            return await get_response(request)

    return handle_async if iscoroutinefunction(get_response) else handle
