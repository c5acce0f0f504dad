"""DebugBench: small reproductions of public incidents, and how well TELens diagnoses them.

incidents.yaml lists the incidents with the expected answers. The folder incidents contains their
programs.
"""
