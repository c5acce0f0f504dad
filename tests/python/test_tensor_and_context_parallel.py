"""Layers on four ranks that divide both the heads (by two) and the sequences (by two)."""

import itertools

import torch
import torch.distributed as dist
from context_helpers import chunks_of, close
from distributed_workers import run_ranks
from parallel_helpers import Part, region, sum_over_ranks
from test_parallel_transformer import BATCH, FFN, HEADS, HIDDEN, own_rows

import telens.pytorch as te

SEQ = 32
TENSOR, CONTEXT = ((0, 1), (2, 3)), ((0, 2), (1, 3))
GATED = {"activation": "swiglu", "hidden_dropout": 0.0}


def make(kind: str, **more) -> te.MultiheadAttention | te.TransformerLayer:
    made = {"attention_dropout": 0.0, "fuse_qkv_params": True, "device": "cpu", **more}
    if kind == "MultiheadAttention":
        return te.MultiheadAttention(HIDDEN, HEADS, input_layernorm=True, **made)
    return te.TransformerLayer(HIDDEN, FFN, HEADS, num_gqa_groups=HEADS, **GATED, **made)


def compare(kind: str, groups: list, comm: str, sequence: bool, precision: str) -> None:
    torch.manual_seed(1)
    tensor, context = groups
    whole = make(kind)
    own = make(kind, tp_group=tensor, set_parallel_mode=True, sequence_parallel=sequence)
    own.set_context_parallel_group(context, None, None, comm)
    part = Part(tensor.rank(), 2)
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            parameter.copy_(own_rows(name, whole.get_parameter(name), part, HEADS, HEADS))
    generator = torch.Generator().manual_seed(1)
    x, gradient = (torch.randn(SEQ, BATCH, HIDDEN, generator=generator) for _ in range(2))
    angles = te.RotaryPositionEmbedding(HIDDEN // HEADS)(SEQ)
    here = torch.tensor(chunks_of(context.rank(), 2, SEQ))
    if sequence:  # each tensor-parallel rank has one of the two chunks
        here = part.of(here, 0)
    own_x = x[here].requires_grad_()
    x.requires_grad_()
    with region(precision, dist.group.WORLD):
        expected, found = (each(y, rotary_pos_emb=angles) for each, y in ((whole, x), (own, own_x)))
    expected.backward(gradient)
    found.backward(gradient[here])
    case = (kind, comm, sequence, precision)
    close(found, expected[here], (*case, "output"))
    close(own_x.grad, x.grad[here], (*case, "dgrad"))
    for name, parameter in own.named_parameters():
        over = dist.group.WORLD if getattr(parameter, "sequence_parallel", False) else context
        of_whole = own_rows(name, whole.get_parameter(name).grad, part, HEADS, HEADS)
        close(sum_over_ranks(parameter.grad, over), of_whole, (*case, name))


def four_ranks(rank: int) -> None:
    groups = []
    for pairs in (TENSOR, CONTEXT):
        made = {pair: dist.new_group(list(pair)) for pair in pairs}
        groups += [group for pair, group in made.items() if rank in pair]
    for kind, comm, sequence in itertools.product(
        ("MultiheadAttention", "TransformerLayer"), ("p2p", "all_gather", "a2a"), (False, True)
    ):
        compare(kind, groups, comm, sequence, "FP32")
    compare("TransformerLayer", groups, "p2p", True, "MXFP8")


def test_layers_divided_by_heads_and_by_sequence_are_the_whole_ones():
    run_ranks(four_ranks, world_size=4)
