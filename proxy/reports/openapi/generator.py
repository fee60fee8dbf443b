"""The generator of the OpenAPI document of /api/v1/ and /v1/organizations/."""

import copy
import threading
from typing import Any, ClassVar, Final

from django.conf import settings
from django.utils import translation
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator

_lock: Final = threading.Lock()


class CachedGenerator(SchemaGenerator):
    """A generator that builds the document once.

    The document is the same for every caller and installation. To build it takes 200 ms, and the
    generator is not thread-safe.
    """

    built: ClassVar[dict[str, Any]] = {}

    def get_schema(self, request: Any = None, public: bool = False) -> dict[str, Any]:
        with _lock:
            cls = type(self)
            if not cls.built:
                # The view takes a language and a version from the query; the document has only one.
                self.api_version = None
                with translation.override(settings.LANGUAGE_CODE):
                    cls.built = super().get_schema(None, public=True)  # type: ignore[no-untyped-call]  # the library has no types
            return copy.copy(cls.built)


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # as above
    """The two headers that ``KeyAuthentication`` accepts, as OpenAPI security schemes."""

    target_class = "proxy.reports.core.permissions.KeyAuthentication"
    name = ["key", "bearer"]  # noqa: RUF012  # as the library declares it

    def get_security_requirement(self, auto_schema: Any) -> list[dict[str, list[str]]]:
        """Return the requirements as alternatives: one of the headers is enough."""
        return [{name: []} for name in self.name]

    def get_security_definition(self, auto_schema: Any) -> list[dict[str, str]]:
        return [
            {"type": "apiKey", "in": "header", "name": "x-api-key"},
            {"type": "http", "scheme": "bearer"},
        ]
