"""The drawing of a stack shows what is declared, and no box lies on another."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from infra.render.stack_drawing import stack_svg
from stacks.load import load_stack
from stacks.spec import StackSpec
from tests import SHIPPED

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    return load_stack("l40s-dev")


def words(svg: str) -> str:
    return "\n".join(each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text"))


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of every box; frames lie around them."""
    found: list[tuple[float, float, float, float]] = []
    for each in ElementTree.fromstring(svg).iter(f"{SVG}rect"):
        if each.get("class") in ("plain", "gpu", "disk", "outside"):
            x, y, width, height = (
                float(each.get(key, "")) for key in ("x", "y", "width", "height")
            )
            found.append((x, y, x + width, y + height))
    return found


@pytest.mark.feature("S000-14", "S002-90")
@pytest.mark.parametrize("stack", SHIPPED)
def test_every_shipped_stack_is_drawn_as_its_golden_file(
    stack: str, public_key_file: Path, golden: Callable[[str, str], None]
) -> None:
    golden(f"drawing/{stack}.svg", stack_svg(load_stack(stack)))


@pytest.mark.feature("S002-90")
def test_what_is_declared_is_in_it(spec: StackSpec) -> None:
    text = words(stack_svg(spec))
    for worker in spec.nodes.workers:
        assert f"nodeset {worker.name}\n{worker.max_nodes} x {worker.platform}" in text
    for submount in spec.storage.submounts:
        assert f"{submount.name}\n{submount.mount_path}\n{submount.size_gib:,} GiB" in text
    assert "places: chkpt, elastic, logs, results" in text
    assert "/mnt/memory: tmpfs, at most" in text
    for job in spec.jobs:
        assert f"{job.name}: {job.nodes} x {job.gpus_per_node} GPUs" in text
    assert "Ethernet, no InfiniBand" in text
    assert "container registry" not in text
    larger = replace(spec, storage=replace(spec.storage, registry_gib=10))
    assert "container registry" in words(stack_svg(larger))


@pytest.mark.feature("S002-90")
@pytest.mark.parametrize(
    ("stack", "module", "flow"),
    [
        ("h100-prod", "Training: workloads.train", ("data", "model", "chkpt")),
        ("h100-prod", "Inference: workloads.evaluate", ("data", "model", "chkpt", "results")),
        ("l40s-dev", "Training: workloads.data", ("data", "data")),
        ("l40s-dev", "Inference: workloads.serve", ("model", "chkpt")),
    ],
)
def test_arrows_lead_from_what_jobs_read_over_them_to_what_they_write(
    stack: str, module: str, flow: tuple[str, ...], public_key_file: Path
) -> None:
    spec = load_stack(stack)
    jobs = [job.name for job in spec.jobs if job.module.startswith(module.partition(": ")[2])]
    *read, written = [f"{place}: {spec.storage.places[place]}" for place in flow]
    told = ["read", *read, module, *jobs, "written", written]
    if module.endswith("serve"):
        told = ["read", *read, written, module, *jobs, "you", "answers, over SSH"]
    svg = stack_svg(spec)
    assert "\n".join(told) in words(svg)
    # Of one row: arrows from each box to the next, and the boxes side by side.
    (work,) = [
        each for each in ElementTree.fromstring(svg).iter(f"{SVG}text") if each.text == module
    ]
    row = [box for box in boxes(svg) if box[1] <= float(work.get("y", "")) <= box[3]]
    source, job, target = sorted(row)
    arrows = re.findall(r'd="M(\d+) (\d+)L(\d+) (\d+)" marker-end', svg)
    level = [tuple(map(float, each)) for each in arrows]
    for before, after in ((source, job), (job, target)):
        assert (before[2], before[1] + 20, after[0], before[1] + 20) in level


def test_the_fabric_of_a_worker_set_is_named(public_key_file: Path) -> None:
    assert "InfiniBand fabric-6" in words(stack_svg(load_stack("h100-prod")))


def test_no_box_lies_on_another_also_of_a_stack_with_many_worker_sets(spec: StackSpec) -> None:
    (first, *_) = spec.nodes.workers
    many = tuple(replace(first, name=f"set{number}") for number in range(9))
    for each in (spec, replace(spec, nodes=replace(spec.nodes, workers=many))):
        svg = stack_svg(each)
        root = ElementTree.fromstring(svg)
        assert float(root.get("width", "")) < 1500
        for one, other in combinations(boxes(svg), 2):
            beside = one[2] <= other[0] or other[2] <= one[0]
            below = one[3] <= other[1] or other[3] <= one[1]
            assert beside or below, (one, other)


def test_no_rule_of_its_style_reaches_another_picture_of_the_page(spec: StackSpec) -> None:
    style = ElementTree.fromstring(stack_svg(spec)).findtext(f"{SVG}style") or ""
    selectors = [rule.partition("{")[0] for rule in style.split("}") if rule]
    assert len(selectors) > 5
    assert all(each.startswith(".stack ") for each in selectors)


def test_it_fetches_nothing_and_runs_nothing(spec: StackSpec) -> None:
    svg = stack_svg(replace(spec, name="<b>&"))
    assert "<script" not in svg
    assert re.findall(r'(?:href|src)="', svg) == []
    assert "&lt;b&gt;&amp;" in svg
