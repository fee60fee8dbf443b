"""The OpenAPI document of the API, as the gateway serves it."""

from drf_spectacular.settings import spectacular_settings


def schema():
    return spectacular_settings.DEFAULT_GENERATOR_CLASS().get_schema(public=True)
