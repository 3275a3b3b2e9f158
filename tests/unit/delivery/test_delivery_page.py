"""The page on delivery compares both routes by what was measured, and names what was not."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from stacks.spec.slurm import JobSpec

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "delivery.md").read_text(encoding="utf-8")
MEASURED = json.loads((ROOT / "tests" / "bench" / "delivery.json").read_text(encoding="utf-8"))


def row(first: str) -> list[str]:
    """Cells of the comparison's row: environment, image, Kubernetes."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def told(part: str) -> str:
    """When and beside what a part was measured, as the page says it; each part has its machine."""
    found = MEASURED[part]
    load = max(found["machine"]["load_before"], found["load_after"])
    return f"load up to {load:.0f}, {found['measured_at']}"


def gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"


@pytest.mark.feature("S003-71", "S003-72")
def test_the_page_has_the_figures_of_the_benchmark_and_says_what_was_not_measured() -> None:
    """`make bench-delivery` writes them; a figure without its day and machine cannot be checked."""
    made, image, edit = (MEASURED[part] for part in ("environment", "image", "edit"))
    assert {part: each.get("reason") for part, each in MEASURED.items()} == {
        "environment": None, "image": None, "edit": None
    }  # fmt: skip
    assert {each["machine"]["num_cpus"] for each in MEASURED.values()} == {2}
    of_environment, of_image, _ = row("set-up time")
    assert f"{made['set_up_s']:.0f} s from an empty cache ({told('environment')})" in of_environment
    assert f"{made['again_s']:.1f} s where the lock is there" in of_environment
    assert f"{image['build_s']:.0f} s to build ({image['builder']}, {told('image')})" in of_image
    assert f"{image['push_s']:.0f} s to push, {image['pull_s']:.0f} s to pull" in of_image
    of_environment, of_image, _ = row("disk")
    assert of_environment.startswith(f"{gb(made['disk_bytes'])}, ")
    assert f"{gb(made['disk_with_cache_bytes'])} with the cache" in of_environment
    assert f"{gb(image['image_bytes'])}, {gb(image['sent_bytes'])} of them sent" in of_image
    assert (
        f"{edit['edit_to_end_s']:.0f} s until a job of one word has ended ({told('edit')})"
        in (row("an edit")[0])
    )
    published = "Published figures are 5 to 10 against 20 to 30 minutes and 2 against 10 to 15 GB"
    assert published in PAGE


@pytest.mark.feature("S003-71", "S003-81", "S003-86")
@pytest.mark.parametrize(
    ("first", "of_environment", "of_image"),
    [
        ("an edit", "NAME --sync`: seconds, nothing is installed", "only another package needs a"),
        ("debugging", "stack trace", "through the image"),
        ("pinned by", "hashes of every wheel", "tag `sha-COMMIT`"),
        ("reproduced", "as far as the node's system libraries agree", "everything but the driver"),
        ("disk", "GB", "pulled by each node"),
        ("isolation", "none", "its own libraries"),
        ("registry", "none", "storage.registry_gib"),
        (
            "disadvantage",
            "packages are managed by hand",
            "another package is a build and a pull on each node",
        ),
    ],
)
def test_each_pro_and_con_that_seed_003_names_has_its_cell(
    first: str, of_environment: str, of_image: str
) -> None:
    """Both lists of its part on options A and B: iteration to registry, and the drawbacks."""
    environment, image, _ = row(first)
    assert of_environment in environment
    assert of_image in image


@pytest.mark.feature("S003-73", "S003-81", "S003-86")
def test_the_page_says_which_route_is_for_what() -> None:
    environment, image, _ = row("for")
    assert environment.startswith("development")
    assert image.startswith("production")
    assert "`jobs/NAME`" in row("job file")[0]
    assert "`container:` in the job's line" in row("job file")[1]
    assert "container" in {field.name for field in fields(JobSpec)}
    for verb in ("soperator data venv", "infra/setup/image/build.sh", "soperator runs manifest"):
        assert verb in PAGE
