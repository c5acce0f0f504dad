"""NVTE_FLASH_ATTN and similar variables select among torch's attention kernels."""

import pytest
import torch

import telens
import telens.pytorch as te

HEADS, SIZE, TOKENS = 2, 16, 24
FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
MATH = "aten::_scaled_dot_product_attention_math"


@pytest.fixture(autouse=True)
def without_variables(monkeypatch):
    for name in ("FLASH_ATTN", "FUSED_ATTN", "UNFUSED_ATTN", "ALLOW_NONDETERMINISTIC_ALGO"):
        monkeypatch.delenv(f"NVTE_{name}", raising=False)


def attend(dtype=torch.float32, dropout=0):
    """Returns the output and the kernels that ran."""
    torch.manual_seed(81)
    heads = [torch.randn(2, TOKENS, HEADS, SIZE, dtype=dtype, requires_grad=True) for _ in range(3)]
    attention = te.DotProductAttention(
        HEADS, SIZE, qkv_format="bshd", attn_mask_type="causal", attention_dropout=dropout
    )
    with torch.profiler.profile(acc_events=True) as profile:
        out = attention(*heads)
        out.square().sum().backward()
    ran = {event.key for event in profile.key_averages()}
    return [out.detach(), *(each.grad for each in heads)], ran & {FLASH, MATH}


def switches_during_a_call() -> dict[str, bool]:
    """torch.backends.cuda's switches at the moment in which the kernel saves its tensors."""
    seen = []

    def look(tensor):
        cuda = torch.backends.cuda
        seen.append(
            {
                "flash": cuda.flash_sdp_enabled(),
                "cudnn": cuda.cudnn_sdp_enabled(),
                "efficient": cuda.mem_efficient_sdp_enabled(),
                "math": cuda.math_sdp_enabled(),
            }
        )
        return tensor

    heads = [torch.randn(2, TOKENS, HEADS, SIZE, requires_grad=True) for _ in range(3)]
    attention = te.DotProductAttention(HEADS, SIZE, qkv_format="bshd", attention_dropout=0)
    with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
        attention(*heads)
    assert seen
    assert all(each == seen[0] for each in seen)
    return seen[0]


@pytest.mark.parametrize(
    ("variable", "off"),
    [
        ("FUSED_ATTN", {"cudnn", "efficient"}),
        ("UNFUSED_ATTN", {"math"}),
        ("ALLOW_NONDETERMINISTIC_ALGO", set()),  # on a CPU all kernels are deterministic
    ],
)
def test_variable_disables_kernels_only_during_the_call(monkeypatch, variable, off):
    before = switches_during_a_call()
    monkeypatch.setenv(f"NVTE_{variable}", "0")
    during = switches_during_a_call()
    assert during == {name: on and name not in off for name, on in before.items()}
    assert all(before[name] for name in off)
    monkeypatch.delenv(f"NVTE_{variable}")
    assert switches_during_a_call() == before


def test_flash_runs_by_default():
    _, ran = attend()
    assert ran == {FLASH}


@pytest.mark.parametrize("value", ["", "1"])
def test_a_variable_that_is_1_or_empty_changes_nothing(monkeypatch, value):
    monkeypatch.setenv("NVTE_UNFUSED_ATTN", value)
    _, ran = attend()
    assert ran == {FLASH}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_math_matches_flash_and_torchs_switches_are_restored(monkeypatch, dtype):
    expected, _ = attend(dtype)
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    actual, ran = attend(dtype)
    assert ran == {MATH}
    # Weights that sum to 1 are rounded to the dtype and multiply values below 4; gradients add more
    # terms.
    bound = {torch.float32: 2**-17, torch.bfloat16: 2**-6}[dtype]
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=bound, rtol=bound)
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.math_sdp_enabled()


def test_torchs_own_switches_stay_off(monkeypatch):
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        _, ran = attend()
        assert not torch.backends.cuda.flash_sdp_enabled()
    assert ran == {MATH}


def test_a_variable_that_is_not_read_is_reported_once(monkeypatch, capfd):
    attend()
    assert "NVTE_FUSED_ATTN_BACKEND" not in capfd.readouterr().err
    monkeypatch.setenv("NVTE_FUSED_ATTN_BACKEND", "1")
    attend()
    attend()
    shown = capfd.readouterr().err
    assert shown.count("NVTE_FUSED_ATTN_BACKEND is set but not read; NVTE_FLASH_ATTN, ") == 1


def test_on_a_cpu_all_kernels_are_deterministic(monkeypatch):
    monkeypatch.setenv("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")
    first, ran = attend()
    second, _ = attend()
    assert ran == {FLASH}
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_nothing_left_is_an_error_that_names_the_variables(monkeypatch):
    for name in ("FLASH_ATTN", "FUSED_ATTN", "UNFUSED_ATTN"):
        monkeypatch.setenv(f"NVTE_{name}", "0")
    with pytest.raises(telens.UsageError, match=r"no attention kernel is left: NVTE_FLASH_ATTN"):
        attend()
    assert torch.backends.cuda.flash_sdp_enabled()


def test_unsupported_heads_error_names_a_general_kernel(monkeypatch):
    monkeypatch.setenv("NVTE_UNFUSED_ATTN", "0")
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")  # a CPU has no fused one
    with pytest.raises(
        telens.UsageError, match=r"takes query \[2, 2, 24, 16\].*NVTE_UNFUSED_ATTN=1"
    ):
        attend()
    assert torch.backends.cuda.math_sdp_enabled()


def test_a_kernel_that_does_not_take_dropout_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setenv("NVTE_UNFUSED_ATTN", "0")  # flash is left, which takes none
    with pytest.raises(telens.UsageError, match=r"takes query .* with dropout.*NVTE_UNFUSED_ATTN"):
        attend(dropout=0.5)
    assert torch.backends.cuda.math_sdp_enabled()


def test_where_torch_has_math_off_the_error_names_torchs_switch(monkeypatch):
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    setting = r"torch.backends.cuda.enable_math_sdp\(True\) allows"
    kernels, backend = torch.nn.attention.sdpa_kernel, torch.nn.attention.SDPBackend
    refused = pytest.raises(telens.UsageError, match=r"with dropout.*" + setting)
    with kernels(backend.FLASH_ATTENTION), refused:
        attend(dropout=0.5)
    refused = pytest.raises(telens.UsageError, match="no attention kernel is left.*" + setting)
    with kernels(backend.EFFICIENT_ATTENTION), refused:
        attend()


@pytest.mark.parametrize(
    "name", ["FLASH_ATTN", "FUSED_ATTN", "UNFUSED_ATTN", "ALLOW_NONDETERMINISTIC_ALGO"]
)
def test_a_value_that_is_neither_is_an_error(monkeypatch, name):
    monkeypatch.setenv(f"NVTE_{name}", "off")
    with pytest.raises(telens.UsageError, match=f"NVTE_{name}=off: expected 0 or 1"):
        attend()
