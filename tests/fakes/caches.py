"""Values of the setting ``CACHES``."""

from typing import Final

NO_CACHE: Final = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
