"""Names of Transformer Engine that frameworks import from its other modules.

A name whose function is missing here exists too, and raises UsageError when it is called
(``missing.py``).
"""
