-- Makes the first waiting event due of every key of a lane that has none due: whoever took away the one before it, by SQL or in a
-- fault, cannot know of it. $3: a dead event blocks its key.
-- Walks parked_due_idx or parked_key_idx, and parked_dead_idx; locks the rows.
UPDATE :"schema".parked AS k
SET next_attempt = now()
FROM (
    SELECT min(id) AS first
    FROM (
        SELECT aggregate_type, aggregate_id, id, next_attempt
        FROM :"schema".parked
        WHERE subscription = $1::text AND lane = $2::integer AND state <> 'dead'
        UNION ALL
        SELECT aggregate_type, aggregate_id, NULL, NULL
        FROM :"schema".parked
        WHERE subscription = $1::text AND lane = $2::integer AND state = 'dead' AND $3::boolean) AS blocking
    GROUP BY aggregate_type, aggregate_id
    HAVING count(id) > 0 AND count(next_attempt) = 0
       AND count(id) = count(*)) AS orphan -- no dead one among them
WHERE k.id = orphan.first
  AND EXISTS (
      SELECT FROM :"schema".lanes
      WHERE subscription = $1::text AND lane = $2::integer AND epoch = $4::bigint AND owner = $5::uuid);
