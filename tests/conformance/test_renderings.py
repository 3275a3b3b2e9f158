"""The local stack's renderings of Soperator's charts against those of the charts themselves.

Each difference is gone or stands in renderings.tsv with what it means here.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.clients.kube_rules import Object, name_of
from infra.local.kube import values as local_values
from infra.local.kube.values import Release
from infra.local.plugins.kubernetes_objects import CHART_VERSION, render
from infra.operate.conformance.come_up import declared
from tests.conformance.conftest import STACKS

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(900)]
TABLE = Path(__file__).with_name("renderings.tsv")
RELEASES = ("slurm-cluster-storage", "slurm-cluster", "nodesets")
NEEDED = {
    "slurm-cluster-storage": {
        "volume": {"jail": {"size": "2Ti"}, "controllerSpool": {"size": "30Gi"}}
    }
}
"""The least values of a chart; the sizes are those of its values.yaml."""
EXAMPLES = {
    "slurm-cluster": {
        "k8sNodeFilters.0.affinity",
        "k8sNodeFilters.0.tolerations",
        "k8sNodeFilters.1.affinity",
        "slurmNodes.login.sshRootPublicKeys",
    },
    "nodesets": {"nodesets"},
}
"""Values whose default is an example, which every stack replaces."""
MISTAKEN = {"helm-nodesets: nodesets[1].slurmd.resources.ephemeral-storage: unknown value"}
"""Keys of a values.yaml that no template of its chart reads."""
_NOTHING: tuple[object, ...] = (None, "", {}, [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One known difference; kind and path are patterns as file names have them."""

    kind: str
    path: str
    effect: str

    def covers(self, kind: str, path: str) -> bool:
        return fnmatchcase(kind, self.kind) and fnmatchcase(path, self.path)


def rows() -> list[Row]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Row(**row) for row in csv.DictReader(file, delimiter="\t")]


def differences(real: Iterable[Object], local: Iterable[Object]) -> Iterator[tuple[str, str]]:
    """Kind and path of what the two have differently; an absent value and an empty one are one."""
    sides = [{(each["kind"], name_of(each)): each for each in side} for side in (real, local)]
    for kind, name in sorted(sides[0].keys() | sides[1].keys()):
        pair = [side.get((kind, name)) for side in sides]
        if None in pair:
            yield kind, "only here" if pair[0] is None else "only there"
        else:
            yield from ((kind, path.removeprefix(".")) for path in _paths(*pair))


def _paths(real: Any, local: Any, path: str = "") -> Iterator[str]:
    if isinstance(real, dict) and isinstance(local, dict):
        for key in sorted(real.keys() | local.keys()):
            yield from _paths(real.get(key), local.get(key), f"{path}.{key}")
    elif isinstance(real, list) and isinstance(local, list) and len(real) == len(local):
        for index, (left, right) in enumerate(zip(real, local, strict=True)):
            yield from _paths(left, right, f"{path}.{index}")
    elif real != local and not (real in _NOTHING and local in _NOTHING):
        yield path


@pytest.mark.parametrize("release", RELEASES)
def test_values_and_defaults_are_those_of_the_chart(release, sources, record_property):
    """Keys of values.yaml are known here, and a default that both have is the same."""
    chart = sources.chart(release, CHART_VERSION)
    text = (chart / "values.yaml").read_text(encoding="utf-8")
    real, problems = yaml.safe_load(text), []
    try:
        local_values.merge(f"helm-{release}", real)
    except local_values.ChartError as error:
        problems = [
            line for line in str(error).splitlines() if line.partition(";")[0] not in MISTAKEN
        ]
    local, _ = local_values.merge(f"helm-{release}", NEEDED.get(release, {}))
    both = _shared(real, local)
    record_property("defaults", len(list(_leaves(both[0]))))
    other = {path.removeprefix(".") for path in _paths(*both)}
    assert (problems, other) == ([], EXAMPLES.get(release, set()))


def _shared(real: dict[str, Any], local: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two without what only one of them has."""
    pairs: dict[str, tuple[Any, Any]] = {}
    for key in real.keys() & local.keys():
        pair = (real[key], local[key])
        pairs[key] = _shared(*pair) if all(isinstance(each, dict) for each in pair) else pair
    return {key: left for key, (left, _) in pairs.items()}, {
        key: right for key, (_, right) in pairs.items()
    }


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict) and value:
        for inner in value.values():
            yield from _leaves(inner)
    else:
        yield value


@pytest.fixture(scope="module")
def seen() -> dict[str, set[tuple[str, str]]]:
    return {}


@pytest.mark.parametrize("stack", STACKS)
def test_every_difference_is_in_the_table(
    stack, spec, sources, helm, tmp_path, seen, record_property
):
    found: set[tuple[str, str]] = set()
    count = 0
    for release in declared(spec(stack), tmp_path).releases:
        if release.name not in RELEASES:
            continue
        chart = sources.chart(release.name, release.version)
        real = helm.render(chart, release.name, release.namespace, release.values)
        named = f"helm-{release.name}"
        local = render(
            Release(
                name=release.name,
                namespace=release.namespace,
                chart=named,
                version=CHART_VERSION,
            ),
            release.values,
        ).objects
        found |= set(differences(real, local))
        count += len(local)
    record_property("objects of the local stack", count)
    record_property("differences of renderings", len(found))
    seen[stack] = found
    unlisted = [
        f"{kind}\t{path}"
        for kind, path in sorted(found)
        if not any(row.covers(kind, path) for row in rows())
    ]
    assert not unlisted, "not in renderings.tsv:\n" + "\n".join(unlisted)


def test_every_row_of_the_table_is_still_a_difference(seen, record_property):
    if len(seen) < len(STACKS):
        pytest.skip(f"needs every stack; this run compared {sorted(seen)}")
    record_property("rows of renderings", len(rows()))
    every = set().union(*seen.values())
    stale = [
        f"{row.kind}: {row.path}"
        for row in rows()
        if not any(row.covers(kind, path) for kind, path in every)
    ]
    assert not stale, "gone, so take them out of renderings.tsv:\n" + "\n".join(stale)
