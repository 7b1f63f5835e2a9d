-- What the transactions with these ids ($1, low 32 bits) are, of those that still run.
-- Reads the lock table once (a moment's lock on each of its partitions); takes ACCESS SHARE on the catalogs.
SELECT CASE
           WHEN l.pid IS NULL THEN concat('prepared transaction ' || quote_literal(p.gid), ', prepared at ' || p.prepared,
               ': COMMIT PREPARED or ROLLBACK PREPARED ends it')
           ELSE concat('session ', l.pid, ' of ' || coalesce(a.usename, a.backend_type), ' (' || nullif(a.application_name, '') || ')',
               ', in its transaction since ' || a.xact_start)
       END
FROM pg_locks AS l
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts AS p ON l.pid IS NULL AND p.transaction = l.transactionid
WHERE l.granted
  AND l.locktype = 'transactionid'
  AND l.mode = 'ExclusiveLock'
  AND l.transactionid::text::bigint = ANY ($1::bigint[])
ORDER BY a.xact_start NULLS FIRST;
