-- Which of our names are taken in the two schemas. Reads the catalog alone, which needs no rights on the schemas.
SELECT n.nspname, c.relname, c.oid, c.relkind::text, c.relpersistence::text
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE (n.nspname = :'schema' AND c.relname = ANY ($1::text[]))
   OR (n.nspname = :'events_schema' AND c.relname = ANY ($2::text[]));
