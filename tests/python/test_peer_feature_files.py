"""Files of feature classes as written for Transformer Engine, except for the import lines.

Each file is kept here with the peer's imports; the one rule for import lines is applied to it, and
it is put into a folder of feature_dirs.
"""

import re

import pytest
import torch
from debug_helpers import Scalars, section, statistics_log

import telens
import telens.debug as debug
import telens.pytorch as te
from telens.common.recipe import DelayedScaling

# The custom feature of the documentation's tutorial: its own statistic, with a schedule.
SHARE_ABOVE = '''
from typing import Dict, Optional

import torch

from nvdlfw_inspect.registry import Registry, api_method
from nvdlfw_inspect.logging import MetricLogger
import nvdlfw_inspect.api as debug_api

from transformer_engine.debug.features.api import TEConfigAPIMapper
from transformer_engine.pytorch.tensor import QuantizedTensor, Quantizer


@Registry.register_feature(namespace="transformer_engine")
class ShareAbove(TEConfigAPIMapper):
    """Share of the elements that are larger than a threshold."""

    @api_method
    def inspect_tensor(
        self,
        config: Dict,
        layer_name: str,
        tensor_name: str,
        iteration: int,
        tp_group: torch.distributed.ProcessGroup,
        tensor: torch.Tensor,
        rowwise_quantized_tensor: Optional[torch.Tensor | QuantizedTensor] = None,
        columnwise_quantized_tensor: Optional[torch.Tensor | QuantizedTensor] = None,
        quantizer: Optional[Quantizer] = None,
    ):
        counts = torch.stack([(tensor > config["threshold"]).sum(), torch.tensor(tensor.numel())])
        group = debug_api.get_tensor_reduction_group()
        if group is not None:
            torch.distributed.all_reduce(counts, group=group)
        MetricLogger.log_scalar(
            f"{layer_name}_{tensor_name}_share_above", counts[0] / counts[1], iteration
        )

    @api_method
    def inspect_tensor_enabled(
        self, config: Dict, layer_name: str, tensor_name: str, iteration: int
    ):
        freq = config["freq"]
        return iteration % freq == 0, iteration + freq - iteration % freq
'''

# The documentation's custom precision: a modifying feature that logs under its own name.
TERNARY = """
from typing import Optional

import torch
from nvdlfw_inspect.logging import MetricLogger
from nvdlfw_inspect.registry import Registry, api_method
from transformer_engine.debug.features.api import TEConfigAPIMapper
from transformer_engine.pytorch.tensor import Quantizer


@Registry.register_feature(namespace="transformer_engine")
class Ternary(TEConfigAPIMapper):
    @api_method
    def modify_tensor_enabled(
        self, config, layer_name: str, tensor_name: str, gemm: str, iteration: int
    ):
        return True, iteration + 1

    @api_method
    def modify_tensor(
        self,
        config,
        layer_name: str,
        gemm: str,
        tensor_name: str,
        tensor: torch.Tensor,
        iteration: int,
        default_quantizer: Quantizer,
        out: Optional[torch.Tensor] = None,
        dtype: Optional[torch.dtype] = None,
    ):
        largest = tensor.abs().amax()
        MetricLogger.log_scalar(
            f"ternary_scale {layer_name}_{gemm}_{tensor_name}", largest, iteration=iteration
        )
        return torch.sign(tensor) * (tensor.abs() > largest / 2) * largest
"""

# Like Transformer Engine's PerTensorScaling: quantizers, messages, a parent's documentation.
OWN_SCALING = '''
from typing import Optional

import nvdlfw_inspect.api as debug_api
import torch
from nvdlfw_inspect.registry import Registry, api_method
from nvdlfw_inspect.utils import append_parent_docstring

from transformer_engine.debug.features.api import TEConfigAPIMapper
from transformer_engine.pytorch.tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
    Quantizer,
)


@Registry.register_feature(namespace="transformer_engine")
@append_parent_docstring(parent=TEConfigAPIMapper)
class OwnScaling(TEConfigAPIMapper):
    """Scales by the tensor's own amax."""

    @api_method
    def fp8_gemm(self, config, layer_name: str, gemm: str, iteration: int):
        return False

    @api_method
    def modify_tensor_enabled(
        self, config, layer_name: str, tensor_name: str, gemm: str, iteration: int
    ):
        return True

    @api_method
    def modify_tensor(
        self,
        config,
        layer_name: str,
        gemm: str,
        tensor_name: str,
        tensor: torch.Tensor,
        iteration: int,
        default_quantizer: Quantizer,
        out: Optional[Float8Tensor] = None,
        dtype: Optional[torch.dtype] = None,
    ):
        for key in config.keys():
            if key not in ["gemm", "tensor"]:
                raise ValueError(f"unexpected key {key}")
        assert isinstance(default_quantizer, Float8Quantizer)
        debug_api.log_message(
            f"Feature={self.__class__.__name__}, API=modify_tensor: {gemm}, {tensor_name}",
            layer_name,
            extra_cachable_args=(gemm, tensor_name),
        )
        quantizer = Float8CurrentScalingQuantizer(default_quantizer.dtype, device=tensor.device)
        if out is not None:
            quantizer.update_quantized(tensor.contiguous(), out)
            return None
        return quantizer(tensor.contiguous())
'''

# A feature that inherits the base LogTensorStats, as Transformer Engine's loggers do.
OWN_LOGGER = """
import logging

from nvdlfw_inspect.debug_features.log_tensor_stats import LogTensorStats as BaseLogTensorStats
from nvdlfw_inspect.logging import MetricLogger, get_logger
from nvdlfw_inspect.registry import Registry, api_method
import nvdlfw_inspect.api as debug_api

from transformer_engine.debug.features.utils import next_enabled_iter


@Registry.register_feature(namespace="transformer_engine")
class OwnLogger(BaseLogTensorStats):
    @api_method
    def inspect_tensor_enabled(self, config, layer_name: str, tensor_name: str, iteration: int):
        return next_enabled_iter(
            config.get("start_step", None),
            config.get("end_step", None),
            config.get("start_end_list", None),
            config.get("freq", 1),
            iteration,
        )

    @api_method
    def inspect_tensor(self, config, layer_name, tensor_name, tensor, iteration, tp_group):
        get_logger().log_message(f"looks at {tensor_name}", level=logging.WARNING)
        for stat in config["stats"]:
            MetricLogger.log_scalar(
                f"{layer_name}_{tensor_name}_{stat}", getattr(tensor, stat)().float(), iteration
            )
"""

RULE = [
    (r"\btransformer_engine\.", "telens."),
    (r"\bnvdlfw_inspect\.api\b", "telens.debug"),
    (r"\bnvdlfw_inspect\.", "telens.debug."),
]


def with_our_imports(text: str) -> str:
    """Returns the file with the one documented change of its import lines."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if re.match(r"(from|import) ", line):
            for pattern, ours in RULE:
                line = re.sub(pattern, ours, line)
            lines[number] = line
    return "".join(lines)


@pytest.fixture
def folder(tmp_path):
    """A folder for feature_dirs with all four files."""
    folder = tmp_path / "features"
    folder.mkdir()
    files = {"share": SHARE_ABOVE, "ternary": TERNARY, "scaling": OWN_SCALING, "own": OWN_LOGGER}
    for name, text in files.items():
        assert "nvdlfw_inspect" in text
        assert "nvdlfw_inspect" not in with_our_imports(text)
        (folder / f"{name}.py").write_text(with_our_imports(text))
    return folder


def steps(layer, x, count=1, fp8=False):
    for _ in range(count):
        with te.autocast(enabled=fp8, recipe=DelayedScaling(amax_history_len=4)):
            out = layer(x)
        out.sum().backward()
        debug.step()
    return out.detach()


def test_the_custom_feature_of_the_documentation_logs_its_statistic(tmp_path, folder, layer, x):
    config = section(
        {
            "ShareAbove": {"enabled": True, "tensors": ["activation"], "threshold": 0.1, "freq": 5},
            "LogTensorStats": {
                "enabled": True,
                "tensors": ["activation"],
                "stats": ["min"],
                "freq": 5,
            },
        },
        layer_name_regex_pattern=".*",
    )
    with debug.session(config, feature_dirs=folder, log_dir=tmp_path / "log"):
        steps(layer, x, count=7)
    share = (x > 0.1).float().mean().item()
    lines = [line.split(" - INFO - ")[1] for line in statistics_log(tmp_path / "log").splitlines()]
    assert lines == [
        line
        for iteration in (0, 5)
        for line in (
            f"fc1_activation_min \t\t\t\t iteration={iteration:06d} \t\t\t\t value={x.min():.4f}",
            f"fc1_activation_share_above \t\t\t\t iteration={iteration:06d}"
            f" \t\t\t\t value={share:.4f}",
        )
    ]
    records = telens.open_run(tmp_path / "log").records(statistic="share_above")
    assert records["value"].tolist() == pytest.approx([share, share])


def test_modifying_feature_alters_gemm_and_logs(tmp_path, folder, layer, x):
    def ternary(tensor):
        largest = tensor.abs().amax()
        return torch.sign(tensor) * (tensor.abs() > largest / 2) * largest

    keys = {"gemms": ["fprop"], "tensors": ["activation", "weight"]}
    config, scalars = section({"Ternary": {"enabled": True, **keys}}), Scalars()
    with debug.session(
        config, feature_dirs=folder, statistics_logger=scalars, log_dir=tmp_path / "log"
    ):
        out = steps(layer, x)
    expected = torch.nn.functional.linear(ternary(x), ternary(layer.weight), layer.bias)
    torch.testing.assert_close(out, expected)
    assert sorted(scalars.rows) == [
        ("ternary_scale fc1_fprop_activation", x.abs().max().item(), 0),
        ("ternary_scale fc1_fprop_weight", layer.weight.abs().max().item(), 0),
    ]


def test_a_feature_with_quantizers_scales_by_itself(tmp_path, folder, layer, x):
    keys = {"gemms": ["fprop"], "tensors": ["activation", "weight"]}
    config = section({"OwnScaling": {"enabled": True, **keys}})
    with debug.session(config, feature_dirs=folder, log_dir=tmp_path / "log"):
        out = steps(layer, x * 3, fp8=True)
        explained = debug.explain_features("OwnScaling")
    quantizer = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3, device="cpu")
    expected = torch.nn.functional.linear(
        quantizer((x * 3).detach()).dequantize(),
        quantizer(layer.weight.detach()).dequantize(),
        layer.bias,
    )
    torch.testing.assert_close(out, expected, rtol=1e-2, atol=2e-2)
    assert "Scales by the tensor's own amax." in explained


def test_a_logger_that_inherits_the_base_feature_runs(tmp_path, folder, layer, x):
    keys = {"tensors": ["activation"], "stats": ["max", "mean"], "freq": 2, "end_step": 3}
    config, scalars = section({"OwnLogger": {"enabled": True, **keys}}), Scalars()
    with debug.session(
        config, feature_dirs=folder, statistics_logger=scalars, log_dir=tmp_path / "log"
    ):
        steps(layer, x, count=6)
    assert scalars.rows == [
        row
        for iteration in (0, 2)
        for row in (
            ("fc1_activation_max", x.max().item(), iteration),
            ("fc1_activation_mean", pytest.approx(x.mean().item()), iteration),
        )
    ]


@pytest.mark.parametrize(
    "schedule",
    [
        {},
        {"freq": 3},
        {"freq": 2, "start_step": 3, "end_step": 9},
        {"end_step": -1, "freq": 4},
        {"start_end_list": [[2, 3], [7, 7]]},
        {"freq": 2, "start_end_list": [[9, -1], [1, 4]], "start_step": 3},
    ],
    ids=str,
)
def test_feature_class_schedule_matches_built_in(tmp_path, folder, layer, x, schedule):
    seen = {}
    for feature in ("OwnLogger", "LogTensorStats"):
        keys = {"tensors": ["activation"], "stats": ["max"], **schedule}
        config, scalars = section({feature: {"enabled": True, **keys}}), Scalars()
        with debug.session(
            config, feature_dirs=folder, statistics_logger=scalars, log_dir=tmp_path / feature
        ):
            steps(layer, x, count=14)
        seen[feature] = scalars.rows
    assert seen["OwnLogger"] == seen["LogTensorStats"] != []
