-- What waits in each lane of subscription $1 among the events above $2 and up to $3.
-- The wait of an event is counted from its created_at, which writers may set: one in the future counts as 0.
-- Walks the index on seq of each leaf; takes ACCESS SHARE.
SELECT lane,
       count(*),
       max(CASE WHEN isfinite(created_at) THEN greatest(extract(epoch FROM now() - created_at), 0) ELSE 0 END)::float8
FROM :"schema".events
WHERE subscription = $1::text
  AND seq > $2::bigint
  AND seq <= $3::bigint
  AND status = 'PENDING'
GROUP BY lane;
