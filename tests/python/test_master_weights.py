"""Quantized weights with distributed optimizers: codes in a buffer, master weights in parts."""

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import (
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from telens.pytorch.compat.master_weights import (
    cast_master_weights_to_fp8,
    post_all_gather_processing,
    quantize_master_weights,
    replace_raw_data,
)

RECIPES = [
    None,
    Float8CurrentScaling(use_power_2_scales=True),
    Float8BlockScaling(),
    MXFP8BlockScaling(),
    NVFP4BlockScaling(),
]
ROWS, COLUMNS = 128, 256


def make_weight(recipe, **options) -> torch.nn.Parameter:
    torch.manual_seed(1)
    with te.quantized_model_init(recipe=recipe, **options):
        return te.Linear(COLUMNS, ROWS, bias=False, device="cpu").weight


def codes_of(weight) -> list[torch.Tensor]:
    storage = weight._storage
    names = ("data", "scale_inv", "tensor_scale")
    found = [getattr(storage, f"{o}_{n}") for o in ("rowwise", "columnwise") for n in names]
    return [each for each in found if each is not None]


def assert_same_codes(weight, expected) -> None:
    for mine, other in zip(codes_of(weight), codes_of(expected), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("recipe", [r for r in RECIPES if not isinstance(r, MXFP8BlockScaling)])
def test_codes_move_into_a_buffer_and_follow_it(recipe):
    weight = make_weight(recipe)
    values, rows = weight.dequantize(), weight._storage.rowwise_data
    buffer = torch.zeros(rows.numel() + 8, dtype=torch.uint8)
    memory = buffer[8:].view(rows.shape)
    replace_raw_data(weight, memory)
    assert torch.equal(memory, rows)
    assert torch.equal(weight.dequantize(), values)
    assert weight._storage.rowwise_data.data_ptr() == memory.data_ptr()

    other = torch.randn(ROWS, COLUMNS)
    weight.quantize_(other)
    assert torch.equal(memory, weight._storage.rowwise_data)
    expected = make_weight(recipe)
    expected.quantize_(other)
    assert_same_codes(weight, expected)
    if not isinstance(recipe, NVFP4BlockScaling):
        buffer.zero_()
        post_all_gather_processing([weight])
        assert weight.dequantize().abs().max() == 0
        assert weight._storage.columnwise_data.abs().max() == 0


def test_replaced_data_of_another_kind_is_refused():
    weight = make_weight(None)
    with pytest.raises(telens.UsageError, match=r"expected torch.uint8 of shape \(128, 256\)"):
        replace_raw_data(weight, torch.zeros(ROWS, COLUMNS))
    with pytest.raises(telens.UsageError, match="MXFP8Tensor has other codes for its rows"):
        replace_raw_data(make_weight(MXFP8BlockScaling()), torch.zeros(ROWS, COLUMNS).byte())
    with pytest.raises(telens.UsageError, match="must be a quantized tensor"):
        replace_raw_data(torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize("recipe", RECIPES)
def test_whole_master_weights_are_quantized_as_a_cast_does(recipe):
    weight, expected = make_weight(recipe), make_weight(recipe)
    master = torch.randn(ROWS, COLUMNS)
    cast_master_weights_to_fp8([weight], [master.flatten()], [0], None)
    expected.quantize_(master)
    assert_same_codes(weight, expected)


@pytest.mark.parametrize("recipe", RECIPES)
def test_codes_of_a_part_go_to_the_memory_of_a_shard(recipe):
    weight, expected = make_weight(recipe), make_weight(recipe)
    before = weight._storage.rowwise_data.clone()
    master = torch.randn(ROWS * COLUMNS)
    per_byte = weight.numel() // before.numel()
    sizes = 2 if isinstance(recipe, MXFP8BlockScaling) else 1
    shard = [torch.zeros(weight.numel() // per_byte, dtype=torch.uint8) for _ in range(sizes)]
    quantize_master_weights([weight], [master], [0], None, [shard if sizes == 2 else shard[0]])
    expected.quantize_(master.view(ROWS, COLUMNS))
    assert torch.equal(shard[0], expected._storage.rowwise_data.flatten())
    if sizes == 2:
        assert torch.equal(shard[1], expected._storage.columnwise_data.t().reshape(-1))
    assert torch.equal(weight._storage.rowwise_data, before)
    assert torch.equal(weight._storage.rowwise_scale_inv, expected._storage.rowwise_scale_inv)


def test_values_before_quantization_are_cleared():
    weight = make_weight(None, preserve_high_precision_init_val=True)
    assert weight.get_high_precision_init_val() is not None
    quantize_master_weights([weight], [torch.randn(ROWS * COLUMNS)], [0], None)
    assert weight.get_high_precision_init_val() is None


def test_a_part_outside_of_its_weight_is_refused():
    for start in (None, -1, 8):
        with pytest.raises(telens.UsageError, match=f"elements begins at {start}"):
            quantize_master_weights(
                [make_weight(None)], [torch.zeros(ROWS * COLUMNS)], [start], None
            )
