from tests.fakes.module_rows import module_rows
from tests.repo.access.access_requests import one_of_each, send

__all__ = ["module_rows", "one_of_each", "send"]
