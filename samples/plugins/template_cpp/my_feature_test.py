"""Watches one layer with the plugin and checks the run file:

my_feature_test.py CONFIG PLUGIN_FOLDER LOG_DIR
"""

import shutil
import sys

import torch

import telens

config, plugins, log_dir = sys.argv[1:]
shutil.rmtree(log_dir, ignore_errors=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 16))
x = torch.zeros(16, 16)
x[0] = 3.0  # one row of sixteen is above 2.5
with telens.watch(model, config, log_dir, feature_dirs=plugins):
    model(x)
    telens.step()

values = [record.value for record in telens.open_run(log_dir).records().itertuples()]
assert values == [100 / 16], f"expected one value, 6.25, found {values}"
print("passed")
