"""The page on delivery compares both routes by what was measured, and names what was not."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from stacks.spec.slurm import JobSpec

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "delivery.md").read_text(encoding="utf-8")


def row(first: str) -> list[str]:
    """Cells of the comparison's row: environment, image, Kubernetes."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.feature("S003-71", "S003-72")
def test_the_page_has_the_measured_figures_and_says_what_was_not_measured() -> None:
    environment, image, _ = row("set-up time")
    assert re.search(r"\d+ s", environment)
    assert re.search(r"2026-\d\d-\d\d", environment), "a figure without its day cannot be checked"
    assert re.search(r"\d+ s|not measured", image)
    assert re.search(r"[\d.]+ GB", row("disk")[0])


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
