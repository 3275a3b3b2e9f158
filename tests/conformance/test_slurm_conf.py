"""slurm.conf, gres.conf and cgroup.conf: the operator's against the local stack's.

Each difference is gone or stands in slurm_conf.tsv with what it means for jobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.clients.kube_rules import Object, name_of
from infra.local.kube.values import Release
from infra.local.plugins.kubernetes_objects import CHART_VERSION, render
from infra.local.reconcile.planner import make_plan
from infra.local.reconcile.snapshot import Places, Snapshot
from infra.local.slurm.daemons import render_gres_conf, render_slurm_conf
from infra.operate.conformance.come_up import declared
from infra.operate.conformance.sources import NotRunError, OutsideError
from infra.state import Ports
from tests.conformance import slurm_files
from tests.conformance.conftest import STACKS
from tests.conformance.slurm_files import Difference

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(900)]
FILES = ("slurm.conf", "gres.conf", "cgroup.conf")
_RENDERED = ("slurm-cluster-storage", "slurm-cluster", "nodesets")


@pytest.fixture(scope="module")
def seen() -> dict[str, list[Difference]]:
    """What the stacks of this run differed in."""
    return {}


def real_files(live: list[Object], cluster: str) -> dict[str, str]:
    """What the operator wrote."""
    for each in live:
        if each["kind"] == "ConfigMap" and name_of(each) == f"{cluster}-slurm-configs":
            return each["data"]
    raise NotRunError(f"the operator made no ConfigMap {cluster}-slurm-configs")


def local_files(spec, folder: Path) -> dict[str, str]:
    """What the local stack would write for the same stack."""
    objects = [
        each
        for release in declared(spec, folder).releases
        if release.name in _RENDERED
        for each in render(
            Release(
                name=release.name,
                namespace=release.namespace,
                chart=f"helm-{release.name}",
                version=CHART_VERSION,
            ),
            release.values,
        ).objects
    ]
    kinds = {"SlurmCluster", "NodeSet"}
    plan = make_plan(
        Snapshot.of(each for each in objects if each["kind"] in kinds),
        places=Places(filesystems=folder, pods=folder),
        ports=Ports(17800),
        worker_port=lambda _name: 6818,
    )
    if plan.cluster is None:
        raise OutsideError("a stopped cluster has no daemons here")
    settings = plan.cluster.settings
    return {
        "slurm.conf": render_slurm_conf(settings),
        "gres.conf": render_gres_conf(settings.workers),
    }


def found(real: Mapping[str, str], local: Mapping[str, str]) -> Iterator[Difference]:
    for file in FILES:
        pair = [slurm_files.expanded(files, file) for files in (real, local)]
        yield from slurm_files.differences(file, *pair)


@pytest.mark.parametrize("stack", STACKS)
def test_every_difference_is_in_the_table(stack, spec, came_up, tmp_path, seen, record_property):
    local = local_files(spec(stack), tmp_path)
    up = came_up(stack)
    if up.steps["reconciled"].outcome == "NOT RUN":
        raise NotRunError("; ".join(up.steps["reconciled"].not_run))
    real = real_files(up.way.live, spec(stack).cluster.slurm_cluster_name)
    seen[stack] = list(found(real, local))
    record_property("differences", len(seen[stack]))
    unlisted = slurm_files.unlisted(seen[stack], slurm_files.known())
    assert not unlisted, "not in slurm_conf.tsv:\n" + "\n".join(map(str, unlisted))


@pytest.mark.parametrize("stack", STACKS)
def test_every_worker_has_the_programs_that_its_slurmd_runs(stack, spec, came_up, record_property):
    """Slurm drains a node whose prolog is not there."""
    live = came_up(stack).way.live
    conf = real_files(live, spec(stack).cluster.slurm_cluster_name)["slurm.conf"]
    programs = re.findall(r"^(?:Prolog|Epilog|HealthCheckProgram)=(/.+)$", conf, re.MULTILINE)
    assert len(programs) == 3
    keys = {name_of(each): each.get("data", {}) for each in live if each["kind"] == "ConfigMap"}
    workers = [each for each in live if "slurmd" in containers(each)]
    record_property("worker sets", len(workers))
    assert workers or spec(stack).paused
    for worker in workers:
        pod = worker["spec"]["template"]["spec"]
        volumes = {each["name"]: each.get("configMap", {}) for each in pod["volumes"]}
        folders = {
            each["mountPath"].rstrip("/"): volumes.get(each["name"], {})
            for each in containers(worker)["slurmd"]["volumeMounts"]
        }
        for program in programs:
            folder, _, name = program.rpartition("/")
            scripts = folders.get(folder, {})
            assert name in keys.get(scripts.get("name"), {}), f"{name_of(worker)}: no {program}"
            assert scripts["defaultMode"] & 0o111 == 0o111


def containers(owner: Object) -> dict[str, Any]:
    """Containers of the pods that a set makes, by name; of anything else, none."""
    if owner["kind"] != "StatefulSet":
        return {}
    return {each["name"]: each for each in owner["spec"]["template"]["spec"]["containers"]}


def test_every_row_of_the_table_is_still_a_difference(seen, record_property):
    if len(seen) < len(STACKS) - 1:
        raise NotRunError(f"needs every stack; this run compared {json.dumps(sorted(seen))}")
    rows = slurm_files.known()
    record_property("rows", len(rows))
    every = [one for stack in seen.values() for one in stack]
    stale = [
        f"{row.file}: {row.key}"
        for row in rows
        # Some depend on what this machine has installed, and say so.
        if not row.effect.startswith("only where") and not any(map(row.covers, every))
    ]
    assert not stale, "gone, so take them out of slurm_conf.tsv:\n" + "\n".join(stale)
