"""The debug state, under Transformer Engine's import path."""
