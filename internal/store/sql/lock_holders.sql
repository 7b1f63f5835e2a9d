-- Who keeps SHARE from the events table: sessions and prepared transactions with a writer's lock on it.
-- Reads the lock table; takes ACCESS SHARE on the catalogs.
SELECT DISTINCT coalesce(
    format('session %s of %s (%s), in its transaction since %s', a.pid, a.usename, nullif(a.application_name, ''), a.xact_start),
    'a prepared transaction: see pg_prepared_xacts')
FROM pg_locks AS l
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation'
  AND l.granted
  AND l.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation IN (SELECT relid FROM pg_partition_tree(:'events'::regclass));
