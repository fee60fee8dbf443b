"""The OpenAPI document describes every operation, and is built once."""

import json
from typing import ClassVar

import pytest
from django.contrib.staticfiles import finders
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.settings import spectacular_settings

from proxy.reports.api_docs import SchemaView
from proxy.reports.openapi import BODIES, CachedGenerator
from tests.fakes.openapi import schema

DOCUMENT = schema()
OPERATIONS = [
    pytest.param(operation, id=f"{method} {path}")
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]


def validate(example, shape):
    """Raise if the example is invalid under the OpenAPI 3.0 schema, whose null is ``nullable``."""
    import jsonschema  # takes some seconds, in each process that collects this file

    validator = jsonschema.Draft4Validator({**as_json_schema(shape), "components": COMPONENTS})
    validator.validate(example)


def as_json_schema(node):
    if isinstance(node, list):
        return [as_json_schema(one) for one in node]
    if not isinstance(node, dict):
        return node
    result = {name: as_json_schema(one) for name, one in node.items()}
    if result.pop("nullable", False) is True:
        return {"anyOf": [{"type": "null"}, result]}
    return result


COMPONENTS = as_json_schema(DOCUMENT["components"])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_described_and_its_examples_are_valid(operation):
    assert operation["description"].strip()
    for content in operation.get("requestBody", {}).get("content", {}).values():
        for example in content.get("examples", {}).values():
            validate(example["value"], content["schema"])


def test_every_example_belongs_to_an_operation():
    assert set(BODIES) <= {each.values[0]["operationId"] for each in OPERATIONS}


@pytest.fixture
def new_generator():
    """A class that has not built the document, as that of the gateway may have in other tests."""

    class NewGenerator(CachedGenerator):
        built: ClassVar = {}

    return NewGenerator


def test_the_document_is_built_once_and_without_warnings(new_generator):
    GENERATOR_STATS.reset()

    first, second = (new_generator().get_schema(public=True) for _ in range(2))

    assert spectacular_settings.DEFAULT_GENERATOR_CLASS is CachedGenerator
    assert first["paths"] is second["paths"]
    assert not GENERATOR_STATS
    assert spectacular_settings.SWAGGER_UI_DIST == "SIDECAR"


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query", ["lang=de", "lang=../../etc", "lang=%00", "version=2", f"lang={'x' * 3000}"]
)
def test_the_document_does_not_depend_on_the_query(client, rf, new_generator, query):
    url = f"/api/v1/schema/?{query}"

    response = SchemaView.as_view(generator_class=new_generator)(rf.get(url)).render()

    assert response.status_code == client.get(url).status_code == 200
    assert json.loads(response.content) == DOCUMENT
    assert client.get(f"/api/v1/docs/?{query}").status_code == 200


@pytest.mark.django_db
def test_the_page_loads_only_files_of_the_gateway(client):
    page = client.get("/api/v1/docs/")
    text = page.content.decode()

    assert "unsafe" not in page["Content-Security-Policy"]
    assert "http" not in page["Content-Security-Policy"]
    assert "//" not in text.replace("</", "")
    assert "<style" not in text
    assert all(part.startswith(" src=") for part in text.split("<script")[1:])
    files = [part.split('"')[0].removeprefix("/static/") for part in text.split('src="')[1:]]
    assert len(files) == 2
    assert all(map(finders.find, files))


@pytest.mark.parametrize("name", ["UsageAnswer", "TopAnswer", "OutcomePage", "StopReasonPage"])
def test_a_report_has_the_header_of_its_time_range(name):
    assert {"from", "to", "tz", "data_refreshed_at", "data"} <= {
        *COMPONENTS["schemas"][name]["required"]
    }
