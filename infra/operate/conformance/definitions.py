"""Real CustomResourceDefinitions out of the checkouts, as each project ships them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from infra.clients.kube_rules import Object
from infra.operate.conformance import go_yaml
from infra.operate.conformance.sources import DEPLOYED, NotRunError, Sources

_PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "soperator": ("helm/soperator/crds/*.yaml",),
    "kruise": ("config/crd/bases/*.yaml",),
    "mariadb-operator": ("deploy/crds/crds.yaml",),
    "prometheus-operator": ("example/prometheus-operator-crd/*.yaml",),
    "victoria-metrics-operator": ("config/crd/overlay/crd.yaml",),
    "security-profiles-operator": ("deploy/base-crds/crds/*.yaml",),
    "k8up": ("charts/k8up/crds/*.yaml",),
}
_WATCHED: Final = (
    "slurm.nebius.ai",
    "apps.kruise.io",
    "k8s.mariadb.com",
    "security-profiles-operator.x-k8s.io",
)
"""Groups of which an operator reads every kind."""
OUTSIDE_GROUPS: Final[Mapping[str, str]] = {
    "cert-manager.io": "defined by cert-manager's chart, which is finished only by its own release",
}
"""Groups of which no checkout has the definitions, and why."""
OPERATED: Final = _PLACES.keys() - {"victoria-metrics-operator", "k8up"}
"""Checkouts that define what Soperator's operator watches: without one it never comes up."""
_METRICS: Final = frozenset({"ServiceMonitor", "PodMonitor"})
_KIND: Final = "CustomResourceDefinition"


def definitions(sources: Sources, soperator: str = DEPLOYED) -> tuple[list[Object], dict[str, str]]:
    """All of them, and checkout -> reason where it is missing; `soperator` is a version."""
    found: list[Object] = []
    missing: dict[str, str] = {}
    for name in _PLACES:
        try:
            checkout = sources.soperator(soperator) if name == "soperator" else name
            found += _of(sources, checkout, _PLACES[name])
        except NotRunError as error:
            missing[name] = str(error)
    return found, missing


def needed(found: Iterable[Object], objects: Iterable[Object]) -> list[Object]:
    """Those of the kinds among the objects and those that the operators watch.

    Half of a minute goes into the rest, which nobody asks for.
    """
    used = {each["kind"] for each in objects}
    return [
        each
        for each in found
        if each["spec"]["group"] in _WATCHED or each["spec"]["names"]["kind"] in used | _METRICS
    ]


def _of(sources: Sources, checkout: str, patterns: tuple[str, ...]) -> Iterator[Object]:
    folder = sources.checkout(checkout)
    for pattern in patterns:
        paths = sorted(folder.glob(pattern))
        if not paths:
            raise NotRunError(f"checkout {folder}: nothing at {pattern}")
        for path in paths:
            for each in go_yaml.load_all(path.read_text(encoding="utf-8")):
                if each.get("kind") == _KIND:
                    yield _alone(each)


def _alone(definition: Object) -> Object:
    """Without the webhook of its operator, which may not run: stored and served version agree."""
    spec = {key: value for key, value in definition["spec"].items() if key != "conversion"}
    metadata = {
        key: value for key, value in definition["metadata"].items() if key != "creationTimestamp"
    }
    kept = {key: value for key, value in definition.items() if key != "status"}
    return {**kept, "metadata": metadata, "spec": spec}
