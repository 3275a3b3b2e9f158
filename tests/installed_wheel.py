"""What a wheel of this project does where no checkout is: python installed_wheel.py SOPERATOR.

Run by CI with the `soperator` of an empty environment, and by tests/unit/suite. Standard library
only. Prices every shipped stack, which must be its golden table, and starts each plugin.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent
GOLDEN = TESTS / "golden" / "cost"
# What the golden tables know as measured: an evaluation, and a training run like it.
RECORD = TESTS / "unit" / "cost" / "run_record.json"
TRAINED = {"kind": "train", "job": "finetune", "job_id": "11"}
PLUGINS = ("pulumi-resource-nebius", "pulumi-resource-soperator")
START_S = 60


def check(soperator: Path) -> list[str]:
    """What is wrong, a line each."""
    stacks = sorted(path.stem for path in GOLDEN.glob("*.md"))
    with tempfile.TemporaryDirectory() as folder:
        for name, more in (("12", {}), ("11", TRAINED)):
            run = Path(folder) / "runs" / "local" / name
            run.mkdir(parents=True)
            record = json.loads(RECORD.read_text(encoding="utf-8")) | more
            (run / "run_record.json").write_text(json.dumps(record), encoding="utf-8")
        wrong = [line for stack in stacks for line in _price(soperator, stack, Path(folder))]
    wrong += [line for name in PLUGINS for line in _start(_packages(soperator), name)]
    return wrong or ([] if stacks else [f"{GOLDEN}: no golden table"])


def _price(soperator: Path, stack: str, folder: Path) -> list[str]:
    key = folder / "key.pub"
    key.write_text(
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJGVJRcWE02OPAsk5Nx3B3O4RMs6uxZK6tZKMTZEYFN a"
    )
    done = subprocess.run(
        [soperator, "cost", "--stack", stack],
        cwd=folder,
        env=_environment(SOPERATOR_STATE=str(folder), SOPERATOR_SSH_PUBLIC_KEY_FILE=str(key)),
        capture_output=True,
        text=True,
        check=False,
    )
    expected = (GOLDEN / f"{stack}.txt").read_text(encoding="utf-8")
    if done.returncode == 0 and done.stdout == expected:
        return []
    return [f"{stack}: exit {done.returncode}, not {stack}.txt: {done.stderr or done.stdout[:400]}"]


def _start(packages: Path, name: str) -> list[str]:
    """A plugin prints the port that it listens on, and ends with its engine."""
    launcher = packages / "infra" / "providers" / "engine" / "bin" / name
    if not os.access(launcher, os.X_OK):
        return [f"{launcher}: is missing, or no program"]
    started = subprocess.Popen(
        [launcher],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
    )
    try:
        assert started.stdout is not None
        line = started.stdout.readline().strip()
    finally:
        started.terminate()
        _, said = started.communicate(timeout=START_S)
    return [] if line.isdecimal() else [f"{name}: said {line!r} and no port: {said.strip()}"]


def _packages(soperator: Path) -> Path:
    (found,) = soperator.parent.parent.glob("lib/python3*/site-packages")
    return found


def _environment(**more: str) -> dict[str, str]:
    """Nothing of the caller's that could lead to a checkout."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | more


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).absolute())
    print("\n".join(found) or "every shipped stack is priced as its golden table; plugins start")
    sys.exit(bool(found))
