"""Whether test rows were trained on: equal prompts on both sides, by hash.

Owns which training sets count: the one beside the test split, and the one that the run of the
adapter names in its settings. Files must be those of their manifest: a set that was edited after
prepare-data proves nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import DataError
from workloads.common.places import Places
from workloads.data.chats import Chat, iter_jsonl
from workloads.data.files import sha256
from workloads.evaluate.header import read_object


def last_turn(chat: Chat) -> int:
    """Return the place of the assistant turn that models are asked for."""
    return max(i for i, message in enumerate(chat.messages) if message["role"] == "assistant")


def prompt_hash(chat: Chat) -> bytes:
    """Return the hash of everything before the last assistant turn, outer white space aside."""
    turns = [[m["role"], m["content"].strip()] for m in chat.messages[: last_turn(chat)]]
    return hashlib.sha256(json.dumps(turns).encode()).digest()


def check_manifest(dataset: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return the manifest of a prepared folder whose files are as it says."""
    path = dataset / "manifest.json"
    manifest = read_object(path)
    outputs = manifest.get("outputs")
    for name in names:
        file = dataset / name
        if not file.is_file():
            raise DataError(f"{file}: missing; run prepare-data first")
        entry = outputs.get(name) if isinstance(outputs, dict) else None
        if not isinstance(entry, dict) or entry.get("sha256") != sha256(file):
            raise DataError(f"{file}: changed since {path} was made; run prepare-data again")
    return manifest


def training_sets(dataset: Path, tuned_dir: Path | None, places: Places) -> list[Path]:
    """Return the prepared folders whose train split the tuned model may have seen."""
    folders = [dataset]
    if tuned_dir is not None:
        run = tuned_dir.parent.name  # <chkpt>/<job>/<run>/final
        # A second run of one job id is called `12-2`; its settings are in the folder of the job.
        for name in (run, run.partition("-")[0]):
            settings = places.path("results") / name / "config.json"
            if name and settings.is_file():
                train = read_object(settings).get("train")
                named = train.get("dataset") if isinstance(train, dict) else None
                if isinstance(named, str) and named != "generated":
                    folder = places.data_path(named)
                    if folder.resolve() != dataset.resolve():
                        folders.append(folder)
                break
    return folders


def overlapping(chats: Sequence[Chat], folders: Sequence[Path]) -> dict[str, list[str]]:
    """Return the ids of `chats` whose prompt a training set has, by its folder."""
    wanted = {prompt_hash(chat): chat.id for chat in chats}
    found: dict[str, list[str]] = {}
    for folder in folders:
        check_manifest(folder, ("chats_train.jsonl",))
        trained = (prompt_hash(chat) for chat in iter_jsonl(folder / "chats_train.jsonl"))
        ids = {wanted[each] for each in trained if each in wanted}
        if ids:
            found[str(folder)] = sorted(ids)
    return found


def refuse(found: dict[str, list[str]], *, num_rows: int) -> None:
    """Raise for test rows that were trained on."""
    if found:
        text = "; ".join(
            f"{folder}/chats_train.jsonl holds {len(ids)} of the {num_rows} test rows "
            f"(first: {ids[0]})"
            for folder, ids in found.items()
        )
        raise DataError(
            f"{text}: a model that trained on them is measured too well; take another "
            "evaluate.dataset, or set evaluate.force_overlap=true, which marks the result"
        )
