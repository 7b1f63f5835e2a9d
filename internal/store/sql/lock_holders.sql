-- Who keeps SHARE from the events table: sessions and prepared transactions with a writer's lock on it. What this role may
-- not see of others' sessions is left out.
-- Reads the lock table once (a moment's lock on each of its partitions); takes ACCESS SHARE on the catalogs.
WITH held AS MATERIALIZED (
    SELECT locktype, relation, database, mode, pid, virtualtransaction, transactionid
    FROM pg_locks
    WHERE granted
)
SELECT DISTINCT CASE
    WHEN l.pid IS NULL THEN concat('prepared transaction ' || quote_literal(p.gid), ', prepared at ' || p.prepared,
        ': COMMIT PREPARED or ROLLBACK PREPARED ends it')
    ELSE concat('session ', l.pid, ' of ' || coalesce(a.usename, a.backend_type), ' (' || nullif(a.application_name, '') || ')',
        ', in its transaction since ' || a.xact_start)
    END
FROM held AS l
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
LEFT JOIN held AS x ON l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid'
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = x.transactionid
WHERE l.locktype = 'relation'
  AND (l.pid IS NOT NULL OR p.gid IS NOT NULL) -- a prepared transaction has the ids of its subtransactions, too
  AND l.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation IN (SELECT relid FROM pg_partition_tree(:'events'::regclass));
