-- Who has a lock on the leaf $1 (an oid) that keeps it from being emptied: what to call it, and whether it is no use to wait a
-- moment for it, because it writes, is prepared, or has been at it for long. Of sessions that this role may not look into it
-- is not known for how long they have been at it.
-- Reads the lock table once (a moment's lock on each of its partitions); takes ACCESS SHARE on the catalogs.
WITH held AS MATERIALIZED (
    SELECT locktype, relation, database, mode, pid, virtualtransaction, transactionid
    FROM pg_locks
    WHERE granted
)
SELECT CASE
           WHEN l.pid IS NULL THEN concat('prepared transaction ' || quote_literal(p.gid), ', prepared at ' || p.prepared,
               ': COMMIT PREPARED or ROLLBACK PREPARED ends it')
           ELSE concat('session ', l.pid, ' of ' || coalesce(a.usename, a.backend_type), ' (' || nullif(a.application_name, '') || ')',
               CASE WHEN bool_or(l.mode <> 'AccessShareLock') THEN ', which writes, ' ELSE ', which reads, ' END,
               'in its transaction since ' || a.xact_start)
       END,
       bool_or(l.mode <> 'AccessShareLock') OR l.pid IS NULL OR coalesce(a.xact_start < clock_timestamp() - interval '1 second', false)
FROM held AS l
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
LEFT JOIN held AS x ON l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid'
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = x.transactionid
WHERE l.locktype = 'relation'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation = $1::bigint::oid
  AND (l.pid IS NULL OR l.pid <> pg_backend_pid())
  AND (l.pid IS NOT NULL OR p.gid IS NOT NULL) -- a prepared transaction has the ids of its subtransactions, too
GROUP BY l.pid, p.gid, p.prepared, a.usename, a.backend_type, a.application_name, a.xact_start
ORDER BY 2 DESC, a.xact_start;
