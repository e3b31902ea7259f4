"""The commands of `augury bench`, and `augury tune`: a module each."""
