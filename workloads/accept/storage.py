"""What each place gives every node at once: in a row, at random, and in small files.

Past the page cache (O_DIRECT) where the filesystem can. Each node reads what its neighbour wrote,
so a place that is not shared shows. Owns its folder `.accept-*` in each place, and removes it.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import re
import shutil
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workloads.accept.gates import Check, fact, not_run
from workloads.common import atomic
from workloads.common.exit_codes import WorkloadError
from workloads.common.places import filesystem_of, own_folder
from workloads.recipes.accept import StorageConfig

_MB = 10**6
_KIB = 1024
PRIVATE_PLACES = ("scratch",)
"""Places that each node has for itself."""
_TIMES_TOGETHER = 5
_STAMP = struct.Struct("<QQ")
"""Node and block, at the head of each block."""


def targets(places: Mapping[str, Path], mounts: Sequence[str]) -> dict[str, Path]:
    """Return what is measured, by name: the places, and each mount that no place lies on."""
    paths = [Path(each) for each in mounts]
    found = dict(places)
    measured = {
        max(over, key=lambda each: len(each.parts))
        for place in places.values()
        if (over := [each for each in paths if place.is_relative_to(each)])
    }
    for path in paths:
        if path in measured:
            continue
        # As acceptance.schema.json has the end of a check's id.
        name = re.sub("[^a-z0-9]+", "_", str(path).lower().strip("/"))
        # A place's name is that place's; scratch would be judged as each node's own.
        while name in found or name in PRIVATE_PLACES:
            name = f"mount_{name}"
        found[name] = own_folder(path)
    return found


def measure_place(
    place: str,
    path: Path,
    config: StorageConfig,
    *,
    run: str,
    nodes: Sequence[str],
    index: int | None,
    together: Callable[[], None],
) -> dict[str, Any] | None:
    """Return one node's rates on one place; `together` waits for all ranks.

    `index` is the node that this rank measures, in `nodes`; None: it waits for those that do.
    """
    if index is None:
        for _ in range(_TIMES_TOGETHER):
            together()
        return None
    num_nodes = len(nodes)
    block, blocks = _blocks(config)
    folder = atomic.own_folder(path / f".accept-{run}", below=path)
    mine, theirs = folder / f"{index}.data", folder / f"{(index + 1) % num_nodes}.data"
    try:
        together()
        write_s, is_direct = _write(mine, index, block, blocks)
        together()
        is_shared = theirs.exists()
        source, owner = (theirs, (index + 1) % num_nodes) if is_shared else (mine, index)
        read_s, wrong = _read(source, owner, block, blocks)
        together()
        latencies = _random(source, config, blocks * block)
        together()
        creates, stats, deletes = _small(folder / f"small-{index}", config.small_files)
        together()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    latencies.sort()
    size = blocks * block
    return {
        "place": place,
        "path": str(path),
        "filesystem": filesystem_of(path),
        "node": nodes[index],
        # Whether O_DIRECT worked; else the page cache was in the way.
        "is_direct": is_direct,
        # Whether the neighbour's file was there.
        "is_shared": is_shared and num_nodes > 1,
        "write_gb_per_s": size / write_s / 1e9,
        "read_gb_per_s": size / read_s / 1e9,
        "random_reads_per_s": 1 / statistics.fmean(latencies),
        "random_read_p99_ms": 1000 * latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))],
        "creates_per_s": creates,
        "stats_per_s": stats,
        "deletes_per_s": deletes,
        "wrong_blocks": wrong,
    }


def judge(
    rows: Sequence[dict[str, Any]], left_out: dict[str, str], node_local: Sequence[str] = ()
) -> list[Check]:
    """Return: what was written was read, by the neighbour too; places without room are NOT RUN."""
    checks = [
        not_run(f"storage.{place}", why, subject=place) for place, why in sorted(left_out.items())
    ]
    for place in dict.fromkeys(row["place"] for row in rows):
        mine = [row for row in rows if row["place"] == place]
        wrong = [row for row in mine if row["wrong_blocks"]]
        alone = [row for row in mine if not row["is_shared"]]
        is_private = place in node_local or len(mine) == 1
        bad = wrong or ([] if is_private else alone)
        said = ", ".join(f"{row['node']}: {row['wrong_blocks']} wrong blocks" for row in wrong)
        if not wrong:
            names = ", ".join(row["node"] for row in alone)
            said = f"{names}: the neighbour's file is not there: {mine[0]['path']} is not shared"
        checks.append(
            fact(
                f"storage.{place}",
                not bad,
                subject=f"{mine[0]['path']} on {len(mine)} nodes at once",
                nodes=sorted({row["node"] for row in bad}),
                reason=said,
                context={"filesystem": mine[0]["filesystem"], "direct": mine[0]["is_direct"]},
            )
        )
    return checks


def trouble(place: str, path: Path, config: StorageConfig, num_nodes: int) -> str | None:
    """Return why a place cannot be measured; None where it can. Half of what is free stays so."""
    block, blocks = _blocks(config)
    needed = (1 if place in PRIVATE_PLACES else num_nodes) * blocks * block
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return f"{place}: {path}: {error.strerror}; mount it, or leave it out of accept.storage"
    if free < 2 * needed:
        return (
            f"{place}: {path} has {free / 1e9:.1f} GB free, the files of its nodes take "
            f"{needed / 1e9:.1f}: lower accept.storage.file_mb"
        )
    if not os.access(path, os.W_OK):
        return f"{place}: {path} cannot be written: leave it out of accept.storage.places"
    return None


def _blocks(config: StorageConfig) -> tuple[int, int]:
    """Bytes of a block, and blocks of a file."""
    block = config.block_kib * _KIB
    return block, max(1, config.file_mb * _MB // block)


def _write(path: Path, index: int, block: int, blocks: int) -> tuple[float, bool]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with _opened(path, flags, block) as (file, buffer, is_direct):
        buffer.write(_payload(index, block))
        began = time.perf_counter()
        for number in range(blocks):
            _STAMP.pack_into(buffer, 0, index, number)
            if os.write(file, buffer) != block:
                raise WorkloadError(f"{path}: a block was cut short: the place is full")
        os.fsync(file)
        return time.perf_counter() - began, is_direct


def _read(path: Path, owner: int, block: int, blocks: int) -> tuple[float, int]:
    """Seconds of reading alone, and how many blocks are not what their owner wrote."""
    expected = bytearray(_payload(owner, block))
    with _opened(path, os.O_RDONLY, block) as (file, buffer, _):
        wrong, seconds = 0, 0.0
        for number in range(blocks):
            began = time.perf_counter()
            got = os.readv(file, [buffer])
            seconds += time.perf_counter() - began
            _STAMP.pack_into(expected, 0, owner, number)
            wrong += got != block or buffer[:] != expected
        return seconds, wrong


def _payload(owner: int, block: int) -> bytes:
    return random.Random(owner).randbytes(block)


def _random(path: Path, config: StorageConfig, size: int) -> list[float]:
    length = config.random_block_kib * _KIB
    draw = random.Random(0)
    latencies: list[float] = []
    with _opened(path, os.O_RDONLY, length) as (file, buffer, _):
        for _ in range(config.random_reads):
            offset = draw.randrange(size // length) * length
            began = time.perf_counter()
            os.preadv(file, [buffer], offset)
            latencies.append(time.perf_counter() - began)
    return latencies


def _small(folder: Path, count: int) -> tuple[float, float, float]:
    folder.mkdir()
    paths = [folder / str(number) for number in range(count)]

    def rate(act: Callable[[Path], object]) -> float:
        began = time.perf_counter()
        for path in paths:
            act(path)
        return count / (time.perf_counter() - began)

    return rate(lambda path: path.write_bytes(b"x")), rate(Path.stat), rate(Path.unlink)


@contextmanager
def _opened(path: Path, flags: int, size_bytes: int) -> Iterator[tuple[int, mmap.mmap, bool]]:
    """The file, a buffer, and whether they pass the page cache, as the filesystem can."""
    buffer = mmap.mmap(-1, size_bytes)  # page-aligned, as O_DIRECT wants it
    try:
        file, is_direct = os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        file, is_direct = os.open(path, flags, 0o600), False
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        yield file, buffer, is_direct
    finally:
        os.close(file)
        buffer.close()
