"""initialize_ub: settings for each GEMM, their defaults, and which are refused."""

import warnings

import pytest
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # noqa: F401 - has the backend "fake"

import telens
import telens.pytorch as te
from telens import _C
from telens.pytorch import UserBufferQuantizationMode as Mode

SHAPE = [64, 32]
RING = {"num_sm": 1, "cga_size": 1, "set_sm_margin": False, "num_splits": 1}
OTHER = {"num_sm": 16, "cga_size": 2, "set_sm_margin": True, "num_splits": 4}
# Method and is_reduce_scatter of each GEMM, typed from Transformer Engine 2.20's sources.
DEFAULTS = {
    "qkv_fprop": ("ring_exchange", False), "fc1_fprop": ("ring_exchange", False),
    "proj_dgrad": ("ring_exchange", False), "fc2_dgrad": ("ring_exchange", False),
    "proj_fprop": ("pipeline", True), "fc2_fprop": ("pipeline", True),
    "qkv_dgrad": ("bulk", False), "fc1_dgrad": ("bulk", False),
    "qkv_wgrad": ("bulk", True), "fc1_wgrad": ("bulk", True),
    "proj_wgrad": ("external", False), "fc2_wgrad": ("external", False),
}  # fmt: skip
ALIKE = {
    "aggregate": False, "atomic_gemm": False, "use_ce": True, "comm_priority": None,
    "gemm_priority": None, "pipeline_rs_overlap_first_gemm": False,
}  # fmt: skip


def settings_of(ub_cfgs, fp8: bool = False, **arguments) -> dict:
    mode = Mode.FP8 if fp8 else Mode.NONE
    te.initialize_ub(SHAPE, 1, quantization_modes=[mode], ub_cfgs=ub_cfgs, **arguments)
    made = _C.ub_settings(fp8)
    te.destroy_ub()
    return made


def defaults() -> None:
    found = settings_of(None)
    assert found.keys() == DEFAULTS.keys()
    for name, (method, scatters) in DEFAULTS.items():
        sizes = RING if method == "ring_exchange" else OTHER
        expected = {"method": method, "is_reduce_scatter": scatters, "fp8_buf": not scatters}
        assert found[name] == {**expected, **sizes, **ALIKE}, name


def other_settings() -> None:
    assert settings_of({"proj_fprop": {"num_splits": 7}})["proj_fprop"]["num_splits"] == 7
    ring = settings_of({"proj_fprop": {"method": "ring_exchange"}})["proj_fprop"]
    assert (ring["method"], ring["is_reduce_scatter"], ring["num_sm"]) == ("ring_exchange", True, 1)
    for method in ("ring_exchange", "pipeline"):
        turned = settings_of({"qkv_dgrad": {"method": method}})["qkv_dgrad"]
        assert (turned["method"], turned["is_reduce_scatter"]) == (method, True)
    hints = {
        "num_sm": 3, "cga_size": 4, "set_sm_margin": 1, "aggregate": True, "use_ce": 0,
        "fp8_buf": False, "comm_priority": -5, "gemm_priority": 2,
        "pipeline_rs_overlap_first_gemm": True, "num_splits": 2, "is_reduce_scatter": False,
    }  # fmt: skip
    found = settings_of({"fc1_dgrad": hints})["fc1_dgrad"]
    assert found == {**ALIKE, **hints, "method": "bulk", "atomic_gemm": False, "fp8_buf": True}
    # Several precisions: one mapping for all, or one for each.
    both = [Mode.NONE, Mode.FP8]
    for given, splits in (
        ({"proj_fprop": {"num_splits": 2}}, (2, 2)),
        ([None, {"proj_fprop": {"num_splits": 3}}], (4, 3)),
    ):
        te.initialize_ub(SHAPE, 1, quantization_modes=both, ub_cfgs=given)
        found = tuple(_C.ub_settings(fp8)["proj_fprop"]["num_splits"] for fp8 in (False, True))
        assert found == splits
        te.destroy_ub()
    # The older form.
    with pytest.warns(DeprecationWarning, match="older form of quantization_modes"):
        te.initialize_ub(SHAPE, 1, use_fp8=True)
    assert _C.ub_settings(True).keys() == DEFAULTS.keys()
    assert _C.ub_settings(False) == {}
    te.destroy_ub()
    for backend in ("gloo", None):
        settings_of(None, bootstrap_backend=backend)


def hints_without_effect() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings_of({"qkv_fprop": {"fp8_buf": True}}, fp8=True)
    with pytest.warns(UserWarning, match="fp8_buf of fc2_fprop has no effect: parts of a sum"):
        settings_of({"fc2_fprop": {"fp8_buf": True}}, fp8=True)
    atomic = {"method": "ring_exchange", "atomic_gemm": True}
    with pytest.warns(UserWarning, match=r"atomic_gemm of proj_fprop has no effect: each part is"):
        found = settings_of({"qkv_fprop": {"atomic_gemm": True}, "proj_fprop": atomic}, fp8=True)
    assert found["proj_fprop"]["atomic_gemm"]
    with pytest.warns(UserWarning, match="atomic_gemm of fc1_wgrad has no effect: its method"):
        assert not settings_of({"fc1_wgrad": {"atomic_gemm": True}}, fp8=True)["fc1_wgrad"][
            "atomic_gemm"
        ]


WRONG_CONFIGS = [
    ({"qkv": {}}, "ub_cfgs has 'qkv'; expected names of GEMMs: qkv_fprop, "),
    ({"qkv_fprop": {"splits": 4}}, r"ub_cfgs\['qkv_fprop'\] has 'splits'; expected some of method"),
    ({"qkv_fprop": {"method": "ring"}}, r"\['method'\] is 'ring'; the operand .* ring_exchange"),
    ({"qkv_fprop": {"method": "pipeline"}}, "is 'pipeline'; the operand of this GEMM is gathered"),
    ({"proj_dgrad": {"method": "bulk"}}, "is 'bulk'; the operand of this GEMM is gathered"),
    ({"proj_fprop": {"method": "bulk"}}, "is 'bulk'; this GEMM reduce-scatters, whose methods are"),
    ({"proj_wgrad": {"method": "bulk"}}, "is 'bulk'; .* whose methods are: external"),
    ({"qkv_wgrad": {"method": "pipeline"}}, "is 'pipeline'; .* whose methods are: bulk"),
    ({"qkv_fprop": {"method": 3}}, "is 3; the operand"),
    (
        {"qkv_fprop": {"is_reduce_scatter": True}},
        r"\['is_reduce_scatter'\] is True; expected False",
    ),
    ({"fc1_fprop": {"num_sm": -1}}, r"\['num_sm'\] is -1; expected a whole number from 0 on"),
    ({"fc1_fprop": {"num_sm": "many"}}, r"\['num_sm'\] is 'many'; expected a whole number"),
    ({"fc2_fprop": {"num_splits": 0}}, r"\['num_splits'\] is 0; expected at least 1"),
    ({"fc1_fprop": {"use_ce": 2}}, r"\['use_ce'\] is 2; expected True or False"),
    ({"fc1_fprop": {"use_ce": 0.5}}, r"ub_cfgs\['fc1_fprop'\]\['use_ce'\] must be a boolean, numb"),
    ({"fc1_fprop": {"comm_priority": True}}, r"\['comm_priority'\] is True; expected a whole numb"),
    ({"fc1_fprop": {"atomic_gemm": True}}, "atomic_gemm'.* is True, which is for FP8 GEMMs"),
    (
        {"qkv_dgrad": {"method": "pipeline"}, "qkv_wgrad": {"num_sm": 1}},
        "ub_cfgs has 'qkv_wgrad' and a 'qkv_dgrad' with method pipeline",
    ),
    ({"fc1_fprop": 3}, "ub_cfgs must be a mapping of GEMMs to mappings of settings, not 3"),
    (7, "ub_cfgs must be a mapping, or a list of mappings, not 7"),
    ([None, None], "ub_cfgs has 2 mappings and quantization_modes 1 entries"),
]
WRONG_ARGUMENTS = [
    ({"shape": [64]}, r"shape is \[64\]; expected \[sequence length \* batch size, hidden size\]"),
    ({"shape": [64, 0]}, r"shape is \[64, 0\]"),
    ({"shape": "ab"}, "shape must be a list of two integers"),
    ({"tp_size": 2}, "tp_size is 2, which does not divide the 1 ranks of torch.distributed"),
    ({"tp_size": 0}, "tp_size is 0"),
    ({"tp_size": "all"}, "tp_size must be an integer, not 'all'"),
    ({"dtype": "bf16"}, "dtype must be a torch.dtype, not 'bf16'"),
    ({"quantization_modes": Mode.FP8}, "quantization_modes must be a list of UserBufferQuantiz"),
    ({"quantization_modes": ["fp8"]}, "quantization_modes must be a list of UserBufferQuantiz"),
    ({"quantization_modes": [Mode.FP8, Mode.FP8]}, "quantization_modes names FP8 twice"),
    ({"bootstrap_backend": "ucx"}, "bootstrap_backend must be one of .*'gloo', 'mpi', 'nccl'"),
    ({"bootstrap_backend": "mpi"}, "bootstrap_backend is 'mpi', and this torch was built without"),
    ({"with_cublasmp": True}, "with_cublasmp=True is not supported"),
]


def refusals() -> None:
    for ub_cfgs, words in WRONG_CONFIGS:
        with pytest.raises(telens.UsageError, match=words):
            settings_of(ub_cfgs)
        assert not _C.is_ub_initialized()
    one_alone = {"qkv_fprop": {"atomic_gemm": True}}
    with pytest.raises(telens.UsageError, match="only one of qkv_fprop and proj_fprop has atomic"):
        settings_of(one_alone, fp8=True)
    for arguments, words in WRONG_ARGUMENTS:
        if arguments.get("bootstrap_backend") == "mpi" and dist.is_mpi_available():
            continue
        with pytest.raises(telens.UsageError, match=words):
            te.initialize_ub(**({"shape": SHAPE, "tp_size": 1} | arguments))
        assert not _C.is_ub_initialized()
    te.initialize_ub(SHAPE, 1)
    with pytest.raises(telens.UsageError, match="initialized already; call destroy_ub first"):
        te.initialize_ub(SHAPE, 1)
    te.destroy_ub()
    te.destroy_ub()  # again changes nothing
    assert issubclass(telens.UsageError, (RuntimeError, ValueError))


@pytest.fixture
def one_rank():
    """A group with this process only, which sends nothing."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_nothing_is_set_without_a_process_group():
    with pytest.raises(telens.UsageError, match=r"torch\.distributed is not initialized"):
        te.initialize_ub(SHAPE, 1)


@pytest.mark.filterwarnings("ignore:initialize_ub. atomic_gemm of qkv_fprop")
def test_settings_have_peer_defaults_and_reject_wrong_values(one_rank):
    defaults()
    other_settings()
    hints_without_effect()
    refusals()
