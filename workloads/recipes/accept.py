"""Section `accept` of a recipe: stages, sizes and repetitions; limits are in gates.yaml."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, TypeVar, get_args

from workloads.recipes.reader import NotNegative, Positive, Settings, least, over, require

T = TypeVar("T", bound=Any)
ON_PATH = "PATH"
"""In the place of a folder of programs: whatever PATH has; what is not there is left out."""

StageName = Literal[
    "readiness", "connectivity", "collectives", "compute", "storage", "training", "soak"
]
STAGES: tuple[StageName, ...] = get_args(StageName)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectivityConfig:
    """What passes between nodes beside messages of ranks."""

    perftest: str | None = None
    """Folder with ib_write_bw, or PATH; None: no port is measured by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesConfig(Settings):
    """The sweep of message sizes."""

    sizes_mb: tuple[int, ...] = (1, 10, 100, 1000, 8000)
    """Bytes of one rank's message over 10^6."""
    iterations: Positive[int] = 20
    warmup: NotNegative[int] = 5
    nccl_tests: str | None = None
    """Folder with all_reduce_perf and its kin, or PATH: those of the node's PATH, where they are;
    None: only torch's collectives are timed."""

    def _check(self) -> None:
        require(bool(self.sizes_mb) and min(self.sizes_mb) > 0, "sizes_mb: expected sizes > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeConfig(Settings):
    """What each GPU does alone."""

    matrix_size: Annotated[int, least(2)] = 8192
    """Two columns make the product's value known."""
    copy_mb: Positive[int] = 2000
    """Size of the copies in memory and from the host, in 10^6 bytes."""
    iterations: Positive[int] = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig(Settings):
    """What each node does on each place, all nodes at once."""

    places: tuple[str, ...] = ("data", "model", "chkpt", "results", "scratch")
    """Those that the stack does not name are left out."""
    mounts: tuple[str, ...] = ()
    """Shared mounts, measured too where no place lies on them; `soperator cluster
    accept` names all of the stack's."""
    file_mb: Positive[int] = 4096
    block_kib: Positive[int] = 4096
    random_reads: Positive[int] = 2000
    random_block_kib: Positive[int] = 4
    small_files: Positive[int] = 500

    def _check(self) -> None:
        for path in self.mounts:
            require(path.startswith("/"), f"mounts: {path!r} is not absolute; start it with /")
        require(
            self.block_kib % 4 == 0 and self.random_block_kib % 4 == 0,
            "block_kib: expected multiples of 4: O_DIRECT moves whole pages",
        )
        # A file is at least one block.
        file_kib = max(
            self.block_kib, self.file_mb * 10**6 // 1024 // self.block_kib * self.block_kib
        )
        require(
            self.random_block_kib <= file_kib,
            f"random_block_kib: got {self.random_block_kib}, a file has {file_kib} KiB",
        )


_SHAPE = ("vocabulary", "width", "layers", "heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig(Settings):
    """The model whose tokens are counted; the defaults are of nebius-h100-8gpu-benchmark."""

    name: str = "decoder-163m"
    vocabulary: Positive[int] = 50257
    width: Positive[int] = 768
    layers: Positive[int] = 12
    heads: Positive[int] = 12
    sequence: Positive[int] = 512
    batch: Positive[int] = 8
    """Sequences of one rank in a step."""
    steps: Annotated[int, over(1)] = 50
    warmup: NotNegative[int] = 5
    points: tuple[int, ...] = ()
    """Ranks to train on, rising; empty: 1, 2, 4 and so on, whole nodes, and all."""

    def _check(self) -> None:
        defaults = {each.name: each.default for each in fields(TrainingConfig)}
        other = [
            f"{name} {getattr(self, name)}, not {defaults[name]}"
            for name in _SHAPE
            if getattr(self, name) != defaults[name]
        ]
        # Limits go by the name: what is smaller must not be held against the limit of this model.
        require(
            self.name != defaults["name"] or not other,
            f"name: {self.name} has another shape ({', '.join(other)}); give it its own name",
        )
        require(self.width % self.heads == 0, f"heads: {self.heads} do not divide {self.width}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptConfig(Settings):
    """One acceptance run."""

    profile: Literal["quick", "full"] = "full"
    stages: tuple[StageName, ...] = STAGES
    device: Literal["gpu", "cpu"] = "gpu"
    """`cpu` is a rehearsal: it certifies no GPU."""
    gates: str | None = None
    """File of further limits, in the form of gates.yaml; what it says wins."""
    soak_s: NotNegative[float] = 1800
    """Seconds of training and all-reduce in the stage `soak`."""
    connectivity: ConnectivityConfig = field(default_factory=ConnectivityConfig)
    collectives: CollectivesConfig = field(default_factory=CollectivesConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def _check(self) -> None:
        require(bool(self.stages), f"stages: name at least one of {', '.join(STAGES)}")


def _at_most(part: T, **most: float) -> T:
    """Return a section with none of these values over its bound."""
    return replace(part, **{name: min(getattr(part, name), most[name]) for name in most})


def profiled(config: AcceptConfig) -> AcceptConfig:
    """Return the config as its profile runs it: `quick` soaks a minute and repeats less.

    Message sizes stay: a limit speaks of a size. nccl-tests take minutes: quick runs them only from
    a folder that somebody named.
    """
    if config.profile == "full":
        return config
    programs = config.collectives.nccl_tests
    programs = None if programs == ON_PATH else programs
    collectives = replace(config.collectives, warmup=2, nccl_tests=programs)
    return replace(
        _at_most(config, soak_s=60.0),
        collectives=_at_most(collectives, iterations=10),
        storage=_at_most(config.storage, file_mb=1024, random_reads=500, small_files=200),
        training=_at_most(config.training, steps=20),
    )
