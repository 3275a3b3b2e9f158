"""Nebius's own validation rules (buf.validate options in the descriptors), checked here.

Owns the validator. Does not know rules that are not in the descriptors.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.message import Message

from infra.nebius.schema import Schema

Violation = tuple[str, str]
"""Path of the value, with indexes as `items.0.name`, and what the rule says."""


class Validator:
    """Checks messages of one schema; the import behind it takes half a second."""

    def __init__(self, schema: Schema) -> None:
        _install_rules(schema)
        import protovalidate

        self._validator: Any = protovalidate.Validator()

    def violations(self, message: Message) -> list[Violation]:
        """Every rule that the message breaks."""
        found = self._validator.collect_violations(message)
        return [(_path(one.proto.field), one.proto.message) for one in found]


def _install_rules(schema: Schema) -> None:
    """Makes buf.validate.validate_pb2, which protovalidate 1 imports and PyPI does not carry."""
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
    file = next(file for file in schema.files.file if file.name == name)
    pool: Any = descriptor_pool.Default()
    described = pool.AddSerializedFile(file.SerializeToString())
    modules = {name: types.ModuleType(name) for name in ("buf", "buf.validate")}
    rules = types.ModuleType("buf.validate.validate_pb2")
    builder.BuildMessageAndEnumDescriptors(described, rules.__dict__)
    builder.BuildTopDescriptorsAndMessages(described, rules.__name__, rules.__dict__)
    modules["buf"].validate = modules["buf.validate"]  # type: ignore[attr-defined]
    modules["buf.validate"].validate_pb2 = rules  # type: ignore[attr-defined]
    sys.modules.update(modules | {rules.__name__: rules})


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
