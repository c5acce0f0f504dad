"""Modules from Python beside what a user would take in their place; forward and backward."""

import json

from programs import ratio
from report import Row, at_most

from rows.group import Group

PEERS = {  # row of peers_from_python.py: name, peer, the most of its time
    "attention": [("causal attention over LibTorch's SDPA, FP32", "torch", 1.0)],
    "masked attention": [
        ("padded causal attention of 4,096 tokens over LibTorch's SDPA, FP32", "torch", 1.0)
    ],
    "grouped linear": [
        ("GroupedLinear of 8 experts over a loop of torch.nn.Linear, FP32", "loop", 1.0),
        ("GroupedLinear of 8 experts over one Linear of all rows, FP32", "one Linear", 1.1),
    ],
    "grouped linear in FP8": [
        ("GroupedLinear of 8 experts of 32 rows over a loop of te.Linear, FP8", "loop", 1.0)
    ],
    "permute": [("moe_permute over torch.nonzero and index_select, BF16", "torch", 1.0)],
    "llama layer": [("a Llama layer in FP8 over torch's in BF16", "torch", 1.1)],
}
MISSED = {
    "attention": "LibTorch's kernel runs on both sides; the module's own steps come on top",
    "permute": "its backward adds a token's rows in FP32 and rounds once, torch's in BF16; its "
    "forward also makes the row_id_map",
    "grouped linear": "a product an expert, each on all threads, so that its bits are those of the "
    "product alone, and as many gradients of weights to write and to add",
}


def peer_rows(programs):
    lines = programs.run_python("peers_from_python").splitlines()
    samples = {row["row"]: row["samples"] for row in map(json.loads, lines)}
    for key, rows in PEERS.items():
        for name, peer, most in rows:
            value = ratio(samples[key], "telens", peer)
            pair = {each: samples[key][each] for each in ("telens", peer)}
            yield Row(name, value, "x", at_most(most), pair, if_missed=MISSED.get(key, ""))


GROUP = Group([name for rows in PEERS.values() for name, _, _ in rows], peer_rows)
