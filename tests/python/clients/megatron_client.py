"""Trains Megatron-Core's GPTModel with its layers for Transformer Engine, without changes.

megatron_client.py NAMES...: one training each, on the ranks that torch.distributed has. NAMES are
``fp32`` or recipes of Megatron-Core. Rank 0 prints what it saw as JSON.
"""

import json
import os
import sys

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.transformer.transformer_config import TransformerConfig

STEPS = 15
VOCABULARY = 64
SEQUENCE = 16

ranks = int(os.environ.get("WORLD_SIZE", "1"))
os.environ.setdefault("MASTER_ADDR", "localhost")
os.environ.setdefault("MASTER_PORT", "0")
torch.distributed.init_process_group(
    "gloo", rank=int(os.environ.get("RANK", "0")), world_size=ranks
)
parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)


def make_model(recipe: str) -> torch.nn.Module:
    torch.manual_seed(1)
    fp8 = {} if recipe == "fp32" else {"fp8": "hybrid", "fp8_recipe": recipe}
    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        ffn_hidden_size=128,
        tensor_model_parallel_size=ranks,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        fp8_amax_history_len=4,
        fp8_amax_compute_algo="max",
        **fp8,
    )
    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_with_transformer_engine_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
    )


def train(recipe: str) -> dict:
    model = make_model(recipe)
    repr(model)  # Megatron prints its models; their layers read attributes of ours for it
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(2)
    tokens = torch.randint(0, VOCABULARY, (2, SEQUENCE + 1))
    positions = torch.arange(SEQUENCE).expand(2, SEQUENCE)
    losses = []
    for _ in range(STEPS):
        # Does what Megatron's loop does: cached codes of weights are computed again in each
        # iteration.
        model.set_is_first_microbatch()
        loss = model(tokens[:, :-1], positions, None, labels=tokens[:, 1:]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {
        "losses": losses,
        "still": [name for name, each in model.named_parameters() if each.equal(before[name])],
    }


found = {recipe: train(recipe) for recipe in sys.argv[1:]}
if torch.distributed.get_rank() == 0:
    print(json.dumps(found))
torch.distributed.destroy_process_group()
