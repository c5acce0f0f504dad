"""For tests of telens.watch: configs, and the values of a run."""

import telens

TENSORS = ["activation", "weight", "output", "gradient", "dgrad", "wgrad"]


def config(stats, tensors):
    """A config that records statistics of tensors of all layers in each iteration."""
    section = {
        "enabled": True,
        "layers": {"layer_types": ["all"]},
        "transformer_engine": {
            "LogTensorStats": {"enabled": True, "stats": stats, "freq": 1, "tensors": tensors}
        },
    }
    return {"section": section}


def recorded(folder, statistic, **selection):
    """Returns the values of a statistic by (layer, tensor, iteration)."""
    rows = telens.open_run(folder).records(statistic=statistic, **selection)
    return {(row.layer, row.tensor, row.iteration): row.value for row in rows.itertuples()}


def amax(tensor):
    return tensor.detach().abs().max().item()
