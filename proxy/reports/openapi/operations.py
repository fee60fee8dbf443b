"""The parameters, ids and groups of the operations in the OpenAPI document."""

import re
from typing import Any, Final

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiExample

from .examples import BODIES

VERBS: Final = {"create": "post", "partial_update": "patch", "destroy": "delete"}


class OperationSchema(AutoSchema):
    """Derive each operation id from the name of the view: ``requests``, ``request``.

    Generated clients have methods with these names. The default of drf-spectacular is one name for
    the list and for the single row, with a number added to one of them.
    """

    view: Any  # a ReportView

    def get_override_parameters(self) -> list[Any]:
        """Return the parameters that the view validates: those of a list, or of a row."""
        if self.method != "GET":
            return []
        is_row = getattr(self.view, "action", None) == "retrieve"
        shape = self.view.row_parameters if is_row else self.view.parameters
        return [shape] if shape().fields else []

    def get_response_serializers(self) -> Any:
        answer = self.view.answer if self.method == "GET" else None
        return {200: answer} if answer else super().get_response_serializers()  # type: ignore[no-untyped-call]  # the library has no types

    def get_filter_backends(self) -> list[Any]:
        """Return none: the view's parameters include those of its filters and its pages."""
        return []

    def _get_pagination_parameters(self) -> list[Any]:
        return []

    def get_examples(self) -> list[OpenApiExample]:
        body = BODIES.get(self.get_operation_id())
        return [OpenApiExample("example", value=body, request_only=True)] if body else []

    def get_tags(self) -> list[str]:
        """Group the operations by their resource: the part of the path after the version."""
        if self.path.startswith("/v1/organizations/"):
            return ["organizations"]
        return [self.path.split("/")[3] or "index"]

    def get_operation_id(self) -> str:
        if action := getattr(self.view, "action", None):
            return _operation_of_viewset(self.view.resource, action)
        view = type(self.view).__name__.removesuffix("View")
        words = [word.lower() for word in re.findall("[A-Z][a-z]*", view)]
        verb = [] if self.method == "GET" else [self.method.lower()]
        layer = ["organizations"] if self.path.startswith("/v1/organizations/") else []
        return "_".join([*layer, *words, *verb])


def _operation_of_viewset(name: str, action: str) -> str:
    """Return the operation id of a viewset's action.

    For the resource ``keys`` these are ``keys`` (list), ``key`` (one row), ``keys_post``,
    ``key_patch`` and ``key_delete``.
    """
    noun = name if action in {"list", "create"} else name.removesuffix("s")
    return "_".join([noun, *([VERBS[action]] if action in VERBS else [])])
