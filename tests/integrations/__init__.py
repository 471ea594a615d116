"""What `aiorecover.integrations` promises."""
