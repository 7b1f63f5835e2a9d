-- The low 32 bits of the ids of transactions that hold the lock of a writer on the events table or a leaf, prepared ones
-- included. An INSERT takes that lock before it draws a number.
-- Reads the lock table once (a moment's lock on each of its partitions); takes ACCESS SHARE on the catalogs.
WITH held AS MATERIALIZED (
    SELECT locktype, relation, database, mode, virtualtransaction, transactionid
    FROM pg_locks
    WHERE granted
)
SELECT DISTINCT x.transactionid::text::bigint
FROM held AS w
JOIN held AS x USING (virtualtransaction)
WHERE w.locktype = 'relation'
  AND w.mode = 'RowExclusiveLock'
  AND w.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND w.relation IN (SELECT relid FROM pg_partition_tree(:'events'::regclass))
  AND x.locktype = 'transactionid'
  AND x.mode = 'ExclusiveLock';
