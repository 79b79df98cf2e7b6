"""Several machines: the database and the queue of runs on a PostgreSQL server, one leader, and workers."""
