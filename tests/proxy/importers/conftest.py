"""Share the fixture that runs a command in a process."""

from tests.proxy.config.conftest import manage  # noqa: F401 - a fixture
