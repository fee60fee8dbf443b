"""The database models."""

from .archive import ArchivedMonth, ArchiveState
from .audit import Action, ActorKind, AuditEntry
from .config_revision import Revision
from .drift import Drift, DriftKind, PolicyAction, PolicyKind, UpstreamPolicy
from .encrypted_text import BodyKeyUse
from .exports import Export, ExportState
from .idempotency import IdempotentWrite
from .ledger import (
    CopiedTable,
    DrainWatermark,
    Exchange,
    HashChainLink,
    LedgerHead,
    LinkKind,
    Outcome,
    Part,
    State,
    TokenSource,
    Transcript,
)
from .ledger_names import CallerNames, FormerName, NameKind, Person
from .oidc_identity import Identity
from .outcomes import CountedToolCall, SessionOutcomeDay
from .purges import Purge, PurgeState
from .rollups import (
    StopReasonDay,
    UsageByCallerDay,
    UsageByCallerQuarterHour,
    UsageByModelDay,
    UsageByModelQuarterHour,
    UsageBySessionDay,
    UsageByToolDay,
    UsageDay,
    UsageQuarterHour,
    UsageSummaryDay,
)
from .saved_view import SavedReport, SavedView
from .search import SearchEntry, SearchOccurrence
from .setup.budgets import Budget, BudgetNotice, Period
from .setup.keys import ApiKey, Scope, Store, Team
from .setup.lessons import ModelLesson
from .setup.pauses import Pause
from .setup.prices import Price
from .setup.routes import Route, RouteTarget
from .setup.upstreams import ConnectionReuse, DialectName, OnClientDisconnect, Upstream
from .setup.webhooks import EventType, Webhook
from .webhook_deliveries import DeliveryState, UpstreamErrorClass, WebhookDelivery, WebhookEvent

__all__ = [
    "Action",
    "ActorKind",
    "ApiKey",
    "ArchiveState",
    "ArchivedMonth",
    "AuditEntry",
    "BodyKeyUse",
    "Budget",
    "BudgetNotice",
    "CallerNames",
    "ConnectionReuse",
    "CopiedTable",
    "CountedToolCall",
    "DeliveryState",
    "DialectName",
    "DrainWatermark",
    "Drift",
    "DriftKind",
    "EventType",
    "Exchange",
    "Export",
    "ExportState",
    "FormerName",
    "HashChainLink",
    "IdempotentWrite",
    "Identity",
    "LedgerHead",
    "LinkKind",
    "ModelLesson",
    "NameKind",
    "OnClientDisconnect",
    "Outcome",
    "Part",
    "Pause",
    "Period",
    "Person",
    "PolicyAction",
    "PolicyKind",
    "Price",
    "Purge",
    "PurgeState",
    "Revision",
    "Route",
    "RouteTarget",
    "SavedReport",
    "SavedView",
    "Scope",
    "SearchEntry",
    "SearchOccurrence",
    "SessionOutcomeDay",
    "State",
    "StopReasonDay",
    "Store",
    "Team",
    "TokenSource",
    "Transcript",
    "Upstream",
    "UpstreamErrorClass",
    "UpstreamPolicy",
    "UsageByCallerDay",
    "UsageByCallerQuarterHour",
    "UsageByModelDay",
    "UsageByModelQuarterHour",
    "UsageBySessionDay",
    "UsageByToolDay",
    "UsageDay",
    "UsageQuarterHour",
    "UsageSummaryDay",
    "Webhook",
    "WebhookDelivery",
    "WebhookEvent",
]
