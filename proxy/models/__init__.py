"""The database models."""

from .budgets import Budget, BudgetNotice, Period
from .drift import Drift, DriftKind, PolicyAction, PolicyKind, UpstreamPolicy
from .exports import Export, ExportState
from .keys import ApiKey, Scope, Store, Team
from .ledger import (
    DrainWatermark,
    Exchange,
    HashChainLink,
    LedgerHead,
    Outcome,
    Part,
    State,
    TokenSource,
    Transcript,
)
from .oidc_identity import Identity
from .purges import Purge, PurgeState
from .revision import Revision
from .rollups import (
    UsageByCallerDay,
    UsageByCallerQuarterHour,
    UsageByModelDay,
    UsageByModelQuarterHour,
    UsageBySessionDay,
    UsageDay,
    UsageQuarterHour,
    UsageSummaryDay,
)
from .routes import (
    ConnectionReuse,
    DialectName,
    OnClientDisconnect,
    Price,
    Route,
    RouteTarget,
    Upstream,
)
from .saved_view import SavedView

__all__ = [
    "ApiKey",
    "Budget",
    "BudgetNotice",
    "ConnectionReuse",
    "DialectName",
    "DrainWatermark",
    "Drift",
    "DriftKind",
    "Exchange",
    "Export",
    "ExportState",
    "HashChainLink",
    "Identity",
    "LedgerHead",
    "OnClientDisconnect",
    "Outcome",
    "Part",
    "Period",
    "PolicyAction",
    "PolicyKind",
    "Price",
    "Purge",
    "PurgeState",
    "Revision",
    "Route",
    "RouteTarget",
    "SavedView",
    "Scope",
    "State",
    "Store",
    "Team",
    "TokenSource",
    "Transcript",
    "Upstream",
    "UpstreamPolicy",
    "UsageByCallerDay",
    "UsageByCallerQuarterHour",
    "UsageByModelDay",
    "UsageByModelQuarterHour",
    "UsageBySessionDay",
    "UsageDay",
    "UsageQuarterHour",
    "UsageSummaryDay",
]
