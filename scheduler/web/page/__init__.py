"""The status page: HTML views of the same data that the API shows."""
