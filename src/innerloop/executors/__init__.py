"""Fast forms, each exact where it says that it applies.

A module defines `SUMMARY`, `why_not(memory, call=None) -> list[str]` (empty: exact here; without a call it answers for
the memory alone), `run(memory, call, chunk_size) -> Result`, `flops(memory) -> str` and optionally
`step(memory, call) -> Result`; `core/dispatch.py` lists them in the order in which they are asked.
"""
