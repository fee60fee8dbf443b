"""The operations of the OpenAPI document, and the checks of each response, for schemathesis."""

import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fakes.openapi import schema

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
OPERATIONS = {
    f"{one.method.upper()} {one.path}": one
    for one in (
        result.ok() for result in schemathesis.openapi.from_dict(schema()).get_all_operations()
    )
}
"""The operations by method and path, such as ``GET /api/v1/keys/``."""
