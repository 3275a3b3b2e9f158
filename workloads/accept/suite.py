"""The stages in order: each measures on all ranks, then judges on what was gathered.

Owns the order and that the result is written after every stage: what a later one breaks is NOT RUN
in it, not lost. Results that another program recorded are held against the same gates.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from workloads.accept import collectives, compute, connectivity, readiness, storage, training
from workloads.accept.collectives import BUS_FACTORS, Transfer
from workloads.accept.gates import (
    Check,
    Gates,
    Node,
    ProgramError,
    Report,
    check_lines,
    device_of,
    exit_code,
    gates_for,
    gather_nodes,
    not_run,
    overall,
    table,
)
from workloads.accept.readiness import NodeFacts
from workloads.accept.training import Point
from workloads.common.dist import World
from workloads.common.exit_codes import ConfigError, DataError, ExitCode, WorkloadError
from workloads.common.log import log
from workloads.common.places import Places
from workloads.common.record import job_id
from workloads.recipes.accept import ON_PATH, AcceptConfig, profiled

# Part of a device's name -> platform, where nobody declared one (torchrun by hand, Kubernetes).
_PLATFORMS = (("H100", "gpu-h100-sxm"), ("H200", "gpu-h200-sxm"), ("L40S", "gpu-l40s-d"))


@dataclass(slots=True, kw_only=True)
class Suite:
    """One run of the stages on this rank."""

    world: World
    config: AcceptConfig
    places: Places
    report: Report
    facts: tuple[NodeFacts, ...] = ()

    def readiness(self) -> None:
        """What every node is made of."""
        self.facts = self._ask_nodes()
        self.report.measurements["readiness"] = [asdict(node) for node in self.facts]
        expected = self.report.gates.hardware.expected
        gpus = _gpus_per_node(self.config, self.report.nodes)
        self.report.checks += readiness.judge(self.facts, expected, gpus)

    def connectivity(self) -> None:
        """Every pair of ranks."""
        if self.world.world_size == 1:
            self.report.checks.append(
                not_run("connectivity.pairs", "one rank has no partner", subject="0 of 0 pairs")
            )
            return
        pairs = connectivity.measure_pairs(self.world)
        self.report.measurements["connectivity"] = [asdict(pair) for pair in pairs]
        self.report.checks += connectivity.judge_pairs(
            pairs, self.report.nodes, self.world.world_size, self.report.gates
        )
        perftest = self.config.connectivity.perftest
        if perftest is not None and self.config.device == "gpu" and len(self.report.nodes) > 1:
            self._wires(perftest)

    def _wires(self, perftest: str) -> None:
        self.facts = self.facts or self._ask_nodes()
        folder = self._programs(perftest, connectivity.PROGRAM, at="accept.connectivity.perftest")
        devices = connectivity.devices_of(self.facts)
        # A node without the program would leave the others waiting for its server.
        folders = self.world.gather(
            folder if folder and shutil.which(connectivity.PROGRAM, path=str(folder)) else None
        )
        if folder is None or None in folders or not devices:
            why = f"{folder}/{connectivity.PROGRAM} is not on every node"
            if None not in folders:
                why = "no InfiniBand device is up on every node"
            has_ports = self.report.gates.hardware.expected.infiniband_ports != 0
            if perftest != ON_PATH and (None in folders or has_ports):
                self.report.checks.append(not_run("connectivity.wires", why, subject="all ports"))
            return
        found = connectivity.measure_ports(self.world, self.report.nodes, devices, folder)
        self.report.measurements["wires"] = [asdict(wire) for wire in found]
        self.report.checks += connectivity.judge_ports(found, self.report.gates)

    def collectives(self) -> None:
        """The sweep of message sizes."""
        config, nodes = self.config.collectives, self.report.nodes
        rows = collectives.sweep(self.world, nodes, config) if self.world.is_distributed else []
        gpus = len(nodes[0].ranks)
        if config.nccl_tests is not None and self.config.device == "gpu":
            torch.cuda.empty_cache()  # the programs are other processes, and need the memory
            # Who waits over gloo keeps no GPU busy, as NCCL's waits do.
            room = self.world.apart(3 * connectivity.TIMEOUT_S)
            said = self._nccl_tests(config.nccl_tests, gpus) if self.world.is_main else None
            found, whys = room.broadcast(said)
            rows += found
            self.report.checks += [
                not_run("collectives.nccl_tests", why, subject=where) for where, why in whys.items()
            ]
        self.report.measurements["collectives"] = [asdict(row) for row in rows]
        way = collectives.algorithm(gpus) if self.report.backend == "nccl" else None
        self.report.checks += collectives.judge(rows, self.report.gates, way)

    def _nccl_tests(self, named: str, gpus: int) -> tuple[list[Transfer], dict[str, str]]:
        """Rows of the first node and of all nodes, and why there are none."""
        nodes = [node.name for node in self.report.nodes]
        folder = self._programs(named, "all_reduce_perf", at="accept.collectives.nccl_tests")
        if folder is None:
            return [], {}
        rows: list[Transfer] = []
        whys: dict[str, str] = {}
        sizes = self.config.collectives.sizes_mb
        for names in [nodes[:1], nodes][: len(nodes)]:
            several = len(names) > 1
            where = f"{len(names)} nodes" if several else names[0]
            launcher = connectivity.over_nodes(len(names), gpus) if several else []
            if launcher is None:
                whys[where] = "srun starts them over nodes, and this is no job of Slurm"
                continue
            try:
                found = connectivity.run_nccl_tests(
                    folder, gpus, sizes, nodes=len(names), launcher=launcher
                )
            except ProgramError as error:
                whys[where] = str(error)
                continue
            scope = "cluster" if several else "node"
            rows += [replace(each, scope=scope, nodes=tuple(names)) for each in found]
        return rows, whys

    def _programs(self, named: str, program: str, *, at: str) -> Path | None:
        """The folder of programs that the recipe names; None where PATH is asked and has none."""
        if named != ON_PATH:
            return self.places.expand(named, at=at)
        found = shutil.which(program)
        if found is None:
            log(f"{at}: {program} is not on PATH, and is left out")
        return None if found is None else Path(found).parent

    def compute(self) -> None:
        """Each GPU alone, all at once."""
        rows = compute.measure_compute(self.world, self.config.compute)
        self.report.measurements["compute"] = rows
        self.report.checks += compute.judge_compute(rows, self.report.nodes, self.report.gates)
        gpus = _gpus_per_node(self.config, self.report.nodes)
        self.report.checks += [
            not_run("compute.values", why, subject=node.name, nodes=(node.name,))
            for node in self.report.nodes
            if node.gpus < gpus and (why := f"{node.gpus} of {gpus} GPUs had a rank")
        ]

    def storage(self) -> None:
        """Each place, all nodes at once."""
        rows: list[dict[str, Any]] = []
        left_out: dict[str, str] = {}
        config = self.config.storage
        named = {each: self.places.path(each) for each in config.places if self.places.has(each)}
        for place, path in storage.targets(named, config.mounts).items():
            # Every rank stops at the same barriers, or one that fails would leave the others there.
            trouble = None
            if self._index is not None:
                trouble = storage.trouble(place, path, config, len(self.report.nodes))
            if whys := self._gathered(trouble):
                left_out[place] = whys[0]
            else:
                found = storage.measure_place(
                    place,
                    path,
                    config,
                    run=job_id(),
                    nodes=[node.name for node in self.report.nodes],
                    index=self._index,
                    together=self.world.barrier,
                )
                rows += self._gathered(found)
        if not rows and not left_out:
            self.report.checks.append(
                not_run(
                    "storage.places",
                    "no place is set: export SOPERATOR_PLACE_<PLACE>=/some/path",
                    subject="no place",
                )
            )
        self.report.measurements["storage"] = rows
        self.report.checks += storage.judge(rows, left_out, storage.PRIVATE_PLACES)

    def training(self) -> None:
        """Throughput, scaling and stragglers."""
        points, work = training.measure(self.world, self.config.training, self.report.nodes)
        self.report.measurements["training"] = {
            "points": [point.to_json() for point in points],
            "own_work_s": work,
        }
        self.report.checks += training.judge(points, work, self.report.nodes, self.report.gates)

    def soak(self) -> None:
        """The same for a while."""
        before = self.facts or self._ask_nodes()
        found = compute.measure_soak(self.world, self.config.training, self.config.soak_s)
        self.report.measurements["soak"] = found.to_json()
        self.report.checks += compute.judge_soak(
            found, before, self._ask_nodes(), self.report.nodes, self.report.gates
        )

    def _ask_nodes(self) -> tuple[NodeFacts, ...]:
        return tuple(self._gathered(None if self._index is None else readiness.ask_node()))

    @property
    def _index(self) -> int | None:
        """Which node this rank is the first of; None: it is not."""
        return connectivity.index_of(self.world, self.report.nodes)

    def _gathered(self, mine: Any) -> list[Any]:
        """What ranks found, without the None of those that did not look; every rank calls it."""
        return [each for each in self.world.gather(mine) if each is not None]


def run_suite(
    world: World,
    config: AcceptConfig,
    places: Places,
    *,
    platform: str | None = None,
    write: Callable[[Report], None],
) -> Report:
    """Return the result, the same on every rank; `write` gets it after each stage on rank 0."""
    config = profiled(config)
    extra = None if config.gates is None else places.expand(config.gates, at="accept.gates")
    platform = platform or os.environ.get("SOPERATOR_PLATFORM") or None
    is_gpu = world.device.type == "cuda"
    if is_gpu and config.device == "cpu":
        raise ConfigError("accept.device is cpu on a node with GPUs: a rehearsal would hide them")
    nodes = gather_nodes(world)
    device, _ = device_of(world)
    named = next((platform for part, platform in _PLATFORMS if part in device), None)
    gates = gates_for(platform or named, _gpus_per_node(config, nodes), extra)
    report = Report(
        config=config,
        gates=gates,
        nodes=nodes,
        world_size=world.world_size,
        backend="nccl" if is_gpu else "gloo",
    )
    suite = Suite(world=world, config=config, places=places, report=report)
    for stage in config.stages:
        log(f"stage {stage}")
        if config.device == "gpu" and not is_gpu and stage != "readiness":
            report.checks.append(
                not_run(f"{stage}.all", "torch sees no GPU on this node", subject="all ranks")
            )
        else:
            getattr(suite, stage)()
        if world.is_main:
            write(report)
    return report


def _gpus_per_node(config: AcceptConfig, nodes: Sequence[Node]) -> int:
    return readiness.declared_gpus(len(nodes[0].ranks)) if config.device == "gpu" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recorded run."""

    rows: tuple[Transfer, ...]
    point: Point


def read_benchmark(values: Mapping[str, Any], name: str) -> Recorded:
    """Return the run in a file of the published benchmark.py; `name` starts the messages."""
    try:
        cluster, results = values["cluster_info"], values["results"]
        ranks, nodes = int(cluster["total_gpus"]), int(cluster["nodes"])
        if not 1 <= nodes <= ranks or ranks % nodes:
            raise ValueError(f"{ranks} GPUs on {nodes} nodes")
        rows = results["nccl_benchmark"]["details"]["results_by_size"]
        trained = results["training_benchmark"]
        details = trained["details"]
        rate = float(trained["metric_value"])
        tokens = details["batch_size"] * details["seq_length"] * ranks * details["num_steps"]
        return Recorded(
            rows=tuple(_row(row, ranks, nodes) for row in rows),
            point=Point(
                ranks=ranks,
                nodes=nodes,
                tokens=tokens,
                seconds=tokens / rate,
                model="encoder-163m",
                batch=details["batch_size"],
                sequence=details["seq_length"],
                dtype="fp32",
            ),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError(
            f"{name}: no result of benchmark.py --mode distributed: {error!r}; "
            "give the file that it wrote with --output"
        ) from error


def _row(row: Mapping[str, Any], ranks: int, nodes: int) -> Transfer:
    # Its MB are 2^20 bytes, and its "bandwidth" is already the bus bandwidth.
    num_bytes, time_s = int(row["size_mb"]) * 2**20, float(row["latency_ms"]) / 1000
    busbw = float(row["bandwidth_gbps"])
    if not time_s > 0:
        raise ValueError(f"{num_bytes} bytes in {time_s} s")
    return Transfer(
        op="all_reduce",
        ranks=ranks,
        bytes=num_bytes,
        time_s=time_s,
        algbw_gb_per_s=busbw / BUS_FACTORS["all_reduce"](ranks),
        busbw_gb_per_s=busbw,
        wrong=None,
        source="nebius-h100-8gpu-benchmark, benchmark.py",
        scope="cluster" if nodes > 1 else "node",
        nodes=node_names(nodes),
    )


def node_names(nodes: int) -> tuple[str, ...]:
    """Return the names that the published table gives them: gpu-node-0, gpu-node-1."""
    return tuple(f"gpu-node-{index}" for index in range(nodes))


def judge_recorded(runs: Sequence[Recorded], gates: Gates) -> list[Check]:
    """Return the checks of what the runs measured; what nobody measured is NOT RUN.

    The run on the most ranks is the one that asks to be accepted.
    """
    *_, widest = points = sorted((run.point for run in runs), key=lambda point: point.ranks)
    names, per_node = node_names(widest.nodes), widest.ranks // widest.nodes
    nodes = table([(name, "", None) for name in names for _ in range(per_node)])
    rows = [row for run in runs for row in run.rows]
    subject = f"{len(nodes)} nodes"
    missing = ("readiness.gpus", "connectivity.pairs", "collectives.send_recv", "storage.places")
    return [
        *(
            not_run(name, "the recorded run did not measure it", subject=subject, nodes=names)
            for name in missing
        ),
        *collectives.judge(rows, gates, None),
        *training.judge(points, [], nodes, gates),
    ]


def judge_files(arguments: Sequence[str]) -> ExitCode:
    """Print the checks of recorded files and return what they come to."""
    parser = argparse.ArgumentParser(prog="python -m workloads.accept --judge")
    parser.add_argument("--judge", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--platform", required=True)
    options = parser.parse_args(arguments)
    try:
        runs = [read_benchmark(_json(path), str(path)) for path in options.judge]
        *_, widest = sorted((run.point for run in runs), key=lambda point: point.ranks)
        checks = judge_recorded(runs, gates_for(options.platform, widest.ranks // widest.nodes))
    except WorkloadError as error:
        log(str(error))
        return error.exit_code
    for line in check_lines(checks):
        print(line)
    outcome = overall(checks)
    print(outcome.replace("_", " "))
    return exit_code(outcome)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from error
