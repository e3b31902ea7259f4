"""What several lookup drafters share."""
