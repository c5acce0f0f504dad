"""telens._observer: it uses only LibTorch's stable ABI, and records what the core records."""

import shutil
import subprocess
import sys
from pathlib import Path

import pandas
import pytest
from observer_names import built

import telens

HERE = Path(__file__).resolve().parent

pytestmark = pytest.mark.skipif(built("_observer") is None, reason="telens._observer is not built")

CONFIG = """
all:
  enabled: True
  layers: {layer_name_regex_pattern: "embed|norm|qkv|out|head"}
  transformer_engine:
    LogTensorStats:
      enabled: True
      tensors: [activation, weight, gradient, output, wgrad, dgrad]
      stats: [min, max, mean, std, l1_norm, l2_norm, cur_amax, dynamic_range]
    LogFp8TensorStats:
      enabled: True
      tensors: [activation, weight]
      stats: ["fp8_current_scaling_underflows%", mxfp8_mse, fp8_block_scaling_mse]
    LogNvfp4TensorStats: {enabled: True, tensors: [activation], stats: [nvfp4_mse]}
  telens:
    ValueHistogram: {enabled: True, tensors: [activation, weight]}
    TensorDigests: {enabled: True, tensors: [activation, weight, gradient]}
attention:
  enabled: True
  layers: {layer_name_regex_pattern: .*attention.*}
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: [scores], stats: [max, attention_entropy]}
"""

TRAINING = """
import sys, torch, telens
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.qkv, self.out, self.head = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 50)
    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.qkv(x).view(4, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.norm(x + self.out(y.transpose(1, 2).reshape(4, 16, 32))))

torch.manual_seed(0)
model = Block().to(getattr(torch, sys.argv[3]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
telens.watch(model, config=sys.argv[1], log_dir=sys.argv[2])
for _ in range(3):
    ids = torch.randint(0, 50, (4, 16))
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(telens._C.__name__)
"""


def record(folder, dtype, runner=()):
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    (folder / "config.yaml").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, *runner, "train.py", "config.yaml", "run", dtype],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip(), telens.open_run(folder / "run")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_records_equal_the_core_bit_for_bit(tmp_path, dtype):
    module, observed = record(tmp_path / "observer", dtype, (HERE / "observer_names.py",))
    assert module == "telens._observer"
    module, reference = record(tmp_path / "core", dtype)
    assert module == "telens._C"
    records = observed.records()
    assert len(records) > 500
    assert {"attention_entropy", "mxfp8_mse"} <= set(records.statistic)
    pandas.testing.assert_frame_equal(records, reference.records(), check_exact=True)
    pandas.testing.assert_frame_equal(
        observed.histograms(), reference.histograms(), check_exact=True
    )
    assert observed.environment["torch"] == reference.environment["torch"]


def test_binaries_use_only_the_stable_abi(build_folder):
    audit = shutil.which("torch-abi-audit", path=Path(sys.executable).parent)
    for binary in (built("_observer"), build_folder / "observer/libtelens_observe.so"):
        done = subprocess.run(
            [audit, binary, "--verbose", "--check", "torch"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout
        assert "unstable=0" in done.stdout


PLUGIN = """
import torch, telens
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with telens.watch(model, config="config.yaml", log_dir="run", feature_dirs=["features"]):
    model(torch.full((2, 4), -100.0)).sum().backward()
    optimizer.step()
print(telens._C.__name__)
"""
PLUGIN_CONFIG = """
all:
  enabled: True
  layers: {layer_name_regex_pattern: .*}
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: [activation], stats: [elements]}
  telens:
    LargestMagnitude: {enabled: True, tensors: [activation]}
"""


def test_plugin_without_libtorch_loads_into_the_observer(tmp_path, build_folder):
    (tmp_path / "features").mkdir()
    shutil.copy(build_folder / "tests/plugins/without_torch.so", tmp_path / "features")
    (tmp_path / "config.yaml").write_text(PLUGIN_CONFIG)
    (tmp_path / "program.py").write_text(PLUGIN)
    done = subprocess.run(
        [sys.executable, HERE / "observer_names.py", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "telens._observer\n"
    records = telens.open_run(tmp_path / "run").records()
    values = dict(zip(records.statistic, records.value, strict=True))
    assert (values["largest"], values["elements"]) == (100, 8)
