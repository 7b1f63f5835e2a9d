-- The lowest number above $1, to jump an empty stretch. No row: there is none.
-- Walks the index on seq of each leaf, one entry each; takes ACCESS SHARE.
SELECT seq
FROM :"events_schema".:"events_table"
WHERE seq > $1::bigint
ORDER BY seq
LIMIT 1;
