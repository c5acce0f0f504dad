"""The recipe that ``run_as_te --recipe`` gives to every outermost forward."""

import threading

import pytest
import torch

import telens.pytorch as te
from telens.common.recipe import DelayedScaling, Float8CurrentScaling
from telens.run_as_te.converting import converting


@pytest.fixture(autouse=True)
def hooks():
    with converting(DelayedScaling(), converts=False):
        yield


class Reporting(torch.nn.Module):
    """Keeps what its forward sees of FP8."""

    def forward(self, wait=lambda: None):
        manager = te.fp8.FP8GlobalStateManager
        self.seen = manager.is_fp8_enabled(), type(manager.get_fp8_recipe())
        wait()


def test_a_forward_outside_of_regions_gets_the_recipe():
    model = Reporting()
    model()
    assert model.seen == (True, DelayedScaling)


def test_a_region_of_the_script_decides():
    model = Reporting()
    with te.autocast(enabled=False):
        model()
    assert not model.seen[0]
    with te.autocast(recipe=Float8CurrentScaling()):
        model()
    assert model.seen == (True, Float8CurrentScaling)


def test_each_thread_has_its_own_outermost_forward():
    entered, leave = threading.Event(), threading.Event()

    def wait():
        entered.set()
        leave.wait(60)

    other = Reporting()
    thread = threading.Thread(target=other, args=(wait,))
    thread.start()
    assert entered.wait(60)
    model = Reporting()
    model()
    leave.set()
    thread.join()
    assert model.seen == other.seen == (True, DelayedScaling)
