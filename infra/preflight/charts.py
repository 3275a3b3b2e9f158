"""Whether the registry has the Soperator charts of the declared version."""

from __future__ import annotations

from typing import Final

import urllib3

from infra.preflight.cloud import Cloud
from infra.preflight.finding import Finding, failed, not_checked, passed
from infra.preflight.inventory import Owner
from infra.render.chart import REGISTRY
from infra.render.charts import cluster_charts, platform_charts
from stacks.spec import StackSpec

CHECK: Final = "charts"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_TIMEOUT_S: Final = 4.0


def ask_charts(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
    """Each chart that the registry does not have; nothing is asked beside the real cloud."""
    if cloud.target is not None:
        return [not_checked(CHECK, "the emulated cloud has no registry")]
    host, _, repository = REGISTRY.removeprefix("oci://").partition("/")
    return look_up(f"https://{host}", repository, own_charts(spec), spec.cluster.soperator_version)


def own_charts(spec: StackSpec) -> list[str]:
    """Names of the charts that the stack takes from Soperator's registry."""
    charts = (
        *platform_charts(spec),
        *cluster_charts(spec, allocation_id="", ssh_public_keys=[], slack_webhook_url=""),
    )
    own = f"{REGISTRY}/"
    return [one.chart.removeprefix(own) for one in charts if one.chart.startswith(own)]


def look_up(registry: str, repository: str, charts: list[str], version: str) -> list[Finding]:
    """What a registry says of each chart."""
    missing, silent = [], []
    with urllib3.PoolManager(timeout=_TIMEOUT_S, retries=False) as http:
        for chart in charts:
            url = f"{registry}/v2/{repository}/{chart}/manifests/{version}"
            try:
                status = http.request("HEAD", url, headers={"Accept": _MANIFEST}).status
            except urllib3.exceptions.HTTPError as error:
                return [not_checked(CHECK, f"no answer from {registry}: {type(error).__name__}")]
            if status == 404:
                missing.append(chart)
            elif status >= 400:
                silent.append(f"{chart} (HTTP {status})")
    if missing:
        fix = "set cluster.soperator_version to a released one (github.com/nebius/soperator)"
        seen = f"{registry} has no {version} of {', '.join(missing)}"
        return [failed(CHECK, seen, fix, certain=True)]
    if silent:
        return [not_checked(CHECK, f"{registry} does not tell of {', '.join(silent)}")]
    return [passed(CHECK, f"{len(charts)} charts of Soperator {version} are there")]
