"""The OpenAPI document of the API, as the gateway serves it."""

import functools
import json

from drf_spectacular.settings import spectacular_settings

from tests.fakes.servers.prepared import prepare_once


def build_schema():
    return spectacular_settings.DEFAULT_GENERATOR_CLASS().get_schema(public=True)


@functools.cache
def schema():
    """Return the document; one process of a run builds it, which takes two seconds."""
    return json.loads(prepare_once("openapi.json", _write).read_text("utf-8"))


def _write(path):
    path.write_text(json.dumps(build_schema()), "utf-8")
