"""What a result was made from, as hashes: results are compared, and rows taken up, only by it.

Owns the fields and which of them two results must share.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import DataError
from workloads.data.files import sha256

FORMAT = 1
_FILES = ("*.safetensors", "config.json", "generation_config.json", "adapter_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Model, rows, prompts and settings behind one model's rows."""

    format: int
    model: str
    base_sha256: str
    """Of the recipe's model."""
    tuned_sha256: str | None
    """Of the adapter or the trained model; None: the recipe's model answered."""
    rows_sha256: str
    """Of the chats and of the tokenised rows."""
    prompts_sha256: str
    """Of the token ids that the model read: template and tokenizer are in it."""
    settings: Mapping[str, Any]
    code_sha256: str

    @property
    def key(self) -> str:
        """Return the name of the folder that holds the rows."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def read_header(value: Any, *, at: Path) -> Header:
    """Return the header in a result file."""
    fields = set(Header.__dataclass_fields__)
    if not isinstance(value, dict) or set(value) != fields or value["format"] != FORMAT:
        raise DataError(
            f"{at}: has no header of format {FORMAT}; make it with an inference job of this version"
        )
    return Header(**value)


def differences(original: Header, trained: Header) -> list[str]:
    """Return why two results are not of the same rows and base model; empty when they are."""
    problems: list[str] = []
    for name, what in (
        ("rows_sha256", "other rows"),
        ("prompts_sha256", "other prompts"),
        ("base_sha256", "another base model"),
        ("settings", "other settings"),
        ("code_sha256", "another version of the code"),
    ):
        before, after = getattr(original, name), getattr(trained, name)
        if before != after:
            problems.append(f"{what} ({_short(before)} and {_short(after)})")
    if original.tuned_sha256 is not None:
        problems.append("the original results are of a trained model")
    if trained.tuned_sha256 is None:
        problems.append("the trained results are of the original model")
    return problems


def model_sha256(folder: Path) -> str:
    """Return the hash of a model's or adapter's weights and configuration."""
    digest = hashlib.sha256()
    paths = sorted(path for pattern in _FILES for path in folder.glob(pattern))
    if not any(path.suffix == ".safetensors" for path in paths):
        raise DataError(f"{folder}: has no .safetensors file; copy the whole model there")
    for path in paths:
        digest.update(f"{path.name}:{_file_sha256(path)}\n".encode())
    return digest.hexdigest()


def _file_sha256(path: Path) -> str:
    if path.name != "adapter_config.json":
        return sha256(path)
    # The folder that the base model lay in at training says nothing about the adapter.
    values = {**read_object(path), "base_model_name_or_path": None}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; a missing or damaged one is told with its path."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path}: is damaged, not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: is damaged: {type(value).__name__}, expected an object")
    return value


def prompts_sha256(prompts: Sequence[Sequence[int]]) -> str:
    """Return the hash of token ids."""
    text = json.dumps([list(prompt) for prompt in prompts], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def code_sha256() -> str:
    """Return the hash of what turns prompts into answers and losses."""
    digest = hashlib.sha256()
    for name in ("generate.py", "perplexity.py", "adapter.py"):
        digest.update(f"{name}:{sha256(Path(__file__).with_name(name))}\n".encode())
    return digest.hexdigest()


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) else json.dumps(value, sort_keys=True)
