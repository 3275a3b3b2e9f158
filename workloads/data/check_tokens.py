"""Whether tokenised rows are those of a model, told before its weights are read.

Token ids mean nothing to another model: it learns noise from them and ends well. Ids above its
vocabulary end a rank inside an embedding, on a GPU as a failure of the device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import DataError
from workloads.data.dataset_tokenize import tokenizer_files
from workloads.data.files import sha256
from workloads.data.manifest import read_manifest
from workloads.data.token_rows import TokenRows


def check_tokens(file: Path, rows: TokenRows, *, model_dir: Path) -> None:
    """Refuse the `rows` of a tokenised file where another model's tokenizer made them.

    Without a manifest beside the file only the ids tell.
    """
    _check_ids(file, rows, model_dir)
    for manifest in (file.with_name(f"{file.name}.manifest.json"), file.parent / "manifest.json"):
        if not manifest.is_file():
            continue
        made_by = read_manifest(manifest).get("tokenizer")
        if not isinstance(made_by, dict):
            return
        here = {path.name: sha256(path) for path in tokenizer_files(model_dir)}
        names = [name for name in {**made_by, **here} if made_by.get(name) != here.get(name)]
        if names:
            raise DataError(
                f"{file}: made with another tokenizer than that of {model_dir}: {', '.join(names)} "
                "not the same; run prepare-data with this model, into an output of its own"
            )
        return


def _check_ids(file: Path, rows: TokenRows, model_dir: Path) -> None:
    size = _vocabulary(model_dir)
    if size is None or not rows.num_tokens:
        return
    for token in (int(rows.input_ids.min()), int(rows.input_ids.max())):
        if not 0 <= token < size:
            raise DataError(
                f"{file}: holds token id {token}, but {model_dir} knows the ids 0 to {size - 1}; "
                "run prepare-data with this model"
            )


def _vocabulary(model_dir: Path) -> int | None:
    """Return the size of the model's embedding; None where its config does not say."""
    path = model_dir / "config.json"
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    for part in (config, config.get("text_config")) if isinstance(config, dict) else ():
        if isinstance(part, dict) and isinstance(part.get("vocab_size"), int):
            return part["vocab_size"]
    return None
