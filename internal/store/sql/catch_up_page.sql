-- A page of the window after a break of the counters: events above $1 and up to $2, but for those settled before it:
-- up to $4 and seen by $3, or up to $6 and seen by $5.
-- $7 and $8 are the subscription's filter as LIKE patterns (none: all), $9 the most rows, $10 the number
-- of lanes and $11 which of them are wanted (NULL: all).
-- Walks the index on seq of each leaf from $1 to $2 and merges them; takes ACCESS SHARE.
SELECT seq, id, aggregate_type, aggregate_id, event_type, payload, headers, created_at,
       (hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) & ($10::bigint - 1))::integer
FROM :"events_schema".:"events_table"
WHERE seq > $1::bigint
  AND seq <= $2::bigint
  AND NOT (seq <= $4::bigint AND pg_visible_in_snapshot(xid, $3::pg_snapshot))
  AND NOT (seq <= $6::bigint AND pg_visible_in_snapshot(xid, $5::pg_snapshot))
  AND ($7::text[] = '{}' OR aggregate_type LIKE ANY ($7::text[]))
  AND ($8::text[] = '{}' OR event_type LIKE ANY ($8::text[]))
  AND ($11::boolean[] IS NULL OR
       ($11::boolean[])[1 + (hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) & ($10::bigint - 1))::integer])
ORDER BY seq
LIMIT $9::bigint;
