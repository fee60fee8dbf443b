"""Fallbacks and aliases, and the targets of each route as bridge.toml says them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .deployments import GLOB, Target
from .report import Report, table, tables

SPREAD = 2  # weights that are all 1 mean "in order", so an even spread needs another number


def route_tables(
    routes: Mapping[str, Sequence[Target]],
    fallbacks: Mapping[str, Sequence[str]],
    aliases: Mapping[str, str],
) -> list[dict[str, Any]]:
    """``[[routes]]``: exact names first, then globs, longest first, the way LiteLLM matches."""
    names = sorted(routes, key=lambda name: (bool(GLOB.search(name)), -len(name)))
    found = [(name, name) for name in names]
    found += [(alias, name) for alias, name in aliases.items() if alias not in routes]
    return [
        {"model": asked, "targets": list(_targets(name, routes, fallbacks))}
        for asked, name in found
    ]


def _targets(
    name: str, routes: Mapping[str, Sequence[Target]], fallbacks: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, Any]]:
    own = sorted(routes[name], key=lambda target: target.order)
    first = [target for target in own if target.order == own[0].order]
    weights = {target.weight for target in first}
    in_order = len(first) == 1
    for target in first:
        weight = 1 if in_order else SPREAD if weights == {1} else target.weight
        yield _written(target, weight)
    after = [target for target in own if target.order != own[0].order]
    after += [target for other in fallbacks.get(name, ()) for target in routes[other]]
    for target in after:
        yield _written(target, 1 if in_order else 0)  # 0: only when the others fail


def _written(target: Target, weight: int) -> dict[str, Any]:
    return {"upstream": target.upstream, "model": target.model, "weight": weight}


def read_fallbacks(
    value: Any, where: str, routes: Mapping[str, Sequence[Target]], report: Report
) -> dict[str, list[str]]:
    """``[{"a": ["b", "c"]}]``: a's route goes on with the targets of b and c."""
    found: dict[str, list[str]] = {}
    for place, entry in enumerate(tables(value, where)):
        for name, others in entry.items():
            at = f"{where}[{place}].{name}"
            listed = others if isinstance(others, list) else [others]
            known = [str(other) for other in listed if str(other) in routes]
            if len(known) < len(listed) or name not in routes:
                report.dropped(at, "names a model that has no route")
            if name in routes:
                found.setdefault(name, []).extend(known)
    return found


def read_aliases(
    value: Any, where: str, routes: Mapping[str, Sequence[Target]], report: Report
) -> dict[str, str]:
    """``{"alias": "model"}``, or with ``{"model": "model", "hidden": true}``."""
    found = {}
    for alias, meant in table(value, where).items():
        model = meant.get("model") if isinstance(meant, dict) else meant
        if str(model) in routes:
            found[str(alias)] = str(model)
        else:
            report.dropped(f"{where}.{alias}", "names a model that has no route")
    return found
