-- How much has ever been written to the log.
SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint;
