"""What drafters that run a model share."""
