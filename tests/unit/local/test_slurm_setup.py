"""Which Slurm runs: what the environment names, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.local.process import LocalError
from infra.local.slurm.pod import SlurmSetup

PROGRAMS = ("sbin/slurmctld", "sbin/slurmd", "sbin/slurmdbd", "bin/srun", "bin/sbatch")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A folder that looks like an installed Slurm."""
    for name in PROGRAMS:
        path = tmp_path / "slurm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\necho slurm 25.11.3\n")
        path.chmod(0o755)
    return tmp_path / "slurm"


def test_without_a_setting_the_systems_slurm_runs_with_real_times() -> None:
    setup = SlurmSetup.from_environ({})
    assert setup == SlurmSetup(prefix=None, fast_times=False)
    assert setup.path.startswith("/usr/local/sbin:")
    assert setup.mounts == ()


def test_the_named_slurm_comes_first_and_says_its_version(prefix: Path) -> None:
    setup = SlurmSetup.from_environ({"SOPERATOR_SLURM": str(prefix)})
    assert setup.path.startswith(f"{prefix}/sbin:{prefix}/bin:/usr/local/sbin:")
    assert setup.describe() == f"Slurm 25.11.3 of {prefix}"
    # A pod has a /tmp of its own, where the folder of this test would not be.
    assert [(mount.path, mount.read_only) for mount in setup.mounts] == [(str(prefix), True)]


def test_a_folder_without_slurmctld_is_refused_by_name(prefix: Path) -> None:
    (prefix / "sbin" / "slurmctld").unlink()
    with pytest.raises(LocalError, match=rf"SOPERATOR_SLURM: {prefix} has no sbin/slurmctld; give"):
        SlurmSetup.from_environ({"SOPERATOR_SLURM": str(prefix)})


def test_a_relative_folder_is_refused() -> None:
    with pytest.raises(LocalError, match="SOPERATOR_SLURM: 'slurm' is not absolute"):
        SlurmSetup.from_environ({"SOPERATOR_SLURM": "slurm"})


def test_shortened_times_are_told(prefix: Path) -> None:
    environ = {"SOPERATOR_SLURM": str(prefix), "SOPERATOR_LOCAL_FAST_TIMES": "1"}
    setup = SlurmSetup.from_environ(environ)
    assert setup.fast_times
    assert setup.describe().endswith("; shortened times (SOPERATOR_LOCAL_FAST_TIMES=1)")
    with pytest.raises(LocalError, match="SOPERATOR_LOCAL_FAST_TIMES: 'yes'; set it to 1"):
        SlurmSetup.from_environ({"SOPERATOR_LOCAL_FAST_TIMES": "yes"})
