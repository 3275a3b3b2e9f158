"""The rendered sample passes the real CRDs on a real API server, as it passes ours."""

from __future__ import annotations

import pytest

from infra.clients.kube import KubeClient
from infra.local.kube import api_server
from infra.local.kube.api_server import install_crds
from tests.local.kube_server import config_in
from tests.unit.kube.samples import VALUES, rendered
from tests.unit.kube.test_crds import CRDS, real

pytestmark = pytest.mark.local
CUSTOM = [o for chart in VALUES for o in rendered(chart) if "slurm.nebius.ai" in o["apiVersion"]]


@pytest.fixture(scope="module", params=["ours", "real"])
def client(request, tmp_path_factory):
    config = config_in(tmp_path_factory.mktemp("kube"))
    # The sample has kinds of Soperator alone.
    own = [plural for plural, crd in CRDS.items() if crd["spec"]["group"] == "slurm.nebius.ai"]
    crds = [real(plural) for plural in own] if request.param == "real" else []
    try:
        api_server.start(config)
        made = KubeClient(config.access())
        for crd in crds:
            made.apply(crd)
        if not crds:
            install_crds(made)
        for crd in crds:
            made.wait_for(crd, "the kind", _is_served, timeout_s=30)
        made.forget_kinds()
        made.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "soperator"}})
        yield made
    finally:
        api_server.stop(config)


def _is_served(crd):
    conditions = crd.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


@pytest.mark.parametrize("target", CUSTOM, ids=lambda o: o["kind"])
def test_the_sample_is_accepted(client, target):
    accepted = client.apply(target, dry_run=True)
    assert accepted["metadata"]["name"] == target["metadata"]["name"]


@pytest.mark.parametrize("chart", sorted(VALUES))
def test_every_other_object_of_the_charts_is_accepted(client, chart):
    others = [o for o in rendered(chart) if o not in CUSTOM]
    accepted = [client.apply(o, dry_run=True)["metadata"]["name"] for o in others]
    assert accepted == [o["metadata"]["name"] for o in others]
