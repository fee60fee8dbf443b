"""What can go wrong in the record.

RecordError
├── SpoolUnavailable    the local spool cannot take a record: do not accept the request
├── SpoolInUse          every slot of the data directory is held by another process
├── LedgerAway          the database cannot be reached; the spool holds what it missed
└── SchemaMismatch      the database is not at the migrations that this code knows
"""


class RecordError(Exception):
    """The base of all of them."""


class SpoolUnavailable(RecordError):
    """Nothing was written. ``retry_after_s`` is a fair time to tell the client."""

    retry_after_s = 10


class SpoolInUse(RecordError):
    pass


class LedgerAway(RecordError):
    pass


class SchemaMismatch(RecordError):
    pass
