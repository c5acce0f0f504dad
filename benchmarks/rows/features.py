"""What each feature costs a training step."""

from programs import ratio
from report import Row, at_most

from rows.group import Group

WITH_BUDGET = "LogTensorStats with a budget of 3%"
DELAYED_SCALING = [
    "LogTensorStats",
    WITH_BUDGET,
    "LogFp8TensorStats",
    "LogNvfp4TensorStats",
    "FakeQuant",
    "PerTensorScaling",
    "DisableFP8GEMM",
    "DisableFP8Layer",
    "DumpTensors",
    "PrecisionLedger",
    "ValueHistogram",
    "ValueHistogram of codes",
    "GemmError",
    "ScaleHealth",
    "Trigger",
    "RankAgreement",
    "TensorDigests",
    "CollectiveCheck",
    "Diagnosis",
]
FEATURES = {"delayed": DELAYED_SCALING, "mxfp8": ["BlockTelemetry"]}

PRODUCTION = "production.yaml"  # its statistics have a budget of 2%, its alarm has none
PRODUCTION_ROW = f"sample's training step under delayed with configs/{PRODUCTION}"
FLIGHT_RECORDER = "flight_recorder.yaml"
FLIGHT_RECORDER_ROWS = [
    f"sample's training step under delayed with configs/{FLIGHT_RECORDER}",
    f"the same without its budget, freq 1: {FLIGHT_RECORDER}",
]


def feature_row_name(recipe, feature):
    return f"sample's training step under {recipe}, freq 1: {feature}"


WHY_OVER_BUDGET = (
    "the budget holds over a run; 64 steps after the full recording are too few for it"
)
WHY_EVERY_ITERATION = (
    "GemmError computes samples of three products of each layer in FP64 and the casts are tried "
    "under two other recipes, in a model whose own products take microseconds"
)


def feature_rows(programs):
    """What each feature costs; there is no target but for the statistics (above) and budgets."""
    rounds = max(1, programs.rounds // 4)
    samples = programs.run("feature_overhead", rounds=rounds)
    for recipe, features in FEATURES.items():
        for feature in features:
            both = samples[f"{recipe} {feature}"]
            name = feature_row_name(recipe, feature)
            target = at_most(1.03) if feature == WITH_BUDGET else None
            value = ratio(both, feature, "no session")
            yield Row(name, value, "x", target, both, if_missed=WHY_OVER_BUDGET if target else "")
    both = samples[f"delayed {PRODUCTION}"]
    yield Row(PRODUCTION_ROW, ratio(both, PRODUCTION, "no session"), "x", None, both)
    for name, contender, target, reason in (
        (FLIGHT_RECORDER_ROWS[0], FLIGHT_RECORDER, 1.03, WHY_OVER_BUDGET),
        (FLIGHT_RECORDER_ROWS[1], f"{FLIGHT_RECORDER} without budget", 1.10, WHY_EVERY_ITERATION),
    ):
        both = samples[f"delayed {contender}"]
        value = ratio(both, contender, "no session")
        yield Row(name, value, "x", at_most(target), both, if_missed=reason)


GROUP = Group(
    [
        *(feature_row_name(recipe, each) for recipe in FEATURES for each in FEATURES[recipe]),
        PRODUCTION_ROW,
        *FLIGHT_RECORDER_ROWS,
    ],
    feature_rows,
)
