"""Texts that go as they are into other configurations are refused where those would refuse them."""

from __future__ import annotations

from typing import Any

import pytest

from stacks.check import check
from stacks.errors import Level
from tests.unit.stacks.conftest import Change, changed
from tests.unit.stacks.test_check import worker


def of_worker(**values: Any) -> Change:
    return lambda config: worker(config).update(values)


def slurm_line(line: str) -> Change:
    return lambda config: config["slurm"].update(config_lines=[line])


def sssd(**values: Any) -> Change:
    return lambda config: config.update(
        soperator={"sssd": {"config_secret": "sssd-conf", **values}}
    )


def scratch(*folders: str) -> Change:
    disk = {"name": "scratch", "mount_path": "/mnt/scratch", "size_gib": 93}
    return of_worker(local_disks=[{**disk, "folders": list(folders)}])


def cpu_with_gres(config: dict[str, Any]) -> None:
    hardware = {"platform": "cpu-d3", "preset": "16vcpu-64gb", "infiniband_fabric": None}
    worker(config).update({**hardware, "gres_lines": ["Name=gpu File=/dev/nvidia0"]})


VERBATIM_ERRORS: list[tuple[Change, str, str]] = [
    (of_worker(sshd_config_map="-x"), "nodes.workers[0].sshd_config_map", "no object"),
    (sssd(config_secret="SSSD"), "soperator.sssd.config_secret", "no object"),
    (sssd(ca_config_map="ldap_ca"), "soperator.sssd.ca_config_map", "no object"),
    (slurm_line("PriorityDecayHalfLife 7-0"), "slurm.config_lines[0]", "write Name=value"),
    (slurm_line("NodeName=x"), "slurm.config_lines[0]", "remove the line"),
    (slurm_line("suspendTime=10"), "slurm.config_lines[0]", "remove the line"),
    (of_worker(gres_lines=["AutoDetect"]), "nodes.workers[0].gres_lines[0]", "write pairs"),
    (
        of_worker(gres_lines=["NodeName=worker-0 Name=gpu"]),
        "nodes.workers[0].gres_lines[0]",
        "which is added",
    ),
    (cpu_with_gres, "nodes.workers[0].gres_lines", "has no GPU"),
    (of_worker(extra="$(reboot)"), "nodes.workers[0].extra", "holds a command"),
    (of_worker(extra="`reboot`"), "nodes.workers[0].extra", "holds a command"),
    (scratch("/tmp"), "nodes.workers[0].local_disks[0].folders", "without a leading /"),
    (scratch("../up"), "nodes.workers[0].local_disks[0].folders", "no plain path"),
    (scratch("a b"), "nodes.workers[0].local_disks[0].folders", "no plain path"),
]


@pytest.mark.parametrize(("change", "path", "text"), VERBATIM_ERRORS)
def test_a_mistake_is_refused(change: Change, path: str, text: str):
    errors = [each for each in check(changed(change)) if each.level is Level.ERROR]
    assert [each for each in errors if each.path == f"demo.{path}" and text in each.message], errors


def test_lines_that_are_right_have_nothing_to_say():
    def right(config: dict[str, Any]) -> None:
        worker(config).update(
            gres_lines=["Name=gpu Type=nvidia_h100_80gb_hbm3 File=/dev/nvidia[4-7] Cores=0-31"],
            extra='{"ib_pod": "$TOPO_SWITCH_TIER2"}',
            sshd_config_map="worker-sshd.v2",
        )
        config["slurm"]["config_lines"] = ["PriorityDecayHalfLife=7-0"]
        sssd(ca_config_map="ldap-ca")(config)
        scratch("tmp", "data/preprocessed")(config)

    assert check(changed(right)) == ()
