"""A preview of the real engine says what an upgrade drains, and refuses what cannot follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stacks.load import STACKS_DIR
from tests.engine.nebius_project import pulumi_binary
from tests.engine.program_env import Answer, Program, running_program
from tests.engine.test_cost_preview import STACK, deploy, exported, text_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
    pytest.mark.usefixtures("forks"),
]
Edited = Callable[..., Answer]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with running_program(tmp_path_factory.mktemp("state")) as running:
        assert running.preview(STACK).status == 0
        deploy(running, {"cost": exported(running)})
        yield running


@pytest.fixture
def edited(program: Program, tmp_path: Path) -> Edited:
    """The preview after these texts of the stack file became others."""

    def preview(*changes: tuple[str, str]) -> Answer:
        text = (STACKS_DIR / f"Pulumi.{STACK}.yaml").read_text()
        for old, new in changes:
            assert text.count(old) == 1, f"{old!r} is not once in the stack file"
            text = text.replace(old, new)
        path = tmp_path / f"Pulumi.{STACK}.yaml"
        path.write_text(text)
        return program.preview(STACK, f"--config-file={path}")

    return preview


KUBERNETES = 'kubernetes_version: "1.33"'


def test_an_upgrade_shows_what_drains_in_its_order(edited: Edited) -> None:
    text = text_of(edited((KUBERNETES, KUBERNETES.replace("1.33", "1.34"))))
    order = [
        text.index(f". {step}: ")
        for step in ("control plane", "system", "controller", "login", "accounting", "worker")
    ]
    assert order == sorted(order)
    assert "way back: none: a control plane never goes back to an older version" in text
    # The deployment has no login node: that is told, and no error.
    assert "Jobs on these nodes: not checked: l40s-dev: outputs login_ip" in text


@pytest.mark.parametrize(
    ("version", "why"),
    [("1.32", "never goes back"), ("1.35", "one minor version at a time")],
)
def test_a_version_that_cannot_follow_stops_the_preview(
    edited: Edited, version: str, why: str
) -> None:
    answer = edited((KUBERNETES, KUBERNETES.replace("1.33", version)))
    assert answer.status != 0
    assert f"{STACK}.cluster.kubernetes_version: '{version}', but the control plane" in answer.text
    assert why in answer.text


def test_a_smaller_filesystem_stops_the_preview(edited: Edited) -> None:
    size = "mount_path: /mnt/data, size_gib: 1024"
    answer = edited((size, size.replace("1024", "512")))
    assert answer.status != 0
    assert "512 GiB, but it was deployed with 1024 GiB, and no filesystem shrinks" in answer.text


def test_a_smaller_set_names_the_workers_that_leave(edited: Edited) -> None:
    nodes = "preset: 2gpu-64vcpu-384gb\n        nodes: 4\n"
    jobs = [f"{name}, partition: train, nodes: " for name in ("8xl40s", "accept_gpu")]
    fewer = [(f"{job}4", f"{job}2") for job in jobs]
    text = text_of(edited((nodes, nodes.replace("4\n", "2\n")), *fewer))
    assert "worker-2 to worker-3, those with the highest numbers, leave; jobs on them end" in text
