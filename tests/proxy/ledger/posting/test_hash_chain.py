"""The digest of a row stays valid when later versions add columns, and when groups are amended."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from proxy.erasure.person import EMPTIED, RENAMED
from proxy.ledger.posting.exchange_columns import Row, blank_row, set_columns
from proxy.ledger.posting.hash_chain import (
    CHANGES,
    COLUMNS,
    GROUPS,
    LATER_COLUMNS,
    columns_changed_by,
    digest_of,
    is_digest_of,
)
from proxy.models import LinkKind

DIGEST_OF_1_0 = "af12b5a9e431096db686b33293568a377ac64234902b8a60d8ce28322c9dc1a0"
DIGEST = "3cfd36c0e3c884761a061ad73f050a6dca788a4eac6620c11a9e275f7673fa7e"


def row() -> Row:
    found = blank_row("req_" + "0" * 26)
    set_columns(
        found, {"state": "closed", "outcome": "completed", "team": "platform", "ttft_ms": 840.0}
    )
    set_columns(found, {"tags": {"b": 1e2, "a": [1.5, None, {}]}})
    found.created = datetime(2026, 11, 21, 12, tzinfo=UTC)
    found.finished = found.created + timedelta(seconds=2.5)
    return found


def test_the_digests_of_a_row_are_fixed() -> None:
    """Different digests would break each existing chain."""
    assert is_digest_of(bytes.fromhex(DIGEST_OF_1_0), row(), "")
    assert is_digest_of(bytes.fromhex(DIGEST), row(), LinkKind.CLOSED)
    assert digest_of(row()).hex() == DIGEST


@pytest.mark.django_db
def test_columns_since_1_0_are_part_of_the_digest_only_with_a_value() -> None:
    """A column that a migration adds has to be among ``LATER_COLUMNS``."""
    first = MigrationLoader(connection).project_state(("proxy", "0001_initial"))
    released = {*first.models["proxy", "exchange"].fields}

    assert {*COLUMNS} - {*LATER_COLUMNS} == released
    for column in LATER_COLUMNS:
        assert not getattr(row(), column)
        changed = row()
        setattr(changed, column, ["a"] if column == "iterations" else "a")
        assert digest_of(changed) != digest_of(row())


def test_each_column_is_in_one_group() -> None:
    assert Counter(name for names in GROUPS.values() for name in names) == Counter(COLUMNS)
    assert all({*groups} < {*GROUPS} for groups in CHANGES.values())


def test_an_erasure_changes_its_groups_only() -> None:
    changed = {"user", "key_name", "attempts", *EMPTIED, *RENAMED}

    assert changed <= columns_changed_by(LinkKind.ERASED)
