"""One claimed thing carried through: by whom, in which process, under which lock; never with the database."""
