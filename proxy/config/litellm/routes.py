"""Convert LiteLLM's fallbacks and aliases, and build the routes of a bridge.toml."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .deployments import GLOB, Target
from .report import Report, table, tables

# The weight for equal shares; weights that are all 1 mean "try in order" in a bridge.toml.
EVEN_WEIGHT = 2


def route_tables(
    routes: Mapping[str, Sequence[Target]],
    fallbacks: Mapping[str, Sequence[str]],
    aliases: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the ``[[routes]]`` tables in the order in which LiteLLM matches model names.

    Exact names come before globs, longer globs before shorter ones.
    """
    names = sorted(routes, key=lambda name: (bool(GLOB.search(name)), -len(name)))
    found = [(name, name) for name in names]
    found += [(alias, name) for alias, name in aliases.items() if alias not in routes]
    return [
        {"model": model, "targets": list(_targets(name, routes, fallbacks))}
        for model, name in found
    ]


def _targets(
    name: str, routes: Mapping[str, Sequence[Target]], fallbacks: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, Any]]:
    own = sorted(routes[name], key=lambda target: target.order)
    first = [target for target in own if target.order == own[0].order]
    weights = {target.weight for target in first}
    in_order = len(first) == 1
    for target in first:
        weight = 1 if in_order else EVEN_WEIGHT if weights == {1} else target.weight
        yield _target_table(target, weight)
    after = [target for target in own if target.order != own[0].order]
    after += [target for other in fallbacks.get(name, ()) for target in routes[other]]
    for target in after:
        yield _target_table(target, 1 if in_order else 0)  # 0: used only when other targets fail


def _target_table(target: Target, weight: int) -> dict[str, Any]:
    return {"upstream": target.upstream, "model": target.model, "weight": weight}


def read_fallbacks(
    value: Any, where: str, routes: Mapping[str, Sequence[Target]], report: Report
) -> dict[str, list[str]]:
    """Convert fallbacks such as ``[{"a": ["b", "c"]}]``: model -> models to try if it fails.

    The targets of models b and c will be added to the route of model a.
    """
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
    """Convert ``{"alias": "model"}`` or ``{"alias": {"model": "model", "hidden": true}}``.

    Returns the model of each alias.
    """
    found = {}
    for alias, target in table(value, where).items():
        model = target.get("model") if isinstance(target, dict) else target
        if str(model) in routes:
            found[str(alias)] = str(model)
        else:
            report.dropped(f"{where}.{alias}", "names a model that has no route")
    return found
