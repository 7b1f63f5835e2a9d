-- The sequence behind the events table's seq: whatever its name, it belongs to that column.
SELECT n.nspname, s.relname, s.oid, q.seqcache, q.seqincrement, q.seqcycle, s.relpersistence::text
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'seq'
JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid AND d.refobjsubid = a.attnum
    AND d.classid = 'pg_class'::regclass AND d.deptype = 'i'
JOIN pg_class AS s ON s.oid = d.objid AND s.relkind = 'S'
JOIN pg_sequence AS q ON q.seqrelid = s.oid
JOIN pg_namespace AS n ON n.oid = s.relnamespace
WHERE c.oid = $1;
