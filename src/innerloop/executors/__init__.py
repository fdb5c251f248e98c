"""Fast forms, each exact where it says that it applies.

A module defines `why_not(memory, call) -> list[str]` (empty: exact here; `call` may be None to ask of the memory alone),
`run(memory, call, chunk_size) -> Result`, `cost(memory, chunk) -> str` and optionally `step(memory, call) -> Result`.
"""
