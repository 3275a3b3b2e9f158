"""The Nebius API as protobuf descriptors, with the options that Nebius ships inside them.

Owns the descriptor pool, message classes, and what the options say about a field (immutable,
output-only, which resource an id names). The descriptors come from the installed SDK and are cached
once per SDK version, because reading them means importing all of it (4 s, 290 MiB).
Uses google.protobuf messages: the SDK's own codec is 100 to 700 times slower, and its transport
takes either. Does not talk to anything.
"""

from __future__ import annotations

import difflib
import re
import sys
import types
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache, cached_property
from graphlib import TopologicalSorter
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor import ServiceDescriptor as Service
from google.protobuf.message import Message

from infra.files import write
from infra.providers.engine.provider import UNKNOWN, Secret
from infra.state import Cache

METADATA: Final = "nebius.common.v1.ResourceMetadata"
OPERATION: Final = "nebius.common.v1.Operation"
OPERATIONS: Final = (OPERATION, "nebius.common.v1alpha1.Operation")
_OPTIONS: Final = ("field_behavior", "nid", "subfield_settings", "resource_behavior", "sensitive")
# Resources whose id prefix no option names; iam v1 and v2 are two views of one resource.
_KINDS: Final = {
    "nebius.iam.v1.Container": "project",
    "nebius.iam.v2.Project": "project",
    "nebius.iam.v2.Tenant": "tenant",
}


def descriptor_set(cache_dir: Path) -> descriptor_pb2.FileDescriptorSet:
    """Every file descriptor of the installed SDK, in dependency order."""
    cached = cache_dir / f"nebius-{version('nebius')}.fds"
    files = descriptor_pb2.FileDescriptorSet()
    if cached.exists():
        files.ParseFromString(cached.read_bytes())
        return files
    from nebius.api._registry import REGISTRY

    for file in REGISTRY.reflection.files_by_name.values():
        files.file.add().ParseFromString(file.serialized_pb)
    write(cached, files.SerializeToString())
    return files


def _install_rules(files: descriptor_pb2.FileDescriptorSet) -> None:
    """Makes buf.validate.validate_pb2, which protovalidate 1 imports and PyPI does not carry.

    Before any option is read: protobuf keeps options as they were read first, then without rules.
    """
    if "buf.validate.validate_pb2" in sys.modules:
        return
    from google.protobuf import (  # noqa: F401  # validate.proto imports them: default pool
        any_pb2,
        duration_pb2,
        field_mask_pb2,
        timestamp_pb2,
    )
    from google.protobuf.internal import builder

    name = "buf/validate/validate.proto"
    file = next(file for file in files.file if file.name == name)
    pool: Any = descriptor_pool.Default()
    described = pool.AddSerializedFile(file.SerializeToString())
    modules = {name: types.ModuleType(name) for name in ("buf", "buf.validate")}
    rules = types.ModuleType("buf.validate.validate_pb2")
    builder.BuildMessageAndEnumDescriptors(described, rules.__dict__)
    builder.BuildTopDescriptorsAndMessages(described, rules.__name__, rules.__dict__)
    modules["buf"].validate = modules["buf.validate"]  # type: ignore[attr-defined]
    modules["buf.validate"].validate_pb2 = rules  # type: ignore[attr-defined]
    sys.modules.update(modules | {rules.__name__: rules})


def is_resource(message: Descriptor) -> bool:
    """Whether the message is a resource: it has resource metadata and is no request or response."""
    metadata = message.fields_by_name.get("metadata")
    if metadata is None or metadata.message_type is None:
        return False
    named_as_call = message.name.endswith(("Request", "Response"))
    return metadata.message_type.full_name == METADATA and not named_as_call


def is_map(field: FieldDescriptor) -> bool:
    """Whether the field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def is_google(message: Descriptor) -> bool:
    """Whether the message is one of Google's own (Timestamp, Any): a value, not a tree."""
    return message.full_name.startswith("google.")


def message_of(field: FieldDescriptor) -> Descriptor:
    """The message type of a field that has one."""
    assert field.message_type is not None, field.full_name
    return field.message_type


def enum_word(message: Any, field: str) -> str:
    """Name of an enum field's value; empty without the field, and for a value of a newer API."""
    own = message.DESCRIPTOR.fields_by_name.get(field)
    known = own.enum_type.values_by_number if own is not None and own.enum_type else {}
    number = getattr(message, field) if known else None
    return known[number].name if number in known else ""


class Schema:
    """Descriptors, message classes and field options of the whole API."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        self.files = descriptor_set(cache_dir or Cache.from_environ().root)
        _install_rules(self.files)
        self.pool = descriptor_pool.DescriptorPool()
        names: list[str] = []
        known = {file.name: file for file in self.files.file}
        order = TopologicalSorter({name: file.dependency for name, file in known.items()})
        for file in map(known.__getitem__, order.static_order()):
            self.pool.Add(file)  # type: ignore[attr-defined]  # missing in types-protobuf
            names += [f"{file.package}.{service.name}" for service in file.service]
        self.services: dict[str, Service] = {
            name: self.pool.FindServiceByName(name) for name in names
        }
        extension = self.pool.FindExtensionByName
        self._extensions = {name: extension(f"nebius.{name}") for name in _OPTIONS}
        self._api_service_name = extension("nebius.api_service_name")

    @classmethod
    @cache
    def shared(cls) -> Schema:
        """The one of this process."""
        return cls()

    @cached_property
    def methods(self) -> dict[str, MethodDescriptor]:
        """Path of a call, `/package.Service/Method` -> its method."""
        return {
            f"/{name}/{method.name}": method
            for name, service in self.services.items()
            for method in service.methods
        }

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Every id prefix of a resource that some service manages."""
        found = (self.resource_of(service) for service in self.services.values())
        return frozenset(self.kind(resource) for resource in found if resource is not None)

    @cache  # noqa: B019  # one schema lives as long as its process
    def message(self, name: str) -> type[Message]:
        """The message class of a full name such as `nebius.compute.v1.Filesystem`."""
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))

    @cache  # noqa: B019
    def behaviors(self, field: FieldDescriptor) -> frozenset[str]:
        """Field behaviours: IMMUTABLE, OUTPUT_ONLY, INPUT_ONLY, MEANINGFUL_EMPTY_VALUE, ..."""
        extension = self._extensions["field_behavior"]
        return frozenset(
            _enum_names(extension, self._options(field, "Field").Extensions[extension])
        )

    @cache  # noqa: B019
    def is_sensitive(self, field: FieldDescriptor) -> bool:
        """Whether the value may hold a secret."""
        return bool(self._options(field, "Field").Extensions[self._extensions["sensitive"]])

    @cache  # noqa: B019
    def ids_named(self, field: FieldDescriptor) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Kinds of resource that an id in this field may name, and kinds allowed as its parent."""
        options = self._options(field, "Field")
        extension = self._extensions["nid"]
        if not options.HasExtension(extension):
            return (), ()
        value = options.Extensions[extension]
        return tuple(value.resource), tuple(value.parent_resource)

    @cache  # noqa: B019
    def is_unnamed(self, resource: Descriptor) -> bool:
        """Whether resources of this type need no unique name."""
        extension = self._extensions["resource_behavior"]
        values = self._options(resource, "Message").Extensions[extension]
        return "UNNAMED" in _enum_names(extension, values)

    @cache  # noqa: B019
    def api_service_name(self, service: Service) -> str:
        """First label of the host that serves it, such as `compute`; empty where not declared."""
        return str(self._options(service, "Service").Extensions[self._api_service_name])

    @cache  # noqa: B019
    def resource_of(self, service: Service) -> Descriptor | None:
        """The resource message that a service manages: what its Get or List returns."""
        for method in sorted(service.methods, key=lambda m: m.name not in _GETTERS):
            if is_resource(method.output_type):
                return method.output_type
        for method in service.methods:
            for each in method.output_type.fields if method.name.startswith("List") else ():
                listed = each.message_type if each.is_repeated else None
                if listed is not None and is_resource(listed):
                    return listed
        return None

    @cache  # noqa: B019
    def service_of(self, package: str, resource: str) -> Service | None:
        """The service that creates a resource, such as Network of nebius.vpc.v1."""
        for service in self._services_of(package):
            found = self.resource_of(service)
            is_it = found is not None and found.full_name == f"{package}.{resource}"
            if is_it and "Create" in service.methods_by_name:
                return service
        return None

    def _services_of(self, package: str) -> list[Service]:
        named = self.services.items()
        return [each for name, each in named if name.rpartition(".")[0] == package]

    @cache  # noqa: B019
    def resources_in(self, package: str) -> tuple[str, ...]:
        """Names of the resources of a package that can be created."""
        found = (self.resource_of(service) for service in self._services_of(package))
        names = [each.name for each in found if each is not None]
        return tuple(sorted(name for name in names if self.service_of(package, name) is not None))

    @cache  # noqa: B019
    def kind(self, resource: Descriptor) -> str:
        """The id prefix of a resource type, such as `computefilesystem`."""
        extension = self._extensions["subfield_settings"]
        metadata = resource.fields_by_name["metadata"]
        for setting in self._options(metadata, "Field").Extensions[extension]:
            if setting.field_path == "id" and setting.nid.resource:
                return setting.nid.resource[0]
        for service in self.services.values():
            if self.resource_of(service) is resource:
                for name in ("Delete", "Get"):
                    method = service.methods_by_name.get(name)
                    field = method and method.input_type.fields_by_name.get("id")
                    if field is not None and self.ids_named(field)[0]:
                        return self.ids_named(field)[0][0]
        return _KINDS.get(resource.full_name, resource.name.lower())

    @cache  # noqa: B019
    def _options(self, described: Any, kind: str) -> Any:
        """Options re-read with this pool's own extensions."""
        options = self.message(f"google.protobuf.{kind}Options")
        return options.FromString(described.GetOptions().SerializeToString())


_GETTERS: Final = frozenset({"Get", "GetById", "GetByName"})


def _enum_names(extension: FieldDescriptor, values: list[int]) -> list[str]:
    """Names of enum numbers; a number that this SDK does not know is left out."""
    assert extension.enum_type is not None, extension.full_name
    known = extension.enum_type.values_by_number
    return [known[number].name for number in values if number in known]


_DURATION: Final = "google.protobuf.Duration"
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_UNIT_S: Final = {"h": 3600, "m": 60, "s": 1}
_INTEGERS: Final = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    }
)
_FLOATS: Final = frozenset({FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE})


class Reading:
    """Reads mappings into messages, and notes what does not fit."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.problems: list[tuple[str, str]] = []
        """(path, reason) of each value that does not fit."""
        self.unknown: list[str] = []
        """Paths of values that are known only later."""

    def refuse(self, path: str, reason: str) -> None:
        """Notes a value that does not fit."""
        self.problems.append((path, reason))

    def fill(self, message: Any, values: Any, path: str) -> dict[str, Any]:
        """Sets the message's fields from a mapping; unknown values stay unset.

        Returns the mapping with every value in its one spelling.
        """
        fields = message.DESCRIPTOR.fields_by_name
        new: dict[str, Any] = {}
        spelled: dict[str, Any] = {}
        for key, value in self._pairs(values, path):
            at = f"{path}.{key}" if path else str(key)
            if key not in fields:
                self.refuse(at, unknown_key(key, fields))
            elif value is not None:
                oneof = fields[key].containing_oneof
                rivals = () if oneof is None else (each.name for each in oneof.fields)
                other = next((name for name in rivals if new.get(name) is not None), None)
                if other is not None and value is not UNKNOWN:
                    self.refuse(at, f"excludes {other}; declare one of the two")
                    continue
                new[key], spelled[key] = self._field(fields[key], value, at)
                if oneof is not None and value is UNKNOWN:
                    self.unknown.append(f"{path}.{oneof.name}")
        message.MergeFrom(type(message)(**new))
        return spelled

    def _pairs(self, values: Any, path: str) -> Iterable[tuple[Any, Any]]:
        if isinstance(values, Mapping):
            return values.items()
        self.refuse(path, f"{values!r} is no mapping")
        return ()

    def _field(self, own: FieldDescriptor, value: Any, at: str) -> tuple[Any, Any]:
        if value is UNKNOWN or not own.is_repeated:
            return self._value(own, value, at)
        if is_map(own):
            own = message_of(own).fields_by_name["value"]
            pairs = sorted(self._pairs(value, at))
            found = {key: self._value(own, item, f"{at}.{key}") for key, item in pairs}
            new = {key: each for key, (each, _) in found.items() if each is not None}
            return new, {str(key): each for key, (_, each) in found.items()}
        if not isinstance(value, list):
            self.refuse(at, f"{value!r} is no list")
            return None, None
        items = [self._value(own, item, f"{at}[{index}]") for index, item in enumerate(value)]
        return [each for each, _ in items if each is not None], [each for _, each in items]

    def _value(self, own: FieldDescriptor, value: Any, at: str) -> tuple[Any, Any]:
        """The value as its field holds it, None where that stays unset, and in its one spelling.

        A duration or a time is a text.
        """
        if value is UNKNOWN:
            self.unknown.append(at)
            return None, value
        if own.message_type is None:
            scalar = self.scalar(own, value, at)
            return scalar, None if scalar is None else _plain(self._schema, own, scalar)
        name = own.message_type.full_name
        message: Any = self._schema.message(name)()
        if name == _DURATION:
            seconds = _seconds(value)
            if seconds is None:
                self.refuse(at, f"{value!r} is no duration; write 90s, 15m or 1h30m")
            else:
                message.FromMilliseconds(round(seconds * 1000))
        elif name == _TIMESTAMP:
            try:
                message.FromDatetime(datetime.fromisoformat(value))
            except (TypeError, ValueError):
                self.refuse(at, f"{value!r} is no time; write 2026-01-31T12:00:00Z")
        else:
            spelled = self.fill(message, value, at)
            if not is_google(own.message_type):
                return message, spelled
        return message, _plain(self._schema, own, message)

    def scalar(self, own: FieldDescriptor, value: Any, at: str) -> Any:
        """The value as the field holds it, or None where it does not fit."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        kind = own.cpp_type
        if own.enum_type is not None:
            name = str(value).upper().replace("-", "_")
            if name in own.enum_type.values_by_name:
                return own.enum_type.values_by_name[name].number
            known = (each.name for each in own.enum_type.values if each.number)
            reason = f"not one of {', '.join(name.lower().replace('_', '-') for name in known)}"
        elif kind in _INTEGERS:
            if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
                return int(value)
            if is_number and isinstance(value, int):
                return value
            reason = "no whole number"
        elif kind in _FLOATS:
            if is_number:
                return float(value)
            reason = "no number"
        elif kind == FieldDescriptor.CPPTYPE_BOOL:
            if isinstance(value, bool):
                return value
            reason = "neither true nor false"
        elif isinstance(value, str):
            return value.encode() if own.type == FieldDescriptor.TYPE_BYTES else value
        else:
            reason = "no text"
        self.refuse(at, f"{value!r} is {reason}")
        return None


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Why a key is refused, with the nearest name or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1)
    return f"unknown; did you mean {near[0]}?" if near else f"unknown; has {', '.join(names)}"


def _seconds(value: Any) -> float | None:
    """Seconds of `1h30m`, `90s`, `5400` or None."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", value) if isinstance(value, str) else []
    if not parts or "".join(number + unit for number, unit in parts) != value:
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


def plain(schema: Schema, message: Any) -> dict[str, Any]:
    """Every set field as plain values; what may hold a secret comes as Secret."""
    found: dict[str, Any] = {}
    for own, value in message.ListFields():
        if is_map(own):
            item = message_of(own).fields_by_name["value"]
            value = {key: _plain(schema, item, value[key]) for key in sorted(value)}
        elif own.is_repeated:
            value = [_plain(schema, own, item) for item in value]
        else:
            value = _plain(schema, own, value)
        found[own.name] = Secret(value) if schema.is_sensitive(own) else value
    return found


def _plain(schema: Schema, own: FieldDescriptor, value: Any) -> Any:
    if own.enum_type is not None:
        known = own.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    if own.message_type is None:
        return value.decode(errors="replace") if isinstance(value, bytes) else value
    if own.message_type.full_name == _DURATION:
        return f"{value.ToMilliseconds() / 1000:g}s"
    if own.message_type.full_name in (_TIMESTAMP, "google.protobuf.FieldMask"):
        return value.ToJsonString()
    return plain(schema, value)
