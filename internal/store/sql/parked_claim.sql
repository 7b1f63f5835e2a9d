-- Marks the first $6 waiting events of a key ($4, $5) as being sent by the owner of epoch $3, and returns them in order.
-- No other relay can: it would need the lane. Admin leaves rows alone that are being sent.
-- Walks parked_key_idx; locks the rows and the lane's row.
WITH held AS (
    SELECT FROM :"schema".lanes
    WHERE subscription = $1::text AND lane = $2::integer AND epoch = $3::bigint
    FOR NO KEY UPDATE
), first AS MATERIALIZED (
    SELECT k.id
    FROM :"schema".parked AS k, held
    WHERE k.subscription = $1::text AND k.lane = $2::integer AND k.state <> 'dead'
      AND hashtextextended(k.aggregate_id, hashtextextended(k.aggregate_type, 0)) = hashtextextended($5::text, hashtextextended($4::text, 0))
      AND k.aggregate_type = $4::text AND k.aggregate_id = $5::text
    ORDER BY k.id
    LIMIT $6::bigint
), sent AS (
    UPDATE :"schema".parked AS k
    SET state = 'sending', epoch = $3::bigint
    FROM first
    WHERE k.id = first.id
    RETURNING k.*
)
SELECT id, attempts, topic, seq, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at
FROM sent
ORDER BY id;
