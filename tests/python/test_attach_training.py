"""telens.watch: losses and optimizer steps of unusual but correct programs."""

import math
import sys
import types
import warnings

import pytest
import torch
from attach_helpers import config
from torch import nn
from torch._subclasses import FakeTensorMode

import telens
from telens.attach.torchao_casts import TorchaoCasts

AMAX = config(["cur_amax"], ["activation"])
X = torch.ones(2, 4)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def scalars(folder, name):
    rows = telens.open_run(folder).scalars
    rows = rows[rows["name"] == name]
    return dict(zip(rows["iteration"].tolist(), rows["value"].tolist(), strict=True))


def call_backward(times):
    for _ in range(times):
        torch.ones(1, requires_grad=True).backward()


@pytest.mark.parametrize("is_stale", [True, False])
def test_an_optimizer_of_replaced_parameters_is_warned_of(tmp_path, model, is_stale):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    if is_stale:
        model.weight = nn.Parameter(model.weight.detach().clone())
        model.bias = nn.Parameter(model.bias.detach().clone())
    with warnings.catch_warnings(record=True) as caught, telens.watch(model, AMAX, tmp_path):
        warnings.simplefilter("always")
        for _ in range(12):
            model(X).sum().backward()
            optimizer.step()
            other.step()
    texts = [str(each.message) for each in caught]
    assert ["create it after the parameters" in each for each in texts] == [True] * is_stale


def test_a_second_watch_names_the_ways_out(tmp_path, model):
    with telens.watch(model, AMAX, tmp_path) as watch:
        with pytest.raises(telens.UsageError, match=r"watched already.*add\(model\).*stop\(\)"):
            telens.watch(nn.Linear(4, 4), AMAX, tmp_path)
        watch.add(nn.Linear(4, 4))
    telens.watch(model, AMAX, tmp_path).stop()


def test_a_watched_model_that_never_ran_is_named(tmp_path, model):
    for run in (False, True):
        folder = tmp_path / str(run)
        with telens.watch(model, AMAX, folder):
            if run:
                model(X).sum().backward()
        logs = "".join(each.read_text() for each in folder.rglob("*.log"))
        assert ("no forward of the watched Linear was recorded" in logs) != run
        assert "telens.pytorch.convert" not in logs


def test_every_form_of_backward_keeps_its_meaning(tmp_path, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    plain = torch.autograd.grad(model(X).sum(), [model.weight])[0]
    with telens.watch(model, AMAX, tmp_path, every=1):
        for form in (
            lambda loss: torch.autograd.backward(each for each in [loss]),
            lambda loss: torch.autograd.backward([torch.autograd.graph.get_gradient_edge(loss)]),
            lambda loss: torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss)),
            lambda loss: torch.autograd.backward((loss,)),
        ):
            form(model(X).sum())
            assert torch.equal(model.weight.grad, plain)
            optimizer.step()
            optimizer.zero_grad()
    assert {*scalars(tmp_path, "loss")} == {0, 3}


def test_a_loss_that_changes_in_place_is_recorded_before(tmp_path, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    expected = []
    with telens.watch(model, AMAX, tmp_path):
        for scale in (lambda loss: loss, scaler.scale):
            loss = model(X).square().mean()
            expected.append(loss.item())
            scaled = scale(loss)
            if scaled is not loss:
                loss.detach().mul_(7)
            scaled.backward()
            loss.detach().mul_(3)
            optimizer.step()
            optimizer.zero_grad()
    assert [*scalars(tmp_path, "loss").values()] == pytest.approx(expected)


def test_many_backwards_without_a_step_are_warned_of_once(tmp_path, model):
    with telens.watch(model, AMAX, tmp_path) as watch:
        with pytest.warns(UserWarning, match=r"call telens\.step\(loss\)") as warned:
            call_backward(2500)
        assert len(warned) == 1
        assert len(watch._losses._losses) < 100
        watch.step()
    assert scalars(tmp_path, "loss") == {0: 1.0}


def test_a_failed_watch_leaves_nothing_behind(tmp_path, model, monkeypatch):
    backward, attention = torch.autograd.backward, nn.functional.scaled_dot_product_attention

    def fail(*_):
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr("telens.attach.watching.OptimizerWatch.add", fail)
        with pytest.raises(RuntimeError, match="planted"):
            telens.watch(model, AMAX, tmp_path)
    assert torch.autograd.backward is backward
    assert nn.functional.scaled_dot_product_attention is attention
    assert not model._forward_hooks
    telens.watch(model, AMAX, tmp_path).stop()


def test_replaced_attention_is_not_watched(tmp_path, model, monkeypatch):
    attention = nn.functional.scaled_dot_product_attention

    def parallel(*args, **kwargs):
        return attention(*args, **kwargs)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", parallel)
    with pytest.warns(UserWarning, match="attention is not recorded, because"):
        watch = telens.watch(model, AMAX, tmp_path)
    assert nn.functional.scaled_dot_product_attention is parallel
    watch.stop()
    assert nn.functional.scaled_dot_product_attention is parallel


def test_kept_attention_function_still_runs_after_stop(tmp_path, model):
    with telens.watch(model, AMAX, tmp_path):
        kept = nn.functional.scaled_dot_product_attention
    x = torch.randn(1, 2, 4, 8)
    assert kept is not nn.functional.scaled_dot_product_attention
    assert torch.equal(kept(x, x, x), nn.functional.scaled_dot_product_attention(x, x, x))


def test_grad_norm_covers_all_optimizers_of_an_iteration(tmp_path, model):
    optimizers = [torch.optim.SGD([each], lr=0.1) for each in model.parameters()]
    expected = {}
    with telens.watch(model, AMAX, tmp_path, every=2):
        for iteration in range(5):
            model(X).square().mean().backward()
            gradients = [each.grad.flatten() for each in model.parameters()]
            if iteration % 2 == 0:
                expected[iteration] = torch.cat(gradients).norm().item()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert scalars(tmp_path, "grad_norm") == pytest.approx(expected)


@pytest.mark.parametrize("broken", [False, True])
def test_fused_optimizer_is_measured_as_grad_scaler_steps_it(tmp_path, model, broken):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with telens.watch(model, AMAX, tmp_path, every=1):
        scaler.scale(model(X * (torch.inf if broken else 1)).square().mean()).backward()
        norm = torch.cat([each.grad.flatten() for each in model.parameters()]).norm() / 1024
        scaler.step(optimizer)
        scaler.update()
    expected = {} if broken else {0: norm.item()}
    assert scalars(tmp_path, "grad_norm") == pytest.approx(expected)


def test_an_optimizer_without_a_learning_rate_is_watched(tmp_path, model):
    class Relative(torch.optim.Optimizer):
        """Like Adafactor with relative steps."""

        def __init__(self, parameters):
            super().__init__(parameters, {"lr": None})

        def step(self):
            for parameter in self.param_groups[0]["params"]:
                parameter.data.mul_(0.5)

    optimizer = Relative(model.parameters())
    with telens.watch(model, AMAX, tmp_path, every=1):
        for _ in range(2):
            model(X).sum().backward()
            optimizer.step()
    assert scalars(tmp_path, "lr") == {}
    assert {*scalars(tmp_path, "update_to_weight")} == {0, 1}


def layer_of_torchao(file):
    return type("Float8Linear", (nn.Module,), {"__module__": file})()


def test_unknown_layers_of_torchao_are_warned_of_once():
    casts = TorchaoCasts(lambda _: None, lambda hook: hook)
    with pytest.warns(UserWarning, match="casts of this version of torchao are not recorded"):
        casts.add(layer_of_torchao("torchao.missing"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        casts.add(layer_of_torchao("torchao.missing"))


def test_casts_are_not_read_while_a_graph_is_traced(monkeypatch):
    file = types.ModuleType("torchao.file")
    file.hp_tensor_to_float8_dynamic = lambda values: values
    monkeypatch.setitem(sys.modules, file.__name__, file)
    seen = []
    casts = TorchaoCasts(lambda _: None, lambda hook: seen.append)
    casts.add(layer_of_torchao(file.__name__))
    with FakeTensorMode():
        file.hp_tensor_to_float8_dynamic(torch.ones(1))
    assert seen == []
    file.hp_tensor_to_float8_dynamic(torch.ones(1))
    assert len(seen) == 1


def test_steps_that_a_scaler_skips_are_iterations(tmp_path, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with telens.watch(model, AMAX, tmp_path):
        for broken in (False, True, True, False):
            scaler.scale(model(X).square().mean()).backward()
            if broken:
                model.weight.grad.fill_(torch.inf)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert [*scalars(tmp_path, "loss")] == [0, 1, 2, 3]
    assert scalars(tmp_path, "loss_scale") == {0: 1024, 1: 1024, 2: 512, 3: 256}


def train_until_nan(model, check_before_backward):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for factor in (1.0, 1.0, torch.nan):
        loss = model(X * factor).square().mean()
        if check_before_backward and loss.isnan():
            raise ValueError("loss is nan")
        loss.backward()
        if loss.isnan():
            raise ValueError("loss is nan")
        optimizer.step()


@pytest.mark.parametrize("check_before_backward", [False, True])
def test_the_iteration_that_raises_is_recorded(tmp_path, model, check_before_backward):
    def train():
        with telens.watch(model, AMAX, tmp_path):
            train_until_nan(model, check_before_backward)

    with pytest.raises(ValueError, match="loss is nan"):
        train()
    rows = telens.open_run(tmp_path).records(tensor="activation", statistic="cur_amax")
    assert [*rows["iteration"]] == [0, 1, 2]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_cleared_before_the_step_are_recorded_as_0(tmp_path, model, set_to_none):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with telens.watch(model, AMAX, tmp_path):
        for _ in range(11):
            model(X).sum().backward()
            optimizer.zero_grad(set_to_none)
            optimizer.step()
    rows = telens.open_run(tmp_path).records(statistic="accumulated_norm")
    assert rows[["iteration", "value"]].values.tolist() == [[0, 0], [10, 0]]


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.LBFGS])
def test_gradients_of_a_closure_are_not_measured_before_it(tmp_path, model, optimizer_class):
    optimizer = optimizer_class(model.parameters(), lr=0.1)

    def closure():
        loss = model(X).square().sum()
        loss.backward()
        return loss

    with telens.watch(model, AMAX, tmp_path):
        for _ in range(3):
            optimizer.zero_grad()
            optimizer.step(closure)
    assert "accumulated_norm" not in set(telens.open_run(tmp_path).records()["statistic"])


def test_gradients_in_main_grad_do_not_count_as_cleared(tmp_path, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with telens.watch(model, AMAX, tmp_path):
        for _ in range(3):
            model(X).sum().backward()
            for parameter in model.parameters():
                parameter.main_grad, parameter.grad = parameter.grad, None
            optimizer.step()
    assert "accumulated_norm" not in set(telens.open_run(tmp_path).records()["statistic"])


def test_zero_moments_of_a_later_step_are_not_a_first_step(tmp_path):
    """As in LoRA, whose first factor has no gradient while the second one is 0."""
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    nn.init.zeros_(second.weight)
    model = nn.Sequential(first, second)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with telens.watch(model, config(["cur_amax"], ["activation"]), tmp_path) as watch:
        watch._optimizers.every = 1
        for _ in range(3):
            optimizer.zero_grad()
            (model(X) - X).square().sum().backward()
            optimizer.step()
    assert set(scalars(tmp_path, "first_update")) == {0}


def test_numbers_of_several_optimizers_are_combined(tmp_path):
    models = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]).to(torch.bfloat16)
    with torch.no_grad():
        for each in models:
            each.weight.fill_(1.0)
            each.bias.zero_()
    optimizers = [  # updates of 2^-10 are lost next to 1, updates of 2^-2 are not
        torch.optim.SGD([models[0].weight], lr=2.0**-10),
        torch.optim.SGD([models[1].weight], lr=2.0**-2),
    ]
    with telens.watch(models, AMAX, tmp_path, every=1):
        for layer in models:
            layer(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert scalars(tmp_path, "lost_updates%") == {0: 50}
    assert scalars(tmp_path, "lr") == {0: 2.0**-10}
    assert scalars(tmp_path, "update_to_weight") == pytest.approx({0: 0.25 / 2**0.5})


# ------------------------------------------------------------------ weight decay


class Rows(nn.Module):
    """An embedding of which most rows are never used."""

    def __init__(self, dtype):
        super().__init__()
        self.rows = nn.Embedding(512, 16, dtype=dtype)

    def forward(self, ids):
        return self.rows(ids)


class Compensated(torch.optim.Optimizer):
    """An optimizer that keeps what rounding loses in a tensor for each parameter."""

    def __init__(self, parameters, lr, weight_decay):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                lost = self.state[parameter].setdefault("lost", torch.zeros_like(parameter))
                lost.sub_(parameter * (group["lr"] * group["weight_decay"]))


def measure_decay(folder, dtype, lr, optimizer_class=torch.optim.AdamW, decay=0.1):
    torch.manual_seed(0)
    model = Rows(dtype)
    optimizer = optimizer_class(model.parameters(), lr=lr, weight_decay=decay)
    with telens.watch(model, AMAX, folder, every=1):
        for _ in range(2):
            model(torch.arange(8)).float().square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return scalars(folder, "lost_decay%")


def test_decay_below_half_a_unit_of_bf16_is_lost(tmp_path):
    assert measure_decay(tmp_path, torch.bfloat16, 1e-2) == {0: 100, 1: 100}


def test_decay_of_several_units_is_not_lost(tmp_path):
    assert [*measure_decay(tmp_path, torch.bfloat16, 0.5).values()] == pytest.approx([0, 0], abs=5)


def test_decay_of_weights_that_become_nan_is_not_measured(tmp_path):
    # Adam's epsilon of 1e-8 is zero in FP16: the update of a row without a gradient is 0 / 0.
    assert measure_decay(tmp_path, torch.float16, 1e-2) == {}
    assert math.isnan(scalars(tmp_path, "update_to_weight")[0])


@pytest.mark.parametrize(
    ("dtype", "lr", "optimizer", "decay"),
    [
        (torch.float32, 1e-2, torch.optim.AdamW, 0.1),
        (torch.bfloat16, 1e-2, torch.optim.AdamW, 0.0),
        (torch.bfloat16, 1e-5, torch.optim.AdamW, 0.1),  # fewer than 30 changes are due
        (torch.bfloat16, 1e-2, Compensated, 0.1),
    ],
)
def test_decay_is_not_measured_without_need(tmp_path, dtype, lr, optimizer, decay):
    assert measure_decay(tmp_path, dtype, lr, optimizer, decay) == {}
