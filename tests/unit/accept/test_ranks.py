"""The suite on real ranks over gloo: a slowed rank and a slow link are found and named.

Each rank stands for a node of its own. Links are slowed with tc in network namespaces (root).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports
from workloads.accept.__main__ import main
from workloads.common.exit_codes import ExitCode
from workloads.job import run_job

ROOT = Path(__file__).resolve().parents[3]
_WAIT_S = 240
_TINY = (
    'accept.training={"name": "tiny", "vocabulary": 64, "width": 16, "layers": 1, "heads": 2, '
    '"sequence": 8, "batch": 1, "steps": 3, "warmup": 1}'
)
_GATES = """
schema_version: 1
sources: {here: {what: this test, url: tests, date: "2026-11-21"}}
classes:
  - name: ranks of a test
    gates:
      - {check: training.straggler_slowdown, at_most: 100, unit: percent, source: here}
      - {check: connectivity.pair_share, at_least: 0.2, source: here}
      - {check: training.tokens_per_s_per_gpu, at_least: 500, unit: tokens/s, source: here}
      - {check: collectives.all_reduce, nodes: 2, at_least: 350, unit: GB/s, source: here}
"""


def _start(
    rank: int, ranks: int, port: int, output: Path, stages: Sequence[str], **more: Any
) -> subprocess.Popen[str]:
    names = ", ".join(f'"{stage}"' for stage in stages)
    gates = output.parent / "gates.yaml"
    gates.write_text(_GATES)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SOPERATOR_")},
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": more.get("address", "127.0.0.1"),
        "MASTER_PORT": str(port),
        "NODE_NAME": f"node-{rank}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        **more.get("environment", {}),
    }
    words = [
        *more.get("before", ()),
        *(sys.executable, str(Path(__file__).with_name("slow_rank.py"))),
        *("--mode", "distributed", "--config", "accept_cpu", "--output", str(output)),
        *("--set", f"accept.stages=[{names}]", "--set", _TINY, "--set", f"accept.gates={gates}"),
    ]
    return subprocess.Popen(
        words, env=environment, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _end(started: Sequence[subprocess.Popen[str]]) -> tuple[list[int], str]:
    """Exit codes and what rank 0 said; nobody is left behind."""
    try:
        said = [process.communicate(timeout=_WAIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    return [process.returncode for process in started], "".join(map(str, said[0]))


def _failed(output: Path) -> dict[str, Any]:
    result = json.loads(output.read_text())
    return {check["id"]: check for check in result["checks"] if check["outcome"] == "FAIL"}


@pytest.mark.feature("S001-13", "S001-49", "S001-56", "S001-62")
def test_a_slowed_rank_is_named_and_fails_the_run(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    output = tmp_path / "result.json"
    slow = {"SLOW_RANK": "1"}
    codes, said = _end(
        [_start(rank, 2, port, output, ["training"], environment=slow) for rank in (0, 1)]
    )
    assert codes == [1, 1], said
    one, two = json.loads(output.read_text())["measurements"]["training"]["points"]
    assert two["tokens"] == 2 * one["tokens"]
    assert two["tokens_per_s_per_rank"] == pytest.approx(two["tokens_per_s"] / 2)
    # Eight tokens in a step of 0.2 s: what was measured is held against the 500 of seed 001.
    rates = {
        check["subject"]: (check["measured"], check["outcome"])
        for check in json.loads(output.read_text())["checks"]
        if check["id"] == "training.tokens_per_s_per_gpu"
    }
    assert rates == {
        f"{each['ranks']} rank{'s' * (each['ranks'] > 1)} on "
        f"{each['nodes']} node{'s' * (each['nodes'] > 1)}": (
            each["tokens_per_s_per_rank"],
            "PASS" if each["tokens_per_s_per_rank"] >= 500 else "FAIL",
        )
        for each in (one, two)
    }
    assert rates["2 ranks on 2 nodes"][0] < 41
    straggler = _failed(output)["training.straggler_slowdown"]
    assert straggler["nodes"] == ["node-1"]
    assert straggler["subject"] == "rank 1 on node-1"
    assert straggler["context"]["median_s"] >= 0.2


@pytest.mark.feature("S001-48", "S001-49")
def test_a_job_is_held_against_the_gates_that_its_recipe_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SOPERATOR_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SOPERATOR_PLACE_RESULTS", str(tmp_path))
    gates = tmp_path / "gates.yaml"
    gates.write_text(_GATES.replace("at_least: 500", "at_least: 1000000000000"))
    sets = ('accept.stages=["training"]', _TINY, f"accept.gates={gates}")
    words = ["--recipe", "accept_cpu", *(f"--set={each}" for each in sets)]
    assert run_job("accept", main, words) is ExitCode.FAILED
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["outcome"] == "FAIL"
    assert "checks failed: training.tokens_per_s_per_gpu" in record["reason"]


@contextlib.contextmanager
def _namespaces(count: int, slow: int) -> Iterator[list[str]]:
    """Network namespaces on one bridge, in a namespace of their own; the link of one is slow."""
    names = [f"acc{os.getpid()}-{index}" for index in range(count + 1)]
    hub, *nodes = names

    def ip(*words: str, netns: str | None = None) -> None:
        inside = ["-n", netns] if netns else []
        subprocess.run(["ip", *inside, *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "br0", "type", "bridge", netns=hub)
        ip("link", "set", "br0", "up", netns=hub)
        for index, name in enumerate(nodes):
            ip("link", "add", f"v{index}", "type", "veth", "peer", "eth0", "netns", name, netns=hub)
            ip("link", "set", f"v{index}", "master", "br0", "up", netns=hub)
            ip("addr", "add", f"10.77.0.{index + 1}/24", "dev", "eth0", netns=name)
            ip("link", "set", "eth0", "up", netns=name)
            ip("link", "set", "lo", "up", netns=name)
        for netns, device in ((nodes[slow], "eth0"), (hub, f"v{slow}")):
            _slow_down(netns, device)
        yield nodes
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _slow_down(netns: str, device: str) -> None:
    """100 Mbit/s by netem; by a token bucket where the kernel has no netem."""
    ways = (
        ["netem", "rate", "100mbit"],
        ["tbf", "rate", "100mbit", "burst", "256kb", "latency", "400ms"],
    )
    for way in ways:
        words = ["tc", "-n", netns, "qdisc", "add", "dev", device, "root", *way]
        if subprocess.run(words, check=False, capture_output=True).returncode == 0:
            return
    pytest.skip("this kernel has neither netem nor tbf")


def _can_slow_links() -> str | None:
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        return f"needs root and {', '.join(missing) or 'nothing else'}"
    probe = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True)
    return "needs network namespaces" if probe.returncode else None


@pytest.mark.feature("S001-48")
def test_an_all_reduce_that_ranks_measured_is_held_against_its_gate(tmp_path: Path) -> None:
    """Two ranks of this machine do not reach the 350 GB/s of seed 001, and the run says so."""
    (port,) = free_ports(1)
    output = tmp_path / "result.json"
    codes, said = _end([_start(rank, 2, port, output, ["collectives"]) for rank in (0, 1)])
    assert codes == [1, 1], said
    held = _failed(output)["collectives.all_reduce"]
    rows = json.loads(output.read_text())["measurements"]["collectives"]
    assert held["measured"] in {each["busbw_gb_per_s"] for each in rows}
    assert 0 < held["measured"] < held["limit"]["at_least"] == 350


@pytest.mark.nightly
@pytest.mark.feature("S001-47", "S001-62", "S001-64")
def test_a_slow_link_is_found_and_its_node_named(tmp_path: Path) -> None:
    if reason := _can_slow_links():
        pytest.skip(reason)
    output = tmp_path / "result.json"
    with _namespaces(3, slow=2) as nodes:
        codes, said = _end(
            [
                _start(
                    rank,
                    3,
                    29500,  # of a network namespace of its own
                    output,
                    ["connectivity"],
                    address="10.77.0.1",
                    before=["ip", "netns", "exec", name],
                    environment={"GLOO_SOCKET_IFNAME": "eth0"},
                )
                for rank, name in enumerate(nodes)
            ]
        )
    assert codes == [1, 1, 1], said
    (link,) = _failed(output).values()
    assert (link["id"], link["nodes"]) == ("connectivity.pair_share", ["node-2"])
    # 100 Mbit/s are 0.0125 GB/s.
    assert link["context"]["gb_per_s"] < 0.02


@pytest.mark.feature("S001-36", "S001-62", "S001-64")
def test_the_script_runs_by_torchrun_on_two_nodes_with_the_words_of_the_page(
    tmp_path: Path,
) -> None:
    """Two nodes of two ranks: whom torchrun starts by itself, with its own meeting place."""
    page = (ROOT / "docs" / "acceptance.md").read_text()
    (line,) = re.findall(r"^torchrun --nnodes=2 .*benchmark\.py.*$", page, re.MULTILINE)
    output = tmp_path / "results" / "benchmark.json"
    (port,) = free_ports(1)
    own = {
        "--nproc_per_node=8": "--nproc_per_node=2",
        "HOST": "127.0.0.1",
        "29500": str(port),
        "results/benchmark_16gpu.json": str(output),
    }
    for words, ours in own.items():
        assert words in line
        line = line.replace(words, ours)
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    started = []
    for node in ("0", "1"):
        words = shlex.split(line.replace("--node_rank=0", f"--node_rank={node}"))
        words += ["--config", "accept_cpu", "--set", _TINY, "--set", 'accept.stages=["training"]']
        environment = {
            **{key: text for key, text in os.environ.items() if not key.startswith("SOPERATOR_")},
            "NODE_NAME": f"node-{node}",
            "OMP_NUM_THREADS": "1",
        }
        started.append(
            subprocess.Popen(
                [torchrun, *words[1:]],
                env=environment,
                cwd=ROOT,
                stderr=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    codes, said = _end(started)
    assert codes == [0, 0], said
    result = json.loads(output.read_text())
    assert result["outcome"] == "PASS"
    points = result["measurements"]["training"]["points"]
    assert [(point["ranks"], point["nodes"]) for point in points] == [(1, 1), (2, 1), (4, 2)]
