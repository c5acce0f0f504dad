"""Mixture of experts: permutation of tokens and dispatch to ranks."""
