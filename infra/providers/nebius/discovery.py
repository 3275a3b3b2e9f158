"""The only subnet of a project, for stacks that say `nebius.discover_network: true`.

Owns the question and the refusal. Asked once, before anything is declared, so that a preview shows
the real id; the program goes on as if the stack had named it.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from infra.providers.nebius.adoption import children
from infra.providers.nebius.api import Api, ApiError, explain
from infra.providers.nebius.resource_type import ResourceType
from infra.providers.nebius.schema import Schema
from infra.providers.nebius.sdk import EndpointError, cache_dir
from stacks.spec import StackSpec

_SUBNET = "nebius:vpc/v1:Subnet"


class DiscoveryError(Exception):
    """The project does not answer which subnet is meant; one line, with what to do."""


def discovered(spec: StackSpec) -> StackSpec:
    """The stack with the network and the subnet that its project has, where it asks for them."""
    if not spec.nebius.discover_network:
        return spec
    path, project = f"{spec.name}.nebius.discover_network", spec.nebius.project_id
    # The program runs in an event loop, in which the SDK refuses to wait.
    with ThreadPoolExecutor(1) as aside:
        found = aside.submit(_subnets, path, project).result()
    if not found:
        raise DiscoveryError(
            f"{path}: no subnet in {project}; set it to false, and a network is made"
        )
    if len(found) > 1:
        choice = ", ".join(f"{each.metadata.id} ({each.metadata.name})" for each in found)
        raise DiscoveryError(
            f"{path}: {len(found)} subnets in {project}; set it to false and choose one as "
            f"nebius.subnet_id: {choice}"
        )
    (subnet,) = found
    nebius = replace(
        spec.nebius, network_id=subnet.spec.network_id or None, subnet_id=subnet.metadata.id
    )
    return replace(spec, nebius=nebius)


def _subnets(path: str, project: str) -> list[Any]:
    api = Api(Schema(cache_dir()), threading.Event())
    try:
        # Those of a stack on their way out are no choice.
        found = children(api, ResourceType.of_token(api.schema, _SUBNET), project)
        return sorted(found, key=lambda each: each.metadata.id)
    except EndpointError as error:
        raise DiscoveryError(f"{path}: {error}") from error
    except ApiError as error:
        raise DiscoveryError(
            f"{path}: {explain(error, f'list the subnets of {project}', target=api.target)}"
        ) from error
