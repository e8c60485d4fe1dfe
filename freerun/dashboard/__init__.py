"""The page: what people see of a run in a browser, while it runs and afterwards."""
