"""Model families: each file writes the plan of one."""
