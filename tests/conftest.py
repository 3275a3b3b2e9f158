"""Fixtures for every tier: golden files and an SSH public key for the stack files."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from infra.local.slurm.pod import FAST_SETTING
from tests import nightly  # noqa: F401 (registers the profiles of Hypothesis)

# Waits of Slurm that tests of recovery would sit through; 0 in the environment keeps the real ones.
os.environ.setdefault(FAST_SETTING, "1")
# A fifth of what an API server computes from its start is Go's search for garbage.
os.environ.setdefault("GOGC", "400")
# A matrix of the tests takes microseconds. Where other processes compute as well, a second thread
# gets its turn late, and the first spins until then: 25 s for a test of 0.4 s.
os.environ.setdefault("OMP_NUM_THREADS", "1")
GOLDEN_DIR = Path(__file__).parent / "golden"
# Made for the tests with ssh-keygen; its private half was thrown away.
PUBLIC_KEY = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJGVJRcWE02OPAsk5Nx3B3O4RMs6uxZK6tZKMTZEYFN tests"
)

# Tiers whose programs set-up installs: on CI a test of theirs that skips is a set-up that failed.
_INSTALLED_TIERS = ("engine", "local", "browser")
_NOT_SHIPPED = "which the project does not ship"


# Files that take minutes, longest first: one begun at the end would keep the others waiting. The
# first two take theirs at night.
LONGEST = (
    *("test_faults", "test_demo_recovery", "test_elastic", "test_attach", "test_team"),
    *("test_jobs", "test_slurm_cluster", "test_teams", "test_restore", "test_load_job"),
    *("test_users", "test_pods_started"),
    *("test_destroy_order", "test_init_stack", "test_node_life", "test_orphans"),
    *("test_no_secret_leaks", "test_program", "test_accept_hosts", "test_waiting"),
    *("test_planted_faults", "test_preflight", "test_run_config_life", "test_stack_with_nfs"),
    *("test_chat_page", "test_neighbours", "test_train_validation", "test_train_methods"),
    *("test_train_big", "test_notice", "test_checkpoint", "test_evaluate_models", "test_ranks"),
    *("test_benchmarks", "test_train", "test_evaluate", "test_train_faults"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, each whole; the others as they were."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """On CI (`CI=true`) a skip for a missing program is a failure that says so."""
    report = yield
    installed = any(item.get_closest_marker(tier) for tier in _INSTALLED_TIERS)
    if report.skipped and installed and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if _NOT_SHIPPED not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped on CI, where nothing may be missing: {reason}"
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --update-golden."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/golden/ from what the code prints now; review the diff",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("cost/l40s-dev.txt", text)`: the text must be that file's, to the byte."""
    update = bool(request.config.getoption("--update-golden"))

    def compare(name: str, text: str) -> None:
        path = GOLDEN_DIR / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing; run with --update-golden and review it"
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; see --update-golden"

    return compare


@pytest.fixture
def public_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A public key that the shipped stacks read through SOPERATOR_SSH_PUBLIC_KEY_FILE."""
    path = tmp_path / "id_ed25519.pub"
    path.write_text(PUBLIC_KEY + "\n", encoding="utf-8")
    monkeypatch.setenv("SOPERATOR_SSH_PUBLIC_KEY_FILE", str(path))
    return path
