"""Configurations against nvdlfw-inspect 0.2.2: what is selected, with which keys, and when.

Random configurations are resolved by both. Where the contract improves on the peer on purpose, the
difference has a name in OURS; those differences are counted and must all occur.
"""

import json
import logging
import random
from collections import Counter

import nvdlfw_inspect.api as debug_api
import pytest
from config_questions import ask
from nvdlfw_inspect.config_manager import ConfigManager
from nvdlfw_inspect.debug_features.generic_feature_api import GenericConfigAPIMapper
from nvdlfw_inspect.logging import enable_logging_at_current_step, initialize_logger

STEPS = 24
CONFIGS = 400
LAYERS = [
    "model.layers.3.self_attention.layernorm_linear_qkv",
    "model.layers.3.layernorm_mlp.fc1",
    "model.layers.12.layernorm_mlp.fc2",
    "model.layers.12.self_attention.proj",
    "Layer_1",
    "decoder.fc1",
    "lm_head",
    "stage.0.layers.3.fc2",
    "cat",
]
GEMMS = ["fprop", "dgrad", "wgrad"]
TENSORS = ["activation", "weight", "gradient", "output", "wgrad", "dgrad"]
FP8_TENSORS = TENSORS[:3]
STATS = ["min", "max", "mean", "std", "l1_norm", "l2_norm"]
FP8_STATS = ["underflows%", "scale_inv_min", "scale_inv_max", "mse"]

NVFP4_STATS = ["underflows%", "mse"]

# Features by what Transformer Engine's feature classes ask nvdlfw-inspect to select.
MODIFIERS = {"FakeQuant", "PerTensorScaling"}
GEMM_FEATURES = {*MODIFIERS, "DisableFP8GEMM", "DisableQuantizationGEMM"}
OBSERVERS = {"LogTensorStats", "LogFp8TensorStats", "LogNvfp4TensorStats", "DumpTensors"}
TENSOR_FEATURES = {*MODIFIERS, *OBSERVERS, "base.LogTensorStats"}
FP8_FEATURES = {"LogFp8TensorStats", "LogNvfp4TensorStats", "PerTensorScaling"}
# Two names, one feature.
FIRST_NAMES = {
    "DisableQuantizationGEMM": "DisableFP8GEMM",
    "DisableQuantizationLayer": "DisableFP8Layer",
}
LAYER_FEATURES = {"DisableFP8Layer", "DisableQuantizationLayer"}

OURS = {
    "exact names merely do not select others",
    "a name without a number is not selected by number",
    "the first number of a name counts",
    "a string is a list of one",
    "a range of layer numbers in text",
    "the last of a list's pair is included",
    "tensors beside gemms_struct serve its items",
    "two that modify the same tensor in the same GEMM are an error at load",
}


# --- random configurations -------------------------------------------------------------------


def some(rng, items):
    return rng.sample(items, rng.randint(1, len(items)))


def random_layers(rng):
    layers = {}
    kind = rng.choice(["exact", "regex", "numbers", "types", "both", "everything"])
    if kind in ("exact", "everything"):
        layers["exact_layer_names"] = some(rng, LAYERS)
    if kind in ("regex", "everything"):
        layers["layer_name_regex_pattern"] = rng.choice(
            [".*(fc1|fc2)", r"layers\.\d\.", "^(?!.*fc)", "proj$", "Layer_1|lm", "nothing"]
        )
    if kind in ("numbers", "both", "everything"):
        layers["layer_numbers"] = rng.choice([[3], [1, 12], ["2-11"], [0, "10-12"], 3, "all"])
    if kind in ("types", "both", "everything"):
        layers["layer_types"] = rng.choice(
            [["fc1"], ["fc1", "fc2"], ["qkv", "proj"], ["all"], "fc", ["."]]
        )
    return layers


def random_schedule(rng):
    schedule = {}
    if rng.random() < 0.5:
        schedule["freq"] = rng.randint(1, 5)
    if rng.random() < 0.4:
        schedule["start_step"] = rng.randint(0, 10)
    if rng.random() < 0.4:
        schedule["end_step"] = rng.choice([-1, rng.randint(0, 20)])
    if rng.random() < 0.2:
        schedule["start_end_list"] = [[2, 5], [9, rng.choice([12, -1])]]
    return schedule


def random_parameters(rng, feature):
    if feature == "FakeQuant":
        return {"quant_format": rng.choice(["FP8E4M3", "FP8E5M2", "MXFP8E4M3", "MXFP8E5M2"])}
    if feature == "LogFp8TensorStats":
        return {"stats": some(rng, FP8_STATS)}
    if feature == "LogNvfp4TensorStats":
        return {"stats": some(rng, NVFP4_STATS)}
    if feature == "DumpTensors":
        return {"quantized_tensor": rng.random() < 0.5, "high_precision_tensor": rng.random() < 0.5}
    if feature.endswith("LogTensorStats"):
        return {"stats": some(rng, STATS)}
    return {}


def random_axis(rng, feature, names, plural, single, nested):
    """`plural: [...]`, or `plural_struct: [...]` with keys of each item's own."""
    chosen = some(rng, names)
    if rng.random() < 0.5:
        return {plural: chosen[0] if rng.random() < 0.1 else chosen}
    items = []
    for name in chosen:
        item = {single: name, **(nested() if nested else {})}
        if rng.random() < 0.5:
            item |= random_parameters(rng, feature) | random_schedule(rng)
        items.append(item)
    return {f"{plural}_struct": items}


def random_feature(rng, feature):
    config = {"enabled": rng.random() < 0.9}
    config |= random_parameters(rng, feature) | random_schedule(rng)
    tensors = FP8_TENSORS if feature in FP8_FEATURES else TENSORS

    def tensor_axis():
        return random_axis(rng, feature, tensors, "tensors", "tensor", None)

    if feature in GEMM_FEATURES:
        beside = feature in TENSOR_FEATURES and rng.random() < 0.2
        nested = tensor_axis if feature in TENSOR_FEATURES and not beside else None
        axis = random_axis(rng, feature, GEMMS, "gemms", "gemm", nested)
        config |= axis
        if feature in TENSOR_FEATURES and (beside or "gemms" in axis):
            config |= tensor_axis()
    elif feature in TENSOR_FEATURES:
        config |= tensor_axis()
    return config


def random_core_features(rng):
    core = some(rng, sorted(OBSERVERS)) if rng.random() < 0.8 else []
    # Both in one case of four only, because they usually conflict.
    core += rng.choice([["FakeQuant"], ["PerTensorScaling"], [], sorted(MODIFIERS)])
    core += (
        [rng.choice(["DisableFP8GEMM", "DisableQuantizationGEMM"])] if rng.random() < 0.5 else []
    )
    core += [rng.choice(sorted(LAYER_FEATURES))] if rng.random() < 0.3 else []
    return core or ["FakeQuant"]


def random_config(rng):
    config = {}
    for section in range(rng.choice([1, 1, 2])):
        features = {"enabled": rng.random() < 0.9, "layers": random_layers(rng)}
        core = random_core_features(rng)
        features["transformer_engine"] = {name: random_feature(rng, name) for name in core}
        if rng.random() < 0.4:
            written_out = rng.random() < 0.5
            base = {"LogTensorStats": random_feature(rng, "base.LogTensorStats")}
            features |= {"base": base} if written_out else base
        config[f"section_{section}"] = features
    return config


# --- the peer ---------------------------------------------------------------------------------


class Features:
    def __init__(self, names):
        self.features = dict.fromkeys(names)


class Mapper(GenericConfigAPIMapper):
    """Parses as Transformer Engine's TEConfigAPIMapper does; tensors are parsed by
    nvdlfw-inspect.
    """

    def parse(self, config, gemm, tensor):
        config = json.loads(json.dumps(config))
        if gemm is not None:
            config = self.gemm_config(config, gemm, tensor)
        elif tensor is not None:
            config = self._process_tensor_config(config, tensor)
        if config is not None:
            config.pop("enabled", None)
        return config

    def gemm_config(self, config, gemm, tensor):
        if "gemms_struct" in config:
            for item in config["gemms_struct"]:
                if item["gemm"] != gemm:
                    continue
                if tensor is not None:
                    item = self._process_tensor_config(item, tensor)
                    if item is None:
                        return None
                config.pop("gemms_struct")
                config.update(item)
                return config
            return None
        if gemm not in config["gemms"]:
            return None
        if tensor is not None and self._process_tensor_config(config, tensor) is None:
            return None
        config["gemm"] = gemm
        config.pop("gemms")
        return config


@pytest.fixture(scope="module", autouse=True)
def peer_logger(tmp_path_factory):
    initialize_logger(str(tmp_path_factory.mktemp("peer")))
    logging.disable(logging.CRITICAL)
    # Its mapper logs through the manager of a session, which does not exist here.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(debug_api, "log_message", lambda *args, **kwargs: None)
        yield
    logging.disable(logging.NOTSET)


def peer_load(config):
    ConfigManager.reset()
    registry = {
        "transformer_engine": Features(
            [*sorted(GEMM_FEATURES | OBSERVERS | LAYER_FEATURES)],
        ),
        "base": Features(["LogTensorStats"]),
    }
    ConfigManager._load_config(config, registry)


def axes_of(feature):
    """Returns every (gemm, tensor) that a call could name for the feature."""
    gemms = GEMMS if feature in GEMM_FEATURES else [None]
    tensors = TENSORS if feature in TENSOR_FEATURES else [None]
    return [(gemm, tensor) for gemm in gemms for tensor in tensors]


def peer_due(config):
    schedule = (config.get("start_step", 0), config.get("end_step", -1))
    ranges = config.get("start_end_list")
    freq = config.get("freq", 1)
    return [s for s in range(STEPS) if enable_logging_at_current_step(s, freq, *schedule, ranges)]


def peer_answer(layer):
    """{(feature, gemm, tensor): (config, due steps)}"""
    answer = {}
    for namespace, features in ConfigManager.get_config_for_layer(layer).items():
        for name, config in features.items():
            feature = f"base.{name}" if namespace == "base" else name
            if not config["enabled"]:
                continue
            for gemm, tensor in axes_of(feature):
                matched = Mapper().parse(config, gemm, tensor)
                if matched is not None:
                    key = (FIRST_NAMES.get(feature, feature), gemm, tensor)
                    answer[key] = (matched, peer_due(matched))
    return answer


# --- the comparison ---------------------------------------------------------------------------


def our_answer(entries):
    answer = {}
    for entry in entries:
        feature = entry["feature"].removeprefix("transformer_engine.")
        for selection in entry["selections"]:
            key = (feature, selection["gemm"], selection["tensor"])
            answer[key] = (selection["config"], selection["due"])
    return answer


def names(entries):
    """Returns the features that an answer for a layer selects."""
    return {key[0] for key in our_answer(entries)} if isinstance(entries, list) else set()


def like_ours(config, counts):
    """Returns the configuration in the form that has the same meaning for nvdlfw-inspect."""
    config = json.loads(json.dumps(config))
    for section in config.values():
        layers = section["layers"]
        for key in ("layer_types", "layer_numbers"):
            if isinstance(layers.get(key), (str, int)) and layers[key] != "all":
                layers[key] = [layers[key]]
                counts["a string is a list of one"] += 1
        if any("-" in str(number) for number in listed(layers.get("layer_numbers"))):
            counts["a range of layer numbers in text"] += 1
        for name, feature in [*section["transformer_engine"].items(), *base_features(section)]:
            feature_like_ours(feature, name in GEMM_FEATURES, counts)
    return config


def listed(value):
    return value if isinstance(value, list) else [] if value is None else [value]


def base_features(section):
    base = section.get("base", {key: section[key] for key in section if key == "LogTensorStats"})
    return base.items()


def feature_like_ours(feature, has_gemms, counts):
    for level in [feature, *feature.get("gemms_struct", [])]:
        for key in ("gemms", "tensors"):
            if isinstance(level.get(key), str):
                level[key] = [level[key]]
                counts["a string is a list of one"] += 1
        for item in [level, *level.get("tensors_struct", [])]:
            # Both ends of a pair are included for telens; for nvdlfw-inspect the last one is not.
            pairs = item.get("start_end_list", [])
            item.update({"start_end_list": [[a, b + (b != -1)] for a, b in pairs]} if pairs else {})
            counts["the last of a list's pair is included"] += bool(pairs)
    if not has_gemms or "gemms_struct" not in feature:
        return
    for key in ("tensors", "tensors_struct"):
        if key in feature:
            beside = feature.pop(key)
            for item in feature["gemms_struct"]:
                item.setdefault(key, json.loads(json.dumps(beside)))
            counts["tensors beside gemms_struct serve its items"] += 1


def restore_pairs(config):
    """Undoes what feature_like_ours did to the pairs, for the comparison of keys."""
    pairs = config.get("start_end_list")
    return config | {"start_end_list": [[a, b - (b != -1)] for a, b in pairs]} if pairs else config


def peer_selects(layer, counts):
    """The answer of nvdlfw-inspect, or the one that the contract demands where nvdlfw-inspect
    raises.
    """
    try:
        return peer_answer(layer)
    except (ValueError, IndexError) as error:
        message = str(error)
        if "same layer" in message:
            return "overlap"
        if "exact layer name" in message:
            counts["exact names merely do not select others"] += 1
        elif isinstance(error, IndexError):
            counts["a name without a number is not selected by number"] += 1
        elif "extract layer number" in message:
            counts["the first number of a name counts"] += 1
        else:
            raise
        return None


def expected(config, layer, counts):
    """Resolves each section by itself, so that a layer can be compared even if another section
    raises.
    """
    answer, selecting = {}, 0
    for name, section in config.items():
        if not section["enabled"]:
            continue
        peer_load({name: section})
        selected = peer_selects(layer, counts)
        if selected is None:
            if not selects_for_us(section["layers"], layer):
                continue
            section = section | {"layers": {"exact_layer_names": [layer]}}
            peer_load({name: section})
            selected = peer_answer(layer)
        elif not ConfigManager.get_config_for_layer(layer):
            continue
        selecting += 1
        answer |= selected
    return "overlap" if selecting > 1 else answer


def selects_for_us(layers, layer):
    """The rule of the contract for the three cases in which nvdlfw-inspect raises."""
    if "exact_layer_names" in layers:
        return layer in layers["exact_layer_names"]
    if layer != "stage.0.layers.3.fc2":
        return False  # no number in the name
    first = {"layer_numbers": layers["layer_numbers"]}
    types = layers.get("layer_types")
    return first["layer_numbers"] in ("all", [0, "10-12"]) and (
        types is None or "all" in types or any(kind in layer for kind in types)
    )


def modify_the_same(config):
    """Whether, for nvdlfw-inspect, two features of a section modify the same tensor in the same
    GEMM.
    """
    for name, section in config.items():
        if not section["enabled"]:
            continue
        peer_load({name: section | {"layers": {"exact_layer_names": ["lm_head"]}}})
        keys = peer_answer("lm_head")
        both = [{key[1:] for key in keys if key[0] == feature} for feature in sorted(MODIFIERS)]
        if both[0] & both[1]:
            return True
    return False


def test_random_configs_match_the_peer():
    rng = random.Random(20261121)
    configs = [random_config(rng) for _ in range(CONFIGS)]
    answers = ask([{"config": json.dumps(c), "layers": LAYERS, "steps": STEPS} for c in configs])
    counts = Counter()
    selections = overlaps = 0
    features = set()
    for config, ours in zip(configs, answers, strict=True):
        peers = like_ours(config, counts)
        if modify_the_same(peers):
            assert "modify the same tensor in the same GEMM" in ours.get("error", ""), config
            counts["two that modify the same tensor in the same GEMM are an error at load"] += 1
            continue
        assert "error" not in ours, (config, ours)
        for layer in LAYERS:
            theirs = expected(peers, layer, counts)
            entries = ours["layers"][layer]
            if theirs == "overlap":
                assert isinstance(entries, dict), (config, layer)
                assert "both select the layer" in entries["error"]
                overlaps += 1
                continue
            theirs = {key: (restore_pairs(c), due) for key, (c, due) in theirs.items()}
            assert our_answer(entries) == theirs, (config, layer)
            selections += len(theirs)
        features |= {feature for entries in ours["layers"].values() for feature in names(entries)}
    assert features == {*TENSOR_FEATURES, *GEMM_FEATURES, *LAYER_FEATURES} - set(FIRST_NAMES)
    assert selections > 5000
    assert overlaps > 50
    assert set(counts) == OURS
    assert min(counts.values()) > 10, counts


def test_item_without_tensors_is_an_error():
    config = {
        "s": {
            "enabled": True,
            "layers": {"layer_types": ["all"]},
            "transformer_engine": {
                "FakeQuant": {
                    "enabled": True,
                    "quant_format": "FP8E4M3",
                    "gemms_struct": [{"gemm": "fprop"}],
                }
            },
        }
    }
    peer_load(config)
    with pytest.raises(ValueError, match="tensors_struct"):
        peer_answer("lm_head")
    answer = ask([{"config": json.dumps(config), "layers": [], "steps": 1}])[0]
    assert "'tensors' is missing" in answer["error"]
