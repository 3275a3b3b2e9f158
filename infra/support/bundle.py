"""A support bundle: parts, redacted, in one tar of mode 0600 with a list of what is in it.

Owns the format. Uploads nothing: who sends it has read the list first.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from infra.support.part import Gathered, Part, gather
from infra.support.redact import Redactor

INDEX: Final = "INDEX.txt"
_LONGEST: Final = 2_000_000
"""Characters of one part that are kept, the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What was written."""

    path: Path
    index: str
    not_run: tuple[Gathered, ...]


def write_bundle(
    parts: Iterable[Part],
    path: Path,
    *,
    stack: str,
    redactor: Redactor,
    now: datetime,
    say: Callable[[str], None],
) -> Bundle:
    """Gather, redact and write; the file appears whole or not at all."""
    folder = path.name.removesuffix(".gz").removesuffix(".tar")
    done: list[Gathered] = []
    texts: dict[str, bytes] = {}
    for part in parts:
        say(part.name)
        found = gather(part)
        done.append(found)
        if found.text is not None:
            texts[part.name] = redactor.text(_cut(found.text)).encode()
    index = redactor.text(_index(done, texts, stack=stack, now=now))
    index += f"redacted: {redactor.num_redacted} places\n"
    texts = {INDEX: index.encode(), **texts}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for name, data in texts.items():
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(now.timestamp())
                archive.addfile(entry, io.BytesIO(data))
        _place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    missing = tuple(each for each in done if each.text is None)
    return Bundle(path=path, index=index, not_run=missing)


def _place(temporary: Path, path: Path) -> None:
    """Give the file its name; FileExistsError where another has it by now."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        # A filesystem without second names.
        temporary.replace(path)


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    # Of a line without its begin nobody can say whether it was called a secret.
    kept = text[-_LONGEST:].partition("\n")[2]
    return f"... {len(text) - len(kept)} characters before this are left out\n{kept}"


def _index(done: Iterable[Gathered], texts: dict[str, bytes], *, stack: str, now: datetime) -> str:
    lines = [
        f"Support bundle of stack {stack}, {now:%Y-%m-%d %H:%M:%S} UTC.",
        "Nothing was sent anywhere. Read it before you do: secrets are taken out by value and by",
        "shape, but names of your jobs, nodes and files are in it.",
        "",
    ]
    for each in done:
        if each.text is None:
            lines.append(f"NOT RUN  {each.part.name}: {each.part.says}: {each.reason}")
            continue
        data = texts[each.part.name]
        digest = hashlib.sha256(data).hexdigest()
        lines.append(f"{len(data):>9} bytes  {each.part.name}: {each.part.says}  sha256 {digest}")
    return "\n".join(lines) + "\n"
