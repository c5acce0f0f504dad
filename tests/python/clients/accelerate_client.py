"""Trains a small model with accelerate's Transformer Engine backend, which is not changed."""

import json

import torch
from accelerate import Accelerator
from accelerate.utils import TERecipeKwargs, has_transformer_engine_layers

torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 16)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randn(64, 16))
loader = torch.utils.data.DataLoader(data, batch_size=32)
accelerator = Accelerator(
    mixed_precision="fp8", cpu=True, kwargs_handlers=[TERecipeKwargs(amax_history_len=4)]
)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

losses = []
for _ in range(3):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

print(
    json.dumps(
        {
            "backend": accelerator.fp8_backend.value,
            "converted": has_transformer_engine_layers(model),
            "losses": losses,
            "layers": {n: type(m).__module__ for n, m in model.named_children()},
            "history": list(model[0].fp8_meta["scaling_fwd"].amax_history.shape),
            "scale": model[0].fp8_meta["scaling_fwd"].scale.tolist(),
        }
    )
)
