"""Training: optimizers, accumulation, scaling of gradients, FP8 regions, recomputation."""

import pytest
import torch
import torch.utils.checkpoint

import telens
import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling, Format


def make_model(seed: int = 1) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(te.LayerNormLinear(32, 64), torch.nn.GELU(), te.Linear(64, 32))


def make_batch(seed: int = 2) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(16, 32)


def train_steps(model, x, steps, region, **optimizer_options) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **optimizer_options)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with region():
            loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}])
@pytest.mark.parametrize(
    "recipe", [None, DelayedScaling(), Float8CurrentScaling()], ids=["fp32", "delayed", "current"]
)
def test_adamw_lowers_the_loss(recipe, options):
    def region():
        return te.autocast(enabled=recipe is not None, recipe=recipe)

    losses = train_steps(make_model(), make_batch(), 30, region, **options)
    assert losses[-1] < 0.5 * losses[0]


def test_fp8_differs_from_fp32_and_ends_close_to_it():
    plain = train_steps(make_model(), make_batch(), 30, lambda: te.autocast(enabled=False))
    quantized = train_steps(make_model(), make_batch(), 30, te.autocast)
    assert quantized != plain
    assert quantized[-1] == pytest.approx(plain[-1], rel=0.2)


def test_gradient_accumulation_adds_up_microbatches():
    model, x = make_model(), make_batch()
    model(x).square().sum().backward()
    whole = model[2].weight.grad.clone()
    model.zero_grad()
    for part in x.split(4):
        model(part).square().sum().backward()
    torch.testing.assert_close(model[2].weight.grad, whole, rtol=1e-4, atol=1e-4)


def test_first_microbatch_weights_are_reused():
    layer, x = te.Linear(32, 32), make_batch()
    recipe = Float8CurrentScaling()
    with torch.no_grad(), te.autocast(recipe=recipe):
        first = layer(x, is_first_microbatch=True)
        layer.weight.zero_()
        assert torch.equal(layer(x, is_first_microbatch=False), first)
        assert not torch.equal(layer(x, is_first_microbatch=True), first)


def test_grad_scaler_scales_and_unscales():
    model, x = make_model(), make_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaled = model[2].weight.grad.clone()
    scaler.unscale_(optimizer)
    torch.testing.assert_close(model[2].weight.grad, scaled / 1024)
    before = model[2].weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(model[2].weight, before)


def test_torch_autocast_decides_the_dtype():
    layer, x = te.Linear(32, 32), make_batch()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_regions_nest_and_the_innermost_decides():
    layer, x = te.Linear(32, 32), make_batch()
    high = layer(x)
    with te.autocast():
        assert te.FP8GlobalStateManager.is_fp8_enabled()
        low = layer(x)
        with te.autocast(enabled=False):
            assert not te.FP8GlobalStateManager.is_fp8_enabled()
            assert torch.equal(layer(x), high)
        assert torch.equal(layer(x), low)
    assert not torch.equal(low, high)
    assert not te.FP8GlobalStateManager.is_fp8_enabled()


def test_the_former_names_of_arguments_are_taken():
    layer, x = te.Linear(32, 32), make_batch()
    recipe = DelayedScaling(
        fp8_format=Format.E4M3, amax_history_len=4, amax_compute_algo="most_recent"
    )
    with te.fp8_autocast(enabled=True, calibrating=False, fp8_recipe=recipe, fp8_group=None):
        named_before = layer(x)
    again = te.Linear(32, 32)
    again.load_state_dict({name: value for name, value in layer.state_dict().items()
                           if name in ("weight", "bias")}, strict=False)  # fmt: skip
    with te.autocast(enabled=True, calibrating=False, recipe=recipe, amax_reduction_group=None):
        assert torch.equal(again(x), named_before)
    assert not torch.equal(layer(x), named_before), "the region was in FP8"


def test_calibrating_collects_amaxes_in_high_precision():
    layer, x = te.Linear(32, 32), make_batch()
    high = layer(x)
    with te.autocast(enabled=False, calibrating=True):
        assert torch.equal(layer(x), high)
    assert layer.get_extra_state().numel() > 0


def test_functions_of_the_user_compute_amax_and_scale():
    layer, x, calls = te.Linear(32, 32), make_batch(), []

    def amax_of(history):
        calls.append(("amax", tuple(history.shape)))
        return history.amax(dim=0)

    def scale_of(amax, old_scale, fp8_max, recipe):
        calls.append(("scale", recipe.margin))
        return torch.full_like(old_scale, 2.0)

    recipe = DelayedScaling(
        margin=1,
        amax_history_len=8,
        amax_compute_algo=amax_of,
        scaling_factor_compute_algo=scale_of,
    )
    with te.autocast(recipe=recipe):
        out = layer(x)
    out.sum().backward()
    assert {name for name, _ in calls} == {"amax", "scale"}
    assert ("scale", 1) in calls
    assert all(value[0] == 8 for name, value in calls if name == "amax")


def test_an_exception_in_a_function_of_the_user_passes_through():
    def failing(history):
        raise ArithmeticError("no amax today")

    layer = te.Linear(32, 32)
    with (
        pytest.raises(ArithmeticError, match="no amax today"),
        te.autocast(recipe=DelayedScaling(amax_compute_algo=failing)),
    ):
        layer(make_batch())


def test_a_recipe_that_is_changed_in_place_is_noticed():
    recipe = DelayedScaling()
    native = recipe._native()
    assert recipe._native() is native
    assert DelayedScaling()._native() is native
    recipe.margin = 2
    assert recipe._native() is not native


def test_wrong_recipes_are_refused():
    with pytest.raises(telens.UsageError, match="E5M2"):
        DelayedScaling(fp8_format=Format.E5M2)
    with pytest.raises(telens.UsageError, match="amax_compute_algo"):
        DelayedScaling(amax_compute_algo="newest")
    with pytest.raises(TypeError, match="recipe must be one of"), te.autocast(recipe="delayed"):
        pass


def test_a_shape_that_fp8_cannot_take_names_layer_and_tensor():
    layer = te.Linear(32, 24, name="block.fc1")
    with te.autocast(), pytest.raises(telens.ShapeError, match=r"block\.fc1: weight .*\[24, 32\]"):
        layer(torch.ones(16, 32))


def run(model, x, call) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Output, input's gradient and extra states of two steps in FP8."""
    x = x.clone().requires_grad_()
    for _ in range(2):
        with te.autocast(recipe=DelayedScaling(amax_history_len=4)):
            out = call(model, x)
        out.square().sum().backward()
    states = [v for key, v in model.state_dict().items() if key.endswith("_extra_state")]
    return out.detach(), x.grad, states


def checkpoint_calls():
    return {
        "ours": lambda model, x: te.checkpoint(model, x),
        "ours, reentrant": lambda model, x: te.checkpoint(model, x, use_reentrant=True),
        "torch's with our context_fn": lambda model, x: torch.utils.checkpoint.checkpoint(
            model, x, use_reentrant=False, context_fn=te.checkpoint_context_fn
        ),
    }


@pytest.mark.parametrize("name", list(checkpoint_calls()))
def test_recomputation_changes_no_bit(name):
    plain = run(make_model(), make_batch(), lambda model, x: model(x))
    checkpointed = run(make_model(), make_batch(), checkpoint_calls()[name])
    torch.testing.assert_close(checkpointed, plain, rtol=0, atol=0)


def test_plain_checkpoint_around_an_fp8_region_is_an_error():
    model, x = make_model(), make_batch().requires_grad_()
    with te.autocast():
        out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
    with pytest.raises(telens.UsageError, match="checkpoint_context_fn"):
        out.sum().backward()


def test_plain_checkpoint_in_high_precision_works():
    model, x = make_model(), make_batch().requires_grad_()
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
    assert x.grad is not None


def test_a_resumed_run_is_bit_equal_to_an_uninterrupted_one():
    def steps(model, optimizer, count):
        losses = []
        for _ in range(count):
            optimizer.zero_grad()
            with te.autocast(recipe=DelayedScaling(amax_history_len=4)):
                loss = model(make_batch()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    steps(model, optimizer, 5)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state = torch.utils._pytree.tree_map(
        lambda v: v.clone() if isinstance(v, torch.Tensor) else v, state
    )
    expected = steps(model, optimizer, 5)
    resumed = make_model(seed=3)
    resumed_optimizer = torch.optim.AdamW(resumed.parameters(), lr=1e-2)
    resumed.load_state_dict(state["model"])
    resumed_optimizer.load_state_dict(state["optimizer"])
    assert steps(resumed, resumed_optimizer, 5) == expected


@pytest.mark.parametrize("name", ["distribute_saved_activations", "get_rng_state_tracker"])
def test_checkpoint_rejects_unsupported_arguments(name):
    model, x = make_model(), make_batch()
    with pytest.raises(telens.UsageError, match=f"checkpoint: {name} must be"):
        te.checkpoint(model, x, **{name: 3})


def test_checkpoint_consumes_te_keywords():
    model, x = make_model(), make_batch().requires_grad_()
    out = te.checkpoint(
        model,
        x,
        use_reentrant=True,
        distribute_saved_activations=False,
        get_rng_state_tracker=None,
        tp_group=None,
    )
    assert torch.equal(out, model(x))


@pytest.mark.parametrize("region", [te.fp8_autocast, te.autocast])
def test_graph_region_end_keeps_forward_scales(region):
    """Amaxes are collected nevertheless, and the end of the next region uses them."""
    layer, x = te.Linear(32, 32), 100 * torch.ones(16, 32)

    def scales():
        return layer.fp8_meta["scaling_fwd"].scale.clone()

    with region(True, False, None, None, True):
        assert te.FP8GlobalStateManager.fp8_graph_capturing()
        layer(x)
    assert not te.FP8GlobalStateManager.fp8_graph_capturing()
    assert torch.equal(scales(), torch.ones_like(scales()))
    with te.autocast(), region(_graph=True):  # the outermost one decides
        layer(x)
    assert scales()[0] == 448 / 100
