"""The tuner: measures configurations of an operation on this GPU and remembers the fastest.

`cudnn.tune` and `cudnn.autotune` are in `api`, ``python -m cudnn tune`` in `cli`; `table` keeps the results and is what operations ask when they are compiled.
"""
