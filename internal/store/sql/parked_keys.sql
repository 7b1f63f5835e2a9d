-- The keys of a lane whose events must wait, with how many do. $3: a dead event blocks its key, too.
-- Walks parked_due_idx or parked_key_idx, and parked_dead_idx; takes ACCESS SHARE.
SELECT aggregate_type, aggregate_id, count(*) FILTER (WHERE NOT dead), bool_or(dead)
FROM (
    SELECT aggregate_type, aggregate_id, false AS dead
    FROM :"schema".parked
    WHERE subscription = $1::text AND lane = $2::integer AND state <> 'dead'
    UNION ALL
    SELECT aggregate_type, aggregate_id, true
    FROM :"schema".parked
    WHERE subscription = $1::text AND lane = $2::integer AND state = 'dead' AND $3::boolean) AS blocking
GROUP BY aggregate_type, aggregate_id;
