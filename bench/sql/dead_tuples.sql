-- Dead tuples of table $1 and its partitions. The flush is asked for before the counters are looked at.
WITH flushed AS MATERIALIZED (SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot())
SELECT coalesce(sum(pg_stat_get_dead_tuples(t.relid)), 0)::bigint
FROM flushed, pg_partition_tree($1::text::regclass) AS t;
