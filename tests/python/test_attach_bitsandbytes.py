"""telens.watch on layers of bitsandbytes: the recorded weights are the decoded values.

Needs bitsandbytes in build/clients (make test-clients).
"""

import sys

import pytest
import torch
from attach_helpers import TENSORS, amax, config, recorded
from conftest import PROJECT_ROOT
from torch import nn

import telens

CLIENTS = PROJECT_ROOT / "build/clients"
if not (CLIENTS / "bitsandbytes").is_dir():
    pytest.skip("bitsandbytes is not in build/clients (make test-clients)", allow_module_level=True)
sys.path.append(str(CLIENTS))

import bitsandbytes  # noqa: E402

AMAX = config(["cur_amax", "numel"], TENSORS)


def new_model(bits):
    torch.manual_seed(0)
    if bits == 4:
        layer = bitsandbytes.nn.Linear4bit(64, 32, compute_dtype=torch.float32, quant_type="nf4")
    else:
        layer = bitsandbytes.nn.Linear8bitLt(64, 32, has_fp16_weights=False)
    return nn.Sequential(nn.Linear(64, 64), layer, nn.Linear(32, 8)).to("cpu")


def train(model):
    trained = [p for p in model.parameters() if p.requires_grad and p.is_floating_point()]
    optimizer = torch.optim.SGD(trained, lr=0.01)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(2):
        loss = model(torch.randn(4, 64, generator=generator)).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("bits", [4, 8])
def test_bits_do_not_change_and_weights_are_decoded(tmp_path, bits):
    plain, watched = new_model(bits), new_model(bits)
    losses = train(plain)
    with telens.watch(watched, AMAX, tmp_path):
        assert train(watched) == losses
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)
    # The layer's product with the identity gives its weight, column by column.
    with torch.no_grad():
        layer = plain[1]
        weight = layer(torch.eye(64)) - layer.bias
    rows = recorded(tmp_path, "cur_amax")
    tolerance = 1e-6 if bits == 4 else 1e-2  # which rounds the identity to 8 bits, too
    assert rows["1", "weight", 1] == pytest.approx(amax(weight), rel=tolerance)
    assert recorded(tmp_path, "numel")["1", "weight", 1] == 32 * 64
    assert ("1", "dgrad", 1) in rows
