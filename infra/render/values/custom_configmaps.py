"""Values of helm-soperator-custom-configmaps: where Enroot and Docker keep images. Pure."""

from __future__ import annotations

from typing import Any

from stacks.spec import StackSpec


def needs_custom_configmaps(spec: StackSpec) -> bool:
    """Whether a worker mounts one of the ConfigMaps: those with a disk for images do."""
    return any(worker.image_disk is not None for worker in spec.nodes.workers)


def custom_configmaps_values(spec: StackSpec) -> dict[str, Any]:
    """The ConfigMap `image-storage` beside the workers; the other one is for Nebius' telemetry."""
    return {
        "namespace": spec.cluster.namespace,
        "configMaps": {"motd": {"enabled": False}, "imageStorage": {"enabled": True}},
    }
