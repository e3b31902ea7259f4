"""`augury batch`: a file of prompts becomes a file of answers, over as many runs as that takes."""
