-- The keys whose events must wait, with how many do. $3: a dead event blocks its key, too.
-- Walks the index on due rows, or the one on subscription; takes ACCESS SHARE.
SELECT aggregate_type, aggregate_id, count(*) FILTER (WHERE state <> 'dead'), bool_or(state = 'dead')
FROM :"schema".parked
WHERE subscription = $1::text
  AND lane = $2::integer
  AND (state <> 'dead' OR $3::boolean)
GROUP BY aggregate_type, aggregate_id;
