"""Tiny models of transformers' config classes with random weights, and inputs for them."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

HIDDEN, HEADS, LAYERS, VOCABULARY = 32, 4, 2, 128
POSITIONS, IMAGE, PATCH, TOKENS, BATCH = 64, 32, 8, 12, 2

# (names of integers in configs, largest value); the first match applies.
_LIMITS = [
    (r"(.*_)?vocab_size(_.*)?|.*num_embeddings", VOCABULARY),
    (r"(.*_)?(num_)?(key_value|kv)_heads|n_kv_heads?|num_kv", HEADS // 2),
    (r"rotary_dim", HIDDEN // HEADS // 2),
    (r"(.*_)?(qk_rope|rope)_head_dim|qk_head_dim", HIDDEN // HEADS),
    (r"(.*_)?num_experts_per_tok(en)?", 2),
    (r"(.*_)?(head|kv|key|value|query|v|k|qk_nope)_(head_)?(dim|size|channels)|d_kv|d_head", 8),
    (r"(q|kv|o)_lora_rank", 16),
    (r"(.*_)?(n|num|attention|encoder|decoder)_?(attention_)?heads?", HEADS),
    (r".*top_?k(_experts)?|moe_topk|num_selected_experts", 2),
    (r"n_group|topk_group|num_expert_groups?", 1),
    (r"(.*_)?(n|num)_(\w+_)?experts|num_experts.*|n_routed_experts", 4),
    (r"first_k_dense_replace", 1),
    (r"(.*_)?(n|num|encoder|decoder|hidden|text|vision)_?(\w+_)?(layers?|blocks|depth)", LAYERS),
    (r"depth|n_layers?|layers|num_stages|num_hidden_groups", LAYERS),
    (
        r"(.*_)?(intermediate|ffn|mlp|inner|feed_forward|feedforward|linear)(_hidden)?_(size|dim)",
        64,
    ),
    (r"d_ff|n_inner|ffn_dim|(.*_)?ffn_hidden_size|d_inner|dim_feedforward", 64),
    (
        r"(.*_)?(max_(\w+_)?position\w*|n_positions|max_source_positions|max_seq\w*|n_ctx)",
        POSITIONS,
    ),
    (r"sliding_window|attention_window|local_window\w*|window", 8),
    (r"(.*_)?image_size|img_size|input_size", IMAGE),
    (r"(.*_)?patch_size", PATCH),
    (r"num_mel_bins|feature_size|n_mels|num_mel_filters", 16),
    (
        r"(.*_)?(hidden|embed|embedding|model|projection|proj|emb|out_hidden|width)_?(size|dim|width)?",
        HIDDEN,
    ),
    (
        r"d_model|n_embd|dim|width|.*_hidden_size|.*_hidden_dim|.*_embed_dim|.*_dim|d_\w+|.*_size",
        HIDDEN,
    ),
    (r"num_queries|num_query_tokens|num_latents|num_register_tokens", 8),
]
_LIMITS = [(re.compile(name), limit) for name, limit in _LIMITS]
_KEEP = re.compile(
    r".*kernel_size|.*kernel|.*stride|.*_per_(?!tok).*|num_feat_extract_layers|num_hidden_groups|"
    r"num_adapter_layers|.*num_channels|.*channels|.*dilation|state_size|conv_dim|d_conv|"
    r".*stack_size|.*chunk_size|chunk_length|.*window_size|type_vocab_size|.*groups|.*_ratio|"
    r".*bucket.*|.*merge_size|.*temporal.*|codebook_dim|n_fft|hop_length|.*block_size|.*rate"
)
_TOKEN = re.compile(r".*(token_id|token_index|_token|_id|_index)")


@dataclass(frozen=True)
class Case:
    """A class and its config class."""

    name: str
    config: str
    file: str  # the name of the modeling file

    def __str__(self) -> str:
        return self.name


# The mappings of transformers, in the order in which a class of a modeling file is chosen.
_ORDER = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_CTC_MAPPING_NAMES",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "MODEL_FOR_BACKBONE_MAPPING_NAMES",
)


def _classes() -> Iterator[tuple[str, str]]:
    configs = modeling_auto.CONFIG_MAPPING_NAMES
    for mapping in _ORDER:
        for model_type, names in getattr(modeling_auto, mapping).items():
            for name in [names] if isinstance(names, str) else names:
                if model_type in configs:
                    yield name, configs[model_type]


def all_cases() -> list[Case]:
    """One class for each modeling file of transformers, by name of the file."""
    files: dict[str, Case] = {}
    for name, config in _classes():
        try:
            file = inspect.getmodule(getattr(transformers, name)).__name__.rsplit(".", 1)[-1]
        except (AttributeError, ImportError):
            continue
        if file.startswith("modeling_"):
            files.setdefault(file, Case(name, config, file))
    return [files[file] for file in sorted(files)]


def _limit(name: str) -> int | None:
    if _KEEP.fullmatch(name):
        return None
    return next((limit for pattern, limit in _LIMITS if pattern.fullmatch(name)), None)


def _smaller(name: str, value: Any) -> Any:
    """Returns the value for a tiny model, or the value itself if it needs no change."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if _TOKEN.fullmatch(name):
            return value if value < VOCABULARY else VOCABULARY - 1 - value % 16
        limit = _limit(name)
        return value if limit is None else min(value, limit)
    if isinstance(value, (list, tuple)) and value and all(type(each) is int for each in value):
        return type(value)(_smaller(name.removesuffix("s"), each) for each in value)
    return value


def _tiny_values(config: PreTrainedConfig) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name.startswith("_") or isinstance(getattr(type(config), name, None), property):
            continue
        if isinstance(value, PreTrainedConfig):
            values[name] = {**_tiny_values(value), "model_type": value.model_type}
        else:
            smaller = _smaller(name, value)
            if smaller != value:
                values[name] = smaller
    _keep_layer_types(config, values)
    heads = getattr(config, "num_heads", None)
    if isinstance(heads, (list, tuple)) and isinstance(getattr(config, "embed_dim", None), int):
        # Sizes of a pyramid of stages: each doubles those of the one before.
        values.pop("num_heads", None)
        values["embed_dim"] = 8 * heads[0]
    if getattr(config, "kv_lora_rank", None):  # latent attention has as many keys as queries
        values["num_key_value_heads"] = HEADS
    return values


def _keep_layer_types(config: PreTrainedConfig, values: dict[str, Any]) -> None:
    """Reduces the layers to one of each kind."""
    layers = values.get("num_hidden_layers")
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        kinds = vars(config).get(name)
        if layers and isinstance(kinds, list) and name not in values:
            values[name] = [*dict.fromkeys(kinds), *kinds][:layers]


def _fix_rotary(config: PreTrainedConfig) -> None:
    """Sets the base of rotary embeddings, and sections that fit the size of a head."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        return
    if "rope_theta" in rope and rope["rope_theta"] is None:
        rope["rope_theta"] = 10000.0
    if "mrope_section" in rope:
        share = rope.get("partial_rotary_factor") or 1.0
        half = int((getattr(config, "head_dim", None) or 8) * share) // 2
        part = half // 4
        rope["mrope_section"] = [half - 2 * part, part, part]


def _all_configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for value in vars(config).values():
        if isinstance(value, PreTrainedConfig):
            yield from _all_configs(value)


def tiny_config(config_class: type[PreTrainedConfig]) -> PreTrainedConfig:
    """Builds a config of the class with small sizes."""
    config = config_class(**_tiny_values(config_class()))
    for each in _all_configs(config):
        _fix_rotary(each)
        each._attn_implementation = "sdpa"
    return config


def _build(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    try:
        return model_class(config).train()
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise
    for each in _all_configs(config):
        each._attn_implementation = "eager"
    torch.manual_seed(0)
    return model_class(config).train()


def build(case: Case) -> PreTrainedModel:
    """Builds the model with random weights, in training mode."""
    config = tiny_config(getattr(transformers, case.config))
    model_class = getattr(transformers, case.name)
    try:
        return _build(model_class, config)
    except AttributeError:
        # Whether the class is for a part of the config.
        part = getattr(config, "text_config", getattr(config, "decoder", None))
        if not isinstance(part, PreTrainedConfig):
            raise
        return _build(model_class, part)


def _first(config: PreTrainedConfig, names: tuple[str, ...], default: Any) -> Any:
    """Returns the first of these attributes that the config or one of its parts has."""
    for each in _all_configs(config):
        for name in names:
            value = getattr(each, name, None)
            if value is not None:
                return value
    return default


def _candidates(model: PreTrainedModel, generator: torch.Generator) -> Iterator[dict[str, Any]]:
    """Yields arguments of a forward, the most common ones first."""
    config = model.config
    arguments = inspect.signature(model.forward).parameters

    def randn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator)

    tokens = torch.randint(5, 64, (BATCH, TOKENS), generator=generator)
    size = _first(config, ("image_size",), IMAGE)
    height, width = (
        (size["height"], size["width"])
        if isinstance(size, dict)
        else ((size, size) if isinstance(size, int) else tuple(size))
    )
    channels = _first(config, ("num_channels", "in_channels"), 3)
    channels = channels if isinstance(channels, int) else 3
    frames = _first(config, ("num_frames", "frames_per_clip"), 4)
    bins = _first(config, ("num_mel_bins", "input_feat_per_channel", "feature_size"), 16)
    positions = _first(config, ("max_source_positions",), POSITIONS)
    image, video = (
        randn(BATCH, channels, height, width),
        randn(BATCH, frames, channels, height, width),
    )
    text = {"input_ids": tokens} if "input_ids" in arguments else {}
    boxes = torch.randint(0, 8, (BATCH, TOKENS, 2), generator=generator)
    boxes = torch.cat([boxes, boxes + 4], -1)
    sounds = [
        {"input_values": randn(BATCH, 4000)},
        {"input_values": randn(BATCH, 1, 4000)},
        {"input_values": randn(BATCH, 64, bins)},
        {"input_values": randn(BATCH, 1024, 128)},
        {"input_features": randn(BATCH, bins, 2 * positions)},
        {"input_features": randn(BATCH, 2 * positions, bins)},
        {"input_features": randn(BATCH, 64, 80)},
        {"input_features": randn(BATCH, 64, 128)},
        {"input_features": randn(BATCH, 80, 128)},
    ]
    past = _first(config, ("context_length",), 32)
    more = [
        text,
        {"pixel_values": image},
        {**text, "pixel_values": image},
        {"pixel_values": randn(BATCH, channels, 224, 224)},
        {"pixel_values": video},
        {"pixel_values_videos": video},
        {**text, "pixel_values": video},
        *sounds,
        *({**text, **each} for each in sounds if text),
        {**text, "bbox": boxes},
        {**text, "bbox": boxes, "pixel_values": image},
        {"past_values": randn(BATCH, past, _first(config, ("num_input_channels",), 1))},
        {"past_values": randn(BATCH, past)},
        {"inputs_embeds": randn(BATCH, TOKENS, HIDDEN)},
        {"flattened_patches": torch.cat([torch.ones(BATCH, 8, 2), randn(BATCH, 8, 768)], -1)},
    ]
    for inputs in more:
        if not inputs or any(name not in arguments for name in inputs):
            continue
        inputs = dict(inputs)
        if config.is_encoder_decoder and "decoder_input_ids" in arguments:
            inputs["decoder_input_ids"] = tokens
        if "use_cache" in arguments:
            inputs["use_cache"] = False
        yield inputs


def working_inputs(model: PreTrainedModel) -> int:
    """Returns the index of the first candidate that the model's forward accepts.

    Raises the error of the first candidate if it accepts none.
    """
    first: Exception | None = None
    for index, inputs in enumerate(_candidates(model, torch.Generator().manual_seed(1))):
        try:
            torch.manual_seed(0)
            with torch.no_grad():
                model(**inputs)
            return index
        except Exception as error:
            first = first or error
    raise first or RuntimeError("no known kind of inputs")


def inputs_of(model: PreTrainedModel, index: int, generator: torch.Generator) -> dict[str, Any]:
    """Returns new arguments of one forward, of the candidate with this index."""
    return next(itertools.islice(_candidates(model, generator), index, None))
