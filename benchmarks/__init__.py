"""Benchmarks of mmapdict: every figure beside its floor, measured in the same run.

`harness` (clock, memory, child processes, rows) -> `floors` (the least that the system can do; imports no mmapdict)
-> `workloads` (what is measured) -> `__main__` (arguments, table, JSON). Run with ``python -m benchmarks``.

Beside other libraries: `harness` -> `peers` (an adapter for each) -> `scoreboard` (tables, JSON, plots, page)
-> `field` (stores, turns, reasons) -> `against` (what is measured) -> `__main__`.
Run with ``python -m benchmarks peers``.
"""
