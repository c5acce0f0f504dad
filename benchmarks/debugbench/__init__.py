"""DebugBench: incidents from public threads, rebuilt small, and how well they are diagnosed.

incidents.yaml lists them with the expected answers; the folder incidents holds their programs.
"""
