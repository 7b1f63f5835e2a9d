-- Give the transaction its id, long before it writes anything.
SELECT pg_current_xact_id();
