-- What may change a row on its way into the events table: row triggers BEFORE INSERT on it or on one leaf, and rules.
-- (A trigger on the table stands on each leaf again, with tgparentid set.) The last column says whether the
-- function's text assigns xid or seq; it is a hint, as only running it tells.
SELECT 'trigger', n.nspname, c.relname, t.tgname, p.prosrc ~* '\mnew\s*\.\s*"?(xid|seq)"?\s*:='
FROM pg_trigger AS t
JOIN pg_class AS c ON c.oid = t.tgrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE (c.oid = $1 OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = $1))
  AND t.tgtype & 7 = 7 -- ROW, BEFORE and INSERT
  AND NOT t.tgisinternal AND t.tgparentid = 0 AND t.tgenabled <> 'D'
UNION ALL
SELECT 'rule', n.nspname, c.relname, r.rulename, true
FROM pg_rewrite AS r
JOIN pg_class AS c ON c.oid = r.ev_class
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE r.ev_class = $1 AND r.ev_type = '3' AND r.ev_enabled <> 'D' -- INSERT
ORDER BY 1, 2, 3, 4;
