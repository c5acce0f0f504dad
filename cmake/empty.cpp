// A target that only holds a precompiled header needs one source.
