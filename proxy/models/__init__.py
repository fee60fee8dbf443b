"""The database models."""

from .budgets import Budget, BudgetNotice, Period
from .config_revision import Revision
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
from .prices import Price
from .purges import Purge, PurgeState
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
from .routes import Route, RouteTarget
from .saved_view import SavedView
from .upstreams import ConnectionReuse, DialectName, OnClientDisconnect, Upstream

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
