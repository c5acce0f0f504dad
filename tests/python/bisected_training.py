"""An FP8 training that fails because of one tensor: the activation of the layer `narrow`.

One of its features is 2^24 times larger than the others and has weights of zero: under one scale
for the tensor all others underflow, and nothing is learned from them.
"""

import sys

import torch

import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import Float8CurrentScaling

STEPS = 60
GOOD = 0.5
LARGE = 2.0**24

torch.manual_seed(0)
debug.initialize(log_dir="unused")
first = te.Linear(32, 32, name="first", device="cpu")
narrow = te.Linear(48, 32, name="narrow", bias=False, device="cpu")
last = te.Linear(32, 16, name="last", device="cpu")
with torch.no_grad():
    narrow.weight[:, 32:] = 0
target = torch.randn(16, 32) / 8
parameters = [*first.parameters(), narrow.weight, *last.parameters()]
optimizer = torch.optim.Adam(parameters, lr=0.01)
losses = []
for _ in range(STEPS):
    x = torch.randn(64, 32)
    with te.autocast(recipe=Float8CurrentScaling()):
        hidden = torch.nn.functional.gelu(first(x))
        large = torch.full((64, 16), LARGE)
        out = last(torch.nn.functional.gelu(narrow(torch.cat([hidden, large], dim=1))))
    loss = (out - x @ target.t()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    narrow.weight.grad[:, 32:] = 0
    optimizer.step()
    losses.append(loss.item())
    debug.step(loss)
debug.end_debug()
print(losses[0], losses[-1])
sys.exit(losses[-1] > GOOD * losses[0])
