-- Marks waiting events of those keys ($4, $5) that are due as being sent by the owner ($8) of epoch $3, and returns them in the order of each key:
-- the first $6 of each, and none that begins after $7 bytes of payload. No other relay can: it would need the lane.
-- Admin leaves rows alone that are being sent.
-- Walks parked_key_idx once per key; locks the rows and the lane's row.
WITH held AS (
    SELECT FROM :"schema".lanes
    WHERE subscription = $1::text AND lane = $2::integer AND epoch = $3::bigint AND owner = $8::uuid
    FOR NO KEY UPDATE
), waiting AS MATERIALIZED (
    SELECT r.id, sum(r.size) OVER (ORDER BY key.ord, r.id) - r.size AS before
    FROM held,
        unnest($4::text[], $5::text[]) WITH ORDINALITY AS key (aggregate_type, aggregate_id, ord),
        LATERAL (
            SELECT k.id, coalesce(octet_length(k.payload::text), 0) AS size
            FROM :"schema".parked AS k
            WHERE k.subscription = $1::text AND k.lane = $2::integer AND k.state <> 'dead'
              AND hashtextextended(k.aggregate_id, hashtextextended(k.aggregate_type, 0))
                = hashtextextended(key.aggregate_id, hashtextextended(key.aggregate_type, 0))
              AND k.aggregate_type = key.aggregate_type AND k.aggregate_id = key.aggregate_id
            ORDER BY k.id
            LIMIT $6::bigint) AS r
    WHERE EXISTS (
        SELECT FROM :"schema".parked AS d
        WHERE d.subscription = $1::text AND d.lane = $2::integer AND d.state <> 'dead' AND d.next_attempt <= now()
          AND hashtextextended(d.aggregate_id, hashtextextended(d.aggregate_type, 0))
            = hashtextextended(key.aggregate_id, hashtextextended(key.aggregate_type, 0))
          AND d.aggregate_type = key.aggregate_type AND d.aggregate_id = key.aggregate_id)
), sent AS (
    UPDATE :"schema".parked AS k
    SET state = 'sending', epoch = $3::bigint
    FROM waiting
    WHERE k.id = waiting.id AND waiting.before < $7::bigint
    RETURNING k.*
)
SELECT id, attempts, topic, seq, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at
FROM sent
ORDER BY id;
