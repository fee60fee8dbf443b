"""An administrator's rules for beta names, fields, block types and roles, by upstream.

New client versions often send new names, and an upstream rejects a request with a name that it does
not know. A rule drops the name (and adds a note to the request), rejects the request, or passes the
name. Without a rule, an Anthropic upstream gets every name as it came; for other upstreams the
dialect decides about betas and fields, and unknown blocks and roles are rejected.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from proxy.models.drift import NEEDED
from translator.errors import BadRequest
from translator.notes import Note

from .content_policy import REASON, Action, ContentFilter, is_known

BETAS: Final = "anthropic-beta"
MESSAGE_KINDS: Final = frozenset({"block", "role"})


class Rule(NamedTuple):
    kind: str
    name: str
    action: Action


@dataclass(frozen=True, slots=True)
class Policies:
    """The rules of one upstream in their order. The first rule that matches applies."""

    rules: tuple[Rule, ...] = ()
    native: bool = False  # the upstream has Anthropic's API, so unknown blocks and roles may pass
    filters_messages: bool = False  # whether any upstream has a rule for blocks or roles

    def rule_for(self, kind: str, name: str) -> Rule | None:
        for rule in self.rules:
            if rule.kind == kind and fnmatch.fnmatchcase(name, rule.name):
                return rule
        return None

    def action_for(self, kind: str, name: str) -> Action:
        if name in NEEDED.get(kind, ()):  # a glob must not drop required fields
            return "pass"
        rule = self.rule_for(kind, name)
        if kind in MESSAGE_KINDS and not is_known(kind, name):
            action: Action = rule.action if rule else "pass"
            return "refuse" if action == "pass" and not self.native else action
        return rule.action if rule else "pass"

    def filter_request(
        self, request: dict[str, Any], notes: list[Note], client: str = ""
    ) -> dict[str, Any]:
        """Return the request without the names that rules drop.

        Raises BadRequest for a name that a rule refuses. ``notes`` gets a note for each dropped
        name. ``client``: name and version of the client, such as ``claude-cli 2.1.329``.
        """
        if client and self.action_for("client", client) == "refuse":
            raise BadRequest("user-agent", f"`{client}` is refused by {REASON}")
        dropped = self._dropped_names("field", request, "")
        notes += [Note(name, "dropped", REASON) for name in dropped]
        filtered = {name: value for name, value in request.items() if name not in dropped}
        if self.filters_messages or any(rule.kind in MESSAGE_KINDS for rule in self.rules):
            content_filter = ContentFilter(self.action_for)
            if isinstance(messages := request.get("messages"), list):
                filtered["messages"] = content_filter.messages(messages)
            notes += content_filter.notes()
        return filtered

    def permitted_headers(self, headers: dict[str, str], notes: list[Note]) -> dict[str, str]:
        """Return the headers; remove the names that rules drop from ``anthropic-beta``."""
        betas = [name.strip() for name in headers.get(BETAS, "").split(",") if name.strip()]
        dropped = self._dropped_names("beta", betas, BETAS)
        if not dropped:
            return headers
        notes += [Note(BETAS, "dropped", f"{name}: {REASON}") for name in dropped]
        allowed = ",".join(name for name in betas if name not in dropped)
        rest = {name: text for name, text in headers.items() if name != BETAS}
        return {**rest, BETAS: allowed} if allowed else rest

    def _dropped_names(self, kind: str, names: Iterable[str], path: str) -> list[str]:
        dropped = []
        for name in names:
            match self.action_for(kind, name):
                case "refuse" if kind == "beta":
                    raise BadRequest(path, f"Unexpected value(s) `{name}` for this header")
                case "refuse":
                    raise BadRequest(name, "Extra inputs are not permitted")
                case "drop":
                    dropped.append(name)
        return dropped

    def allows_unknown(self, kind: str, name: str) -> bool:
        """Return whether a rule drops or passes a name that this gateway version does not know."""
        rule = None if is_known(kind, name) else self.rule_for(kind, name)
        return rule is not None and rule.action != "refuse"


NO_POLICIES: Final = Policies()
"""The only instance without rules, so it can be compared by ``is``."""


def build_policies(
    rules: Iterable[Mapping[str, Any]], *, native: bool = False, filters_messages: bool = False
) -> Policies:
    built = tuple(Rule(each["kind"], each["name"], each["action"]) for each in rules)
    return Policies(built, native, filters_messages) if built or filters_messages else NO_POLICIES
