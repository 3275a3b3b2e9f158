"""Files of Slurm against each other: what the operator writes and what our local stack writes.

Owns the reading of a file into keys and the table of known differences (slurm_conf.tsv). A key of a
NodeName or PartitionName line is `nodename.worker-0.state`: what two nodes have is never one value.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from infra.clients.slurm import expand

TABLE: Final = Path(__file__).with_name("slurm_conf.tsv")
ABSENT: Final = "-"
_OF_NODES: Final = ("nodename", "partitionname")
"""Keys that begin a line of many pairs."""
_DECLARED: Final = "declared"
"""Value of a node or partition that has a line."""
_NODES: Final = ("suspendexcnodes",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One key that the two files have differently."""

    file: str
    key: str
    real: str
    local: str

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: real {self.real}, local {self.local}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One row of the table; its key and values are patterns as file names have them."""

    file: str
    key: str
    real: str
    local: str
    effect: str
    """What it means for jobs."""

    def covers(self, one: Difference) -> bool:
        """Whether the row speaks of the difference."""
        pairs = ((self.key.lower(), one.key.lower()), (self.real, one.real))
        pairs += ((self.local, one.local),)
        return self.file == one.file and all(fnmatchcase(value, like) for like, value in pairs)


def known(path: Path = TABLE) -> list[Known]:
    """The table."""
    with path.open(encoding="utf-8", newline="") as file:
        return [Known(**row) for row in csv.DictReader(file, delimiter="\t")]


def expanded(files: Mapping[str, str], name: str) -> str | None:
    """A file with what it includes in its place; None where it is not there."""
    if name not in files:
        return None
    lines = []
    for line in _lines(files[name]):
        first, _, rest = line.partition(" ")
        lines.append(files.get(rest.strip(), "") if first.lower() == "include" else line)
    return "\n".join(lines)


def differences(file: str, real: str | None, local: str | None) -> Iterator[Difference]:
    """Keys of one file that differ."""
    if real is None or local is None:
        if real is not local:
            present = [ABSENT if text is None else "present" for text in (real, local)]
            yield Difference(file=file, key="the file", real=present[0], local=present[1])
        return
    left, right = read(real), read(local)
    for key in sorted({*left, *right}):
        here, there = left.get(key, set()), right.get(key, set())
        if here != there:
            yield Difference(file=file, key=key, real=_rest(here, there), local=_rest(there, here))


def _rest(values: set[str], others: set[str]) -> str:
    """What one side alone has; of a list of words, the words that the other's list lacks."""
    if len(values) == len(others) == 1:
        (value,), (other,) = values, others
        taken = other.split(",")
        return ",".join(each for each in value.split(",") if each not in taken) or ABSENT
    return " | ".join(sorted(values)) or ABSENT


def read(text: str) -> dict[str, set[str]]:
    """Key in small letters -> its values: the last one, and every one of a node's several lines.

    Node sets are put in for their names, so that only which nodes a partition has is compared.
    """
    sets = {
        words[0].partition("=")[2]: words[1].partition("=")[2]
        for line in _lines(text)
        if (words := line.split())[0].lower().startswith("nodeset=")
    }
    found: dict[str, set[str]] = {}
    for line in _lines(text):
        first, _, rest = line.partition("=")
        key = first.strip().lower()
        if key == "nodeset":
            continue
        if key not in _OF_NODES:
            found[key] = {_nodes(rest.strip()) if key in _NODES else _as_set(rest.strip())}
            continue
        names, *words = rest.split()
        for name in expand(names):
            found[f"{key}.{name}"] = {_DECLARED}
            for word in words:
                inner, _, value = word.partition("=")
                if (key, inner.lower()) == ("partitionname", "nodes"):
                    value = ",".join(sets.get(each, each) for each in value.split(","))
                    value = _nodes(value)
                whole = f"{key}.{name}.{inner.lower()}"
                found.setdefault(whole, set()).add(_as_set(value))
    return found


def _nodes(value: str) -> str:
    return ",".join(sorted(expand(value)))


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if bare := line.partition("#")[0].strip():
            yield bare


def _as_set(value: str) -> str:
    """The order of a list of words does not matter."""
    return ",".join(sorted(value.strip("\"'").split(",")))


def unlisted(found: Iterable[Difference], rows: Iterable[Known]) -> list[Difference]:
    """Differences that no row speaks of."""
    table = list(rows)
    return [one for one in found if not any(row.covers(one) for row in table)]
