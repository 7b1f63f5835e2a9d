-- Whether nothing is left in the schema, and it is the role's to drop.
SELECT n.nspname <> 'public' AND pg_has_role(n.nspowner, 'USAGE')
   AND NOT EXISTS (
       SELECT FROM pg_depend AS d
       WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid AND d.deptype = 'n')
FROM pg_namespace AS n
WHERE n.nspname = :'schema';
