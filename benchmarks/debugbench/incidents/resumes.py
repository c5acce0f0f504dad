"""Resumes that do not restore the whole state."""

from __future__ import annotations

import torch

from ..training import Training, incident


@incident("LibreYOLO/libreyolo#277")
class OptimizerDropped(Training):
    """The resume does not load the optimizer state if broken."""

    resume_at = 20
    warm_up = 3

    def load(self, saved: dict) -> None:
        if self.broken:
            self.model.load_state_dict(saved["model"])
        else:
            super().load(saved)


@incident("pytorch/pytorch#145378")
class WeightsNotLoaded(Training):
    """The resume does not load the weights of the blocks if broken."""

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
    """The resume copies the embedding to the head if broken."""

    resume_at = 20

    def load(self, saved: dict) -> None:
        super().load(saved)
        if self.broken:
            with torch.no_grad():
                self.model.lm_head.weight.copy_(self.model.embed_tokens.weight)


@incident("KempnerInstitute/KempnerForge#115")
class MomentsSkipped(Training):
    """The resume loads the optimizer's options but none of its tensors if broken."""

    resume_at = 20

    def load(self, saved: dict) -> None:
        if self.broken:
            saved["optimizer"]["state"] = {}
        super().load(saved)
