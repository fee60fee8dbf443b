"""What an upstream may be told of what clients bring along, as an administrator said.

Clients grow new beta names, fields, block types and roles each week, and an upstream that does not
know one refuses the whole request. A rule leaves it out (with a note on the request), refuses it,
or lets it pass. Without a rule the dialect decides, and what this version does not know of blocks
and roles is refused.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from proxy.models.drift import NEEDED
from translator.errors import BadRequest
from translator.notes import Note

from .sieve import REASON, Action, Sieve, is_known

BETAS: Final = "anthropic-beta"
IN_MESSAGES: Final = frozenset({"block", "role"})


class Rule(NamedTuple):
    kind: str
    name: str
    action: Action


@dataclass(frozen=True, slots=True)
class Policies:
    """The rules of one upstream, in their order; the first that fits counts."""

    rules: tuple[Rule, ...] = ()
    native: bool = False  # it speaks Anthropic's dialect, so what we do not know may reach it
    wary: bool = False  # requests may hold what we do not know: a rule of some upstream is for it

    def rule_for(self, kind: str, name: str) -> Rule | None:
        for rule in self.rules:
            if rule.kind == kind and fnmatch.fnmatchcase(name, rule.name):
                return rule
        return None

    def of(self, kind: str, name: str) -> Action:
        if name in NEEDED.get(kind, ()):  # a glob is not meant to empty every request
            return "pass"
        rule = self.rule_for(kind, name)
        if kind in IN_MESSAGES and not is_known(kind, name):
            action: Action = rule.action if rule else "refuse"
            return "refuse" if action == "pass" and not self.native else action
        return rule.action if rule else "pass"

    def permitted(
        self, request: dict[str, Any], notes: list[Note], client: str = ""
    ) -> dict[str, Any]:
        """The request without what is to be left out. Raises BadRequest that names it.

        ``client``: its name and version, ``claude-cli 2.1.329``.
        """
        if client and self.of("client", client) == "refuse":
            raise BadRequest("user-agent", f"`{client}` is refused by {REASON}")
        gone = self._gone("field", request, "")
        notes += [Note(name, "dropped", REASON) for name in gone]
        kept = {name: value for name, value in request.items() if name not in gone}
        if self.wary or any(rule.kind in IN_MESSAGES for rule in self.rules):
            sieve = Sieve(self.of)
            kept["messages"] = sieve.messages(request["messages"])
            notes += sieve.notes()
        return kept

    def permitted_headers(self, headers: dict[str, str], notes: list[Note]) -> dict[str, str]:
        """The same for ``anthropic-beta``, where there is such a header."""
        asked = [name.strip() for name in headers.get(BETAS, "").split(",") if name.strip()]
        gone = self._gone("beta", asked, BETAS)
        if not gone:
            return headers
        notes += [Note(BETAS, "dropped", f"{name}: {REASON}") for name in gone]
        kept = ",".join(name for name in asked if name not in gone)
        rest = {name: text for name, text in headers.items() if name != BETAS}
        return {**rest, BETAS: kept} if kept else rest

    def _gone(self, kind: str, names: Iterable[str], path: str) -> list[str]:
        gone = []
        for name in names:
            match self.of(kind, name):
                case "refuse" if kind == "beta":
                    raise BadRequest(path, f"Unexpected value(s) `{name}` for this header")
                case "refuse":
                    raise BadRequest(name, "Extra inputs are not permitted")
                case "drop":
                    gone.append(name)
        return gone

    def admits(self, kind: str, name: str) -> bool:
        """Whether a name that this version does not know may come in: some rule is for it."""
        rule = None if is_known(kind, name) else self.rule_for(kind, name)
        return rule is not None and rule.action != "refuse"


NONE: Final = Policies()
"""Of an upstream that may be told everything; the only one of its kind."""


def policies_of(
    rules: Iterable[Mapping[str, Any]], *, native: bool = False, wary: bool = False
) -> Policies:
    made = tuple(Rule(each["kind"], each["name"], each["action"]) for each in rules)
    return Policies(made, native, wary) if made or wary else NONE
