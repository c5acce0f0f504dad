"""Features of the base namespace, for classes that build on them."""
