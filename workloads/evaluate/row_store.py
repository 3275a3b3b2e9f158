"""Finished rows on disk: each is written as it ends, so a lost rank loses none of them.

Owns `<results>/rows/<header key>/`: header.json, and one file of JSON lines a job and rank. A
second run with the same header goes on with what is missing; other headers have other folders.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from workloads.common import atomic
from workloads.common.record import job_id
from workloads.evaluate.header import Header

Part = Literal["answer", "loss"]


class RowStore:
    """Rows of one header; every rank appends to a file of its own."""

    def __init__(self, results: Path, header: Header, *, rank: int) -> None:
        self.folder = results / "rows" / header.key
        self.folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            text = json.dumps(header.to_json(), indent=2) + "\n"
            atomic.write_text(self.folder / "header.json", text)
        self._path = self.folder / f"{job_id()}.{rank}.jsonl"

    def finished(self, part: Part) -> dict[int, dict[str, Any]]:
        """Return the rows that any run has finished; a line that a kill cut is not one."""
        rows: dict[int, dict[str, Any]] = {}
        for path in sorted(self.folder.glob("*.jsonl")):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    value = json.loads(line)
                    if value["part"] == part:
                        rows[int(value["row"])] = value
                except (ValueError, KeyError, TypeError):
                    continue
        return rows

    def add(self, part: Part, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Append rows and flush them to the disk."""
        lines = [json.dumps({"part": part, "row": row, **values}) for row, values in rows.items()]
        with atomic.writing(self._path), self._path.open("ab") as file:
            # The end of a line that a kill cut, so that it takes no new row with it.
            lead = b"\n" if file.tell() and not _ends_line(self._path) else b""
            file.write(lead + "".join(f"{line}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
