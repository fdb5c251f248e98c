"""What builds the documentation: generated pages, pictures, and the runner of the pages' code."""
