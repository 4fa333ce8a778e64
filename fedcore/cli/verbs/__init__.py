"""The verbs of the `fedcore` command, a module each."""
