"""Runs what only a GPU can show: python -m tests.gpu checks | speed [--only WORD] [--no-write].

Needs one NVIDIA GPU, Python 3.11 or later and the packages of `NEEDED`; no network and no other
set-up. Each part ends within 9 minutes on one H100 or H200: no case begins after `LIMIT_S`. Writes
tests/bench/gpu.json after each case, so that a run that is cut leaves what it has, and one of some
cases leaves the others. A case that does not fit or lacks a package says NOT RUN and why. Exits
with 69 without a GPU, 1 after a FAIL.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[1] / "bench" / "gpu.json"
NEEDED = {"torch": (2, 11), "transformers": (5, 17), "yaml": ()}
"""Packages that every case needs, and their least versions."""
PACKAGES = {"yaml": "pyyaml", "prometheus_client": "prometheus-client"}
"""Names to install by, where they are not those to import by."""
LIMIT_S = 380
"""Seconds after which no case begins; the longest, a model of 14B in 4 bits, may take 160."""
NAMED = ("torch", "transformers", "peft", "bitsandbytes", "liger_kernel", "triton")
UNSAID = ("outcome", "losses", "measured_at")
"""Of a result in the file, not in the line that is printed."""
NO_GPU = 69

Cases = Iterator[tuple[str, Callable[[], dict[str, Any]]]]


def main() -> int:
    """Run one part; 0 when nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("part", choices=("checks", "speed"))
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--no-write", dest="write", action="store_false", help="keep gpu.json")
    options = parser.parse_args()
    began_s = time.perf_counter()
    if missing := _missing():
        print("\n".join(missing), file=sys.stderr)
        return NO_GPU
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    import torch

    if not torch.cuda.is_available():
        print("tests.gpu: no NVIDIA GPU is here; NOT RUN", file=sys.stderr)
        return NO_GPU
    device = torch.device("cuda")
    torch.cuda.set_device(0)
    ends_s = began_s + LIMIT_S
    found = run(cases(options.part, device, is_tiny=False), only=options.only, ends_s=ends_s)
    written = _kept(options.part) if options.write else lambda _: None
    results: dict[str, Any] = {}
    for name, result in found:
        results[name] = result
        written(results)
    return int(any(result["outcome"] == "FAIL" for result in results.values()))


def cases(part: str, device: Any, *, is_tiny: bool) -> Cases:
    """Yield the name of each case and what runs it; tiny ones are for a CPU."""
    from dataclasses import replace

    from tests.gpu import checks, speed

    if part == "checks":
        for check in checks.CHECKS:
            yield check.__name__, lambda check=check: check(device, is_tiny)
        return
    made = replace(speed.GENERATOR, is_tiny=is_tiny)
    generates = (made.name, lambda: speed.generation(made, device))
    sized = [replace(case, is_tiny=is_tiny) for case in (*speed.CASES, *speed.ONE_BY_ONE)]
    trains = [(case.name, lambda case=case: speed.training(case, device)) for case in sized]
    yield from (*trains[: len(speed.CASES)], generates, *trains[len(speed.CASES) :])
    yield f"{made.name}, vLLM", lambda: speed.vllm_generation(made)


def run(
    cases: Cases, *, only: str = "", ends_s: float = math.inf
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run the cases one by one; yield each one's name and outcome with its figures.

    `ends_s`: when no further one begins, by time.perf_counter.
    """
    import torch

    from tests.gpu.speed import NotRunError, free

    for name, case in cases:
        if only not in name:
            continue
        began_s = time.perf_counter()
        try:
            if began_s > ends_s:
                raise NotRunError(f"no time is left; run it alone: --only '{name}'")
            result = {"outcome": "PASS", **case()}
        except Exception as error:
            reason = _why_not_run(error)
            result = {"outcome": "NOT RUN", "reason": reason}
            if reason is None:
                traceback.print_exc()
                result = {"outcome": "FAIL", "reason": f"{type(error).__name__}: {error}"[:500]}
        result["measured_at"] = datetime.now(UTC).isoformat(timespec="seconds")
        result["case_s"] = round(time.perf_counter() - began_s, 1)
        said = ", ".join(f"{k} {v}" for k, v in result.items() if k not in UNSAID)
        print(f"{result['outcome']:8}{name:44}{said}", flush=True)
        yield name, result
        free(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def _why_not_run(error: Exception) -> str | None:
    """Return what this machine lacks for a case; None where the error is of another kind."""
    import torch

    from tests.gpu.speed import NotRunError

    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return None if (Path(__file__).parents[2] / package).is_dir() else _not_installed(package)
    is_too_large = isinstance(error, (NotRunError, torch.OutOfMemoryError))
    return str(error).splitlines()[0] if is_too_large else None


def _missing() -> list[str]:
    """Return a line for each package that is absent or too old."""
    lines: list[str] = []
    for name, least in NEEDED.items():
        package = PACKAGES.get(name, name)
        wanted = f"{package}>={'.'.join(map(str, least))}" if least else package
        if importlib.util.find_spec(name) is None:
            lines.append(f"tests.gpu: {_not_installed(name, wanted)}")
        elif tuple(map(int, metadata.version(package).split("+")[0].split(".")[:2])) < least:
            have = metadata.version(package)
            lines.append(f"tests.gpu: {package} is {have}: pip install '{wanted}'")
    return lines


def _not_installed(name: str, wanted: str = "") -> str:
    package = PACKAGES.get(name, name)
    return f"{package} is not installed: pip install '{wanted or package}'"


def _kept(part: str) -> Callable[[dict[str, Any]], None]:
    """Return what writes one part's results beside the other's."""
    import torch

    from tests.bench.machine import describe

    versions = {name: metadata.version(name) for name in NAMED if importlib.util.find_spec(name)}
    about = {
        "device": torch.cuda.get_device_name(),
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory,
        "machine": describe(),
        "versions": versions,
    }

    def write(results: dict[str, Any]) -> None:
        kept = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {}
        former = kept.get(part, {})
        is_same = all(former.get(each) == about[each] for each in ("device", "versions"))
        kept[part] = {**about, "cases": (former["cases"] if is_same else {}) | results}
        RESULT.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")

    return write


if __name__ == "__main__":
    sys.exit(main())
