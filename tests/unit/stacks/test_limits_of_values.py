"""A value that no table could show, and a file that nobody could read, are refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stacks.check import check
from stacks.load import StackError, load_stack
from tests.unit.stacks.conftest import load

FROM_TO = "expected a number from 0.000000001 to 1,000,000,000,000"


def problems_of(config: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(StackError) as caught:
        load(config)
    return caught.value.problems


@pytest.mark.parametrize("number", [10**12 + 1, 10**400])
def test_a_count_that_no_cluster_has_is_refused(config: dict[str, Any], number: int):
    config["chat"]["chats_per_day"] = number
    assert problems_of(config) == (f"demo.chat.chats_per_day: {FROM_TO}, got number {number}",)


def test_more_nodes_than_kubernetes_holds_are_refused_before_anything_counts_them(
    config: dict[str, Any],
):
    """Names of a set's node groups are made one by one: 10**12 nodes took hours."""
    config["nodes"]["workers"][0]["nodes"] = 10**12
    wanted = "expected a whole number from 1 to 5,000, got 1000000000000"
    assert problems_of(config) == (f"demo.nodes.workers[0].nodes: {wanted}",)
    config["nodes"]["workers"][0]["nodes"] = 5_000
    load(config)


def test_a_key_that_would_outlive_ten_years_is_refused(config: dict[str, Any]):
    """Its end would be no date: 10**9 days are the year 2,739,000."""
    config["storage"]["backup"] = {"size_gib": 64, "keep_daily": 7, "key_days": 10**9}
    wanted = "expected a whole number from 1 to 3,650, got 1000000000"
    assert problems_of(config) == (f"demo.storage.backup.key_days: {wanted}",)


def test_a_drain_that_would_wait_for_more_than_a_year_is_refused(config: dict[str, Any]):
    """10**12 s are no duration of the API, which ends at 315,576,000,000."""
    config["nodes"]["workers"][0]["strategy"] = {"drain_timeout_s": 10**12}
    wanted = "expected a whole number from 0 to 31,622,400, got 1000000000000"
    path = "demo.nodes.workers[0].strategy.drain_timeout_s"
    assert problems_of(config) == (f"{path}: {wanted}",)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (
            lambda c: c["nodes"]["login"]["boot_disk"].update(size_gib=262_144),
            "nodes.login.boot_disk",
        ),
        (
            lambda c: c["nodes"]["workers"][0].update(
                image_disk={"size_gib": 186_000, "type": "network-ssd-io-m3"}
            ),
            "nodes.workers[0].image_disk",
        ),
        (
            lambda c: c["soperator"].update(nfs_home={"size_gib": 102_400}),
            "soperator.nfs_home",
        ),
    ],
)
def test_a_disk_that_was_meant_in_mib_is_doubted(
    config: dict[str, Any], change: Callable[[dict[str, Any]], None], path: str
):
    """512 GiB in MiB, on each node, was priced without a word."""
    config.setdefault("soperator", {})
    assert "storage.disk-large" not in {each.rule for each in check(load(config))}
    change(config)
    (doubt,) = [each for each in check(load(config)) if each.rule == "storage.disk-large"]
    assert doubt.path == f"demo.{path}.size_gib"


@pytest.mark.parametrize("key", ["config_bucket_gib", "registry_gib"])
def test_a_bucket_of_pebibytes_is_refused(config: dict[str, Any], key: str):
    config["storage"][key] = (4 << 20) + 1
    wanted = "expected a whole number from"
    (problem,) = problems_of(config)
    assert problem.startswith(f"demo.storage.{key}: {wanted}")


@pytest.mark.parametrize("key", ["config_bucket_gib", "registry_gib"])
def test_a_bucket_and_a_registry_of_less_than_one_gib_are_declared_as_0(
    config: dict[str, Any], key: str
):
    """docs/journeys/04-code-on-the-cluster.md tells to write `storage.registry_gib: 0`."""
    config["storage"][key] = 0
    assert getattr(load(config).storage, key) == 0


def test_a_label_called_platform_keeps_its_text(config: dict[str, Any]):
    """Only the key of a node group has other names for a platform of the API."""
    config["nodes"]["workers"][0]["labels"] = {"platform": "gpu-h200"}
    assert load(config).nodes.workers[0].labels == {"platform": "gpu-h200"}


@pytest.mark.parametrize("number", ["1e400", "1E-300"])
def test_a_speed_that_nothing_has_is_refused(config: dict[str, Any], number: str):
    speed = {"scenario": "s", "output_tokens_per_s": Decimal(number), "source": "x"}
    config["chat"]["speeds"] = [speed]
    (problem,) = problems_of(config)
    assert problem.startswith(f"demo.chat.speeds[0].output_tokens_per_s: {FROM_TO}, got number 1E")


@pytest.mark.parametrize("text", ["two\nlines", "a\tb", "bell\a", "turned \u202e round"])
def test_text_that_would_break_a_table_is_refused(config: dict[str, Any], text: str):
    config["chat"]["model"] = text
    wanted = f"expected one line of printable text, got text {text!r}"
    assert problems_of(config) == (f"demo.chat.model: {wanted}",)


def test_a_text_of_pages_is_refused_and_shown_in_part(config: dict[str, Any]):
    """It stood in every message and table whole."""
    config["chat"]["model"] = "a" * 4096
    assert load(config).chat.model == "a" * 4096
    config["chat"]["model"] += "b"
    start = "a" * 80
    wanted = f"expected at most 4,096 characters, got text '{start}'... of 4,097 characters"
    assert problems_of(config) == (f"demo.chat.model: {wanted}",)
    config["chat"]["model"], config["chat"]["context_tokens"] = "a", "a" * 81
    (problem,) = problems_of(config)
    assert problem.endswith(f"expected a whole number, got text '{start}'... of 81 characters")


def test_a_key_of_two_lines_is_refused_in_one(config: dict[str, Any]):
    config["chat"]["a\nb: fine"] = 1
    (problem,) = problems_of(config)
    assert problem.startswith("demo.chat.a\\x0ab: fine: unknown key")


@pytest.mark.parametrize("text", ["", "  "])
def test_a_blank_text_is_refused_as_what_it_is(config: dict[str, Any], text: str):
    config["chat"]["model"] = text
    wanted = f"expected text that is not blank, got text {text!r}"
    assert problems_of(config) == (f"demo.chat.model: {wanted}",)


@pytest.mark.parametrize("content", ["# of root\nset -o vi\n\tx\n", "x" * (1 << 20)])
def test_a_file_of_the_jail_may_have_lines_and_as_much_as_a_config_map(
    config: dict[str, Any], content: str
):
    config["soperator"] = {"jail_files": [{"path": "/etc/motd", "content": content}]}
    assert load(config).soperator.jail_files[0].content == content


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("", "1 to 1,048,576 characters, got text ''"),
        (
            "x" * ((1 << 20) + 1),
            f"1 to 1,048,576 characters, got text {'x' * 80!r}...",
        ),
        ("a\x00b", "lines of printable text, got text 'a\\x00b'"),
        (5, "text, got number 5; put it in quotes"),
    ],
)
def test_a_file_of_the_jail_that_no_config_map_takes_is_refused(
    config: dict[str, Any], content: object, wanted: str
):
    config["soperator"] = {"jail_files": [{"path": "/etc/motd", "content": content}]}
    (problem,) = problems_of(config)
    assert problem.startswith(f"demo.soperator.jail_files[0].content: expected {wanted}")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 3_000, b"config: [\n"])
def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, content: bytes):
    (tmp_path / "Pulumi.demo.yaml").write_bytes(content)
    with pytest.raises(StackError, match=r"cannot be read|is not valid YAML") as caught:
        load_stack("demo", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_a_stack_file_is_refused_by_name(tmp_path: Path):
    (tmp_path / "Pulumi.demo.yaml").mkdir()
    with pytest.raises(StackError, match=r"^demo: .*Pulumi\.demo\.yaml cannot be read: "):
        load_stack("demo", tmp_path)


@pytest.mark.parametrize("size_gib", [(4 << 20) + 1, 262_075_000_000])
def test_a_size_that_was_meant_in_other_units_is_refused(config: dict[str, Any], size_gib: int):
    config["nodes"]["workers"][0]["boot_disk"]["size_gib"] = size_gib
    wanted = f"expected a whole number from 1 to 4,194,304, got {size_gib}"
    assert problems_of(config) == (f"demo.nodes.workers[0].boot_disk.size_gib: {wanted}",)
