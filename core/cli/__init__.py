"""The command line `augury`, and what commands of plugins are made of."""
