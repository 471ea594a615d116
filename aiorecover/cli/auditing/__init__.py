"""``aiorecover audit``: what is asked, who answers, and how it is shown."""
