"""fuse_wgrad_accumulation in a debug session: which layers compute wgrad separately from
main_grad.
"""

import contextlib
import re

import pytest
import torch

import telens.debug as debug
import telens.pytorch as te

IN, OUT = 32, 48


def fused_linear(**options):
    return te.Linear(
        IN,
        OUT,
        params_dtype=torch.bfloat16,
        device="cpu",
        fuse_wgrad_accumulation=True,
        **options,
    )


CONFIG = """
watch:
  enabled: true
  layers: {layer_types: [qkv]}
  transformer_engine:
    LogTensorStats:
      enabled: true
      tensors: [wgrad]
      stats: [max, mean]
      freq: FREQ
"""


@pytest.mark.parametrize("freq", [1, 2, 1000])
def test_observed_wgrad_keeps_main_grad_bits(freq, tmp_path, capfd):
    def run(freq):
        config = tmp_path / f"{freq}.yaml"
        config.write_text(CONFIG.replace("FREQ", str(freq)))
        debug.initialize(config_file=str(config), log_dir=str(tmp_path / str(freq)))
        torch.manual_seed(57)
        layer = fused_linear(name="qkv")
        layer.weight.main_grad = torch.zeros(OUT, IN)
        for _ in range(4):
            layer(torch.randn(512, IN).bfloat16()).backward(torch.randn(512, OUT).bfloat16())
            debug.step()
        debug.end_debug()
        return layer.weight.main_grad

    torch.set_warn_always(True)
    try:
        assert torch.equal(run(freq), run(3))
    finally:
        torch.set_warn_always(False)
    line = r"^telens: while a debug session runs, .* make it and add it to main_grad in two steps"
    assert re.search(line, capfd.readouterr().err, re.MULTILINE)


def main_grad_of(name, config, folder):
    """Returns main_grad after four micro-batches, and how often a product was added; None: no
    session.
    """
    torch.manual_seed(58)
    layer = fused_linear(name=name)
    layer.weight.main_grad = torch.zeros(OUT, IN)
    batches = [(torch.randn(512, IN).bfloat16(), torch.randn(512, OUT).bfloat16()) for _ in "1234"]
    session = contextlib.nullcontext() if config is None else debug.session(config, log_dir=folder)
    with session, torch.profiler.profile() as profile:
        for x, g in batches:
            layer(x).backward(g)
            debug.step()
    additions = sum(e.count for e in profile.key_averages() if e.key == "aten::add_")
    return layer.weight.main_grad, additions


SECTION = """
watched:
  enabled: True
  layers: {{layer_name_regex_pattern: "fc1"}}
  {namespace}:
    {feature}
"""


def config_of(feature, namespace="transformer_engine", more="", folder=None, name="config.yaml"):
    path = folder / name
    path.write_text(SECTION.format(namespace=namespace, feature=feature) + more)
    return str(path)


STARTED = """
alarm:
  enabled: True
  layers: {layer_name_regex_pattern: "fc1"}
  telens:
    Trigger: {enabled: True, when: loss > 1e30, start: 5}
later:
  enabled: True
  started_by: alarm
  layers: {layer_name_regex_pattern: "fc1"}
  transformer_engine:
    DumpTensors: {enabled: True, tensors: [wgrad], high_precision_tensor: True}
"""
STATS = "LogTensorStats: {{enabled: True, tensors: [{}], stats: [max]{}}}"


@pytest.mark.parametrize(
    ("feature", "namespace", "more", "watches"),
    [
        (STATS.format("wgrad", ", freq: 1000"), "transformer_engine", "", True),
        (STATS.format("wgrad", ", start_step: 900"), "transformer_engine", "", True),
        (STATS.format("gradient", ""), "transformer_engine", STARTED, True),
        ("Trigger: {enabled: True, when: nonfinite of wgrad > 0}", "telens", "", True),
        ("GemmError: {enabled: True, gemms: [wgrad]}", "telens", "", True),
        (STATS.format("activation, weight, gradient, output, dgrad", ""),
         "transformer_engine", "", False),
        ("GemmError: {enabled: True, gemms: [dgrad]}", "telens", "", False),
        ("Trigger: {enabled: True, when: nonfinite of gradient > 0}", "telens", "", False),
        ("PrecisionLedger: {enabled: True}", "telens", "", False),
    ],
)  # fmt: skip
def test_only_observable_wgrad_adds_in_two_steps(feature, namespace, more, watches, tmp_path):
    config = config_of(feature, namespace, more, tmp_path)
    fused, no_additions = main_grad_of("fc1", None, tmp_path / "none")
    watched, additions = main_grad_of("fc1", config, tmp_path / "watched")
    elsewhere, others = main_grad_of("proj", config, tmp_path / "elsewhere")
    assert torch.equal(elsewhere, fused)
    assert others == no_additions
    if watches:
        assert additions == no_additions + 4
        torch.testing.assert_close(watched, fused)
    else:
        assert additions == no_additions
        assert torch.equal(watched, fused)


@pytest.mark.parametrize(("tensor", "added"), [("activation", 0), ("wgrad", 1)])
def test_unobserved_unnamed_layer_adds_in_one_step(tensor, added, tmp_path):
    config = config_of(STATS.format(tensor, ""), folder=tmp_path)

    def run(watch):
        torch.manual_seed(59)
        layer = fused_linear()
        layer.weight.main_grad = torch.zeros(OUT, IN)
        output = layer(torch.randn(512, IN).bfloat16())
        if watch:
            debug.initialize(config_file=config, log_dir=str(tmp_path / tensor))
        with torch.profiler.profile() as profile:
            output.backward(torch.randn(512, OUT).bfloat16())
            for _ in range(3):
                debug.step()
                layer(torch.randn(512, IN).bfloat16()).backward(torch.randn(512, OUT).bfloat16())
        debug.end_debug()
        additions = sum(e.count for e in profile.key_averages() if e.key == "aten::add_")
        return layer.weight.main_grad, additions

    fused, no_additions = run(watch=False)
    watched, additions = run(watch=True)
    # Before its first forward in the session, a layer has no name, and whether a section that
    # watches wgrad selects it is unknown.
    assert additions == no_additions + added
    if added == 0:
        assert torch.equal(watched, fused)


class Wgrads(debug.TEConfigAPIMapper):
    @debug.api_method
    def inspect_tensor_enabled(self, config, layer_name, tensor_name, iteration):
        return False, None

    @debug.api_method
    def inspect_tensor(self, config, layer_name, tensor_name, tensor):
        pass


def test_feature_class_observes_configured_tensors(tmp_path, register):
    register(Wgrads)
    _, no_additions = main_grad_of("fc1", None, tmp_path / "none")
    for tensors, expected in (("[gradient]", 0), ("[wgrad]", 4)):
        feature = f"Wgrads: {{enabled: True, tensors: {tensors}}}"
        config = config_of(feature, folder=tmp_path)
        _, additions = main_grad_of("fc1", config, tmp_path / f"{expected}")
        assert additions == no_additions + expected
