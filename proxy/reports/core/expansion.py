"""``expand``: full objects in place of references, so that a caller need not ask again.

``expand=team`` replaces the reference ``{"id": ..., "name": ...}`` of a team in each row by the
team as ``/api/v1/teams/{id}/`` shows it. A view lists the paths that it allows, of one or two
names, such as ``targets.upstream``. Each path takes one query, so the cost of a page is bounded.
The caller needs the permission to read the objects. A reference to an object that was deleted, or
that the caller may not see, stays a reference.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.request import Request

from .query_parameters import Choice, Values
from .rendering import Row

RESOURCES: Final[dict[str, Any]] = {}
"""Last name of a path -> the viewset of the objects; the viewsets register themselves."""
SESSION_PATHS: Final = ("team", "key", "key.team", "user")
REQUEST_PATHS: Final = (*SESSION_PATHS, "upstream")
"""The objects to which a session and a request refer."""


def expand_parameter(paths: Sequence[str]) -> Values:
    """Return the parameter ``expand`` for these paths."""
    return Values(
        child=Choice(choices=list(paths)),
        help_text="Show these objects with all their fields. Only with `format=json`.",
    )


def check_format(query: Mapping[str, Any]) -> None:
    """Raise ValidationError for ``expand`` together with a format of flat rows."""
    if query.get("expand") and query.get("format", "json") != "json":
        raise ValidationError({"expand": "it is available only with format=json"})


def expand_rows(request: Request, rows: Iterable[Row], paths: Iterable[str]) -> list[Row]:
    """Return the rows with the objects of ``paths`` in full. Raises PermissionDenied."""
    found = list(rows)
    for path in _with_parents(paths):
        references = [one for row in found for one in _references(row, path.split("."))]
        objects = _objects(request, path, {one["id"] for one in references if one["id"]})
        for reference in references:
            reference.update(objects.get(reference["id"], {}))
    return found


def _with_parents(paths: Iterable[str]) -> list[str]:
    """Return the paths with those of the objects on the way, which come first."""
    ways = (path.split(".") for path in paths)
    prefixes = {".".join(way[: end + 1]) for way in ways for end in range(len(way))}
    kinds = (path for path in prefixes if path.rpartition(".")[2] in RESOURCES)
    return sorted(kinds, key=lambda path: (path.count("."), path))


def _references(value: Any, names: Sequence[str]) -> Iterator[Row]:
    """Yield the references at a path of names; a list stands for each of its items."""
    if isinstance(value, list):
        for item in value:
            yield from _references(item, names)
    elif isinstance(value, dict):
        if names:
            yield from _references(value.get(names[0]), names[1:])
        else:
            yield value


def _objects(request: Request, path: str, ids: set[str]) -> dict[str, Row]:
    """Return the visible objects with these ids, each as its own resource shows it."""
    view = RESOURCES[path.rpartition(".")[2]]()
    view.request, view.action, view.format_kwarg, view.kwargs = request, "retrieve", None, {}
    for permission in view.get_permissions():
        if not permission.has_permission(request, view):
            reason = getattr(permission, "message", "not allowed")
            raise PermissionDenied(f"expand={path}: {reason}")
    wanted = {view.lookup_value(one) for one in ids}
    rows = view.get_queryset().filter(**{f"{view.lookup_field}__in": wanted})
    return {row["id"]: row for row in view.get_serializer(rows, many=True).data}
