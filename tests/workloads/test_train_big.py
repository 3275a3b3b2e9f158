"""FSDP2 of a big model: each rank reads its part of the files, and no rank holds the whole."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from tests.nightly import at_night
from tests.workloads.ranks import run_ranks
from workloads.common.exit_codes import DataError
from workloads.common.models import load_model, stored_tensors
from workloads.recipes.train import TrainConfig

SIZES = {
    "hidden_size": 36,
    "intermediate_size": 70,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 103,
}
"""Divided by neither two nor four."""
CPU = torch.device("cpu")


def config(method: Any = "full", **values: Any) -> TrainConfig:
    """Returns a run's settings."""
    given = {"dataset": "x", "max_steps": 1, "learning_rate": 1.0, "dtype": "bf16", "seed": 3}
    return TrainConfig(method=method, **(given | values))


def save(folder: Path, *, tied: bool = False, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Returns a folder with a small Llama in several files."""
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied)).to(dtype)
    model.save_pretrained(folder, max_shard_size="30KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


_SPREAD = """
import sys, types
from pathlib import Path
import safetensors
read = 0
class Slice:
    def __init__(self, part):
        self.part = part
    def __getitem__(self, which):
        global read
        found = self.part[which]
        read += found.nbytes
        return found
    def __getattr__(self, name):
        return getattr(self.part, name)
class Counting:
    def __init__(self, *arguments, real=safetensors.safe_open, **options):
        self.file = real(*arguments, **options)
    def get_slice(self, name):
        return Slice(self.file.get_slice(name))
    def __getattr__(self, name):
        return getattr(self.file, name)
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
safetensors.safe_open = Counting

import torch
from tests.workloads.test_train_big import CPU, config
from workloads.common.dist import world
from workloads.recipes.train import LoraConfig
from workloads.train import inputs, model, strategy
from torch.distributed.tensor import DTensor

def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value

def spread(folder, settings, here):
    held = 0
    def outline(*arguments, **options):
        nonlocal held
        made = model.build_outline(*arguments, **options)
        held = sum(p.untyped_storage().nbytes() for p in made[0].parameters()) if made else None
        return made
    strategy.build_outline = outline
    task = types.SimpleNamespace(
        build=lambda device, **more: model.build_model(folder, settings, device=device, **more),
        loss=lambda made, _: model.AssistantLoss(made),
    )
    run = inputs.Run(
        job=None, config=settings, task=task, model_dir=folder, strategy="fsdp", plan=None
    )
    return strategy.spread_fsdp(run, here), held

with world(cpu_threads=1) as here:
    for name in sys.argv[2:]:
        folder, method = Path(sys.argv[1], name), "full" if "full" in name else "lora"
        lora = LoraConfig(rank=4, dora="dora" in name)
        settings = config(method, lora=lora)
        read = 0
        try:
            spread_out, held = spread(folder, settings, here)
        except Exception as error:
            print(f"<{name} {here.rank} {type(error).__name__}: {error}>", flush=True)
            continue
        bytes_read, wrong = read, []
        one = model.build_model(folder, settings, device=CPU)
        for kind in ("named_parameters", "named_buffers"):
            there = dict(getattr(one, kind)())
            here_too = dict(getattr(spread_out.model, kind)())
            assert there.keys() == here_too.keys()
            for each, value in there.items():
                # Shards of weights that are all trained are fp32.
                if not torch.equal(whole(here_too[each]).to(value.dtype), value):
                    wrong.append(each)
        print(f"<{name} {here.rank} read {bytes_read} held {held} wrong {wrong}>", flush=True)
"""


def launched(
    tmp_path: Path, num_ranks: int, script: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Returns what became of ranks that run `script`."""
    file = tmp_path / "script.py"
    file.write_text(script)
    return run_ranks(str(file), str(tmp_path), *arguments, num_ranks=num_ranks)


def spread(tmp_path: Path, num_ranks: int, *names: str) -> dict[tuple[str, int], str]:
    """Returns what each rank says of the model folders `names`, each divided over all ranks."""
    done = launched(tmp_path, num_ranks, _SPREAD, *names)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"<(\S+) (\d+) ([^>]+)>", done.stdout)
    found = {(name, int(rank)): text for name, rank, text in said}
    assert len(found) == num_ranks * len(names), done.stdout + done.stderr
    return found


@pytest.mark.feature("S003-02", "S004-22", "S004-24")
@pytest.mark.parametrize("num_ranks", [2, at_night(4)])
def test_each_rank_reads_its_part_of_the_files_and_gets_the_values_of_ddp(
    tmp_path: Path, num_ranks: int
) -> None:
    """Rank 0 read all and held it, 280 GB of a 70B model, while the others waited."""
    for name in ("full", "lora", "lora-dora", "full-short"):
        save(tmp_path / name)
    save(tmp_path / "full-tied", tied=True, dtype=torch.float32)
    save(tmp_path / "lora-fp16", dtype=torch.float16)
    MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=3)).to(
        torch.bfloat16
    ).save_pretrained(tmp_path / "full-experts")
    short = sorted((tmp_path / "full-short").glob("*.safetensors"))[1]
    short.write_bytes(short.read_bytes()[:-1])
    names = ("full", "full-tied", "lora", "lora-fp16", "lora-dora", "full-experts", "full-short")
    said = spread(tmp_path, num_ranks, *names)
    for name in ("full", "full-tied", "lora", "lora-fp16"):
        size = sum(each.nbytes for each in load(tmp_path / name).values())
        assert all(text.endswith("wrong []") for (of, _), text in said.items() if of == name), said
        numbers = [
            re.findall(r"\d+", text)[:2] for (of, _), text in sorted(said.items()) if of == name
        ]
        read = [int(each) for each, _ in numbers]
        assert sum(read) == size, "each byte once"
        assert max(read) < 1.2 * size / num_ranks, "rows are not cut: of 103 a rank may have 26"
        num_stand_ins, adapters = 40 * 4, 0 if "full" in name else 4 * 4 * 3 * (36 * 12 + 70 * 3)
        assert int(numbers[0][1]) <= num_stand_ins + adapters, "held by rank 0 beside its shards"
    for name in ("lora-dora", "full-experts"):
        assert [said[name, rank].endswith("wrong []") for rank in range(num_ranks)], said
        assert said[name, 1].startswith("read 0 "), "rank 0 gives what it has read"
    for rank in range(num_ranks):
        assert said["full-short", rank].startswith(f"DataError: {short}: has"), said


_HYBRID = """
import os, sys, types
from pathlib import Path
import torch
from safetensors.torch import save_file
from tests.workloads.test_train_big import CPU, config
from workloads.common.dist import world
from workloads.data.token_rows import TokenRows, collate, pack
from workloads.recipes.train import LoraConfig
from workloads.train import inputs, model, strategy

folder = Path(sys.argv[1])
os.environ["LOCAL_WORLD_SIZE"] = "2"  # four ranks, as of two nodes
with world(cpu_threads=1) as here:
    ids = torch.randint(1, 100, (24,), generator=torch.Generator().manual_seed(here.rank))
    rows = TokenRows(input_ids=ids.to(torch.int32).numpy(), learned=(ids > 20).numpy(),
                     offsets=torch.tensor([0, 24]).numpy())
    batch = collate(pack(rows, sequence_length=24), pad_id=0)
    for method in ("full", "lora"):
        for kind, reshards in (("ddp", True), ("fsdp", True), ("hsdp", True), ("hsdp", False)):
            settings = config(method, dtype="fp32", lora=LoraConfig(rank=4))
            task = types.SimpleNamespace(
                build=lambda device, **more: model.build_model(
                    folder, settings, device=device, **more
                ),
                loss=lambda made, _: model.AssistantLoss(made),
            )
            plan = types.SimpleNamespace(strategy=kind, reshard_after_forward=reshards)
            run = inputs.Run(job=None, config=settings, task=task, model_dir=folder, strategy=kind,
                             plan=plan)
            spread = strategy.build_strategy(run, here)
            held = {
                "shards": sum(
                    getattr(w, "_local_tensor", w).numel() for w in spread.model.parameters()
                ),
            }
            kept = []
            layers = strategy.repeated_layers(spread.model)
            loss = spread.module(batch)
            held["gathered"] = sum(
                getattr(w, "_local_tensor", w).numel()
                for layer in layers for w in layer.parameters()
            )
            loss.backward()
            torch.optim.SGD(spread.trained, lr=1.0).step()
            whole = strategy.whole_weights(strategy.all_weights(spread.model), keep=True)
            name = f"{method}-{kind}-{reshards}"
            print(f"<{name} {here.rank} {held['shards']} {held['gathered']}>", flush=True)
            if here.rank == 3:
                save_file(whole, folder / f"{name}.safetensors")
"""


@pytest.mark.feature("S004-22", "S004-24")
def test_nodes_that_hold_the_same_learn_what_ddp_learns(tmp_path: Path) -> None:
    """hsdp: two nodes of two ranks; layers that stay gathered for the backward pass, or do not."""
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)).save_pretrained(tmp_path)
    done = launched(tmp_path, 4, _HYBRID)
    assert done.returncode == 0, done.stderr
    held: dict[str, list[tuple[int, int]]] = {}
    for name, _, shards, gathered in re.findall(r"<(\S+) (\d) (\d+) (\d+)>", done.stdout):
        held.setdefault(name, []).append((int(shards), int(gathered)))
    for method in ("full", "lora"):
        ((whole, layers),) = set(held[f"{method}-ddp-True"])
        for kind, parts in (("fsdp-True", 4), ("hsdp-True", 2), ("hsdp-False", 2)):
            found = held[f"{method}-{kind}"]
            assert sum(shards for shards, _ in found) == whole * 4 / parts, "each part once a node"
            gathered = {layers} if kind == "hsdp-False" else {each for _, each in found} - {layers}
            assert {each for _, each in found} == gathered, "after the forward pass"
            ours, ddps = (
                load_file(tmp_path / f"{method}-{each}.safetensors") for each in (kind, "ddp-True")
            )
            assert ours.keys() == ddps.keys()
            for weight, value in ddps.items():
                torch.testing.assert_close(ours[weight], value, rtol=1e-4, atol=1e-6)


def load(folder: Path) -> dict[str, torch.Tensor]:
    """Returns all tensors of a folder."""
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


def save_outline(folder: Path, shape: LlamaConfig, *, file_bytes: int) -> int:
    """Returns the bytes of a model whose files have no block on the disk: headers, then holes."""
    with torch.device("meta"):
        model = LlamaForCausalLM(shape)
    shape.save_pretrained(folder)
    files: list[dict[str, Any]] = [{}]
    size = 0
    for name, weight in model.state_dict().items():
        num_bytes = 2 * weight.numel()
        at = max((each["data_offsets"][1] for each in files[-1].values()), default=0)
        if at + num_bytes > file_bytes:
            files.append({})
            at = 0
        entry = {"dtype": "BF16", "shape": [*weight.shape], "data_offsets": [at, at + num_bytes]}
        files[-1][name] = entry
        size += num_bytes
    names = {}
    for number, entries in enumerate(files, 1):
        file = folder / f"model-{number:05}-of-{len(files):05}.safetensors"
        header = json.dumps(entries).encode()
        file.write_bytes(struct.pack("<Q", len(header)) + header)
        end = max(each["data_offsets"][1] for each in entries.values())
        os.truncate(file, 8 + len(header) + end)
        names |= dict.fromkeys(entries, file.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return size


_OUTLINE = """
import resource, sys, types
from pathlib import Path
import safetensors
read, largest = 0, 0
class Slice:
    def __init__(self, part):
        self.part = part
    def __getitem__(self, rows):
        global read, largest
        found = self.part[rows]
        read, largest = read + found.nbytes, max(largest, found.nbytes)
        return found
class Counting:
    def __init__(self, *arguments, real=safetensors.safe_open, **options):
        self.file = real(*arguments, **options)
    def get_slice(self, name):
        return Slice(self.file.get_slice(name))
safetensors.safe_open = Counting

import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from tests.workloads.test_train_big import CPU, config
from workloads.train.model import build_model, build_outline
from workloads.train.strategy import _read_parts, repeated_layers

folder, method, num_ranks = Path(sys.argv[1]), sys.argv[2], 8
settings = config(method)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source, files = build_outline(folder, settings, device=CPU)
adapters = sum(p.nbytes for p in source.parameters() if p.requires_grad and method == "lora")
grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print("source", len(files), adapters, grown)
for rank in (0, 3, 7):
    read = largest = 0
    dist.init_process_group("fake", rank=rank, world_size=num_ranks, store=FakeStore())
    empty = build_model(folder, settings, device=CPU, empty=True)
    mesh = init_device_mesh("cpu", (num_ranks,))
    for each in (*repeated_layers(empty), empty):
        fully_shard(each, mesh=mesh)
    with torch.no_grad():
        problem = _read_parts(empty, files)  # shards are on the meta device: nothing is copied
    assert not problem, problem
    held = sum(p.to_local().nbytes for p in empty.parameters())
    print("rank", rank, read, held, largest)
    dist.destroy_process_group()
print("peak", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.feature("S003-02", "S004-24")
@pytest.mark.parametrize(("method", "bytes_held"), [("full", 4), at_night("lora", 2)])
def test_eight_ranks_read_an_eighth_of_a_70b_model_each(
    tmp_path: Path, method: str, bytes_held: int
) -> None:
    """Its 141 GB are holes of sparse files, and shards are on the meta device: bytes count."""
    shape = LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
        num_key_value_heads=8, vocab_size=128256, dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    size = save_outline(tmp_path, shape, file_bytes=5 * 10**9)
    assert size == 141_107_412_992, "as index.json of Llama 3.1 70B has it"
    script = tmp_path / "outline.py"
    script.write_text(_OUTLINE)
    done = run_ranks(str(script), str(tmp_path), method)
    assert done.returncode == 0, done.stderr
    (_, num_files, adapters, grown), *ranks, (_, peak) = (
        line.split() for line in done.stdout.splitlines()
    )
    assert int(num_files) == 723, "all its tensors"
    assert int(grown) < int(adapters) + 2**30, "what rank 0 holds beside its shards"
    assert int(peak) < int(adapters) + 3 * 2**30, "no rank's reading makes pages of memory"
    assert [rank for _, rank, *_ in ranks] == ["0", "3", "7"]
    for _, _, read, held, largest in ranks:
        assert int(read) == size / 8
        assert int(held) == size / 8 / 2 * bytes_held + int(adapters) / 8
        assert int(largest) == 128256 / 8 * 8192 * 2, "at a time, of the embedding"


def test_files_that_are_cut_missing_or_damaged_are_all_named_with_their_tensors(
    tmp_path: Path,
) -> None:
    save(tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 3
    first, second, third = files
    names = [[*load_file(file)] for file in files]
    weights = load_file(first)
    gone = names[0].pop()
    del weights[gone]
    save_file(weights, first)
    second.unlink()
    third.write_bytes(third.read_bytes()[:200])
    with pytest.raises(DataError) as caught:
        stored_tensors(tmp_path)
    one, two, three = str(caught.value).split("; ")[:3]
    assert one == f"{first}: has {first.stat().st_size:,} bytes, lacks tensors (1): {gone}"
    assert two.startswith(f"{second}: No such file or directory, lacks tensors ({len(names[1])}): ")
    assert three.startswith(f"{third}: its header is damaged, lacks tensors ({len(names[2])}): ")


@pytest.mark.feature("S002-02")
def test_a_weight_that_no_file_has_is_not_made_up(tmp_path: Path) -> None:
    """transformers initialises it at random, says so in a warning, and training went on."""
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in ("lm_head.weight", "model.norm.weight"):
        del weights[name]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"its files lack lm_head\.weight, model\.norm\.weight"):
        load_model(tmp_path, dtype=torch.float32, device=CPU)


_EXPORT = """
import errno, os, signal, sys, types
from pathlib import Path
import torch
from tests.workloads.test_train_big import config
from workloads.common.dist import world
from workloads.train import finish, inputs, model, strategy

folder, faults = Path(sys.argv[1]), sys.argv[2:]
source, settings = folder / "model", config()
finish.FILE_BYTES, largest, fault = 20_000, 0, ""
def save(whole, path, real=finish.save_file, **options):
    global largest
    largest = max(largest, sum(each.nbytes for each in whole.values()))
    if fault and "-00003-" in path.name:
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, "No space left on device")
    real(whole, path, **options)
finish.save_file = save

with world(cpu_threads=1) as here:
    task = types.SimpleNamespace(
        build=lambda device, **more: model.build_model(source, settings, device=device, **more),
        loss=lambda made, _: model.AssistantLoss(made),
        save_preprocessor=lambda partial: (partial / "tokenizer.json").write_text("x"),
    )
    run = inputs.Run(
        job=None, config=settings, task=task, model_dir=source, strategy="fsdp", plan=None
    )
    divided = strategy.spread_fsdp(run, here)
    with torch.no_grad():
        for weight in divided.model.parameters():
            weight.to_local().add_(1)
    for fault in faults:
        target = folder / f"final{fault}"
        try:
            finish.write_final(target, strategy=divided, config=settings, task=task, here=here)
            said = f"largest {largest}"
        except OSError as error:
            said = f"{type(error).__name__} {error.errno == errno.ENOSPC}"
        print(f"<final{fault} {here.rank} {said}>", flush=True)
"""


@pytest.mark.feature("S003-02", "S004-24")
@pytest.mark.parametrize("tied", [False, True])
def test_a_divided_model_is_exported_file_by_file_or_not_at_all(tmp_path: Path, tied: bool) -> None:
    """Rank 0 gathered all of it in fp32: 280 GB of a 70B model, and half as much for its copy."""
    save(tmp_path / "model", tied=tied)
    weights = load(tmp_path / "model")
    done = launched(tmp_path, 2, _EXPORT, "full", "", "kill")
    assert done.returncode == 128 + 9, done.stderr
    said = set(re.findall(r"<([^>]+)>", done.stdout))
    largest = max(
        sum(each.nbytes for each in load_file(file).values())
        for file in (tmp_path / "final").glob("*.safetensors")
    )
    full = {f"finalfull {rank} OSError True" for rank in (0, 1)}
    each = {int(text.rpartition(" ")[2]) for text in said - full}
    assert len(said - full) == 2, "killed ones are silent"
    assert max(each) == largest, "each rank writes files, and holds one at a time"
    assert min(each) > 0
    assert largest <= 20_000 < sum(each.nbytes for each in weights.values()) / 3
    assert not (tmp_path / "finalfull").exists()
    assert not (tmp_path / "finalkill").exists()
    left = {path.name.split(".")[1] for path in tmp_path.glob(".final*")}
    assert left <= {"finalkill"}, "rank 0 removes what it was to complete, unless it ends too"
    index = json.loads((tmp_path / "final" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in weights.values())
    assert (tmp_path / "final" / "tokenizer.json").read_text() == "x"
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in (tmp_path / "final").iterdir())
    made = load_model(tmp_path / "final", dtype=torch.bfloat16, device=CPU)
    for name, weight in made.named_parameters():
        assert torch.equal(weight, (weights[name].float() + 1).bfloat16())


_MERGE = """
import os, signal, sys
from pathlib import Path
from tests.workloads.test_train_big import config
from workloads.recipes.train import LoraConfig
from workloads.train import finish

folder, fault = Path(sys.argv[1]), sys.argv[2:]
largest = 0
def save(whole, path, real=finish.save_file, **options):
    global largest
    largest = max(largest, sum(each.nbytes for each in whole.values()))
    if fault and "-00002-" in path.name:
        os.kill(os.getpid(), signal.SIGKILL)
    real(whole, path, **options)
finish.save_file = save
loaded = finish.load_model
finish.load_model = lambda *arguments, **options: print("whole") or loaded(*arguments, **options)
settings = config("lora", lora=LoraConfig(rank=4, target_modules=("q_proj", "o_proj")))
finish.write_merged(
    folder, model_dir=folder / "model", adapter=folder / "final", config=settings
)
print("largest", largest)
"""


@pytest.mark.parametrize("kind", ["files", "tied", "experts"])
def test_adapters_are_merged_file_by_file_or_not_at_all(tmp_path: Path, kind: str) -> None:
    """All of the base was in memory, 141 GB of a 70B model; peft merges one weight at a time."""
    import peft
    from transformers import AutoModelForCausalLM

    base, final, merged = (tmp_path / name for name in ("model", "final", "merged"))
    if kind == "experts":  # of which transformers makes one weight: read whole
        MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=3)).to(
            torch.bfloat16
        ).save_pretrained(base)
    else:
        save(base, tied=kind == "tied", dtype=torch.float32 if kind == "tied" else torch.bfloat16)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    lora = peft.LoraConfig(
        r=4, lora_alpha=32, target_modules=["q_proj", "o_proj"], task_type="CAUSAL_LM"
    )
    adapted = peft.get_peft_model(model, lora)
    torch.manual_seed(2)
    for weight in adapted.parameters():
        if weight.requires_grad:
            weight.data = torch.randn(weight.shape)
    adapted.save_pretrained(final)
    (final / "tokenizer.json").write_text("x")
    expected = {k: v.clone() for k, v in adapted.merge_and_unload().state_dict().items()}
    script = tmp_path / "merge.py"
    script.write_text(_MERGE)

    def merge(*fault: str) -> subprocess.CompletedProcess[str]:
        return run_ranks(str(script), str(tmp_path), *fault)

    if kind == "files":
        assert merge("kill").returncode == 128 + 9
        assert not merged.exists(), "what is cut off has no name"
    done = merge()
    assert done.returncode == 0, done.stderr
    if kind == "experts":
        assert "whole" in done.stdout
    else:
        largest = max(sum(each.nbytes for each in load_file(file).values())
                      for file in merged.glob("*.safetensors"))  # fmt: skip
        assert done.stdout == f"largest {largest}\n", "the whole of no model was read"
        assert largest < sum(each.nbytes for each in load(base).values()) / 2
    made = load_model(merged, dtype=torch.bfloat16, device=CPU)
    assert made.state_dict().keys() == expected.keys()
    for name, value in made.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert json.loads((merged / "config.json").read_text())["dtype"] == "bfloat16"
    assert (merged / "tokenizer.json").read_text() == "x"
    assert not (merged / "adapter_config.json").exists()


@pytest.mark.parametrize(
    "header",
    ["[]", '{"a": 1}', '{"a": {"data_offsets": [0, 0]}}', '{"a": {"data_offsets": [0]}}', "{"],
)
def test_a_header_that_names_no_tensors_is_damaged(tmp_path: Path, header: str) -> None:
    size = len(header).to_bytes(8, "little")
    (tmp_path / "model.safetensors").write_bytes(size + header.encode())
    with pytest.raises(DataError, match=r"model.safetensors: its header is damaged, lacks"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": []}}'])
def test_an_index_that_names_no_files_is_damaged(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(DataError, match=r"index.json: is damaged: .*; copy the model again"):
        stored_tensors(tmp_path)
