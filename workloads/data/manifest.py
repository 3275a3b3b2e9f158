"""Files of a data set, and what they were made from: a manifest, written last, of whole results.

Owns the manifest's fields, when a result is still current, and the frame of the commands that write
one. Hashes are SHA-256 of whole files; `code` is that of workloads/data, its settings and calls.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from workloads.common import atomic, exit_codes, tool_calls
from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.recipes import data as settings

FORMAT = 2  # in 1 functions and calls were text
_DATA_DIR = Path(__file__).parent


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex; reads it in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(path: Path, *endings: str) -> list[Path]:
    """Return the file `path`, or the files below folder `path` with one of `endings`, sorted.

    Hidden files and folders are left out: downloads keep their bookkeeping in them.
    """
    if path.is_file():
        return [path]
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file()
        and (not endings or file.suffix in endings)
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step that reads `inputs` and leaves its manifest at `path`."""

    name: str
    path: Path
    config: Any
    """A dataclass, or plain values."""
    inputs: Sequence[Path]
    tokenizer: Sequence[Path] = field(default=())

    def is_current(self) -> bool:
        """Whether an earlier run made just this, and nothing has changed since; says which."""
        if not self.path.exists():
            return False
        try:
            old = read_manifest(self.path)
        except DataError:
            log(f"{self.path}: is no manifest of this version; making it anew")
            return False
        changed = [name for name, value in self._made_from.items() if old.get(name) != value]
        if changed:
            log(f"{self.path.parent}: {', '.join(changed)} changed; making it anew")
            return False
        entries = {self.path.parent / name: entry for name, entry in old["outputs"].items()}
        damaged = [
            path.name
            for path, entry in entries.items()
            if not path.is_file() or _entry(path) != entry
        ]
        if damaged:
            log(f"{', '.join(damaged)}: missing or changed since it was made; making it anew")
            return False
        log(f"{self.path}: nothing changed since it was made; nothing to do")
        return True

    def finish(self, outputs: Sequence[Path], counts: Mapping[str, Any]) -> None:
        """Write the manifest beside `outputs`, which are whole."""
        folder = outputs[0].parent
        atomic.write_text(
            folder / self.path.name,
            json.dumps(
                {
                    **self._made_from,
                    "outputs": {path.name: _entry(path) for path in outputs},
                    "counts": dict(counts),
                },
                indent=2,
            )
            + "\n",
        )

    @cached_property
    def _made_from(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "step": self.name,
            # Through JSON, so that tuples compare with what was read back.
            "config": json.loads(json.dumps(self.config, default=_plain)),
            "inputs": {str(path): _entry(path) for path in self.inputs},
            "tokenizer": {path.name: sha256(path) for path in self.tokenizer} or None,
            "code": _code(),
        }


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the fields of a manifest of this version."""
    fields = read_object(path)
    if fields.get("format") != FORMAT:
        raise DataError(f"{path}: made by another version; run prepare-data again")
    return fields


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


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line of a file that is not empty."""
    try:
        # Neither splitlines() nor read_text(): JSON may hold U+2028, U+0085 and a bare CR as they
        # are, and they end no line of it.
        lines = path.read_bytes().decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                yield number, json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error


def _plain(value: Any) -> dict[str, Any]:
    """Return a dataclass or a mapping as what JSON knows."""
    if isinstance(value, Mapping):
        return dict(value)
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def _entry(path: Path) -> dict[str, Any]:
    return {"size_bytes": path.stat().st_size, "sha256": sha256(path)}


@cache
def _code() -> str:
    digest = hashlib.sha256()
    others = (Path(each.__file__ or "") for each in (tool_calls, settings))
    for path in [*sorted(_DATA_DIR.glob("*.py")), *others]:
        digest.update(f"{path.name}:{sha256(path)}\n".encode())
    return digest.hexdigest()


def command(run: Callable[[], None]) -> int:
    """Run a command; return its exit status; a refusal or a full filesystem is one line."""
    try:
        run()
    except Exception as error:
        if not isinstance(error, exit_codes.WorkloadError) and exit_codes.full_text(error) is None:
            raise
        code = exit_codes.exit_code_of(error)
        log(f"{code.name} (exit {int(code)}): {exit_codes.reason_of(error)}")
        return int(code)
    return int(exit_codes.ExitCode.OK)
