"""`augury new-drafter`, and the template of the package that it writes."""
