"""`augury new-drafter`."""
