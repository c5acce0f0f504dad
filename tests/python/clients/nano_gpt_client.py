"""Trains a nanoGPT of 65 characters with the steps of its single-GPU script, on CUDA throughout."""

import json
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from nano_gpt import NanoGPT

torch.manual_seed(1)
model = NanoGPT(65, tied=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cuda", enabled=False)
generator = torch.Generator(device="cuda").manual_seed(2)
tokens = torch.randint(0, 65, (2, 17), generator=generator, device="cuda")
losses = []
for _ in range(4):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        _, loss = model(tokens[:, :-1].to("cuda", non_blocking=True), tokens[:, 1:].cuda())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item())
torch.cuda.synchronize()
layers = {name: type(module).__module__ for name, module in model.named_modules()}
print(
    json.dumps(
        {
            "losses": losses,
            "head": layers["lm_head"],
            "layer": layers["transformer.h.0.mlp_fc"],
            "scale": model.transformer["h"][0].mlp_fc.fp8_meta["scaling_fwd"].scale.tolist(),
            "device": str(next(model.parameters()).device),
        }
    )
)
