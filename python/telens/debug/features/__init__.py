"""What feature classes for the FP8 core build on."""
