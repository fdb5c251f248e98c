"""The one equation as values, and the oracle that runs it. Imports nothing else of innerloop."""
