"""The errors of the ledger.

RecordError
├── JournalUnavailable   the local journal cannot store a record: do not accept the request
├── JournalInUse         every journal of the data directory is in use by another process
├── LedgerUnavailable    the database cannot be reached; records wait in the local journal
└── SchemaMismatch       the database's applied migrations differ from those of this version
"""


class RecordError(Exception):
    """The base class of all errors of the ledger."""


class JournalUnavailable(RecordError):
    """The local journal cannot store a record; no part of the record was written."""


class JournalInUse(RecordError):
    pass


class LedgerUnavailable(RecordError):
    pass


class SchemaMismatch(RecordError):
    pass
