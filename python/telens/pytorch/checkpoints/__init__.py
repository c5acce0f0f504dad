"""FP8 state in checkpoints: of TELens, of Hugging Face, and of Transformer Engine."""
