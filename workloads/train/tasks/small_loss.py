"""The summed loss of classifiers and of text to text."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from workloads.train.loss import summed_loss


class SmallLoss(nn.Module):
    """Wraps a model with `logits`; forward gives the loss summed over the batch's labels."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the summed cross entropy in fp32."""
        inputs = dict(batch.inputs)
        if self.model.config.is_encoder_decoder:
            # The decoder sees the target shifted by one; the model makes that from the labels.
            inputs["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(
                batch.labels
            )
        if "pixel_values" in inputs:
            inputs["pixel_values"] = inputs["pixel_values"].to(next(self.model.parameters()).dtype)
        logits = self.model(**inputs).logits
        return summed_loss(logits.reshape(-1, logits.shape[-1]), batch.labels.flatten())
