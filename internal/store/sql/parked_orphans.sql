-- Makes the first waiting event due of every key of a lane that has none due: whoever took away the one before it, by SQL or in a
-- fault, cannot know of it. $3: a dead event blocks its key.
-- Walks parked_key_idx; locks the rows.
UPDATE :"schema".parked AS k
SET next_attempt = now()
FROM (
    SELECT min(id) FILTER (WHERE state <> 'dead') AS first
    FROM :"schema".parked
    WHERE subscription = $1::text AND lane = $2::integer AND (state <> 'dead' OR $3::boolean)
    GROUP BY aggregate_type, aggregate_id
    HAVING count(*) FILTER (WHERE state <> 'dead') > 0
       AND count(next_attempt) FILTER (WHERE state <> 'dead') = 0
       AND NOT ($3::boolean AND bool_or(state = 'dead'))) AS orphan
WHERE k.id = orphan.first
  AND EXISTS (
      SELECT FROM :"schema".lanes
      WHERE subscription = $1::text AND lane = $2::integer AND epoch = $4::bigint AND owner = $5::uuid);
