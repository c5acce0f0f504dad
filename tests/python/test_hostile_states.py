"""Malicious saved states: loading them has bounded cost and no side effects, and rejects invalid
scales.
"""

import io
import pickle
import pickletools
import struct
import time
import tracemalloc
import warnings

import pytest
import torch

import telens
import telens.pytorch as te
from telens.common.recipe import DelayedScaling
from telens.pytorch.checkpoints.transformer_engine_pickle import UnreadablePickle, read_pickle

SECONDS = 5.0  # of a processor; the largest case takes 0.6
PEAK = 100 << 20  # bytes; the largest case takes 13 MB


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def name(module, word):
    return b"c" + module.encode() + b"\n" + word.encode() + b"\n"


def nested(opcode, levels=45):
    """Containers that contain the one before twice, so 2^levels leaves."""
    steps = (b"0" + opcode(bytes([i - 1])) + b"q" + bytes([i]) for i in range(1, levels + 1))
    return b"".join(steps)


def laughing_lists():
    return b"]q\x00" + nested(lambda inner: b"](h" + inner + b"h" + inner + b"e")


def laughing_tuples():
    return b")q\x00" + nested(lambda inner: b"h" + inner + b"h" + inner + b"\x86")


LARGE = 8 << 20  # bytes


def large_integer_as_key():
    integer = b"\x8b" + struct.pack("<I", LARGE) + b"\x01" * LARGE
    return b"}" + integer + b"q\x000" + b"h\x00Ns" * 30_000


def equal_texts_as_keys():
    """Two equal texts: each use of the second as a key compares all characters."""
    texts = text("a" * LARGE) + b"q\x000" + text("a" * LARGE) + b"q\x010"
    return b"}" + texts + b"h\x00Ns" + b"h\x01Ns" * 30_000


def equal_names():
    word = text("a" * LARGE)
    module = text("transformer_engine.common.recipe") + b"q\x000"
    return (
        module
        + word
        + b"q\x010"
        + word
        + b"q\x020"
        + b"h\x00h\x01\x93"
        + b"h\x00h\x02\x93" * 20_000
    )


def large_factors():
    """The sizes of a tensor are large integers, whose product is its number of elements."""
    integer = b"\x8b" + struct.pack("<I", LARGE) + b"\x01" * LARGE
    sizes = b"(" + integer + b"q\x00" + b"h\x00" * 7 + b"t"
    return name("torch._utils", "_rebuild_tensor_v2") + b"(NK\x00" + sizes + b"q\x01h\x01tR"


def many_attributes():
    """One dictionary of 20,000 items is set 20,000 times."""
    items = b"".join(b"J" + struct.pack("<i", i) + b"N" for i in range(20_000))
    recipe = name("transformer_engine.common.recipe", "A") + b")\x81"
    return b"}(" + items + b"uq\x000" + recipe + b"h\x00b" * 20_000


def many_arguments():
    """One tuple of 30,000 items is passed to 15,000 calls."""
    kind = name("transformer_engine.common.recipe", "A") + b"q\x010"
    return b"(" + b"N" * 30_000 + b"tq\x000" + kind + b"](" + b"h\x01h\x00R" * 15_000 + b"e"


HOSTILE = {
    "lists that refer to one another": b"}" + text("x") + laughing_lists() + b"s",
    "tuples that refer to one another": b"}" + text("x") + laughing_tuples() + b"s",
    "a key whose hash has no end": b"}" + laughing_tuples() + b"Ns",
    "a million names": name("transformer_engine.common.recipe", "A") * 200_000,
    "classes without end": b"".join(
        name("transformer_engine.common.recipe", f"A{i}") for i in range(5000)
    ),
    "a list that holds itself": b"}" + text("x") + b"]q\x00h\x00as",
    "lists 10,000 deep": b"}" + text("x") + b"]" * 10_000 + b"a" * 9_999 + b"s",
    "attributes of a function": name("torch._utils", "_rebuild_tensor_v2") + b"N}\x86b",
    "an integer of 8 MB as the key": large_integer_as_key(),
    "an integer of 8 MB as a size": large_factors(),
    "equal keys of 8 MB": equal_texts_as_keys(),
    "equal names of 8 MB": equal_names(),
    "attributes that are set 20,000 times": many_attributes(),
    "arguments of 15,000 calls": many_arguments(),
    "attributes of a class": name("collections", "OrderedDict") + b"}b",
}


REASONS = {
    "a key whose hash has no end": "a tuple as the key of a dictionary",
    "a million names": "more than 100000 instructions",
    "classes without end": "more than 100 names",
    "a list that holds itself": "a list that holds itself",
    "lists 10,000 deep": "more than 50 nested lists",
    "an integer of 8 MB as the key": "an integer of more than 80 bits",
    "an integer of 8 MB as a size": "an integer of more than 80 bits",
    "equal keys of 8 MB": "a key of more than 1000 characters",
    "equal names of 8 MB": "a name of more than 1000 characters",
    "attributes that are set 20,000 times": "more than 100000 instructions",
    "arguments of 15,000 calls": "more than 100000 instructions",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_pickle_costs_no_time_and_no_memory(case):
    data = b"\x80\x04" + HOSTILE[case] + b"."
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(telens.UsageError, match="no _extra_state of Transformer Engine") as error:
        te.read_transformer_engine_state(data)
    seconds = time.process_time() - begin
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert REASONS.get(case, "") in str(error.value)
    assert seconds < SECONDS
    assert peak < PEAK


def test_opcodes_are_bounded_over_nested_pickles():
    """Each storage is a file with five pickles, which a small file can repeat."""
    storage = pickle.dumps(torch.ones(4), 3)[2:-1]
    data = b"\x80\x04}" + text("x") + b"](" + storage * 2000 + b"es."
    assert sum(1 for _ in pickletools.genops(data)) < 100_000
    with pytest.raises(telens.UsageError, match="more than 100000 instructions"):
        te.read_transformer_engine_state(data)


def test_views_of_a_shared_storage_are_bounded_in_bytes():
    storage = pickle.dumps(torch.ones(1 << 20), 3)[2:-1]  # 4 MB
    rebuild = name("torch._utils", "_rebuild_tensor_v2")
    begin = storage.index(name("torch.storage", "_load_from_bytes"))
    end = storage.index(b"R", begin + len(storage) - begin - 200)
    stored = storage[begin : end + 1]
    view = rebuild + b"(h\xffK\x00J" + struct.pack("<i", 1 << 20) + b"\x85K\x01\x85tR"
    data = b"\x80\x04" + stored + b"q\xff0](" + view * 40 + b"e."
    with pytest.raises(telens.UsageError, match="tensors of more than 64 MB"):
        te.read_transformer_engine_state(data)


@pytest.mark.parametrize("is_file", [False, True])
def test_each_byte_of_a_tensor_is_charged_once(is_file):
    values = {"scale_fwd": torch.ones(3), "amax_history_fwd": torch.ones(10 << 20)}  # 40 MB
    if is_file:
        file = io.BytesIO()
        torch.save(values, file)
        data = file.getvalue()
    else:
        data = pickle.dumps(values)
    assert torch.equal(read_pickle(data)["amax_history_fwd"], values["amax_history_fwd"])


def test_a_storage_read_twice_is_charged_twice():
    values = [torch.ones(10 << 20) for _ in range(2)]  # 40 MB each
    file = io.BytesIO()
    torch.save(values, file)
    with pytest.raises(UnreadablePickle, match="tensors of more than 64 MB"):
        read_pickle(file.getvalue())


def honest(**values):
    state = {
        "scale_fwd": torch.ones(3),
        "amax_history_fwd": torch.ones(2, 3),
        "scale_bwd": torch.ones(2),
        "amax_history_bwd": torch.ones(2, 2),
    }
    return pickle.dumps(state | values)


def test_a_refused_pickle_changes_nothing_for_the_next_one():
    recipe = name("transformer_engine.common.recipe", "DelayedScaling")
    for target in (name("torch._utils", "_rebuild_tensor_v2"), name("collections", "OrderedDict")):
        hostile = b"\x80\x04" + target + b"N}" + text("__init__") + recipe + b"s\x86b."
        with pytest.raises(telens.UsageError):
            te.read_transformer_engine_state(hostile)
        assert sorted(te.read_transformer_engine_state(honest()).scale) == ["bwd", "fwd"]


# The last values have a subnormal FP32 number as scale or as 1 / scale.
IMPOSSIBLE = [float("nan"), 0.0, -1.0, float("inf"), 1e-45, 1e-40, 3e38]


@pytest.mark.parametrize("value", IMPOSSIBLE)
def test_impossible_foreign_scale_is_named_and_ignored(value):
    scales = torch.tensor([2.0, value, 2.0])
    model = torch.nn.ModuleDict({"fc1": te.Linear(16, 16)})
    state = torch.frombuffer(bytearray(honest(scale_fwd=scales)), dtype=torch.uint8)
    with pytest.warns(UserWarning, match=r"fc1\._extra_state.* not restored.* scale of weight is"):
        model.load_state_dict(model.state_dict() | {"fc1._extra_state": state})
    assert model["fc1"].get_extra_state().numel() == 0


def test_impossible_foreign_scale_changes_no_gemm_and_names_its_gemm():
    state = honest(
        scale_fwd=torch.tensor([2.0, 2, 2, 2, 1e-45, 2]),
        amax_history_fwd=torch.ones(2, 6),
        scale_bwd=torch.ones(4),
        amax_history_bwd=torch.ones(2, 4),
    )
    layer = te.LayerNormMLP(16, 32)
    with pytest.warns(UserWarning, match="GEMM 1: the scale of weight is 1"):
        layer.set_extra_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    assert layer.get_extra_state().numel() == 0


def test_foreign_amax_may_be_nan_but_not_negative():
    def load(history):
        layer = te.Linear(16, 16)
        data = bytearray(honest(amax_history_bwd=history))
        layer.set_extra_state(torch.frombuffer(data, dtype=torch.uint8))
        return layer

    negative = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])
    with pytest.warns(UserWarning, match="amax history of grad_output has a negative amax"):
        assert load(negative).get_extra_state().numel() == 0
    with pytest.warns(UserWarning, match="amax history of grad_output contains NaN"):
        assert load(-negative.log()).get_extra_state().numel() > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(torch.tensor([[1.0, float("inf")], [0.0, 1.0]]))


# ---------------------------------------------------------------------- states of ours

# After the magic word and two numbers: the history [2, 3], then the scales of 3 tensors.
HISTORY, SCALES = 24, 24 + 4 * 6


def trained_state(recipe):
    layer = te.Linear(16, 16)
    with te.autocast(recipe=recipe):
        layer(torch.randn(16, 16)).sum().backward()
    return bytearray(layer.get_extra_state().numpy().tobytes())


def without_checksum(state):
    """As written by earlier versions: zeros in the upper half of the first length."""
    return state[:12] + bytes(4) + state[16:]


def load(state):
    layer = te.Linear(16, 16)
    layer.set_extra_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return layer.get_extra_state().numpy().tobytes()


@pytest.fixture
def state():
    return trained_state(DelayedScaling(amax_history_len=2))


def test_a_state_of_an_earlier_version_is_read(state):
    assert state[12:16] != bytes(4)
    assert load(without_checksum(state)) == bytes(state)
    assert load(state) == bytes(state)


def test_any_changed_bit_of_a_state_is_reported(state):
    for place in range(len(state)):
        state[place] ^= 1 << place % 8
        with pytest.raises(telens.UsageError, match="_extra_state"):
            load(state)
        state[place] ^= 1 << place % 8


@pytest.mark.parametrize("value", IMPOSSIBLE)
@pytest.mark.parametrize(("slot", "tensor"), [(0, "input"), (1, "weight"), (2, "output")])
def test_impossible_native_scale_is_rejected(state, value, slot, tensor):
    state = without_checksum(state)
    struct.pack_into("<f", state, HISTORY + 4 * (3 + slot), 1.0)
    struct.pack_into("<f", state, SCALES + 4 * slot, value)
    with pytest.raises(
        telens.UsageError, match=f"the scale of {tensor} is .*fits the amax history"
    ):
        load(state)


def test_scale_of_a_tiny_amax_is_restored():
    """Delayed scaling limits it to the largest FP32 number, whose inverse is subnormal."""
    layer = te.Linear(16, 16)
    with te.autocast(recipe=DelayedScaling(amax_history_len=2)):
        layer(torch.full((16, 16), 1e-37)).sum().backward()
    assert layer.fp8_meta["scaling_fwd"].scale[0] == torch.finfo(torch.float32).max
    state = layer.get_extra_state().numpy().tobytes()
    assert load(state) == state


@pytest.mark.parametrize(
    ("scale", "effect"), [(1e30, "FP8 casts will clip all values"), (1e-30, "will return 0")]
)
def test_scale_far_from_its_amaxes_is_warned_about(state, scale, effect, capfd):
    state = without_checksum(state)
    struct.pack_into("<f", state, SCALES + 4, scale)
    load(state)
    shown = capfd.readouterr().err
    assert f"_extra_state: the scale of weight is {scale:g}, but the" in shown
    assert effect in shown


def test_error_names_the_key_and_the_gemm_of_a_bad_scale():
    mlp = te.LayerNormMLP(16, 32)
    with te.autocast(recipe=DelayedScaling(amax_history_len=2)):
        mlp(torch.randn(16, 16)).sum().backward()
    model = torch.nn.ModuleDict({"mlp": mlp})
    saved = model.state_dict()
    key = "mlp._extra_state"
    state = bytearray(saved[key].numpy().tobytes())
    # Two numbers of the list, then the first part, then the size of the second.
    first = struct.unpack_from("<q", state, 8)[0]
    begin = 16 + first + 8
    state[begin + 12 : begin + 16] = bytes(4)  # no checksum
    struct.pack_into("<f", state, begin + SCALES, 0.0)
    saved[key] = torch.frombuffer(state, dtype=torch.uint8)
    with pytest.raises(telens.UsageError, match=f"^{key}, GEMM fc2: the scale of input is 0"):
        model.load_state_dict(saved)


def test_native_amax_may_be_nan_but_not_negative(state, capfd):
    state = without_checksum(state)
    struct.pack_into("<f", state, HISTORY + 4, -1.0)
    with pytest.raises(telens.UsageError, match="history of weight has a negative amax"):
        load(state)
    struct.pack_into("<f", state, HISTORY + 4, float("nan"))
    load(state)
    assert "the amax history of weight contains NaN" in capfd.readouterr().err
