"""A section for each built-in feature, for tests that use all of them."""

GEMM_INPUTS = ["activation", "weight", "gradient"]
OF_TENSORS = ["min", "max", "mean", "std", "l1_norm", "l2_norm", "cur_amax", "dynamic_range"]
CAST_RECIPES = ["", "fp8_current_scaling_", "mxfp8_", "fp8_block_scaling_"]
OF_CASTS = ["underflows%", "overflows%", "saturated", "mse", "scale_inv_min", "scale_inv_max"]


def on(tensors=None, **keys) -> dict:
    return {"enabled": True, **({"tensors": tensors} if tensors else {}), **keys}


OF_FPROP = on(["activation", "weight"], gemms=["fprop"])
FEATURES = {
    "transformer_engine.LogTensorStats": on(GEMM_INPUTS, stats=OF_TENSORS),
    "transformer_engine.LogFp8TensorStats": on(
        GEMM_INPUTS, stats=[recipe + name for recipe in CAST_RECIPES for name in OF_CASTS]
    ),
    "transformer_engine.LogNvfp4TensorStats": on(
        GEMM_INPUTS, stats=["underflows%", "mse", "underflows%_columnwise", "mse_columnwise"]
    ),
    "transformer_engine.FakeQuant": {**OF_FPROP, "quant_format": "MXFP8E4M3"},
    "transformer_engine.PerTensorScaling": OF_FPROP,
    "transformer_engine.DisableFP8GEMM": on(gemms=["wgrad"]),
    "transformer_engine.DisableFP8Layer": on(),
    "transformer_engine.DumpTensors": on(
        GEMM_INPUTS, high_precision_tensor=True, quantized_tensor=True
    ),
    "base.LogTensorStats": on(["logits"], stats=OF_TENSORS[:6]),
    "telens.PrecisionLedger": on(),
    "telens.GemmError": on(gemms=["fprop", "dgrad", "wgrad"]),
    "telens.ValueHistogram": on(GEMM_INPUTS),
    "telens.ScaleHealth": on(GEMM_INPUTS),
    "telens.BlockTelemetry": on(GEMM_INPUTS),
    "telens.Trigger": on(when=["nonfinite of gradient > 0"], stop=True),
    "telens.RankAgreement": on(GEMM_INPUTS),
    "telens.CollectiveCheck": on(),
    "telens.TensorDigests": on(GEMM_INPUTS),
    "telens.Diagnosis": on(),
}
