"""Trains a small model with Lightning's TransformerEnginePrecision, which is not changed."""

import json

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import TransformerEnginePrecision


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 16)
        )
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randn(64, 16))
model = Net()
precision = TransformerEnginePrecision(
    weights_dtype=torch.bfloat16, recipe={"amax_history_len": 4, "fp8_format": "HYBRID"}
)
trainer = Trainer(
    accelerator="cpu",
    max_epochs=3,
    plugins=precision,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=32))
print(
    json.dumps(
        {
            "losses": model.losses,
            "layers": {n: type(m).__module__ for n, m in model.net.named_children()},
            "history": list(model.net[0].fp8_meta["scaling_fwd"].amax_history.shape),
            "scale": model.net[0].fp8_meta["scaling_fwd"].scale.tolist(),
        }
    )
)
