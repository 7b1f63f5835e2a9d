-- A page of a window: events above $1 and up to $2 that snapshot $3 does not see and $4 does, in order.
-- $5 and $6 are the subscription's filter as LIKE patterns (none: all), $7 the most rows, $8 the number
-- of lanes and $9 which of them are wanted (NULL: all).
-- Walks the index on seq of each leaf from $1 to $2 and merges them; takes ACCESS SHARE.
SELECT seq, id, aggregate_type, aggregate_id, event_type, payload, headers, created_at,
       (hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) & ($8::bigint - 1))::integer
FROM :"events_schema".:"events_table"
WHERE seq > $1::bigint
  AND seq <= $2::bigint
  AND NOT pg_visible_in_snapshot(xid, $3::pg_snapshot)
  AND pg_visible_in_snapshot(xid, $4::pg_snapshot)
  AND ($5::text[] = '{}' OR aggregate_type LIKE ANY ($5::text[]))
  AND ($6::text[] = '{}' OR event_type LIKE ANY ($6::text[]))
  AND ($9::boolean[] IS NULL OR
       ($9::boolean[])[1 + (hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) & ($8::bigint - 1))::integer])
ORDER BY seq
LIMIT $7::bigint;
