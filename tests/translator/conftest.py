"""Options of the translator's tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-cases",
        action="store_true",
        help="write the expected output of the cases again; review the difference before a commit",
    )
