-- Which of these tables row level security hides rows of from the current role: all of them ('all'), or some, as the
-- policies say ('some'). Not listed: tables that it does not concern, and those with a policy that lets all pass.
SELECT n.nspname, c.relname, CASE WHEN p.some_pass THEN 'some' ELSE 'all' END
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT coalesce(bool_or(polpermissive), false) AS some_pass,
           coalesce(bool_or(polpermissive AND qual = 'true'), false)
               AND coalesce(bool_and(polpermissive OR qual = 'true'), true) AS all_pass
    FROM (SELECT polpermissive, pg_get_expr(polqual, polrelid) AS qual
          FROM pg_policy
          WHERE polrelid = c.oid AND polcmd IN ('r', '*')
            AND EXISTS (SELECT FROM unnest(polroles) AS r WHERE CASE r WHEN 0 THEN true ELSE pg_has_role(r, 'USAGE') END)
         ) AS q
    ) AS p
WHERE c.oid = ANY ($1::oid[]) AND row_security_active(c.oid) AND NOT p.all_pass
ORDER BY c.oid;
