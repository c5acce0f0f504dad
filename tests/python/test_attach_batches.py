"""telens.watch: statistics of token ids, labels and attention masks."""

import math

import pytest
import torch
from attach_helpers import config
from test_attach_training import scalars
from torch import nn
from torch.nn import functional

import telens

AMAX = config(["cur_amax"], ["activation", "query"])
VOCABULARY, WIDTH, LENGTH, BATCH = 50, 8, 20, 8


class Decoder(nn.Module):
    """Token ids [batch, length] -> logits. ``attend`` calls the attention."""

    def __init__(self, attend):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.attend = attend

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.size(1)))
        x = x.unsqueeze(1)
        return self.head(self.attend(x).squeeze(1))


def causal(x):
    return functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def masked(mask):
    return lambda x: functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def encoded(x):
    """An encoder and a decoder of the same length."""
    seen = functional.scaled_dot_product_attention(x, x, x)
    return causal(x) + functional.scaled_dot_product_attention(x, seen, seen)


def batch_of(number):
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def next_token(logits, ids, labels):
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def train(folder, attend=causal, loss=next_token, batches=range(3), every=1):
    torch.manual_seed(0)
    model = Decoder(attend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with telens.watch(model, AMAX, folder, every=every):
        for number in batches:
            ids, labels = batch_of(number)
            loss(model(ids), ids, labels).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("batches", "shares"),
    [
        ([0, 1, 2, 3, 4, 5], {2: 0, 4: 0}),
        ([0, 0, 1, 1, 2, 2], {2: 50, 4: 50}),
        ([7, 7, 7, 7, 7, 7], {2: 100, 4: 100}),
        ([0, 1, 0, 1, 0, 1], {2: 0, 4: 0}),  # epochs
    ],
)
def test_share_of_repeated_batches(tmp_path, batches, shares):
    train(tmp_path, batches=batches, every=2)
    assert scalars(tmp_path, "repeated_batches%") == shares


def test_tokens_in_another_order_are_another_batch(tmp_path):
    torch.manual_seed(0)
    model = Decoder(causal)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids, _ = batch_of(0)
    with telens.watch(model, AMAX, tmp_path, every=1):
        for each in (ids, ids.flip(1), ids.flip(0), ids.flip(0)):
            model(each).sum().backward()
            optimizer.step()
    assert scalars(tmp_path, "repeated_batches%") == {1: 0, 2: 0, 3: 100}


def inner_shift(logits, ids, labels):
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def ignored_end(logits, ids, labels):
    shifted = functional.pad(ids, (0, 1), value=-100)[:, 1:]
    return nn.CrossEntropyLoss()(logits.flatten(0, 1), shifted.flatten())


def shifted_twice(logits, ids, labels):
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def not_shifted(logits, ids, labels):
    return functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def random_labels(logits, ids, labels):
    return functional.cross_entropy(logits.flatten(0, 1), torch.randint(50, (BATCH * LENGTH,)))


def several_tokens(logits, ids, labels):
    return next_token(logits, ids, labels) + shifted_twice(logits, ids, labels)


@pytest.mark.parametrize(
    ("loss", "offset"),
    [
        (next_token, 1),
        (inner_shift, 1),
        (ignored_end, 1),
        (shifted_twice, 2),
        (not_shifted, 0),
        (random_labels, None),
        (several_tokens, None),
    ],
)
def test_offset_of_labels(tmp_path, loss, offset):
    train(tmp_path, loss=loss)
    expected = {} if offset is None else dict.fromkeys(range(3), offset)
    assert scalars(tmp_path, "label_offset") == expected


def test_equal_tokens_have_no_offset(tmp_path):
    torch.manual_seed(0)
    model = Decoder(causal)
    ids = torch.full((BATCH, LENGTH), 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with telens.watch(model, AMAX, tmp_path, every=1):
        next_token(model(ids), ids, ids).backward()
        optimizer.step()
    assert scalars(tmp_path, "label_offset") == {}


SEES_ALL = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
PREFIX = SEES_ALL.tril()
PREFIX[:10, :10] = True
BIAS = torch.zeros(LENGTH, LENGTH).masked_fill(~SEES_ALL.tril(), -math.inf)


def after_prefix(logits, ids, labels):
    labels = labels.clone()
    labels[:, :9] = -100
    return next_token(logits, ids, labels)


@pytest.mark.parametrize(
    ("attend", "loss", "percent"),
    [
        (causal, next_token, 0),
        (masked(SEES_ALL.tril()), next_token, 0),
        (masked(BIAS), next_token, 0),
        (masked(BIAS.clamp_min(-1e4)), next_token, 0),
        (masked(SEES_ALL), next_token, 100),
        (masked(SEES_ALL[:1]), next_token, 100),
        (masked(torch.zeros(BATCH, 1, LENGTH, LENGTH)), next_token, 100),
        (masked(None), next_token, 100),
        (masked(PREFIX), next_token, 100 * 9 / 19),
        (masked(PREFIX), after_prefix, 0),
        (encoded, next_token, 0),
    ],
)
def test_share_of_visible_labels(tmp_path, attend, loss, percent):
    train(tmp_path, attend, loss)
    found = scalars(tmp_path, "visible_labels%")
    assert [*found] == [0, 1, 2]
    assert [*found.values()] == pytest.approx([percent] * 3)


def test_functions_are_restored(tmp_path):
    before = functional.cross_entropy
    train(tmp_path)
    assert functional.cross_entropy is before
