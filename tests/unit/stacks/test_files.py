"""A file that somebody else names is read within bounds: no wait, no memory without end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import yaml

from cost.prices.book import PriceBookError, read_document
from cost.runs.invoice import read_invoice
from cost.size.shape import SizeError, load_shape
from stacks.errors import UserError
from stacks.files import read_text
from stacks.load import STACKS_DIR, StackError, load_stack


def no_file(folder: Path, kind: str) -> Path:
    """Something at a path that is no regular file of a reasonable size."""
    path = folder / "Pulumi.mine.yaml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        path.touch()
        os.truncate(path, 600 << 20)
    else:  # a character device without an end, as /dev/zero
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
            os.close(os.open(path, os.O_RDONLY))
        except PermissionError:
            pytest.skip("making a device needs root and a filesystem that allows devices")
    return path


KINDS = pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("fifo", "not a regular file"),
        ("device", "not a regular file"),
        ("folder", "Is a directory"),
        ("large", "more than"),
    ],
)


@KINDS
def test_a_key_file_is_refused_by_its_path(tmp_path: Path, kind: str, said: str) -> None:
    file = STACKS_DIR / "Pulumi.l40s-dev.yaml"
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    document["config"]["soperator-stack:login"]["ssh_public_keys"] = [
        f"file:{no_file(tmp_path, kind)}"
    ]
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.own.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(StackError, match=r"own\.login\.ssh_public_keys\[0\]: cannot read") as found:
        load_stack("own", tmp_path / "stacks")
    assert said.lower() in str(found.value)


@KINDS
def test_a_stack_file_is_refused(tmp_path: Path, kind: str, said: str) -> None:
    no_file(tmp_path, kind)
    with pytest.raises(StackError, match=rf"mine: .*cannot be read: .*{said}"):
        load_stack("mine", tmp_path)


@KINDS
def test_price_books_and_models_are_refused(tmp_path: Path, kind: str, said: str) -> None:
    path = no_file(tmp_path, kind)
    with pytest.raises(PriceBookError, match=said):
        read_document(path)
    (tmp_path / "model").mkdir()
    path.rename(tmp_path / "model" / "config.json")
    with pytest.raises(SizeError, match=said):
        load_shape(str(tmp_path / "model"))


@KINDS
def test_a_billing_export_is_refused(tmp_path: Path, kind: str, said: str) -> None:
    for name in ("export.csv", "export.csv.gz", "export.tar.gz"):
        path = no_file(tmp_path, kind).rename(tmp_path / name)
        with pytest.raises(UserError, match=said):
            read_invoice(path)


def test_a_file_of_proc_which_says_that_it_is_empty_is_read_within_the_bound() -> None:
    assert read_text(Path("/proc/self/status")).startswith("Name:")
    with pytest.raises(OSError, match="more than 0 KiB"):
        read_text(Path("/proc/self/status"), at_most_bytes=10)
