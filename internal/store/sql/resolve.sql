-- Finds the events table ($1, as an SQL name) and its sequence by their full names, in the search_path of this connection
-- where the name has no schema.
-- Walks the catalogs' indexes; takes ACCESS SHARE on them.
SELECT n.nspname::text, c.relname::text, coalesce(pg_get_serial_sequence(format('%I.%I', n.nspname, c.relname), 'seq'), '')
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1::text);
