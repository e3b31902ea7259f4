"""`augury bench` and `augury tune`."""
