"""`soperator size`: what a model needs, how it can be spread, and the cheapest preset that fits."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from cost.size.training import Dtype, Method
from infra.cli import output
from infra.cli.output import Format


class Rule(StrEnum):
    """A rule of thumb that may be shown beside the planner."""

    SEED004 = "seed004"


def command(
    model: Annotated[
        str | None,
        typer.Argument(help="Name in the catalog, a config.json, or a folder that holds one."),
    ] = None,
    method: Annotated[Method, typer.Option(help="What training changes.")] = Method.LORA,
    rank: Annotated[int, typer.Option(help="Rank of the adapters.")] = 16,
    seq: Annotated[
        int, typer.Option(help="Tokens of a row; in serving, of a conversation.")
    ] = 4096,
    batch: Annotated[int, typer.Option(help="Rows per GPU and forward pass.")] = 1,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs of the job; as few as fit by default.")
    ] = None,
    gpu_mem: Annotated[
        int | None, typer.Option(metavar="GB", help="Memory of one GPU, for the strategies.")
    ] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="Type of the weights.")] = None,
    checkpointing: Annotated[
        bool, typer.Option(help="Compute activations again in the backward pass.")
    ] = True,
    serve: Annotated[bool, typer.Option("--serve", help="Size for chats instead.")] = False,
    streams: Annotated[int, typer.Option(help="Conversations at once, with --serve.")] = 1,
    prices: Annotated[
        str, typer.Option(metavar="BOOK", help="Price book in cost/prices.")
    ] = "nebius",
    rule: Annotated[Rule | None, typer.Option(help="Show a deck's rule beside it.")] = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Show the memory that a model needs and where it fits, the cheapest preset first."""
    from cost.prices.book import PriceBook
    from cost.size import answer
    from cost.size.memory import Serving
    from cost.size.training import Training

    if rule is not None:
        found = answer.seed004_answer(model, dtype=dtype, gpu_memory_gb=gpu_mem)
    elif model is None:
        raise typer.BadParameter("name a model, or give --rule seed004", param_hint="MODEL")
    elif serve:
        serving = Serving(
            dtype=dtype or Dtype.BF16, streams=streams, context_tokens=seq, tensor=gpus or 1
        )
        found = answer.serving_answer(model, serving, PriceBook.load(prices))
    else:
        training = Training(
            method=method,
            dtype=dtype or Dtype.BF16,
            rank=rank,
            sequence_length=seq,
            micro_batch_size=batch,
            gradient_checkpointing=checkpointing,
        )
        found = answer.training_answer(
            model, training, PriceBook.load(prices), gpus=gpus, gpu_memory_gb=gpu_mem
        )
    if format is Format.JSON:
        output.print_json(found.values)
        return
    sys.stdout.write(found.text)
