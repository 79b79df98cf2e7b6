"""The file that everything durable lives in, table by table: what is written, and how it is read back."""
