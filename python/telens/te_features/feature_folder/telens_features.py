"""Loaded by nvdlfw_inspect, which runs every file of a folder in feature_dirs."""

from telens.te_features.features import register

register()
