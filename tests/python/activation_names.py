"""The activation functions that modules take, by name; one list for all tests."""

# A function, and the gated one that multiplies its result by the other half of a row.
GATED = {"gelu": "geglu", "qgelu": "qgeglu", "relu": "reglu", "srelu": "sreglu", "silu": "swiglu"}
FUNCTIONS = tuple(GATED)
ACTIVATIONS = (*FUNCTIONS, *GATED.values())
