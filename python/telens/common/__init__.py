"""Framework-independent parts: the recipes."""
