-- The leaves of the events table: their slots, whether a crash would empty them, and whether an index leads with seq.
SELECT n.nspname, c.relname, pg_get_expr(c.relpartbound, c.oid), c.relpersistence::text,
       EXISTS (
           SELECT FROM pg_index AS i
           JOIN pg_class AS x ON x.oid = i.indexrelid
           JOIN pg_am AS m ON m.oid = x.relam
           JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'seq'
           WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum
             AND m.amname = 'btree' AND i.indisvalid AND i.indisready AND i.indpred IS NULL)
FROM pg_inherits AS h
JOIN pg_class AS c ON c.oid = h.inhrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE h.inhparent = $1
ORDER BY c.oid;
