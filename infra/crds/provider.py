"""The resource `soperator:kube:CustomResources`: definitions of a chart, upgraded with its version.

Stands before the chart's release, which is told to skip them. Its delete forgets them: they end
with the kube cluster, and without them every object of their kinds would end before.
"""

from __future__ import annotations

from typing import Any, Final

from infra.crds.apply import LostVersionError, apply_crds, digests, missing
from infra.crds.chart import crds_of
from infra.crds.pull import ChartError
from infra.kube.client import KubeClient
from infra.kube.errors import KubeError, UnreachableError
from infra.kube.kubeconfig import KubeconfigError, read_kubeconfig
from infra.plugins.provider import UNKNOWN, Failure, Provider, ProviderError, text_failures

Values = dict[str, Any]
TYPE: Final = "soperator:kube:CustomResources"
_TEXTS: Final = ("chart", "version", "group", "kubeconfig")
_REPOSITORY: Final = "repository"
"""Of a chart that lies in no registry."""
_DIGESTS: Final = "definitions"


class CustomResourcesProvider(Provider):
    """Definitions of custom resources by chart and version."""

    def check(self, type_: str, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        """Refuses what is no chart, version and access."""
        optional = (_REPOSITORY,) if _REPOSITORY in new else ()
        return new, text_failures(new, (*_TEXTS, *optional))

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """Applies the definitions; the id is the chart's name."""
        if preview:
            return "", {**inputs, _DIGESTS: UNKNOWN}
        return inputs["chart"].rpartition("/")[2], self._applied(urn, inputs)

    def update(
        self,
        type_: str,
        urn: str,
        id: str,
        old_state: Values,
        old_inputs: Values,
        new: Values,
        preview: bool,
    ) -> Values:
        """Applies those of the new version over the old ones."""
        return {**new, _DIGESTS: UNKNOWN} if preview else self._applied(urn, new)

    def read(
        self, type_: str, id: str, state: Values, inputs: Values
    ) -> tuple[str, Values, Values] | None:
        """As it was, or None where the API server lacks one of them."""
        try:
            client = KubeClient(read_kubeconfig(state["kubeconfig"]))
            gone = missing(client, state.get(_DIGESTS) or {})
        except UnreachableError:
            return id, state, inputs
        except (KubeError, KubeconfigError) as error:
            raise ProviderError(f"custom resources of {id}: {error}") from error
        return None if gone else (id, state, inputs)

    def delete(self, type_: str, id: str, state: Values) -> None:
        """Forgets them."""

    def _applied(self, urn: str, inputs: Values) -> Values:
        try:
            crds = crds_of(
                inputs["chart"],
                inputs["version"],
                group=inputs["group"],
                repository=inputs.get(_REPOSITORY, ""),
            )
            client = KubeClient(read_kubeconfig(inputs["kubeconfig"]))
            apply_crds(
                client,
                crds,
                cancelled=self.cancelled,
                say=lambda line: self.engine.info(urn, line),
            )
        except ChartError as error:
            raise ProviderError(str(error)) from error
        except (KubeError, KubeconfigError, LostVersionError) as error:
            what = f"custom resources of {inputs['chart']} {inputs['version']}"
            raise ProviderError(f"{what}: {error}") from error
        return {**inputs, _DIGESTS: dict(digests(crds))}
