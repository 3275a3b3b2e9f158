"""What a resource plugin of ours implements: Provider, over plain values, and its errors.

A plugin subclasses Provider and calls serve.serve(). Custom resources only: no components,
functions, or parameterized packages.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

from google.protobuf import struct_pb2

from stacks.errors import UserError

if TYPE_CHECKING:
    from pulumi.runtime.proto import engine_pb2_grpc


class EngineLog:
    """The engine's log; without an address (a test) lines are dropped."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._stub: engine_pb2_grpc.EngineStub | None = None

    def info(self, urn: str, line: str, *, passing: bool = False) -> None:
        """Shows one line at a resource; a passing one is progress and not kept."""
        self._log("INFO", urn, line, passing)

    def warning(self, urn: str, line: str) -> None:
        """Shows one line at a resource as a warning."""
        self._log("WARNING", urn, line, False)

    def _log(self, severity: str, urn: str, line: str, passing: bool) -> None:
        if not self._address:
            return
        # A quarter of the time of `soperator cost`, which reads prices and serves no plugin.
        import grpc
        from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

        with self._lock:
            if self._stub is None:
                self._stub = engine_pb2_grpc.EngineStub(grpc.insecure_channel(self._address))
        level = engine_pb2.LogSeverity.Value(severity)
        request = engine_pb2.LogRequest(severity=level, message=line, urn=urn, ephemeral=passing)
        # An engine that is shutting down takes no more lines; that must not fail the resource.
        with contextlib.suppress(grpc.RpcError):
            self._stub.Log(request, timeout=5)


Kind = Literal["add", "delete", "update"]
_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_FIRST_KEY = re.compile(r"""^(?:\["((?:[^"\\]|\\.)*)"\]|([^.\[]+))""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The difference between a resource and its declaration; no `detailed` means no change."""

    replaces: tuple[str, ...] = ()
    """Paths whose change needs a new resource; a path covers everything below it."""
    detailed: Mapping[str, Kind] = field(default_factory=dict)
    """Path -> kind of change."""
    stables: tuple[str, ...] = ()
    """Outputs that keep their value through an update, so that dependents stay known."""
    delete_before_replace: bool = False

    def replaced_by(self, path: str) -> bool:
        """Whether a change at `path` needs a new resource."""
        return any(path == p or path.startswith((f"{p}.", f"{p}[")) for p in self.replaces)


def compare(old: Any, new: Any, path: str = "") -> dict[str, Kind]:
    """Every path at which `new` differs from `old`; an unknown value counts as changed."""
    if isinstance(old, list) and isinstance(new, list):
        places = {i: f"{path}[{i}]" for i in range(max(len(old), len(new)))}
        old, new = dict(enumerate(old)), dict(enumerate(new))
    elif isinstance(old, dict) and isinstance(new, dict) and SIGNATURE not in new:
        places = {key: join(path, key) for key in sorted(old.keys() | new.keys())}
    else:
        is_same = new is not UNKNOWN and type(old) is type(new) and old == new
        return {} if is_same else {path: "update"}
    found: dict[str, Kind] = {}
    for key, at in places.items():
        if key in new and key in old:
            found |= compare(old[key], new[key], at)
        else:
            found[at] = "add" if key in new else "delete"
    return found


def join(path: str, key: str) -> str:
    """`path` extended by one mapping key: `a.b`, or `a["b.c"]` where the key is no plain name."""
    if _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{path}["{escaped}"]'


def first_keys(paths: Iterable[str]) -> list[str]:
    """The distinct top-level keys of the paths, in order."""
    keys: dict[str, None] = {}
    for path in paths:
        if match := _FIRST_KEY.match(path):
            quoted, plain = match.groups()
            keys[plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)] = None
    return list(keys)


# Source: pulumi/pulumi sdk/go/common/resource/sig/sig.go and plugin/rpc.go, v3.190.0.
SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
SECRET: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105  # marks one on the wire
ASSET: Final = "c44067f5952c0a294b673a41bacd8c17"
ARCHIVE: Final = "0def7320c3a5731c473e5ecbe6d01bc7"
"""Mappings with these signatures are files and trees of files: a path or what else has the content,
and its hash."""
_UNKNOWN: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
# The engine has one unknown per kind of value; all mean the same to a plugin.
_UNKNOWNS: Final = frozenset(
    {
        _UNKNOWN,
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
        "030794c1-ac77-496b-92df-f27374a8bd58",
        "e48ece36-62e2-4504-bad9-02848725956a",
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
    }
)


class Unknown:
    """A value that the engine learns only during the update."""

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        raise TypeError("an unknown value is neither true nor false; compare with `is UNKNOWN`")


UNKNOWN: Final = Unknown()


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that the engine encrypts in the state and hides in its output."""

    value: Any

    def __repr__(self) -> str:
        return "Secret(...)"


def unmarshal(struct: struct_pb2.Struct) -> dict[str, Any]:
    """The plain mapping of a wire struct; secrets stay wrapped, see `reveal`."""
    return {key: _from_wire(value) for key, value in struct.items()}


def marshal(values: Mapping[str, Any]) -> struct_pb2.Struct:
    """The wire struct of a plain mapping."""
    struct = struct_pb2.Struct()
    struct.update({key: _to_wire(value, key) for key, value in values.items()})
    return struct


def reveal(value: Any) -> Any:
    """The same value without any Secret wrapper."""
    if isinstance(value, Secret):
        return reveal(value.value)
    if isinstance(value, dict):
        return {key: reveal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [reveal(item) for item in value]
    return value


def conceal(value: Any, like: Any) -> Any:
    """`value`, wrapped in Secret wherever `like` has a Secret at the same path."""
    if isinstance(value, Secret):
        return value
    if isinstance(like, Secret):
        return Secret(value)
    if isinstance(value, dict) and isinstance(like, dict):
        return {
            key: conceal(item, like[key]) if key in like else item for key, item in value.items()
        }
    if isinstance(value, list) and isinstance(like, list):
        tail = value[len(like) :]
        return [conceal(item, old) for item, old in zip(value, like, strict=False)] + tail
    return value


def contains_unknown(value: Any) -> bool:
    """Whether any part of the value is UNKNOWN."""
    if value is UNKNOWN:
        return True
    if isinstance(value, Secret):
        return contains_unknown(value.value)
    if isinstance(value, dict):
        return any(contains_unknown(item) for item in value.values())
    return isinstance(value, list) and any(contains_unknown(item) for item in value)


def _from_wire(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value in _UNKNOWNS:
        return UNKNOWN
    if isinstance(value, struct_pb2.ListValue):
        return [_from_wire(item) for item in value.items()]
    if not isinstance(value, struct_pb2.Struct):
        return value
    values = unmarshal(value)
    signature = values.get(SIGNATURE)
    if signature == SECRET:
        return Secret(values.get("value"))
    if signature in (None, ASSET, ARCHIVE):
        return values
    raise ValueError(f"property value with an unknown signature {signature!r}")


def _to_wire(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if value is UNKNOWN:
        return _UNKNOWN
    if isinstance(value, list | tuple):
        return [_to_wire(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): _to_wire(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, Secret):
        return _to_wire({SIGNATURE: SECRET, "value": value.value}, path)
    raise TypeError(f"{path}: {type(value).__name__} is no property value")


Values = dict[str, Any]
Failure = tuple[str, str]
"""Path of the value and the reason why it is refused."""
Found = tuple[str, Values, Values]
"""Id, state and inputs of a resource as it is in the world."""


class ProviderError(UserError):
    """A refusal of the plugin's own: path, what came, what is allowed, what to do.

    The user reads any UserError, also one of a client of a Provider, as one line.
    """


class PartialError(ProviderError):
    """The resource exists but did not become what was asked: the engine keeps `id` and `state`."""

    def __init__(self, message: str, *, id: str, state: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.id = id
        self.state = state


@dataclass(frozen=True, slots=True)
class Rule:
    """What an input must be, and the refusal of another value; `{}` in it is that value."""

    holds: Callable[[Any], bool]
    refusal: str
    optional: bool = False


TEXT: Final = Rule(
    lambda value: isinstance(value, str) and value != "",
    "is required, as a text that is not empty",
)
LIST: Final = Rule(lambda value: isinstance(value, list), "is required, as a list")
FULL_LIST: Final = Rule(
    lambda value: isinstance(value, list) and value != [],
    "is required, as a list that is not empty",
)
COUNT: Final = Rule(
    lambda value: isinstance(value, int) and value >= 1, "{} is no whole number of 1 or more"
)


Rules: TypeAlias = "Mapping[str, Rule | Rules]"
"""Input -> what it must be, or what is in it."""


def broken(inputs: Values, rules: Rules, path: str = "") -> list[Failure]:
    """Problems of inputs that must keep these rules, and have no others; unknown ones may be.

    Without rules a mapping may have anything.
    """
    failures = [
        (join(path, key), f"unknown; has {', '.join(rules)}")
        for key in sorted(inputs.keys() - rules.keys() if rules else ())
    ]
    for key, rule in rules.items():
        value, at = inputs.get(key), join(path, key)
        if isinstance(rule, Rule):
            may_be = value is UNKNOWN or (rule.optional and key not in inputs)
            if not may_be and not rule.holds(value):
                failures.append((at, rule.refusal.format(repr(value))))
        elif isinstance(value, dict):
            failures += broken(value, rule, at)
        elif value is not UNKNOWN:
            failures.append((at, "is required, as a mapping"))
    return failures


class Provider:
    """Behaviour of one kind of resource, or of a plugin; at least create is its own.

    What most kinds share is declared: what their inputs must be, and which make another resource.
    """

    rules: ClassVar[Rules | None] = None
    """Input -> what it must be; None takes any."""
    identity: ClassVar[tuple[str, ...]] = ()
    """Inputs of which a change needs another resource."""
    in_place: ClassVar[bool] = False
    """Whether an update is nothing but the new inputs in the state."""
    outputs: ClassVar[Mapping[str, Any]] = {}
    """What is known of each output before the resource is made or changed: UNKNOWN, or a Secret."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        """Set when the user interrupts; long waits must end soon after."""
        self.engine = EngineLog("")
        """Where lines for the user go while a call runs."""

    def of(self, type_: str) -> Provider:
        """Who serves the type: itself, but for a plugin of several."""
        return self

    def configure(self, variables: Values) -> None:
        """Takes the provider's configuration, before any resource call."""

    def check(self, old: Values, new: Values) -> tuple[Values, Iterable[Failure]]:
        """The inputs as they go to the state, with every problem found."""
        return new, () if self.rules is None else broken(new, self.rules)

    def diff(self, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """What an update would change; compares inputs by default."""
        changes = compare(old_inputs, new)
        replaces = tuple(path for path in changes if first_keys([path])[0] in self.identity)
        return Diff(detailed=changes, replaces=replaces)

    def preview(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        """The state as far as it is known before an update, or, without an id, before a create."""
        return {**new, **self.outputs}

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        """The new resource's id and state."""
        raise NotImplementedError

    def update(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        """The state after the change."""
        if self.in_place:
            return dict(new)
        raise ProviderError("cannot be updated in place; replace it")

    def read(self, id: str, state: Values, inputs: Values) -> Found | None:
        """What is in the world, or None where it is gone."""
        return id, state, inputs

    def delete(self, id: str, state: Values) -> None:
        """Removes the resource; one that is already gone is no error.

        What is in the state alone, and what others end, is forgotten.
        """


class Dispatch(Provider):
    """A plugin of several kinds, by type; all share the engine's log and interruption."""

    def __init__(self, by_type: dict[str, Provider]) -> None:
        super().__init__()
        self._by_type = by_type

    def of(self, type_: str) -> Provider:
        """The provider of the type."""
        found = self._by_type.get(type_)
        if found is None:
            raise ProviderError(f"{type_}: this plugin has only {', '.join(self._by_type)}")
        found.cancelled, found.engine = self.cancelled, self.engine
        return found
