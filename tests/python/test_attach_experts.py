"""telens.watch on mixtures of experts: tokens of each expert, entropy, dropped tokens."""

import math
import subprocess
from collections import Counter

import pytest
import torch
from attach_helpers import config
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
)

import telens
import telens.debug as debug

AMAX = config(["cur_amax"], ["activation"])
SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
}
MODELS = {
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4)),
    "qwen2_moe": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            **SIZES,
            num_experts=5,
            moe_intermediate_size=8,
            shared_expert_intermediate_size=8,
            decoder_sparse_step=1,
        )
    ),
    "olmoe": lambda: OlmoeForCausalLM(OlmoeConfig(**SIZES, num_experts=4)),
}


def train(model, folder, parts=2, steps=2, every=1, **more):
    """Trains with a watch; returns the router outputs of the last step by name."""
    seen = {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for name, module in model.named_modules():
        if type(module).__name__.endswith("Router"):
            seen[name] = []
            module.register_forward_hook(
                lambda module, args, output, name=name: seen[name].append(output)
            )
    with telens.watch(model, AMAX, folder, every=every):
        for _ in range(steps):
            for outputs in seen.values():
                outputs.clear()
            for _ in range(parts):
                tokens = torch.randint(64, (2, 9), generator=generator)
                more = dict.fromkeys(more, tokens)
                model(input_ids=tokens, **more).logits.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return seen


def rows_of(folder, iteration):
    rows = telens.open_run(folder).records()
    rows = rows[rows["iteration"] == iteration]
    return {(row.layer, row.tensor, row.statistic): row.value for row in rows.itertuples()}


@pytest.mark.parametrize("name", MODELS)
def test_routing_has_the_statistics_of_the_formulas(tmp_path, name):
    torch.manual_seed(0)
    seen = train(MODELS[name](), tmp_path)
    assert len(seen) == 2
    rows = rows_of(tmp_path, 1)
    for router, outputs in seen.items():
        logits = torch.cat([logits for logits, _, _ in outputs]).double()
        experts = logits.size(-1)
        entropy = torch.distributions.Categorical(logits=logits).entropy().mean().item()
        counts = Counter(i for _, _, chosen in outputs for i in chosen.flatten().tolist())
        assert rows[router, "output", "router_entropy"] == pytest.approx(entropy, rel=1e-6)
        share = 100 * entropy / math.log(experts)
        assert rows[router, "output", "router_entropy%"] == pytest.approx(share, rel=1e-6)
        assert rows[router, "output", "dropped_tokens%"] == 0
        busiest = max(counts.values()) / (sum(counts.values()) / experts)
        assert rows[router, "output", "expert_imbalance"] == pytest.approx(busiest)
        for expert in range(experts):
            found = rows[f"{router}.expert_{expert}", "activation", "tokens"]
            assert found == counts[expert], (router, expert)


def test_tokens_beyond_the_capacity_are_dropped(tmp_path):
    torch.manual_seed(0)
    model = SwitchTransformersForConditionalGeneration(
        SwitchTransformersConfig(
            vocab_size=64,
            d_model=16,
            d_ff=32,
            d_kv=8,
            num_heads=2,
            num_layers=2,
            num_decoder_layers=2,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
            num_experts=3,
            expert_capacity=2,
            router_jitter_noise=0.0,
        )
    )
    seen = train(model, tmp_path, decoder_input_ids=None)
    rows = rows_of(tmp_path, 1)
    assert seen
    dropped = 0
    for router, outputs in seen.items():
        masks = torch.cat([mask.flatten(0, -2) for mask, _, _ in outputs])
        expected = (masks.sum(-1) == 0).double().mean().item() * 100
        dropped += expected
        assert rows[router, "output", "dropped_tokens%"] == pytest.approx(expected)
        for expert, count in enumerate(masks.sum(0).tolist()):
            assert rows[f"{router}.expert_{expert}", "activation", "tokens"] == count
    assert dropped > 0


def test_routing_is_recorded_every_nth_step(tmp_path):
    torch.manual_seed(0)
    train(MODELS["olmoe"](), tmp_path, parts=1, steps=3, every=2)
    rows = telens.open_run(tmp_path).records(statistic="router_entropy")
    assert {*rows["iteration"]} == {0, 2}


def test_the_command_shows_the_routing(tmp_path, build_folder):
    torch.manual_seed(0)
    train(MODELS["mixtral"](), tmp_path)
    command = [build_folder / "bin/telens", "stats", tmp_path, "--stat"]
    for statistic, layer in (("router_entropy%", "mlp.gate"), ("tokens", "gate.expert_3")):
        result = subprocess.run([*command, statistic], capture_output=True, text=True, check=True)
        assert layer in result.stdout


def test_watching_routers_changes_no_bit(tmp_path):
    states = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = MODELS["mixtral"]()
        if watched:
            train(model, tmp_path)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            generator = torch.Generator().manual_seed(1)
            for _ in range(2):
                for _ in range(2):
                    tokens = torch.randint(64, (2, 9), generator=generator)
                    model(input_ids=tokens).logits.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        states.append(model.state_dict())
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


def test_router_after_the_end_of_the_session_counts_nothing(tmp_path):
    model = MODELS["olmoe"]()
    watch = telens.watch(model, AMAX, tmp_path, every=1)
    debug.end_debug()
    model(input_ids=torch.ones(1, 3, dtype=torch.long))
    assert len(watch._routers) == 2
    assert [router.take() for router in watch._routers] == [None, None]
    watch.stop()
