"""The command line: one file per command, `innerloop.cli.main` puts them together."""
