"""The command line `augury`: its commands, and the flags and output that commands of plugins share with them."""
