"""Forward and backward of a tiny Linear of telens.paddle and of paddle.nn, in turn, FP32.

Prints lines of seconds of the process's CPU time, one sample a round: ours, Paddle's, and what ours
cannot do without: the crossing of its tensors into the core and back, and a PyLayer that computes
nothing. Then ours without Paddle: the core module with its crossings. Last what two frameworks in
one step cost beyond themselves: torch.nn.Linear, and it and paddle.nn.Linear in turn. Argument: the
rounds.
"""

import sys
import time

import paddle
import torch
from paddle.autograd import PyLayer

import telens.paddle as te
from telens.paddle.core_module import TENSORS

SIZE = 16
RUNS = 200  # a round, for one is too short to be timed
# Tensors that cross: the input and the output's gradient there; the output and the gradients of
# input, weight and bias back.
CROSSINGS_THERE, CROSSINGS_BACK = 2, 4


def time_round(step):
    start = time.process_time()
    for _ in range(RUNS):
        step()
    return (time.process_time() - start) / RUNS


def make_step(forward, layer, x, gradient):
    tensors = [x, *layer.parameters()]

    def step():
        forward(x).backward(gradient)
        for tensor in tensors:
            tensor.clear_gradient(False)

    return step


def make_empty(layer, x, gradient):
    row = paddle.ones([SIZE])

    class Empty(PyLayer):
        """Of a Linear's tensors: three go in, and each gets a gradient that exists already."""

        @staticmethod
        def forward(ctx, x, weight, bias):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient, gradient, row

    return make_step(lambda x: Empty.apply(x, layer.weight, layer.bias), layer, x, gradient)


def make_crossings(x):
    tensor = torch.zeros(SIZE, SIZE)

    def step():
        for _ in range(CROSSINGS_THERE):
            TENSORS.view(x)
        for _ in range(CROSSINGS_BACK):
            TENSORS.wrap(tensor)

    return step


def make_core_alone(layer, x, gradient):
    """What the PyLayer calls, outside of Paddle's autograd."""
    tensors = (x, *layer.parameters())
    forward = layer._core._foreign.forward
    options = {"is_first_microbatch": None}

    def step():
        _, graph = forward(tensors, 1, (False,) * 3, options, True, True, None)
        graph.backward((gradient,))

    return step


def make_step_of_torch():
    layer = torch.nn.Linear(SIZE, SIZE)
    x, gradient = torch.randn(SIZE, SIZE, requires_grad=True), torch.ones(SIZE, SIZE)
    tensors = [x, *layer.parameters()]

    def step():
        layer(x).backward(gradient)
        for tensor in tensors:
            tensor.grad = None

    return step


def main():
    torch.set_num_threads(1)
    paddle.seed(1)
    x = paddle.randn([SIZE, SIZE])
    x.stop_gradient = False
    gradient = paddle.ones([SIZE, SIZE])
    ours, theirs = te.Linear(SIZE, SIZE), paddle.nn.Linear(SIZE, SIZE)
    step_of_paddle, step_of_torch = make_step(theirs, theirs, x, gradient), make_step_of_torch()

    def in_turn():
        step_of_paddle()
        step_of_torch()

    steps = [
        make_step(ours, ours, x, gradient),
        step_of_paddle,
        make_crossings(x),
        make_empty(ours, x, gradient),
        make_core_alone(ours, x, gradient),
        step_of_torch,
        in_turn,
    ]
    samples = [[] for _ in steps]
    for step in steps:
        time_round(step)
    for _ in range(int(sys.argv[1])):
        for step, seconds in zip(steps, samples, strict=True):
            seconds.append(time_round(step))
    for seconds in samples:
        print(*seconds)


if __name__ == "__main__":
    main()
