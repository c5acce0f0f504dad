"""Adds PEFT's LoRA for layers of Transformer Engine to a model; PEFT is not changed."""

import json

import peft
import torch
import transformer_engine.pytorch as te

torch.manual_seed(1)
model = torch.nn.Sequential(te.Linear(32, 64), torch.nn.GELU(), te.Linear(64, 16))
model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=["0", "2"]))
x, y = torch.randn(32, 32), torch.randn(32, 16)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
losses = []
for _ in range(4):
    with te.fp8_autocast():
        loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(json.dumps({"losses": losses, "adapted": type(model.base_model.model[0]).__name__}))
