"""Resumes that lose a part of the state."""

from __future__ import annotations

import torch

from ..training import Training, incident


@incident("LibreYOLO/libreyolo#277")
class OptimizerDropped(Training):
    """The optimizer starts without its moments."""

    resume_at = 20
    warm_up = 3

    def load(self, saved: dict) -> None:
        if self.broken:
            self.model.load_state_dict(saved["model"])
        else:
            super().load(saved)


@incident("pytorch/pytorch#145378")
class WeightsNotLoaded(Training):
    """The weights of the blocks keep their new initialization; only the optimizer is loaded."""

    resume_at = 20

    def load(self, saved: dict) -> None:
        if self.broken:
            saved["model"] = {
                name: each
                for name, each in saved["model"].items()
                if not name.startswith("layers.")
            }
            self.model.load_state_dict(saved["model"], strict=False)
            self.optimizer.load_state_dict(saved["optimizer"])
        else:
            super().load(saved)


@incident("NVIDIA-NeMo/Automodel#2511")
class HeadFromEmbedding(Training):
    """The checkpoint omits the head; the resume fills it from the embedding."""

    resume_at = 20

    def load(self, saved: dict) -> None:
        super().load(saved)
        if self.broken:
            with torch.no_grad():
                self.model.lm_head.weight.copy_(self.model.embed_tokens.weight)
