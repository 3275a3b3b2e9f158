"""Rows of the tasks beside causal_lm: what is read, what is cut, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workloads.train.config import TrainConfig
from workloads.train.tasks import open_task

TEXTS: dict[str, Any] = {"task": "text_classification", "sequence_length": 12}


def opened(folder: Path, model_dir: Path, **values: Any) -> Any:
    """Returns the task of these settings over the rows in `folder`."""
    config = TrainConfig(dataset="rows", method="full", max_steps=1, learning_rate=0.1, **values)
    return open_task(config, model="tiny", model_dir=model_dir, dataset=folder)


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    """Writes `rows` as lines; returns their folder."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "rows_train.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_a_row_ends_where_its_line_ends(tmp_path: Path, model_dir: Path) -> None:
    """Not at U+2028 or U+0085, which JSON may hold as they are."""
    write(tmp_path, {"text": "a\u2028b", "label": 0}, {"text": "c\u0085d", "label": 1})
    assert [row.labels for row in opened(tmp_path, model_dir, **TEXTS).rows] == [(0,), (1,)]
