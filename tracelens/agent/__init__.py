"""What runs inside the training process: standard library and the job's own torch, nothing else.

In a recorded job these files are loaded as the package ``_tracelens_agent`` by ``inject/sitecustomize.py``
(the job's environment need not have tracelens), so they import each other relatively. Python >= 3.9, torch >= 2.1.
"""
