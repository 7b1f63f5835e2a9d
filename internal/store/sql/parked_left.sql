-- Which of the keys ($3, $4) still have events that wait: someone may have made a dead one wait again.
-- Walks parked_key_idx, one entry per key; takes ACCESS SHARE.
SELECT key.aggregate_type, key.aggregate_id
FROM unnest($3::text[], $4::text[]) AS key (aggregate_type, aggregate_id)
WHERE EXISTS (
    SELECT FROM :"schema".parked AS w
    WHERE w.subscription = $1::text AND w.lane = $2::integer AND w.state <> 'dead'
      AND hashtextextended(w.aggregate_id, hashtextextended(w.aggregate_type, 0))
        = hashtextextended(key.aggregate_id, hashtextextended(key.aggregate_type, 0))
      AND w.aggregate_type = key.aggregate_type AND w.aggregate_id = key.aggregate_id);
