-- Which rights of the list a role lacks, by their place in it. $1 is the role; $2 to $6 are columns of the list: the
-- kind of object, its schema, its name, a column of it or '', and the privilege. A name that does not exist is no
-- missing right. Reads the catalog alone.
SELECT w.place
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
    WITH ORDINALITY AS w (kind, schema_name, name, column_name, privilege, place)
JOIN pg_namespace AS n ON n.nspname = w.schema_name
LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = w.name
WHERE CASE w.kind
          WHEN 'SCHEMA' THEN NOT has_schema_privilege($1::name, n.oid, w.privilege)
          WHEN 'SEQUENCE' THEN NOT has_sequence_privilege($1::name, c.oid, w.privilege)
          WHEN 'TABLE' THEN
              CASE WHEN w.column_name = '' THEN NOT has_table_privilege($1::name, c.oid, w.privilege)
                   ELSE NOT has_column_privilege($1::name, c.oid, w.column_name, w.privilege)
              END
      END
ORDER BY w.place;
