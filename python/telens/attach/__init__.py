"""Records the tensors of an ordinary torch model during its training, without converting it.

    import telens

    telens.watch(model, log_dir="run")
    for batch in batches:
        ...  # forward, backward, optimizer.step()

The model's bits do not change: TELens only reads tensors in forward hooks and in hooks of autograd
nodes. ``telens diagnose run`` explains the recorded run.
"""

from telens.attach.watching import Watch, step, watch

__all__ = ["Watch", "step", "watch"]
