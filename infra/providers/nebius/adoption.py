"""Whose a resource is by its labels, and what a create or `cluster adopt` takes over, or why not.

A stack is named by its labels, and the state that has it by a random id in one more label, so that
a second backend with a stack of the same name takes nothing over. The conditions: docs/adr/0009.
Changes nothing but labels: the provider updates what it adopts.

Finds a project's only subnet too, for stacks that say `nebius.discover_network: true`: asked once,
before anything is declared, so that a preview shows the real id.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

from infra.providers.engine.provider import ProviderError
from infra.providers.nebius.api import LISTS, Api, ApiError
from infra.providers.nebius.resource_type import ResourceType, find_changes, shrunk
from infra.providers.nebius.schema import plain
from infra.providers.nebius.sdk import EndpointError
from stacks.spec import StackSpec

Values = dict[str, Any]
MANAGER: Final = "soperator-stack"
_RESOURCE: Final = "resource"
_LABELS: Final = ("managed-by", "stack", "project", _RESOURCE)
STATE_ID: Final = "state-id"
"""Label that the program declares: who has the resource in its state, as a resource StateId."""
_TAKEN: Final = "not-"
"""Before the id of a state that lost the resource: until the next `up`, every other may take it."""


def stack_labels(stack: str, project: str) -> dict[str, str]:
    """The labels that every resource of one stack carries."""
    return dict(zip(_LABELS, (MANAGER, stack, project), strict=False))


def labels(urn: str) -> dict[str, str]:
    """Ownership labels of a URN such as `urn:pulumi:<stack>::<project>::<type>::<name>`."""
    stack, project, place = urn.removeprefix("urn:pulumi:").split("::", 2)
    # One name can stand for two resources while the program is reordered: the old one is deleted
    # after the new one was made, so the new one must never take it over.
    return {
        **stack_labels(stack, project),
        _RESOURCE: hashlib.sha256(place.encode()).hexdigest()[:16],
    }


def is_ours(found: Mapping[str, str]) -> bool:
    """Whether labels name this program."""
    return found.get("managed-by") == MANAGER


def is_of(found: Mapping[str, str], stack: str, project: str) -> bool:
    """Whether labels name this stack of this Pulumi project."""
    return stack_labels(stack, project).items() <= found.items()


def foreign(found: Mapping[str, str], urn: str) -> str | None:
    """Why a resource with these labels is not the one of the URN; None where it is.

    Labels of the stack alone are what `cluster adopt` leaves: whoever has the name may take it.
    """
    own = labels(urn)
    if not is_ours(found):
        return "which no stack of this program made"
    if not is_of(found, own["stack"], own["project"]):
        stack, project = found.get("stack"), found.get("project")
        return f"which belongs to stack {stack!r} of Pulumi project {project!r}"
    if found.get(_RESOURCE, own[_RESOURCE]) != own[_RESOURCE]:
        return "which is another resource of this stack"
    return None


def adopt_state(state_id: str, stack: str) -> str:
    """The command that takes all of a state over; the id is a label, which others may have set."""
    return f"`soperator cluster adopt state {shlex.quote(state_id)} --stack {stack}`"


def is_others(state_id: str | None, own: Collection[str | None]) -> bool:
    """Whether a resource with this label is for another state than these."""
    if state_id is None or not state_id.startswith(_TAKEN):
        return state_id not in (None, *own)
    return any(is_taken(state_id, each) for each in own)


def is_taken(state_id: str, own: str | None) -> bool:
    """Whether the label says that `own` lost the resource to whoever deploys next."""
    return state_id == f"{_TAKEN}{own}"


def other_state(found: Mapping[str, str], declared: Mapping[str, str]) -> str | None:
    """Says of what is there that another state has it than the declared labels name, or None."""
    state_id, own = found.get(STATE_ID), declared.get(STATE_ID)
    if state_id is None or not is_others(state_id, (own,)):
        return None
    has = f"state {state_id} of this stack has, in another backend, unless it is lost"
    if is_taken(state_id, own):
        has = "was taken from this state"
    return f"which {has}; to take all of it over: {adopt_state(state_id, found.get('stack', ''))}"


def add(inputs: Values, urn: str) -> Values:
    """The inputs with ownership labels; a label that the user declares wins."""
    metadata = inputs["metadata"]
    declared = metadata.get("labels") or {}
    return {**inputs, "metadata": {**metadata, "labels": {**labels(urn), **declared}}}


def remove(values: Values) -> Values:
    """The values without ownership labels."""
    metadata = dict(values.get("metadata", {}))
    found = metadata.get("labels", {})
    if is_ours(found):
        metadata["labels"] = {key: value for key, value in found.items() if key not in _LABELS}
    return {**values, "metadata": metadata}


def children(api: Api, kind: ResourceType, parent_id: str) -> Iterator[Any]:
    """Every live resource of the kind under the parent; none where the API has no list of them."""
    listing = next((name for name in LISTS if name in kind.service.methods_by_name), None)
    if listing is not None:
        found = api.pages(kind.service, listing, parent_id=parent_id)
        yield from (each for each in found if not _leaves(kind, each))


def _leaves(kind: ResourceType, found: Any) -> bool:
    """Whether it is being deleted, as the state of every resource says, by whatever service."""
    state = plain(kind.schema, found).get("status", {}).get("state")
    return isinstance(state, str) and "DELET" in state.upper()


def find_namesake(api: Api, kind: ResourceType, inputs: Values) -> Any | None:
    """The live resource of the same name under the same parent, or None."""
    metadata = inputs["metadata"]
    has_name = metadata.get("name") and not kind.schema.is_unnamed(kind.resource)
    if not has_name or "GetByName" not in kind.service.methods_by_name:
        return None
    found = api.find(
        kind.service, "GetByName", parent_id=metadata["parent_id"], name=metadata["name"]
    )
    return None if found is None or _leaves(kind, found) else found


def declared_as(kind: ResourceType, found: Values, inputs: Values) -> Values:
    """The declaration that fits what is there, in the terms of the new declaration."""
    return kind.inputs_of(remove(found), inputs)


def obstacle(kind: ResourceType, found: Values, inputs: Values, urn: str) -> str | None:
    """Why the declaration cannot take over what is there; None where it can."""
    metadata = found["metadata"]
    taken = f"this name is taken by {metadata['id']}"
    stack = labels(urn)["stack"]
    stranger = foreign(metadata.get("labels", {}), urn)
    if stranger is not None:
        return (
            f"{taken}, {stranger}; rename this one, delete the other, or, where it is yours, "
            f"`soperator cluster adopt --stack {stack}` it"
        )
    other = other_state(metadata.get("labels", {}), inputs["metadata"].get("labels") or {})
    if other is not None:
        return f"{taken}, {other}"
    problem = mismatch(kind, found, inputs)
    if problem is None:
        return None
    return (
        f"{taken}, which an earlier run of this stack made and kept: {problem}; to start empty, "
        f"delete it with `soperator cluster orphans --stack {stack} --purge {metadata['id']}`"
    )


def mismatch(kind: ResourceType, found: Values, inputs: Values) -> str | None:
    """What is there and cannot be made as declared; None where nothing is."""
    now = declared_as(kind, found, inputs)
    replaces = find_changes(kind, now, inputs).replaces
    if replaces:
        fixed = "; ".join(f"{each} ({_at(now, each)} -> {_at(inputs, each)})" for each in replaces)
        return f"{fixed} cannot be changed in place; declare what is there"
    return "; ".join(f"{path}: {reason}" for path, reason in shrunk(kind, now, inputs)) or None


def _at(values: Any, path: str) -> Any:
    for step in path.split("."):
        values = values.get(step) if isinstance(values, dict) else None
    return values


def find_twin(api: Api, kind: ResourceType, inputs: Values, urn: str) -> Any | None:
    """What an earlier run of the same declaration made of a type that has no names; or None.

    By its labels, or, where nothing of it can change, by being what is declared.
    """
    if not kind.schema.is_unnamed(kind.resource):
        return None
    is_fixed = "Update" not in kind.service.methods_by_name
    declared = inputs["metadata"].get("labels") or {}
    for found in children(api, kind, inputs["metadata"]["parent_id"]):
        values = plain(kind.schema, found)
        there = values["metadata"].get("labels", {})
        if labels(urn).items() <= there.items() and not other_state(there, declared):
            return found
        if is_fixed and declared_as(kind, values, inputs)["spec"] == inputs["spec"]:
            return found
    return None


def told_once(kind: ResourceType) -> tuple[str, ...]:
    """Fields of the status that hold a secret, which a later read may not show again."""
    status = kind.resource.fields_by_name.get("status")
    if status is None or status.message_type is None:
        return ()
    return tuple(own.name for own in status.message_type.fields if kind.schema.is_sensitive(own))


class HandoverError(Exception):
    """The resource cannot become the stack's; one line with what to do."""


def get(api: Api, kind: ResourceType, id_: str, *, project_id: str) -> Values:
    """The resource as plain values, which must stand in the project."""
    prefix = api.schema.kind(kind.resource)
    if not id_.startswith(f"{prefix}-"):
        raise HandoverError(
            f"{id_}: is no id of a {kind.name}, which starts with '{prefix}-'; copy it from the "
            "console"
        )
    try:
        found = plain(api.schema, api.ask(kind.service, id=id_))
    except ApiError as error:
        if not error.is_unseen:
            raise
        raise HandoverError(
            f"{id_}: is no {kind.name} that this credential can see; copy the id from the console, "
            f"among those of {project_id}"
        ) from error
    parent_id = found["metadata"].get("parent_id")
    if parent_id != project_id:
        raise HandoverError(
            f"{id_}: stands in {parent_id}, but the stack is in {project_id}; only resources of "
            "the stack's own project can be taken over"
        )
    return found


def refuse_other_owner(found: Values, *, stack: str, project: str) -> None:
    """Raises where the labels name another stack."""
    metadata = found["metadata"]
    labels = metadata.get("labels", {})
    if is_ours(labels) and not is_of(labels, stack, project):
        raise HandoverError(
            f"{metadata['id']}: belongs to stack {labels.get('stack')!r} of Pulumi project "
            f"{labels.get('project')!r}, which would go on changing it; destroy that stack or take "
            "the resource out of it first, and remove the label `managed-by`"
        )


def hand_over(
    api: Api, kind: ResourceType, found: Values, declared: Values, *, stack: str, project: str
) -> bool:
    """Names and labels it as what the stack declares; False where it already is.

    `declared` has metadata, and spec as far as it is known before an `up`.
    """
    refuse_other_owner(found, stack=stack, project=project)
    metadata = found["metadata"]
    labels, name = metadata.get("labels", {}), declared["metadata"]["name"]
    if is_of(labels, stack, project):
        if metadata.get("name") == name:
            return False
        raise HandoverError(
            f"{metadata['id']}: is {metadata.get('name')!r} of this stack already, not {name!r}"
        )
    problem = mismatch(kind, found, declared)
    if problem is not None:
        raise HandoverError(f"{metadata['id']}: {problem}")
    other = find_namesake(api, kind, declared)
    if other is not None and other.metadata.id != metadata["id"]:
        raise HandoverError(
            f"{metadata['id']}: the name {name!r} is taken by {other.metadata.id}; delete or "
            "rename that one first"
        )
    # What another stack's had been is forgotten with the label that said so.
    users = {key: value for key, value in labels.items() if key not in (*_LABELS, STATE_ID)}
    _relabel(api, kind, metadata["id"], {**users, **stack_labels(stack, project)}, name)
    return True


def _relabel(api: Api, kind: ResourceType, id_: str, labels: Mapping[str, str], name: str) -> None:
    # As the API has it, secrets too, so that nothing else changes.
    found = api.ask(kind.service, id=id_)
    request = api.request(kind.service, "Update")
    request.spec.CopyFrom(found.spec)
    request.metadata.id, request.metadata.name = id_, name
    request.metadata.parent_id = found.metadata.parent_id
    request.metadata.labels.update(labels)
    operation = api.when_idle(kind.service, lambda: api.call(kind.service, "Update", request))
    api.wait(kind.service, operation)


NODE_GROUP: Final = "nebius:mk8s/v1:NodeGroup"
CLUSTER: Final = "nebius:mk8s/v1:Cluster"
BUCKET: Final = "nebius:storage/v1:Bucket"
TYPES: Final = (
    CLUSTER, "nebius:compute/v1:GpuCluster", "nebius:compute/v1:Filesystem",
    "nebius:compute/v1:Instance", "nebius:compute/v1:Disk", "nebius:vpc/v1:Allocation",
    "nebius:vpc/v1:Subnet", "nebius:vpc/v1:Network", "nebius:iam/v2:AccessKey",
    "nebius:iam/v1:Group", "nebius:iam/v1:ServiceAccount", BUCKET, "nebius:registry/v1:Registry"
)  # fmt: skip
"""Types that stand directly in a project, users before what they use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """One resource of the stack."""

    token: str
    id: str
    name: str
    values: Values
    """The whole resource, as plain values."""

    @property
    def type(self) -> str:
        """Short name, such as `Filesystem`."""
        return self.token.rpartition(":")[2]

    @property
    def state_id(self) -> str | None:
        """Whose state has it, or lost it; None where a destroy left it, or its `up` gave none."""
        return self.values["metadata"].get("labels", {}).get(STATE_ID)


def owned(api: Api, *, project_id: str, stack: str, project: str) -> Iterator[Owned]:
    """Every resource of the stack of a Pulumi project, in an order in which they can be deleted."""
    for token in TYPES:
        found = [*_labelled(api, token, project_id, stack, project)]
        if token == CLUSTER:
            for cluster in found:
                yield from _labelled(api, NODE_GROUP, cluster.id, stack, project)
        yield from found


def _labelled(api: Api, token: str, parent_id: str, stack: str, project: str) -> Iterator[Owned]:
    kind = ResourceType.of_token(api.schema, token)
    for item in children(api, kind, parent_id):
        metadata = item.metadata
        if is_of(metadata.labels, stack, project):
            values = plain(api.schema, item)
            yield Owned(token=token, id=metadata.id, name=metadata.name, values=values)


def release(
    api: Api, state_id: str, *, project_id: str, stack: str, project: str, ends: bool = True
) -> list[Owned]:
    """Takes the label of a state off all that it has, for the next `up` to take; returns them.

    A state that does not end is named as the one that lost them: it may destroy nothing of it.
    """
    there = owned(api, project_id=project_id, stack=stack, project=project)
    had = [each for each in there if each.state_id == state_id]
    for each in had:
        labels = dict(each.values["metadata"]["labels"])
        labels[STATE_ID] = f"{_TAKEN}{state_id}"
        if ends:
            del labels[STATE_ID]
        _relabel(api, ResourceType.of_token(api.schema, each.token), each.id, labels, each.name)
    return had


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
    api = Api()
    try:
        with api.explained(f"list the subnets of {project}"):
            # Those of a stack on their way out are no choice.
            found = children(api, ResourceType.of_token(api.schema, _SUBNET), project)
            return sorted(found, key=lambda each: each.metadata.id)
    except (EndpointError, ProviderError) as error:
        raise DiscoveryError(f"{path}: {error}") from error
