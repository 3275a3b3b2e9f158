"""Every release is installed by the real Helm, and its record fits into the Secret for it."""

from __future__ import annotations

import base64

import pytest

from infra.local.kube import api_server
from infra.operate.conformance.cluster import ApiServer, Cluster, kubeconfig
from infra.operate.conformance.come_up import OUTSIDE_GROUPS, declared, definitions
from infra.operate.conformance.sources import NotRunError, OutsideError, RenderError
from infra.providers.soperator.crds import apply_crds
from tests.conformance.chart_values import install
from tests.ports import free_ports

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(900)]
STACK = "all-keys"
LIMIT_BYTES = 1024 * 1024
"""Of a Secret (k8s.io/api/core/v1, MaxSecretSize)."""
_OF_CHARTS = ("apps.kruise.io", "policy.kruise.io", "k8s.mariadb.com")
"""Groups whose definitions are templates of a chart that is installed here."""


def undefined_kinds():
    """cert-manager's kinds in any shape: Helm looks for a kind before it keeps a record."""
    (group,) = OUTSIDE_GROUPS
    for kind, plural in (("Certificate", "certificates"), ("Issuer", "issuers")):
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True}
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "names": {"kind": kind, "plural": plural},
                "scope": "Namespaced",
                "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
            },
        }


def test_every_release_is_installed_and_its_record_fits(
    spec, sources, helm, tmp_path, record_property
):
    sizes: dict[str, int] = {}
    refused: dict[str, str] = {}
    crds, missing = definitions(sources)
    if missing:  # Helm makes no record of a release with an object of an unknown kind
        raise NotRunError("; ".join(missing.values()))
    with api_server.running(tmp_path / "api", free_ports(1)[0]) as config:
        server = ApiServer(access=config.access(), certificate=config.certificate, key=config.key)
        cluster = Cluster(server)
        access = tmp_path / "kubeconfig"
        access.write_text(kubeconfig(server.access))
        access.chmod(0o600)
        own = [each for each in crds if not each["spec"]["group"].endswith(_OF_CHARTS)]
        apply_crds(cluster.client, [*own, *undefined_kinds()])
        for release in declared(spec(STACK), tmp_path / "build").releases:
            try:
                chart = sources.chart(release.name, release.version)
            except OutsideError as error:
                record_property("outside", str(error))
                continue
            except NotRunError as error:
                record_property("not run", str(error))
                continue
            try:
                install(
                    helm,
                    chart,
                    release.name,
                    release.namespace,
                    release.values,
                    folder=tmp_path,
                    kubeconfig=access,
                )
            except RenderError as error:
                refused[release.name] = str(error)
            for secret in cluster.client.list("v1", "Secret", release.namespace):
                if secret["metadata"]["name"].startswith(f"sh.helm.release.v1.{release.name}."):
                    sizes[release.name] = len(base64.b64decode(secret["data"]["release"]))
        cluster.client.close()
    # A webhook whose operator does not run here: the record is there before.
    assert {name: why for name, why in refused.items() if "webhook" not in why} == {}
    assert sizes
    assert {name: size for name, size in sizes.items() if size > LIMIT_BYTES} == {}
    record_property("records", len(sizes))
    record_property("bytes of the largest record", max(sizes.values()))
