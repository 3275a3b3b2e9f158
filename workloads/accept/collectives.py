"""The sweep: all-reduce, all-gather, reduce-scatter and send-receive by message size.

Times torch's collectives (NCCL on GPUs, gloo on CPU) inside each node and over all, and checks the
values that arrive; reads what nccl-tests prints. Algorithm bandwidth is bytes over time, bus
bandwidth that times a factor of the collective.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Final

from workloads.accept.gates import Check, Gates, Node, ProgramError, fact, hold, not_run
from workloads.common.dist import World
from workloads.recipes.accept import CollectivesConfig

# From algorithm to bus bandwidth, n ranks. `size` is the whole message: what each rank ends with
# (all-gather) or starts with (reduce-scatter).
BUS_FACTORS: Final[dict[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "send_recv": lambda n: 1.0,
}
_TOLERANCE: Final = 0.02
"""Share by which a printed number may miss its formula: three digits are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One collective at one size."""

    op: str
    ranks: int
    bytes: int
    time_s: float
    """Of one call, the slowest rank's."""
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int | None = 0
    """Elements that arrived with another value; None: not looked at."""
    source: str = "torch"
    """`torch` or `nccl-tests`."""
    scope: str = "node"
    """`node` or `cluster`: ranks of one node, or of several."""
    nodes: tuple[str, ...] = ()


def transfer(op: str, ranks: int, num_bytes: int, time_s: float, **more: Any) -> Transfer:
    """Return the row of a collective that took `time_s`; `more` are further fields of it."""
    algbw = num_bytes / time_s / 1e9
    return Transfer(
        op=op,
        ranks=ranks,
        bytes=num_bytes,
        time_s=time_s,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=algbw * BUS_FACTORS[op](ranks),
        **more,
    )


def arithmetic_trouble(row: Transfer) -> str | None:
    """Return what is wrong with a row's own numbers; None where they agree with the formulas."""
    algbw = row.bytes / row.time_s / 1e9
    if _differ(algbw, row.algbw_gb_per_s):
        return (
            f"{row.bytes} bytes in {row.time_s:.6g} s are {algbw:.4g} GB/s, "
            f"not {row.algbw_gb_per_s:.4g}: another size or another time was meant"
        )
    factor = BUS_FACTORS[row.op](row.ranks)
    if _differ(row.algbw_gb_per_s * factor, row.busbw_gb_per_s):
        used = row.busbw_gb_per_s / row.algbw_gb_per_s if row.algbw_gb_per_s else 0
        return (
            f"bus factor {used:.4g} was used, {row.op} over {row.ranks} ranks has {factor:.4g}: "
            f"busbw is {row.algbw_gb_per_s * factor:.4g} GB/s, not {row.busbw_gb_per_s:.4g}"
        )
    return None


def _differ(one: float, other: float) -> bool:
    # Two decimals are printed: a small number has few digits. What is not a number differs.
    return not abs(one - other) <= max(_TOLERANCE * abs(one), 0.011)


PROGRAMS: Final = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "send_recv": "sendrecv_perf",
}
PART_BYTES = 16
"""Of each rank: the programs round a message down to parts of this size (src/all_gather.cu)."""
_NUMBER = r"[\d.]+(?:e[+-]?\d+)?"
# size count type redop root | time algbw busbw #wrong, out of place, then in place. Collectives
# without a reduction print `none` for redop; versions before 2.11 have no column root.
_ROW = re.compile(
    r"(?:^|\s)(?P<size>\d+)\s+(?P<count>\d+)\s+(?P<type>[a-z]+\w*)\s+(?P<redop>[a-z]+)\s+"
    r"(?:(?P<root>-?\d+)\s+)?"
    rf"(?P<time>{_NUMBER})\s+(?P<algbw>{_NUMBER})\s+(?P<busbw>{_NUMBER})\s+(?P<wrong>N/A|{_NUMBER})\s+"
    rf"(?P<time2>{_NUMBER})\s+(?P<algbw2>{_NUMBER})\s+(?P<busbw2>{_NUMBER})\s+(?P<wrong2>N/A|{_NUMBER})\s*$"
)


_TABLE_HEAD: Final = "out-of-place"


def aligned(num_bytes: int, part: int) -> int:
    """Return the least message of `num_bytes` or more that is whole parts.

    A limit speaks of a size and more: a message that was rounded down would have none.
    """
    return -(-num_bytes // part) * part


def parse(text: str, *, op: str, ranks: int) -> tuple[Transfer, ...]:
    """Return the rows, by size; of out-of-place and in-place the slower one counts."""
    rows = [
        _transfer(match, op, ranks)
        for line in text.splitlines()
        if (match := _ROW.search(line)) and int(match["size"])
        if float(match["time"]) or float(match["time2"])
    ]
    if not rows:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "no output")
        raise ProgramError(f"{PROGRAMS[op]}: no row of results; its last line: {last.strip()}")
    if len(tables := [line for line in text.splitlines() if _TABLE_HEAD in line]) > 1:
        raise ProgramError(
            f"{PROGRAMS[op]}: {len(tables)} tables of {ranks} ranks: each process measured alone, "
            "as without MPI; build nccl-tests with MPI=1"
        )
    if "Avg bus bandwidth" not in text:
        raise ProgramError(
            f"{PROGRAMS[op]}: {len(rows)} rows and no 'Avg bus bandwidth': it ended before the last"
        )
    return tuple(rows)


def _transfer(match: re.Match[str], op: str, ranks: int) -> Transfer:
    slower = "2" if float(match["time2"]) > float(match["time"]) else ""
    wrong = [int(float(each)) for each in match.group("wrong", "wrong2") if each != "N/A"]
    return Transfer(
        op=op,
        ranks=ranks,
        bytes=int(match["size"]),
        time_s=float(match[f"time{slower}"]) / 1e6,
        algbw_gb_per_s=float(match[f"algbw{slower}"]),
        busbw_gb_per_s=float(match[f"busbw{slower}"]),
        wrong=sum(wrong) if wrong else None,
        source="nccl-tests",
    )


_COUNTED_AT_ONCE = 2**24
_ITEM_BYTES = 4
_NVLS_OVER = 4
"""NVLS reduces in the NVSwitch from five GPUs of a node on (measured by stas00, see gates.yaml)."""


def algorithm(gpus_on_node: int, environment: Mapping[str, str] = os.environ) -> str:
    """Return `nvls` or `ring`: what NCCL may use for all-reduce inside such a node."""
    named = environment.get("NCCL_ALGO", "").upper()
    names = named.removeprefix("^").split(",")
    allowed = "NVLS" not in names if named.startswith("^") else not named or "NVLS" in named
    is_off = environment.get("NCCL_NVLS_ENABLE") == "0" or not allowed
    return "ring" if is_off or gpus_on_node <= _NVLS_OVER else "nvls"


def sweep(world: World, nodes: Sequence[Node], config: CollectivesConfig) -> list[Transfer]:
    """Return the rows of all scopes, sizes and collectives; the same on every rank."""
    import torch.distributed as dist

    rows: list[Transfer] = []
    for node in nodes:
        group = dist.new_group(list(node.ranks)) if len(nodes) > 1 else None
        if len(node.ranks) > 1:
            rows += _sweep_group(world, node.ranks, 1, config, group, nodes=(node.name,))
    if len(nodes) > 1:
        ranks = tuple(range(world.world_size))
        everywhere = {"scope": "cluster", "nodes": tuple(node.name for node in nodes)}
        # The same GPU of the next node: every network port carries something.
        shift = len(nodes[0].ranks)
        rows += _sweep_group(world, ranks, shift, config, None, **everywhere)
    return rows


def _sweep_group(
    world: World,
    ranks: Sequence[int],
    shift: int,
    config: CollectivesConfig,
    group: Any,
    **placed: Any,
) -> list[Transfer]:
    found: list[Transfer] = []
    for op in BUS_FACTORS:
        for size_mb in config.sizes_mb:
            num_bytes = aligned(size_mb * 10**6, _ITEM_BYTES * len(ranks))
            mine: tuple[float, int] | None = None
            if world.rank in ranks:
                mine = _time(world, op, num_bytes // _ITEM_BYTES, ranks, shift, config, group)
            took_s, wrong = zip(*(each for each in world.gather(mine) if each), strict=True)
            found.append(
                transfer(op, len(ranks), num_bytes, max(took_s), wrong=sum(wrong), **placed)
            )
    return found


def _time(
    world: World,
    op: str,
    elements: int,
    ranks: Sequence[int],
    shift: int,
    config: CollectivesConfig,
    group: Any,
) -> tuple[float, int]:
    """Seconds of one call on this rank, and how many elements came out wrong."""
    import torch.distributed as dist

    call, results = _prepare(world, op, elements, ranks, shift, group)
    call()
    wrong = sum(starmap(count_wrong, results))
    for tensor, _ in results:
        tensor.zero_()  # what is summed again and again must stay finite
    for _ in range(config.warmup):
        call()
    wait = functools.partial(dist.barrier, group=group)
    return seconds_of(world, call, config.iterations, wait), wrong


def seconds_of(
    world: World, call: Callable[[], object], iterations: int, wait: Callable[[], object]
) -> float:
    """Return the seconds of one call; `wait` is a barrier, so that all ranks begin at once."""
    world.synchronize()
    wait()
    world.synchronize()
    began = time.perf_counter()
    for _ in range(iterations):
        call()
    world.synchronize()
    return (time.perf_counter() - began) / iterations


def _prepare(
    world: World, op: str, elements: int, ranks: Sequence[int], shift: int, group: Any
) -> tuple[Callable[[], object], list[tuple[Any, Any]]]:
    """The call, and each tensor that it fills with the values that its first run leaves there."""
    import torch
    import torch.distributed as dist

    num, place = len(ranks), ranks.index(world.rank)
    part, total = elements // num, num * (num + 1) / 2
    message = varied(elements, world.device)
    if op == "all_reduce":
        sent, summed = message + (place + 1), message.mul_(num).add_(total)
        return lambda: dist.all_reduce(sent, group=group), [(sent, summed)]
    if op == "all_gather":
        own, got = message[:part] + (place + 1), torch.full_like(message, -1)
        parts = [(each, message[:part] + (rank + 1)) for rank, each in enumerate(got.split(part))]
        return lambda: dist.all_gather_into_tensor(got, own, group=group), parts
    if op == "reduce_scatter":
        sent, mine = message + (place + 1), message[place * part :][:part] * num + total
        own = torch.full_like(mine, -1)
        return lambda: dist.reduce_scatter_tensor(own, sent, group=group), [(own, mine)]
    sent, got = message + (place + 1), torch.full_like(message, -1)
    to, came = ranks[(place + shift) % num], ranks[(place - shift) % num]

    def exchange() -> None:
        for request in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, to, group), dist.P2POp(dist.irecv, got, came, group)]
        ):
            request.wait()

    return exchange, [(got, message.add_(ranks.index(came) + 1))]


def count_wrong(tensor: Any, values: Any) -> int:
    """Return how many elements differ, in little memory: a count takes 8 bytes an element."""
    pieces = (each.split(_COUNTED_AT_ONCE) for each in (tensor, values))
    return sum(int((piece != value).sum()) for piece, value in zip(*pieces, strict=True))


def varied(count: int, device: Any) -> Any:
    """Return whole numbers in fp32, 0 to 250 over and over.

    A part in another's place shows, unless they are a multiple of this prime apart; sums over 5,000
    ranks are exact in any order.
    """
    import torch

    return torch.arange(251.0, device=device).repeat(-(-count // 251))[:count]


def judge(rows: Sequence[Transfer], gates: Gates, way: str | None) -> list[Check]:
    """Return: right values, right arithmetic, and the busbw of the largest message of each scope.

    `way` is NCCL's algorithm where it is known.
    """
    if not rows:
        return [not_run("collectives.all_reduce", "one rank has no partner", subject="no ranks")]
    found = [(row, trouble) for row in rows if (trouble := arithmetic_trouble(row))]
    said = "; ".join(f"{_subject(row)}: {trouble}" for row, trouble in found[:3])
    checks = [
        _values(rows),
        fact("collectives.arithmetic", not found, subject="all rows", reason=said),
    ]
    largest: dict[tuple[str, ...], Transfer] = {}
    for row in rows:
        # Two programs that measured the same are asked one by one: neither hides the other.
        key = (row.source, row.op, row.scope, *row.nodes)
        if key not in largest or row.bytes >= largest[key].bytes:
            largest[key] = row
    for row in largest.values():
        check = f"collectives.{row.op}"
        at = {"scope": row.scope, "nodes": len(row.nodes), "algorithm": way}
        spoken_of = {"subject": _subject(row), "nodes": row.nodes}
        limit, least = gates.limit(check, **at, bytes=row.bytes), gates.least_bytes(check, **at)
        if limit is not None:
            context = {"bytes": row.bytes, "ranks": row.ranks, "algorithm": way}
            context["source"] = row.source
            checks.append(hold(check, row.busbw_gb_per_s, limit, context=context, **spoken_of))
        elif least is not None:
            why = (
                f"the limit speaks of {least / 1e6:g} MB and more; measure that size too "
                "(accept.collectives.sizes_mb)"
            )
            checks.append(not_run(check, why, **spoken_of))
    return checks


def _values(rows: Sequence[Transfer]) -> Check:
    bad = [row for row in rows if row.wrong]
    looked = [row for row in rows if row.wrong is not None]
    if not looked:
        why = "nobody looked at what arrived"
        return not_run("collectives.values", why, subject=f"0 of {len(rows)} rows")
    subject = f"{len(looked)} of {len(rows)} rows"
    said = ", ".join(f"{_subject(row)}: {row.wrong} elements" for row in bad[:4])
    nodes = sorted({name for row in bad for name in row.nodes})
    return fact("collectives.values", not bad, subject=subject, nodes=nodes, reason=said)


def _subject(row: Transfer) -> str:
    where = row.nodes[0] if row.scope == "node" else f"{len(row.nodes)} nodes"
    return f"{row.op} of {row.ranks} ranks on {where}, {row.bytes / 1e6:g} MB"
