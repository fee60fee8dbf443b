"""What every test may use: the scripted upstream and how hard the laws are tried."""

from collections.abc import Iterator

import pytest

from tests.fakes import effort  # noqa: F401 - loads the profile before any property is defined
from tests.fakes.upstream import ScriptedUpstream


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """A scripted upstream on a loopback port; tell it what to answer with ``upstream.on``."""
    with ScriptedUpstream() as running:
        yield running
