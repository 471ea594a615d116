"""The promises of `aiorecover.integrations`."""
