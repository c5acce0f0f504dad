"""telens diff --exact on digests: the first tensor that differs, and what computed it."""

import copy
import json

import pytest

LAYERS = ("embed", "blocks.0.fc", "blocks.1.fc", "head")
FORWARD = ("weight", "activation", "output")
BACKWARD = ("gradient", "dgrad", "wgrad")


def digests(steps=4, micro_batches=2):
    """{(step, layer, tensor, statistic): value} of a training, with unique values."""
    values = {}
    for step in range(steps):
        for micro_batch in range(micro_batches):
            statistic = "digest" if micro_batch == 0 else f"digest.{micro_batch}"
            for layer in LAYERS:
                for tensor in (*FORWARD, *BACKWARD):
                    if tensor == "weight" and micro_batch > 0:
                        continue
                    values[step, layer, tensor, statistic] = 2**51 + len(values)
    return values


@pytest.fixture
def compare(telens, tmp_path, lines):
    """Compares two sets of digests of one rank, or two lists of sets, one for each rank."""

    def write(name, ranks):
        folder = tmp_path / name
        for rank, values in enumerate(ranks):
            new = type(lines)()
            for key, value in values.items():
                new.record(*key, value)
            new.write(folder, rank, len(ranks))
        return folder

    def run(a, b, *options):
        a, b = ([each] if isinstance(each, dict) else each for each in (a, b))
        result = telens(
            "diff", "--exact", write("a", a), write("b", b), "--format", "json", *options
        )
        assert result.returncode in (0, 1), result.stderr
        found = json.loads(result.stdout)
        assert result.returncode == (found["first"] is not None)
        return found

    return run


def spread(values, step, layer, tensor, micro_batch=0):
    """Changes a tensor and everything that the training computes from it."""
    order = [(name, each) for name in LAYERS for each in FORWARD]
    order += [(name, each) for name in reversed(LAYERS) for each in BACKWARD]
    first = (step, micro_batch, order.index((layer, tensor)))
    changed = copy.copy(values)
    for s, name, each, statistic in values:
        number = int(statistic.partition(".")[2] or 0)
        if (s, number, order.index((name, each))) >= first:
            changed[s, name, each, statistic] += 0.5e6
    return changed


def test_equal_runs_have_no_difference(compare):
    found = compare(digests(), digests())
    assert found["first"] is None
    assert (found["compared"], found["different"]) == (len(digests()), 0)


@pytest.mark.parametrize("micro_batch", [0, 1])
@pytest.mark.parametrize(
    ("layer", "tensor", "culprit", "inputs"),
    [
        ("embed", "activation", "data", []),
        ("blocks.0.fc", "activation", "between", []),
        ("blocks.1.fc", "output", "forward", ["blocks.1.fc activation", "blocks.1.fc weight"]),
        ("head", "gradient", "loss", []),
        ("blocks.0.fc", "gradient", "between", []),
        ("blocks.1.fc", "dgrad", "backward", ["blocks.1.fc gradient", "blocks.1.fc weight"]),
        ("blocks.1.fc", "wgrad", "backward", ["blocks.1.fc gradient", "blocks.1.fc activation"]),
    ],
)
def test_first_difference_and_its_culprit(compare, layer, tensor, culprit, inputs, micro_batch):
    values = digests()
    first = compare(values, spread(values, 2, layer, tensor, micro_batch))["first"]
    assert (first["iteration"], first["micro_batch"], first["rank"]) == (2, micro_batch, 0)
    assert (first["layer"], first["tensor"], first["culprit"]) == (layer, tensor, culprit)
    assert first["equal_inputs"] == inputs


@pytest.mark.parametrize(("step", "culprit"), [(0, "initialization"), (3, "optimizer")])
def test_a_weight_comes_from_its_initialization_or_the_optimizer(compare, step, culprit):
    values = digests()
    first = compare(values, spread(values, step, "embed", "weight"))["first"]
    assert (first["layer"], first["tensor"], first["iteration"]) == ("embed", "weight", step)
    assert first["culprit"] == culprit


def test_iterations_without_digests_are_not_called_equal(compare):
    values = {key: value for key, value in digests().items() if key[0] in (0, 3)}
    first = compare(values, spread(values, 3, "embed", "weight"))["first"]
    assert first["culprit"] == "optimizer"
    assert "between iterations 0 and 3" in first["summary"]


def test_resumed_weights_are_not_blamed_on_the_optimizer(compare):
    values = digests()
    resumed = {key: value for key, value in values.items() if key[0] >= 2}
    first = compare(values, spread(resumed, 2, "embed", "weight"))["first"]
    assert (first["iteration"], first["culprit"]) == (2, "initialization")


@pytest.mark.parametrize("tensor", ["gradient", "activation"])
def test_tensors_that_were_not_recorded_are_not_called_equal(compare, tensor):
    values = {key: value for key, value in digests().items() if key[2] == tensor}
    layer = "head" if tensor == "gradient" else "embed"
    first = compare(values, spread(values, 1, layer, tensor))["first"]
    assert (first["iteration"], first["culprit"]) == (1, "between")


def test_two_layers_mapped_to_one_are_counted_once(compare):
    values = digests()
    found = compare(values, values, "--map", "blocks.0=blocks.1")
    assert 0 < found["only_in_one"] < len(values)


def test_the_first_rank_is_the_one_that_differs_first(compare):
    values = digests()
    other = spread(values, 3, "head", "output")
    earlier = spread(values, 2, "head", "wgrad")
    first = compare([values] * 3, [values, other, earlier])["first"]
    assert (first["rank"], first["ranks"], first["iteration"]) == (2, 1, 2)
    assert (first["layer"], first["tensor"]) == ("head", "wgrad")


def test_layers_of_other_names_are_mapped(compare):
    values = digests()
    renamed = {(s, name.replace("blocks.", "h."), t, n): v for (s, name, t, n), v in values.items()}
    renamed[1, "h.1.fc", "output", "digest"] += 1
    first = compare(values, renamed, "--map", "blocks.=h.")["first"]
    assert (first["layer"], first["tensor"], first["iteration"]) == ("blocks.1.fc", "output", 1)


def test_digests_in_only_one_run_are_counted(compare):
    values = digests()
    fewer = {key: value for key, value in values.items() if key[1] != "head"}
    found = compare(values, fewer)
    assert found["first"] is None
    assert found["only_in_one"] == len(values) - len(fewer)


def test_runs_without_digests_are_refused(telens, training, lines, tmp_path):
    run = training.write(lines, tmp_path)
    result = telens("diff", "--exact", run, run)
    assert result.returncode == 2
    assert "configs/exact_digests.yaml" in result.stderr


def test_spread_and_exact_exclude_each_other(telens, training, lines, tmp_path):
    run = training.write(lines, tmp_path)
    result = telens("diff", "--exact", run, run, "--spread", run)
    assert result.returncode == 2
    assert "--spread" in result.stderr
