"""Parts of the module classes: arguments, initialization, attention inputs, key-value caches."""
