"""The statements of the contract, one module a chapter."""
