"""The state of debugging, where code written for Transformer Engine looks for it."""
