"""One resource type of the API, found by its token: service, requests, checks, differences."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from google.protobuf.message import Message

from infra.providers.engine.provider import UNKNOWN, Diff, Failure, ProviderError, Secret, compare
from infra.providers.nebius.schema import (
    Reading,
    Schema,
    enum_word,
    is_map,
    message_of,
    unknown_key,
)

_validating = threading.Lock()


@cache
def validator() -> Any:
    """The one of this process; the import behind it takes half a second."""
    import protovalidate

    return protovalidate.Validator()


def violations(message: Message) -> list[tuple[str, str]]:
    """Every rule that the message breaks: path of the value, with indexes as `items.0.name`, and
    what the rule says."""
    with _validating:
        found = validator().collect_violations(message)
    return [(_path(one.proto.field), one.proto.message) for one in found]


def _path(field: Any) -> str:
    """`spec.template.taints.0.key` of a violation's field path."""
    steps = []
    for element in field.elements:
        steps.append(element.field_name)
        if element.HasField("index"):
            steps.append(str(element.index))
        elif element.HasField("string_key"):
            steps.append(element.string_key)
    return ".".join(steps)


Values = dict[str, Any]
_METADATA: Final = ("parent_id", "name", "labels")
"""Metadata that a user declares; the rest is the server's."""
GIB: Final = 1 << 30
"""Bytes."""
SIZES: Final = {
    "size_bytes": 1,
    "size_kibibytes": 1 << 10,
    "size_mebibytes": 1 << 20,
    "size_gibibytes": GIB,
}
"""Fields that say one size in different units: bytes of one."""


def size_bytes(spec: Any) -> int:
    """Size of a disk or filesystem in bytes, whichever unit its message uses."""
    unit = spec.WhichOneof("size")
    return getattr(spec, unit) * SIZES[unit] if unit else 0


def enum_name(message: Any, field: str) -> str:
    """`network-ssd` for the value of an enum field."""
    return enum_word(message, field).lower().replace("_", "-")


@dataclass(frozen=True)
class ResourceType:
    """Everything that a generic provider needs to know about a type."""

    schema: Schema
    token: str
    resource: Descriptor
    service: ServiceDescriptor

    @classmethod
    def of_token(cls, schema: Schema, token: str) -> ResourceType:
        """The type of `nebius:compute/v1:Filesystem`."""
        _, package, name = token.split(":")
        full = f"nebius.{package.replace('/', '.')}"
        service = schema.service_of(full, name)
        resource = None if service is None else schema.resource_of(service)
        if service is None or resource is None:
            known = schema.resources_in(full)
            if not known:
                raise ProviderError(f"{token}: the API has no package {full}")
            raise ProviderError(f"{token}: {unknown_key(name, known)}")
        return cls(schema, token, resource, service)

    @property
    def name(self) -> str:
        """Short name for messages, such as `Filesystem`."""
        return self.resource.name

    def check(self, inputs: Values) -> tuple[Values, list[Failure]]:
        """Inputs in canonical spelling and everything that the API would refuse in them."""
        reading = Reading(self.schema)
        metadata = inputs.get("metadata")
        spec = {} if inputs.get("spec") is None else inputs["spec"]
        for key in inputs.keys() - {"metadata", "spec"}:
            reading.refuse(key, unknown_key(key, ("metadata", "spec")))
        if metadata is UNKNOWN or spec is UNKNOWN:
            return inputs, reading.problems
        if not isinstance(metadata, dict):
            reading.refuse("metadata", "declare parent_id and name")
            return inputs, reading.problems
        for key in metadata.keys() - set(_METADATA):
            reading.refuse(f"metadata.{key}", unknown_key(key, _METADATA))
        if metadata.get("parent_id") is None:
            reading.refuse("metadata.parent_id", "declare it: the SDK's own default can be wrong")
        request = self._message("Create")
        declared = {key: value for key, value in metadata.items() if key in _METADATA}
        clean = reading.fill(request, {"metadata": declared, "spec": spec}, "")
        if reading.problems:
            return inputs, reading.problems
        reading.problems += self._broken_rules(request, reading.unknown)
        return clean, reading.problems

    def _broken_rules(self, request: Any, unknown: list[str]) -> list[Failure]:
        """Nebius's own validation rules, but for those that a value known later may satisfy."""
        later = [path.replace("[", ".").replace("]", "") for path in unknown]
        return [
            (path, reason)
            for path, reason in violations(request)
            if not any(one == path or one.startswith(f"{path}.") for one in later)
        ]

    def _message(self, method: str) -> Any:
        name = self.service.methods_by_name[method].input_type.full_name
        return self.schema.message(name)()

    def update_request(self, id_: str, inputs: Values) -> Any:
        """The Update request of checked inputs, all known."""
        if "Update" not in self.service.methods_by_name:
            raise ProviderError(f"{self.token}: the API cannot update it; replace it")
        request = self.request("Update", inputs)
        request.metadata.id = id_
        return request

    def request(self, method: str, inputs: Values) -> Any:
        """The request of checked inputs, all known."""
        request, reading = self._message(method), Reading(self.schema)
        reading.fill(request, {"metadata": inputs["metadata"], "spec": inputs.get("spec", {})}, "")
        if reading.problems or reading.unknown:
            path, reason = (reading.problems or [(reading.unknown[0], "is not known yet")])[0]
            raise ProviderError(f"{path}: {reason}")
        return request

    def reset_mask(self, request: Any) -> str:
        """The mask that resets whatever the request leaves out, made by the SDK's own rules."""
        from nebius.base.protos.dynamic import REGISTRY

        own = REGISTRY.message_class(request.DESCRIPTOR.full_name)
        message: Any = own.FromString(request.SerializeToString())
        return message.get_full_update_reset_mask().marshal()

    def inputs_of(self, values: Values, declared: Values) -> Values:
        """The declaration that fits what the API has.

        Only what was declared is compared, because servers fill in defaults; an import, which
        declared nothing, takes everything.
        """
        metadata = {k: v for k, v in values.get("metadata", {}).items() if k in _METADATA and v}
        spec = values.get("spec", {})
        if not declared:
            return {"metadata": metadata, "spec": spec}
        known = declared.get("metadata", {})
        kept = {key: metadata[key] for key in _METADATA if key in metadata and key in known}
        if "labels" in known or metadata.get("labels"):
            kept["labels"] = metadata.get("labels", {})
        wanted = declared.get("spec", {})
        # What the server takes and never tells is what was declared.
        own = message_of(self.resource.fields_by_name["spec"]).fields
        never = (each.name for each in own if "INPUT_ONLY" in self.schema.behaviors(each))
        untold = {key: wanted[key] for key in never if key in wanted}
        return {**declared, "metadata": kept, "spec": {**_narrow(spec, wanted), **untold}}


def _narrow(found: Any, declared: Any) -> Any:
    """`found`, without keys of messages that were not declared."""
    if isinstance(found, Secret):
        return _narrow(found.value, declared)
    if isinstance(found, dict) and isinstance(declared, dict):
        kept = {}
        for key, value in declared.items():
            if key in found:
                kept[key] = _narrow(found[key], value)
            elif value in (0, "", [], {}) or _has_size(found, key, value):
                kept[key] = value  # a proto3 server says nothing for a value that is zero
        return kept
    if isinstance(found, list) and isinstance(declared, list):
        head = [_narrow(one, old) for one, old in zip(found, declared, strict=False)]
        return head + found[len(declared) :]
    return found


def _has_size(found: dict[str, Any], key: str, value: Any) -> bool:
    """Whether the server keeps a declared size in another unit."""
    units = SIZES.keys() & found if key in SIZES else ()
    return any(value * SIZES[key] == found[unit] * SIZES[unit] for unit in units)


_STEP: Final = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|([^.\[]+)')
_STABLE: Final = ("id",)
# No rule in the descriptors says so, but what lies beyond the new end would be lost.
_NEVER_SHRINK: Final = ("computedisk", "computefilesystem")


def find_changes(kind: ResourceType, old: dict[str, Any], new: dict[str, Any]) -> Diff:
    """The difference between two declarations in canonical spelling."""
    changes = compare(old, new)
    replaces = []
    for path in changes:
        # When a parent is replaced, the engine asks with all metadata of its children unknown.
        if path in ("metadata", "metadata.parent_id"):
            replaces.append(path)
        elif (immutable := _immutable(kind.schema, kind.resource, path)) is not None:
            replaces.append(immutable)
    return Diff(
        replaces=tuple(dict.fromkeys(replaces)),
        detailed=changes,
        stables=_STABLE,
        delete_before_replace=True,
    )


def _immutable(schema: Schema, resource: Descriptor, path: str) -> str | None:
    """The shortest part of the path that names an immutable field, or None."""
    type_: Descriptor | None = resource
    for step in _STEP.finditer(path):
        name = step.group(3)
        if name is None or type_ is None:
            continue
        field = type_.fields_by_name.get(name)
        if field is None:
            return None
        if "IMMUTABLE" in schema.behaviors(field):
            return path[: step.end()]
        # The keys of a map are not fields; its values are not immutable one by one.
        type_ = None if is_map(field) else field.message_type
    return None


def shrunk(kind: ResourceType, old: dict[str, Any], new: dict[str, Any]) -> list[Failure]:
    """Sizes that a disk or filesystem cannot be reduced to; a replacement may have any size."""
    if kind.schema.kind(kind.resource) not in _NEVER_SHRINK:
        return []
    before, after = _size(old), _size(new)
    if before is None or after is None or after[1] >= before[1]:
        return []
    if find_changes(kind, old, new).replaces:
        return []
    sizes = f"{after[1] / GIB:g} GiB, but it has {before[1] / GIB:g} GiB"
    advice = f"declare {before[1] / GIB:g} GiB or more, or copy the data to a new one"
    return [(f"spec.{after[0]}", f"{sizes} and cannot shrink; {advice}")]


def _size(inputs: dict[str, Any]) -> tuple[str, int] | None:
    """The declared size: its field and bytes."""
    spec = inputs.get("spec")
    for name, unit_bytes in SIZES.items():
        value = spec.get(name) if isinstance(spec, dict) else None
        if isinstance(value, int):
            return name, value * unit_bytes
    return None
