"""`augury learn`: trains an EAGLE-3 head for a model, on texts or on the model's own answers."""
