"""The page on delivery compares both routes by what was measured, and names what was not."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "delivery.md").read_text(encoding="utf-8")


def row(first: str) -> list[str]:
    """Cells of the comparison's row: environment, image, Kubernetes."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_page_has_the_measured_figures_and_says_what_was_not_measured() -> None:
    environment, image, _ = row("set-up time")
    assert re.search(r"\d+ s", environment)
    assert re.search(r"2026-\d\d-\d\d", environment), "a figure without its day cannot be checked"
    assert re.search(r"\d+ s|not measured", image)
    assert re.search(r"[\d.]+ GB", row("disk")[0])


def test_the_page_says_which_route_is_for_what() -> None:
    environment, image, _ = row("for")
    assert environment.startswith("development")
    assert image.startswith("production")
    for verb in ("soperator venv", "infra/image/build.sh", "soperator manifest"):
        assert verb in PAGE
