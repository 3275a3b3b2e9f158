"""A tiny random model, a byte tokenizer and places in a temporary folder: all on CPU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.another_user import neighbour  # noqa: F401 (a fixture)

EXCERPT = Path(__file__).parent / "bfcl_excerpt"
TEMPLATES = Path(__file__).parent / "chat_templates"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Run = Callable[..., tuple[int, dict[str, Any]]]


def make_tokenizer(chat_template: str = CHAT_TEMPLATE) -> Any:
    """Returns a byte tokenizer: one token per byte, and three special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<|pad|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        chat_template=chat_template,
    )


def template(name: str) -> Any:
    """Returns the byte tokenizer with a public model's template, and its markers as tokens."""
    from tokenizers import AddedToken

    tokenizer = make_tokenizer((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))
    tokenizer.add_tokens([AddedToken(each) for each in ("<tool_call>", "</tool_call>")])
    special = [AddedToken(each, special=True) for each in ("[TOOL_CALLS]", "<|eot_id|>")]
    tokenizer.add_tokens(special, special_tokens=True)
    if name.startswith("llama"):
        tokenizer.eos_token = "<|eot_id|>"
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The byte tokenizer with a ChatML template."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A two-layer Llama with random fp32 weights and the byte tokenizer, as a model folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        # Larger than usual, so that outputs depend visibly on every input.
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def model(model_dir: Path) -> Any:
    """The tiny model in fp32."""
    import torch

    from workloads.common.models import load_model

    return load_model(model_dir, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture
def places(tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Environment of a job: places under the returned folder, no rank variables."""
    for place in ("data", "chkpt", "results"):
        (tmp_path / place).mkdir()
        monkeypatch.setenv(f"SOPERATOR_PLACE_{place.upper()}", str(tmp_path / place))
    monkeypatch.setenv("SOPERATOR_PLACE_MODEL", str(model_dir.parent))
    monkeypatch.setenv("SOPERATOR_JOB", "finetune")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SOPERATOR_STACK", "local")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def ram_disk() -> Iterator[Path]:
    """A folder of this test on a real tmpfs, which every Linux has there."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


RECIPE: dict[str, Any] = {
    "model": "tiny",
    "data": {
        "source": {"kind": "bfcl", "path": str(EXCERPT)},
        "output": "prepared",
        "max_tokens": 2048,
        "test_ratio": 0.25,
    },
    "train": {
        "dataset": "prepared",
        "dtype": "fp32",
        "lora": {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj"]},
        "sequence_length": 2048,
        "max_steps": 4,
        "learning_rate": 0.01,
        "checkpoint_every": 2,
        "cpu_threads": 1,
    },
    "evaluate": {
        "dataset": "prepared",
        "num_rows": 3,
        "num_perplexity_rows": 4,
        "num_samples": 2,
        "batch_size": 2,
        "max_new_tokens": 4,
        "num_speed_tokens": 3,
        "dtype": "fp32",
    },
}


@pytest.fixture
def recipe_file(places: Path) -> Path:
    """RECIPE as a file."""
    path = places / "tiny_recipe.json"
    path.write_text(json.dumps(RECIPE), encoding="utf-8")
    return path


@pytest.fixture
def run(recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("train", "train.max_steps=2")`: runs a job in this process; its exit code and record."""
    from workloads.job import run_job

    def job(kind: str, *overrides: str) -> tuple[int, dict[str, Any]]:
        if kind == "prepare-data":
            from workloads.data.__main__ import main
        elif kind == "train":
            from workloads.train.inputs import train as main
        else:
            from workloads.evaluate.__main__ import main
        arguments = ["--recipe", str(recipe_file)]
        for override in overrides:
            arguments += ["--set", override]
        capsys.readouterr()
        code = run_job(kind, main, arguments)
        return int(code), json.loads(capsys.readouterr().out.splitlines()[-1])

    return job
