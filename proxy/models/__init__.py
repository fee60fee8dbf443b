"""What the database holds; each file says what is always true of its tables."""

from .budgets import Budget, BudgetNotice, Period
from .drift import Drift, DriftKind, PolicyAction, PolicyKind, UpstreamPolicy
from .exports import Export, ExportState
from .identities import Identity
from .keys import ApiKey, Scope, Store, Team
from .ledger import (
    DrainMark,
    Exchange,
    LedgerHead,
    Outcome,
    Part,
    Seal,
    State,
    TokenSource,
    Transcript,
)
from .purges import Purge, PurgeState
from .revision import Revision
from .rollups import (
    DaySession,
    DaySummary,
    DayUsage,
    DayWhat,
    DayWho,
    QuarterUsage,
    QuarterWhat,
    QuarterWho,
)
from .routes import ConnectionReuse, DialectName, Leaving, Price, Route, RouteTarget, Upstream
from .views import SavedView

__all__ = [
    "ApiKey",
    "Budget",
    "BudgetNotice",
    "ConnectionReuse",
    "DaySession",
    "DaySummary",
    "DayUsage",
    "DayWhat",
    "DayWho",
    "DialectName",
    "DrainMark",
    "Drift",
    "DriftKind",
    "Exchange",
    "Export",
    "ExportState",
    "Identity",
    "Leaving",
    "LedgerHead",
    "Outcome",
    "Part",
    "Period",
    "PolicyAction",
    "PolicyKind",
    "Price",
    "Purge",
    "PurgeState",
    "QuarterUsage",
    "QuarterWhat",
    "QuarterWho",
    "Revision",
    "Route",
    "RouteTarget",
    "SavedView",
    "Scope",
    "Seal",
    "State",
    "Store",
    "Team",
    "TokenSource",
    "Transcript",
    "Upstream",
    "UpstreamPolicy",
]
