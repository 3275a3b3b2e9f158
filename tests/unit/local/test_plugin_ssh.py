"""A copy that the other side has no room for is a refusal with what to do, not a riddle."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from infra.local.plugins.command import copy_content
from infra.providers.engine.provider import ProviderError


class FullDisk:
    """An SFTP server whose disk holds two bytes of any file."""

    def stat(self, path: str) -> Any:
        is_file = path.endswith(".txt")
        return SimpleNamespace(st_mode=0 if is_file else stat.S_IFDIR, st_size=2)

    def put(self, local: str, remote: str, *, confirm: bool) -> None: ...


def test_a_full_disk_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0123")
    with pytest.raises(ProviderError, match=r"2 of 4 bytes arrived: its filesystem is full"):
        copy_content(cast("Any", FullDisk()), f"{tmp_path}/", "/there")
    (tmp_path / "a.txt").write_text("01")
    copy_content(cast("Any", FullDisk()), f"{tmp_path}/", "/there")
