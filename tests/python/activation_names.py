"""The activation functions of the modules by name, as one list for all tests."""

# A function, and its gated form, which multiplies the result by the other half of the row.
GATED = {"gelu": "geglu", "qgelu": "qgeglu", "relu": "reglu", "srelu": "sreglu", "silu": "swiglu"}
FUNCTIONS = tuple(GATED)
ACTIVATIONS = (*FUNCTIONS, *GATED.values())
